"""Verdicts on the difference of a value from its baseline's: five, each with a reason code. Pure functions.

both measured? ──▶ same environment? ──▶ rounds enough? ──▶ interval of the ratio against ±threshold

Values without rounds are compared as they are: exact ones with each other, or with a threshold of their metric's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sweeprof.display import Displayed
from sweeprof.results.measurement import Better, Measurement, Number, shown_names
from sweeprof.results.statistics import CONFIDENCE, ratio_interval, rounds_to_settle, unpaired_interval

if TYPE_CHECKING:
    import pandas

Verdict = Literal["better", "worse", "same", "unclear", "not_comparable"]
Used = Literal["exact", "rounds", "paired"]

MIN_ROUNDS = 3
"""The smallest number of rounds that can decide: a t interval of two has a single degree of freedom, and decides almost nothing."""

DETERMINISTIC = ("exact", "estimated")
"""Estimators whose value is the same each time."""
INCOMPLETE = ("lower bound", "from incomplete counts")
"""Estimators of counts in which operators are missing, and of what is computed from them."""
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
rounding error changes with every version of a library. Larger ones, as of quantised models, are no rounding."""

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
    "different_environment": "the two sides were measured in different environments",
}
"""The meaning of each code of :attr:`Cell.verdict_reason`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A measurement beside the baseline's."""

    measurement: Measurement
    ratio: float | None = None
    """This value over the baseline's; None for the baseline itself, or where either is missing or both are zero."""
    ratio_interval: tuple[float, float] | None = None
    """95 %; paired by round where the rounds were run together."""
    verdict: Verdict | None = None
    verdict_reason: str | None = None
    """One of :data:`REASONS`."""
    used: Used | None = None
    """The compared values: ``paired`` samples of interleaved runs, estimates of ``rounds``, ``exact``."""
    rounds_needed: int | None = None
    """Where the interval crosses the threshold: about how many rounds of this spread settle it; None: more than 1000."""
    base: Number | None = None
    """The baseline's value."""
    base_rounds: int | None = None
    """Where there are too few rounds: how many the baseline has."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The conditions under which two sides were measured."""

    is_interleaved: bool = True
    """True if the rounds of both were interleaved, so that a disturbance affected both."""
    differs: tuple[str, ...] = ()
    """Fields of the environment in which the two differ and that no comparison bridges; see :mod:`sweeprof.results.comparison`."""
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
    if base is None or base.value is None or measurement.value is None:
        return Cell(measurement, base=base.value if base else None)
    if measurement.unit != base.unit:  # of a metric that was changed between two sweeps
        return Cell(measurement, None, None, "not_comparable", "different_unit", base=base.value)
    if not (math.isfinite(measurement.value) and math.isfinite(base.value)):
        return Cell(measurement, base=base.value)
    ratio = None if base.value == 0 else measurement.value / base.value
    if not measurement.rounds:
        return _without_rounds(measurement, base, ratio, own_threshold, pairing or Pairing())
    return _with_rounds(measurement, base, ratio, threshold, pairing or Pairing())


def _without_rounds(
    measurement: Measurement, base: Measurement, ratio: float | None, own_threshold: float | None, pairing: Pairing
) -> Cell:
    assert measurement.value is not None
    assert base.value is not None

    def cell(verdict: Verdict | None, reason: str | None, used: Used | None = None) -> Cell:
        return Cell(measurement, ratio, None, verdict, reason, used, base=base.value, base_rounds=base_rounds)

    uncertain, base_rounds = uncertainty(measurement), None
    if uncertain is None and base.rounds:
        base_rounds = len(base.rounds)
        return cell("unclear", "too_few_rounds")
    uncertain = uncertain or uncertainty(base)
    if uncertain == "incomplete_count" or (uncertain is not None and own_threshold is None):
        return cell("unclear", uncertain)
    if uncertain is not None and pairing.differs:
        return cell("not_comparable", "different_environment")
    verdict, reason = _verdict_of_values(measurement, base, own_threshold)
    return cell(verdict, reason, "exact" if uncertain is None else None)


def _verdict_of_values(
    measurement: Measurement, base: Measurement, own_threshold: float | None
) -> tuple[Verdict | None, str | None]:
    """Return verdict and reason of two values as they are."""
    assert measurement.value is not None
    assert base.value is not None
    verdict = exact_verdict(measurement.value, base.value, base.better)
    if verdict is None:
        return None, None
    if verdict == "same":
        return verdict, "equal"
    if own_threshold is not None:
        is_within = abs(measurement.value - base.value) <= own_threshold * abs(base.value)
        return ("same", "difference_within_threshold") if is_within else (verdict, "difference_beyond_threshold")
    if _is_rounding(measurement.name, measurement.value, base.value):
        return "same", "rounding"
    return verdict, "unequal"


def _is_rounding(metric: str, value: Number, base: Number) -> bool:
    """True if two exact values that are not equal differ by rounding only; whole numbers never do."""
    if metric == OUTPUT_DIFFERENCE:
        smaller, larger = sorted((value, base))
        return larger <= max(OUTPUT_ROUNDING, min(OUTPUT_FACTOR * smaller, LARGEST_OUTPUT_ROUNDING))
    if float(value).is_integer() and float(base).is_integer():
        return False
    return abs(value - base) <= ROUNDING * max(abs(value), abs(base))


def uncertainty(measurement: Measurement) -> str | None:
    """Reason code why a value without rounds cannot be compared exactly; None if it can, or if there are rounds."""
    if measurement.rounds or measurement.estimator in DETERMINISTIC:
        return None
    if measurement.estimator in INCOMPLETE:
        return "incomplete_count"
    return "not_by_round" if measurement.estimator == ALL_ROUNDS else "measured_once"


def exact_verdict(value: Number, base: Number, better: Better) -> Verdict | None:
    """The verdict of two values that are the same each time; None where neither direction is better."""
    if better is None:
        return None
    if value == base:
        return "same"
    return "better" if (value < base) == (better == "lower") else "worse"


def _with_rounds(
    measurement: Measurement, base: Measurement, ratio: float | None, threshold: float | None, pairing: Pairing
) -> Cell:
    def undecided(verdict: Verdict, reason: str, base_rounds: int | None = None) -> Cell:
        return Cell(measurement, ratio, None, verdict, reason, base=base.value, base_rounds=base_rounds)

    if pairing.differs:
        return undecided("not_comparable", "different_environment")
    used, values, baseline = _sides(measurement, base, pairing)
    if min(len(values), len(baseline)) < MIN_ROUNDS:
        return undecided("unclear", "too_few_rounds", len(base.rounds))
    if threshold is None:
        return undecided("unclear", "no_threshold")
    if min(*values, *baseline) <= 0:
        return undecided("unclear", "test_failed")
    try:
        interval = (ratio_interval if pairing.is_interleaved else unpaired_interval)(
            values, baseline, pairing.confidence
        )
    except ArithmeticError:  # a spread beyond all bounds; never a significance
        return undecided("unclear", "test_failed")
    verdict, reason = interval_verdict(interval, threshold, measurement.better)
    needed = (
        rounds_to_settle(values, baseline, threshold, pairing.is_interleaved, pairing.confidence)
        if reason == "interval_crosses_threshold"
        else None
    )
    # Of the same rounds as the interval, which is symmetric in the logarithm.
    centre = math.sqrt(interval[0] * interval[1])
    return Cell(measurement, centre, interval, verdict, reason, used, needed, base.value)


def _sides(
    measurement: Measurement, base: Measurement, pairing: Pairing
) -> tuple[Used, Sequence[float], Sequence[float]]:
    """Return the values to compare; of interleaved rounds, those that both sides have."""
    if not pairing.is_interleaved:
        return "rounds", measurement.rounds, base.rounds
    used: Used = "paired" if measurement.paired else "rounds"
    values, baseline = measurement.by_round("paired" if measurement.paired else "rounds"), base.by_round()
    common = sorted((values.keys() & baseline.keys()) - pairing.apart)
    return used, [values[number] for number in common], [baseline[number] for number in common]


def interval_verdict(interval: tuple[float, float], threshold: float, better: Better) -> tuple[Verdict, str]:
    """Return verdict and reason of an interval of the ratio."""
    low, high = interval
    if 1 - threshold < low and high < 1 + threshold:
        return "same", "interval_within_threshold"
    if high < 1 - threshold or low > 1 + threshold:
        if better is None:
            return "unclear", "neither_is_better"
        return "better" if (high < 1) == (better == "lower") else "worse", "interval_beyond_threshold"
    return "unclear", "interval_crosses_threshold"


def expected_false(tests: int) -> float:
    """Return how many of ``tests`` are significant by chance, at most.

    A true ratio at the edge of the threshold is significant with half of what the confidence leaves, a smaller one less often.
    """
    return tests * (1 - CONFIDENCE) / 2


@dataclass(frozen=True, slots=True)
class Difference(Displayed):
    """One metric of a candidate, compared with the baseline's."""

    name: str
    unit: str
    better: Better
    baseline: Number | None
    candidate: Number | None
    difference: Number | None
    """Candidate minus baseline."""
    ratio: float | None
    """Candidate over baseline; infinite over zero, None where both are zero, or either is missing or not a finite number."""
    improvement: float | None
    """Above 1 if the candidate is better: baseline over candidate if lower is better, the ratio if higher is better."""
    verdict: Verdict | None
    reason: str | None = None
    """Why a value is missing, why the ratio is infinite or missing, or why the verdict is ``unclear``."""


class Differences(Displayed, list[Difference]):
    """The metrics of two sides; printed, a table that begins with the answer in words."""

    def __init__(
        self,
        found: Iterable[Difference] = (),
        baseline: Mapping[str, Measurement] | None = None,
        candidate: Mapping[str, Measurement] | None = None,
        definitions: Mapping[str, str] | None = None,
        names: tuple[str | None, str | None] = (None, None),
        *,
        has_notes: bool = False,
    ) -> None:
        super().__init__(found)
        self.baseline, self.candidate = baseline or {}, candidate or {}
        """The measurements, by metric name."""
        self.definitions = definitions or {}
        """What the metrics are, by name."""
        self.names = names
        """The names that the user gave to the baseline and to the candidate; None for a side without one."""
        self.has_notes = has_notes
        """True if the definitions are printed, too."""

    def shown(
        self, order: str | Sequence[str] = (), exclude: str | Sequence[str] = (), *, notes: bool = False
    ) -> Differences:
        """Return the differences to be printed or shown as HTML; see :meth:`sweeprof.Profile.shown`."""
        rows = {one.name: one for one in self}
        names = shown_names(rows, order, exclude)
        baseline = {name: self.baseline[name] for name in names if name in self.baseline}
        candidate = {name: self.candidate[name] for name in names if name in self.candidate}
        chosen = [rows[name] for name in names]
        return Differences(chosen, baseline, candidate, self.definitions, self.names, has_notes=notes)

    @property
    def is_complete(self) -> bool:
        """True if the measurements of every difference are known; a list that a caller has changed may have others."""
        return all(one.name in self.baseline or one.name in self.candidate for one in self)

    def to_frame(self) -> pandas.DataFrame:
        """One line per metric, in the columns of :class:`Difference`; ``reason`` also says why there is no verdict."""
        import pandas

        columns = [spec.name for spec in dataclasses.fields(Difference)]
        lines = []
        for one in self:
            line = {column: getattr(one, column) for column in columns}
            if one.better is None and one.reason is None:
                line["reason"] = "neither direction is better"
            lines.append(line)
        return pandas.DataFrame(lines, columns=columns, dtype=object)  # counts stay whole, what is missing stays None


def differences(
    baseline: Mapping[str, Measurement],
    candidate: Mapping[str, Measurement],
    definitions: Mapping[str, str] | None = None,
    names: tuple[str | None, str | None] = (None, None),
) -> Differences:
    """Every metric of either, in the order of the baseline; one that only one of them has keeps its row, with a reason."""
    found = [_difference(name, baseline.get(name), candidate.get(name)) for name in {**baseline, **candidate}]
    return Differences(found, dict(baseline), dict(candidate), definitions, names)


def _difference(name: str, base: Measurement | None, candidate: Measurement | None) -> Difference:
    shown = candidate or base
    assert shown is not None
    reason = _reason("baseline", base) or _reason("candidate", candidate)
    if base is None or candidate is None or base.value is None or candidate.value is None:
        left, right = base.value if base else None, candidate.value if candidate else None
        return Difference(name, shown.unit, shown.better, left, right, None, None, None, None, reason)
    if base.unit != candidate.unit:
        raise ValueError(f"{name} is in {base.unit!r} and in {candidate.unit!r}")
    ratio = over(candidate.value, base.value)
    improvement = {"lower": over(base.value, candidate.value), "higher": ratio, None: None}[candidate.better]
    cell = compare_cell(candidate, base, None)
    return Difference(
        name=name,
        unit=candidate.unit,
        better=candidate.better,
        baseline=base.value,
        candidate=candidate.value,
        difference=candidate.value - base.value,
        ratio=ratio,
        improvement=improvement,
        verdict=cell.verdict,
        reason=_why_not_clear(base.value, candidate.value, cell),
    )


def _why_not_clear(base: Number, candidate: Number, cell: Cell) -> str | None:
    """Return why two values have no verdict or no finite ratio; None if they have both."""
    for side, value in (("baseline", base), ("candidate", candidate)):
        if not math.isfinite(value):
            return f"{side}: not a finite number: {value}"
    if cell.verdict == "unclear" and cell.verdict_reason:
        return REASONS[cell.verdict_reason]
    if base == 0:
        return "both are zero" if candidate == 0 else "the baseline is zero"
    return None


def over(value: Number, by: Number) -> float | None:
    """Return the ratio of two values; infinite over zero, None for zero over zero or if a value is not finite."""
    if not (math.isfinite(value) and math.isfinite(by)):
        return None
    if by:
        return value / by
    return math.copysign(math.inf, value) if value else None


def _reason(which: str, measurement: Measurement | None) -> str | None:
    if measurement is None:
        return f"the {which} has no such metric"
    return None if measurement.value is not None else f"{which}: {measurement.reason}"
