"""Data frames of layer times: statistics per call, or every repeat of every call."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sweeprof.errors import UserError
from sweeprof.results.layer_times import LayerTimes

if TYPE_CHECKING:
    import pandas

STATISTICS: dict[str, Callable[[Sequence[float]], float | None]] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    # Of a sample, with n − 1: one repeat has none.
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else None,
    "median": statistics.median,
}
_NAMES = {"path": str, "type": str, "call": int, "repeats": int, "repeat": int, "warmup": bool}


def call_frame(times: LayerTimes, aggr: bool = True, inclusive: bool = True) -> pandas.DataFrame:
    """Seconds of every call of every module, in the order of the calls.

    With ``aggr`` one line per call: ``path type call repeats``, then ``forward_mean_s``, ``_max_s``, ``_min_s``, ``_std_s``
    (n − 1) and ``_median_s`` over the repeats that count, the same of ``backward``, and ``reason``, why there is no backward.
    Without, one line per call and repeat: ``path type call repeat warmup forward_s backward_s reason``; the repeats for
    warming up are among them, and marked.

    Args:
        times: as measured.
        aggr: whether to aggregate.
        inclusive: whether seconds are those of a call with the calls within it, or its own.

    Example:
        >>> frame = times.with_warmup(100).to_frame()
        >>> frame.to_csv(), frame.to_html(), frame.to_latex(), frame.to_dict("records")
    """
    forward, backward = _per_repeat(times, "forward", inclusive), _per_repeat(times, "backward", inclusive)
    lines: list[dict[str, Any]] = []
    for call, ahead, back in zip(times.calls, forward, backward, strict=True):
        named = {"path": call.path, "type": call.type, "call": call.call}
        reason = None if back else call.reason or "the backward was not measured"
        lines += _lines(times.warmup, named, {"forward": ahead, "backward": back}, aggr, {"reason": reason})
    return _frame(lines)


def total_frame(times: LayerTimes, aggr: bool = True) -> pandas.DataFrame:
    """Seconds of whole forwards, and backwards where measured, without any probes; columns as in :func:`call_frame`.

    Raises:
        UserError: every step had probes.
    """
    if not times.forward.plain:
        raise UserError("every step had probes, so that there are no seconds without them")
    phases = {"forward": times.forward, **({"backward": times.backward} if times.backward else {})}
    return _frame(_lines(times.warmup, {}, {name: list(phase.plain) for name, phase in phases.items()}, aggr, {}))


def _per_repeat(times: LayerTimes, phase: str, inclusive: bool) -> list[list[float]]:
    """Per call its seconds, repeat by repeat; empty where they are not known."""
    sums = [list(getattr(call, phase)) for call in times.calls]
    for index in range(len(sums) - 1 if inclusive else -1, -1, -1):  # a call comes after the one it was made in
        parent = times.calls[index].parent
        if parent is not None and sums[index]:
            above = sums[parent] or [0.0] * len(sums[index])
            sums[parent] = [a + b for a, b in zip(above, sums[index], strict=True)]
    return sums


def _lines(
    warmup: int, named: dict[str, Any], phases: dict[str, list[float]], aggr: bool, after: dict[str, Any]
) -> list[dict[str, Any]]:
    count = len(phases["forward"])
    if not aggr:
        return [
            {
                **named,
                "repeat": repeat,
                "warmup": repeat < warmup,
                **{f"{name}_s": values[repeat] if values else None for name, values in phases.items()},
                **after,
            }
            for repeat in range(count)
        ]
    figures = {
        f"{name}_{statistic}_s": of(values[warmup:]) if values else None
        for name, values in phases.items()
        for statistic, of in STATISTICS.items()
    }
    return [{**named, "repeats": count - warmup, **figures, **after}]


def _frame(lines: list[dict[str, Any]]) -> pandas.DataFrame:
    """A column with unknown values holds objects, so that they stay None and do not turn into NaN."""
    import pandas

    frame = pandas.DataFrame(lines, dtype=object)
    known = [name for name in frame.columns if all(line[name] is not None for line in lines)]
    kinds = {name: _NAMES.get(name, str if name == "reason" else float) for name in known}
    return frame.astype(kinds)
