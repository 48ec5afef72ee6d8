"""The sections below a report's tables: what qualifies, the Pareto front, and the best batch sizes, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sweeprof.numbers import rounded, text_unit
from sweeprof.report.cells import measured_of, rounds_text, value_text
from sweeprof.report.columns import baseline_text, metric_title
from sweeprof.report.table import sorted_rows
from sweeprof.report.verdict_summary import ReportSection, against_lines, combination_namer, means_lines, tests_text
from sweeprof.results.compare import Comparison, Row, value_of
from sweeprof.results.constraints import (
    BATCH_AXIS,
    BATCH_METRIC,
    best_batch_sizes,
    best_row,
    named_metrics,
    uncertain_selection,
)
from sweeprof.results.measurement import MetricInfo
from sweeprof.text import axis_text, one_line

_MOST = 20
"""Combinations that a report lists; ``comparison.csv`` has all of them."""
_ARROWS = {"lower": "↓", "higher": "↑", None: ""}
MOST_BATCH_LINES = 60
"""Lines that a report has room for; beyond that its table and its plots show the best batch sizes."""


def sections(comparison: Comparison) -> list[ReportSection]:
    """Return the sections below a report's tables, in order, without those for which the comparison has no data."""
    base = baseline_text(comparison)
    tested = tests_text(comparison)
    found = [
        ReportSection(f"Compared with {base}", tuple(against_lines(comparison))),
        ReportSection(f"Geometric means vs {base}", tuple(means_lines(comparison))),
        ReportSection("Verdicts", (tested,) if tested else ()),
        _qualifying(comparison),
        _front(comparison),
        ReportSection("Best batch size, by throughput", tuple(batch_lines(comparison))),
    ]
    return [section for section in found if section.lines]


def _qualifying(comparison: Comparison) -> ReportSection:
    if not comparison.constraints:
        return ReportSection("", ())
    rows = sorted_rows(comparison)
    fitting = [row for row in rows if not row.misses]
    missing = [row for row in rows if row.misses]
    verb = "qualifies" if len(fitting) == 1 else "qualify"
    title = f"{len(fitting)} of {len(rows)} combinations {verb}: {' and '.join(comparison.constraints)}"
    titles = {info: metric_title(info, comparison.rows) for info in named_metrics(comparison)}
    tell = combination_namer(comparison)
    notes = dict.fromkeys((row.combination_id for row in rows), "")
    for id, (name, measurement) in uncertain_selection(comparison).items():
        notes[id] = f" (not certain: {name} {value_text(measurement)})"
    lines = []
    for info, name in titles.items():
        differing = {value_of(row, info.name) for row in fitting} - {None}
        best = None if info.better is None else best_row(fitting, info.name, info.better)
        if best is not None and len(differing) > 1:
            heading = f"best {name} {measured_of(_qualified(comparison), [info.name])}".rstrip()
            lines.append(f"{heading}: {_with_figures(titles, best, tell)}")
    if missing:
        shown = [f"{_with_figures(titles, row, tell)}{notes[row.combination_id]}" for row in fitting[:_MOST]]
        lines += [*(f"qualifies: {text}" for text in shown), *_more(fitting)]
    for row in missing[:_MOST]:
        lines.append(f"misses: {tell(row.axes)} – {'; '.join(row.misses)}{notes[row.combination_id]}")
    lines += _more(missing)
    return ReportSection(one_line(title), tuple(map(one_line, lines)))


def _qualified(comparison: Comparison) -> list[Row]:
    """The rows that qualify, and those that might if they were measured."""
    return [row for row in comparison.rows if not row.misses or not row.has_values]


def _front(comparison: Comparison) -> ReportSection:
    rows = [row for row in sorted_rows(comparison) if row.on_front]
    if len(rows) == len(comparison.rows):  # a front that every row is on says nothing
        return ReportSection("", ())
    known = {info.name: info for info in comparison.metrics}
    titles = {known[name]: metric_title(known[name], comparison.rows) for name in comparison.pareto}
    title = ", ".join(f"{name} {_ARROWS[info.better]}" for info, name in titles.items())
    heading = f"Pareto front {measured_of(_qualified(comparison), comparison.pareto)}".rstrip()
    tell = combination_namer(comparison)
    lines = [_with_figures(titles, row, tell) for row in rows[:_MOST]]
    return ReportSection(f"{heading}: {title}", (*lines, *_more(rows)))


def _with_figures(titles: Mapping[MetricInfo, str], row: Row, tell: Callable[[Mapping[str, object]], str]) -> str:
    """Return a row with its figures, e.g. ``model=mlp – latency 1.00 ms, accuracy 0.9000``."""
    figures = []
    for info, title in titles.items():
        value = value_of(row, info.name)
        if value is not None:
            figures.append(f"{title} {rounded(value, text_unit(info.name, info.unit))}")
    name = f"{tell(row.axes)} ({rounds_text(row)})" if row.is_incomplete else tell(row.axes)
    return f"{name} – {', '.join(figures)}" if figures else name


def _more(rows: Sequence[Row]) -> list[str]:
    return [f"and {len(rows) - _MOST} more, in comparison.csv"] if len(rows) > _MOST else []


def batch_lines(comparison: Comparison) -> list[str]:
    """Return a line for each combination of the other axes; none where the batch size alone varies, which the table shows."""
    lines = []
    tell = combination_namer(comparison)
    for best, rows in best_batch_sizes(comparison, sorted_rows(comparison)):
        others = {axis: value for axis, value in best.axes.items() if axis != BATCH_AXIS}
        throughput = value_text(best.cells[BATCH_METRIC].measurement, with_interval=False)
        label = measured_of(rows, [BATCH_METRIC])
        line = f"{tell(others)}: {axis_text(best.axes[BATCH_AXIS])} – {throughput}"
        lines.append(f"{line} ({label})" if label else line)
    return lines if len(lines) <= MOST_BATCH_LINES else []
