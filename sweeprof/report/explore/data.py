"""A comparison as the plain data that the scripts of the page read: small enough for a thousand combinations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sweeprof.report.cells import axis_number, axis_text, one_line, value_of
from sweeprof.report.columns import baseline_text, metric_title, shown_metrics
from sweeprof.report.explore.rows import Samples, Writer
from sweeprof.report.table import sorted_rows
from sweeprof.report.units import FIXED_NAMES, fixed_factor, text_unit
from sweeprof.results.compare import Comparison
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Json, Record
from sweeprof.results.verdicts import MIN_ROUNDS, REASONS

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
    - ``rows``, in the order of the tables: see :meth:`sweeprof.report.explore.rows.Writer.row`.

    Args:
        comparison: what was measured.
        samples: see :func:`sweeprof.report.explore.data.thinned`.
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


def thinned(records: Iterable[Record], most: int) -> list[list[float]]:
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
