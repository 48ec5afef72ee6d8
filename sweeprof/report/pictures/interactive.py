"""Pictures as plotly draws them: data and layout as plain JSON; the page adds the colours of its theme."""

from __future__ import annotations

import math
from typing import Any

from sweeprof.report.figure import ABOVE, Annotation, Axis, Bars, Block, Blocks, Picture, Plot, Series, ink_on

_ROW_HEIGHT, _BAR_HEIGHT = 46, 26
"""Pixels of a level and of a bar."""


def interactive(picture: Picture) -> dict[str, Any]:
    """``key``, ``title``, ``caption``, ``data`` and ``layout``; ``height`` is the pixels that it needs or null.

    ``legend`` is names with their colours, for the page to show where plotly has no legend.
    """
    if isinstance(picture, Blocks):
        parts = _opening(picture) if picture.opens else _fixed(picture)
    else:
        parts = _bars(picture) if isinstance(picture, Bars) else _plot(picture)
    return {
        "key": picture.key,
        "title": picture.title,
        "caption": picture.caption,
        "height": None,
        "legend": (),
        **parts,
    }


def _plot(plot: Plot) -> dict[str, Any]:
    layout: dict[str, Any] = {"xaxis": _axis(plot.x), "yaxis": _axis(plot.y)}
    if plot.notes:
        layout["annotations"] = [_note(note, plot) for note in plot.notes]
    return {"data": [_trace(series) for series in plot.series], "layout": layout}


def _note(note: Annotation, plot: Plot) -> dict[str, Any]:
    # Plotly places annotations of a logarithmic axis by the exponent.
    x = math.log10(note.x) if plot.x.log else note.x
    y = math.log10(note.y) if plot.y.log else note.y
    is_right = note.side == "right"
    return {
        "x": x,
        "y": y,
        "text": plain(note.text),
        "showarrow": False,
        "xanchor": "left" if is_right else "right",
        "xshift": note.gap if is_right else -note.gap,
        **({"yanchor": "bottom", "yshift": ABOVE} if note.is_above else {}),
        "font": {"size": 11},
    }


def _axis(axis: Axis) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "title": {"text": plain(axis.title), "font": {"size": 13}},
        "type": "log" if axis.log else "linear",
    }
    # Powers of ten and nothing between: what plotly writes there by default is a lone 2 or 5.
    return {**spec, "tickformat": ",.6~g", **({"dtick": 1, "minor": {"ticks": "outside"}} if axis.log else {})}


def _trace(series: Series) -> dict[str, Any]:
    mode = "+".join(name for name, shown in (("lines", series.lines), ("markers", series.points)) if shown)
    is_shown = series.points or series.filled
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": mode,
        "name": plain(series.name),
        "x": series.x,
        "y": series.y,
        "text": [plain(label) for label in series.labels],
        "line": {
            "color": series.colour,
            "dash": series.dash,
            "width": 2 if series.points else 1,
            "shape": "hv" if series.steps else "linear",
        },
        "marker": {"color": series.colour, "symbol": series.marker, "size": 8},
        **({"hovertemplate": "%{text}<extra></extra>"} if is_shown else {"hoverinfo": "skip"}),
        **({"fill": "tozeroy", "fillcolor": f"{series.colour}26"} if series.filled else {}),
    }
    if series.sizes:
        trace["marker"] |= {"size": series.sizes, "opacity": 0.75, "line": {"width": 0.6, "color": "#ffffff"}}
    return trace


def _bars(picture: Bars) -> dict[str, Any]:
    # Names may be alike where they were cut: the places tell them apart.
    places = list(range(len(picture.names)))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plain(series.name),
            "y": places,
            "x": series.values,
            "marker": {"color": series.colour},
            "hovertemplate": f"%{{x:,.4g}} {plain(series.name)}<extra></extra>",
        }
        for series in picture.series
    ]
    sums = [sum(values) for values in zip(*(series.values for series in picture.series), strict=True)]
    ends = [
        {"x": end, "y": place, "text": plain(text), "showarrow": False, "xanchor": "left", "font": {"size": 11}}
        for place, end, text in zip(places, sums, picture.ends, strict=True)
    ]
    layout = {
        "barmode": "stack",
        "annotations": ends,
        "xaxis": {**_axis(picture.x), "range": [0, 1.25 * max(sums, default=1.0)]},
        "yaxis": {
            "autorange": "reversed",
            "tickvals": places,
            "ticktext": [plain(name) for name in picture.names],
            "showgrid": False,
        },
        "showlegend": len(picture.series) > 1,
        "legend": {"traceorder": "normal"},
    }
    return {"data": traces, "layout": layout, "height": 90 + _BAR_HEIGHT * len(places)}


def _opening(picture: Blocks) -> dict[str, Any]:
    """An icicle: a click on a part opens it, one on what is around it goes back."""
    blocks = picture.blocks
    within = [0.0] * len(blocks)
    for block in blocks:
        if block.parent is not None:
            within[block.parent] += block.size
    trace = {
        "type": "icicle",
        "ids": [str(place) for place in range(len(blocks))],
        "labels": [plain(block.label) for block in blocks],
        "parents": ["" if block.parent is None else str(block.parent) for block in blocks],
        # What plotly is to add the parts to: sums that are off by a rounding would make it draw nothing.
        "values": [_rounded(max(0.0, block.size - inner)) for block, inner in zip(blocks, within, strict=True)],
        "branchvalues": "remainder",
        "text": [block_text(block) for block in blocks],
        "textinfo": "label",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"colors": [block.colour for block in blocks], "line": {"width": 0.6, "color": "#ffffff"}},
        "leaf": {"opacity": 1},
        "textfont": {"color": [ink_on(block.colour) for block in blocks], "size": 12},
        "tiling": {"orientation": "v", "pad": 0},
        "pathbar": {"visible": True, "textfont": {"size": 12}},
        "sort": False,
    }
    layout = {"showlegend": False, "margin": {"l": 0, "r": 0, "t": 8, "b": 8}}
    return {"data": [trace], "layout": layout, "height": 40 + _ROW_HEIGHT * picture.levels, "legend": picture.legend}


def _fixed(picture: Blocks) -> dict[str, Any]:
    """Columns of blocks, one column per level; blocks that repeat one of a higher level are paler."""
    layout = {
        "barmode": "overlay",
        "bargap": 0,
        "showlegend": False,
        "xaxis": {
            "title": {"text": "depth", "font": {"size": 13}},
            "tickvals": list(range(picture.levels)),
            "showgrid": False,
        },
        "yaxis": {
            "title": {"text": plain(f"share of the {picture.axis} (%)"), "font": {"size": 13}},
            "range": [100, 0],
        },
    }
    solid = [block for block in picture.blocks if block.kind != "carried"]
    pale = [block for block in picture.blocks if block.kind == "carried"]
    columns = [_columns(solid, 1.0), *([_columns(pale, 0.35)] if pale else [])]
    return {"data": columns, "layout": layout, "height": 560, "legend": picture.legend}


def _columns(blocks: list[Block], opacity: float) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": [block.level for block in blocks],
        "y": [_rounded(block.size) for block in blocks],
        "base": [_rounded(block.start) for block in blocks],
        "width": 1,
        "opacity": opacity,
        "marker": {"color": [block.colour for block in blocks], "line": {"width": 0.6, "color": "#ffffff"}},
        "text": [plain(block.label) if block.kind != "carried" else "" for block in blocks],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": [ink_on(block.colour) for block in blocks], "size": 11},
        "hovertext": [block_text(block) for block in blocks],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def block_text(block: Block) -> str:
    """Return the hover text of a block."""
    return plain(block.text).replace("\n", "<br>")


def _rounded(percent: float) -> float:
    """A millionth of the whole is far less than a pixel."""
    return round(percent, 4)


def plain(text: str) -> str:
    """``text`` without a meaning to plotly, which reads a subset of HTML in names and labels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
