"""A plot as a PNG picture, drawn by matplotlib without any global state."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from sweeprof.report.figure import Plot, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "cross": "P"}
_SIZE_INCHES = (8.0, 4.6)
_DPI = 150
_INK, _FAINT = "#333333", "#dddddd"
_LEGEND_ROWS = 20
"""Entries of one legend column; more would leave the picture."""
_LEGEND_MOST = 40


def png(plot: Plot) -> bytes:
    """The picture on white, 1200 × 690 pixels and as much wider as its legend needs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    handles = [_draw(axes, series) for series in plot.series]
    _scales(axes, plot)
    _legend(axes, plot, handles)
    out = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; nobody who asked for a report can act on that.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(out, format="png", bbox_inches="tight", pad_inches=0.15, metadata={"Software": None})
    return out.getvalue()


def _legend(axes: Axes, plot: Plot, handles: list[Line2D]) -> None:
    from matplotlib.lines import Line2D

    names = [_plain(series.name) for series in plot.series][:_LEGEND_MOST]
    if len(handles) > _LEGEND_MOST:
        handles = [*handles[:_LEGEND_MOST], Line2D([], [], linestyle="none")]
        names.append(f"… and {len(plot.series) - _LEGEND_MOST} more")
    axes.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.02),
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
        ncols=1 + (len(names) - 1) // _LEGEND_ROWS,
        handlelength=3.2,
    )


def _draw(axes: Axes, series: Series) -> Line2D:
    """Draws a series; returns its line, which stands for it in the legend without the error bars."""
    nan = float("nan")
    y = [nan if value is None else value for value in series.y]
    below = [
        nan if low is None or v is None else max(v - low, 0.0) for v, low in zip(series.y, series.low, strict=True)
    ]
    above = [
        nan if high is None or v is None else max(high - v, 0.0) for v, high in zip(series.y, series.high, strict=True)
    ]
    intervals = any(low is not None for low in series.low)
    container = axes.errorbar(
        series.x,
        y,
        yerr=[below, above] if intervals else None,
        color=series.colour,
        linestyle=_DASHES[series.dash] if series.lines else "none",
        marker=_MARKERS[series.marker] if series.points else "none",
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1.6 if series.points else 1.0,
        elinewidth=1.0,
        capsize=2.0,
        zorder=2.0 if series.points else 1.0,
        drawstyle="steps-post" if series.steps else "default",
    )
    line = container.lines[0]
    assert line is not None
    return line


def _scales(axes: Axes, plot: Plot) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    axes.set_title(_plain(plot.title), loc="left", fontsize=11, color=_INK, pad=10)
    axes.set_xlabel(_plain(plot.x.title), fontsize=9, color=_INK)
    axes.set_ylabel(_plain(plot.y.title), fontsize=9, color=_INK)
    if plot.x.log:
        axes.set_xscale("log")
    if plot.y.log:
        axes.set_yscale("log")
    for axis, spec in ((axes.xaxis, plot.x), (axes.yaxis, plot.y)):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
        if spec.ticks:
            axis.set_major_locator(FixedLocator(list(spec.ticks)))
            axis.set_minor_locator(NullLocator())
    axes.grid(True, color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=8.5, length=3, width=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#999999")


def _plain(text: str) -> str:
    """``text`` without a meaning to matplotlib, to which a dollar begins a formula."""
    return text.replace("$", r"\$")
