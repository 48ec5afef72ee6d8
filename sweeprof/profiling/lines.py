"""Time and memory by source line of Python functions, whatever framework they use.

Time is measured by line_profiler, which asks the clock before and after every line: what that costs, some tenths of a microsecond
a line, is in the figures. Memory is measured in another step, because following allocations is slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FunctionType

from sweeprof.errors import Unsupported
from sweeprof.profiling.functions import qualified, source_lines
from sweeprof.profiling.line_memory import LineMemory, Step
from sweeprof.report.lines import reports
from sweeprof.results.lines import FunctionLines, Line, Lines

WARMUP = 3
"""Steps that are not timed: the first ones allocate, choose kernels and fill caches."""
STEPS = 20
LIMIT_S = 5.0
"""No further step is timed after as many seconds."""

MeasureMemory = Callable[[Sequence[FunctionType], Step], LineMemory]
Times = Mapping[CodeType, Mapping[int, tuple[int, float]]]
"""Hits and seconds by function and line number; a line that is not in it never ran."""


def watched(functions: Sequence[FunctionType], step: Step, memory: MeasureMemory, device: str) -> Lines:
    """Time by line over several steps, then memory by line in one more; with the reports as files.

    Raises:
        Unsupported: line_profiler is not installed.
        Exception: whatever the step raised.
    """
    times, steps = line_times(functions, step)
    allocations = memory(functions, step)
    found = tuple(_lines_of(function, times, allocations) for function in functions)
    lines = Lines(found, steps, allocations.reason, device)
    return replace(lines, files=reports(lines))


def line_times(functions: Sequence[FunctionType], step: Step) -> tuple[Times, int]:
    """Hits and seconds by line, and over how many steps; functions and trace function are in the end as before.

    Raises:
        Unsupported: line_profiler is not installed.
        Exception: whatever the step raised.
    """
    try:
        from line_profiler import LineProfiler  # puts an earlier trace function back itself
    except ImportError:
        raise Unsupported("line_profiler is not installed: pip install 'sweeprof[lines]'") from None
    for _ in range(WARMUP):
        step()
    profiler = LineProfiler()
    codes = [(function, function.__code__) for function in functions]
    try:
        for function in functions:
            profiler.add_function(function)  # which exchanges its code, to tell it from others of the same instructions
        profiler.enable_by_count()
        try:
            steps = _repeat(step)
        finally:
            profiler.disable_by_count()
    finally:
        for function, code in codes:
            function.__code__ = code
    stats = profiler.get_stats()
    found = {(file, first): timings for (file, first, _), timings in stats.timings.items()}
    return {
        code: {
            number: (hits, ticks * stats.unit)
            for number, hits, ticks in found.get((code.co_filename, code.co_firstlineno), ())
        }
        for _, code in codes
    }, steps


def _repeat(step: Step) -> int:
    end, done = time.perf_counter() + LIMIT_S, 0
    while done < STEPS and (done == 0 or time.perf_counter() < end):
        step()
        done += 1
    return done


def _lines_of(function: FunctionType, times: Times, memory: LineMemory) -> FunctionLines:
    code = function.__code__
    timed, allocated, peak = times[code], memory.allocated.get(code, {}), memory.peak.get(code, {})
    is_measured = memory.reason is None
    lines = tuple(
        Line(
            number,
            text,
            *timed.get(number, (0, 0.0)),
            allocated_bytes=allocated.get(number, 0) if is_measured else None,
            peak_bytes=peak.get(number, 0) if is_measured else None,
        )
        for number, text in source_lines(function).items()
    )
    return FunctionLines(qualified(function), code.co_filename, code.co_firstlineno, lines)
