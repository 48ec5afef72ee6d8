"""Horizontal bars as matplotlib draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeprof.report.cells import shortened
from sweeprof.report.figure import Bars
from sweeprof.report.pictures.canvas import FAINT, INK, canvas, captioned, dressed, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME_LIMIT = 44


def draw_bars(picture: Bars, size: tuple[float, float] | None = None) -> tuple[Figure, Axes]:
    """The picture; ``size`` in inches, None for what the bars need."""
    figure, axes = canvas(size or (8.0, 1.2 + 0.28 * len(picture.names)))
    places = range(len(picture.names))
    lefts = [0.0] * len(picture.names)
    for series in picture.series:
        axes.barh(places, series.values, left=lefts, height=0.72, color=series.colour, label=plain(series.name))
        lefts = [left + value for left, value in zip(lefts, series.values, strict=True)]
    for place, (end, text) in enumerate(zip(lefts, picture.ends, strict=True)):
        axes.annotate(plain(text), (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8, color=INK)
    axes.set_yticks(places, [plain(shortened(name, _NAME_LIMIT)) for name in picture.names])
    axes.set_ylim(len(picture.names) - 0.4, -0.6)
    # Room for the text at the end of the longest bar.
    axes.set_xlim(0, 1.2 * max(lefts, default=0.0) or 1.0)
    axes.grid(True, axis="x", color=FAINT, linewidth=0.6)
    dressed(axes, picture.title, picture.x.title, "")
    if len(picture.series) > 1:
        axes.legend(loc="lower right", frameon=False, fontsize=8, labelcolor=INK)
    captioned(axes, picture.caption)
    return figure, axes
