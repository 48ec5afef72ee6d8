"""A comparison from the records of a folder, complete or not."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.plans import fake_plan, sweep_folder
from support.samples import comparison
from sweeprof.measuring.timing import Timing
from sweeprof.plan.plan import ComparisonSettings, Plan
from sweeprof.report import table, terminal
from sweeprof.report.explore import page_data
from sweeprof.report.summary import environment_items, sections
from sweeprof.results.compared_rows import Comparison, Row
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.record import Json, Record, Status, Warning
from sweeprof.results.statistics import ratio_interval
from sweeprof.run.comparison import SEVERITY, comparison_of, of_cluster, seen_hosts
from sweeprof.run.reports import write_reports
from sweeprof.storage import Folder

TABLE = LayerTable((LayerRow(ROOT, "Net", 0, 0, 10, 10, 40, 0, 100),))


def analysis(id: str, status: Status = "ok", reason: str | None = None) -> Record:
    seen = TABLE.to_dict() if status == "ok" else None
    return Record("s1", id, "analysis", status, reason, observations=seen, wall_s=1.0)


def timing(id: str, seconds: float, round: int = 0, status: Status = "ok", **fields: Any) -> Record:
    seen = Timing(1.0, 0, 1, (seconds,) * 7).to_dict() if status == "ok" else None
    return Record("s1", id, "timing", status, round=round, observations=seen, wall_s=2.0, **fields)


def compared(path: Path, plan: Plan, records: Sequence[Record], **fields: Any) -> Comparison:
    folder = sweep_folder(path, plan)
    for record in records:
        record.write(folder.records)
    return comparison_of(folder, **fields)


def by_id(comparison: Comparison) -> dict[str, Row]:
    return {row.combination_id: row for row in comparison.rows}


def test_of_some_combinations_only_their_records_are_read(tmp_path: Path) -> None:
    """As a task does that sends its own; names still tell combinations apart by what varies in the whole sweep."""
    plan = fake_plan({"a": {}, "b": {}, "c": {}}, ["analysis"])
    whole = compared(tmp_path, plan, [analysis("ca"), analysis("cb"), analysis("cc")])
    some = comparison_of(Folder(tmp_path), only={"ca", "cb"})
    assert some.rows[:2] == whole.rows[:2]
    assert some.rows[2].status == "skipped"
    assert some.varying_axes() == whole.varying_axes()


def test_all_measured(tmp_path: Path) -> None:
    plan = fake_plan({"a": {}, "b": {}})
    records = [r for id, s in (("ca", 0.5), ("cb", 1.0)) for r in (analysis(id), timing(id, s))]
    found = compared(tmp_path, plan, records)
    rows = by_id(found)
    assert found.counts() == {"ok": 2}
    assert (found.sweep_id, found.name, found.axes) == ("s1", "test", ("model", "backend", "device", "batch_size"))
    assert [m.name for m in found.metrics] == ["compute/macs", "latency/forward"]
    assert (rows["ca"].baseline_id, rows["cb"].baseline_id) == ("ca", "ca")
    assert rows["ca"].is_baseline
    assert rows["cb"].cells["latency/forward"].ratio == 2.0
    assert rows["cb"].cells["compute/macs"].verdict == "same"
    assert rows["ca"].wall_s == 3.0


def test_nothing_measured(tmp_path: Path) -> None:
    found = compared(tmp_path, fake_plan({"a": {}, "b": {}}), [], missing="interrupted before it was measured")
    assert compared(tmp_path, fake_plan({}), []).rows == ()
    assert len(found.rows) == 2
    for row in found.rows:
        assert (row.status, row.reason) == ("skipped", "timing: interrupted before it was measured")
        assert set(row.cells) == {"compute/macs", "latency/forward"}
        assert {cell.measurement.value for cell in row.cells.values()} == {None}
        reasons = [str(cell.measurement.reason) for cell in row.cells.values()]
        assert all("skipped: interrupted before it was measured" in reason for reason in reasons)


LEFT: dict[str, tuple[list[Record], int, Status, str | None, dict[str, float | str]]] = {
    "a missing record": (
        [analysis("ca")],
        1,
        "skipped",
        "timing: its shard ended before it was measured",
        {"compute/macs": 100},
    ),
    "a missing round": (
        [analysis("ca"), timing("ca", 0.5, 0), timing("ca", 0.5, 2)],
        3,
        "skipped",
        "2 of 3 rounds measured; timing: its shard ended before it was measured",
        {"compute/macs": 100, "latency/forward": 0.5},
    ),
    "a pass that crashed": (
        [analysis("ca"), timing("ca", 0, status="crashed", reason="killed")],
        1,
        "crashed",
        "timing: killed",
        {"compute/macs": 100, "latency/forward": "timing: crashed: killed"},
    ),
    "one capability that the backend lacks": (
        [analysis("ca", "unsupported", "it cannot count layers"), timing("ca", 0.5)],
        1,
        "ok",
        None,
        {"compute/macs": "analysis: unsupported: it cannot count layers", "latency/forward": 0.5},
    ),
    "all passes unsupported": (
        [analysis("ca", "unsupported", "no"), timing("ca", 0, status="unsupported", reason="no")],
        1,
        "unsupported",
        "no",
        {},
    ),
}


@pytest.mark.parametrize(("records", "rounds", "status", "reason", "values"), LEFT.values(), ids=LEFT)
def test_what_is_missing_is_the_reason_and_the_rest_is_kept(
    tmp_path: Path,
    records: list[Record],
    rounds: int,
    status: Status,
    reason: str | None,
    values: dict[str, float | str],
) -> None:
    (row,) = compared(tmp_path, fake_plan({"a": {}}, rounds=rounds), records).rows
    assert (row.status, row.reason) == (status, reason)
    for name, expected in values.items():
        measured = row.cells[name].measurement
        assert expected in (measured.value, measured.reason)
    written = {path.name for path in (tmp_path / "records").rglob("*.json")}
    assert written == {record.file_name.rpartition("/")[2] for record in records}  # what is missing is not written


def interrupted_sweep(path: Path) -> tuple[Folder, Comparison]:
    """Six models at two batch sizes, interrupted in round 3: two rows are complete, nine have 2 rounds, one has none."""
    sizes: dict[str, dict[str, Any]] = {f"m{model}-{size}": {} for model in range(6) for size in (1, 8)}
    plan = fake_plan(sizes, rounds=3, metrics=["compute/macs", "latency/forward", "throughput/samples_per_s"])
    combinations = []
    for one in plan.combinations:
        model, _, size = one.axes["model"].partition("-")
        axes = {**one.axes, "model": model, "batch_size": int(size)}
        combinations.append(dataclasses.replace(one, axes=axes, config={**one.config, "batch_size": int(size)}))
    axes = {**plan.axes, "model": [f"m{model}" for model in range(6)], "batch_size": [1, 8]}
    compare = ComparisonSettings(pareto=["latency", "macs"])
    plan = dataclasses.replace(
        plan, combinations=tuple(combinations), axes=axes, baseline={"model": "m0"}, compare=compare
    )
    folder = sweep_folder(path, plan)
    *measured, _ = plan.combinations
    for place, one in enumerate(measured):
        analysis(one.id).write(folder.records)
        for round in range(3 if place < 2 else 2):
            timing(one.id, (1 + place) * (1 + round / 100), round).write(folder.records)
    return folder, comparison_of(folder, "interrupted before it was measured")


def test_an_interrupted_sweep_shows_every_complete_round(tmp_path: Path) -> None:
    folder, found = interrupted_sweep(tmp_path)
    rows = by_id(found)
    assert found.counts() == {"ok": 2, "incomplete": 9, "skipped": 1}
    row = rows["cm1-1"]
    # Not complete, so that the exit code stays 2 and a resume measures the third round.
    assert (row.status, row.rounds_complete, row.rounds_planned) == ("skipped", 2, 3)
    assert row.reason == "2 of 3 rounds measured; timing: interrupted before it was measured"
    cell = row.cells["latency/forward"]
    assert cell.measurement.rounds == pytest.approx((3.0, 3.03))
    assert (cell.verdict, cell.verdict_reason) == ("unclear", "too_few_rounds")
    page = write_reports(folder, found).read_text(encoding="utf-8")
    text = {
        name: (tmp_path / name).read_text(encoding="utf-8")
        for name in ("comparison.md", "comparison.csv", "comparison-tables.tex")
    }
    shown = {**text, "terminal": terminal.text(found, 160), "report.html": page}
    shown["report.html"], _, _ = page.partition("<script")
    for name, said in shown.items() - {("comparison.csv", text["comparison.csv"])}:
        assert said.count("2 of 3 rounds") >= 9, name
        assert "3.01 s" in said or "3.01" in said, name
    for name in ("terminal", "comparison.md"):
        assert "2 of 12 combinations measured; 9 incomplete, 1 skipped" in shown[name]
        assert ("resume=last" if name == "terminal" else "resume=DIR") in shown[name]
        assert "measure at least 3 rounds" not in shown[name]  # three are planned
    assert "(5 of 5" not in shown["terminal"]
    csv = next(line for line in text["comparison.csv"].splitlines() if "m1,fake,cpu,1,skipped" in line)
    assert "2 of 3 rounds measured" in csv
    assert ",3.01" in csv


def test_rankings_of_an_interrupted_sweep_say_what_they_leave_out(tmp_path: Path) -> None:
    _, found = interrupted_sweep(tmp_path)
    said = {section.title: section.lines for section in sections(found)}
    assert any(title.startswith("Pareto front of the 11 of 12 measured, 9 incomplete: ") for title in said)
    rows = {row["id"]: row for row in page_data(found)["rows"]}
    assert rows["cm1-1"]["incomplete"] == "2 of 3 rounds"
    assert "incomplete" not in rows["cm0-1"]
    assert "incomplete" not in rows["cm5-8"]


def test_a_pass_that_failed_hides_no_times(tmp_path: Path) -> None:
    records = [analysis("ca", "crashed", "killed"), timing("ca", 1.0)]
    found = compared(tmp_path, fake_plan({"a": {}}), records)
    assert (found.rows[0].status, found.rows[0].reason) == ("crashed", "1 of 1 rounds measured; analysis: killed")
    assert "1 of 1 rounds, incomplete" in terminal.text(found)
    assert "1.00 s" in terminal.text(found)


@pytest.mark.parametrize("worse", range(len(SEVERITY) - 2))
def test_the_gravest_status_is_the_rows(tmp_path: Path, worse: int) -> None:
    grave, mild = SEVERITY[worse], SEVERITY[worse + 1]
    statuses: list[Status] = [mild, grave]
    random.Random(worse).shuffle(statuses)
    records = [timing("ca", 1, round, status, reason=f"why {status}") for round, status in enumerate(statuses)]
    (row,) = compared(tmp_path, fake_plan({"a": {}}, ["timing"], rounds=2), records).rows
    assert (row.status, row.reason) == (grave, f"timing: why {grave}")


def test_a_combination_known_to_be_unsupported(tmp_path: Path) -> None:
    plan = fake_plan({"a": {}, "b": {}})
    changed = dataclasses.replace(plan.combinations[1], unsupported="the model names no builder for fake")
    shards = (("ca",),)
    plan = dataclasses.replace(plan, combinations=(plan.combinations[0], changed), shards=shards)
    rows = by_id(compared(tmp_path, plan, [analysis("ca"), timing("ca", 0.5)]))
    assert (rows["cb"].status, rows["cb"].reason) == ("unsupported", "the model names no builder for fake")
    assert rows["ca"].status == "ok"
    for cell in rows["cb"].cells.values():
        assert "the model names no builder for fake" in str(cell.measurement.reason)


def test_rounds_are_paired_by_their_numbers(tmp_path: Path) -> None:
    """A round that one side lacks is left out on both, or a drift is taken for noise."""
    drift = [1.0, 8.0, 2.0, 0.5, 4.0]
    plan = fake_plan({"a": {}, "b": {}}, ["timing"], rounds=5, metrics=["latency/forward"])
    base = [timing("ca", s, i) for i, s in enumerate(drift)]
    other = [timing("cb", 2 * s, i, "crashed" if i == 1 else "ok", reason="x") for i, s in enumerate(drift)]
    cell = by_id(compared(tmp_path, plan, [*base, *other]))["cb"].cells["latency/forward"]
    kept = [s for i, s in enumerate(drift) if i != 1]
    assert cell.ratio == pytest.approx(2.0)
    assert cell.ratio_interval == pytest.approx(ratio_interval([2 * s for s in kept], kept))
    assert cell.verdict == "worse"


def test_a_row_has_the_run_of_the_sweep_that_each_round_is_of(tmp_path: Path) -> None:
    runs = {0: "s1", 2: "s2"}
    records = [timing("ca", 1.0, round, environment={"session": run}) for round, run in runs.items()]
    found = compared(
        tmp_path, fake_plan({"a": {}}, rounds=3), [analysis("ca"), timing("ca", 1.0, 1, "failed"), *records]
    )
    assert found.rows[0].sessions == ("s1", None, "s2")


def test_warnings_are_gathered_once(tmp_path: Path) -> None:
    warning = Warning("drift", "seen", "do")
    records = [timing("ca", 0.5, i, warnings=(warning,)) for i in range(2)]
    (row,) = compared(tmp_path, fake_plan({"a": {}}, ["timing"], rounds=2), records).rows
    assert row.warnings == (warning,)


def test_the_tables_of_all_reports_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, really = list[tuple[str, ...]](), table._tables

    def counted(of: Comparison, rows: dict[str, Any]) -> Any:
        made.append(tuple(rows))
        return really(of, rows)

    monkeypatch.setattr(table, "_tables", counted)
    folder = sweep_folder(tmp_path, fake_plan({"a": {}, "b": {}}))
    write_reports(folder, comparison_of(folder))
    assert len(made) == len(set(made)) > 0


HEAD = {"host": "login", "cpu": {"model": "old"}, "os": "Linux 5"}


def on_nodes(*nodes: tuple[str | None, str]) -> Json:
    """What a comparison says of where it was measured: a record for each host, with the model of its processor."""
    seen: dict[str, Json] = {}
    rest = {"os": "Linux 6", "session": "s", "load": [1.0], "scheduler": {}}
    for host, model in nodes:
        environment = {"host": host, "cpu": {"model": model}, **rest} if host else {"scheduler": {"job": "1_0"}}
        seen_hosts([Record("s1", "ca", "analysis", "ok", environment=environment)], seen)
    return of_cluster(HEAD, seen)


def test_the_nodes_are_told_and_not_the_host_that_submitted() -> None:
    found = on_nodes(("n2", "EPYC"), ("n1", "EPYC"), ("n2", "other"), (None, ""))
    assert (found["host"], found["submitted_from"], found["os"]) == ("n1, n2", "login", "Linux 6")
    assert found["cpu"]["model"] == "EPYC"
    assert not {"session", "load", "scheduler"} & found.keys()
    items = environment_items(dataclasses.replace(comparison(), environment=found))
    assert items[:2] == [("host", "n1, n2"), ("submitted from", "login")]
    assert on_nodes(("n1", "EPYC"), ("n2", "Xeon"))["cpu"]["model"] == "EPYC; Xeon"
    assert on_nodes() == HEAD  # where nothing was measured only the driver is known
