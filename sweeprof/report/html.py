"""A comparison as one self-contained HTML file, which asks nothing of the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from markupsafe import Markup

from sweeprof.report.cells import (
    axes_text,
    axis_text,
    detail_text,
    one_line,
    ratio_text,
    reason_of,
    shortened,
    value_of,
    value_text,
)
from sweeprof.report.columns import baseline_text
from sweeprof.report.figure import Axis, Plot, Series
from sweeprof.report.layers.embed import embedded
from sweeprof.report.pages import render, script_json
from sweeprof.report.summary import best_rows, environment_items, footnotes, headline
from sweeprof.report.table import sorted_rows, tables
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import MetricInfo

_MOST_VALUES = 12
"""Values of one axis that the header lists."""
_NO_LAYERS: Mapping[str, LayerTable] = {}


def html(comparison: Comparison, plots: Sequence[Plot], layers: Mapping[str, LayerTable] = _NO_LAYERS) -> str:
    """The report: about 5 MB where it has plots, as it carries the library that draws them.

    Args:
        comparison: what was measured.
        plots: what is drawn of it.
        layers: the layer table of every combination that has one, by what the reader is to choose it by.
    """
    return render(
        "report.html.j2",
        comparison=comparison,
        created=_readable(comparison.created),
        headline=headline(comparison),
        baseline=baseline_text(comparison),
        swept=list(_swept(comparison)),
        glance=_glance(comparison),
        tables=tables(comparison),
        rows=[_row(comparison, row) for row in sorted_rows(comparison)],
        footnotes=footnotes(comparison),
        environment=environment_items(comparison),
        plots=plots,
        figures=script_json([_figure(plot) for plot in plots]),
        plotly=_plotly() if plots else "",
        layers=script_json(embedded(layers)) if layers else "",
    )


def _readable(created: str) -> str:
    """``2026-11-21 00:30 UTC``; text that is no date is shown as it is."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return one_line(created)
    return f"{moment:%Y-%m-%d %H:%M} {moment.tzname() or ''}".strip()


def _swept(comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Every axis with its values."""
    for axis in comparison.axes:
        values = list(dict.fromkeys(axis_text(row.axes[axis]) for row in comparison.rows if axis in row.axes))
        more = f" and {len(values) - _MOST_VALUES} more" if len(values) > _MOST_VALUES else ""
        yield axis, ", ".join(shortened(value, 60) for value in values[:_MOST_VALUES]) + more


def _glance(comparison: Comparison) -> dict[str, dict[str, tuple[str, str]]]:
    """Value and place of the best rows by model and by what they are best in."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for best in best_rows(comparison):
        found.setdefault(best.model, {})[best.what] = (best.value, best.where)
    return found


def _row(comparison: Comparison, row: Row) -> dict[str, Any]:
    """One combination with all of its metrics: name, value or None, details or the reason, ratio."""
    metrics: list[tuple[MetricInfo, str | None, str, str]] = []
    for info in comparison.metrics:
        if value_of(row, info.name) is None:
            metrics.append((info, None, reason_of(row, info.name), ""))
            continue
        cell = row.cells[info.name]
        ratio = ratio_text(cell) if cell.ratio is not None else ""
        metrics.append((info, value_text(cell.measurement), detail_text(cell.measurement), ratio))
    axes = {axis: row.axes[axis] for axis in comparison.axes if axis in row.axes}
    return {
        "row": row,
        "name": axes_text(axes),
        "metrics": metrics,
        "measured": any(value for _, value, _, _ in metrics),
    }


def _plotly() -> Markup:
    from plotly.offline import get_plotlyjs

    # The only text that is not escaped. It is plotly's own file, and holds no end tag that would close its element.
    return Markup(get_plotlyjs())


def _figure(plot: Plot) -> dict[str, Any]:
    """What plotly draws; the page adds the colours of its theme."""
    return {
        "key": plot.key,
        "data": [_trace(series) for series in plot.series],
        "layout": {"xaxis": _axis(plot.x), "yaxis": _axis(plot.y)},
    }


def _axis(axis: Axis) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "title": {"text": _plain(axis.title), "font": {"size": 13}},
        "type": "log" if axis.log else "linear",
    }
    if axis.ticks:
        return {**spec, "tickvals": axis.ticks, "ticktext": [f"{tick:,.6g}" for tick in axis.ticks]}
    # Powers of ten and nothing between: what plotly writes there by default is a lone 2 or 5.
    return {**spec, "tickformat": ",.6~g", **({"dtick": 1, "minor": {"ticks": "outside"}} if axis.log else {})}


def _trace(series: Series) -> dict[str, Any]:
    mode = "+".join(name for name, shown in (("lines", series.lines), ("markers", series.points)) if shown)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": mode,
        "name": _plain(series.name),
        "x": series.x,
        "y": series.y,
        "text": [_plain(label) for label in series.labels],
        "connectgaps": False,
        "line": {
            "color": series.colour,
            "dash": series.dash,
            "width": 2 if series.points else 1,
            "shape": _shape(series),
        },
        "marker": {"color": series.colour, "symbol": series.marker, "size": 8},
        **({"hovertemplate": "%{text}<extra></extra>"} if series.points else {"hoverinfo": "skip"}),
    }
    if any(low is not None for low in series.low):
        spread = [
            (high - y, y - low) if y is not None and low is not None and high is not None else (0, 0)
            for y, low, high in zip(series.y, series.low, series.high, strict=True)
        ]
        above, below = zip(*spread, strict=True)
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": above,
            "arrayminus": below,
            "thickness": 1,
            "width": 3,
        }
    return trace


def _shape(series: Series) -> str:
    return "hv" if series.steps else "linear"


def _plain(text: str) -> str:
    """``text`` without a meaning to plotly, which reads a subset of HTML in names and labels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
