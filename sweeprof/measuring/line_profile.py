"""Time and memory by source line of Python functions, whatever framework they use.

Time is measured by line_profiler, which asks the clock before and after every line: what that costs, some tenths of a microsecond
a line, is in the figures. Memory is measured in another step, because following allocations is slow.
"""

from __future__ import annotations

import inspect
import os
import resource
import sys
import tempfile
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol

from sweeprof.errors import Problem, Unsupported, UserError, described, nearest
from sweeprof.report.operators import reports
from sweeprof.results.observations import FunctionLines, Line, Lines

if TYPE_CHECKING:
    from _typeshed import TraceFunction

KEY = "metrics.functions"


def functions_named(names: Sequence[str], classes: Iterable[type] = ()) -> list[FunctionType]:
    """The functions of these dotted names, such as ``my_package.MyNet.forward``, each once.

    Args:
        classes: those of the model. Their functions can be named by the class alone, ``MyNet.forward``, which is the only way
            to name one of a class that was made within a function.

    Raises:
        UserError: with one problem for each name that does not name a function.
        Unsupported: it is one, but not Python's.
    """
    known = list(dict.fromkeys(classes))
    functions: dict[CodeType, FunctionType] = {}
    problems = []
    for name in names:
        owner, _, attribute = name.rpartition(".")
        named = [c for c in known if owner in (c.__name__, c.__qualname__, f"{c.__module__}.{c.__qualname__}")]
        values = [_attribute(c, owner, attribute, name) for c in named]
        for value in values or [_imported(name, known)]:
            function = _checked(name, value)
            if isinstance(function, Problem):
                problems.append(function)
            else:
                functions[function.__code__] = function
    if problems:
        raise UserError(problems)
    return list(functions.values())


def chosen_functions(
    names: Sequence[str], classes: Iterable[type], called: object, title: str
) -> Sequence[FunctionType]:
    """Return the functions of :func:`functions_named`; without any name, the function behind ``called``.

    Args:
        title: of that function, for the message of an error.

    Raises:
        UserError: with one problem for each name that does not name a function.
        Unsupported: a function is not Python's.
    """
    if names:
        return functions_named(names, classes)
    function = python_function(called)
    if function is None:
        raise Unsupported(f"the {title} is no Python function: it has no source lines to watch")
    return [function]


def python_function(called: object) -> FunctionType | None:
    """The function behind a method, a property, a partial or a decorator that tells what it wraps; None: it is not Python's."""
    while not isinstance(called, FunctionType) or hasattr(called, "__wrapped__"):
        match called:
            case MethodType():
                called = called.__func__
            case partial() | cached_property():
                called = called.func
            case property():
                called = called.fget
            case _ if hasattr(called, "__wrapped__"):
                called = called.__wrapped__
            case _:
                return None
    return called


def qualified(function: FunctionType) -> str:
    """E.g. ``my_package.MyNet.forward``."""
    return f"{function.__module__}.{function.__qualname__}"


def executable_lines(code: CodeType) -> set[int]:
    """Numbers of the lines that have code of the function's own; those of functions within it are not among them."""
    return {number for _, _, number in code.co_lines() if number}


def source_lines(function: FunctionType) -> dict[int, str]:
    """The text of every line of the function by its number; without source (``exec``) the executable lines, empty."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(code)
    except OSError:
        return dict.fromkeys(sorted(executable_lines(code)), "")
    texts = textwrap.dedent("".join(line.expandtabs() for line in lines)).splitlines()
    return {first + index: text.rstrip() for index, text in enumerate(texts)}


def _imported(name: str, classes: Sequence[type]) -> object:
    """Return the object with this dotted name, looked up from the longest part that is a module, or the problem."""
    parts = name.split(".")
    value: object = None
    depth = 0
    for length in range(1, len(parts) if all(parts) else 0):
        path = ".".join(parts[:length])
        try:
            value, depth = import_module(path), length
        except Exception as error:  # importing a user's module may raise anything
            if isinstance(error, ModuleNotFoundError) and error.name == path:
                break  # what follows are attributes
            return Problem(KEY, name, f"cannot be imported: {path} raised {described(error)}.")
    if value is None:
        guesses = [f"{c.__name__}.forward" for c in classes]
        return Problem(KEY, name, "is not the dotted name of a function that can be imported.", nearest(name, guesses))
    for index in range(depth, len(parts)):
        value = _attribute(value, ".".join(parts[:index]), parts[index], name)
        if isinstance(value, Problem):
            break
    return value


def _attribute(owner: object, path: str, attribute: str, name: str) -> object:
    try:
        return getattr(owner, attribute)
    except AttributeError:
        close = nearest(attribute, dir(owner))
        return Problem(KEY, name, f"does not exist: {path} has no {attribute!r}.", f"{path}.{close}" if close else None)


def _checked(name: str, value: object) -> FunctionType | Problem:
    """Return the function behind a value; the problem, if there is none or the value is one already."""
    if isinstance(value, Problem):
        return value
    function = python_function(value)
    if function is not None:
        return function
    if isinstance(value, type) or not callable(value):
        kind = "class" if isinstance(value, type) else type(value).__name__
        guess = f"{name}.forward" if hasattr(value, "forward") else None
        return Problem(KEY, name, f"is a {kind}, not a function.", guess)
    raise Unsupported(f"{name} has no source lines to watch: it is a {type(value).__name__}, not a Python function")


# ---------------------------------------------------------------------------------------------------------------------
# Memory by line
# ---------------------------------------------------------------------------------------------------------------------

StepFunction = Callable[[], object]
ByLine = Mapping[CodeType, Mapping[int, int]]
"""Bytes by function and line number; a line that is not in it has none."""


@dataclass(frozen=True, slots=True)
class LineMemory:
    """Memory that the lines allocated in one step."""

    allocated: ByLine = field(default_factory=dict)
    peak: ByLine = field(default_factory=dict)
    reason: str | None = None
    """Why what was allocated could not be measured."""
    usage: ByLine = field(default_factory=dict)
    """What was in use when the line had ended, the highest of its runs."""
    increment: ByLine = field(default_factory=dict)
    """The change of what was in use, over all runs of the line."""
    times: Mapping[CodeType, Mapping[int, tuple[int, float]]] = field(default_factory=dict)
    """Hits and seconds by line, where the lines were timed too; what reading the allocator costs is in them."""


def host_memory(functions: Sequence[FunctionType], step: StepFunction) -> LineMemory:
    """Run one step while the memory of the process is read at every line, and memray records every allocation.

    An allocation, from Python or from native code, belongs to every watched line that is in its stack. Without memray there is the
    memory in use alone, and the reason. Raises what the step raises.
    """
    try:
        import memray
    except ImportError:
        return replace(_used(functions, step), reason="memray is not installed: pip install 'sweeprof[lines]'")
    with tempfile.TemporaryDirectory(prefix="sweeprof-lines-") as folder:
        file = Path(folder) / "allocations"
        reason = None
        with ExitStack() as stack:
            try:
                stack.enter_context(memray.Tracker(file))
            except (RuntimeError, OSError) as error:  # another tracker is active, or there is no room for the file
                reason = f"memray: {error}"
            used = _used(functions, step)
        if reason is not None:
            return replace(used, reason=reason)
        releases = {memray.AllocatorType[name] for name in ("FREE", "PYMALLOC_FREE", "MUNMAP")}
        watched = _Frames(functions)
        with memray.FileReader(file) as reader:
            allocated = watched.sums(r for r in reader.get_allocation_records() if r.allocator not in releases)
        with memray.FileReader(file) as reader:
            peak = watched.sums(reader.get_high_watermark_allocation_records(merge_threads=True))
    return replace(used, allocated=allocated, peak=peak)


class _Frames:
    """Finds the lines of functions in the stacks of memray's records."""

    def __init__(self, functions: Sequence[FunctionType]) -> None:
        self._by_name: dict[tuple[str, str], list[tuple[CodeType, set[int]]]] = defaultdict(list)
        for function in functions:
            code = function.__code__
            for name in {code.co_name, code.co_qualname}:  # memray gives one or the other, by the version of Python
                self._by_name[name, code.co_filename].append((code, executable_lines(code)))

    def sums(self, records: Iterable[Any]) -> ByLine:
        """Return bytes of the records by line; a line that recurs in one stack has them once."""
        by_stack: Counter[int] = Counter()
        lines_of: dict[int, set[tuple[CodeType, int]]] = {}
        for record in records:
            by_stack[record.stack_id] += record.size
            if record.stack_id not in lines_of:
                lines = lines_of[record.stack_id] = set()
                for name, file, number in record.stack_trace():
                    for code, numbers in self._by_name.get((name, file), ()):
                        if number in numbers:
                            lines.add((code, number))
        sums: dict[CodeType, Counter[int]] = defaultdict(Counter)
        for stack, size in by_stack.items():
            for code, number in lines_of[stack]:
                sums[code][number] += size
        return sums


class AllocationMeter(Protocol):
    """Reads an allocator; bytes."""

    def allocated(self) -> int:
        """All that has ever been allocated, released or not; differences count."""

    def current(self) -> int:
        """Return the bytes that are allocated now."""

    def peak(self) -> int:
        """The highest :meth:`current` since :meth:`reset_peak`."""

    def reset_peak(self) -> None:
        """Let the peak begin at the present value."""


def _used(functions: Sequence[FunctionType], step: StepFunction) -> LineMemory:
    """Run one step; return the memory in use in this process at every line."""
    with Path("/proc/self/statm").open("rb") as statm:
        return metered_memory(_ProcessMeter(statm.fileno()), functions, step)


class _ProcessMeter:
    """The memory of this process that is in use now, without pages of files: memray maps the file that it writes."""

    def __init__(self, statm: int) -> None:
        """Args:
        statm: descriptor of ``/proc/self/statm``, which stays open: opening it at every line would allocate memory.
        """
        self._statm, self._page = statm, resource.getpagesize()
        self._text = bytearray(128)

    def allocated(self) -> int:
        """Zero: memray tells."""
        return 0

    def current(self) -> int:
        length = os.preadv(self._statm, [self._text], 0)
        _, resident, shared, *_ = self._text[:length].split()
        return (int(resident) - int(shared)) * self._page

    def peak(self) -> int:
        """Zero: memray tells."""
        return 0

    def reset_peak(self) -> None:
        """Do nothing."""


class WatchedFunctions(list[FunctionType]):
    """Functions that are watched in one step, to which others may be added while it runs."""

    def __init__(self, functions: Iterable[FunctionType] = ()) -> None:
        super().__init__(functions)
        self.codes = {function.__code__ for function in self}

    def append(self, function: FunctionType) -> None:
        super().append(function)
        self.codes.add(function.__code__)


def metered_memory(meter: AllocationMeter, functions: Sequence[FunctionType], step: StepFunction) -> LineMemory:
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
    return LineMemory(lines.allocated, lines.peak, usage=lines.usage, increment=lines.increment, times=lines.times)


@dataclass(slots=True)
class _Running:
    """A line that has begun and not ended, of a function that may be calling another one."""

    code: CodeType
    number: int
    allocated: int
    begin: int
    highest: int
    began_s: float
    is_call: bool
    """True until the first line of the function begins: this is the line of ``def``, which has the memory in use before."""


class _MeteredLines:
    def __init__(self, meter: AllocationMeter, functions: Sequence[FunctionType]) -> None:
        self._meter = meter
        watched = functions if isinstance(functions, WatchedFunctions) else WatchedFunctions(functions)
        self._codes = watched.codes
        self._running: list[_Running] = []
        self.allocated: dict[CodeType, Counter[int]] = defaultdict(Counter)
        self.peak: dict[CodeType, Counter[int]] = defaultdict(Counter)
        self.usage: dict[CodeType, dict[int, int]] = defaultdict(dict)
        self.increment: dict[CodeType, Counter[int]] = defaultdict(Counter)
        self.times: dict[CodeType, dict[int, tuple[int, float]]] = defaultdict(dict)

    def entered(self, frame: FrameType, event: str, _: object) -> TraceFunction | None:
        """The trace function of the thread: called for every function that begins or resumes."""
        if event != "call" or frame.f_code not in self._codes:
            return None
        self._note_peak()
        self._begin(frame, is_call=frame.f_lineno == frame.f_code.co_firstlineno)
        return self._within

    def _within(self, frame: FrameType, event: str, _: object) -> TraceFunction | None:
        if event in ("line", "return"):  # the second also with a yield, and with an exception that leaves the function
            self._note_peak()
            line = self._running.pop()
            self.allocated[line.code][line.number] += self._meter.allocated() - line.allocated
            peaks = self.peak[line.code]
            peaks[line.number] = max(peaks[line.number], line.highest - line.begin)
            now, usage = self._meter.current(), self.usage[line.code]
            usage[line.number] = max(usage.get(line.number, now), now)
            self.increment[line.code][line.number] += now - line.begin
            if not line.is_call:
                hits, seconds = self.times[line.code].get(line.number, (0, 0.0))
                self.times[line.code][line.number] = (hits + 1, seconds + time.perf_counter() - line.began_s)
        if event == "line":
            self._begin(frame)
        return self._within

    def _begin(self, frame: FrameType, *, is_call: bool = False) -> None:
        now = self._meter.current()
        self._running.append(
            _Running(frame.f_code, frame.f_lineno, self._meter.allocated(), now, now, time.perf_counter(), is_call)
        )

    def _note_peak(self) -> None:
        """Add the peak to every line that is running, before the peak is reset for the next line."""
        peak = self._meter.peak()
        for line in self._running:
            line.highest = max(line.highest, peak)
        self._meter.reset_peak()


# ---------------------------------------------------------------------------------------------------------------------
# Time by line
# ---------------------------------------------------------------------------------------------------------------------

WARMUP = 3
"""Steps that are not timed: the first ones allocate, choose kernels and fill caches."""
STEPS = 20
LIMIT_S = 5.0
"""No further step is timed after as many seconds."""

MeasureMemory = Callable[[Sequence[FunctionType], StepFunction], LineMemory]
Times = Mapping[CodeType, Mapping[int, tuple[int, float]]]
"""Hits and seconds by function and line number; a line that is not in it never ran."""


def watched(functions: Sequence[FunctionType], step: StepFunction, memory: MeasureMemory, device: str) -> Lines:
    """Time by line over several steps, then memory by line in one more; with the reports as files.

    Raises:
        Unsupported: line_profiler is not installed.
        Exception: whatever the step raised.
    """
    times, steps = line_times(functions, step)
    allocations = memory(functions, step)
    measured = [function_lines(each, times[each.__code__], allocations, each.__code__) for each in functions]
    result = Lines(tuple(measured), steps, allocations.reason, device)
    return replace(result, files=reports(result))


def function_lines(
    function: FunctionType, times: Mapping[int, tuple[int, float]], memory: LineMemory, code: CodeType
) -> FunctionLines:
    """Return the lines of a function with their hits, seconds and bytes.

    Args:
        function: whose source is read.
        times: hits and seconds by line number.
        memory: of the lines; without figures where it was not measured.
        code: by which the function is known in ``memory``.
    """
    allocated, peak = memory.allocated.get(code, {}), memory.peak.get(code, {})
    usage, increment = memory.usage.get(code, {}), memory.increment.get(code, {})
    is_known = memory.reason is None
    lines = []
    for number, text in source_lines(function).items():
        hits, seconds = times.get(number, (0, 0.0))
        line = Line(
            number,
            text,
            hits,
            seconds,
            allocated_bytes=allocated.get(number, 0) if is_known else None,
            peak_bytes=peak.get(number, 0) if is_known else None,
            usage_bytes=usage.get(number),
            increment_bytes=increment.get(number),
        )
        lines.append(line)
    return FunctionLines(qualified(function), code.co_filename, code.co_firstlineno, tuple(lines))


def line_times(functions: Sequence[FunctionType], step: StepFunction) -> tuple[Times, int]:
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
    codes = [function.__code__ for function in functions]
    try:
        for function in functions:
            profiler.add_function(function)  # which exchanges its code, to tell it from others of the same instructions
        profiler.enable_by_count()
        try:
            end, steps = time.perf_counter() + LIMIT_S, 0
            while steps < STEPS and (steps == 0 or time.perf_counter() < end):
                step()
                steps += 1
        finally:
            profiler.disable_by_count()
    finally:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code
    stats = profiler.get_stats()
    timings = {(file, first): lines for (file, first, _), lines in stats.timings.items()}
    times = {}
    for code in codes:
        lines = timings.get((code.co_filename, code.co_firstlineno), ())
        times[code] = {number: (hits, ticks * stats.unit) for number, hits, ticks in lines}
    return times, steps
