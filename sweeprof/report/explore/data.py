"""A comparison as the plain data that the scripts of the page read: small enough for a thousand combinations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from sweeprof.report.cells import axis_number, axis_text, one_line, reason_of, rounds_text, shortened, value_of
from sweeprof.report.columns import baseline_text, is_optional, metric_title, shown_metrics
from sweeprof.report.pages import StringTable
from sweeprof.report.table import sorted_rows
from sweeprof.report.units import FIXED_NAMES, fixed_factor, text_unit
from sweeprof.results.compare import Cell, Comparison, Row, find_baselines
from sweeprof.results.measurement import Measurement, MetricInfo, Number
from sweeprof.results.record import Json, Record
from sweeprof.results.verdicts import DETERMINISTIC, MIN_ROUNDS, REASONS, uncertainty

Samples = Mapping[str, Sequence[Sequence[float]]]
"""Milliseconds of single steps, one list per round, by combination id."""

_LONGEST = 400
"""Characters of a reason."""
_EXACT, _TESTED, _SHOWN = 15, 6, 5
"""Significant digits of what is the same each time, of what verdicts are called of, and of what is only shown."""


class Writer:
    """The rows of a comparison, and what they speak of by its position."""

    def __init__(
        self,
        comparison: Comparison,
        rows: Sequence[Row],
        metrics: Sequence[MetricInfo],
        samples: Samples,
        with_commands: bool,
    ) -> None:
        self.reasons, self.environments, self._sessions = StringTable(), StringTable(), StringTable()
        self.values: dict[str, list[Any]] = {}
        """The different values of every axis, in the order of the sweep."""
        self._at: dict[str, dict[str, int]] = {}
        for axis in comparison.axes:
            spelled = {_spelled(row.axes[axis]): row.axes[axis] for row in comparison.rows if axis in row.axes}
            self.values[axis] = list(spelled.values())
            self._at[axis] = {text: place for place, text in enumerate(spelled)}
        self._places = {row.combination_id: place for place, row in enumerate(rows)}
        self._metrics, self._samples, self._with_commands = metrics, samples, with_commands
        self.command_start = commonprefix([row.command for row in rows]) if with_commands else ""  # noqa: RUF071 – no paths
        self._bases = find_baselines(comparison.baseline, {row.combination_id: row.axes for row in rows})
        self._is_apart = comparison.against is not None
        self._has_sessions = len({name for row in rows for name in row.sessions if name is not None}) > 1

    def row(self, row: Row) -> Json:
        """One row.

        ``id``; ``at``: for every axis the position in its values, or -1; ``status``; ``reason``, a position in ``reasons``, or -1;
        ``base``: the position of the row that it was compared with, its own for a baseline, else -1. By the position of a metric,
        as text: ``values``, ``[value]`` or ``[value, low, high]`` with the 95 % interval; ``why``, of a metric without a value, a
        position in ``reasons``; ``rounds``, the estimate of each round by its number, null for one that failed and ``"?"`` for one
        that is not finite. ``samples``: one list per round of milliseconds of single steps, sorted; empty for a round that failed.

        Only where there is something to say: ``uncertain``, by metric the code of why a value without rounds is not exact;
        ``paired``, as ``rounds``, what the pairs of an interleaved run with the row ``base`` give; ``calibrated``, by metric
        estimates in units of ``kernel``; ``env``, a position in ``environments``; ``sessions``, for each round which run of the
        sweep timed it, or null; ``alone``, whether its outputs are not its baseline's, so that it is compared with nothing;
        ``misses``, whether it misses a constraint, so that it is on no front; ``incomplete``, of a row whose ``status`` is not
        ``ok`` although it has complete rounds, the text ``2 of 3 rounds``; ``cells``, of a comparison with another sweep, by
        metric ``[ratio, low, high, verdict, reason, rounds needed]``; ``command``, what comes after ``command_start``, ``wall_s``
        and ``warnings``, positions in ``reasons``, where the page does not have every row in full.
        """
        known: list[tuple[str, MetricInfo, Measurement]] = []
        why: dict[str, int] = {}
        for place, info in enumerate(self._metrics):
            if value_of(row, info.name) is not None:
                known.append((str(place), info, row.cells[info.name].measurement))
            elif not is_optional(info.name):
                why[str(place)] = self._reason(reason_of(row, info.name))
        return {
            "id": row.combination_id,
            "at": [self._at[axis][_spelled(row.axes[axis])] if axis in row.axes else -1 for axis in self.values],
            "status": row.status,
            "reason": -1 if row.status == "ok" else self._reason(row.reason or "no reason was given"),
            "base": self._places.get(row.baseline_id or "", -1),
            "values": {place: _value(measured) for place, _, measured in known},
            "why": why,
            "rounds": {p: _by_round(m.by_round(), m.unit) for p, _, m in known if m.rounds},
            "samples": [*self._samples.get(row.combination_id, ())],
            **{
                key: value
                for key, value in self._rare(row, known).items()
                if not (value is False or value in (None, [], {}))
            },
        }

    def _rare(self, row: Row, known: Sequence[tuple[str, MetricInfo, Measurement]]) -> Json:
        """Return the fields that most rows lack."""
        calibrated = {p: [_short(value, _TESTED) for value in m.calibrated] for p, _, m in known if m.calibrated}
        kernels = [m.detail.get("kernel") for _, _, m in known if m.calibrated]
        fields = tuple((field, _spelled(value)) for field, value in sorted(row.environment.items()))
        return {
            "uncertain": {place: code for place, _, m in known if (code := uncertainty(m)) is not None},
            "paired": {p: _by_round(m.by_round("paired"), m.unit) for p, _, m in known if m.paired},
            "calibrated": calibrated,
            "kernel": kernels[0] if kernels else None,
            "env": self.environments.place(fields) if fields else None,
            "sessions": [s if s is None else self._sessions.place(s) for s in row.sessions]
            if self._has_sessions
            else [],
            "alone": not self._is_apart and row.baseline_id is None and self._bases[row.combination_id] is not None,
            "misses": bool(row.misses),
            "incomplete": rounds_text(row) if row.is_incomplete else None,
            "cells": {p: _judged(row.cells[info.name]) for p, info, _ in known} if self._is_apart else {},
            **(self._told(row) if self._with_commands else {}),
        }

    def _told(self, row: Row) -> Json:
        warnings = [self._reason(f"{warning.text} → {warning.advice}") for warning in row.warnings]
        return {
            "command": row.command.removeprefix(self.command_start),
            "wall_s": _short(row.wall_s, _SHOWN),
            "warnings": warnings,
        }

    def _reason(self, text: str) -> int:
        return self.reasons.place(shortened(one_line(text), _LONGEST))


def _spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _short(value: Number | None, digits: int) -> float | None:
    """Rounded to significant digits; a whole number where it is one, which is shorter as JSON."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits - 1}e}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _value(measured: Measurement) -> list[float | None]:
    factor = fixed_factor(measured.unit)
    digits = _EXACT if measured.estimator in DETERMINISTIC else _TESTED
    assert measured.value is not None
    return [_short(measured.value * factor, digits), *(_short(end * factor, _SHOWN) for end in measured.interval or ())]


def _by_round(estimates: Mapping[int, float], unit: str) -> list[float | str | None]:
    factor = fixed_factor(unit)
    shortened = {number: _short(value * factor, _TESTED) for number, value in estimates.items()}
    untold = {number: "?" if value is None else value for number, value in shortened.items()}
    return [untold.get(number) for number in range(max(untold) + 1)]


def _judged(cell: Cell) -> list[Any]:
    ends = cell.ratio_interval or (None, None)
    figures = [_short(number, _TESTED) for number in (cell.ratio, *ends)]
    return [*figures, cell.verdict, cell.verdict_reason, cell.rounds_needed]


MOST_NUMBERS = 70_000
"""Values, ends of intervals, and estimates of rounds and pairs that the page takes; the metrics that the tables show stay in
any case, and further ones as far as there is room."""

_NO_SAMPLES: Samples = {}


def page_data(comparison: Comparison, samples: Samples = _NO_SAMPLES, with_commands: bool = False) -> Json:
    """Return the content of ``window.sweeprof.data``: JSON, in which every text is a name or a reason, to be shown as text.

    - ``name``; ``against``: what the other sweep is called that was compared with, or null; ``baseline``: text by axis;
      ``baseline_text``; ``min_rounds``: fewer are not compared.
    - ``axes``: ``key``; ``values``, texts in the order of the sweep; ``numbers``, the same as numbers, or null where one is none;
      ``varies``.
    - ``metrics``, those of the tables first: ``name``; ``title``; ``unit`` of all numbers below, e.g. ``ms`` or ``MiB``; ``base``,
      ``factor``: a number over the factor is in the unit ``base``, for :func:`sweeprof.report.units.scaled`; ``better``;
      ``definition``; ``threshold`` or null; ``headline``, whether the tables show it. ``left_out``: titles of further ones.
    - ``reasons``: texts that rows name by their position; ``verdicts``: the meaning of a verdict's reason; ``environments``: by
      field of the comparable key its JSON text; ``command_start``: what the commands of all rows begin with.
    - ``rows``, in the order of the tables: see :meth:`sweeprof.report.explore.data.Writer.row`.

    Args:
        comparison: what was measured.
        samples: see :func:`sweeprof.report.explore.data.thinned_samples`.
        with_commands: whether every row has what repeats it, and its warnings.
    """
    rows = sorted_rows(comparison)
    metrics, left_out = _metrics(comparison)
    varying = comparison.varying_axes()
    writer = Writer(comparison, rows, metrics, samples, with_commands)
    shown = {info.name for info in shown_metrics(comparison)}
    return {
        "name": one_line(comparison.name),
        "against": baseline_text(comparison) if comparison.against else None,
        "baseline": {axis: axis_text(value) for axis, value in comparison.baseline.items()},
        "baseline_text": baseline_text(comparison),
        "axes": [_axis(axis, values, axis in varying) for axis, values in writer.values.items()],
        "metrics": [_metric(comparison, info, info.name in shown) for info in metrics],
        "left_out": [metric_title(info, rows) for info in left_out],
        "rows": [writer.row(row) for row in rows],
        "reasons": writer.reasons.values,
        "command_start": writer.command_start,
        "environments": [dict(fields) for fields in writer.environments.values],
        "verdicts": REASONS,
        "min_rounds": MIN_ROUNDS,
    }


def embedded(data: Json) -> Json:
    """``data`` as the page holds it: a list per key of its rows, null for a row without it, so that no key is there twice."""
    keys = dict.fromkeys(key for row in data["rows"] for key in row)
    return {**data, "rows": {key: [row.get(key) for row in data["rows"]] for key in keys}}


def _axis(key: str, values: Sequence[Any], varies: bool) -> Json:
    numbers = [axis_number(value) for value in values]
    return {
        "key": one_line(key),
        "values": [axis_text(value) for value in values],
        "numbers": None if None in numbers else numbers,
        "varies": varies,
    }


def _metrics(comparison: Comparison) -> tuple[list[MetricInfo], list[MetricInfo]]:
    """The metrics of the tables and those that any row has a value of; and the ones among them that there is no room for."""
    shown = shown_metrics(comparison)
    room = MOST_NUMBERS - sum(_numbers(comparison, info) for info in shown)
    kept, left_out = list(shown), list[MetricInfo]()
    for info in comparison.metrics:
        if info in shown or not (numbers := _numbers(comparison, info)):
            continue
        room -= numbers
        (kept if room >= 0 else left_out).append(info)
    return kept, left_out


def _numbers(comparison: Comparison, info: MetricInfo) -> int:
    """Return how many numbers the page holds of a metric; zero if no row has a value."""
    known = [row.cells[info.name].measurement for row in comparison.rows if value_of(row, info.name) is not None]
    return sum(1 + 2 * (m.interval is not None) + len(m.rounds) + len(m.paired) + len(m.calibrated) for m in known)


def _metric(comparison: Comparison, info: MetricInfo, is_shown: bool) -> Json:
    return {
        "name": info.name,
        "title": metric_title(info, comparison.rows),
        "unit": FIXED_NAMES.get(info.unit, one_line(info.unit)),
        "base": text_unit(info.name, info.unit),
        "factor": fixed_factor(info.unit),
        "better": info.better,
        "definition": one_line(info.definition),
        "threshold": comparison.threshold_of(info.name),
        "headline": is_shown,
    }


MOST_SAMPLES = 25_000
"""Of all combinations together."""
MOST_OF_ONE = 400
LEAST_OF_A_ROUND = 5
"""The smallest, the largest and the quartiles."""


def room(combinations: int) -> int:
    """Samples that a page of so many combinations takes of each."""
    return min(MOST_OF_ONE, MOST_SAMPLES // max(1, combinations))


def thinned_samples(records: Iterable[Record], most: int) -> list[list[float]]:
    """Milliseconds of single steps, one sorted list per round by its number; empty for a round that was not timed.

    Where there are more than ``most`` in all, those of a round are thinned to evenly spaced ranks, the smallest and the largest
    among them, so that what is drawn of them keeps its shape.

    Args:
        records: of one combination; all but its timing is left alone.
        most: samples in all; a round has five all the same.
    """
    timed = [record for record in records if record.pass_name == "timing" and record.status == "ok"]
    found = {record.round: sorted((record.observations or {}).get("samples", ())) for record in timed}
    each = max(LEAST_OF_A_ROUND, most // max(1, len(found)))
    rounds = (found.get(number, []) for number in range(max(found, default=-1) + 1))
    return [[float(f"{1e3 * seconds:.4g}") for seconds in _spaced(samples, each)] for samples in rounds]


def _spaced(ordered: list[float], most: int) -> list[float]:
    if len(ordered) <= most:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (most - 1))] for place in range(most)]
