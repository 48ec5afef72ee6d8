"""The comparison of combinations with a baseline, and of two sweeps: what is comparable, the rows with their verdicts, its file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from sweeprof.display import Displayed, Rows, answer_of, frame_of
from sweeprof.errors import Damaged, Problem, UserError, choice_problem
from sweeprof.results.differences import Cell
from sweeprof.results.files import damaged, read_json, validated
from sweeprof.results.measurement import Measurement, MetricInfo, Number
from sweeprof.results.record import Failure, Json, Status, Stored, Warning, check_version
from sweeprof.results.statistics import CONFIDENCE, repeated_confidence
from sweeprof.results.verdicts import MIN_ROUNDS, OUTPUT_DIFFERENCE, Pairing, compare_cell
from sweeprof.text import one_line

if TYPE_CHECKING:
    import pandas


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
    common = dict(flattened[0])
    for settings in flattened[1:]:
        common = {key: value for key, value in common.items() if key in settings and settings[key] == value}
    for settings in flattened:
        for key in common:
            del settings[key]
    return common, flattened


def distinct(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    """Return the different values of each name, in the order in which they come."""
    values: dict[str, list[T]] = {}
    for name, value in pairs:
        if value not in values.setdefault(name, []):
            values[name].append(value)
    return values


def spelled(value: object) -> str:
    """Return a setting as text."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


THREADS = "backend.threads"
DEVIATION = "settings in effect"
"""The field of the comparable key that says which settings were not as requested; such measurements are comparable with nothing."""
AS_REQUESTED = "as requested"

ValuePair = tuple[object, object]
"""The baseline's value, and this one."""
Deviations = Mapping[str, ValuePair]
"""By the name of a setting, the requested value and the actual one."""


def deviations_of(requested: Mapping[str, object], actual: Mapping[str, object]) -> Deviations:
    """Return the settings whose actual value is not the requested one; a setting that only one side has is not a deviation."""
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
    settings: list[tuple[str, object]] = []
    for environment in environments:
        settings += _part(environment, "settings").items()
    return {name: values for name, values in distinct(settings).items() if len(values) > 1}


def unsteady_warnings(environments: Iterable[Mapping[str, object]]) -> tuple[Warning, ...]:
    """Return a warning for each setting that changed between passes or rounds of one combination."""
    warnings = []
    for name, values in unsteady(environments).items():
        text = f"{name} was not the same in all passes and rounds: {', '.join(map(_shown, values))}"
        advice = "set it once, before the sweep, and measure this combination again"
        warnings.append(Warning("settings_changed", text, advice))
    return tuple(warnings)


def _shown(value: object) -> str:
    return "nothing" if value == "" else spelled(value)


def _part(environment: object, name: str) -> Mapping[str, Any]:
    """Return a mapping within an environment; an empty one if there is none."""
    part = environment.get(name) if isinstance(environment, Mapping) else None
    if isinstance(part, Mapping):
        return part
    return {}


def key_of(environments: Iterable[Mapping[str, object]]) -> Json:
    """Return the comparable key of measurements from these environments; a field that differs among them has all of its values.

    Threads are not part of it, because they are a setting.
    """
    known = list(environments)
    fields = []
    deviations = []
    for environment in known:
        cpu = _part(environment, "cpu")
        fields += [
            ("host", environment.get("host")),
            ("processor", cpu.get("model")),
            ("processors available", cpu.get("available")),
            ("processor quota", cpu.get("quota")),
            ("governor", cpu.get("governor")),
            ("GPUs", environment.get("gpus")),
        ]
        gpu = _part(environment, "gpu")  # which trials on a CPU, with which those on a GPU are compared, do not have
        for name, part in (("GPU driver", "driver"), ("GPU power limit in W", "power_limit_w")):
            if gpu.get(part) is not None:
                fields.append((name, gpu[part]))
        for name, (requested, actual) in _part(environment, "deviations").items():
            deviations.append(f"{name} {_shown(actual)} instead of {_shown(requested)}")
    key: Json = dict(distinct(fields))
    for name, values in key.items():
        if len(values) == 1:
            key[name] = values[0]
    for name, settings in unsteady(known).items():
        deviations.append(f"{name} {' and '.join(map(_shown, settings))}")
    if deviations:
        key[DEVIATION] = ", ".join(dict.fromkeys(deviations))
    return key


def differing(key: Mapping[str, object], base: Mapping[str, object]) -> dict[str, ValuePair]:
    """Return the fields of two comparable keys that differ, with the baseline's value and this one.

    A field that only one side has does not differ.
    """
    fields = {}
    for name, value in key.items():
        if name in base and name != DEVIATION and base[name] != value:
            fields[name] = (base[name], value)
    if DEVIATION in key or DEVIATION in base:  # also if both deviate alike: other effects of the models are unknown
        fields[DEVIATION] = (base.get(DEVIATION, AS_REQUESTED), key.get(DEVIATION, AS_REQUESTED))
    return fields


def changed(environment: Mapping[str, object], base: Mapping[str, object]) -> dict[str, ValuePair]:
    """Return differences of two environments that do not prevent a comparison: system, Python, library versions, git revision."""
    before, now = _software(base), _software(environment)
    versions = {*before, *now} - {"os", "python", "git"}
    changes = {}
    for name in ("os", "python", *sorted(versions), "git"):
        if before.get(name) != now.get(name):
            changes[name] = (before.get(name), now.get(name))
    return changes


def _software(environment: Mapping[str, object]) -> Json:
    git = _part(environment, "git")
    revision = str(git.get("revision") or "")[:12] or None
    if revision and git.get("dirty"):
        revision += " with uncommitted changes"
    versions = _part(environment, "versions")
    return {**versions, "os": environment.get("os"), "python": environment.get("python"), "git": revision}


SCHEMA_VERSION = 2
"""Of ``comparison.json``. 1: the first, without a number. 2: what was compared with what, settings, and what qualifies."""


WRONG_OUTPUTS = 0.25
"""Share of the baseline's largest output: a row whose outputs differ by more computes something else."""


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
    """The comparable key of where it was timed (:mod:`sweeprof.results.compared_rows`)."""
    settings: Json = field(default_factory=dict)
    """The settings of its config, by dotted key, that differ between rows."""
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

    @property
    def all_warnings(self) -> list[Warning]:
        """Its own warnings, then those of its measurements."""
        found = list(self.warnings)
        for cell in self.cells.values():
            found += cell.measurement.warnings
        return found


def value_of(row: Row, metric: str) -> Number | None:
    """Return the value of a metric in base units; None if the row has none, or one that is not a finite number."""
    cell = row.cells.get(metric)
    if cell is None or cell.measurement.value is None or not math.isfinite(cell.measurement.value):
        return None
    return cell.measurement.value


def best_row(rows: Iterable[Row], metric: str, better: Literal["lower", "higher"]) -> Row | None:
    """Return the first row with the best value of a metric; None if no row has a value."""
    known = [row for row in rows if value_of(row, metric) is not None]
    best = max if better == "higher" else min
    return best(known, key=lambda row: value_of(row, metric) or 0, default=None)


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
    """The settings of the configs, by dotted key, that all rows have in common."""
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
    read_from: Path | None = field(default=None, compare=False)
    """The folder of the sweep; None if the comparison was not read from it."""

    NOT_STORED: ClassVar[tuple[str, ...]] = ("read_from",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", Rows(self.rows))

    @classmethod
    def read(cls, path: str | Path, output: str | Path = "outputs", uri: str | None = None) -> Comparison:
        """Return the comparison of a sweep.

        Args:
            path: the folder of the sweep, its ``comparison.json``, or a name that ``sweeprof compare`` takes: ``last``, ``last~1``,
                ``NAME/last``, ``tag:NAME``, ``mlflow:RUN_ID``.
            output: the folder of all sweeps, in which a name is looked up.
            uri: the address of MLflow; None: ``MLFLOW_TRACKING_URI``, else the database in ``output``.

        Raises:
            Damaged: the file is not a comparison, or comes from a later version.
            UserError: there is no such sweep.
        """
        file = Path(path)
        if file.is_dir():
            file /= "comparison.json"
        if file.is_file():
            comparison = comparison_from(read_json(file))
        else:
            from sweeprof.run import reports  # above this package: what the command line looks names up with

            place = reports.SweepLocations(Path(output).absolute(), uri or os.environ.get("MLFLOW_TRACKING_URI"))
            found = reports.located(os.fspath(path), place, "path")
            comparison = reports.read_sweep(found, os.fspath(path), "path")
            file = found / "comparison.json" if found.is_dir() else found
        folder = file.absolute().parent
        if not (folder / "plan.json").is_file():
            return comparison
        return dataclasses.replace(comparison, read_from=folder)

    @property
    def folder(self) -> Path:
        """The folder of the sweep; raises :class:`UserError` for a comparison that was not read from it."""
        if self.read_from is None:
            raise UserError("this comparison has no folder: it was not read from the folder of a sweep")
        return self.read_from

    @property
    def answer(self) -> str:
        """The answer in words: what is better, by how much and how sure that is, then how many combinations were measured."""
        return answer_of(self)

    def has_wrong_outputs(self, row: Row) -> bool:
        """True if the outputs of a row are NaN, or far from those of its baseline, if that is the same model."""
        if any(warning.code == "outputs_nan" for warning in row.all_warnings):
            return True
        difference = value_of(row, OUTPUT_DIFFERENCE)
        if difference is None or "model" in self.baseline:
            return False
        largest = row.cells[OUTPUT_DIFFERENCE].measurement.detail.get("largest output")
        return isinstance(largest, int | float) and difference > WRONG_OUTPUTS * largest

    def fulfilling(self) -> list[Row]:
        """Return the rows that have values and right outputs and fulfil the constraints."""
        return [row for row in self.rows if row.has_values and not row.misses and not self.has_wrong_outputs(row)]

    def best(self, metric: str) -> Row:
        """Return the row with the best value of a metric, of those that have right outputs and fulfil the constraints of the sweep.

        Raises:
            UserError: there is no such metric, or it has no better direction, or no such row has a value.
        """
        infos = {info.name: info for info in self.metrics}
        if metric not in infos:
            raise UserError([choice_problem("metric", metric, "metric of the sweep", infos)])
        better = infos[metric].better
        if better is None:
            raise UserError([Problem("metric", metric, "has no better direction: neither lower nor higher is better.")])
        best = best_row(self.fulfilling(), metric, better)
        if best is None:
            reasons = [row.reason or "; ".join(row.misses) or reason_of(row, metric) for row in self.rows]
            told = "; ".join(dict.fromkeys(reasons))
            message = f"has no value of a combination with right outputs that fulfils the constraints: {told}."
            raise UserError([Problem("metric", metric, message)])
        return best

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
        """Return the axes with more than one value."""
        return self._varying

    @cached_property  # reports of ten thousand rows ask for it at every row
    def _varying(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.axes if len({axes_key(row.axes.get(axis)) for row in self.rows}) > 1)

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
        ids.setdefault(axes_key(axes), id)
    named = ids.get(axes_key(baseline))
    if named is not None:
        return dict.fromkeys(rows, named)
    baselines: dict[str, str | None] = {}
    for id, axes in rows.items():
        wanted = {key: baseline.get(key, value) for key, value in axes.items()}
        baselines[id] = ids.get(axes_key(wanted))
    return baselines


def axes_key(value: object) -> str:
    """Return a text that equal values of axes have in common, whatever order their mappings are in."""
    return json.dumps(value, sort_keys=True, default=str)


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
        base: Row | None = None
        base_measurements: Mapping[str, Measurement] = {}
        if row.baseline_id and not row.is_baseline:
            base, base_measurements = by_id[row.baseline_id], measurements[row.baseline_id]
        own = measurements[row.combination_id]
        filled.append(compared_row(row, own, base, base_measurements, threshold, thresholds or {}))
    return tuple(filled)


def compared_row(
    row: Row,
    measurements: Mapping[str, Measurement],
    base: Row | None,
    base_measurements: Mapping[str, Measurement],
    threshold: float | None,
    thresholds: Mapping[str, float],
    is_interleaved: bool = True,
) -> Row:
    """Return ``row`` with its cells compared with those of ``base``; ``is_interleaved``: the rounds of both were interleaved."""
    pairing = Pairing()
    warnings = row.warnings
    differs: dict[str, ValuePair] = {}
    if base is not None:
        differs = differing(row.environment, base.environment)
        paired = 0
        apart = []  # rounds that both have, but not from one run of the sweep
        if is_interleaved:
            for number, (session, other) in enumerate(zip(row.sessions, base.sessions, strict=False)):
                if session is None or other is None:
                    continue
                if session == other:
                    paired += 1
                else:
                    apart.append(number)
        is_scattered = paired < MIN_ROUNDS <= paired + len(apart)
        if is_scattered:
            rounds = f"{len(apart)} of {len(apart) + paired} rounds"
            text = f"{rounds} were timed in another run of the sweep than the baseline's: rounds are not paired"
            warnings = (*warnings, Warning("run_apart", text, "measure both again, in a sweep of their own"))
        most_rounds = max(row.most_rounds, base.most_rounds)
        confidence = repeated_confidence(most_rounds) if most_rounds else CONFIDENCE
        is_paired = is_interleaved and not differs and not is_scattered
        pairing = Pairing(is_paired, tuple(differs), frozenset(apart), confidence)
    cells = {}
    for name, measurement in measurements.items():
        own_threshold = thresholds.get(name)
        limit = threshold if own_threshold is None else own_threshold
        cells[name] = compare_cell(measurement, base_measurements.get(name), limit, pairing, own_threshold)
    return dataclasses.replace(
        row,
        cells=cells,
        differs=differs,
        baseline_status=base.status if base else None,
        baseline_is_incomplete=base is not None and base.is_incomplete,
        warnings=warnings,
    )


def comparison_from(data: object) -> Comparison:
    """Return the comparison; fields that this version does not know are ignored.

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
    for place, row in enumerate(comparison.rows):
        for metric in comparison.metrics:
            if metric.name not in row.cells:
                raise damaged(row.cells, f"complete: there is no {metric.name!r}", ["rows", place, "cells"])
    return comparison


# Comparison of two sweeps: their combinations are matched, and other changes are listed.


QUALITY = "quality/"
"""Begins the names of metrics of what a model answers to the test data."""
_IGNORED = ("preload", "preload_for")
"""Settings that change how soon a process starts and nothing that is measured, as for a combination's id."""


def set_against(sweep: Comparison, base: Comparison, label: str) -> Comparison:
    """Return ``sweep`` with every row compared with its counterpart in ``base``: the same combination, else one with the same axes.

    The thresholds are those of ``sweep``, or of ``base`` where it has none: one for all of ``sweep`` holds for all metrics.
    """
    partners = _partners(sweep, base)
    threshold, thresholds = sweep.threshold, sweep.thresholds
    if threshold is None:
        threshold, thresholds = base.threshold, {**base.thresholds, **sweep.thresholds}
    rows = []
    for row in sweep.rows:
        named = dataclasses.replace(row, baseline_id=None, environment=_environment(sweep, row))
        partner = partners.get(row.combination_id)
        base_measurements: dict[str, Measurement] = {}
        if partner is not None:
            named = dataclasses.replace(named, baseline_id=f"{base.sweep_id}/{partner.combination_id}")
            base_measurements = _measured(partner)
            partner = dataclasses.replace(partner, environment=_environment(base, partner))
        compared = compared_row(
            named, _measured(row), partner, base_measurements, threshold, thresholds, is_interleaved=False
        )
        if partner is not None and _have_other_data(row, partner):
            for name, cell in compared.cells.items():
                if name.startswith(QUALITY) and cell.base is not None and cell.measurement.value is not None:
                    compared.cells[name] = dataclasses.replace(
                        cell, verdict="not_comparable", verdict_reason="different_data"
                    )
        rows.append(compared)
    matched = {partner.combination_id for partner in partners.values()}
    own_metrics = {info.name for info in sweep.metrics}
    measured = set()
    for row in partners.values():
        for name, cell in row.cells.items():
            if row.has_values and cell.measurement.value is not None:
                measured.add(name)
    against = ComparedSweep(
        label=label,
        sweep_id=base.sweep_id,
        name=base.name,
        created=base.created,
        software=changed(sweep.environment, base.environment),
        settings=_settings(sweep, base, partners),
        absent=tuple(row.axes for row in base.rows if row.combination_id not in matched),
        absent_metrics=tuple(info for info in base.metrics if info.name in measured - own_metrics),
    )
    return dataclasses.replace(sweep, rows=tuple(rows), against=against, threshold=threshold, thresholds=thresholds)


def _have_other_data(row: Row, partner: Row) -> bool:
    """Return True if two rows were evaluated on different samples; False if that is unknown."""
    return None not in (row.test_data, partner.test_data) and row.test_data != partner.test_data


def _measured(row: Row) -> dict[str, Measurement]:
    return {name: cell.measurement for name, cell in row.cells.items()}


def _environment(comparison: Comparison, row: Row) -> Json:
    """Return the comparable key of a row, threads included; of a sweep that did not keep it by row, the whole sweep's."""
    key = row.environment
    if not key and comparison.environment:
        key = key_of([comparison.environment])
    threads = setting(comparison, row, THREADS)
    if threads is None:
        return key
    return {**key, "threads": threads}


def setting(comparison: Comparison, row: Row, key: str) -> object:
    """Return the value of a dotted key in the config of a row; None if the comparison does not contain it."""
    return row.axes.get(key, row.settings.get(key, comparison.settings.get(key)))


def _partners(sweep: Comparison, base: Comparison) -> dict[str, Row]:
    """Return the rows of ``base`` by the ids of their counterparts: those of the same id, else of the same values of all axes.

    Config groups and mappings that only one sweep has as an axis are compared by the settings below them.
    """
    axes = sorted({*sweep.axes, *base.axes})
    one_sided = {*sweep.axes} ^ {*base.axes}

    def place(comparison: Comparison, row: Row) -> str:
        values = []
        for axis in axes:
            value = setting(comparison, row, axis)
            if axis in one_sided:
                settings = {**comparison.settings, **row.settings}.items()
                value = {key: inner for key, inner in settings if key.startswith(f"{axis}.")} or value
            values.append(value)
        return axes_key(values)

    own_ids = {row.combination_id for row in sweep.rows}
    by_id: dict[str, Row] = {}
    by_axes: dict[str, Row] = {}
    for row in base.rows:
        by_id[row.combination_id] = row
        if row.combination_id not in own_ids:
            by_axes.setdefault(place(base, row), row)
    partners = {}
    for row in sweep.rows:
        partner = by_id.get(row.combination_id) or by_axes.pop(place(sweep, row), None)
        if partner is not None:
            partners[row.combination_id] = partner
    return partners


def _settings(sweep: Comparison, base: Comparison, partners: Mapping[str, Row]) -> dict[str, tuple[ValuePair, ...]]:
    """Return the differences of the test data and of the configs of matched combinations, by dotted key."""
    known: set[str] = set()
    for comparison in (sweep, base):
        known.update(comparison.settings)
        for row in comparison.rows:
            known.update(row.settings)
    keys = [key for key in sorted(known) if set(key.split(".")).isdisjoint(_IGNORED)]
    changes: list[tuple[str, ValuePair]] = []
    data_changes: list[tuple[str, ValuePair]] = []
    for row in sweep.rows:
        partner = partners.get(row.combination_id)
        if partner is None:
            continue
        if _have_other_data(row, partner):
            data_changes.append(("test data", (partner.test_data, row.test_data)))
        if partner.combination_id == row.combination_id or not sweep.settings or not base.settings:
            continue  # one id has one config
        for key in keys:
            before = partner.settings.get(key, base.settings.get(key))
            now = row.settings.get(key, sweep.settings.get(key))
            if before != now:
                changes.append((key, (before, now)))
    return {key: tuple(pairs) for key, pairs in distinct([*data_changes, *changes]).items()}
