"""Nested blocks as matplotlib draws them; a block is named where its name fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeprof.report.cells import shortened
from sweeprof.report.figure import Block, Blocks
from sweeprof.report.pictures.canvas import INK, canvas, captioned, dressed, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FONT = 7.5
_LETTER = 0.58 * _FONT
"""Points that a letter takes on average."""
_LEAST_LETTERS = 7
_MOST_INCHES = 24.0


def draw_blocks(picture: Blocks, size: tuple[float, float] | None = None) -> tuple[Figure, Axes]:
    """The picture; ``size`` in inches, None for what the levels need."""
    from matplotlib.patches import Patch, Rectangle

    is_vertical = picture.direction == "vertical"
    figure, axes = canvas(size or _size(picture))
    if is_vertical:
        axes.set_xlim(-0.5, picture.levels - 0.5)
        axes.set_ylim(100, 0)
        axes.set_xticks(range(picture.levels))
        dressed(axes, picture.title, "depth", f"share of the {picture.axis} (%)")
    else:
        axes.set_ylim(picture.levels - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_yticks(range(picture.levels))
        dressed(axes, picture.title, f"share of the {picture.axis} (%)", "depth")
    scale = axes.get_window_extent()
    points = 72 / figure.dpi
    across = (scale.width if is_vertical else scale.height) * points / max(picture.levels, 1)
    along = (scale.height if is_vertical else scale.width) * points / 100
    for block in picture.blocks:
        place = (block.level - 0.5, block.start) if is_vertical else (block.start, block.level - 0.5)
        width, height = (1.0, block.size) if is_vertical else (block.size, 1.0)
        alpha = 0.35 if block.kind == "carried" else 1.0
        axes.add_patch(Rectangle(place, width, height, facecolor=block.colour, alpha=alpha, edgecolor="none"))
        axes.add_patch(Rectangle(place, width, height, fill=False, edgecolor="white", linewidth=0.6))
        box = (across, block.size * along) if is_vertical else (block.size * along, across)
        _name(axes, block, (place[0] + width / 2, place[1] + height / 2), *box)
    handles = [Patch(facecolor=colour, label=plain(shortened(name, 40))) for name, colour in picture.legend]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8, labelcolor=INK
    )
    captioned(axes, picture.caption)
    return figure, axes


def _size(picture: Blocks) -> tuple[float, float]:
    if picture.direction == "vertical":
        return min(max(5.0, 1.55 * picture.levels + 1.0), _MOST_INCHES), 7.5
    return 11.0, min(max(2.4, 0.5 * picture.levels + 1.2), _MOST_INCHES)


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


def ink_on(colour: str) -> str:
    """White or nearly black, whichever stands out more on ``#rrggbb`` (WCAG's relative luminance)."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Contrast to white and to #1f2328, whose own luminance is 0.017.
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.067 else "#1f2328"
