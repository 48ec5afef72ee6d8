"""Two backends whose outputs differ are not compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.plans import fake_plan, sweep_folder
from sweeprof.measuring.timing import Timing
from sweeprof.metrics.select import select
from sweeprof.passes.quality import Quality
from sweeprof.plan.comparing import QUALITY, compares_outputs, metrics_of_precisions
from sweeprof.plan.plan import ComparisonSettings, Plan
from sweeprof.results.compared_rows import Comparison, Row
from sweeprof.results.record import Record
from sweeprof.results.verdicts import OUTPUT_DIFFERENCE
from sweeprof.run.comparison import comparison_of
from sweeprof.run.search import disagreement, tolerance_of, unjudged

BASE = np.array([[1.0, -2.0], [0.5, 0.25]], dtype=np.float32)


def quality(outputs: Any, id: str = "ca") -> Record:
    return Record("s1", id, "quality", "ok", observations=Quality.of(np.asarray(outputs), None).to_dict())


def timing(id: str, seconds: float) -> Record:
    return Record("s1", id, "timing", "ok", observations=Timing(1.0, 0, 1, (seconds,) * 7).to_dict())


def config(framework: str, **fields: Any) -> dict[str, Any]:
    return {"model": {"torch": {}}, "dataset": {}, "seed": {}, "backend": {"framework": framework, **fields}}


def test_outputs_within_the_tolerance_agree() -> None:
    nearly = BASE + np.float32(0.019)
    assert disagreement([quality(nearly)], [quality(BASE)], 0.01) is None
    assert disagreement([quality(BASE)], [quality(BASE)], 0.01) is None


def test_outputs_beyond_it_do_not() -> None:
    assert disagreement([quality(BASE + np.float32(0.021))], [quality(BASE)], 0.01) == (
        "outputs differ by up to 0.021, and the baseline's are no larger than 2: more than compare.tolerance=0.01 of that "
        "(random weights differ between frameworks: compare.tolerance=null)"
    )
    undefined = quality(BASE * np.nan)
    assert disagreement([undefined], [quality(BASE)], 0.5) == "outputs differ: not all of them are finite"
    assert disagreement([undefined], [undefined], 0.5) is None
    assert disagreement([quality(BASE[:1])], [quality(BASE)], 0.5) == (
        "outputs differ: their shape is (1, 2), the baseline's (2, 2)"
    )


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


def test_what_is_not_known_is_not_judged() -> None:
    failed = Record("s1", "ca", "quality", "failed", "no luck")
    assert disagreement([failed], [quality(BASE)], 0.01) is None
    assert disagreement([quality(BASE * 9)], [], 0.01) is None
    assert disagreement([quality(BASE * 9)], [quality(BASE)], None) is None


@pytest.mark.parametrize(
    ("own", "base", "tolerance"),
    [
        (config("onnx"), config("torch"), 0.01),
        (config("torch", precision="bf16"), config("torch"), None),
        (config("onnx", precision="int8"), config("torch"), None),
        (config("onnx", precision="fp32"), config("torch", precision="fp32"), 0.01),
        (config("onnx") | {"model": {"onnx": {}}}, config("torch"), None),
        (config("onnx") | {"seed": {"weights": 1}}, config("torch"), None),
        (config("litert", tolerance=0.2), config("torch"), 0.2),
        (config("torch"), config("litert", tolerance=0.2), 0.2),
        (config("litert", tolerance=None), config("torch"), None),
        (config("litert", precision="int8"), config("torch"), None),
        (config("litert"), config("torch"), 0.01),
        (config("tensorflow"), config("torch", precision="bf16"), None),
    ],
)
def test_one_model_on_two_frameworks_is_expected_to_agree(own: Any, base: Any, tolerance: float | None) -> None:
    assert tolerance_of(own, base, 0.01) == tolerance


def on_two_frameworks(plan: Plan) -> Plan:
    """The plan's two combinations, of one model, the second on a framework of its own."""
    first, second = plan.combinations
    other = {**first.config, "backend": {**first.config["backend"], "framework": "another"}}
    return replace(
        plan, combinations=(first, replace(second, config=other)), compare=ComparisonSettings(tolerance=0.01)
    )


def compared(path: Path, apart: float, rounds: int = 1) -> Comparison:
    metrics = ["latency/forward", OUTPUT_DIFFERENCE]
    plan = on_two_frameworks(fake_plan({"a": {}, "b": {}}, ["timing", "quality"], metrics=metrics, rounds=rounds))
    folder = sweep_folder(path, plan)
    for id, seconds, outputs in (("ca", 0.5, BASE), ("cb", 1.0, BASE + np.float32(apart))):
        timing(id, seconds).write(folder.records)
        quality(outputs, id).write(folder.records)
    return comparison_of(folder)


def test_a_row_whose_outputs_differ_failed_and_is_compared_with_nothing(tmp_path: Path) -> None:
    agreeing, differing = (compared(tmp_path / name, apart).rows[1] for name, apart in (("a", 1e-4), ("b", 0.5)))
    assert (agreeing.status, agreeing.cells["latency/forward"].ratio) == ("ok", 2.0)
    assert (differing.status, differing.baseline_id) == ("failed", None)
    assert str(differing.reason).startswith("outputs differ by up to 0.5")
    cell = differing.cells["latency/forward"]
    assert (cell.measurement.value, cell.ratio, cell.verdict) == (1.0, None, None)
    assert differing.cells[OUTPUT_DIFFERENCE].measurement.value == pytest.approx(0.5)


def test_outputs_that_differ_hide_the_values_of_an_incomplete_row_too(tmp_path: Path) -> None:
    agreeing, differing = (compared(tmp_path / name, apart, 2).rows[1] for name, apart in (("a", 1e-4), ("b", 0.5)))
    assert (agreeing.is_incomplete, agreeing.has_values) == (True, True)
    assert (differing.status, differing.is_incomplete, differing.has_values) == ("failed", False, False)


def four_rows(path: Path, baseline: dict[str, str], apart: dict[str, float]) -> dict[str, Row]:
    """The rows of two models on two frameworks, by their labels; their outputs are those of PyTorch, or as far ``apart``."""
    labels = ("teacher-torch", "teacher-onnx", "student-torch", "student-onnx")
    plan = fake_plan(
        {label: {} for label in labels}, ["timing", "quality"], metrics=["latency/forward", OUTPUT_DIFFERENCE]
    )
    combinations = []
    for combination in plan.combinations:
        model, _, backend = combination.id.removeprefix("c").partition("-")
        config = {**combination.config, "model": {"name": model}}
        config["backend"] = {**config["backend"], "framework": backend}
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


def test_a_sweep_that_times_frameworks_looks_at_their_outputs() -> None:
    one = fake_plan({"a": {}, "b": {}})
    two = on_two_frameworks(one)
    timed, counted, asked = (
        [s.metric for s in select(names)]
        for names in (["latency/forward"], ["compute/macs"], ["latency/forward", OUTPUT_DIFFERENCE])
    )
    assert compares_outputs(two.combinations, 0.01, timed)
    assert not compares_outputs(one.combinations, 0.01, timed)
    assert not compares_outputs(two.combinations, None, timed)
    assert not compares_outputs(two.combinations, 0.01, counted)
    assert not compares_outputs(two.combinations, 0.01, asked)
    unsupported = (two.combinations[0], replace(two.combinations[1], unsupported="no builder"))
    assert not compares_outputs(unsupported, 0.01, timed)


def test_a_sweep_that_times_precisions_looks_at_outputs_and_quality() -> None:
    plan = fake_plan({"a": {}, "b": {}})
    first, second = plan.combinations
    lower = replace(second, config={**second.config, "backend": {**second.config["backend"], "precision": "bf16"}})
    timed, counted, asked = (
        [s.metric for s in select(names)]
        for names in (["latency/forward"], ["compute/macs"], ["latency/forward", OUTPUT_DIFFERENCE])
    )
    assert metrics_of_precisions([first, lower], timed) == [QUALITY, OUTPUT_DIFFERENCE]
    assert metrics_of_precisions([first, lower], asked) == [QUALITY]
    assert metrics_of_precisions([first, lower], counted) == []
    assert metrics_of_precisions([first, second], timed) == []
    assert metrics_of_precisions([first, replace(lower, unsupported="no kernels")], timed) == []
