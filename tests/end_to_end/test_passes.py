"""The detailed passes in one real sweep of the command: records, files beside the report, and the runs in MLflow."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from support.command import Ran, run_command, values_of
from support.plans import read_records

pytestmark = pytest.mark.slow

PASSES = {"analysis", "training", "peaks", "timing", "layer_times", "operators", "allocations", "lines"}
METRICS = (
    "compute/macs compute/macs_backward rate/mfu layers/slowest_self_s operators/self_s memory/alloc_peak_bytes lines"
).split()
PICTURES = {"icicle_time", "icicle_macs", "roofline", "memory", "operators"}
TABLES = {"timeline.csv", "layers.csv", "tensors.csv"}
LEFT = {"trace.json.gz", "lines_time.txt", "lines_memory.txt"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    short = ("protocol=quick", "protocol.min_s=0.02", "protocol.warmup_s=0.02")
    model = ("name=passes", "model=lenet5", "batch_size=8", "mode=inference,training")
    return run_command(tmp_path_factory.mktemp("passes"), *model, *short, f"metrics.select=[{','.join(METRICS)}]")


@pytest.fixture(scope="module")
def folder(ran: Ran) -> Path:
    return ran.folder("passes")


@pytest.fixture(scope="module")
def ids(ran: Ran) -> dict[str, str]:
    """Combination id by mode."""
    return {row["axes"]["mode"]: row["combination_id"] for row in ran.rows("passes")}


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_pass_of_both_modes_is_measured(ran: Ran, folder: Path, ids: dict[str, str]) -> None:
    assert set(ids) == {"inference", "training"}
    found = {(record.combination_id, record.pass_name): record for record in read_records(folder / "records")}
    assert set(found) == {(id, name) for id in ids.values() for name in PASSES}
    assert {key: record.reason for key, record in found.items() if record.status != "ok"} == {}


def test_every_metric_has_a_value(ran: Ran) -> None:
    for row in ran.rows("passes"):
        assert set(row["cells"]) == set(METRICS) - {"lines"}
        assert None not in values_of(row).values(), row


def test_layers_are_written_with_their_times(folder: Path, ids: dict[str, str]) -> None:
    for mode, id in ids.items():
        rows = lines(folder / "layers" / f"{id}.csv")
        assert sum(int(row["macs"]) for row in rows) == 8 * 416_520
        root = rows[0]
        inside = [row for row in rows if row["path"] != "__outside__"]
        own = sum(float(row["forward_self_s"]) for row in inside if row["forward_self_s"])
        assert own == pytest.approx(float(root["forward_s"]))
        timed = [row["path"] for row in rows if row["backward_self_s"]]
        assert bool(timed) == (mode == "training")
        assert mode == "inference" or {row["path"] for row in rows if row["type"] == "Conv2d"} <= set(timed)


def test_operators_count_what_the_layers_count(folder: Path, ids: dict[str, str]) -> None:
    layers = sum(int(row["flops"]) for row in lines(folder / "layers" / f"{ids['inference']}.csv"))
    operators = [row for row in lines(folder / "operators" / f"{ids['inference']}.csv") if row["flops"]]
    assert sum(int(row["flops"]) for row in operators) == layers


def test_memory_is_written_up_to_its_peak(folder: Path, ids: dict[str, str]) -> None:
    peaks = {}
    for mode, id in ids.items():
        (record,) = (
            r for r in read_records(folder / "records") if (r.combination_id, r.pass_name) == (id, "allocations")
        )
        peaks[mode] = (record.observations or {})["peak_bytes"]
        moments = lines(folder / "memory" / id / "timeline.csv")
        assert max(int(row["bytes"]) for row in moments) == peaks[mode]
        tensors = {}
        for row in lines(folder / "memory" / id / "tensors.csv"):
            tensors.update(dict.fromkeys(json.loads(row["names"]), int(row["bytes"])))
        assert tensors["conv1.weight"] == 6 * 25 * 4
        assert ("conv1.weight.grad" in tensors) == (mode == "training")
    # What a forward keeps for its backward is there beside what it needs anyway.
    assert peaks["training"] > peaks["inference"] > 8 * 6 * 28 * 28 * 4


def test_a_trace_and_the_lines_are_beside_the_report(folder: Path, ids: dict[str, str]) -> None:
    for id in ids.values():
        left = folder / "artifacts" / id
        assert {path.name for path in left.iterdir()} == LEFT
        events = json.loads(gzip.decompress((left / "trace.json.gz").read_bytes()))["traceEvents"]
        assert any(event.get("name", "").startswith("aten::") and "conv" in event["name"] for event in events)
        assert "forward" in (left / "lines_time.txt").read_text(encoding="utf-8")


def test_the_report_has_the_pictures_and_leads_to_the_files(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    details = json.loads(text.partition('id="details-data">')[2].partition("</script>")[0])
    assert [one["label"] for one in details["combinations"]] == ["mode=inference", "mode=training"]
    for one in details["combinations"]:
        assert all((folder / file["href"]).is_file() for file in one["files"])
        assert {figure["key"] for figure in one["figures"]} == PICTURES


def test_the_runs_in_mlflow_have_the_files(ran: Ran) -> None:
    runs = [path.parent for path in (ran.cwd / "outputs" / "mlflow-artifacts").rglob("config.json")]
    assert len(runs) == 2
    for run in runs:
        names = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
        assert LEFT | {"layers.csv", "layers.html", "operators.csv"} <= names
        assert {f"memory/{name}" for name in TABLES} <= names
