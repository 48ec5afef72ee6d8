"""Verdicts and baselines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sweeprof.results.compared_rows import (
    MIN_ROUNDS,
    Cell,
    Comparison,
    Row,
    Verdict,
    compare_cell,
    compare_rows,
    find_baselines,
)
from sweeprof.results.measurement import Better, Measurement
from sweeprof.results.statistics import ratio_interval, unpaired_interval

BASE = (1.0, 1.01, 0.99, 1.0, 1.005)


def timed(rounds: tuple[float, ...], better: Better = "lower", value: float | None = None) -> Measurement:
    return Measurement("m", "s", better, value if value is not None else rounds[0], rounds=rounds)


def exact(value: float | None, better: Better = "lower") -> Measurement:
    return Measurement("m", "params", better, value, None if value is not None else "no reason")


def against_base(factor: float, better: Better = "lower", threshold: float | None = 0.05) -> Cell:
    return compare_cell(timed(tuple(factor * b for b in BASE), better), timed(BASE, better), threshold)


@pytest.mark.parametrize(
    ("factor", "better", "verdict"),
    [
        (0.5, "lower", "better"),
        (2.0, "lower", "worse"),
        (2.0, "higher", "better"),
        (0.5, "higher", "worse"),
        (1.01, "lower", "same"),
        (1.01, "higher", "same"),
        (1.01, None, "same"),
        (0.93, "lower", "better"),
        (0.96, "lower", "same"),
        (1.04, "lower", "same"),
        (1.06, "lower", "worse"),
    ],
)
def test_verdicts_of_measured_metrics(factor: float, better: Better, verdict: Verdict) -> None:
    cell = against_base(factor, better)
    where = "within" if verdict == "same" else "beyond"
    assert (cell.verdict, cell.verdict_reason, cell.used) == (verdict, f"interval_{where}_threshold", "rounds")
    assert cell.ratio == pytest.approx(factor)
    assert cell.ratio_interval == pytest.approx((factor, factor))


@pytest.mark.parametrize(
    "rounds",
    [
        (1.0, 1.1, 0.9, 1.05, 0.95),  # about equal, but noisy: not the same
        (1.3, 0.9, 1.2, 1.0, 1.4),  # slower, but noisy: not worse
    ],
)
def test_an_interval_that_crosses_the_threshold_is_unclear(rounds: tuple[float, ...]) -> None:
    cell = compare_cell(timed(rounds), timed(BASE), 0.05)
    assert (cell.verdict, cell.verdict_reason) == ("unclear", "interval_crosses_threshold")
    assert cell.ratio_interval == ratio_interval(rounds, BASE)


def test_the_interval_must_clear_the_threshold_and_not_just_one() -> None:
    assert against_base(1.03, threshold=0.02).verdict == "worse"
    assert against_base(1.03, threshold=0.05).verdict == "same"


@pytest.mark.parametrize("rounds", range(1, MIN_ROUNDS))
def test_few_common_rounds_call_nothing(rounds: int) -> None:
    cell = compare_cell(timed((2.0,) * rounds), timed((1.0,) * 5), 0.05)
    assert (cell.ratio, cell.ratio_interval) == (2.0, None)
    assert (cell.verdict, cell.verdict_reason) == ("unclear", "too_few_rounds")


def test_enough_common_rounds_are_compared() -> None:
    cell = compare_cell(timed((2.0, 2.0, 2.0)), timed((1.0,) * 5), 0.05)
    assert cell.verdict == "worse"


def test_without_a_threshold_nothing_is_called() -> None:
    cell = against_base(2.0, threshold=None)
    assert (cell.verdict, cell.verdict_reason) == ("unclear", "no_threshold")


@pytest.mark.parametrize(
    ("value", "base", "better", "verdict"),
    [
        (10, 10, "lower", "same"),
        (9, 10, "lower", "better"),
        (11, 10, "lower", "worse"),
        (11, 10, "higher", "better"),
        (9, 10, "higher", "worse"),
        (9, 10, None, None),
        (10, 10, None, None),
    ],
)
def test_exact_metrics_compare_exactly(value: float, base: float, better: Better, verdict: Verdict | None) -> None:
    cell = compare_cell(exact(value, better), exact(base, better), 0.05)
    reason = None if verdict is None else "equal" if value == base else "unequal"
    assert (cell.verdict, cell.verdict_reason, cell.ratio_interval) == (verdict, reason, None)
    assert (cell.ratio, cell.used) == (value / base, "exact")


def test_there_is_no_ratio_to_zero() -> None:
    cell = compare_cell(exact(3), exact(0), None)
    assert (cell.ratio, cell.verdict) == (None, "worse")
    cell = compare_cell(exact(0), exact(0), None)
    assert (cell.ratio, cell.verdict) == (None, "same")


def test_zero_over_something_is_a_ratio() -> None:
    assert compare_cell(exact(0), exact(4), None).ratio == 0


@pytest.mark.parametrize("base", [(0.0, 0.0, 0.0), (1.0, 0.0, 1.0)])
def test_rounds_without_logarithms_are_unclear(base: tuple[float, ...]) -> None:
    """A test that errors yields ``unclear: test_failed``, never a significance."""
    cell = compare_cell(timed((1.0, 1.0, 1.0)), timed(base), 0.05)
    assert (cell.verdict, cell.verdict_reason) == ("unclear", "test_failed")


@pytest.mark.parametrize(("own", "base"), [(exact(None), exact(1)), (exact(1), exact(None)), (exact(1), None)])
def test_a_missing_side_has_no_verdict(own: Measurement, base: Measurement | None) -> None:
    assert compare_cell(own, base, 0.05) == Cell(own, base=base.value if base else None)


POINTS: dict[str, dict[str, Any]] = {
    f"{model}-{backend}-{n}": {"model": model, "backend": backend, "batch_size": n}
    for model in ("a", "b")
    for backend in ("torch", "tensorflow")
    for n in (1, 8)
}


@pytest.mark.parametrize("id", POINTS)
def test_the_baseline_differs_only_in_the_baselines_axes(id: str) -> None:
    model, _, n = id.split("-")
    assert find_baselines({"backend": "torch"}, POINTS)[id] == f"{model}-torch-{n}"


def test_a_baseline_of_two_axes() -> None:
    assert find_baselines({"backend": "torch", "batch_size": 1}, POINTS)["b-tensorflow-8"] == "b-torch-1"


def test_no_baseline_in_the_sweep() -> None:
    assert find_baselines({"backend": "onnx"}, POINTS)["a-torch-1"] is None


def test_a_baseline_on_no_axis_is_the_combination_itself() -> None:
    assert find_baselines({"device": "cpu"}, POINTS)["a-torch-1"] == "a-torch-1"


def test_an_empty_baseline_is_none() -> None:
    assert find_baselines({}, POINTS)["a-torch-1"] is None


def row(id: str, baseline: str | None, **more: Any) -> Row:
    return Row(id, {"backend": id}, "ok", None, {}, baseline, **more)


def test_rows_are_compared_with_their_baselines() -> None:
    rows = (row("base", "base"), row("other", "base"), row("alone", None))
    values = {"base": {"m": exact(10)}, "other": {"m": exact(5)}, "alone": {"m": exact(7)}}
    filled = compare_rows(rows, values, None)
    assert filled[0].cells == {"m": Cell(exact(10))}
    assert filled[1].cells == {"m": Cell(exact(5), 0.5, None, "better", "unequal", "exact", None, 10)}
    assert filled[2].cells == {"m": Cell(exact(7))}
    assert [r.is_baseline for r in filled] == [True, False, False]


def test_a_metric_the_baseline_lacks_keeps_its_cell() -> None:
    rows = (row("base", "base"), row("other", "base"))
    filled = compare_rows(rows, {"base": {}, "other": {"m": exact(5)}}, None)
    assert filled[1].cells == {"m": Cell(exact(5))}


def test_a_comparison_is_plain_data_and_counts_its_rows() -> None:
    rows = (row("a", "a"), Row("b", {"backend": "b"}, "crashed", "x", {}, "a"), row("c", "a"))
    made = Comparison("s", "n", "", "", ("backend", "device"), (), {"backend": "a"}, rows)
    assert made.counts() == {"ok": 2, "crashed": 1}
    assert made.varying_axes() == ("backend",)
    assert json.loads(json.dumps(made.to_dict()))["rows"][1]["status"] == "crashed"


@pytest.mark.parametrize(
    ("sessions", "interval", "warned"),
    [
        (("s1",) * 5, ratio_interval, False),
        (("s1", "s1", "s1", "s2", "s2"), lambda own, base: ratio_interval(own[:3], base[:3]), False),
        (("s1", "s1", "s2", "s2", "s2"), unpaired_interval, True),
        (("s2",) * 5, unpaired_interval, True),
        ((), ratio_interval, False),  # of before this was written down
    ],
)
def test_only_rounds_of_one_run_of_the_sweep_form_pairs(
    sessions: tuple[str, ...], interval: Callable[..., tuple[float, float]], warned: bool
) -> None:
    own = (1.2, 1.3, 1.1, 1.25, 1.15)
    first = ("s1",) * 5 if sessions else ()
    rows = [row("base", "base", sessions=first), row("own", "base", sessions=sessions)]
    compared = compare_rows(rows, {"base": {"m": timed(BASE)}, "own": {"m": timed(own)}}, 0.05)[1]
    assert compared.cells["m"].ratio_interval == interval(own, BASE)
    assert [warning.code for warning in compared.warnings] == ["run_apart"] * warned
