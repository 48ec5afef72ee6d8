"""A comparison as the plain data that the scripts of the page read: small enough for ten thousand combinations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Any, get_args

from sweeprof.numbers import FIXED_NAMES, fixed_factor, text_unit
from sweeprof.report.answer import NOISE, answer
from sweeprof.report.cells import detail_text, rounds_text
from sweeprof.report.columns import baseline_text, is_optional, metric_title, shown_metrics
from sweeprof.report.explore.overview import verdict_lines
from sweeprof.report.pages import StringTable
from sweeprof.report.table import sorted_rows
from sweeprof.results.compare import Cell, Comparison, Row, reason_of, value_of
from sweeprof.results.measurement import Measurement, MetricInfo, Number
from sweeprof.results.record import Json, Record
from sweeprof.results.verdicts import DETERMINISTIC, REASONS, Verdict
from sweeprof.text import axis_number, axis_text, one_line, shortened

Samples = Mapping[str, Sequence[Sequence[float]]]
"""Milliseconds of single steps, one list per round, by combination id."""

_LONGEST = 400
"""Characters of a reason."""
_EXACT, _TESTED, _SHOWN = 15, 6, 5
"""Significant digits of what is the same each time, of values and ratios, and of the ends of intervals."""
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_REASONS = tuple(REASONS)


class Writer:
    """The rows of a comparison, and what they refer to by its position."""

    def __init__(
        self,
        comparison: Comparison,
        rows: Sequence[Row],
        metrics: Sequence[MetricInfo],
        samples: Samples,
        is_whole: bool,
    ) -> None:
        self.reasons, self.tracebacks = StringTable(), StringTable()
        self.values: dict[str, list[Any]] = {}
        """The different values of every axis, in the order of the sweep."""
        self._at: dict[str, dict[str, int]] = {}
        for axis in comparison.axes:
            spelled = {_spelled(row.axes[axis]): row.axes[axis] for row in comparison.rows if axis in row.axes}
            self.values[axis] = list(spelled.values())
            self._at[axis] = {text: place for place, text in enumerate(spelled)}
        self._rows, self._metrics, self._samples, self._is_whole = rows, metrics, samples, is_whole
        self._places = {row.combination_id: place for place, row in enumerate(rows)}
        self.command_start = commonprefix([row.command for row in rows])  # noqa: RUF071 – no paths

    def row(self, row: Row) -> Json:
        """One row.

        ``id``; ``at``: for every axis the position in its values, or -1; ``status``; ``reason``, a position in ``reasons``, or -1;
        ``command``: what follows ``command_start``; ``wall_s``. By the position of a metric, as text: ``values``, ``[value]`` or
        ``[value, low, high]`` with the 95 % interval; ``why``, of a metric without a value, a position in ``reasons``.
        ``samples``: one list per round of milliseconds of single steps, sorted; empty for a round that failed.

        Only where there is something to say: ``within``, the metrics whose interval is that within one process; ``noisy``,
        ``warnings``, positions in ``reasons``; ``misses``, whether it misses a constraint, so that it is on no front;
        ``incomplete``, of a row whose ``status`` is not ``ok`` although it has complete rounds, the text ``2 of 3 rounds``; in a
        page that is not too large for them ``details``, further figures by metric, and ``failures``, lists of source, log or
        null, and position in ``tracebacks`` or -1.
        """
        known: list[tuple[str, MetricInfo, Measurement]] = []
        why: dict[str, int] = {}
        for place, info in enumerate(self._metrics):
            if value_of(row, info.name) is not None:
                known.append((str(place), info, row.cells[info.name].measurement))
            elif not is_optional(info.name):
                why[str(place)] = self._reason(reason_of(row, info.name))
        warnings = [*row.warnings, *(warning for cell in row.cells.values() for warning in cell.measurement.warnings)]
        rare: Json = {
            "within": [int(place) for place, _, m in known if m.has_interval_within_process],
            "noisy": list(dict.fromkeys(self._reason(one.text) for one in warnings if one.code in NOISE)),
            "warnings": [self._reason(f"{warning.text} → {warning.advice}") for warning in row.warnings],
            "misses": bool(row.misses),
            "incomplete": rounds_text(row) if row.is_incomplete else None,
        }
        if self._is_whole:
            rare["details"] = {place: text for place, _, m in known if (text := detail_text(m))}
            rare["failures"] = [
                [one.source, one.log, self.tracebacks.place(one.traceback) if one.traceback else -1]
                for one in row.failures
            ]
        return {
            "id": row.combination_id,
            "at": [self._at[axis][_spelled(row.axes[axis])] if axis in row.axes else -1 for axis in self.values],
            "status": row.status,
            "reason": -1 if row.status == "ok" else self._reason(row.reason or "no reason was given"),
            "command": row.command.removeprefix(self.command_start),
            "wall_s": _short(row.wall_s, _SHOWN),
            "values": {place: _value(measured) for place, _, measured in known},
            "why": why,
            "samples": [*self._samples.get(row.combination_id, ())],
            **{key: value for key, value in rare.items() if value},
        }

    def baseline(self, comparison: Comparison, key: str, text: str) -> Json:
        """A comparison with one baseline, of the same rows.

        ``key``: of the address; ``text``: the name of the baseline; ``finding``, ``rest``: the answer; ``counts``: a line of
        verdicts per metric; ``bases``: for each row the position of its baseline, its own for a baseline, else -1; ``cells``:
        by metric for each row 0, or ratio, verdict, reason, low and high end of the ratio's interval, rounds needed, as far as
        there are any; verdict and reason are positions in ``verdict_names`` and ``verdict_reasons``, or -1.
        """
        found = answer(comparison)
        rows = {row.combination_id: row for row in comparison.rows}
        ordered = [rows[row.combination_id] for row in self._rows]
        cells = {}
        for place, info in enumerate(self._metrics):
            column = [0 if row.is_baseline else _packed(row.cells.get(info.name)) for row in ordered]
            if any(column):
                cells[str(place)] = column
        return {
            "key": key,
            "text": text if cells else None,
            "finding": found.finding,
            "rest": found.rest,
            "counts": verdict_lines(comparison),
            "bases": [self._places.get(row.baseline_id or "", -1) for row in ordered],
            "cells": cells,
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


def _packed(cell: Cell | None) -> list[float | int | None] | int:
    if cell is None or cell.base is None or cell.measurement.value is None:
        return 0
    verdict = -1 if cell.verdict is None else _VERDICTS.index(cell.verdict)
    reason = -1 if cell.verdict_reason not in REASONS else _REASONS.index(cell.verdict_reason)
    packed: list[float | int | None] = [_short(cell.ratio, _TESTED), verdict, reason]
    packed += [_short(end, _SHOWN) for end in cell.ratio_interval or ()]
    return packed if cell.rounds_needed is None else [*packed, cell.rounds_needed]


MOST_NUMBERS = 70_000
"""Values, ends of intervals, and figures of verdicts against the own baseline; the metrics that the tables show stay in any case,
and further ones as far as there is room."""

_NO_SAMPLES: Samples = {}


def page_data(
    comparison: Comparison,
    samples: Samples = _NO_SAMPLES,
    is_whole: bool = False,
    saved: Sequence[Comparison] = (),
) -> Json:
    """Return the content of ``window.sweeprof.data``: JSON, in which every text is a name or a reason, to be shown as text.

    - ``name``; ``own_axes``: the axes that the own baseline names.
    - ``axes``: ``key``; ``values``, texts in the order of the sweep; ``numbers``, the same as numbers, or null where one is none;
      ``varies``.
    - ``metrics``, those of the tables first: ``name``; ``title``; ``unit`` of all numbers below, e.g. ``ms`` or ``MiB``; ``base``,
      ``factor``: a number over the factor is in the unit ``base``, for :func:`sweeprof.numbers.rounded`; ``better``;
      ``definition``; ``headline``, whether the tables show it. ``left_out``: titles of further ones.
    - ``reasons``, ``tracebacks``: texts that rows name by their position; ``command_start``: what the commands of all rows
      begin with.
    - ``baselines``, the own first: see :meth:`sweeprof.report.explore.data.Writer.baseline`; ``verdict_names``;
      ``verdict_reasons``: codes with their meanings.
    - ``rows``, in the order of the tables: see :meth:`sweeprof.report.explore.data.Writer.row`.

    Args:
        comparison: what was measured.
        samples: see :func:`sweeprof.report.explore.data.thinned_samples`.
        is_whole: whether rows have their further figures and tracebacks.
        saved: the same sweep compared with others, whose baselines come after the own one.
    """
    rows = sorted_rows(comparison)
    metrics, left_out = _metrics(comparison)
    varying = comparison.varying_axes()
    writer = Writer(comparison, rows, metrics, samples, is_whole)
    shown = {info.name for info in shown_metrics(comparison)}
    baselines = [writer.baseline(comparison, "", baseline_text(comparison))]
    baselines += [writer.baseline(one, baseline_text(one), baseline_text(one)) for one in saved]
    return {
        "name": one_line(comparison.name),
        "own_axes": list(comparison.baseline),
        "axes": [_axis(axis, values, axis in varying) for axis, values in writer.values.items()],
        "metrics": [_metric(comparison, info, info.name in shown) for info in metrics],
        "left_out": [metric_title(info, rows) for info in left_out],
        "baselines": baselines,
        "rows": [writer.row(row) for row in rows],
        "reasons": writer.reasons.values,
        "tracebacks": writer.tracebacks.values,
        "command_start": writer.command_start,
        "verdict_names": list(_VERDICTS),
        "verdict_reasons": [[code, meaning] for code, meaning in REASONS.items()],
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
    cells = [row.cells[info.name] for row in comparison.rows if value_of(row, info.name) is not None]
    return sum(
        1 + 2 * (c.measurement.interval is not None) + 3 * (c.ratio is not None) + 2 * (c.ratio_interval is not None)
        for c in cells
    )


def _metric(comparison: Comparison, info: MetricInfo, is_shown: bool) -> Json:
    return {
        "name": info.name,
        "title": metric_title(info, comparison.rows),
        "unit": FIXED_NAMES.get(info.unit, one_line(info.unit)),
        "base": text_unit(info.name, info.unit),
        "factor": fixed_factor(info.unit),
        "better": info.better,
        "definition": one_line(info.definition),
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
