"""The charts of the page, their initial state, and the colours that they share with the pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sweeprof.report.figure import DASHES, MARKERS, OTHER_COLOUR, PALETTE

PageData = Mapping[str, Any]
"""What :func:`sweeprof.report.explore.data.page_data` gives."""

_TIMES = ("latency/iteration", "latency/forward", "generation/time_per_token", "throughput/samples_per_s")
_PER_SAMPLE = "latency/per_sample"
_AGAINST_TIME = (
    "generation/decode_throughput",
    *(
        "quality/accuracy",
        "memory/cuda_allocated_peak_bytes",
        "memory/alloc_peak_bytes",
        "memory/added_bytes",
        "memory/rss_peak_bytes",
    ),
    *("params/total", "compute/macs_per_sample"),
)
"""What is weighed against time, the first that differs between combinations and that half of those with a time have."""
_COLOURED = ("backend", "model")
_BATCH = "batch_size"


def charts(data: PageData, pareto: Sequence[str] = ()) -> dict[str, Any]:
    """``figures``: by chart that has something to show, what is chosen at first; ``look``: colours, dashes, markers.

    Axes and metrics are places in ``data``. ``scaling`` has ``axis``, ``metric``; ``pareto`` has ``x``, ``y``, metrics; ``heatmap``
    has ``x``, ``y``, axes, and ``metric``; ``samples`` has ``axis``, over which combinations stand side by side. No figures: there
    is nothing to draw.

    Args:
        data: of the page.
        pareto: the metrics that the sweep itself asks a front of.
    """
    varying = [place for place, axis in enumerate(data["axes"]) if axis["varies"]]
    found = {
        "scaling": _scaling(data, varying),
        "pareto": _pareto(data, pareto),
        "heatmap": _heatmap(data, varying),
        "samples": _samples(data, varying),
    }
    return {
        "look": {"palette": PALETTE, "other": OTHER_COLOUR, "dashes": DASHES, "markers": MARKERS},
        "colour": _first(_named(data["axes"], "key", _COLOURED), varying.__contains__) or next(iter(varying), None),
        "shape": _first(_named(data["axes"], "key", ("model",)), varying.__contains__),
        "batch": _first(_named(data["axes"], "key", (_BATCH,)), varying.__contains__),
        "figures": {key: chosen for key, chosen in found.items() if chosen is not None},
    }


def _scaling(data: PageData, varying: Sequence[int]) -> dict[str, int] | None:
    numeric = [axis for axis in varying if data["axes"][axis]["numbers"] is not None]
    axis = _first(_named(data["axes"], "key", (_BATCH,)), numeric.__contains__)
    axis = next(iter(numeric), None) if axis is None else axis
    metric = _main_metric(data)
    return None if axis is None or metric is None else {"axis": axis, "metric": metric}


def _pareto(data: PageData, pareto: Sequence[str]) -> dict[str, int] | None:
    metrics = data["metrics"]
    differing = {
        place
        for place, metric in enumerate(metrics)
        if metric["better"] is not None and len(set(_values(data, place))) > 1
    }
    wanted = [place for place in _named(metrics, "name", pareto) if place in differing]
    if len(wanted) >= 2:
        return {"x": wanted[0], "y": wanted[1]}
    batched = any(axis["key"] == _BATCH and axis["varies"] for axis in data["axes"])
    # A larger batch always takes longer: then it is the time of a sample that is weighed.
    times = (_PER_SAMPLE, *_TIMES) if batched else _TIMES
    x = _first([*_named(metrics, "name", times), *sorted(differing)], differing.__contains__)
    against_time = [*_named(metrics, "name", _AGAINST_TIME), *sorted(differing)]
    fitting = differing - {x}
    common = {place for place in fitting if x is not None and 2 * _together(data, x, place) >= len(_values(data, x))}
    y = _first(against_time, (common or fitting).__contains__)
    return None if x is None or y is None else {"x": x, "y": y}


def _heatmap(data: PageData, varying: Sequence[int]) -> dict[str, int] | None:
    metric = _main_metric(data)
    if len(varying) < 2 or metric is None:
        return None
    axes = data["axes"]
    x = _first([*_named(axes, "key", (_BATCH,)), *reversed(varying)], varying.__contains__)
    y = _first([*_named(axes, "key", ("model",)), *varying], lambda place: place in varying and place != x)
    return {"x": x, "y": y, "metric": metric} if x is not None and y is not None else None


def _samples(data: PageData, varying: Sequence[int]) -> dict[str, int] | None:
    if not varying or not any(round for row in _usable(data) for round in row["samples"] or ()):
        return None
    # What the baseline is chosen by is what differs between those one wants side by side.
    axis = _first(_named(data["axes"], "key", (*data["own_axes"], *_COLOURED)), varying.__contains__)
    return {"axis": varying[0] if axis is None else axis}


def _main_metric(data: PageData) -> int | None:
    """The time of a step, else the first metric that differs, else the first with any value."""
    metrics = data["metrics"]
    known = {place for place in range(len(metrics)) if _values(data, place)}
    differing = [place for place in sorted(known) if len(set(_values(data, place))) > 1]
    return _first([*_named(metrics, "name", _TIMES), *differing, *sorted(known)], known.__contains__)


def _values(data: PageData, metric: int) -> list[float]:
    return [found[0] for row in _usable(data) if (found := row["values"].get(str(metric)))]


def _together(data: PageData, one: int, other: int) -> int:
    """Return the number of rows that have both metrics."""
    return sum(str(one) in row["values"] and str(other) in row["values"] for row in _usable(data))


def _usable(data: PageData) -> list[PageData]:
    """The rows that are drawn: those that are complete, or have at least one complete round."""
    return [row for row in data["rows"] if row["status"] == "ok" or "incomplete" in row]


def _named(items: Sequence[PageData], field: str, names: Sequence[str]) -> Iterator[int]:
    """The places of the items of those names, in the order of the names."""
    places = {item[field]: place for place, item in enumerate(items)}
    return (places[name] for name in names if name in places)


def _first(places: Iterator[int] | Sequence[int], fits: Callable[[int], bool]) -> int | None:
    return next((place for place in places if fits(place)), None)
