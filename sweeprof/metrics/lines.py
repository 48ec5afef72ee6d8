"""What line profiling found, in a few numbers; the reports are artifacts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.results.lines import FunctionLines, Line, Lines

NOT_CALLED = Missing("no step called a function that was watched")


@metric(name="lines/slowest_share", unit="ratio", better="lower")
def slowest_share(lines: Lines) -> Estimate | Missing:
    """Of the line that took longest, its calls included: its share of the time of its function."""
    found = _largest(lines, lambda line: line.seconds)
    if found is None:
        return NOT_CALLED
    function, line = found
    return Estimate(line.seconds / function.seconds, "single", detail={"line": _described(function, line)})


@metric(name="lines/largest_bytes", unit="B", better="lower")
def largest_bytes(lines: Lines) -> Estimate | Missing:
    """Most that one line allocated in one step, its calls included, released or not."""
    if lines.memory_reason is not None:
        return Missing(lines.memory_reason)
    if not any(function.is_called for function in lines.functions):
        return NOT_CALLED
    found = _largest(lines, lambda line: line.allocated_bytes or 0)
    if found is None:
        return Estimate(0, "single")
    function, line = found
    return Estimate(line.allocated_bytes or 0, "single", detail={"line": _described(function, line)})


def _largest(lines: Lines, figure: Callable[[Line], float]) -> tuple[FunctionLines, Line] | None:
    """The line with the greatest figure and its function; None where no line has any."""
    every = [(function, line) for function in lines.functions for line in function.lines if figure(line) > 0]
    return max(every, key=lambda pair: figure(pair[1]), default=None)


def _described(function: FunctionLines, line: Line) -> str:
    return f"{Path(function.file).name}:{line.number} {line.source.strip()}".rstrip()
