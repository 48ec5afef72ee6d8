"""``sweeprof.profile_lines`` and ``sweeprof lines``: the source lines of functions in a program of the user's own."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, overload

from sweeprof.backends.lookup import backend_named
from sweeprof.errors import Problem, UserError, nearest
from sweeprof.measuring.line_profile import AllocationMeter
from sweeprof.measuring.profiled_function import ProfiledFunction, profiled, together
from sweeprof.paths import user_path
from sweeprof.results.lines import Lines

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
    made = profiled(function, meter, str(wanted) if meter is not None else "cpu", bool(wanted))
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
    _meter_of(memory)
    path = _path_of(target, is_module)
    code = _with_probes(path, functions)
    main = ModuleType("__main__")
    main.__dict__.update({"__file__": str(path), "__builtins__": builtins, _ADDED: profile_lines})
    first = str(Path.cwd()) if is_module else str(path.parent)
    if is_module:
        main.__dict__["__package__"] = target.rpartition(".")[0]
    with _collecting(memory) as collected, _as_program(main, [str(path), *arguments], first):
        try:
            exec(code, main.__dict__)
        finally:
            report(together(collected))


@contextmanager
def _collecting(memory: bool | str) -> Iterator[list[ProfiledFunction]]:
    """Within the context, decorated functions are collected, and measure memory if ``memory`` says so."""
    global _collected, _memory_of_script  # a script's decorators have no other way to tell
    before = _collected, _memory_of_script
    collected: list[ProfiledFunction] = []
    _collected, _memory_of_script = collected, memory
    try:
        yield collected
    finally:
        _collected, _memory_of_script = before


@contextmanager
def _as_program(main: ModuleType, arguments: list[str], first: str) -> Iterator[None]:
    """Within the context, a module is the program of this process; the decorators of other profilers are ours."""
    before = sys.modules["__main__"], sys.argv, list(sys.path), getattr(builtins, "profile", None)
    sys.modules["__main__"], sys.argv, sys.path[:0] = main, arguments, [first]
    builtins.profile = profile_lines  # type: ignore[attr-defined]  # as kernprof has it
    try:
        with _decorator_of("line_profiler", profile_lines), _decorator_of("memory_profiler", _profile_memory):
            yield
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before[:3]
        if before[3] is None:
            del builtins.profile  # type: ignore[attr-defined]
        else:
            builtins.profile = before[3]  # type: ignore[attr-defined]


@contextmanager
def _decorator_of(package: str, decorator: Callable[..., Any]) -> Iterator[None]:
    """Within the context, ``profile`` of a profiler's package is ``decorator``, also where the package is not installed."""
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        module = ModuleType(package)
        module.__dict__.update({"profile": decorator, "__getattr__": partial(_not_installed, package)})
        sys.modules[package] = module
        try:
            yield
        finally:
            del sys.modules[package]
        return
    installed: Any = importlib.import_module(package)
    theirs = installed.profile
    installed.profile = decorator
    try:
        yield
    finally:
        installed.profile = theirs


def _not_installed(package: str, name: str) -> NoReturn:
    """Raise the error of a script that imports more than the decorator from a package that is not installed."""
    if name.startswith("__"):  # which Python asks for
        raise AttributeError(name)
    raise ModuleNotFoundError(
        f"{package} is not installed: `sweeprof lines` has its decorator `profile`, and no {name!r}", name=package
    )


def _profile_memory(
    func: Callable[..., Any] | None = None, stream: object = None, precision: int = 1, backend: str = "psutil"
) -> Any:
    """Return what memory_profiler's ``profile`` decorates; its report is printed with those of other functions."""
    if func is None:
        return partial(_profile_memory, stream=stream, precision=precision, backend=backend)
    return profile_lines(func, memory=_memory_of_script or True)


def _path_of(target: str, is_module: bool) -> Path:
    if not is_module:
        path = user_path(target)
        if not path.is_file():
            raise UserError([Problem("script", target, "is not a file.")])
        return path
    try:
        spec = importlib.util.find_spec(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{target}.__main__")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UserError([Problem("module", target, "is not a module with Python source.")])
    return Path(spec.origin)


def _with_probes(path: Path, functions: Sequence[str]) -> Any:
    """Return the code of a script whose chosen functions are decorated; lines keep their numbers."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        where = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError([Problem("script", f"{path}{where}", f"cannot be read: {error}.")]) from None
    defined = dict(_defined(tree, ""))
    unknown = [name for name in functions if name not in defined]
    if unknown:
        raise UserError(
            [
                Problem("--function", name, f"is not defined in {path}.", nearest(name, list(defined)))
                for name in unknown
            ]
        )
    marks = {*DECORATORS, *_other_names(tree)}
    is_marked = any(_is_marked(node, marks) for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))
    for name, node in defined.items():
        if name in functions or (not functions and not is_marked):
            added = ast.copy_location(ast.Name(_ADDED, ast.Load()), node)
            node.decorator_list.append(added)  # the innermost: property and staticmethod are around it
    return compile(tree, str(path), "exec")


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _defined(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions and methods that a script defines outside other functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _FUNCTIONS):
            yield prefix + node.name, node
        elif not isinstance(node, ast.Lambda):
            yield from _defined(node, f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix)


def _other_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a script gives to imported decorators, as ``from memory_profiler import profile as measured`` does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in (*_PROFILERS, "sweeprof"):
            for imported in node.names:
                if imported.name in DECORATORS and imported.asname is not None:
                    yield imported.asname


def _is_marked(node: ast.FunctionDef | ast.AsyncFunctionDef, marks: Collection[str]) -> bool:
    """Return whether one of these names decorates a function."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name in marks:
            return True
    return False
