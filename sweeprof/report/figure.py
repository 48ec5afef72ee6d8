"""Pictures as plain data, whatever draws them: matplotlib in ``png.py``, plotly through ``pictures/interactive.py``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sweeprof.report.palette import Dash, Marker

Direction = Literal["vertical", "horizontal"]
BlockKind = Literal["leaf", "parent", "other", "small", "carried"]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a plot."""

    title: str
    log: bool = False
    ticks: tuple[float, ...] = ()
    """Where to label it; empty leaves that to the drawing."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line or cloud of a plot; all tuples are of one length."""

    name: str
    colour: str
    dash: Dash
    marker: Marker
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    """None where a row is missing: the line has a gap there."""
    low: tuple[float | None, ...]
    """Lower end of the 95 % interval; None where there is none."""
    high: tuple[float | None, ...]
    labels: tuple[str, ...]
    """What pointing at a point shows."""
    lines: bool = True
    points: bool = True
    steps: bool = False
    """Whether the line keeps its height up to the next point, and then jumps."""
    filled: bool = False
    """Whether the area below the line is tinted."""
    sizes: tuple[float, ...] = ()
    """Diameter of each point, in points of a page; empty for one size."""


ABOVE = 3.0
"""Points between the height of a place and a text that stands above it."""


@dataclass(frozen=True, slots=True)
class Note:
    """A text beside a place in a plot."""

    x: float
    y: float
    text: str
    side: Literal["left", "right"] = "right"
    """On which side of the place the text stands."""
    gap: float = 7.0
    """Between them, in points of a page."""
    is_above: bool = False
    """Whether it stands above the height of the place, as a line goes through it."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines and clouds over two axes."""

    key: str
    """Stable, fit for a file name, e.g. ``latency``."""
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    notes: tuple[Note, ...] = ()
    caption: str = ""
    """What a reader has to know, such as what is left out."""


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
    """What stands at the end of each bar."""
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """One rectangle of :class:`Blocks`."""

    label: str
    text: str
    """What pointing at it shows; lines apart by line breaks."""
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
    """What the sizes are a share of."""
    blocks: tuple[Block, ...]
    direction: Direction
    legend: tuple[tuple[str, str], ...]
    """Names with their colours."""
    opens: bool = False
    """Whether the page shows it with parts that open when they are clicked."""
    caption: str = ""

    @property
    def levels(self) -> int:
        return 1 + max((block.level for block in self.blocks), default=-1)


Picture = Plot | Bars | Blocks
