"""Data frames of results: a line per repeat or statistics over the repeats, and columns that describe the host."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sweeprof.errors import Problem, UserError
from sweeprof.results.record import Json

if TYPE_CHECKING:
    import pandas

Host = Mapping[str, str | int]
"""Columns that describe a host, as :func:`sweeprof.results.environment.host_columns` returns them."""

STATISTICS: dict[str, Callable[[Sequence[float]], float | None]] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    # Of a sample, with n − 1: one repeat has none.
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else None,
    "median": statistics.median,
}
_NAMES = {"path": str, "type": str, "call": int, "repeats": int, "repeat": int, "warmup": bool, "reason": str}


def with_host(frame: pandas.DataFrame, host: Host, is_wanted: bool) -> pandas.DataFrame:
    """Return the frame, also with columns that describe the host if these are wanted.

    Raises:
        UserError: they are wanted, and the host is not known.
    """
    if not is_wanted:
        return frame
    if not host:
        message = "needs a known host: a result that was read from a file has none."
        raise UserError([Problem("host", True, message)])
    return frame.assign(**host)


def repeat_lines(
    warmup: int, named: Json, phases: Mapping[str, Sequence[float]], aggr: bool, reasons: Sequence[str] = ()
) -> list[Json]:
    """Return the lines of a frame of seconds: with ``aggr`` one line of statistics, else one for each repeat.

    Args:
        warmup: number of repeats at the beginning that are for warming up; statistics leave them out, other lines mark them.
        named: the first columns.
        phases: seconds by name, one per repeat; empty where they are not known.
        aggr: whether to aggregate.
        reasons: why values are missing.
    """
    count = max(map(len, phases.values()))
    lines = []
    if aggr:
        line = {**named, "repeats": count - warmup}
        for name, values in phases.items():
            for statistic, compute in STATISTICS.items():
                line[f"{name}_{statistic}_s"] = compute(values[warmup:]) if values else None
        if count - warmup == 1:
            reasons = [*reasons, "one repeat has no standard deviation"]
        lines.append({**line, "reason": "; ".join(reasons) or None})
    else:
        for repeat in range(count):
            seconds = {f"{name}_s": values[repeat] if values else None for name, values in phases.items()}
            line = {**named, "repeat": repeat, "warmup": repeat < warmup, **seconds}
            lines.append({**line, "reason": "; ".join(reasons) or None})
    return lines


def repeat_frame(lines: Sequence[Json]) -> pandas.DataFrame:
    """Return the lines of :func:`repeat_lines` as a frame.

    A column with unknown values holds objects, so that they stay None and do not turn into NaN.
    """
    import pandas

    frame = pandas.DataFrame(lines, dtype=object)
    known = [name for name in frame.columns if all(line[name] is not None for line in lines)]
    return frame.astype({name: _NAMES.get(name, float) for name in known})
