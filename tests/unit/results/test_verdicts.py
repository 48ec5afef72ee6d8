"""Verdicts: of rounds, interleaved samples, other hours and hosts, and of what is counted or measured once."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from sweeprof.results.compared_rows import changed, differing, key_of
from sweeprof.results.differences import Cell, Verdict
from sweeprof.results.measurement import Better, Measurement
from sweeprof.results.statistics import ratio_interval, rounds_to_settle, unpaired_interval
from sweeprof.results.verdicts import Pairing, compare_cell, expected_false, interval_verdict

BASE = (1.0, 1.02, 0.98, 1.01, 0.99)
APART = Pairing(is_interleaved=False)


def timed(
    rounds: tuple[float, ...], better: Better = "lower", paired: tuple[float, ...] = (), value: float | None = None
) -> Measurement:
    if value is None:
        value = math.exp(float(np.mean(np.log(rounds))))
    return Measurement("m", "s", better, value, estimator="median", rounds=rounds, paired=paired)


def exact(value: float | None, better: Better = "lower") -> Measurement:
    return Measurement("m", "params", better, value, None if value is not None else "no reason")


def scaled(factor: float) -> tuple[float, ...]:
    return tuple(factor * value for value in BASE)


@pytest.mark.parametrize(
    ("factor", "better", "verdict"),
    [
        (2.0, "higher", "better"),
        (0.5, "higher", "worse"),
        (1.01, None, "same"),
        (0.93, "lower", "better"),
        (0.96, "lower", "same"),
        (1.04, "lower", "same"),
        (1.06, "lower", "worse"),
    ],
)
def test_verdicts_of_measured_metrics(factor: float, better: Better, verdict: Verdict) -> None:
    cell = compare_cell(timed(scaled(factor), better), timed(BASE, better), 0.05)
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
    assert cell.rounds_needed == rounds_to_settle(rounds, BASE, 0.05)
    assert cell.rounds_needed is not None
    assert cell.rounds_needed > 5


@pytest.mark.parametrize(
    ("value", "base", "better", "verdict"),
    [
        (10, 10, "lower", "same"),
        (11, 10, "lower", "worse"),
        (11, 10, "higher", "better"),
        (9, 10, None, None),
        (10, 10, None, None),
    ],
)
def test_exact_metrics_compare_exactly(value: float, base: float, better: Better, verdict: Verdict | None) -> None:
    cell = compare_cell(exact(value, better), exact(base, better), 0.05)
    reason = None if verdict is None else "equal" if value == base else "unequal"
    assert (cell.verdict, cell.verdict_reason, cell.ratio_interval) == (verdict, reason, None)
    assert (cell.ratio, cell.used) == (value / base, "exact")


@pytest.mark.parametrize(
    ("value", "base", "ratio", "verdict"), [(3, 0, None, "worse"), (0, 0, None, "same"), (0, 4, 0, "better")]
)
def test_there_is_no_ratio_to_zero(value: float, base: float, ratio: float | None, verdict: Verdict) -> None:
    for own_threshold in (None, 0.9):
        cell = compare_cell(exact(value), exact(base), None, own_threshold=own_threshold)
        assert (cell.ratio, cell.verdict) == (ratio, verdict)


def test_a_ratio_is_of_means_of_one_kind() -> None:
    geometric, arithmetic = timed((1.0, 12.0, 14.0), value=5.52), timed((0.0, 10.0, 20.0), value=10.0)
    assert compare_cell(geometric, arithmetic, 0.05).ratio == 0.9
    assert compare_cell(arithmetic, geometric, 0.05).ratio == pytest.approx(10 / 9)
    assert compare_cell(geometric, timed((0.0, 1.0, -1.0), value=0.0), 0.05).ratio is None


@pytest.mark.parametrize(("own", "base"), [(exact(None), exact(1)), (exact(1), exact(None)), (exact(1), None)])
def test_a_missing_side_has_no_verdict(own: Measurement, base: Measurement | None) -> None:
    assert compare_cell(own, base, 0.05) == Cell(own, base=base.value if base else None)


def test_of_an_interleaved_run_the_pairs_of_samples_are_compared() -> None:
    noisy = (1.3, 0.8, 1.1, 0.9, 1.2)
    cell = compare_cell(timed(noisy, paired=scaled(1.1)), timed(BASE), 0.05)
    assert (cell.verdict, cell.used) == ("worse", "paired")
    assert cell.ratio == pytest.approx(1.1)
    assert compare_cell(timed(noisy), timed(BASE), 0.05).verdict == "unclear"
    of_two_sweeps = compare_cell(timed(scaled(1.1), paired=scaled(1.5)), timed(BASE), 0.05, APART)
    assert (of_two_sweeps.used, of_two_sweeps.verdict) == ("rounds", "worse")


def test_rounds_of_different_hours_are_not_paired() -> None:
    drift = (1.0, 1.3, 0.8, 1.5, 0.9)
    candidate = tuple(1.2 * value for value in drift)
    assert compare_cell(timed(candidate), timed(drift), 0.05).verdict == "worse"
    apart = compare_cell(timed(candidate), timed(drift), 0.05, APART)
    assert (apart.verdict, apart.ratio_interval) == ("unclear", unpaired_interval(candidate, drift))
    assert compare_cell(timed(scaled(2.0)), timed((1.0, 1.01, 0.99)), 0.05, APART).verdict == "worse"


def test_what_is_measured_in_another_environment_is_not_comparable_and_what_is_counted_is() -> None:
    elsewhere = Pairing(False, ("host", "processor"))
    peak, base_peak = (Measurement("rss", "B", "lower", value, estimator="high-water mark") for value in (310, 200))
    for cell in (
        compare_cell(timed(BASE), timed(BASE), 0.2, elsewhere),
        compare_cell(peak, base_peak, 0.05, elsewhere, 0.1),
    ):
        assert (cell.verdict, cell.verdict_reason) == ("not_comparable", "different_environment")
    assert compare_cell(exact(12), exact(10), 0.05, elsewhere).verdict == "worse"


def test_values_in_different_units_are_not_comparable() -> None:
    seconds, milliseconds = (Measurement("mine", unit, "lower", value) for unit, value in (("s", 0.001), ("ms", 1)))
    cell = compare_cell(milliseconds, seconds, 0.05)
    assert (cell.verdict, cell.verdict_reason, cell.ratio) == ("not_comparable", "different_unit", None)


@pytest.mark.parametrize(
    ("estimator", "value", "own", "expected"),
    [
        ("exact", 0.970, 0.02, ("same", "difference_within_threshold")),
        ("exact", 0.950, 0.02, ("worse", "difference_beyond_threshold")),
        ("exact", 0.999, 0.01, ("better", "difference_beyond_threshold")),
        ("high-water mark", 0.500, 0.02, ("worse", "difference_beyond_threshold")),
        ("high-water mark", 0.970, None, ("unclear", "measured_once")),
        ("all rounds together", 0.500, 0.02, ("worse", "difference_beyond_threshold")),
        ("lower bound", 0.500, 0.02, ("unclear", "incomplete_count")),
    ],
)
def test_a_threshold_of_its_own_decides_a_metric_without_rounds(
    estimator: str, value: float, own: float | None, expected: tuple[str, str]
) -> None:
    one, base = (Measurement("m", "ratio", "higher", number, estimator=estimator) for number in (value, 0.98))
    cell = compare_cell(one, base, 0.5, own_threshold=own)
    assert (cell.verdict, cell.verdict_reason) == expected
    assert cell.used == ("exact" if estimator == "exact" else None)


@pytest.mark.parametrize(
    ("name", "value", "base", "expected"),
    [
        ("quality/loss", 0.0871234567, 0.0871234561, "rounding"),  # of one model with one thread and with two
        ("quality/loss", 0.08713, 0.08712, "unequal"),
        ("quality/accuracy", 48_999 / 50_000, 49_000 / 50_000, "unequal"),
        ("params/total", 100_000_001, 100_000_000, "unequal"),
        ("mine", 100_000_001.0, 100_000_000.0, "unequal"),
        ("quality/agreement", 4e-6, 0, "rounding"),
        ("quality/agreement", 3e-4, 1e-4, "rounding"),
        ("quality/agreement", 0.09, 0.01, "unequal"),  # of a quantised model
    ],
)
def test_rounding_is_no_difference(name: str, value: float, base: float, expected: str) -> None:
    cell = compare_cell(Measurement(name, "abs", "lower", value), Measurement(name, "abs", "lower", base), 0.05)
    assert cell.verdict_reason == expected
    assert (cell.verdict == "same") == (expected == "rounding")


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0, -1.0])
def test_a_round_that_is_no_time_is_no_verdict(odd: float) -> None:
    measured = dataclasses.replace(timed((1.0, 1.0, 1.0)), rounds=(1.0, odd, 1.0))
    infinite = compare_cell(timed((1e-300, 1e300, 1e-300)), timed((1e300, 1e-300, 1e300)), 0.05)
    for cell in (infinite, compare_cell(measured, measured, 0.05)):
        assert (cell.verdict, cell.verdict_reason, cell.ratio_interval) == ("unclear", "test_failed", None)


def test_an_interval_without_an_end_crosses_the_threshold() -> None:
    assert interval_verdict((math.nan, math.nan), 0.05, "lower") == ("unclear", "interval_crosses_threshold")


@pytest.mark.parametrize("paired", [True, False])
def test_as_many_rounds_as_it_says_would_settle_it(paired: bool) -> None:
    """Rounds of the same centre and spread: with that many the interval is within the threshold, with one fewer it is not."""
    own, base = (1.0, 1.04, 0.97, 1.01, 0.99), (1.0, 0.98, 1.03, 0.99, 1.01)
    needed = rounds_to_settle(own, base, 0.02, paired)
    assert needed is not None
    logs = np.log(own) - np.log(base)
    spread = math.sqrt(logs.var(ddof=1) if paired else np.log(own).var(ddof=1) + np.log(base).var(ddof=1))
    centre, margin = float(logs.mean()), min(abs(float(logs.mean()) - math.log(x)) for x in (0.98, 1.02))

    def half(n: int) -> float:
        if paired:
            return float(scipy_stats.t.ppf(0.975, n - 1)) * spread / math.sqrt(n)
        a, b = np.log(own).var(ddof=1) / n, np.log(base).var(ddof=1) / n
        freedom = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (n - 1))
        return float(scipy_stats.t.ppf(0.975, freedom)) * math.sqrt(a + b)

    assert abs(centre) < 0.02
    assert half(needed) < margin <= half(needed - 1)


def test_too_many_rounds_are_no_number() -> None:
    assert rounds_to_settle((1.0, 1.5, 0.7, 1.3, 0.8), BASE, 0.0001) is None


def test_unpaired_intervals_agree_with_scipy() -> None:
    own, base = (1.2, 1.3, 1.25, 1.22), (1.0, 1.1, 0.9, 1.05, 0.95)
    expected = scipy_stats.ttest_ind(np.log(own), np.log(base), equal_var=False).confidence_interval(0.95)
    assert unpaired_interval(own, base) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert unpaired_interval((2.0, 2.0), (1.0, 1.0)) == (2.0, 2.0)
    with pytest.raises(ValueError, match="at least two rounds"):
        unpaired_interval((1.0,), base)


def test_equal_sides_are_called_changed_less_often_than_is_said() -> None:
    """2,000 comparisons of equal sides, of which the bound allows 2.5 %."""
    random = np.random.default_rng(7)
    wrong = 0
    for _ in range(2000):
        drift = random.normal(0, 0.05, 5)
        own, base = (tuple(np.exp(drift + random.normal(0, 0.02, 5))) for _ in range(2))
        wrong += compare_cell(timed(own), timed(base), 0.02).verdict in ("better", "worse")
    assert expected_false(2000) == pytest.approx(50)
    assert wrong <= expected_false(2000)
    assert ratio_interval(BASE, BASE) == (1.0, 1.0)


def test_three_rounds_decide_on_a_large_difference() -> None:
    """A ratio of 6.5 with a tenth of noise on each round, as ``protocol=short`` measures on a busy machine."""
    random = np.random.default_rng(3)
    for _ in range(2000):
        own, base = (tuple(scale * np.exp(random.normal(0, 0.1, 3))) for scale in (6.5, 1.0))
        assert compare_cell(timed(own), timed(base), 0.1).verdict == "worse"


NODE = {
    "host": "a",
    "cpu": {"model": "X", "available": 2, "quota": None, "governor": "performance", "logical": 8},
    "gpus": [],
    "os": "Linux 6",
    "python": "3.11",
    "load": [1, 2, 3],
    "versions": {"torch": "2.12", "numpy": "2"},
    "git": {"revision": "a" * 40, "dirty": False},
}


def test_the_comparable_key_has_what_forbids_and_nothing_else() -> None:
    other = {**NODE, "load": [0, 0, 0], "versions": {"torch": "2.13"}, "os": "Linux 7"}
    assert differing(key_of([other]), key_of([NODE])) == {}
    moved = {**NODE, "host": "b", "cpu": {**NODE["cpu"], "governor": "powersave"}}  # type: ignore[dict-item]
    assert differing(key_of([moved]), key_of([NODE])) == {"host": ("a", "b"), "governor": ("performance", "powersave")}
    assert json.loads(json.dumps(key_of([moved, NODE])))["host"] == ["b", "a"]
    assert key_of([]) == {}
    assert differing(key_of([]), key_of([NODE])) == {}


def test_what_changed_is_listed() -> None:
    later = {**NODE, "versions": {"torch": "2.13", "keras": "3"}, "git": {"revision": "b" * 40, "dirty": True}}
    assert changed(later, NODE) == {
        "keras": (None, "3"),
        "numpy": ("2", None),
        "torch": ("2.12", "2.13"),
        "git": ("a" * 12, "b" * 12 + " with uncommitted changes"),
    }
    assert changed(NODE, NODE) == {}
