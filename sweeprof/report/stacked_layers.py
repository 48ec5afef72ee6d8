"""Stacked bars of the time by depth as a figure of matplotlib, for a user of the library."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.report.pictures import CHANNELS, BarDirection, Block, Blocks, Channel, ink_on, time_by_depth
from sweeprof.results.layers import LayerTable
from sweeprof.text import listed, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DIRECTIONS: tuple[BarDirection, ...] = ("vertical", "horizontal")
INK, EDGE = "#333333", "#999999"
DPI = 150


def stacked(
    table: LayerTable,
    channels: str | Sequence[str] = ("forward",),
    direction: str = "vertical",
    path: Path | str | None = None,
    figsize: tuple[float, float] | None = None,
) -> tuple[Figure, Axes]:
    """Stacked bars of the time by depth, one column (``vertical``) or row (``horizontal``) per depth.

    Args:
        table: with times, e.g. of ``LayerTable.with_times``.
        channels: ``forward``, ``backward``, or both, which are summed.
        direction: of the bars.
        path: where to save the picture; its ending says in which format.
        figsize: width and height in inches; None for what the depths need.

    Raises:
        UserError: a channel or direction does not exist, or the table has no times of the channels.
    """
    channels = listed(channels)
    problems = [choice_problem("channels", name, "channel", CHANNELS) for name in channels if name not in CHANNELS]
    if direction not in DIRECTIONS:
        problems.append(choice_problem("direction", direction, "direction", DIRECTIONS))
    chosen = cast("tuple[Channel, ...]", tuple(dict.fromkeys(channels)))
    picture = None if problems else time_by_depth(table, chosen)
    if not problems and picture is None:
        problems.append(Problem("channels", channels, "were not measured: no row of the table has such a time."))
    if picture is None:
        raise UserError(problems)
    figure, axes = draw_blocks(picture, direction == "vertical", figsize)
    if path is not None:
        figure.savefig(path, bbox_inches="tight", pad_inches=0.15)
    return figure, axes


_FONT = 7.5
_LETTER = 0.58 * _FONT
"""Points that a letter takes on average."""
_LEAST_LETTERS = 7
_MOST_INCHES = 24.0


def draw_blocks(picture: Blocks, is_vertical: bool, size: tuple[float, float] | None = None) -> tuple[Figure, Axes]:
    """The picture; ``size`` in inches, None for what the levels need."""
    from matplotlib.patches import Patch, Rectangle

    if size is None and is_vertical:
        size = min(max(5.0, 1.55 * picture.levels + 1.0), _MOST_INCHES), 7.5
    elif size is None:
        size = 11.0, min(max(2.4, 0.5 * picture.levels + 1.2), _MOST_INCHES)
    figure, axes = canvas(size)
    share = f"share of the {picture.axis} (%)"
    points = 72 / figure.dpi
    if is_vertical:
        axes.set_xlim(-0.5, picture.levels - 0.5)
        axes.set_ylim(100, 0)
        axes.set_xticks(range(picture.levels))
        x, y = "depth", share
    else:
        axes.set_ylim(picture.levels - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_yticks(range(picture.levels))
        x, y = share, "depth"
    axes.set_title(plain(picture.title), loc="left", fontsize=11, color=INK, pad=10)
    axes.set_xlabel(plain(x), fontsize=9, color=INK)
    axes.set_ylabel(plain(y), fontsize=9, color=INK)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8.5, length=3, width=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(EDGE)
    extent = axes.get_window_extent()
    across, along = extent.width, extent.height
    if not is_vertical:
        across, along = along, across
    for block in picture.blocks:
        place, width, height = (block.start, block.level - 0.5), block.size, 1.0
        box = block.size / 100 * along * points, across * points / max(picture.levels, 1)
        if is_vertical:
            place, width, height, box = place[::-1], height, width, box[::-1]
        alpha = 0.35 if block.kind == "carried" else 1.0
        axes.add_patch(Rectangle(place, width, height, facecolor=block.colour, alpha=alpha, edgecolor="none"))
        axes.add_patch(Rectangle(place, width, height, fill=False, edgecolor="white", linewidth=0.6))
        _name(axes, block, (place[0] + width / 2, place[1] + height / 2), *box)
    handles = [Patch(facecolor=colour, label=plain(shortened(name, 40))) for name, colour in picture.legend]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8, labelcolor=INK
    )
    if picture.caption:  # below the axes, broken to their width
        width = axes.get_window_extent().width * points
        lines = plain(textwrap.fill(picture.caption, max(40, int(width / 3.9))))
        axes.annotate(
            lines, (0, 0), (0, -36), "axes fraction", "offset points", fontsize=7.5, color="#666666", va="top"
        )
    return figure, axes


def _name(axes: Axes, block: Block, middle: tuple[float, float], width: float, height: float) -> None:
    """The label, and below it the size where there is room; ``width`` and ``height`` are points."""
    letters = int((width - 4) / _LETTER)
    # Of a name that is cut to fewer letters nothing can be told.
    if block.kind == "carried" or letters < min(len(block.label), _LEAST_LETTERS) or height < _FONT * 1.2:
        return
    lines = [block.label, block.text.rpartition("\n")[2]]
    if height >= _FONT * 2.6 and len(lines[1]) <= letters:
        text = f"{shortened(lines[0], letters)}\n{lines[1]}"
    else:
        whole = ", ".join(lines)
        text = whole if len(whole) <= letters else shortened(lines[0], letters)
    axes.text(*middle, plain(text), ha="center", va="center", fontsize=_FONT, color=ink_on(block.colour))


def canvas(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """An empty picture of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI)
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def plain(text: str) -> str:
    """``text`` without a meaning to matplotlib, to which a dollar begins a formula."""
    return text.replace("$", r"\$")
