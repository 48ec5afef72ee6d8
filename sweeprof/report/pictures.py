"""Pictures of one combination as figures of plotly in plain JSON; the blocks of layers are also drawn by matplotlib."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweeprof.numbers import rounded
from sweeprof.report.layer_table import TreeNode, nodes, place_text
from sweeprof.report.operators import time_column
from sweeprof.results.environment import Peaks
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.observations import Allocations, Moment, Operators, Phase
from sweeprof.text import one_line, shortened

# Colours of pictures, and parts of plotly's figures as plain data.


PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442")
"""Okabe and Ito's colours that people with a colour vision deficiency tell apart (https://jfly.uni-koeln.de/color/);
their black is left out, as it vanishes on a dark page."""
OTHER_COLOUR = "#8a8a8a"

DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross")


def backend_colours(names: Iterable[str]) -> dict[str, str]:
    """The colour of every name, as ``#rrggbb``; grey where colours have run out."""
    colours = dict.fromkeys(names, OTHER_COLOUR)
    return colours | dict(zip(colours, PALETTE, strict=False))


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
    shown = {"key": key, "title": title, "caption": caption, "height": height, "legend": legend}
    return {**shown, "data": data, "layout": layout}


def axis(title: str, is_log: bool = False) -> dict[str, Any]:
    """An axis with a title."""
    spec: dict[str, Any] = {
        "title": {"text": plain(title), "font": {"size": 13}},
        "type": "linear",
        "tickformat": ",.6~g",
    }
    if is_log:
        # Powers of ten and nothing between: what plotly writes there by default is a lone 2 or 5.
        spec |= {"type": "log", "dtick": 1, "minor": {"ticks": "outside"}}
    return spec


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


# Pictures of a layer table: time by depth as stacked bars, and icicles of self time and of MACs.


BarDirection = Literal["vertical", "horizontal"]
BlockKind = Literal["leaf", "parent", "other", "small", "carried"]


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
    """Nested parts of a whole: a column or a row per level."""

    key: str
    title: str
    axis: str
    """The total of which the sizes are a share."""
    blocks: tuple[Block, ...]
    legend: tuple[tuple[str, str], ...]
    """Names with their colours."""
    caption: str = ""

    @property
    def levels(self) -> int:
        return 1 + max((block.level for block in self.blocks), default=-1)


_ROW_HEIGHT = 46
"""Pixels of a level of an icicle."""
SMALLEST = 0.002
"""Share of the whole below which the layers within one parent are drawn as one block: two pixels of a picture."""
COLOURED_TYPES = 6
PARENT_COLOUR = "#ccd5df"
SELF_COLOUR = "#a9b1ba"

Channel = Literal["forward", "backward"]
CHANNELS: tuple[Channel, ...] = ("forward", "backward")


def time_by_depth(table: LayerTable, channels: Sequence[Channel] = ("forward",)) -> Blocks | None:
    """The stacked bars of the time by depth, their axis in percent of the whole; None where nothing was timed."""
    if not channels:
        return None
    noun = " and ".join(channels)
    return _picture(table, f"stacked_{'_'.join(channels)}", f"Time by depth: {noun},", channels, with_repeats=True)


def time_icicle(table: LayerTable, channels: Sequence[Channel] = ("forward",)) -> Blocks | None:
    """An icicle of self time; None where nothing was timed."""
    if not channels:
        return None
    return _picture(table, "icicle_time", f"Self time of the layers: {' and '.join(channels)},", channels)


def macs_icicle(table: LayerTable) -> Blocks | None:
    """An icicle of multiply-accumulates; None where there are none.

    Raises:
        ValueError: the table is inclusive, so that no row has its own.
    """
    if table.is_inclusive:
        raise ValueError("an icicle needs each row's own MACs: give it the table that is not inclusive")
    if table.uncounted is not None or not table.macs:
        return None
    return _picture(table, "icicle_macs", "Multiply-accumulates of the layers:", ())


def timed_channels(table: LayerTable) -> tuple[Channel, ...]:
    """The channels of which the table has times."""
    return tuple(channel for channel in CHANNELS if any(_own(row, (channel,)) for row in table.rows))


def _own(row: LayerRow, channels: Sequence[Channel]) -> float:
    """Return the seconds that a call itself took in all channels together, as far as they are known; without channels its MACs."""
    if not channels:
        return row.macs or 0
    forward = row.forward_self_s if "forward" in channels else None
    backward = row.backward_self_s if "backward" in channels else None
    return max(0.0, forward or 0.0) + max(0.0, backward or 0.0)


def _picture(
    table: LayerTable, key: str, title: str, channels: Sequence[Channel], with_repeats: bool = False
) -> Blocks | None:
    """Return the blocks of a table by time, or without channels by MACs; None where there is nothing to draw.

    Args:
        with_repeats: whether what has nothing within it is repeated at the deeper levels, so that each level is whole.
    """
    unit = "s" if channels else "MAC"
    whole = sum(_own(row, channels) for row in table.rows)
    if not whole:
        return None
    tree = nodes(table)
    colours = _type_colours(tree)
    blocks = _blocks(tree, channels, colours)
    parts = []
    if with_repeats:
        deepest = max(block.level for block in blocks)
        for index, block in enumerate(list(blocks)):
            if block.kind == "parent":
                continue
            for level in range(block.level + 1, deepest + 1):
                blocks.append(dataclasses.replace(block, level=level, kind="carried", parent=index))
        if any(block.kind == "carried" for block in blocks):
            parts.append("A layer without child layers is repeated in a paler colour at the deeper levels.")
    if any(block.kind == "small" for block in blocks):
        parts.append(f"Layers of less than {SMALLEST:.1%} of the total are drawn together.")
    if "backward" in channels:
        untimed = [r for r in table.rows if r.call >= 0 and r.forward_s is not None and r.backward_self_s is None]
        reasons = [row.time_reason for row in untimed if row.time_reason]
        if untimed:
            verb = "call has" if len(untimed) == 1 else "calls have"
            why = f": {reasons[0]}" if reasons else ""
            parts.append(f"{len(untimed)} {verb} no backward time{why}.")
    drawn = {block.colour for block in blocks}
    names = {one_line(name): colour for name, colour in colours.items()}
    names |= {"other types": OTHER_COLOUR, "containers": PARENT_COLOUR, "own share, or small layers": SELF_COLOUR}
    legend = tuple((name, colour) for name, colour in names.items() if colour in drawn)
    axis = " and ".join(channels) or "MACs"
    return Blocks(key, f"{title} {rounded(whole, unit)} in total", axis, tuple(blocks), legend, " ".join(parts))


def _blocks(tree: Sequence[TreeNode], channels: Sequence[Channel], colours: Mapping[str, str]) -> list[Block]:
    """Return a block for every call, each before those within it.

    A call and a list of modules are as large as what they do themselves and the calls within them together. What a call with
    calls within does itself is a block ``other`` beside them. Layers of less than :data:`SMALLEST` are gathered.
    """
    owns = [_own(node.row, channels) for node in tree]
    sizes = list(owns)
    for index in reversed(range(len(tree))):  # a node comes after the one it is drawn in
        parent = tree[index].parent
        if parent is not None:
            sizes[parent] += sizes[index]
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    for index, node in enumerate(tree):
        if sizes[index] > 0:
            children[node.parent].append(index)
    whole = sum(sizes[index] for index in children[None])
    unit = "s" if channels else "MAC"
    blocks: list[Block] = []

    def fill(around: int | None, level: int, start: float, parent: int | None) -> None:
        def add(label: str, what: str, size: float, colour: str, kind: BlockKind) -> None:
            nonlocal start
            share = 100 * size / whole
            text = f"{what}\n{rounded(size, unit)}, {share:.1f}%"
            blocks.append(Block(label, text, level, start, share, colour, kind, parent))
            start += share

        small = []
        for index in children[around]:
            if sizes[index] < SMALLEST * whole:
                small.append(sizes[index])
                continue
            row, beginning = tree[index].row, start
            label = tree[index].label or "model"
            if row.call > 0:
                label += f" #{row.call + 1}"
            what = f"{_path_text(row)}\n{one_line(row.type)}"
            if children[index]:
                add(label, what, sizes[index], PARENT_COLOUR, "parent")
                fill(index, level + 1, beginning, len(blocks) - 1)
            else:
                add(label, what, sizes[index], colours.get(row.type, OTHER_COLOUR), "leaf")
        if small:
            add(f"{len(small)} smaller", f"{len(small)} smaller layers", sum(small), SELF_COLOUR, "small")
        if around is not None and owns[around] > 0:
            add("other", f"{_path_text(tree[around].row)} itself", owns[around], SELF_COLOUR, "other")

    fill(None, 0, 0.0, None)
    return blocks


def _type_colours(drawn: Sequence[TreeNode]) -> dict[str, str]:
    """A colour for each of the types that take the most time, or MACs where none was timed: alike in all pictures of a table.

    No type of a call with calls within takes one.
    """
    seconds: Counter[str] = Counter()
    macs: Counter[str] = Counter()
    for node in drawn:
        if not node.holds_calls:
            seconds[node.row.type] += (node.row.forward_self_s or 0.0) + (node.row.backward_self_s or 0.0)  # type: ignore[assignment]
            macs[node.row.type] += node.row.macs or 0
    known = [name for name in seconds if seconds[name] or macs[name]]
    known.sort(key=lambda name: (seconds[name], macs[name]), reverse=True)
    return backend_colours(known[:COLOURED_TYPES])


def _path_text(row: LayerRow) -> str:
    path = "model" if row.path == ROOT else one_line(row.path)
    return f"{path}, call {row.call + 1}" if row.call > 0 else path


def icicle(picture: Blocks) -> Figure:
    """An icicle: a click on a part opens it, one on what is around it goes back."""
    blocks = picture.blocks
    # Plotly adds the parts to what a block has besides them; sums that are off by a rounding would make it draw nothing.
    rest = [block.size for block in blocks]
    parents = [""] * len(blocks)
    for position, block in enumerate(blocks):
        if block.parent is not None:
            rest[block.parent] -= block.size
            parents[position] = str(block.parent)
    trace = {
        "type": "icicle",
        "ids": list(map(str, range(len(blocks)))),
        "labels": [plain(block.label) for block in blocks],
        "parents": parents,
        # A millionth of the whole is far less than a pixel.
        "values": [round(max(0.0, size), 4) for size in rest],
        "branchvalues": "remainder",
        "text": [plain(block.text).replace("\n", "<br>") for block in blocks],
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
    height = 40 + _ROW_HEIGHT * picture.levels
    return figure(picture.key, picture.title, [trace], layout, picture.caption, height, picture.legend)


# A picture of the operators that take the most time.


MOST_OPERATORS = 15
_BAR_HEIGHT = 26
"""Pixels."""
_PHASES: tuple[Phase, ...] = ("forward", "backward", "update")


def top_operators(operators: Operators, most: int = MOST_OPERATORS) -> Figure | None:
    """The operators by self time, all their modules and shapes together; None where nothing was traced."""
    column = time_column(operators.rows)
    seconds: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    calls: defaultdict[str, float] = defaultdict(float)
    for row in operators.rows:
        seconds[row.operator][row.phase] += getattr(row, column) or 0.0
        calls[row.operator] += row.calls
    sums = {name: sum(parts.values()) for name, parts in seconds.items()}
    whole = sum(sums.values())
    if whole <= 0:
        return None
    ranked = sorted(sums, key=lambda name: -sums[name])
    shown, rest = ranked[:most], ranked[most:]
    # Names may be alike where they were cut: the places tell them apart.
    places = list(range(len(shown)))
    bars = []
    for phase, colour in backend_colours(_PHASES).items():
        ms = [1e3 * seconds[name][phase] for name in shown]
        if any(ms):
            bars.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": phase,
                    "y": places,
                    "x": ms,
                    "marker": {"color": colour},
                    "hovertemplate": f"%{{x:,.4g}} {phase}<extra></extra>",
                }
            )
    ends = []
    for place, name in enumerate(shown):
        text = f"{sums[name] / whole:.1%}, {calls[name]:,.4g} ×"
        ends.append(text_beside(1e3 * sums[name], place, text, is_right=True, gap=0))
    layout = {
        "barmode": "stack",
        "annotations": ends,
        "xaxis": {**axis("self time of one step (ms)"), "range": [0, 1.25e3 * sums[shown[0]]]},
        "yaxis": {
            "autorange": "reversed",
            "tickvals": places,
            "ticktext": [plain(one_line(name)) for name in shown],
            "showgrid": False,
        },
        "showlegend": len(bars) > 1,
        "legend": {"traceorder": "normal"},
    }
    where = " on the accelerator" if column == "device_self_s" else ""
    title = f"Operators by self time{where}: {operators.mode}, {rounded(whole, 's')} in total"
    caption = "The times include the cost of tracing."
    if rest:
        share = sum(sums[name] for name in rest) / whole
        caption = f"{len(rest)} further operators take {share:.1%}. {caption}"
    return figure("operators", title, bars, layout, caption, 90 + _BAR_HEIGHT * len(shown))


# A picture of what a step allocates over time, its peak marked.


MOST_MOMENTS = 800
_MIB = 2.0**20


def memory_over_time(allocations: Allocations, estimate_bytes: float | None = None) -> Figure | None:
    """Bytes alive above those before the first step, in MiB over ms; None where nothing was allocated.

    Args:
        allocations: what was seen.
        estimate_bytes: the peak of live tensors as the analysis has it, drawn as a line.
    """
    if not allocations.timeline:
        return None
    moments = thinned_moments(allocations.timeline, MOST_MOMENTS)
    ms = [1e3 * moment.s for moment in moments]
    labels = [f"{rounded(m.bytes, 'B')}, {1e3 * m.s:.4g} ms, {place_text(m.path)}" for m in moments]
    line = scatter("allocated", ms, [moment.bytes / _MIB for moment in moments], labels, "lines", PALETTE[0])
    line["line"] |= {"shape": "hv"}  # constant up to the next moment
    line |= {"fill": "tozeroy", "fillcolor": f"{PALETTE[0]}26"}
    peak_ms = 1e3 * max(moments, key=lambda moment: moment.bytes).s
    peak_mib = allocations.peak_bytes / _MIB
    text = f"peak {rounded(allocations.peak_bytes, 'B')} in {shortened(place_text(allocations.peak_at), 48)}"
    peak = scatter("peak", [peak_ms], [peak_mib], [text], "markers", PALETTE[1])
    peak["marker"] |= {"symbol": "diamond"}
    note = text_beside(peak_ms, peak_mib, text, peak_ms - ms[0] <= (ms[-1] - ms[0]) / 2)
    note |= {"yanchor": "bottom", "yshift": 3.0}  # the estimate may be a line at the very height of the peak
    traces = [line, peak]
    if estimate_bytes is not None:
        name = f"estimate from shapes, {rounded(estimate_bytes, 'B')}"
        estimate = scatter(name, [ms[0], ms[-1]], [estimate_bytes / _MIB] * 2, [name] * 2, "lines", OTHER_COLOUR)
        estimate["line"] |= {"dash": "dash"}
        del estimate["hovertemplate"]
        traces.append({**estimate, "hoverinfo": "skip"})
    steps = "the first step" if allocations.steps == 1 else f"the first {allocations.steps} steps"
    caption = f"Memory that {steps} allocated and had not released, in addition to what was allocated before."
    left_out = len(allocations.timeline) - len(moments)
    if left_out > 0:
        caption += f" {left_out} of {len(allocations.timeline)} moments are left out."
    layout = {"xaxis": axis("time within the steps (ms)"), "yaxis": axis("allocated (MiB)"), "annotations": [note]}
    return figure("memory", f"Memory over time: {allocations.mode}", traces, layout, caption)


def thinned_moments(moments: Sequence[Moment], most: int) -> list[Moment]:
    """At most ``most`` of the moments, the first, the last, and the least and the most of every stretch among them."""
    if len(moments) <= most:
        return list(moments)
    stretches = max(1, (most - 2) // 2)
    kept = {0, len(moments) - 1}
    for place in range(stretches):
        stretch = range(place * len(moments) // stretches, (place + 1) * len(moments) // stretches)
        kept |= {min(stretch, key=lambda i: moments[i].bytes), max(stretch, key=lambda i: moments[i].bytes)}
    return [moments[index] for index in sorted(kept)]


# A roofline (Williams, Waterman, Patterson 2009): FLOP/s of every layer over its arithmetic intensity, below measured peaks.


MOST_POINTS = 400
MOST_NAMES = 8
_LEAST_SHARE = 0.02
"""Of the time that is drawn; less has no name."""
_LETTER, _LINE = 0.0105, 0.06
"""Share of the picture's width that a letter takes, and of its height that a line takes."""
_SMALLEST, _LARGEST = 3.0, 24.0
"""Diameters, in points of a page."""


@dataclass(frozen=True, slots=True)
class LayerPoint:
    """One call of a layer in a roofline."""

    name: str
    flops: int
    bytes: float
    """Of its inputs, outputs and parameters, each once: the least that it can move."""
    seconds: float
    """Of its forward alone."""

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.seconds


def layer_points(table: LayerTable) -> list[LayerPoint]:
    """Every call without calls within it whose FLOPs, bytes and forward are known, the longest first."""
    points = []
    for node in nodes(table):
        row = node.row
        if node.holds_calls or not row.flops or not row.forward_self_s or row.forward_self_s < 0:
            continue
        if row.input_bytes is None:
            continue
        # A further call reads the same parameters again, although they are counted once.
        weights = row.params_bytes if row.subtree is None else row.subtree.params_bytes
        moved = row.input_bytes + (row.output_bytes or 0) + weights
        if moved:
            name = f"{one_line(row.path)} #{row.call + 1}" if row.call > 0 else one_line(row.path)
            points.append(LayerPoint(name, row.flops, moved, row.forward_self_s))
    return sorted(points, key=lambda point: -point.seconds)


def roofline(table: LayerTable, peaks: Peaks) -> Figure | None:
    """The layers of a table with times; None where none has all that it takes."""
    found = layer_points(table)
    if not found:
        return None
    shown = found[:MOST_POINTS]
    intensities = [point.intensity for point in shown]
    ends = min(*intensities, peaks.ridge) / 2, max(*intensities, peaks.ridge) * 4
    roof_x = [ends[0], peaks.ridge, ends[1]]
    roof_y = [min(peaks.flops_per_s, at * peaks.bytes_per_s) / 1e9 for at in roof_x]
    labels = [
        f"memory: {rounded(peaks.bytes_per_s, 'B/s')}",
        f"ridge: {peaks.ridge:.3g} FLOPs per byte",
        f"arithmetic: {rounded(peaks.flops_per_s, 'FLOP/s')}",
    ]
    name = f"measured peaks, ridge at {peaks.ridge:.3g}"
    roof = scatter(name, roof_x, roof_y, labels, "lines+markers", OTHER_COLOUR)
    roof["line"] |= {"width": 2}
    roof["marker"] |= {"symbol": "diamond"}
    traces = [roof]
    for bound, colour in (("memory", PALETTE[0]), ("arithmetic", PALETTE[1])):
        points = [point for point in shown if (point.intensity < peaks.ridge) == (bound == "memory")]
        if not points:
            continue
        x, y = [point.intensity for point in points], [point.flops_per_s / 1e9 for point in points]
        texts = []
        for point in points:
            roof_here = min(peaks.flops_per_s, point.intensity * peaks.bytes_per_s)
            rate = f"{rounded(point.flops_per_s, 'FLOP/s')}, {point.flops_per_s / roof_here:.0%} of the roof"
            time = rounded(point.seconds, "s")
            texts.append(f"{point.name}: {time}, {rate}, {point.intensity:.3g} FLOPs per byte")
        cloud = scatter(f"layers, bound by {bound}", x, y, texts, "markers", colour)
        sizes = [diameter(point, shown[0]) for point in points]
        cloud["marker"] |= {"size": sizes, "opacity": 0.75, "line": {"width": 0.6, "color": "#ffffff"}}
        traces.append(cloud)
    share = sum(point.seconds for point in shown) / sum(row.forward_self_s or 0.0 for row in table.rows)
    title = (
        f"Roofline of the forward, {peaks.dtype} on {peaks.device}: peaks measured at "
        f"{rounded(peaks.flops_per_s, 'FLOP/s')} and {rounded(peaks.bytes_per_s, 'B/s')}"
    )
    caption = (
        f"The layers shown take {share:.0%} of the time; the area of a point is proportional to its time. Containers, and "
        "layers without FLOPs, are left out. The bytes are the least that a layer has to move: a layer whose data stay in a cache "
        "can be above the roof."
    )
    layout = {
        "xaxis": axis("arithmetic intensity (FLOPs per byte of inputs, outputs and parameters)", is_log=True),
        "yaxis": axis("achieved GFLOP/s", is_log=True),
        "annotations": notes(shown, ends, peaks),
    }
    return figure("roofline", title, traces, layout, caption)


def notes(points: Sequence[LayerPoint], ends: tuple[float, float], peaks: Peaks) -> list[dict[str, Any]]:
    """Names of those that take the most time; none stands where another does.

    Args:
        points: the longest first.
        ends: of the axis of intensity.
        peaks: whose FLOP/s is the upper end of the other axis.
    """
    slowest = min(point.flops_per_s for point in points)
    least = _LEAST_SHARE * sum(point.seconds for point in points)
    taken: list[tuple[float, float, float]] = []
    found: list[dict[str, Any]] = []
    for point in points:
        text = shortened(point.name, 28)
        x = _log_place(point.intensity, *ends)
        y = _log_place(point.flops_per_s, slowest, peaks.flops_per_s)
        is_right = x < 0.6
        left = x if is_right else x - len(text) * _LETTER
        right = left + len(text) * _LETTER
        is_free = all(abs(y - at) > _LINE or right < start or left > end for start, end, at in taken)
        if is_free and point.seconds >= least and len(found) < MOST_NAMES:
            taken.append((left, right, y))
            gap = diameter(point, points[0]) / 2 + 2
            place = math.log10(point.intensity), math.log10(point.flops_per_s / 1e9)
            found.append(text_beside(*place, text, is_right, gap))
    return found


def diameter(point: LayerPoint, longest: LayerPoint) -> float:
    """Return the diameter of a point in typographic points; its area is proportional to the time."""
    return max(_SMALLEST, _LARGEST * math.sqrt(point.seconds / longest.seconds))


def _log_place(value: float, low: float, high: float) -> float:
    """Return the position of a value on a logarithmic axis of at least one decade, 0..1."""
    return math.log(value / low) / max(math.log(high / low), math.log(10.0))
