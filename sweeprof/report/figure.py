"""Pictures as plain data, which ``pictures/interactive.py`` turns into figures of plotly; and their colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442")
"""Okabe and Ito's colours that people with a colour vision deficiency tell apart (https://jfly.uni-koeln.de/color/);
their black is left out, as it vanishes on a dark page."""
OTHER_COLOUR = "#8a8a8a"

Dash = Literal["solid", "dash", "dot", "dashdot"]
Marker = Literal["circle", "square", "diamond", "triangle-up", "x", "cross"]
DASHES: tuple[Dash, ...] = ("solid", "dash", "dot", "dashdot")
MARKERS: tuple[Marker, ...] = ("circle", "square", "diamond", "triangle-up", "x", "cross")


def backend_colour(name: str, names: Sequence[str]) -> str:
    """The colour of one backend among ``names``, as ``#rrggbb``; grey for others."""
    return backend_colours(names).get(name, OTHER_COLOUR)


def backend_colours(names: Iterable[str]) -> dict[str, str]:
    """The colour of every name, grey where colours have run out."""
    places = enumerate(dict.fromkeys(names))
    return {name: PALETTE[place] if place < len(PALETTE) else OTHER_COLOUR for place, name in places}


def ink_on(colour: str) -> str:
    """White or nearly black, whichever stands out more on ``#rrggbb`` (WCAG's relative luminance)."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # Contrast to white and to #1f2328, whose own luminance is 0.017.
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.067 else "#1f2328"


BarDirection = Literal["vertical", "horizontal"]
BlockKind = Literal["leaf", "parent", "other", "small", "carried"]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot."""

    title: str
    log: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One line or cloud of a plot; all tuples are of one length."""

    name: str
    colour: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    labels: tuple[str, ...]
    """The hover text of each point."""
    dash: Dash = "solid"
    marker: Marker = "circle"
    lines: bool = True
    points: bool = True
    steps: bool = False
    """True if the line is a step function: constant up to the next point."""
    filled: bool = False
    """True if the area below the line is filled."""
    sizes: tuple[float, ...] = ()
    """Diameter of each point, in points of a page; empty for one size."""


ABOVE = 3.0
"""Points between the height of a place and a text that stands above it."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A text beside a place in a plot."""

    x: float
    y: float
    text: str
    side: Literal["left", "right"] = "right"
    """On which side of the place the text stands."""
    gap: float = 7.0
    """Between them, in points of a page."""
    is_above: bool = False
    """True if the text stands above its position, because a line goes through that."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines and clouds over two axes."""

    key: str
    """Stable, fit for a file name, e.g. ``latency``."""
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    notes: tuple[Annotation, ...] = ()
    caption: str = ""
    """A remark for the reader, such as omitted data."""


@dataclass(frozen=True, slots=True)
class BarSeries:
    """One colour of the bars; a value per bar."""

    name: str
    colour: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars, the first on top, each made of the values of all series end to end."""

    key: str
    title: str
    x: Axis
    names: tuple[str, ...]
    series: tuple[BarSeries, ...]
    ends: tuple[str, ...]
    """The text at the end of each bar."""
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """One rectangle of :class:`Blocks`."""

    label: str
    text: str
    """The hover text; lines are separated by line breaks."""
    level: int
    """Column or row that it stands in; 0 for the outermost."""
    start: float
    size: float
    """Along the axis, in percent of the whole."""
    colour: str
    kind: BlockKind
    """``other`` is what a parent does itself, ``small`` are several layers; ``carried`` repeats what has nothing within it at the
    levels below.
    """
    parent: int | None
    """Place of the block that it stands in; of a carried one, the block that it repeats."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Nested parts of a whole: a column per level (vertical) or a row per level (horizontal)."""

    key: str
    title: str
    axis: str
    """The total of which the sizes are a share."""
    blocks: tuple[Block, ...]
    direction: BarDirection
    legend: tuple[tuple[str, str], ...]
    """Names with their colours."""
    opens: bool = False
    """True if the page shows parts that open on a click."""
    caption: str = ""

    @property
    def levels(self) -> int:
        return 1 + max((block.level for block in self.blocks), default=-1)


Picture = Plot | Bars | Blocks
