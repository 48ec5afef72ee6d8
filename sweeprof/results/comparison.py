"""Combinations side by side against a baseline: pure functions over measurements."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sweeprof.display import Displayed, Rows, frame_of
from sweeprof.errors import Damaged
from sweeprof.results.files import damaged, read_json, validated
from sweeprof.results.measurement import Measurement, MetricInfo, Number
from sweeprof.results.record import Failure, Json, Status, Stored, Warning, check_version
from sweeprof.results.statistics import CONFIDENCE, repeated_confidence
from sweeprof.results.verdicts import MIN_ROUNDS, Cell, Pairing, Verdict, compare_cell
from sweeprof.text import one_line

if TYPE_CHECKING:
    import pandas


__all__ = ["MIN_ROUNDS", "Cell", "Comparison", "Excluded", "Row", "Verdict", "compare_cell", "compare_rows"]

T = TypeVar("T")


def flat(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted keys and values of a config; a list is a value, and so is an empty mapping."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def common_and_own(configs: Sequence[Mapping[str, object]]) -> tuple[Json, list[Json]]:
    """Return the settings that all configs have in common, and the other settings of each config."""
    if not configs:
        return {}, []
    flattened = [dict(flat(config)) for config in configs]
    common = flattened[0]
    for settings in flattened[1:]:
        common = {key: value for key, value in common.items() if key in settings and settings[key] == value}
    return common, [{key: value for key, value in settings.items() if key not in common} for settings in flattened]


def distinct(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Return the different values of each name, in the order in which they come."""
    values: dict[str, list[T]] = {}
    for name, value in pairs:
        if value not in values.setdefault(name, []):
            values[name].append(value)
    return values


def spelled(value: object) -> str:
    """Return a setting as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


KEY: dict[str, tuple[str, ...]] = {
    "host": ("host",),
    "processor": ("cpu", "model"),
    "processors available": ("cpu", "available"),
    "processor quota": ("cpu", "quota"),
    "governor": ("cpu", "governor"),
    "GPUs": ("gpus",),
}
"""The comparable key: where each of its fields is in an environment. Threads are beside it, for they are a setting."""

THREADS = "backend.threads"
DEVIATION = "settings in effect"
"""A field of the key that only measurements have whose settings were not as requested: they are comparable with nothing."""
AS_REQUESTED = "as requested"

ValuePair = tuple[object, object]
"""The baseline's value, and this one."""
Deviations = Mapping[str, tuple[object, object]]
"""By the name of a setting, the requested value and the actual one."""


def deviations_of(requested: Mapping[str, object], actual: Mapping[str, object]) -> Deviations:
    """Return the settings whose actual value is not the requested one; a setting that only one side knows is no deviation."""
    deviations = {}
    for name, value in actual.items():
        comparable = value
        if name == "device" and ":" not in str(requested.get(name)):  # `cuda` is any of `cuda:0`, `cuda:1` …
            comparable = str(value).partition(":")[0]
        if name in requested and requested[name] != comparable:
            deviations[name] = (requested[name], value)
    return deviations


def warnings_of(deviations: Deviations) -> tuple[Warning, ...]:
    """Return a warning for each setting that was not as requested."""
    warnings = []
    for name, (requested, actual) in deviations.items():
        text = f"{name} was {_shown(actual)} while the model ran, and {_shown(requested)} was requested: not comparable"
        advice = f"keep the model from changing {name}"
        if name == "threads":
            advice = "request what the model sets (backend.threads), or keep it from setting threads"
        warnings.append(Warning("settings_differ", text, advice))
    return tuple(warnings)


def unsteady(environments: Iterable[Mapping[str, object]]) -> dict[str, list[object]]:
    """Return the settings in effect that were not the same in all of these environments, with their values."""
    settings = distinct(item for environment in environments for item in _part(environment, "settings").items())
    return {name: values for name, values in settings.items() if len(values) > 1}


def unsteady_warnings(environments: Iterable[Mapping[str, object]]) -> tuple[Warning, ...]:
    """Return a warning for each setting that changed between passes or rounds of one combination."""
    return tuple(
        Warning(
            "settings_changed",
            f"{name} was not the same in all passes and rounds: {', '.join(map(_shown, values))}",
            "set it once, before the sweep, and measure this combination again",
        )
        for name, values in unsteady(environments).items()
    )


def _shown(value: object) -> str:
    return spelled(value) if value != "" else "nothing"


def _part(environment: object, name: str) -> Mapping[str, Any]:
    """Return a mapping within an environment; an empty one if there is none."""
    part = environment.get(name) if isinstance(environment, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def key_of(environments: Iterable[Mapping[str, object]]) -> Json:
    """Return the comparable key of measurements from these environments; a field that differs among them has all of its values."""
    known = list(environments)
    fields = []
    for environment in known:
        for name, path in KEY.items():
            owner = environment
            for part in path[:-1]:
                owner = _part(owner, part)
            fields.append((name, owner.get(path[-1])))
    key: Json = {name: values[0] if len(values) == 1 else values for name, values in distinct(fields).items()}
    deviations = [
        f"{name} {_shown(actual)} instead of {_shown(requested)}"
        for environment in known
        for name, (requested, actual) in _part(environment, "deviations").items()
    ]
    deviations += [f"{name} {' and '.join(map(_shown, values))}" for name, values in unsteady(known).items()]
    if deviations:
        key[DEVIATION] = ", ".join(dict.fromkeys(deviations))
    return key


def differing(key: Mapping[str, object], base: Mapping[str, object]) -> dict[str, ValuePair]:
    """Return the fields of two comparable keys that differ, with the baseline's value and this one.

    A field that only one side has does not differ.
    """
    common = [field for field in key if field in base and field != DEVIATION]
    fields = {field: (base[field], key[field]) for field in common if key[field] != base[field]}
    if DEVIATION in key or DEVIATION in base:  # also where both deviate alike: what else the models did is not known
        fields[DEVIATION] = base.get(DEVIATION, AS_REQUESTED), key.get(DEVIATION, AS_REQUESTED)
    return fields


def changed(environment: Mapping[str, object], base: Mapping[str, object]) -> dict[str, ValuePair]:
    """Return differences of two environments that do not prevent a comparison: system, Python, library versions, git revision."""
    sides = []
    for side in (base, environment):
        git = _part(side, "git")
        revision = str(git.get("revision") or "")[:12] or None
        if revision and git.get("dirty"):
            revision += " with uncommitted changes"
        software = {"os": side.get("os"), "python": side.get("python"), "git": revision}
        sides.append({**_part(side, "versions"), **software})
    before, now = sides
    versions = {*before, *now} - {"os", "python", "git"}
    names = ("os", "python", *sorted(versions), "git")
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


SCHEMA_VERSION = 2
"""Of ``comparison.json``. 1: the first, without a number. 2: what was compared with what, settings, and what qualifies."""


@dataclass(frozen=True, slots=True)
class Row(Displayed):
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
    """The comparable key of where it was timed (:mod:`sweeprof.results.comparison`)."""
    settings: Json = field(default_factory=dict)
    """Of its config, by dotted key, what is not alike in all rows."""
    baseline_status: Status | None = None
    """Status of the combination that it is compared with."""
    differs: dict[str, ValuePair] = field(default_factory=dict)
    """Fields of the environment in which it differs from that combination's."""
    misses: tuple[str, ...] = ()
    """Why it does not qualify: a line per constraint that it does not fulfil."""
    on_front: bool = False
    """True if no other combination is better in all metrics of the Pareto front."""
    sessions: tuple[str | None, ...] = ()
    """Of each round, by its number, in which run of the sweep it was timed; None for one that was not. A resumed sweep
    has several."""
    rounds_complete: int = 0
    rounds_planned: int = 0
    """Of the timing pass; 0 where the sweep does not time."""
    most_rounds: int = 0
    """The largest number of rounds, if the protocol stops as soon as the verdicts are decided; 0: the number is fixed."""
    round_s: float = 0.0
    """Mean duration of a round's trial, with the start of its process; 0 where the sweep does not time."""
    is_incomplete: bool = False
    """True if at least one round was measured, but not all: the values are those of the measured rounds."""
    baseline_is_incomplete: bool = False
    """:attr:`is_incomplete` of the combination it is compared with."""

    @property
    def has_values(self) -> bool:
        """True if reports show the values, and rankings include them."""
        return self.status == "ok" or self.is_incomplete

    @property
    def baseline_has_values(self) -> bool:
        """:attr:`has_values` of the combination it is compared with."""
        return self.baseline_status == "ok" or self.baseline_is_incomplete

    test_data: str | None = None
    """The samples that quality was evaluated on, by their number and a digest of their targets; None if there is none."""
    precision_method: str | None = None
    """By which method the model got its precision, as its backend reports it: ``autocast``, ``torchao``."""
    failures: tuple[Failure, ...] = ()
    """Exceptions of passes, the most severe first, and of metrics. An ``ok`` row with failures lacks the metrics they name."""

    @property
    def is_fully_measured(self) -> bool:
        """True if everything that can be measured was measured."""
        return self.status in ("ok", "unsupported") and not self.failures

    @property
    def is_baseline(self) -> bool:
        return self.baseline_id == self.combination_id


def value_of(row: Row, metric: str) -> Number | None:
    """The value of a metric in base units; None where the row has none, or one that is not a finite number."""
    cell = row.cells.get(metric)
    value = cell.measurement.value if cell else None
    return value if value is not None and math.isfinite(value) else None


def is_training(row: Row) -> bool:
    """True if the timed step is a training step, as far as the row tells."""
    return row.axes.get("mode") == "training" or value_of(row, "latency/iteration") is not None


def reason_of(row: Row, metric: str) -> str:
    """Return the reason why :func:`value_of` is None."""
    cell = row.cells.get(metric)
    if cell is None:
        return "not requested for this combination"
    if cell.measurement.value is not None:
        return f"not a finite number: {cell.measurement.value}"
    return one_line(cell.measurement.reason or row.reason or "no reason was given")


@dataclass(frozen=True, slots=True)
class Excluded:
    """A combination that was not planned, and why."""

    axes: Json
    reason: str


@dataclass(frozen=True, slots=True)
class ComparedSweep:
    """The other sweep that a sweep is compared with."""

    label: str
    """As the user named it, e.g. ``tag:nightly``."""
    sweep_id: str
    name: str
    created: str
    software: dict[str, ValuePair] = field(default_factory=dict)
    """Changes that do not prevent a comparison."""
    settings: dict[str, tuple[ValuePair, ...]] = field(default_factory=dict)
    """Of the configs of combinations that were matched, what differs, by dotted key."""
    absent: tuple[Json, ...] = ()
    """Axes of the combinations that only the other sweep has."""
    absent_metrics: tuple[MetricInfo, ...] = ()
    """Metrics of which only the other sweep has values, among the combinations that were matched."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How many trials of a sweep that still runs have ended."""

    done: int
    planned: int


@dataclass(frozen=True, slots=True)
class SearchGoal:
    """A metric of which a search looks for the best value."""

    metric: str
    """Its full name."""
    direction: Literal["maximize", "minimize"]


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """A search: the rows of the comparison are the combinations that it measured."""

    goals: tuple[SearchGoal, ...]
    trials: int
    """How many combinations it was to measure."""
    combinations: int
    """How many there are that can be measured."""
    too_large: int = 0
    """How many it did not measure because a smaller one was too large."""


@dataclass(frozen=True)
class Comparison(Stored):
    """A sweep's results, as reports and trackers show them."""

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
    """Relative difference below which two values count as the same; None where the protocol decides nothing."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Of metrics that have one of their own."""
    protocol: Json = field(default_factory=dict)
    """Of ``rounds`` and ``interleave`` the values that the combinations' protocols have."""
    settings: Json = field(default_factory=dict)
    """Of the configs, by dotted key, what is alike in all rows."""
    against: ComparedSweep | None = None
    """The other sweep that the rows are compared with; None: with the baseline among them."""
    pareto: tuple[str, ...] = ()
    """Metrics of the Pareto front."""
    constraints: tuple[str, ...] = ()
    """The conditions that a combination must fulfil to qualify."""
    damaged: tuple[str, ...] = ()
    """Files of the sweep's folder that could not be read, a line each: the path in the folder and the reason."""
    running: Progress | None = None
    """None if the sweep has ended; else the rows are those of the trials that have ended so far."""
    search: SearchSummary | None = None
    """None if every combination was to be measured."""
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", Rows(self.rows))

    @classmethod
    def read(cls, path: str | Path) -> Comparison:
        """Return the comparison of a sweep.

        Args:
            path: the folder of the sweep, or its ``comparison.json``.

        Raises:
            Damaged: the file is not a comparison, or comes from a later version.
            OSError: it cannot be read.
        """
        file = Path(path)
        return comparison_from(read_json(file / "comparison.json" if file.is_dir() else file))

    def to_frame(self) -> pandas.DataFrame:
        """One line per combination and metric, as in ``tables/measurements.csv``: axes, value, interval, verdict, reasons."""
        frame: pandas.DataFrame = frame_of(self)
        return frame

    def counts(self) -> dict[str, int]:
        """Rows per status, ``ok`` first; rows with some of their rounds count as ``incomplete``."""
        counts: dict[str, int] = {"ok": 0}
        for row in self.rows:
            status = "incomplete" if row.is_incomplete else row.status
            counts[status] = counts.get(status, 0) + 1
        return counts

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


def find_baselines(baseline: Mapping[str, object], rows: Mapping[str, Mapping[str, object]]) -> dict[str, str | None]:
    """Return, by combination id, the id of the combination that differs from it only in having the baseline's values, or None.

    A baseline that names all axes of a combination is that combination, for all of them.

    Args:
        baseline: the axis values that make a combination a baseline.
        rows: axes by combination id.
    """
    if not baseline:
        return dict.fromkeys(rows)
    ids: dict[str, str] = {}
    for id, axes in rows.items():
        ids.setdefault(_spelled(axes), id)
    named = ids.get(_spelled(baseline))
    if named is not None:
        return dict.fromkeys(rows, named)
    baselines: dict[str, str | None] = {}
    for id, axes in rows.items():
        baselines[id] = ids.get(_spelled({key: baseline.get(key, value) for key, value in axes.items()}))
    return baselines


def _spelled(axes: Mapping[str, object]) -> str:
    return json.dumps(axes, sort_keys=True, default=str)


def compare_rows(
    rows: Sequence[Row],
    measurements: Mapping[str, Mapping[str, Measurement]],
    threshold: float | None,
    thresholds: Mapping[str, float] | None = None,
) -> tuple[Row, ...]:
    """Return the rows of one sweep with their cells.

    Args:
        rows: without cells.
        measurements: by combination id and metric name.
        threshold: of metrics without one of their own; None: nothing with rounds is decided.
        thresholds: by metric name; they apply to values without rounds, too.
    """
    by_id = {row.combination_id: row for row in rows}
    filled = []
    for row in rows:
        base = by_id[row.baseline_id] if row.baseline_id and not row.is_baseline else None
        theirs = measurements[base.combination_id] if base else {}
        filled.append(compared_row(row, measurements[row.combination_id], base, theirs, threshold, thresholds or {}))
    return tuple(filled)


def compared_row(
    row: Row,
    measurements: Mapping[str, Measurement],
    base: Row | None,
    theirs: Mapping[str, Measurement],
    threshold: float | None,
    thresholds: Mapping[str, float],
    is_interleaved: bool = True,
) -> Row:
    """Return ``row`` with its cells compared with those of ``base``; ``is_interleaved``: the rounds of both were interleaved."""
    differs = differing(row.environment, base.environment) if base else {}
    paired: list[int] = []
    apart: list[int] = []  # rounds that both have, but not from one run of the sweep
    if base and is_interleaved:
        for number, (session, other) in enumerate(zip(row.sessions, base.sessions, strict=False)):
            if session is not None and other is not None:
                (paired if session == other else apart).append(number)
    warnings = row.warnings
    is_scattered = len(paired) < MIN_ROUNDS <= len(paired) + len(apart)
    if is_scattered:
        rounds = f"{len(apart)} of {len(apart) + len(paired)} rounds"
        advice = "measure both again, in a sweep of their own"
        text = f"{rounds} were timed in another run of the sweep than the baseline's: rounds are not paired"
        warnings = (*warnings, Warning("run_apart", text, advice))
    most_rounds = max(row.most_rounds, base.most_rounds) if base else 0
    pairing = Pairing(
        is_interleaved and not differs and not is_scattered,
        tuple(differs),
        frozenset(apart),
        repeated_confidence(most_rounds) if most_rounds else CONFIDENCE,
    )
    cells = {
        name: compare_cell(value, theirs.get(name), thresholds.get(name, threshold), pairing, thresholds.get(name))
        for name, value in measurements.items()
    }
    return dataclasses.replace(
        row,
        cells=cells,
        differs=differs,
        baseline_status=base.status if base else None,
        baseline_is_incomplete=base is not None and base.is_incomplete,
        warnings=warnings,
    )


def comparison_from(data: object) -> Comparison:
    """The comparison; fields that this version does not know are ignored.

    Raises:
        Damaged: the data are not a comparison, or come from a later version.
    """
    if not isinstance(data, dict) or "schema_version" not in data:
        raise damaged(data, "a comparison of sweeprof")
    check_version(data, "comparison", SCHEMA_VERSION)
    try:
        comparison = validated(Comparison, data)
    except Damaged as error:
        raise Damaged(f"is not a comparison of sweeprof: {error}") from None
    names = [metric.name for metric in comparison.metrics]
    for place, row in enumerate(comparison.rows):
        missing = [name for name in names if name not in row.cells]
        if missing:
            raise damaged(row.cells, f"complete: there is no {missing[0]!r}", ["rows", place, "cells"])
    return comparison


# Comparison of two sweeps: matches their combinations and lists what else changed. Pure functions.


QUALITY = "quality/"
"""Begins the names of metrics of what a model answers to the test data."""
_IGNORED = ("preload", "preload_for")
"""Settings that change how soon a process starts and nothing that is measured, as for a combination's id."""


def set_against(sweep: Comparison, base: Comparison, label: str) -> Comparison:
    """Return ``sweep`` with every row compared with its counterpart in ``base``: the same combination, else one with the same axes.

    The thresholds are those of ``sweep``, or of ``base`` where it has none: one for all of ``sweep`` holds for all metrics.
    """
    partners = _partners(sweep, base)
    threshold = sweep.threshold if sweep.threshold is not None else base.threshold
    thresholds = sweep.thresholds if sweep.threshold is not None else {**base.thresholds, **sweep.thresholds}
    rows = []
    for row in sweep.rows:
        partner = partners.get(row.combination_id)
        named = dataclasses.replace(
            row,
            baseline_id=f"{base.sweep_id}/{partner.combination_id}" if partner else None,
            environment=_environment(sweep, row),
        )
        theirs = dataclasses.replace(partner, environment=_environment(base, partner)) if partner else None
        measured = _measured(theirs) if theirs else {}
        compared = compared_row(named, _measured(row), theirs, measured, threshold, thresholds, is_interleaved=False)
        rows.append(_without_verdicts_on_quality(compared) if theirs and _have_other_data(row, theirs) else compared)
    matched = {partner.combination_id for partner in partners.values()}
    against = ComparedSweep(
        label=label,
        sweep_id=base.sweep_id,
        name=base.name,
        created=base.created,
        software=changed(sweep.environment, base.environment),
        settings=_settings(sweep, base, partners),
        absent=tuple(row.axes for row in base.rows if row.combination_id not in matched),
        absent_metrics=_absent_metrics(sweep, base, partners),
    )
    return dataclasses.replace(sweep, rows=tuple(rows), against=against, threshold=threshold, thresholds=thresholds)


def _have_other_data(row: Row, partner: Row) -> bool:
    """True if two rows were evaluated on different samples; False if that is unknown, as of records of an earlier version."""
    return None not in (row.test_data, partner.test_data) and row.test_data != partner.test_data


def _without_verdicts_on_quality(row: Row) -> Row:
    """Return a row whose quality is not comparable, because its counterpart was evaluated on other samples."""
    cells = {
        name: dataclasses.replace(cell, verdict="not_comparable", verdict_reason="different_data")
        if name.startswith(QUALITY) and cell.base is not None and cell.measurement.value is not None
        else cell
        for name, cell in row.cells.items()
    }
    return dataclasses.replace(row, cells=cells)


def _measured(row: Row) -> dict[str, Measurement]:
    return {name: cell.measurement for name, cell in row.cells.items()}


def _environment(comparison: Comparison, row: Row) -> Json:
    """The comparable key of a row, threads included; of a sweep that did not keep it by row, the whole sweep's."""
    key = row.environment or (key_of([comparison.environment]) if comparison.environment else {})
    threads = setting(comparison, row, THREADS)
    return key if threads is None else {**key, "threads": threads}


def setting(comparison: Comparison, row: Row, key: str) -> object:
    """Return the value of a dotted key in the config of a row; None if the comparison does not contain it."""
    return row.axes.get(key, row.settings.get(key, comparison.settings.get(key)))


def _partners(sweep: Comparison, base: Comparison) -> dict[str, Row]:
    """The rows of ``base`` by the ids of their counterparts; none has two."""
    theirs = {row.combination_id: row for row in base.rows}
    partners = {row.combination_id: theirs[row.combination_id] for row in sweep.rows if row.combination_id in theirs}
    axes = sorted({*sweep.axes, *base.axes})
    unmatched: dict[str, Row] = {}
    for row in base.rows:
        if row.combination_id not in partners:
            unmatched.setdefault(_place(base, row, axes), row)
    for row in sweep.rows:
        partner = None if row.combination_id in partners else unmatched.pop(_place(sweep, row, axes), None)
        if partner is not None:
            partners[row.combination_id] = partner
    return partners


def _place(comparison: Comparison, row: Row, axes: Sequence[str]) -> str:
    """Values of the axes of either sweep; what is no axis here has the config's value."""
    return json.dumps([setting(comparison, row, axis) for axis in axes], sort_keys=True, default=str)


def _absent_metrics(sweep: Comparison, base: Comparison, partners: Mapping[str, Row]) -> tuple[MetricInfo, ...]:
    """Return the metrics that ``sweep`` does not measure, and of which a counterpart of its rows has a value."""
    known = {info.name for info in sweep.metrics}
    measured = {
        name
        for row in partners.values()
        for name, cell in row.cells.items()
        if cell.measurement.value is not None and row.has_values
    }
    return tuple(info for info in base.metrics if info.name in measured - known)


def _settings(sweep: Comparison, base: Comparison, partners: Mapping[str, Row]) -> dict[str, tuple[ValuePair, ...]]:
    """Return what differs in the test data and in the configs of combinations that were matched, by dotted key."""
    changes: list[tuple[str, ValuePair]] = [
        ("test data", (partners[row.combination_id].test_data, row.test_data))
        for row in sweep.rows
        if row.combination_id in partners and _have_other_data(row, partners[row.combination_id])
    ]
    if not sweep.settings or not base.settings:  # of a version that kept none
        return {key: tuple(pairs) for key, pairs in distinct(changes).items()}
    known = {*sweep.settings, *base.settings}
    for row in (*sweep.rows, *base.rows):
        known.update(row.settings)
    keys = [key for key in sorted(known) if set(key.split(".")).isdisjoint(_IGNORED)]
    for row in sweep.rows:
        partner = partners.get(row.combination_id)
        if partner is not None and partner.combination_id != row.combination_id:  # one id, one config
            for key in keys:
                before, now = _configured(base, partner, key), _configured(sweep, row, key)
                if before != now:
                    changes.append((key, (before, now)))
    return {key: tuple(pairs) for key, pairs in distinct(changes).items()}


def _configured(comparison: Comparison, row: Row, key: str) -> object:
    return row.settings.get(key, comparison.settings.get(key))
