"""A roofline (Williams, Waterman, Patterson 2009): FLOP/s of every layer over its arithmetic intensity, below measured peaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sweeprof.numbers import rounded
from sweeprof.report.figure import OTHER_COLOUR, Annotation, Axis, Plot, Series, backend_colour
from sweeprof.report.layers.nesting import nodes
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.peaks import Peaks
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


def roofline(table: LayerTable, peaks: Peaks) -> Plot | None:
    """The layers of a table with times; None where none has all that it takes."""
    found = layer_points(table)
    if not found:
        return None
    shown = found[:MOST_POINTS]
    timed = sum(row.forward_self_s or 0.0 for row in table.rows)
    ends = _ends([point.intensity for point in shown], peaks.ridge)
    bound = [[p for p in shown if (p.intensity >= peaks.ridge) == is_right] for is_right in (False, True)]
    names = ("layers, bound by memory", "layers, bound by arithmetic")
    clouds = [
        _cloud(name, colour, points, shown[0], peaks)
        for name, colour, points in zip(names, _COLOURS, bound, strict=True)
        if points
    ]
    share = sum(point.seconds for point in shown) / timed
    return Plot(
        key="roofline",
        title=f"Roofline of the forward, {peaks.dtype} on {peaks.device}: peaks measured at "
        f"{rounded(peaks.flops_per_s, 'FLOP/s')} and {rounded(peaks.bytes_per_s, 'B/s')}",
        x=Axis("arithmetic intensity (FLOPs per byte of inputs, outputs and parameters)", log=True),
        y=Axis("achieved GFLOP/s", log=True),
        series=(_roof(peaks, ends), *clouds),
        notes=notes(shown, ends, peaks),
        caption=f"The layers shown take {share:.0%} of the time; the area of a point is proportional to its time. Containers, and "
        "layers without FLOPs, are left out. The bytes are the least that a layer has to move: a layer whose data stay in a cache "
        "can be above the roof.",
    )


def notes(points: Sequence[LayerPoint], ends: tuple[float, float], peaks: Peaks) -> tuple[Annotation, ...]:
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
    found: list[Annotation] = []
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
            found.append(
                Annotation(point.intensity, point.flops_per_s / 1e9, text, "right" if is_right else "left", gap)
            )
    return tuple(found)


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


def _ends(intensities: Sequence[float], ridge: float) -> tuple[float, float]:
    return min(*intensities, ridge) / 2, max(*intensities, ridge) * 4


def _roof(peaks: Peaks, ends: tuple[float, float]) -> Series:
    x = (ends[0], peaks.ridge, ends[1])
    y = tuple(min(peaks.flops_per_s, at * peaks.bytes_per_s) / 1e9 for at in x)
    labels = (
        f"memory: {rounded(peaks.bytes_per_s, 'B/s')}",
        f"ridge: {peaks.ridge:.3g} FLOPs per byte",
        f"arithmetic: {rounded(peaks.flops_per_s, 'FLOP/s')}",
    )
    name = f"measured peaks, ridge at {peaks.ridge:.3g}"
    return Series(name, OTHER_COLOUR, x, y, labels, marker="diamond")


def _cloud(name: str, colour: str, points: Sequence[LayerPoint], longest: LayerPoint, peaks: Peaks) -> Series:
    x, y = tuple(point.intensity for point in points), tuple(point.flops_per_s / 1e9 for point in points)
    labels = tuple(_label(point, peaks) for point in points)
    sizes = tuple(diameter(point, longest) for point in points)
    return Series(name, colour, x, y, labels, lines=False, sizes=sizes)


def _label(point: LayerPoint, peaks: Peaks) -> str:
    roof = min(peaks.flops_per_s, point.intensity * peaks.bytes_per_s)
    time = rounded(point.seconds, "s")
    rate = f"{rounded(point.flops_per_s, 'FLOP/s')}, {point.flops_per_s / roof:.0%} of the roof"
    return f"{point.name}: {time}, {rate}, {point.intensity:.3g} FLOPs per byte"
