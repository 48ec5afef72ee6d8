"""A roofline (Williams, Waterman, Patterson 2009): FLOP/s of every layer over its arithmetic intensity, below measured peaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeprof.numbers import rounded
from sweeprof.report.figure import OTHER_COLOUR, Figure, axis, backend_colour, figure, scatter, text_beside
from sweeprof.report.layers.cells import nodes
from sweeprof.results.environment import Peaks
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.text import one_line, shortened

MOST_POINTS = 400
MOST_NAMES = 8
_LEAST_SHARE = 0.02
"""Of the time that is drawn; less has no name."""
_LETTER, _LINE = 0.0105, 0.06
"""Share of the picture's width that a letter takes, and of its height that a line takes."""
_SMALLEST, _LARGEST = 3.0, 24.0
"""Diameters, in points of a page."""
_COLOURS = [backend_colour(name, ("bytes", "arithmetic")) for name in ("bytes", "arithmetic")]


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
    found = [_point(node.row) for node in nodes(table) if not node.holds_calls]
    return sorted((point for point in found if point is not None), key=lambda point: -point.seconds)


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
    by_memory = [point for point in shown if point.intensity < peaks.ridge]
    by_arithmetic = [point for point in shown if point.intensity >= peaks.ridge]
    for bound, colour, points in (("memory", _COLOURS[0], by_memory), ("arithmetic", _COLOURS[1], by_arithmetic)):
        if points:
            x, y = [point.intensity for point in points], [point.flops_per_s / 1e9 for point in points]
            texts = [_label(point, peaks) for point in points]
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
    across = _LogAxis(*ends)
    along = _LogAxis(min(point.flops_per_s for point in points), peaks.flops_per_s)
    least = _LEAST_SHARE * sum(point.seconds for point in points)
    taken: list[tuple[float, float, float]] = []
    found: list[dict[str, Any]] = []
    for point in points:
        text = shortened(point.name, 28)
        x, y = across.place(point.intensity), along.place(point.flops_per_s)
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


class _LogAxis:
    """Positions of values on a logarithmic axis, 0..1."""

    def __init__(self, low: float, high: float) -> None:
        self.low = math.log(low)
        self.length = max(math.log(high) - self.low, math.log(10.0))

    def place(self, value: float) -> float:
        return (math.log(value) - self.low) / self.length


def _point(row: LayerRow) -> LayerPoint | None:
    if not row.flops or not row.forward_self_s or row.forward_self_s < 0 or row.input_bytes is None:
        return None
    # A further call reads the same parameters again, although they are counted once.
    weights = row.params_bytes if row.subtree is None else row.subtree.params_bytes
    moved = row.input_bytes + (row.output_bytes or 0) + weights
    name = one_line(row.path) + (f" #{row.call + 1}" if row.call > 0 else "")
    return LayerPoint(name, row.flops, moved, row.forward_self_s) if moved else None


def _label(point: LayerPoint, peaks: Peaks) -> str:
    roof = min(peaks.flops_per_s, point.intensity * peaks.bytes_per_s)
    time = rounded(point.seconds, "s")
    rate = f"{rounded(point.flops_per_s, 'FLOP/s')}, {point.flops_per_s / roof:.0%} of the roof"
    return f"{point.name}: {time}, {rate}, {point.intensity:.3g} FLOPs per byte"
