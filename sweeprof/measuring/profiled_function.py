"""Time and memory by source line of functions in a program of the user's own: a decorator, and what a script's functions did."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial, update_wrapper
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import CodeType, FunctionType, MethodType
from typing import Any

from sweeprof.display import Displayed
from sweeprof.errors import Problem, Unsupported, UserError
from sweeprof.measuring.line_profile import (
    AllocationMeter,
    LineMemory,
    WatchedFunctions,
    function_lines,
    host_memory,
    metered_memory,
    python_function,
)
from sweeprof.results.lines import Lines

NOT_ASKED = "it was not asked for: profile_lines(memory=True), or sweeprof lines --memory"

MeasureCall = Callable[[Sequence[FunctionType], Callable[[], object]], LineMemory]


@cache
def _profiler() -> Any:
    """Return the profiler of all decorated functions.

    Raises:
        Unsupported: line_profiler is not installed.
    """
    try:
        from line_profiler import LineProfiler
    except ImportError:
        raise Unsupported("line_profiler is not installed: pip install 'sweeprof[lines]'") from None
    return LineProfiler()


class ProfiledFunction(Displayed):
    """A function whose source lines are measured whenever it is called; :attr:`lines` has the result so far.

    It is called, and bound to an instance, like the function itself.
    """

    def __init__(self, function: FunctionType, meter: AllocationMeter | None, device: str, with_memory: bool) -> None:
        """See :func:`sweeprof.profile_lines`."""
        update_wrapper(self, function)
        self.function = function
        """The function itself, without probes."""
        self.calls = 0
        """Number of calls so far."""
        self._device, self._code = device, function.__code__
        self._measure: MeasureCall | None = None
        if with_memory:
            self._measure = host_memory if meter is None else partial(metered_memory, meter)
        self._is_metered = meter is not None
        self._is_resumed = (
            isgeneratorfunction(function) or iscoroutinefunction(function) or isasyncgenfunction(function)
        )
        self._probed: Any = function if self._is_metered else _profiler()(function)
        self._before = self._raw_times()
        self._memory = _CallsMemory()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self._measure is None:
            return self._probed(*args, **kwargs)
        if _running:
            (running,) = _running
            # The process has one meter, which this call joins; calls in other threads are only timed meanwhile.
            if running.thread != threading.get_ident() or running.device != self._device:
                return self._probed(*args, **kwargs)
            running.join(self)
            return self.function(*args, **kwargs)
        if self._is_resumed:
            self._memory.reason = "it is a generator or a coroutine, which runs in parts"
            return self._probed(*args, **kwargs)
        return self._measured(self._measure, args, kwargs)

    def _measured(self, measure: MeasureCall, args: Any, kwargs: Any) -> Any:
        """Call the function with its memory measured, and that of the decorated functions that it calls."""
        results: list[Any] = []
        raised: list[BaseException] = []

        def call() -> None:
            try:
                results.append(self.function(*args, **kwargs))
            except BaseException as error:  # it is raised when what was measured is kept
                raised.append(error)

        running = _MeasuredCall(threading.get_ident(), self._device)
        _running.append(running)
        running.join(self)
        try:
            memory = measure(running.watched, call)
        finally:
            _running.remove(running)
        for function in running.functions:
            function._memory.add(memory, function.function.__code__)
        if raised:
            raise raised[0]
        return results[0]

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    @property
    def lines(self) -> Lines:
        """Time and memory of its source lines over all calls so far."""
        memory = LineMemory(reason=NOT_ASKED)
        if self._measure is not None:
            memory = LineMemory(
                {self._code: self._memory.allocated},
                {self._code: self._memory.peak},
                self._memory.reason,
                {self._code: self._memory.usage},
                {self._code: self._memory.increment},
            )
        found = function_lines(self.function, self._times(), memory, self._code)
        return Lines((found,), self.calls, memory.reason, self._device, span="call")

    @property
    def listing(self) -> str:
        """Every source line with its time and memory, as text."""
        return self.lines.listing

    def __str__(self) -> str:
        return str(self.lines)

    def __view__(self) -> Any:
        return self.lines.__view__()

    def _times(self) -> dict[int, tuple[int, float]]:
        before = self._before
        found = dict(self._memory.times)
        for number, (hits, seconds) in self._raw_times().items():
            hits_before, seconds_before = before.get(number, (0, 0.0))
            metered_hits, metered_s = found.get(number, (0, 0.0))
            found[number] = (hits - hits_before + metered_hits, seconds - seconds_before + metered_s)
        return found

    def _raw_times(self) -> dict[int, tuple[int, float]]:
        """Return hits and seconds since line_profiler first saw a function of this place in the source."""
        if self._is_metered:
            return {}
        stats = _profiler().get_stats()
        for (file, first, _), lines in stats.timings.items():
            if (file, first) == (self._code.co_filename, self._code.co_firstlineno):
                return {number: (hits, ticks * stats.unit) for number, hits, ticks in lines}
        return {}


class _MeasuredCall:
    """The call whose memory is being measured, with the decorated functions that it has called so far."""

    def __init__(self, thread: int, device: str) -> None:
        self.thread, self.device = thread, device
        self.functions: list[ProfiledFunction] = []
        self.watched = WatchedFunctions()

    def join(self, function: ProfiledFunction) -> None:
        """Also watch the lines of a function."""
        if all(function is not known for known in self.functions):
            self.functions.append(function)
            self.watched.append(function.function)


_running: list[_MeasuredCall] = []
"""The call whose memory is being measured, at most one."""


class _CallsMemory:
    """Sums over the calls of one function: bytes allocated, the highest peaks, and times if they were measured with it."""

    def __init__(self) -> None:
        self.usage: dict[int, int] = {}
        self.increment: Counter[int] = Counter()
        self.allocated: Counter[int] = Counter()
        self.peak: Counter[int] = Counter()
        self.times: dict[int, tuple[int, float]] = {}
        self.reason: str | None = None

    def add(self, memory: LineMemory, code: CodeType) -> None:
        """Add a call."""
        self.reason = self.reason or memory.reason
        self.allocated.update(memory.allocated.get(code, {}))
        for number, size in memory.peak.get(code, {}).items():
            self.peak[number] = max(self.peak[number], size)
        self.increment.update(memory.increment.get(code, {}))
        for number, size in memory.usage.get(code, {}).items():
            self.usage[number] = max(self.usage.get(number, size), size)
        for number, (hits, seconds) in memory.times.get(code, {}).items():
            hits_before, seconds_before = self.times.get(number, (0, 0.0))
            self.times[number] = (hits_before + hits, seconds_before + seconds)


def profiled(function: object, meter: AllocationMeter | None, device: str, with_memory: bool) -> ProfiledFunction:
    """Return the function with probes on its lines.

    Raises:
        UserError: it is not a Python function.
    """
    if isinstance(function, ProfiledFunction):
        return function
    found = python_function(function) if callable(function) else None
    if found is None or isinstance(function, type):
        shown = getattr(function, "__qualname__", None) or type(function).__name__
        raise UserError(
            [Problem("profile_lines", shown, "is not a Python function, whose source lines could be measured.")]
        )
    return ProfiledFunction(found, meter, device, with_memory)


def together(functions: Sequence[ProfiledFunction]) -> Lines:
    """Return the lines of several functions over one run of a script; a device is that of the first function."""
    by_place: dict[tuple[str, int], ProfiledFunction] = {}
    for function in functions:
        by_place.setdefault((function._code.co_filename, function._code.co_firstlineno), function)
    every = [function.lines for function in by_place.values()]
    reasons = [lines.memory_reason for lines in every]
    reason = next((reason for reason in reasons if reason), None) if all(reasons) else None
    device = every[0].device if every else "cpu"
    return Lines(tuple(lines.functions[0] for lines in every), 1, reason, device, span="run")
