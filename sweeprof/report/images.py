"""Pictures as PNG and SVG, drawn by matplotlib without any global state.

An SVG is for paper and for any size of screen.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sweeprof.report.cells import shortened
from sweeprof.report.figure import ABOVE, Bars, Block, Blocks, Picture, Plot, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


INK, FAINT, EDGE = "#333333", "#dddddd", "#999999"
DPI = 150


@contextmanager
def house_style() -> Iterator[None]:
    """Draw as matplotlib comes: a ``matplotlibrc`` of the user or of the working directory would give other bytes."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        # Ids within an SVG are random without a salt; letters as outlines look alike where the font is not installed.
        mpl.rcParams.update({"svg.hashsalt": "sweeprof", "svg.fonttype": "path"})
        yield


def canvas(size: tuple[float, float]) -> tuple[Figure, Axes]:
    """An empty picture of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI)
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def dressed(axes: Axes, title: str, x: str, y: str) -> None:
    """Title, names of the axes, and quiet lines."""
    axes.set_title(plain(title), loc="left", fontsize=11, color=INK, pad=10)
    axes.set_xlabel(plain(x), fontsize=9, color=INK)
    axes.set_ylabel(plain(y), fontsize=9, color=INK)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=8.5, length=3, width=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(EDGE)


def captioned(axes: Axes, caption: str) -> None:
    """A small text below the axes, broken to their width."""
    if not caption:
        return
    width = axes.get_window_extent().width * 72 / axes.figure.dpi
    lines = textwrap.fill(caption, max(40, int(width / 3.9)))
    axes.annotate(
        plain(lines), (0, 0), (0, -36), "axes fraction", "offset points", fontsize=7.5, color="#666666", va="top"
    )


def png_bytes(figure: Figure) -> bytes:
    """The picture, cut to what is drawn; nothing of when and by what it was made."""
    return _saved(figure, "png", {"Software": None})


def svg_bytes(figure: Figure) -> bytes:
    """The same as SVG."""
    return _saved(figure, "svg", {"Date": None, "Creator": None})


def _saved(figure: Figure, format: str, metadata: dict[str, None]) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; nobody who asked for a report can act on that.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(out, format=format, bbox_inches="tight", pad_inches=0.15, metadata=metadata)
    return out.getvalue()


def plain(text: str) -> str:
    """``text`` without a meaning to matplotlib, to which a dollar begins a formula."""
    return text.replace("$", r"\$")


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


def svg(picture: Picture) -> bytes:
    """The picture on white, without script, links or fonts from elsewhere: letters are outlines, with their text as comments."""
    with house_style():
        return svg_bytes(drawn(picture)[0])
