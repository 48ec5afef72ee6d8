"""A picture of what a step allocates over time, its peak marked."""

from __future__ import annotations

from collections.abc import Sequence

from sweeprof.numbers import rounded
from sweeprof.report.figure import OTHER_COLOUR, Figure, axis, backend_colour, figure, scatter, text_beside
from sweeprof.report.layers.nesting import place_text
from sweeprof.results.memory import Allocations, Moment
from sweeprof.text import shortened

MOST_MOMENTS = 800
_MIB = 2.0**20
_COLOURS = [backend_colour(name, ("line", "peak")) for name in ("line", "peak")]


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
    line = scatter("allocated", ms, [moment.bytes / _MIB for moment in moments], labels, "lines", _COLOURS[0])
    line["line"] |= {"shape": "hv"}  # constant up to the next moment
    line |= {"fill": "tozeroy", "fillcolor": f"{_COLOURS[0]}26"}
    peak_ms = 1e3 * max(moments, key=lambda moment: moment.bytes).s
    peak_mib = allocations.peak_bytes / _MIB
    text = f"peak {rounded(allocations.peak_bytes, 'B')} in {shortened(place_text(allocations.peak_at), 48)}"
    peak = scatter("peak", [peak_ms], [peak_mib], [text], "markers", _COLOURS[1])
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
