"""Combinations side by side against a baseline: pure functions over measurements."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sweeprof.results.measurement import Better, Measurement, MetricInfo, Number
from sweeprof.results.record import Json, Status, Warning
from sweeprof.results.stats import ratio_interval

Verdict = Literal["better", "worse", "same", "unclear", "not_comparable"]

MIN_ROUNDS = 3
"""Below this many common rounds nothing is called (MEASUREMENT.md B4)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A measurement beside the baseline's."""

    measurement: Measurement
    ratio: float | None = None
    """This value over the baseline's; None for the baseline itself, or where either is missing or both are zero."""
    ratio_interval: tuple[float, float] | None = None
    """95 %, paired by round."""
    verdict: Verdict | None = None
    verdict_reason: str | None = None
    """Why the verdict is ``unclear`` or ``not_comparable``."""


@dataclass(frozen=True, slots=True)
class Row:
    """One combination."""

    combination_id: str
    axes: Json
    status: Status
    reason: str | None
    cells: dict[str, Cell]
    """By metric name; every metric of the comparison has a cell."""
    baseline_id: str | None
    """The combination it is compared with; its own id for a baseline; None where the sweep has none for it."""
    command: str = ""
    warnings: tuple[Warning, ...] = ()
    wall_s: float = 0.0

    @property
    def is_baseline(self) -> bool:
        return self.baseline_id == self.combination_id


@dataclass(frozen=True, slots=True)
class Excluded:
    """A combination that was not planned, and why."""

    axes: Json
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything the reports and trackers show."""

    sweep_id: str
    name: str
    created: str
    command: str
    axes: tuple[str, ...]
    """Axis keys in the order of the columns."""
    metrics: tuple[MetricInfo, ...]
    baseline: Json
    """Axis values that select the baseline, e.g. ``{"backend": "torch"}``."""
    rows: tuple[Row, ...]
    environment: Json = field(default_factory=dict)
    excluded: tuple[Excluded, ...] = ()
    threshold: float | None = None
    """Relative difference below which two values are called the same; None where the protocol calls nothing."""

    def to_dict(self) -> Json:
        """Plain JSON data."""
        return dataclasses.asdict(self)

    def counts(self) -> dict[str, int]:
        """Rows per status, ``ok`` first."""
        found: dict[str, int] = {"ok": 0}
        for row in self.rows:
            found[row.status] = found.get(row.status, 0) + 1
        return found

    def varying_axes(self) -> tuple[str, ...]:
        """The axes with more than one value."""
        return tuple(a for a in self.axes if len({str(row.axes.get(a)) for row in self.rows}) > 1)


def find_baseline(
    axes: Mapping[str, Any], baseline: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """Id of the combination that differs from ``axes`` only in having the baseline's values; None if it is not in the sweep.

    Args:
        axes: value per axis of the combination that looks for its baseline.
        baseline: the axis values that make a combination a baseline.
        rows: axes by combination id.
    """
    if not baseline:
        return None
    wanted = {**axes, **{key: value for key, value in baseline.items() if key in axes}}
    return next((id for id, candidate in rows.items() if dict(candidate) == wanted), None)


def compare_cell(measurement: Measurement, base: Measurement | None, threshold: float | None) -> Cell:
    """The cell of a measurement whose baseline is ``base`` (None: there is none)."""
    if base is None or base.value is None or measurement.value is None:
        return Cell(measurement)
    ratio = None if base.value == 0 else measurement.value / base.value
    if not measurement.rounds:
        return Cell(measurement, ratio, None, _exact_verdict(measurement.value, base.value, measurement.better))
    own, theirs = measurement.by_round(), base.by_round()
    common = sorted(own.keys() & theirs.keys())
    if len(common) < MIN_ROUNDS or threshold is None:
        return Cell(measurement, ratio, None, "unclear", "too_few_rounds")
    pairs = [(own[number], theirs[number]) for number in common]
    if any(value <= 0 for pair in pairs for value in pair):
        return Cell(measurement, ratio, None, "unclear", "test_failed")
    interval = ratio_interval([value for value, _ in pairs], [value for _, value in pairs])
    verdict = _verdict(interval, threshold, measurement.better)
    reason = "interval_crosses_threshold" if verdict == "unclear" else None
    # Of the same rounds as the interval, which is symmetric in the logarithm.
    return Cell(measurement, math.sqrt(interval[0] * interval[1]), interval, verdict, reason)


def _exact_verdict(value: Number, base: Number, better: Better) -> Verdict | None:
    if better is None:
        return None
    if value == base:
        return "same"
    return "better" if (value < base) == (better == "lower") else "worse"


def _verdict(interval: tuple[float, float], threshold: float, better: Better) -> Verdict:
    low, high = interval
    if 1 - threshold < low and high < 1 + threshold:
        return "same"
    if better is not None and (high < 1 - threshold or low > 1 + threshold):
        return "better" if (high < 1) == (better == "lower") else "worse"
    return "unclear"


def compare_rows(
    rows: Sequence[Row], measurements: Mapping[str, Mapping[str, Measurement]], threshold: float | None
) -> tuple[Row, ...]:
    """The rows with their cells filled in; ``measurements`` by combination id and metric name."""
    filled = []
    for row in rows:
        base = measurements[row.baseline_id] if row.baseline_id and not row.is_baseline else {}
        own = measurements[row.combination_id]
        cells = {name: compare_cell(value, base.get(name), threshold) for name, value in own.items()}
        filled.append(dataclasses.replace(row, cells=cells))
    return tuple(filled)
