"""What every picture of matplotlib has: a figure without global state, its ink, its title, and its bytes."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
