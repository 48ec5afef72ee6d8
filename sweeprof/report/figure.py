"""Colours of pictures, and parts of plotly's figures as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442")
"""Okabe and Ito's colours that people with a colour vision deficiency tell apart (https://jfly.uni-koeln.de/color/);
their black is left out, as it vanishes on a dark page."""
OTHER_COLOUR = "#8a8a8a"

DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross")


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


Figure = dict[str, Any]
"""As ``templates/details.js`` reads it; see :func:`figure`."""


def figure(
    key: str,
    title: str,
    data: list[dict[str, Any]],
    layout: dict[str, Any],
    caption: str = "",
    height: int | None = None,
    legend: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A figure of plotly as plain JSON; the page adds the colours of its theme.

    Args:
        key: stable, fit for a file name, e.g. ``latency``.
        title: above the figure.
        data: plotly's traces.
        layout: plotly's layout.
        caption: a remark for the reader, such as omitted data.
        height: the pixels that it needs.
        legend: names with their colours, for the page to show where plotly has no legend.
    """
    return {
        "key": key,
        "title": title,
        "caption": caption,
        "height": height,
        "legend": legend,
        "data": data,
        "layout": layout,
    }


def axis(title: str, is_log: bool = False) -> dict[str, Any]:
    """An axis with a title."""
    spec: dict[str, Any] = {"title": axis_title(title), "type": "linear", "tickformat": ",.6~g"}
    if is_log:
        # Powers of ten and nothing between: what plotly writes there by default is a lone 2 or 5.
        spec |= {"type": "log", "dtick": 1, "minor": {"ticks": "outside"}}
    return spec


def axis_title(title: str) -> dict[str, Any]:
    """The title of an axis."""
    return {"text": plain(title), "font": {"size": 13}}


def scatter(
    name: str, x: Sequence[float], y: Sequence[float], labels: Sequence[str], mode: str, colour: str
) -> dict[str, Any]:
    """A line or cloud; ``labels`` has the hover text of each point."""
    return {
        "type": "scatter",
        "mode": mode,
        "name": plain(name),
        "x": x,
        "y": y,
        "text": [plain(label) for label in labels],
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": colour, "width": 1},
        "marker": {"color": colour, "symbol": "circle", "size": 8},
    }


def text_beside(x: float, y: float, text: str, is_right: bool, gap: float = 7.0) -> dict[str, Any]:
    """A text on one side of a place; ``gap`` is between them, in pixels. On a logarithmic axis a place is its exponent."""
    return {
        "x": x,
        "y": y,
        "text": plain(text),
        "showarrow": False,
        "xanchor": "left" if is_right else "right",
        "xshift": gap if is_right else -gap,
        "font": {"size": 11},
    }


def plain(text: str) -> str:
    """``text`` without a meaning to plotly, which reads a subset of HTML in names and labels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
