"""Combinations side by side against a baseline: pure functions over measurements."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sweeprof.results.comparable import differing
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.record import Failure, Json, Status, Warning
from sweeprof.results.verdicts import MIN_ROUNDS, Cell, Meeting, Verdict, compare_cell

__all__ = ["MIN_ROUNDS", "Cell", "Comparison", "Excluded", "Row", "Verdict", "compare_cell", "compare_rows"]

SCHEMA_VERSION = 2
"""Of ``comparison.json``. 1: the first, without a number. 2: what was compared with what, settings, and what qualifies."""

Change = tuple[Any, Any]
"""The baseline's value, and this one."""


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
    """The combination it is compared with; its own id for a baseline; None where there is none for it. One of another sweep has
    that sweep's id before it, as ``s1/c2``."""
    command: str = ""
    warnings: tuple[Warning, ...] = ()
    wall_s: float = 0.0
    environment: Json = field(default_factory=dict)
    """The comparable key of where it was timed (:mod:`sweeprof.results.comparable`)."""
    settings: Json = field(default_factory=dict)
    """Of its config, by dotted key, what is not alike in all rows."""
    baseline_status: Status | None = None
    """What became of the combination it is compared with."""
    differs: dict[str, Change] = field(default_factory=dict)
    """Fields of the environment in which it differs from that combination's."""
    misses: tuple[str, ...] = ()
    """Why it does not qualify: a line per constraint that it does not fulfil."""
    on_front: bool = False
    """Whether no other combination beats it in all metrics of the Pareto front."""
    sessions: tuple[str | None, ...] = ()
    """Of each round, by its number, in which run of the sweep it was timed; None for one that was not. A sweep that is gone on with
    has several."""
    rounds_complete: int = 0
    rounds_planned: int = 0
    """Of the timing pass; 0 where the sweep does not time."""
    is_incomplete: bool = False
    """Whether the measurement was not completed, although at least one round was: the values are those of the rounds measured."""
    baseline_is_incomplete: bool = False
    """:attr:`is_incomplete` of the combination it is compared with."""

    @property
    def has_values(self) -> bool:
        """Whether reports show the values, and rankings include them."""
        return self.status == "ok" or self.is_incomplete

    @property
    def baseline_has_values(self) -> bool:
        """:attr:`has_values` of the combination it is compared with."""
        return self.baseline_status == "ok" or self.baseline_is_incomplete

    failures: tuple[Failure, ...] = ()
    """What raised: passes, the gravest first, and metrics. A row that is ``ok`` with failures lacks the metrics that they name."""

    @property
    def is_fully_measured(self) -> bool:
        """Whether nothing is missing that could have been measured."""
        return self.status in ("ok", "unsupported") and not self.failures

    @property
    def is_baseline(self) -> bool:
        return self.baseline_id == self.combination_id


@dataclass(frozen=True, slots=True)
class Excluded:
    """A combination that was not planned, and why."""

    axes: Json
    reason: str


@dataclass(frozen=True, slots=True)
class Against:
    """The other sweep that a sweep is compared with."""

    label: str
    """As the user named it, e.g. ``tag:nightly``."""
    sweep_id: str
    name: str
    created: str
    software: dict[str, Change] = field(default_factory=dict)
    """What has changed and forbids no comparison."""
    settings: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    """Of the configs of combinations that were matched, what differs, by dotted key."""
    absent: tuple[Json, ...] = ()
    """Axes of the combinations that only the other sweep has."""


@dataclass(frozen=True)
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
    thresholds: dict[str, float] = field(default_factory=dict)
    """Of metrics that have one of their own."""
    protocol: Json = field(default_factory=dict)
    """Of ``rounds``, ``interleave`` and ``kernel`` the values that the combinations' protocols have."""
    settings: Json = field(default_factory=dict)
    """Of the configs, by dotted key, what is alike in all rows."""
    against: Against | None = None
    """The other sweep that the rows are compared with; None: with the baseline among them."""
    pareto: tuple[str, ...] = ()
    """Metrics of the Pareto front."""
    constraints: tuple[str, ...] = ()
    """What a combination must fulfil to qualify."""
    damaged: tuple[str, ...] = ()
    """Files of the sweep's folder that could not be read, a line each: the path in the folder and the reason."""
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> Json:
        """Plain JSON data."""
        return dataclasses.asdict(self)

    def counts(self) -> dict[str, int]:
        """Rows per status, ``ok`` first; rows with some of their rounds count as ``incomplete``."""
        found: dict[str, int] = {"ok": 0}
        for row in self.rows:
            status = "incomplete" if row.is_incomplete else row.status
            found[status] = found.get(status, 0) + 1
        return found

    def varying_axes(self) -> tuple[str, ...]:
        """The axes with more than one value."""
        return self._varying

    @cached_property
    def _varying(self) -> tuple[str, ...]:
        # Reports of ten thousand rows ask for it at every row.
        return tuple(a for a in self.axes if len({str(row.axes.get(a)) for row in self.rows}) > 1)

    def threshold_of(self, metric: str) -> float | None:
        """The threshold of a metric: its own, else the protocol's."""
        return self.thresholds.get(metric, self.threshold)


def find_baselines(baseline: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """By combination id the id of the one that differs from it only in having the baseline's values; None: there is none.

    A baseline that names all axes of a combination is that combination, for all of them.

    Args:
        baseline: the axis values that make a combination a baseline.
        rows: axes by combination id.
    """
    if not baseline:
        return dict.fromkeys(rows)
    places: dict[str, str] = {}
    for id, axes in rows.items():
        places.setdefault(_spelled(axes), id)
    named = places.get(_spelled(baseline))
    if named is not None:
        return dict.fromkeys(rows, named)
    return {
        id: places.get(_spelled({**axes, **{key: value for key, value in baseline.items() if key in axes}}))
        for id, axes in rows.items()
    }


def _spelled(axes: Mapping[str, Any]) -> str:
    return json.dumps(axes, sort_keys=True, default=str)


def compare_rows(
    rows: Sequence[Row],
    measurements: Mapping[str, Mapping[str, Measurement]],
    threshold: float | None,
    thresholds: Mapping[str, float] | None = None,
) -> tuple[Row, ...]:
    """The rows of one sweep with their cells filled in.

    Args:
        rows: without cells.
        measurements: by combination id and metric name.
        threshold: of metrics without one of their own; None: nothing is called.
        thresholds: by metric name.
    """
    by_id = {row.combination_id: row for row in rows}
    filled = []
    for row in rows:
        base = by_id[row.baseline_id] if row.baseline_id and not row.is_baseline else None
        theirs = measurements[base.combination_id] if base else {}
        filled.append(beside(row, measurements[row.combination_id], base, theirs, threshold, thresholds or {}))
    return tuple(filled)


def beside(
    row: Row,
    own: Mapping[str, Measurement],
    base: Row | None,
    theirs: Mapping[str, Measurement],
    threshold: float | None,
    thresholds: Mapping[str, float],
    together: bool = True,
) -> Row:
    """``row`` with its cells beside those of ``base``; ``together``: the rounds of both were run in turn."""
    differs = differing(row.environment, base.environment) if base else {}
    apart, pairs = _apart(row, base) if base and together else (frozenset[int](), 0)
    scattered = pairs < MIN_ROUNDS <= pairs + len(apart)
    meeting = Meeting(together and not differs and not scattered, tuple(differs), apart)
    cells = {
        name: compare_cell(value, theirs.get(name), thresholds.get(name, threshold), meeting)
        for name, value in own.items()
    }
    return dataclasses.replace(
        row,
        cells=cells,
        differs=differs,
        baseline_status=base.status if base else None,
        baseline_is_incomplete=base is not None and base.is_incomplete,
        warnings=(*row.warnings, _run_apart(len(apart), pairs, own)) if scattered else row.warnings,
    )


def _run_apart(apart: int, pairs: int, own: Mapping[str, Measurement]) -> Warning:
    """The warning of a row of which fewer rounds than a comparison needs were timed in one run with the baseline's."""
    is_calibrated = any(measurement.calibrated for measurement in own.values())
    return Warning(
        "run_apart",
        f"{apart} of {apart + pairs} rounds were timed in another run of the sweep than the baseline's: rounds are not paired",
        "measure both again, in a sweep of their own" + ("" if is_calibrated else ", or use protocol=calibrated"),
    )


def _apart(row: Row, base: Row) -> tuple[frozenset[int], int]:
    """The rounds that both have, but not from one run of the sweep; and how many they have from one."""
    both = [
        (number, own == theirs)
        for number, (own, theirs) in enumerate(zip(row.sessions, base.sessions, strict=False))
        if own is not None and theirs is not None
    ]
    return frozenset(number for number, at_once in both if not at_once), sum(at_once for _, at_once in both)
