"""A picture as PNG, drawn by matplotlib without any global state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeprof.report.figure import ABOVE, Bars, Blocks, Picture, Plot, Series
from sweeprof.report.pictures.canvas import (
    FAINT,
    INK,
    canvas,
    captioned,
    draw_bars,
    draw_blocks,
    dressed,
    house_style,
    plain,
    png_bytes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X", "cross": "P"}
_SIZE_INCHES = (8.0, 4.6)
_LEGEND_ROWS = 20
"""Entries of one legend column; more would leave the picture."""
_LEGEND_MOST = 40


def png(picture: Picture) -> bytes:
    """The picture on white, 150 pixels to an inch, as large as it needs: a plot is 1200 × 690 pixels and its legend."""
    with house_style():
        return png_bytes(drawn(picture)[0])


def drawn(picture: Picture, size: tuple[float, float] | None = None) -> tuple[Figure, Axes]:
    """The picture as a figure that knows no pyplot; ``size`` in inches, None for what it needs."""
    if isinstance(picture, Blocks):
        return draw_blocks(picture, size)
    if isinstance(picture, Bars):
        return draw_bars(picture, size)
    figure, axes = canvas(size or _SIZE_INCHES)
    handles = [_draw(axes, series) for series in picture.series]
    _scales(axes, picture)
    _notes(axes, picture)
    _legend(axes, picture, handles)
    captioned(axes, picture.caption)
    return figure, axes


def _legend(axes: Axes, plot: Plot, handles: list[Line2D]) -> None:
    from matplotlib.lines import Line2D

    names = [plain(series.name) for series in plot.series][:_LEGEND_MOST]
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
        labelcolor=INK,
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
    drawstyle = "steps-post" if series.steps else "default"
    container = axes.errorbar(
        series.x,
        y,
        yerr=[below, above] if intervals else None,
        color=series.colour,
        linestyle=_DASHES[series.dash] if series.lines else "none",
        marker=_MARKERS[series.marker] if series.points and not series.sizes else "none",
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
        linewidth=1.6 if series.points else 1.0,
        elinewidth=1.0,
        capsize=2.0,
        zorder=2.0 if series.points else 1.0,
        drawstyle=drawstyle,
    )
    if series.filled:
        axes.fill_between(
            series.x, y, step="post" if series.steps else None, color=series.colour, alpha=0.15, linewidth=0
        )
    line = container.lines[0]
    assert line is not None
    return _sized(axes, series, y) if series.sizes else line


def _sized(axes: Axes, series: Series, y: list[float]) -> Line2D:
    """Points of their own sizes, the small ones on top; returns what stands for them in the legend."""
    from matplotlib.lines import Line2D

    order = sorted(range(len(y)), key=lambda place: -series.sizes[place])
    marker = _MARKERS[series.marker]
    axes.scatter(
        [series.x[i] for i in order],
        [y[i] for i in order],
        s=[series.sizes[i] ** 2 for i in order],
        c=series.colour,
        marker=marker,
        alpha=0.75,
        edgecolors="white",
        linewidths=0.6,
        zorder=2.0,
    )
    return Line2D([], [], color=series.colour, marker=marker, linestyle="none", markersize=7)


def _notes(axes: Axes, plot: Plot) -> None:
    for note in plot.notes:
        axes.annotate(
            plain(note.text),
            (note.x, note.y),
            (note.gap if note.side == "right" else -note.gap, ABOVE if note.is_above else 0),
            textcoords="offset points",
            ha="left" if note.side == "right" else "right",
            va="bottom" if note.is_above else "center",
            fontsize=8,
            color=INK,
            zorder=4.0,
        )


def _scales(axes: Axes, plot: Plot) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    dressed(axes, plot.title, plot.x.title, plot.y.title)
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
    axes.grid(True, color=FAINT, linewidth=0.6)
