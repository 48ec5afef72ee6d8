"""The files of a sweep's folder, whole or not at all, also of a sweep that runs or that was killed while it ran."""

from __future__ import annotations

import csv
import dataclasses
import errno
import json
import multiprocessing
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.command import subcommand
from support.nets import lenet5
from support.plans import fake_plan, read_records, sweep_folder
from support.seen import PEAKS, allocations, layer_times, operators
from sweeprof.cli import report as report_module
from sweeprof.cli.run import run_command
from sweeprof.measuring.timing import Timing
from sweeprof.plan.plan import Plan
from sweeprof.report.answer import answer
from sweeprof.report.changes import comparison_markdown
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.files import write_json
from sweeprof.results.record import PassName, Record, Status
from sweeprof.run import reports
from sweeprof.run.comparison import comparison_of
from sweeprof.run.locks import driver_lock
from sweeprof.run.reports import (
    ClusterReports,
    SweepLocations,
    left_out,
    observed,
    sent_to,
    set_tag,
    standing,
    write_reports,
)
from sweeprof.run.shard import run_shard
from sweeprof.storage import Folder, events_of

report = subcommand("report")

GOLDEN = Path(__file__).parents[2] / "golden" / "sweep-v2"
TABLES = ("measurements", "problems", "rounds", "samples")


def measured(path: Path, rounds: int = 2, metrics: tuple[str, ...] = ("compute/macs", "latency/forward")) -> Folder:
    plan = fake_plan({"a": {}, "b": {}}, passes=("timing",), rounds=rounds, metrics=metrics)
    folder = sweep_folder(path / "sweep", plan)
    for id, seconds in (("ca", 0.5), ("cb", 0.25)):
        for number in range(rounds):
            seen = Timing(1.0, 0, 1, (seconds, seconds + number)).to_dict()
            Record("s1", id, "timing", "ok", round=number, observations=seen).write(folder.records)
    return folder


def names(folder: Folder, pattern: str) -> list[str]:
    return sorted(path.relative_to(folder.path).as_posix() for path in folder.path.glob(pattern))


def test_what_is_cheap_is_written_unasked(tmp_path: Path) -> None:
    folder = measured(tmp_path)
    write_reports(folder, comparison_of(folder))
    assert names(folder, "tables/*") == [f"tables/{name}.csv" for name in TABLES]
    assert names(folder, "*.tex") == ["comparison-tables.tex"]
    assert "a" in (folder.path / "comparison.md").read_text(encoding="utf-8")
    assert standing(folder) == {"samples"}


def test_samples_are_in_the_order_of_the_rounds(tmp_path: Path) -> None:
    folder = measured(tmp_path, rounds=11)
    write_reports(folder, comparison_of(folder))
    with (folder.path / "tables" / "samples.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["combination"], int(row["round"]), int(row["index"])) for row in rows] == [
        (id, number, index) for id in ("ca", "cb") for number in range(11) for index in range(2)
    ]
    assert {row["seconds"] for row in rows if row["combination"] == "cb"} == {"0.25", *(f"{n}.25" for n in range(11))}


def test_a_large_sweep_has_its_large_files_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST_UNASKED", 1)
    folder = measured(tmp_path)
    comparison = comparison_of(folder)
    write_reports(folder, comparison)
    assert "tables/samples.csv" not in names(folder, "tables/*")
    assert left_out(comparison, ()) == "samples: of 2 combinations only on request, --format samples"
    assert left_out(comparison, {"samples"}) is None
    assert report([str(folder.path), "--format", "samples"]) == 0
    assert "tables/samples.csv" in names(folder, "tables/*")
    (folder.path / "tables" / "samples.csv").write_text("of an earlier day")
    write_reports(folder, comparison)
    assert (folder.path / "tables" / "samples.csv").read_text().startswith("combination,")


def test_files_of_services_that_draw_the_history(tmp_path: Path) -> None:
    folder = measured(tmp_path, metrics=("latency/forward", "throughput/samples_per_s"))
    failed = "RuntimeError: no luck"
    Record("s1", "cb", "timing", "failed", reason=failed, round=0).write(folder.records)
    Record("s1", "cb", "timing", "failed", reason=failed, round=1).write(folder.records)
    assert report([str(folder.path), "--format", "bmf,benchmark-action,parquet"]) == 0
    assert standing(folder) == {"samples", "parquet", "bmf", "benchmark-action"}
    (row, _) = json.loads((folder.path / "comparison.json").read_text())["rows"]
    cell = row["cells"]["latency/forward"]["measurement"]
    low, high = (1e3 * end for end in cell["interval"])

    data = json.loads((folder.path / "bmf.json").read_text())
    (name,) = data  # a combination without values has no place in the format
    milliseconds = pytest.approx(1e3 * cell["value"])
    expected = {"value": milliseconds, "lower_value": pytest.approx(low), "upper_value": pytest.approx(high)}
    assert data[name]["latency/forward_ms"] == expected

    (entry,) = json.loads((folder.path / "benchmark-action-smaller.json").read_text())
    assert (entry["name"], entry["unit"], entry["value"]) == (f"{name}: latency/forward", "ms", milliseconds)
    assert (entry["range"], entry["extra"]) == (f"{low:.4g} – {high:.4g}", "range: 95% interval; rounds: 2")
    (entry,) = json.loads((folder.path / "benchmark-action-bigger.json").read_text())
    assert entry["name"] == f"{name}: throughput/samples_per_s"

    (folder.path / "bmf.json").write_text("{}")
    write_reports(folder, comparison_of(folder))
    assert json.loads((folder.path / "bmf.json").read_text()) == data


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = measured(tmp_path)
    assert report([str(folder.path), "--format", "parquett,samples,pdf"]) == 1
    said = capsys.readouterr().err
    assert (
        "--format: 'parquett' is not a format. Did you mean 'parquet'? Known: all, benchmark-action, bmf, parquet, samples."
        in said
    )
    assert "'pdf'" in said
    monkeypatch.setattr(report_module, "has_parquet", lambda: False)
    assert report([str(folder.path), "--format", "all"]) == 1
    assert "Parquet files need pyarrow" in capsys.readouterr().err
    assert not (folder.path / "report.html").exists()


def test_a_table_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(_: object) -> Iterator[str]:
        yield "half of it"
        raise OSError("the disk is gone")

    folder = measured(tmp_path)
    write_reports(folder, comparison_of(folder))
    before = {path.name: path.read_text() for path in folder.path.glob("tables/*")}
    monkeypatch.setattr(reports, "csv_chunks", cut)
    with pytest.raises(OSError, match="the disk is gone"):
        write_reports(folder, comparison_of(folder))
    assert {path.name: path.read_text() for path in folder.path.glob("tables/*")} == before


def test_tagged_sweeps_of_the_same_name_are_baselines_of_the_page(tmp_path: Path) -> None:
    older, newer, other = (Folder(tmp_path / name) for name in ("n/2026-01-01", "n/2026-01-02", "other/2026-01-03"))
    for place, folder in enumerate((older, newer, other)):
        shutil.copytree(GOLDEN, folder.path)
        plan = json.loads(folder.plan.read_text())
        folder.plan.write_text(json.dumps({**plan, "sweep_id": f"s{place}"}))
        set_tag(f"t{place}", folder.path, f"s{place}", SweepLocations(tmp_path))
    (tmp_path / ".tags" / "broken").write_text("{")
    write_json(older.path / "comparison.json", comparison_of(older))
    write_json(other.path / "comparison.json", comparison_of(other))
    page = page_of(newer)
    data = data_of(page, "sweep-data")
    own, saved = data["baselines"][:2]
    assert (own["key"], saved["key"], saved["text"]) == ("", "tag:t0", "tag:t0")
    assert "Since 22 November: " in saved["finding"]
    assert any(cell and cell[0] == 1 for column in saved["cells"].values() for cell in column)
    assert sum(one["key"].startswith("tag:") for one in data["baselines"]) == 1


SEEN: dict[PassName, Any] = {
    "analysis": lenet5(8),
    "layer_times": layer_times(lenet5(8)),
    "operators": operators(),
    "allocations": allocations(),
    "peaks": PEAKS,
}
PICTURES = "icicle_macs icicle_time memory operators roofline".split()


def seen(folder: Folder, name: PassName, what: Any, id: str = "ca", status: Status = "ok") -> None:
    """A record of what a pass saw."""
    observations = json.loads(json.dumps(what.to_dict()))
    reason = None if status == "ok" else "it fell over"
    Record("s1", id, name, status, reason, observations=observations).write(folder.records)


def observed_by(path: Path, *passes: PassName) -> Folder:
    """A sweep of ca and cb, of which ca has the passes."""
    folder = sweep_folder(path, fake_plan({"a": {}, "b": {}}))
    for name in passes:
        seen(folder, name, SEEN[name])
    return folder


def page_of(folder: Folder) -> str:
    return write_reports(folder, comparison_of(folder)).read_text(encoding="utf-8")


def data_of(page: str, id: str) -> dict[str, Any]:
    """The data of a part of the page."""
    found: dict[str, Any] = json.loads(page.partition(f'id="{id}">')[2].partition("</script>")[0])
    return found


def test_the_report_leads_to_files_that_are_there(tmp_path: Path) -> None:
    folder = observed_by(tmp_path, *SEEN)
    left = folder.path / "artifacts" / "ca"
    left.mkdir(parents=True)
    (left / "trace.json.gz").write_bytes(b"\x1f\x8b")
    (left / "lines_time.txt").write_text("line 1")
    (one,) = data_of(page_of(folder), "details-data")["combinations"]
    assert one["label"] == "model=a"
    assert sorted(figure["key"] for figure in one["figures"]) == PICTURES
    links = {file["name"]: file["href"] for file in one["files"]}
    assert links["trace.json.gz"] == "artifacts/ca/trace.json.gz"
    assert {"lines_time.txt", "layers.html", "operators.csv", "memory/timeline.csv"} <= set(links)
    assert all((tmp_path / href).is_file() for href in links.values())
    rows = {name: (tmp_path / href).read_text("utf-8").count("\n") - 1 for name, href in links.items() if "csv" in name}
    memory = {"memory/timeline.csv": 3000, "memory/layers.csv": 40, "memory/tensors.csv": 40}
    assert rows == {"layers.csv": len(lenet5(8).rows), "operators.csv": 40, **memory}
    assert "ui.perfetto.dev" in next(file["hint"] for file in one["files"] if file["name"] == "trace.json.gz")


def test_a_pass_that_failed_leaves_its_part_out_and_its_reason_in_the_row(tmp_path: Path) -> None:
    folder = observed_by(tmp_path, "analysis", "allocations")
    seen(folder, "operators", SEEN["operators"], status="failed")
    row = comparison_of(folder).rows[0]
    assert (row.status, row.reason) == ("failed", "operators: it fell over")
    (one,) = data_of(page_of(folder), "details-data")["combinations"]
    assert [figure["key"] for figure in one["figures"]] == ["icicle_macs", "memory"]
    assert [table["title"] for table in one["tables"]] == ["Memory by layer", "Live tensors after the last step"]
    assert not (tmp_path / "operators").exists()


def test_times_need_no_analysis_to_be_left_alone(tmp_path: Path) -> None:
    found = observed(observed_by(tmp_path, "layer_times", "peaks"), "ca")
    assert (found.layers, found.peaks, found.is_detailed) == (None, PEAKS, False)


def test_files_that_would_be_the_same_are_not_written_again(tmp_path: Path) -> None:
    folder = observed_by(tmp_path / "sweep", "analysis", "operators")
    first = page_of(folder)
    layers, operator_table = folder.path / "layers" / "ca.html", folder.path / "operators" / "ca.csv"
    before = [layers.stat().st_ino, operator_table.stat().st_ino]
    assert page_of(folder) == first
    assert [layers.stat().st_ino, operator_table.stat().st_ino] == before
    operator_table.unlink()
    assert page_of(folder) == first
    assert operator_table.exists()

    seen(folder, "analysis", lenet5(16))
    text = layers.read_text(encoding="utf-8")
    assert page_of(folder) != first
    assert layers.read_text(encoding="utf-8") != text
    (folder.records / "ca" / "operators-r0.json").unlink()
    assert "operators/ca.csv" not in page_of(folder)


def test_a_combination_is_named_by_the_axes_that_vary(tmp_path: Path) -> None:
    folder = observed_by(tmp_path / "sweep", "analysis")
    page_of(folder)
    layers = folder.path / "layers" / "ca.html"
    assert "<title>model=a</title>" in layers.read_text(encoding="utf-8")
    write_json(folder.plan, fake_plan({"a": {}}).to_dict())  # a search has more combinations with time
    page_of(folder)
    assert "<title>model=a, backend=fake, " in layers.read_text(encoding="utf-8")


def test_every_analysis_is_written_and_can_be_chosen(tmp_path: Path) -> None:
    folder = observed_by(tmp_path)
    seen(folder, "analysis", lenet5(8), "cb")
    assert (observed(folder, "ca").layers, observed(folder, "cb").layers) == (None, lenet5(8))
    page_of(folder)
    assert names(folder, "layers/*") == ["layers/cb.csv", "layers/cb.html"]
    seen(folder, "analysis", lenet5(1))
    page = page_of(folder)
    assert names(folder, "layers/*") == [f"layers/{name}" for name in ("ca.csv", "ca.html", "cb.csv", "cb.html")]
    rows = csv.DictReader((folder.path / "layers" / "cb.csv").read_text(encoding="utf-8").splitlines())
    assert sum(int(row["macs"]) for row in rows) == 8 * 416_520
    assert "model=b</h1>" in (folder.path / "layers" / "cb.html").read_text(encoding="utf-8")
    assert [item["label"] for item in data_of(page, "layers-data")["tables"]] == ["model=a", "model=b"]


def test_a_sweep_whose_analysis_failed_has_no_layers(tmp_path: Path) -> None:
    folder = observed_by(tmp_path)
    seen(folder, "analysis", lenet5(1), status="failed")
    assert "layers-data" not in page_of(folder)
    assert not (tmp_path / "layers").exists()


# While a sweep runs


def plan_of(isolation: str = "inline", models: str = "ab", rounds: int = 2) -> Plan:
    return fake_plan({name: {} for name in models}, isolation=isolation, rounds=rounds)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written after every trial, however long that takes."""
    monkeypatch.setattr(reports, "SHARE", 1e9)
    monkeypatch.setattr(reports, "EVERY_S", 0.0)
    monkeypatch.setattr(reports, "WAKE_S", 0.01)


@pytest.fixture
def on_cluster(tmp_path: Path, always: None) -> Folder:
    """A sweep that a cluster has measured, whose driver is still to write reports."""
    plan = dataclasses.replace(plan_of(), cluster={"settings": {}, "resources": []})
    folder = sweep_folder(tmp_path / "sweep", plan)
    run_shard(folder, 0)
    return folder


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.usefixtures("always")
def test_a_sweep_that_runs_shows_what_is_measured_and_what_is_missing(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of())
    seen: list[Comparison] = []
    with sent_to(seen.append):
        run_shard(folder, 0)
    first = seen[1]  # after the first round
    assert [row.rounds_complete for row in first.rows] == [1] * 2
    assert all(row.cells["latency/forward"].measurement.value is not None for row in first.rows)
    assert answer(first).counts == "running: 2 of 6 trials have ended; 0 of 2 combinations measured; 2 incomplete."
    assert "resume=" not in comparison_markdown(first)
    done = [comparison.running.done for comparison in seen if comparison.running is not None]
    assert done == sorted(set(done))
    assert len(done) == len(seen) == 6  # after each trial
    shown = Comparison.read(folder.path)
    assert shown.running == seen[-1].running
    assert (folder.path / "report.html").read_text().count("running: 6 of 6 trials have ended") > 0
    assert not (folder.path / "tables").exists()
    assert comparison_of(folder).running is None


@pytest.mark.slow
def test_writing_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of())
    began = time.monotonic()
    run_shard(folder, 0)
    assert time.monotonic() - began < 10
    assert not (folder.path / "report.html").exists()
    monkeypatch.setattr(reports, "EVERY_S", 0.0)
    seen: list[Comparison] = []
    with sent_to(seen.append):
        run_shard(sweep_folder(tmp_path / "other", plan_of()), 0)
    assert len(seen) == 1  # which took far more than a fiftieth of the time


@pytest.mark.usefixtures("always")
def test_what_cannot_be_written_does_not_end_the_sweep(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of())

    def fails(_: Comparison) -> None:
        raise ValueError("the tracker is away")

    with sent_to(fails):
        run_shard(folder, 0)
    assert "ValueError: the tracker is away" in caplog.text
    assert len(read_records(folder.records)) == 6


def test_on_a_cluster_the_driver_writes_them_while_it_waits(on_cluster: Folder) -> None:
    page = on_cluster.path / "report.html"
    assert not page.exists()
    with ClusterReports(on_cluster):
        wait_for(page.exists)
    assert "running: 6 of 6 trials have ended" in page.read_text()


def test_a_full_disk_does_not_end_the_driver_of_a_cluster(
    on_cluster: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(reports, "write_reports", fails)
    with ClusterReports(on_cluster):
        wait_for(lambda: "No space left on device" in caplog.text)
    assert "the reports of the running sweep were not written: [Errno 28] No space left on device" in caplog.text


@pytest.mark.slow
def test_the_report_of_a_killed_sweep_has_all_rows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of("fork", "abcd", 3))
    ended = 9
    running = multiprocessing.get_context("fork").Process(target=run_shard, args=(folder, 0))
    running.start()
    try:
        wait_for(lambda: sum(event.kind == "end" for event in events_of(folder.events)) >= ended)
    finally:
        running.kill()
        running.join()
    assert run_command(["report", str(folder.path)]) == 0
    comparison = Comparison.read(folder.path)
    timed = Counter(r.combination_id for r in read_records(folder.records) if r.pass_name == "timing")
    assert {row.combination_id: row.rounds_complete for row in comparison.rows if row.has_values} == timed
    assert len(timed) >= min(ended, 4)
    assert comparison.running is None
    assert "of 4 combinations measured" in capfd.readouterr().out


def test_the_report_of_a_running_sweep_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = sweep_folder(tmp_path / "sweep", plan_of())
    run_shard(folder, 0)
    with driver_lock(folder.path):
        assert run_command(["report", str(folder.path)]) == 0
    assert "running: 6 of 6 trials have ended" in " ".join(capfd.readouterr().out.split())
