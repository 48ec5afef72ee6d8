"""What the detailed passes left: files by combination, and a section of the report that leads to them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.nets import lenet5
from support.plans import fake_plan, sweep_folder
from support.seen import PEAKS, allocations, layer_times, operators
from sweeprof.results.files import write_json
from sweeprof.results.record import PassName, Record
from sweeprof.run.comparison import comparison_of
from sweeprof.run.reports import observed, write_reports
from sweeprof.storage import Folder

SEEN: dict[PassName, Any] = {
    "analysis": lenet5(8),
    "layer_times": layer_times(lenet5(8)),
    "operators": operators(),
    "allocations": allocations(),
    "peaks": PEAKS,
}
PICTURES = "icicle_macs icicle_time memory operators roofline stacked_backward stacked_forward".split()


def measured(path: Path, *passes: PassName, failed: PassName | None = None) -> Folder:
    """A sweep of ca and cb, of which ca has the passes; one of them may have failed."""
    folder = sweep_folder(path, fake_plan({"a": {}, "b": {}}))
    for name in passes:
        seen = json.loads(json.dumps(SEEN[name].to_dict()))
        Record("s1", "ca", name, "ok", observations=seen).write(folder.records)
    if failed is not None:
        half = SEEN[failed].to_dict()
        Record("s1", "ca", failed, "failed", "it fell over", observations=half).write(folder.records)
    return folder


def report(folder: Folder) -> str:
    return write_reports(folder, comparison_of(folder)).read_text(encoding="utf-8")


def found_details(page: str) -> dict[str, Any]:
    found = re.search(r'id="details-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    details: dict[str, Any] = json.loads(found[1])
    return details


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep with everything, its reports written."""
    folder = measured(tmp_path_factory.mktemp("sweep"), *SEEN)
    left = folder.path / "artifacts" / "ca"
    left.mkdir(parents=True)
    (left / "trace.json.gz").write_bytes(b"\x1f\x8b")
    (left / "lines_time.txt").write_text("line 1")
    write_reports(folder, comparison_of(folder))
    return folder.path


def test_every_file_is_there(whole: Path) -> None:
    names = {
        p.relative_to(whole).as_posix()
        for room in ("layers", "operators", "memory")
        for p in (whole / room).rglob("*.*")
    }
    memory = {f"memory/ca/{name}.csv" for name in ("timeline", "layers", "tensors")}
    tables = {"layers/ca.csv", "layers/ca.html", "operators/ca.csv"}
    assert names == memory | tables


def test_layers_are_written_with_their_times(whole: Path) -> None:
    rows = {row["path"]: row for row in lines(whole / "layers" / "ca.csv")}
    assert float(rows["classifier"]["forward_s"]) == pytest.approx(4e-3)
    assert float(rows["classifier"]["forward_self_s"]) == pytest.approx(1e-3)
    assert float(rows["classifier.0"]["backward_self_s"]) == pytest.approx(2e-3)


def test_tables_hold_every_row(whole: Path) -> None:
    assert [row["self_s"] for row in lines(whole / "operators" / "ca.csv")] == ["0.004", "0.003"] * 20
    timeline = lines(whole / "memory" / "ca" / "timeline.csv")
    assert len(timeline) == 3000
    assert max(int(row["bytes"]) for row in timeline) == 1500 * 1024
    tensor = lines(whole / "memory" / "ca" / "tensors.csv")[0]
    assert (json.loads(tensor["names"]), json.loads(tensor["shape"])) == (["layer0.weight"], [2, 3])
    assert (tensor["kind"], tensor["bytes"]) == ("parameter", "24")
    assert lines(whole / "memory" / "ca" / "layers.csv")[39]["peak_bytes"] == str(39 * 1024)


def test_the_report_leads_to_files_that_are_there(whole: Path) -> None:
    (one,) = found_details((whole / "report.html").read_text(encoding="utf-8"))["combinations"]
    assert one["label"] == "model=a"
    assert sorted(figure["key"] for figure in one["figures"]) == PICTURES
    links = {file["name"]: file["href"] for file in one["files"]}
    assert links["trace.json.gz"] == "artifacts/ca/trace.json.gz"
    assert {"lines_time.txt", "layers.html", "operators.csv", "memory/timeline.csv"} <= set(links)
    assert all((whole / href).is_file() for href in links.values())
    assert "ui.perfetto.dev" in next(file["hint"] for file in one["files"] if file["name"] == "trace.json.gz")


def test_a_pass_that_failed_leaves_its_part_out_and_its_reason_in_the_row(tmp_path: Path) -> None:
    folder = measured(tmp_path, "analysis", "allocations", failed="operators")
    row = comparison_of(folder).rows[0]
    assert (row.status, row.reason) == ("failed", "operators: it fell over")
    (one,) = found_details(report(folder))["combinations"]
    assert [figure["key"] for figure in one["figures"]] == ["icicle_macs", "memory"]
    assert [table["title"] for table in one["tables"]] == ["Memory by layer", "Live tensors after the last step"]
    assert not (tmp_path / "operators").exists()


def test_without_such_passes_the_report_is_as_it_was(tmp_path: Path) -> None:
    folder = measured(tmp_path, "analysis")
    page = report(folder)
    assert "details-data" not in page
    assert "Where time and memory go" not in page
    assert not any((tmp_path / name).exists() for name in ("operators", "memory"))


def test_times_need_no_analysis_to_be_left_alone(tmp_path: Path) -> None:
    seen = observed(measured(tmp_path, "layer_times", "peaks"), "ca")
    assert (seen.layers, seen.peaks) == (None, PEAKS)
    assert not seen.is_detailed


def test_files_that_would_be_the_same_are_not_written_again(tmp_path: Path) -> None:
    folder = measured(tmp_path / "sweep", "analysis", "operators")
    first = report(folder)
    layers, operator_table = folder.path / "layers" / "ca.html", folder.path / "operators" / "ca.csv"
    before = [layers.stat().st_ino, operator_table.stat().st_ino]
    assert report(folder) == first
    assert [layers.stat().st_ino, operator_table.stat().st_ino] == before
    operator_table.unlink()
    assert report(folder) == first
    assert operator_table.exists()

    bigger = json.loads(json.dumps(lenet5(16).to_dict()))
    Record("s1", "ca", "analysis", "ok", observations=bigger).write(folder.records)
    text = layers.read_text(encoding="utf-8")
    assert report(folder) != first
    assert layers.read_text(encoding="utf-8") != text

    left = folder.path / "artifacts" / "ca" / "trace.json.gz"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    assert "artifacts/ca/trace.json.gz" in report(folder)
    (folder.records / "ca" / "operators-r0.json").unlink()
    assert "operators/ca.csv" not in report(folder)


def test_a_combination_is_named_by_the_axes_that_vary(tmp_path: Path) -> None:
    folder = measured(tmp_path / "sweep", "analysis")
    report(folder)
    layers = folder.path / "layers" / "ca.html"
    assert "<title>model=a</title>" in layers.read_text(encoding="utf-8")
    write_json(folder.plan, fake_plan({"a": {}}).to_dict())  # a search has more combinations with time
    report(folder)
    assert "<title>model=a, backend=fake, " in layers.read_text(encoding="utf-8")
