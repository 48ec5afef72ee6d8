"""Memory by source line: of the host as memray sees it, of an accelerator by a meter that is read at every line.

Source of the second way: pytorch_memlab's LineProfiler, which reads the statistics of CUDA's allocator within ``sys.settrace``.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Protocol

from sweeprof.profiling.functions import executable_lines

Step = Callable[[], object]
ByLine = Mapping[CodeType, Mapping[int, int]]
"""Bytes by function and line number; a line that is not in it has none."""


@dataclass(frozen=True, slots=True)
class LineMemory:
    """What the lines allocated in one step."""

    allocated: ByLine = field(default_factory=dict)
    peak: ByLine = field(default_factory=dict)
    reason: str | None = None
    """Why it could not be measured."""


def host_memory(functions: Sequence[FunctionType], step: Step) -> LineMemory:
    """Run one step while memray follows every allocation of the process, whoever makes it.

    An allocation belongs to every watched line that is in its stack. Raises what the step raises.
    """
    try:
        import memray
    except ImportError:
        return LineMemory(reason="memray is not installed: pip install 'sweeprof[lines]'")
    with tempfile.TemporaryDirectory(prefix="sweeprof-lines-") as folder:
        file = Path(folder) / "allocations"
        with ExitStack() as stack:
            try:
                stack.enter_context(memray.Tracker(file))
            except (RuntimeError, OSError) as error:  # another tracker is active, or there is no room for the file
                return LineMemory(reason=f"memray: {error}")
            step()
        releases = {memray.AllocatorType[name] for name in ("FREE", "PYMALLOC_FREE", "MUNMAP")}
        watched = _Frames(functions)
        with memray.FileReader(file) as reader:
            allocated = watched.sums(r for r in reader.get_allocation_records() if r.allocator not in releases)
        with memray.FileReader(file) as reader:
            peak = watched.sums(reader.get_high_watermark_allocation_records(merge_threads=True))
    return LineMemory(allocated, peak)


class _Frames:
    """Finds the lines of functions in the stacks of memray's records."""

    def __init__(self, functions: Sequence[FunctionType]) -> None:
        self._by_name: dict[tuple[str, str], list[tuple[CodeType, set[int]]]] = defaultdict(list)
        for code in (function.__code__ for function in functions):
            for name in {code.co_name, code.co_qualname}:  # memray gives one or the other, by the version of Python
                self._by_name[name, code.co_filename].append((code, executable_lines(code)))

    def sums(self, records: Iterable[Any]) -> ByLine:
        """Bytes of the records by line; a line that recurs in one stack has them once."""
        by_stack: Counter[int] = Counter()
        lines_of: dict[int, set[tuple[CodeType, int]]] = {}
        for record in records:
            by_stack[record.stack_id] += record.size
            if record.stack_id not in lines_of:
                lines_of[record.stack_id] = self._lines(record.stack_trace())
        found: dict[CodeType, Counter[int]] = defaultdict(Counter)
        for stack, size in by_stack.items():
            for code, number in lines_of[stack]:
                found[code][number] += size
        return found

    def _lines(self, stack: Sequence[tuple[str, str, int]]) -> set[tuple[CodeType, int]]:
        return {
            (code, number)
            for name, file, number in stack
            for code, numbers in self._by_name.get((name, file), ())
            if number in numbers
        }


class AllocationMeter(Protocol):
    """Reads an allocator; bytes."""

    def allocated(self) -> int:
        """All that has ever been allocated, released or not; differences count."""

    def current(self) -> int:
        """What is allocated now."""

    def peak(self) -> int:
        """The highest :meth:`current` since :meth:`reset_peak`."""

    def reset_peak(self) -> None:
        """Let the peak begin at the present value."""


def metered_memory(meter: AllocationMeter, functions: Sequence[FunctionType], step: Step) -> LineMemory:
    """Run one step while the meter is read at every line of the functions; an earlier trace function is put back.

    The step's own thread is watched. Raises what the step raises.
    """
    lines = _MeteredLines(meter, functions)
    tracing = sys.gettrace()
    sys.settrace(lines.entered)
    try:
        step()
    finally:
        sys.settrace(tracing)
    return LineMemory(lines.allocated, lines.peak)


@dataclass(slots=True)
class _Running:
    """A line that has begun and not ended, of a function that may be calling another one."""

    code: CodeType
    number: int
    allocated: int
    begin: int
    highest: int


class _MeteredLines:
    def __init__(self, meter: AllocationMeter, functions: Sequence[FunctionType]) -> None:
        self._meter = meter
        self._codes = {function.__code__ for function in functions}
        self._running: list[_Running] = []
        self.allocated: dict[CodeType, Counter[int]] = defaultdict(Counter)
        self.peak: dict[CodeType, Counter[int]] = defaultdict(Counter)

    def entered(self, frame: FrameType, event: str, _: Any) -> Any:
        """The trace function of the thread: called for every function that begins or resumes."""
        if event != "call" or frame.f_code not in self._codes:
            return None
        self._note_peak()
        self._begin(frame)
        return self._within

    def _within(self, frame: FrameType, event: str, _: Any) -> Any:
        if event in ("line", "return"):  # the second also with a yield, and with an exception that leaves the function
            self._end()
        if event == "line":
            self._begin(frame)
        return self._within

    def _begin(self, frame: FrameType) -> None:
        now = self._meter.current()
        self._running.append(_Running(frame.f_code, frame.f_lineno, self._meter.allocated(), now, now))

    def _end(self) -> None:
        self._note_peak()
        line = self._running.pop()
        self.allocated[line.code][line.number] += self._meter.allocated() - line.allocated
        peaks = self.peak[line.code]
        peaks[line.number] = max(peaks[line.number], line.highest - line.begin)

    def _note_peak(self) -> None:
        """Tell every line that is running how high it went, as the peak now begins anew for the next."""
        peak = self._meter.peak()
        for line in self._running:
            line.highest = max(line.highest, peak)
        self._meter.reset_peak()
