"""A picture of what a step allocates over time, its peak marked."""

from __future__ import annotations

from collections.abc import Sequence

from sweeprof.numbers import rounded
from sweeprof.report.figure import OTHER_COLOUR, Annotation, Axis, Plot, Series, backend_colour
from sweeprof.report.layers.nesting import place_text
from sweeprof.results.memory import Allocations, Moment
from sweeprof.text import shortened

MOST_MOMENTS = 800
_MIB = 2.0**20
_COLOURS = [backend_colour(name, ("line", "peak")) for name in ("line", "peak")]


def memory_over_time(allocations: Allocations, estimate_bytes: float | None = None) -> Plot | None:
    """Bytes alive above those before the first step, in MiB over ms; None where nothing was allocated.

    Args:
        allocations: what was seen.
        estimate_bytes: the peak of live tensors as the analysis has it, drawn as a line.
    """
    if not allocations.timeline:
        return None
    moments = thinned_moments(allocations.timeline, MOST_MOMENTS)
    peak = max(moments, key=lambda moment: moment.bytes)
    text = f"peak {rounded(allocations.peak_bytes, 'B')} in {shortened(place_text(allocations.peak_at), 48)}"
    x, y = 1e3 * peak.s, allocations.peak_bytes / _MIB
    first, last = 1e3 * moments[0].s, 1e3 * moments[-1].s
    series = [_line(moments), Series("peak", _COLOURS[1], (x,), (y,), (text,), marker="diamond", lines=False)]
    if estimate_bytes is not None:
        name = f"estimate from shapes, {rounded(estimate_bytes, 'B')}"
        height = estimate_bytes / _MIB
        series.append(
            Series(name, OTHER_COLOUR, (first, last), (height, height), (name, name), dash="dash", points=False)
        )
    left_out = len(allocations.timeline) - len(moments)
    steps = "the first step" if allocations.steps == 1 else f"the first {allocations.steps} steps"
    caption = f"Memory that {steps} allocated and had not released, in addition to what was allocated before."
    return Plot(
        key="memory",
        title=f"Memory over time: {allocations.mode}",
        x=Axis("time within the steps (ms)"),
        y=Axis("allocated (MiB)"),
        series=tuple(series),
        # The estimate may be a line at the very height of the peak.
        notes=(Annotation(x, y, text, "right" if x - first <= (last - first) / 2 else "left", is_above=True),),
        caption=caption + (f" {left_out} of {len(allocations.timeline)} moments are left out." if left_out > 0 else ""),
    )


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


def _line(moments: Sequence[Moment]) -> Series:
    x, y = tuple(1e3 * moment.s for moment in moments), tuple(moment.bytes / _MIB for moment in moments)
    labels = tuple(f"{rounded(m.bytes, 'B')}, {1e3 * m.s:.4g} ms, {place_text(m.path)}" for m in moments)
    return Series("allocated", _COLOURS[0], x, y, labels, points=False, steps=True, filled=True)
