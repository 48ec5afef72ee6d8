"""Facts of a comparison that several reports show, and the page's data: rows, samples, and what its charts show at first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from typing import Any, get_args

from sweeprof.numbers import FIXED_NAMES, fixed_factor, text_unit
from sweeprof.report.answer import answer
from sweeprof.report.columns import baseline_text, detail_text, is_optional, metric_title, rounds_text, shown_metrics
from sweeprof.report.pictures import DASHES, MARKERS, OTHER_COLOUR, PALETTE
from sweeprof.report.summary import NOISE
from sweeprof.report.table import sorted_rows
from sweeprof.report.view import StringTable
from sweeprof.results.compared_rows import Comparison, Row, axes_key, reason_of, value_of
from sweeprof.results.differences import Cell, Verdict
from sweeprof.results.measurement import Measurement, MetricInfo, Number
from sweeprof.results.record import Json, Record
from sweeprof.results.verdicts import DETERMINISTIC, REASONS
from sweeprof.text import axis_number, axis_text, one_line, shortened

# The data that the scripts of the page read: small enough for ten thousand combinations


SampleLists = Mapping[str, Sequence[Sequence[float]]]
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
        samples: SampleLists,
        is_whole: bool,
    ) -> None:
        self.reasons, self.tracebacks = StringTable(), StringTable()
        self.values: dict[str, list[Any]] = {}
        """The different values of every axis, in the order of the sweep."""
        self._at: dict[str, dict[str, int]] = {}
        for axis in comparison.axes:
            known = {axes_key(row.axes[axis]): row.axes[axis] for row in comparison.rows if axis in row.axes}
            self.values[axis] = list(known.values())
            self._at[axis] = {text: place for place, text in enumerate(known)}
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
        values: Json = {}
        details: Json = {}
        why: dict[str, int] = {}
        within = []
        for place, info in enumerate(self._metrics):
            if value_of(row, info.name) is not None:
                measurement = row.cells[info.name].measurement
                values[str(place)] = _value(measurement)
                if self._is_whole:
                    details[str(place)] = detail_text(measurement)
                if measurement.has_interval_within_process:
                    within.append(place)
            elif not is_optional(info.name):
                why[str(place)] = self._reason(reason_of(row, info.name))
        rare: Json = {
            "within": within,
            "noisy": list(dict.fromkeys(self._reason(one.text) for one in row.all_warnings if one.code in NOISE)),
            "warnings": [self._reason(f"{warning.text} → {warning.advice}") for warning in row.warnings],
            "misses": bool(row.misses),
            "incomplete": rounds_text(row) if row.is_incomplete else None,
        }
        if self._is_whole:
            rare["details"] = {place: text for place, text in details.items() if text}
            rare["failures"] = []
            for failure in row.failures:
                traceback = self.tracebacks.place(failure.traceback) if failure.traceback else -1
                rare["failures"].append([failure.source, failure.log, traceback])
        return {
            "id": row.combination_id,
            "at": [self._at[axis][axes_key(row.axes[axis])] if axis in row.axes else -1 for axis in self.values],
            "status": row.status,
            "reason": -1 if row.status == "ok" else self._reason(row.reason or "no reason was given"),
            "command": row.command.removeprefix(self.command_start),
            "wall_s": _short(row.wall_s, _SHOWN),
            "values": values,
            "why": why,
            "samples": [*self._samples.get(row.combination_id, ())],
            **{key: value for key, value in rare.items() if value},
        }

    def baseline(self, comparison: Comparison, key: str, text: str) -> Json:
        """A comparison with one baseline, of the same rows.

        ``key``: of the address; ``text``: the name of the baseline; ``finding``, ``rest``: the answer; ``bases``: for each row the
        position of its baseline, its own for a baseline, else -1; ``cells``: by metric for each row 0, or ratio, verdict, reason,
        low and high end of the ratio's interval, rounds needed, as far as there are any; verdict and
        reason are positions in ``verdict_names`` and ``verdict_reasons``, or -1.
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
            "bases": [self._places.get(row.baseline_id or "", -1) for row in ordered],
            "cells": cells,
        }

    def _reason(self, text: str) -> int:
        return self.reasons.place(shortened(one_line(text), _LONGEST))


def _short(value: Number | None, digits: int) -> float | None:
    """Rounded to significant digits; a whole number where it is one, which is shorter as JSON."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits - 1}e}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _value(measured: Measurement) -> list[float | None]:
    assert measured.value is not None
    factor = fixed_factor(measured.unit)
    digits = _EXACT if measured.estimator in DETERMINISTIC else _TESTED
    found = [_short(measured.value * factor, digits)]
    if measured.interval is not None:
        found += [_short(end * factor, _SHOWN) for end in measured.interval]
    return found


def _packed(cell: Cell | None) -> list[float | int | None] | int:
    if cell is None or cell.base is None or cell.measurement.value is None:
        return 0
    verdict = -1 if cell.verdict is None else _VERDICTS.index(cell.verdict)
    reason = -1 if cell.verdict_reason not in REASONS else _REASONS.index(cell.verdict_reason)
    packed: list[float | int | None] = [_short(cell.ratio, _TESTED), verdict, reason]
    if cell.ratio_interval is not None:
        packed += [_short(end, _SHOWN) for end in cell.ratio_interval]
    if cell.rounds_needed is not None:
        packed.append(cell.rounds_needed)
    return packed


MOST_NUMBERS = 70_000
"""Values, ends of intervals, and figures of verdicts against the own baseline; the metrics that the tables show stay in any case,
and further ones as far as there is room."""

NO_SAMPLES: SampleLists = {}


def page_data(
    comparison: Comparison,
    samples: SampleLists = NO_SAMPLES,
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
    - ``baselines``, the own first: see :meth:`sweeprof.report.explore.Writer.baseline`; ``verdict_names``;
      ``verdict_reasons``: codes with their meanings.
    - ``rows``, in the order of the tables: see :meth:`sweeprof.report.explore.Writer.row`.

    Args:
        comparison: what was measured.
        samples: see :func:`sweeprof.report.explore.thinned_samples`.
        is_whole: whether rows have their further figures and tracebacks.
        saved: the same sweep compared with others, whose baselines come after the own one.
    """
    rows = sorted_rows(comparison)
    metrics, left_out = _metrics(comparison)
    varying = comparison.varying_axes()
    writer = Writer(comparison, rows, metrics, samples, is_whole)
    shown = {info.name for info in shown_metrics(comparison)}
    axes = []
    for axis, values in writer.values.items():
        numbers = list(map(axis_number, values))
        axes.append(
            {
                "key": one_line(axis),
                "values": list(map(axis_text, values)),
                "numbers": None if None in numbers else numbers,
                "varies": axis in varying,
            }
        )
    described = []
    for info in metrics:
        unit = FIXED_NAMES.get(info.unit, one_line(info.unit))
        described.append(
            {
                "name": info.name,
                "title": metric_title(info, comparison.rows),
                "unit": unit,
                "base": text_unit(info.name, info.unit),
                "factor": fixed_factor(info.unit),
                "better": info.better,
                "definition": one_line(info.definition),
                "headline": info.name in shown,
            }
        )
    baselines = [writer.baseline(comparison, "", baseline_text(comparison))]
    for one in saved:
        text = baseline_text(one)
        baselines.append(writer.baseline(one, text, text))
    return {
        "name": one_line(comparison.name),
        "own_axes": list(comparison.baseline),
        "axes": axes,
        "metrics": described,
        "left_out": [metric_title(info, rows) for info in left_out],
        "baselines": baselines,
        "rows": list(map(writer.row, rows)),
        "reasons": writer.reasons.values,
        "tracebacks": writer.tracebacks.values,
        "command_start": writer.command_start,
        "verdict_names": list(_VERDICTS),
        "verdict_reasons": list(map(list, REASONS.items())),
    }


def embedded(data: Json) -> Json:
    """``data`` as the page holds it: a list per key of its rows, null for a row without it, so that no key is there twice."""
    keys = dict.fromkeys(key for row in data["rows"] for key in row)
    return {**data, "rows": {key: [row.get(key) for row in data["rows"]] for key in keys}}


def _metrics(comparison: Comparison) -> tuple[list[MetricInfo], list[MetricInfo]]:
    """The metrics of the tables and those that any row has a value of; and the ones among them that there is no room for."""
    kept = list(shown_metrics(comparison))
    room = MOST_NUMBERS - sum(_numbers(comparison, info) for info in kept)
    left_out: list[MetricInfo] = []
    for info in comparison.metrics:
        numbers = _numbers(comparison, info)
        if info in kept or not numbers:
            continue
        room -= numbers
        if room >= 0:
            kept.append(info)
        else:
            left_out.append(info)
    return kept, left_out


def _numbers(comparison: Comparison, info: MetricInfo) -> int:
    """Return how many numbers the page holds of a metric; zero if no row has a value."""
    numbers = 0
    for row in comparison.rows:
        if value_of(row, info.name) is None:
            continue
        cell = row.cells[info.name]
        numbers += 1 + 2 * (cell.measurement.interval is not None)
        numbers += 3 * (cell.ratio is not None) + 2 * (cell.ratio_interval is not None)
    return numbers


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
    found: dict[int, list[float]] = {}
    for record in records:
        if record.pass_name == "timing" and record.status == "ok":
            found[record.round] = sorted((record.observations or {}).get("samples", ()))
    each = max(LEAST_OF_A_ROUND, most // max(1, len(found)))
    rounds = []
    for number in range(max(found, default=-1) + 1):
        samples = found.get(number, [])
        if len(samples) > each:
            samples = [samples[round(place * (len(samples) - 1) / (each - 1))] for place in range(each)]
        rounds.append([float(f"{1e3 * seconds:.4g}") for seconds in samples])
    return rounds


# The charts of the page, their initial state, and the colours that they share with the pictures.


PageData = Mapping[str, Any]
"""What :func:`sweeprof.report.explore.page_data` gives."""

_TIMES = ("latency/iteration", "latency/forward", "generation/time_per_token", "throughput/samples_per_s")
_PER_SAMPLE = "latency/per_sample"
_AGAINST_TIME = (
    "generation/decode_throughput",
    "quality/accuracy",
    "memory/cuda_allocated_peak_bytes",
    "memory/alloc_peak_bytes",
    "memory/added_bytes",
    "memory/process_peak_bytes",
    "memory/rss_peak_bytes",
    "params/total",
    "compute/macs_per_sample",
)
"""What is weighed against time, the first that differs between combinations and that half of those with a time have."""
_COLOURED = ("backend", "model")
_BATCH = "batch_size"


def charts(data: PageData, pareto: Sequence[str] = ()) -> dict[str, Any]:
    """``figures``: by chart that has something to show, what is chosen at first; ``look``: colours, dashes, markers.

    Axes and metrics are places in ``data``. ``scaling`` has ``axis``, ``metric``; ``pareto`` has ``x``, ``y``, metrics; ``heatmap``
    has ``x``, ``y``, axes, and ``metric``; ``samples`` has ``axis``, over which combinations stand side by side. No figures: there
    is nothing to draw.

    Args:
        data: of the page.
        pareto: the metrics that the sweep itself asks a front of.
    """
    axes, metrics = data["axes"], data["metrics"]
    varying = {axis["key"]: place for place, axis in enumerate(axes) if axis["varies"]}
    first_axis = min(varying.values(), default=None)
    # Only rows are drawn that are complete, or have at least one complete round.
    rows = [row for row in data["rows"] if row["status"] == "ok" or "incomplete" in row]
    known: dict[int, dict[str, float]] = {}
    """By metric, values by the id of the row."""
    for place in range(len(metrics)):
        values = {row["id"]: row["values"][str(place)][0] for row in rows if str(place) in row["values"]}
        if values:
            known[place] = values
    differing = [place for place, values in known.items() if len(set(values.values())) > 1]
    # The time of a step, else the first metric that differs, else the first with any value.
    by_name = {metrics[place]["name"]: place for place in known}
    metric = _first_of(_TIMES, by_name, next(iter([*differing, *known]), None))

    figures: dict[str, dict[str, int | None]] = {}
    numeric = [place for place in varying.values() if axes[place]["numbers"] is not None]
    if numeric and metric is not None:
        axis = varying.get(_BATCH)
        figures["scaling"] = {"axis": axis if axis in numeric else numeric[0], "metric": metric}
    judged = {metrics[place]["name"]: place for place in differing if metrics[place]["better"] is not None}
    wanted = [judged[name] for name in pareto if name in judged]
    # A larger batch always takes longer: then it is the time of a sample that is weighed.
    x = _first_of((_PER_SAMPLE, *_TIMES) if _BATCH in varying else _TIMES, judged, min(judged.values(), default=None))
    if len(wanted) >= 2:
        figures["pareto"] = {"x": wanted[0], "y": wanted[1]}
    elif x is not None:
        others = {name: place for name, place in judged.items() if place != x}
        common = {
            name: place for name, place in others.items() if 2 * len(known[x].keys() & known[place]) >= len(known[x])
        }
        y = _first_of(_AGAINST_TIME, common or others, min((common or others).values(), default=None))
        if y is not None:
            figures["pareto"] = {"x": x, "y": y}
    if len(varying) > 1 and metric is not None:
        x = varying.get(_BATCH, max(varying.values()))
        y_axes = {key: place for key, place in varying.items() if place != x}
        figures["heatmap"] = {"x": x, "y": y_axes.get("model", min(y_axes.values())), "metric": metric}
    if varying and any(round for row in rows for round in row["samples"] or ()):
        # What the baseline is chosen by is what differs between those one wants side by side.
        figures["samples"] = {"axis": _first_of((*data["own_axes"], *_COLOURED), varying, first_axis)}
    return {
        "look": {"palette": PALETTE, "other": OTHER_COLOUR, "dashes": DASHES, "markers": MARKERS},
        "colour": _first_of(_COLOURED, varying, first_axis),
        "shape": varying.get("model"),
        "batch": varying.get(_BATCH),
        "figures": figures,
    }


def _first_of(names: Iterable[str], places: Mapping[str, int], default: int | None) -> int | None:
    """Return the place of the first name that has one."""
    for name in names:
        if name in places:
            return places[name]
    return default
