"""``sweeprof.profile_lines`` and ``sweeprof lines``: the source lines of functions in a program of the user's own."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial, update_wrapper
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn, overload

from sweeprof.backends import backend_named
from sweeprof.display import Displayed
from sweeprof.errors import Problem, Unsupported, UserError, nearest
from sweeprof.measuring.line_profile import (
    AllocationMeter,
    LineMemory,
    WatchedFunctions,
    function_lines,
    host_memory,
    metered_memory,
    python_function,
)
from sweeprof.paths import user_path
from sweeprof.results.observations import Lines

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

    def __view__(self) -> Any:
        return self.lines.__view__()

    def _times(self) -> dict[int, tuple[int, float]]:
        found = dict(self._memory.times)
        for number, (hits, seconds) in self._raw_times().items():
            hits_before, seconds_before = self._before.get(number, (0, 0.0))
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
        reason = "is not a Python function, whose source lines could be measured."
        raise UserError([Problem("profile_lines", shown, reason)])
    return ProfiledFunction(found, meter, device, with_memory)


def together(functions: Sequence[ProfiledFunction]) -> Lines:
    """Return the lines of several functions over one run of a script; a device is that of the first function."""
    by_place: dict[tuple[str, int], Lines] = {}
    for function in functions:
        place = (function._code.co_filename, function._code.co_firstlineno)
        if place not in by_place:
            by_place[place] = function.lines
    every = list(by_place.values())
    reason, device = None, "cpu"
    if every:
        device = every[0].device
        if all(lines.memory_reason for lines in every):
            reason = every[0].memory_reason
    return Lines(tuple(lines.functions[0] for lines in every), 1, reason, device, span="run")


# The decorator, and scripts whose functions are decorated.


DECORATORS = ("profile", "profile_lines")
"""Names of decorators that mark a function of a script: those of line_profiler and memory_profiler, and ours."""
_PROFILERS = ("line_profiler", "memory_profiler")
"""Packages whose decorator ``profile`` is replaced by ours while a script runs; a script may import one that is not installed."""
_ADDED = "__sweeprof_profile_lines__"
"""What a script's functions are decorated with where none of them is marked."""
_collected: list[ProfiledFunction] | None = None
"""Functions that were decorated while a script runs; None outside one."""
_memory_of_script: bool | str = False


@overload
def profile_lines(function: Callable[..., Any], *, memory: bool | str = False) -> ProfiledFunction: ...


@overload
def profile_lines(*, memory: bool | str = False) -> Callable[[Callable[..., Any]], ProfiledFunction]: ...


def profile_lines(function: Callable[..., Any] | None = None, *, memory: bool | str = False) -> Any:
    """Measure the source lines of the decorated function whenever it is called.

    ``print`` the function to see its lines; its attribute ``lines`` has them as :class:`sweeprof.Lines`, ``listing`` as text. The
    function returns what it returned before. ``sweeprof lines SCRIPT`` does the same for the functions of a script.

    Args:
        function: a Python function or method.
        memory: also measure the memory that each line allocates: True in this process (memray), or the name of an accelerator, such
            as ``cuda``, in its allocator. Following allocations is slow, and its cost is part of the times.

    Raises:
        UserError: it is not a Python function.
        Unsupported: line_profiler is not installed, or there is no such accelerator.

    Example:
        >>> @sweeprof.profile_lines
        ... def step(x):
        ...     y = x * 2
        ...     return y.sum()
        >>> step(x)
        >>> print(step.listing)
    """
    if function is None:
        return lambda decorated: profile_lines(decorated, memory=memory)
    wanted = memory or _memory_of_script
    meter = _meter_of(wanted)
    device = "cpu" if meter is None else str(wanted)
    made = profiled(function, meter, device, bool(wanted))
    if _collected is not None:
        _collected.append(made)
    return made


def _meter_of(memory: bool | str) -> AllocationMeter | None:
    """Return the meter of an accelerator; None for the memory of this process.

    Raises:
        Unsupported: there is no such accelerator.
    """
    if not isinstance(memory, str) or memory == "cpu":
        return None
    return backend_named("torch").allocation_meter(memory)


def run_script(
    target: str,
    arguments: Sequence[str],
    *,
    is_module: bool = False,
    functions: Sequence[str] = (),
    memory: bool | str = False,
    report: Callable[[Lines], object],
) -> None:
    """Run a script as ``python target arguments`` does, and report the lines of its functions, also if it raises or exits.

    Measured are the functions that it marks by ``@sweeprof.profile_lines`` or ``@profile``; if it marks none, all that it defines.

    Args:
        target: path of the script, or with ``is_module`` the name of a module.
        arguments: what the script finds in ``sys.argv``.
        is_module: whether to run a module, as ``python -m`` does.
        functions: only these of its functions, such as ``main`` or ``Net.forward``.
        memory: also measure memory, see :func:`profile_lines`.
        report: is given the result.

    Raises:
        UserError: there is no such script, module or function, or the script is not Python.
        BaseException: whatever the script raised, SystemExit among it.
    """
    global _collected, _memory_of_script  # a script's decorators have no other way to tell
    _meter_of(memory)
    path = _module_file(target) if is_module else user_path(target)
    if not path.is_file():
        raise UserError([Problem("script", target, "is not a file.")])
    code = compile(_decorated(path, functions), str(path), "exec")
    main = ModuleType("__main__")
    main.__dict__.update({"__file__": str(path), "__builtins__": builtins, _ADDED: profile_lines})
    folder = path.parent
    if is_module:
        main.__dict__["__package__"] = target.rpartition(".")[0]
        folder = Path.cwd()
    collected: list[ProfiledFunction] = []
    before = _collected, _memory_of_script, sys.modules["__main__"], sys.argv, list(sys.path)
    _collected, _memory_of_script = collected, memory
    sys.modules["__main__"], sys.argv, sys.path[:0] = main, [str(path), *arguments], [str(folder)]
    try:
        with (  # the packages of the decorators are looked up where the script's imports are
            _replaced(builtins, profile_lines),
            _decorator_of("line_profiler", profile_lines),
            _decorator_of("memory_profiler", _profile_memory),
        ):
            try:
                exec(code, main.__dict__)
            finally:
                report(together(collected))
    finally:
        _collected, _memory_of_script, sys.modules["__main__"], sys.argv, sys.path[:] = before


@contextmanager
def _replaced(module: Any, decorator: Callable[..., Any]) -> Iterator[None]:
    """Within the context, ``profile`` of a module is ``decorator``; of ``builtins``, too, as kernprof has it."""
    theirs = getattr(module, "profile", None)
    module.profile = decorator
    try:
        yield
    finally:
        if theirs is None:
            del module.profile
        else:
            module.profile = theirs


@contextmanager
def _decorator_of(package: str, decorator: Callable[..., Any]) -> Iterator[None]:
    """Within the context, ``profile`` of a profiler's package is ``decorator``, also where the package is not installed."""
    if package in sys.modules or importlib.util.find_spec(package) is not None:
        with _replaced(importlib.import_module(package), decorator):
            yield
        return

    def not_installed(name: str) -> NoReturn:
        if name.startswith("__"):  # which Python asks for
            raise AttributeError(name)
        has = "`sweeprof lines` has its decorator `profile`"
        raise ModuleNotFoundError(f"{package} is not installed: {has}, and no {name!r}", name=package)

    sys.modules[package] = ModuleType(package)
    sys.modules[package].__dict__.update({"profile": decorator, "__getattr__": not_installed})
    try:
        yield
    finally:
        del sys.modules[package]


def _profile_memory(
    func: Callable[..., Any] | None = None, stream: object = None, precision: int = 1, backend: str = "psutil"
) -> Any:
    """Return what memory_profiler's ``profile`` decorates; its report is printed with those of other functions."""
    if func is None:
        return partial(_profile_memory, stream=stream, precision=precision, backend=backend)
    return profile_lines(func, memory=_memory_of_script or True)


def _module_file(name: str) -> Path:
    """Return the file that ``python -m name`` runs."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UserError([Problem("module", name, "is not a module with Python source.")])
    return Path(spec.origin)


def _decorated(path: Path, functions: Sequence[str]) -> ast.Module:
    """Return a script whose chosen functions are decorated; lines keep their numbers."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        where = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError([Problem("script", f"{path}{where}", f"cannot be read: {error}.")]) from None
    defined = dict(_defined(tree, ""))
    unknown = [name for name in functions if name not in defined]
    if unknown:
        reason = f"is not defined in {path}."
        raise UserError([Problem("--function", name, reason, nearest(name, list(defined))) for name in unknown])
    # A script may import a decorator by another name: `from memory_profiler import profile as measured`.
    marks = set(DECORATORS)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in (*_PROFILERS, "sweeprof"):
            marks.update(alias.asname for alias in node.names if alias.name in DECORATORS and alias.asname is not None)
    is_marked = False
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", ()):
            called = getattr(decorator, "func", decorator)
            name = getattr(called, "attr", None) or getattr(called, "id", "")
            is_marked = is_marked or (isinstance(node, _FUNCTIONS) and name in marks)
    for name, function in defined.items():
        if name in functions or (not functions and not is_marked):
            added = ast.copy_location(ast.Name(_ADDED, ast.Load()), function)
            function.decorator_list.append(added)  # the innermost: property and staticmethod are around it
    return tree


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _defined(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions and methods that a script defines outside other functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _FUNCTIONS):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node, f"{prefix}{node.name}.")
        elif not isinstance(node, ast.Lambda):
            yield from _defined(node, prefix)
