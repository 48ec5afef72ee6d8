"""Verdicts on the difference of a value from its baseline's: five, each with a reason code. Pure functions.

both measured? ──▶ same environment? ──▶ rounds enough? ──▶ interval of the ratio against ±threshold

Values without rounds are compared as they are: exact ones with each other, or with a threshold of their metric's own.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sweeprof.results.differences import Cell, Difference, Differences, Used, Verdict, over
from sweeprof.results.measurement import NO_PROCESSOR, Better, Measurement, Number
from sweeprof.results.statistics import CONFIDENCE, ratio_interval, rounds_to_settle, unpaired_interval

MIN_ROUNDS = 3
"""The smallest number of rounds that can decide: a t interval of two has a single degree of freedom, and decides almost nothing."""

DETERMINISTIC = ("exact", "estimated")
"""Estimators whose value is the same each time."""
INCOMPLETE = ("lower bound", "from incomplete counts")
"""Estimators of counts in which operators are missing, and of values that are computed from such counts."""
NO_BASELINE = "the sweep has no baseline for this combination"
"""Why outputs are not compared: a row has no other one to agree with."""
ALL_ROUNDS = "all rounds together"
"""Estimator of a value that was computed from all rounds and cannot be computed from one."""

ROUNDING = 1e-5
"""Relative difference up to which exact values that are not whole numbers are the same: sums that are made in another order, as by
another version of a library or with another number of threads, differ by less."""
OUTPUT_DIFFERENCE = "quality/agreement"
"""The metric that is a difference from the baseline already: between frameworks the largest of many rounding errors."""
OUTPUT_ROUNDING = 1e-5
"""Two differences of outputs that are at most this are the same."""
LARGEST_OUTPUT_ROUNDING = 1e-3
OUTPUT_FACTOR = 10
"""Two differences of outputs up to the one before are also the same if the larger is at most so many times the smaller: the largest
rounding error changes with every version of a library. Larger ones, as of quantised models, are not treated as rounding."""

WITHOUT_ROUNDS = ("measured_once", "incomplete_count", "not_by_round")
"""Reason codes of values that have no rounds and are not exact."""

REASONS: dict[str, str] = {
    "equal": "the values are equal",
    "unequal": "the values are exact, and differ",
    "rounding": "the values differ by rounding only",
    "difference_within_threshold": "the values differ by the metric's own threshold at most",
    "difference_beyond_threshold": "the values differ by more than the metric's own threshold",
    "interval_within_threshold": "the interval of the ratio lies within the threshold",
    "interval_beyond_threshold": "the interval of the ratio lies beyond the threshold",
    "interval_crosses_threshold": "the interval of the ratio crosses the threshold",
    "neither_is_better": "the interval lies beyond the threshold, but neither direction is better",
    "too_few_rounds": f"fewer than {MIN_ROUNDS} rounds of both sides can be compared",
    "no_threshold": "the protocol has no threshold",
    "measured_once": "measured once, in a single process",
    "incomplete_count": "operators without a formula are missing from a count",
    "not_by_round": "the value is computed from all rounds together, so there are no values of single rounds to compare",
    "test_failed": "the ratio cannot be tested: a value is not positive, or the spread is too large",
    "different_data": "the two sides were evaluated on different test data",
    "different_unit": "the two sides have different units",
    "different_counters": "the energy of the processor is part of one of the two sides only",
    "different_environment": "the two sides were measured in different environments",
}
"""The meaning of each code of :attr:`~sweeprof.results.differences.Cell.verdict_reason`."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The conditions under which two sides were measured."""

    is_interleaved: bool = True
    """True if the rounds of both were interleaved, so that a disturbance affected both."""
    differs: tuple[str, ...] = ()
    """Fields of the environment in which the two differ, so that they cannot be compared; see
    :mod:`sweeprof.results.compared_rows`."""
    apart: frozenset[int] = frozenset()
    """Rounds, by number, that form no pairs all the same: one side's was run again later."""
    confidence: float = CONFIDENCE
    """Of the interval of the ratio; higher where it was tested after each round: see
    :func:`~sweeprof.results.statistics.repeated_confidence`."""


def compare_cell(
    measurement: Measurement,
    base: Measurement | None,
    threshold: float | None,
    pairing: Pairing | None = None,
    own_threshold: float | None = None,
) -> Cell:
    """Return the cell of a measurement.

    Args:
        base: the baseline's measurement; None without a baseline.
        threshold: relative difference beyond which values with rounds are better or worse.
        pairing: None if both were interleaved.
        own_threshold: the same for values without rounds, if the user gave this metric one; None: exact values must be equal, and
            others have no verdict.
    """
    if base is None:
        return Cell(measurement)
    cell = Cell(measurement, base=base.value)
    value, base_value = measurement.value, base.value
    if value is None or base_value is None:
        return cell
    apart = None
    if measurement.unit != base.unit:  # of a metric that was changed between two sweeps
        apart = "different_unit"
    elif (NO_PROCESSOR in measurement.detail) != (NO_PROCESSOR in base.detail):
        apart = "different_counters"
    if apart is not None:
        return dataclasses.replace(cell, verdict="not_comparable", verdict_reason=apart)
    if not (math.isfinite(value) and math.isfinite(base_value)):
        return cell
    own_mean, base_mean = value, base_value
    if measurement.rounds and base.rounds and (min(measurement.rounds) > 0) != (min(base.rounds) > 0):
        # One value is the geometric mean of its rounds, and the other one the arithmetic mean.
        own_mean, base_mean = statistics.fmean(measurement.rounds), statistics.fmean(base.rounds)
    if base_mean != 0 and math.isfinite(own_mean / base_mean):
        cell = dataclasses.replace(cell, ratio=own_mean / base_mean)
    if measurement.rounds:
        return _with_rounds(cell, base, threshold, pairing or Pairing())
    return _without_rounds(cell, base, own_threshold, pairing or Pairing())


def _without_rounds(cell: Cell, base: Measurement, own_threshold: float | None, pairing: Pairing) -> Cell:
    measurement = cell.measurement
    uncertain = uncertainty(measurement)
    if uncertain is None and base.rounds:
        return dataclasses.replace(
            cell, verdict="unclear", verdict_reason="too_few_rounds", base_rounds=len(base.rounds)
        )
    uncertain = uncertain or uncertainty(base)
    if uncertain == "incomplete_count" or (uncertain is not None and own_threshold is None):
        return dataclasses.replace(cell, verdict="unclear", verdict_reason=uncertain)
    if uncertain is not None and pairing.differs:
        return dataclasses.replace(cell, verdict="not_comparable", verdict_reason="different_environment")
    verdict, reason = _verdict_of_values(measurement, base, own_threshold)
    used: Used | None = "exact" if uncertain is None else None
    return dataclasses.replace(cell, verdict=verdict, verdict_reason=reason, used=used)


def _verdict_of_values(
    measurement: Measurement, base: Measurement, own_threshold: float | None
) -> tuple[Verdict | None, str | None]:
    """Return verdict and reason of two values that are the same each time; None where neither direction is better."""
    assert measurement.value is not None
    assert base.value is not None
    value, base_value = measurement.value, base.value
    if base.better is None:
        return None, None
    if value == base_value:
        return "same", "equal"
    is_better = (value < base_value) == (base.better == "lower")
    verdict: Verdict = "better" if is_better else "worse"
    if own_threshold is not None:
        if abs(value - base_value) <= own_threshold * abs(base_value):
            return "same", "difference_within_threshold"
        return verdict, "difference_beyond_threshold"
    if measurement.name == OUTPUT_DIFFERENCE:
        smaller, larger = sorted((value, base_value))
        is_rounding = larger <= max(OUTPUT_ROUNDING, min(OUTPUT_FACTOR * smaller, LARGEST_OUTPUT_ROUNDING))
    elif float(value).is_integer() and float(base_value).is_integer():
        is_rounding = False
    else:
        is_rounding = abs(value - base_value) <= ROUNDING * max(abs(value), abs(base_value))
    if is_rounding:
        return "same", "rounding"
    return verdict, "unequal"


def uncertainty(measurement: Measurement) -> str | None:
    """Return the reason code why a value without rounds cannot be compared exactly; None if it can, or if there are rounds."""
    if measurement.rounds or measurement.estimator in DETERMINISTIC:
        return None
    if measurement.estimator in INCOMPLETE:
        return "incomplete_count"
    if measurement.estimator == ALL_ROUNDS:
        return "not_by_round"
    return "measured_once"


def _with_rounds(cell: Cell, base: Measurement, threshold: float | None, pairing: Pairing) -> Cell:
    def undecided(verdict: Verdict, reason: str, base_rounds: int | None = None) -> Cell:
        return dataclasses.replace(cell, verdict=verdict, verdict_reason=reason, base_rounds=base_rounds)

    if pairing.differs:
        return undecided("not_comparable", "different_environment")
    measurement = cell.measurement
    used: Literal["rounds", "paired"] = "rounds"
    values, baseline = measurement.rounds, base.rounds
    if pairing.is_interleaved:  # only the rounds that both sides have
        if measurement.paired:
            used = "paired"
        values_by_round, base_by_round = measurement.by_round(used), base.by_round()
        common = sorted((values_by_round.keys() & base_by_round.keys()) - pairing.apart)
        values = tuple(values_by_round[number] for number in common)
        baseline = tuple(base_by_round[number] for number in common)
    if min(len(values), len(baseline)) < MIN_ROUNDS:
        return undecided("unclear", "too_few_rounds", len(base.rounds))
    if threshold is None:
        return undecided("unclear", "no_threshold")
    if not all(0 < value < math.inf for value in (*values, *baseline)):  # false for NaN, too
        return undecided("unclear", "test_failed")
    interval_of = ratio_interval if pairing.is_interleaved else unpaired_interval
    try:
        interval = interval_of(values, baseline, pairing.confidence)
    except ArithmeticError:  # the spread is too large for a number
        return undecided("unclear", "test_failed")
    verdict, reason = interval_verdict(interval, threshold, measurement.better)
    needed = None
    if reason == "interval_crosses_threshold":
        needed = rounds_to_settle(values, baseline, threshold, pairing.is_interleaved, pairing.confidence)
    return Cell(
        measurement,
        # The centre is that of the same rounds as the interval, which is symmetric in the logarithm.
        ratio=math.sqrt(interval[0] * interval[1]),
        ratio_interval=interval,
        verdict=verdict,
        verdict_reason=reason,
        used=used,
        rounds_needed=needed,
        base=base.value,
    )


def interval_verdict(interval: tuple[float, float], threshold: float, better: Better) -> tuple[Verdict, str]:
    """Return verdict and reason of an interval of the ratio."""
    low, high = interval
    if 1 - threshold < low and high < 1 + threshold:
        return "same", "interval_within_threshold"
    if not (high < 1 - threshold or low > 1 + threshold):  # also if an end is not a number
        return "unclear", "interval_crosses_threshold"
    if better is None:
        return "unclear", "neither_is_better"
    if (high < 1) == (better == "lower"):
        return "better", "interval_beyond_threshold"
    return "worse", "interval_beyond_threshold"


def expected_false(tests: int) -> float:
    """Return how many of ``tests`` are significant by chance, at most.

    A true ratio at the edge of the threshold is significant with half of what the confidence leaves, a smaller one less often.
    """
    return tests * (1 - CONFIDENCE) / 2


def differences(
    baseline: Mapping[str, Measurement],
    candidate: Mapping[str, Measurement],
    definitions: Mapping[str, str] | None = None,
    names: tuple[str | None, str | None] = (None, None),
) -> Differences:
    """Return every metric of either side, in the order of the baseline; a metric of one side only has a reason."""
    found = [_difference(name, baseline.get(name), candidate.get(name)) for name in {**baseline, **candidate}]
    return Differences(found, dict(baseline), dict(candidate), definitions, names)


def _difference(name: str, base: Measurement | None, candidate: Measurement | None) -> Difference:
    values: list[Number | None] = []
    missing, infinite = [], []
    for side, measurement in (("baseline", base), ("candidate", candidate)):
        if measurement is None:
            values.append(None)
            missing.append(f"the {side} has no such metric")
            continue
        values.append(measurement.value)
        if measurement.value is None:
            missing.append(f"{side}: {measurement.reason}")
        elif not math.isfinite(measurement.value):
            infinite.append(f"{side}: not a finite number: {measurement.value}")
    reasons = [*missing, *infinite]
    shown = candidate or base
    assert shown is not None
    old, new = values
    if base is None or old is None or new is None:
        return Difference(name, shown.unit, shown.better, old, new, None, None, None, None, reasons[0])
    if base.unit != shown.unit:
        raise ValueError(f"{name} is in {base.unit!r} and in {shown.unit!r}")
    cell = compare_cell(shown, base, None)
    if not reasons and cell.verdict == "unclear" and cell.verdict_reason:
        reasons.append(REASONS[cell.verdict_reason])
    elif not reasons and old == 0:
        reasons.append("both are zero" if new == 0 else "the baseline is zero")
    ratio = over(new, old)
    improvement = None
    if shown.better == "higher":
        improvement = ratio
    elif shown.better == "lower":
        improvement = over(old, new)
    reason = next(iter(reasons), None)
    return Difference(name, shown.unit, shown.better, old, new, new - old, ratio, improvement, cell.verdict, reason)
