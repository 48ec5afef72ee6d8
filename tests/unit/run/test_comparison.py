"""A comparison from the records of a folder, complete or not; two backends whose outputs differ are not compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.plans import fake_plan, sweep_folder
from support.samples import comparison
from sweeprof.measuring.timing import Timing
from sweeprof.metrics.select import select
from sweeprof.passes.quality import Quality
from sweeprof.plan.comparing import QUALITY, compares_outputs, metrics_of_precisions
from sweeprof.plan.plan import Combination, ComparisonSettings, Plan
from sweeprof.report import terminal
from sweeprof.report.columns import rounds_text
from sweeprof.report.explore import page_data
from sweeprof.report.summary import environment_items, sections
from sweeprof.results.compared_rows import Comparison, Row
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.record import Json, Record, Status, Warning
from sweeprof.results.statistics import ratio_interval
from sweeprof.results.verdicts import OUTPUT_DIFFERENCE
from sweeprof.run.comparison import comparison_of, of_cluster, seen_hosts
from sweeprof.run.reports import write_reports
from sweeprof.run.search import disagreement, tolerance_of, unjudged
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


LEFT: dict[str, list[Record]] = {
    "nothing": [],
    "a missing record": [analysis("ca")],
    "a missing round": [analysis("ca"), timing("ca", 0.5, 0), timing("ca", 0.5, 2)],
    "several that failed, of which the gravest is told": [
        analysis("ca", "failed", "no luck"),
        timing("ca", 0, status="crashed", reason="killed"),
    ],
    "a pass that failed, which hides no times": [analysis("ca", "crashed", "killed"), timing("ca", 1.0)],
    "one capability that the backend lacks": [
        analysis("ca", "unsupported", "it cannot count layers"),
        timing("ca", 0.5),
    ],
    "all passes unsupported": [analysis("ca", "unsupported", "no"), timing("ca", 0, status="unsupported", reason="no")],
}


def test_what_is_missing_is_the_reason_and_the_rest_is_kept(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    assert compared(tmp_path / "empty", fake_plan({}), []).rows == ()
    lines = []
    for name, records in LEFT.items():
        rounds = 1 + max((record.round for record in records), default=0)
        (row,) = compared(tmp_path / name, fake_plan({"a": {}}, rounds=rounds), records).rows
        lines.append(f"{name}: {row.status}{', incomplete' * row.is_incomplete} ({rounds_text(row)}): {row.reason}")
        for metric, cell in row.cells.items():
            lines.append(f"  {metric}: {cell.measurement.value}, {cell.measurement.reason}")
        written = {path.name for path in (tmp_path / name / "records").rglob("*.json")}
        assert written == {record.file_name.rpartition("/")[2] for record in records}  # what is missing is not written
    golden("missing.txt", "\n".join([*lines, ""]))


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
    page, _, _ = write_reports(folder, found).read_text(encoding="utf-8").partition("<script")
    shown = {"report.html": page, "terminal": terminal.text(found, 160)}
    for name in ("comparison.md", "comparison-tables.tex", "comparison.csv"):
        shown[name] = (tmp_path / name).read_text(encoding="utf-8")
    for name, said in shown.items():
        assert said.count("2 of 3 rounds") >= 9, name
        assert "3.01" in said, name
    for name in ("terminal", "comparison.md"):
        assert "2 of 12 combinations measured; 9 incomplete, 1 skipped" in shown[name]
        assert ("resume=last" if name == "terminal" else "resume=DIR") in shown[name]
        assert "measure at least 3 rounds" not in shown[name]  # three are planned


def test_rankings_of_an_interrupted_sweep_say_what_they_leave_out(tmp_path: Path) -> None:
    _, found = interrupted_sweep(tmp_path)
    said = {section.title: section.lines for section in sections(found)}
    assert any(title.startswith("Pareto front of the 11 of 12 measured, 9 incomplete: ") for title in said)
    rows = {row["id"]: row for row in page_data(found)["rows"]}
    assert rows["cm1-1"]["incomplete"] == "2 of 3 rounds"
    assert "incomplete" not in rows["cm0-1"]
    assert "incomplete" not in rows["cm5-8"]


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


# Outputs of two backends


BASE = np.array([[1.0, -2.0], [0.5, 0.25]], dtype=np.float32)


def quality(outputs: Any, id: str = "ca") -> Record:
    return Record("s1", id, "quality", "ok", observations=Quality.of(np.asarray(outputs), None).to_dict())


def config(framework: str, **fields: Any) -> dict[str, Any]:
    return {"model": {"torch": {}}, "dataset": {}, "seed": {}, "backend": {"framework": framework, **fields}}


def test_outputs_within_the_tolerance_agree_and_others_do_not() -> None:
    assert disagreement([quality(BASE + np.float32(0.019))], [quality(BASE)], 0.01) is None
    assert disagreement([quality(BASE + np.float32(0.021))], [quality(BASE)], 0.01) == (
        "outputs differ by up to 0.021, and the baseline's are no larger than 2: more than compare.tolerance=0.01 of that "
        "(random weights differ between frameworks: compare.tolerance=null)"
    )
    undefined, failed = quality(BASE * np.nan), Record("s1", "ca", "quality", "failed", "no luck")
    assert disagreement([undefined], [quality(BASE)], 0.5) == "outputs differ: not all of them are finite"
    assert disagreement([undefined], [undefined], 0.5) is None
    assert disagreement([quality(BASE[:1])], [quality(BASE)], 0.5) == (
        "outputs differ: their shape is (1, 2), the baseline's (2, 2)"
    )
    for own, base, tolerance in (
        ([failed], [quality(BASE)], 0.01),
        ([undefined], [], 0.01),
        ([undefined], [quality(BASE)], None),
    ):
        assert disagreement(own, base, tolerance) is None, "what is not known is not judged"


def test_of_several_outputs_the_one_that_differs_most_is_told() -> None:
    def told(own: Mapping[str, Sequence[float]], base: Mapping[str, Sequence[float]]) -> str:
        def record(outputs: Mapping[str, Sequence[float]]) -> Record:
            further = {name: np.asarray(values) for name, values in outputs.items()}
            seen = replace(Quality.of(BASE, None), further_outputs=further)
            return Record("s1", "ca", "quality", "ok", observations=seen.to_dict())

        return str(disagreement([record(own)], [record(base)], 0.01))

    assert "outputs 'b' differ by up to 3" in told({"a": [2, 1], "b": [4, 1]}, {"a": [1, 1], "b": [1, 1]})
    # Zeros of the baseline: nothing is small beside them, and other zeros are no difference.
    assert "outputs 'a' differ by up to 1," in told({"a": [1, 1], "b": [0, 0]}, {"a": [0, 0], "b": [0, 0]})
    assert "outputs 'a' differ by up to 1," in told({"a": [1, 1], "b": [np.nan, 0]}, {"a": [0, 0], "b": [0, 0]})


def test_images_agree_wherever_their_channels_are() -> None:
    images = np.random.default_rng(0).standard_normal((4, 3, 8, 6)).astype(np.float32)
    last = np.moveaxis(images, 1, -1)
    assert disagreement([quality(last)], [quality(images)], 1e-9) is None
    assert disagreement([quality(images)], [quality(last)], 1e-9) is None
    assert "outputs differ by up to" in str(disagreement([quality(last * 2)], [quality(images)], 0.01))
    assert "outputs differ: their shape" in str(disagreement([quality(images[..., :5])], [quality(images)], 0.01))


def test_a_side_that_is_not_known_is_a_doubt() -> None:
    known, failed = quality(BASE), Record("s1", "ca", "quality", "failed", "no luck")
    assert unjudged([known], [known], 0.01) is None
    assert unjudged([known], [failed], None) is None
    doubt = unjudged([known], [failed], 0.01)
    assert doubt is not None
    assert (doubt.code, doubt.text.split()[:2]) == ("outputs_not_compared", ["the", "baseline's"])


@pytest.mark.parametrize(
    ("own", "base", "tolerance"),
    [
        (config("onnx"), config("torch"), 0.01),
        (config("onnx", precision="fp32"), config("torch", precision="fp32"), 0.01),
        (config("onnx", precision="int8"), config("torch"), None),
        (config("tensorflow"), config("torch", precision="bf16"), None),
        (config("onnx") | {"model": {"onnx": {}}}, config("torch"), None),
        (config("onnx") | {"seed": {"weights": 1}}, config("torch"), None),
        (config("litert", tolerance=0.2), config("torch"), 0.2),
        (config("torch"), config("litert", tolerance=0.2), 0.2),
        (config("litert", tolerance=None), config("torch"), None),
    ],
)
def test_one_model_on_two_frameworks_is_expected_to_agree(own: Any, base: Any, tolerance: float | None) -> None:
    assert tolerance_of(own, base, 0.01) == tolerance


def on(combination: Combination, **fields: str) -> Combination:
    """The same combination with other fields of its backend."""
    return replace(combination, config={**combination.config, "backend": {**combination.config["backend"], **fields}})


def four_rows(path: Path, baseline: dict[str, str], apart: dict[str, float], rounds: int = 1) -> dict[str, Row]:
    """The rows of two models on two frameworks, by their labels; their outputs are those of PyTorch, or as far ``apart``."""
    labels = ("teacher-torch", "teacher-onnx", "student-torch", "student-onnx")
    metrics = ["latency/forward", OUTPUT_DIFFERENCE]
    plan = fake_plan({label: {} for label in labels}, ["timing", "quality"], rounds=rounds, metrics=metrics)
    combinations = []
    for combination in plan.combinations:
        model, _, backend = combination.id.removeprefix("c").partition("-")
        config = {**on(combination, framework=backend).config, "model": {"name": model}}
        axes = {**combination.axes, "model": model, "backend": backend}
        combinations.append(replace(combination, config=config, axes=axes))
    axes = {**plan.axes, "model": ["teacher", "student"], "backend": ["torch", "onnx"]}
    compare = ComparisonSettings(tolerance=0.01)
    folder = sweep_folder(
        path, replace(plan, combinations=tuple(combinations), axes=axes, baseline=baseline, compare=compare)
    )
    for label in labels:
        timing(f"c{label}", 0.5).write(folder.records)
        outputs = BASE * (2 if label.startswith("student") else 1) + np.float32(apart.get(label, 0))
        quality(outputs, f"c{label}").write(folder.records)
    return {row.combination_id.removeprefix("c"): row for row in comparison_of(folder).rows}


def test_a_row_whose_outputs_differ_failed_and_is_compared_with_nothing(tmp_path: Path) -> None:
    apart = {"teacher-onnx": 1e-4, "student-onnx": 0.5}
    rows = four_rows(tmp_path / "complete", {"backend": "torch"}, apart)
    agreeing, differing = rows["teacher-onnx"], rows["student-onnx"]
    assert (agreeing.status, agreeing.cells["latency/forward"].ratio) == ("ok", 1.0)
    assert (differing.status, differing.baseline_id) == ("failed", None)
    assert str(differing.reason).startswith("outputs differ by up to 0.5")
    cell = differing.cells["latency/forward"]
    assert (cell.measurement.value, cell.ratio, cell.verdict) == (0.5, None, None)
    assert differing.cells[OUTPUT_DIFFERENCE].measurement.value == pytest.approx(0.5)
    incomplete = four_rows(tmp_path / "incomplete", {"backend": "torch"}, apart, rounds=2)["student-onnx"]
    assert (incomplete.status, incomplete.is_incomplete, incomplete.has_values) == ("failed", False, False)


@pytest.mark.parametrize(
    "baseline", [{"model": "teacher"}, {"model": "teacher", "backend": "torch", "device": "cpu", "batch_size": 1}, {}]
)
def test_outputs_must_agree_between_frameworks_for_any_baseline(tmp_path: Path, baseline: dict[str, str]) -> None:
    """A student is compared with its teacher; that it computes the same on both frameworks is checked all the same."""
    rows = four_rows(tmp_path, baseline, {"student-onnx": 0.5})
    assert {label: row.status for label, row in rows.items()} == {
        **dict.fromkeys(("teacher-torch", "teacher-onnx", "student-torch"), "ok"),
        "student-onnx": "failed",
    }
    assert str(rows["student-onnx"].reason).startswith("outputs differ by up to 0.5, and torch's are no larger than 4")
    assert rows["student-onnx"].cells["latency/forward"].ratio is None


def test_nothing_is_compared_with_a_baseline_whose_outputs_differ(tmp_path: Path) -> None:
    rows = four_rows(tmp_path, {"model": "teacher"}, {"teacher-onnx": 0.5})
    assert [rows[label].status for label in ("teacher-onnx", "student-onnx")] == ["failed", "ok"]
    assert rows["student-torch"].cells["latency/forward"].ratio == 1
    assert rows["student-onnx"].cells["latency/forward"].ratio is None
    (warning,) = (warning for warning in rows["student-onnx"].warnings if warning.code == "baseline_differs")
    assert warning.text.startswith("there is no comparison, because the baseline failed: outputs differ by up to 0.5")


TIMED, COUNTED, ASKED = (
    [selected.metric for selected in select(names)]
    for names in (["latency/forward"], ["compute/macs"], ["latency/forward", OUTPUT_DIFFERENCE])
)


def test_a_sweep_that_times_frameworks_looks_at_their_outputs() -> None:
    first, second = fake_plan({"a": {}, "b": {}}).combinations
    two = (first, on(second, framework="another"))
    assert compares_outputs(two, 0.01, TIMED)
    assert not compares_outputs((first, second), 0.01, TIMED)
    assert not compares_outputs(two, None, TIMED)
    assert not compares_outputs(two, 0.01, COUNTED)
    assert not compares_outputs(two, 0.01, ASKED)
    assert not compares_outputs((first, replace(two[1], unsupported="no builder")), 0.01, TIMED)


def test_a_sweep_that_times_precisions_looks_at_outputs_and_quality() -> None:
    first, second = fake_plan({"a": {}, "b": {}}).combinations
    lower = on(second, precision="bf16")
    assert metrics_of_precisions([first, lower], TIMED) == [QUALITY, OUTPUT_DIFFERENCE]
    assert metrics_of_precisions([first, lower], ASKED) == [QUALITY]
    assert metrics_of_precisions([first, lower], COUNTED) == []
    assert metrics_of_precisions([first, second], TIMED) == []
    assert metrics_of_precisions([first, replace(lower, unsupported="no kernels")], TIMED) == []
