"""Python functions by the names that a user gives them, and their source lines."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from importlib import import_module
from types import CodeType, FunctionType, MethodType
from typing import Any

from sweeprof.errors import Problem, Unsupported, UserError, nearest
from sweeprof.tracebacks import described

KEY = "metrics.functions"


def functions_named(names: Sequence[str], classes: Iterable[type] = ()) -> list[FunctionType]:
    """The functions of these dotted names, such as ``my_package.MyNet.forward``, each once.

    Args:
        classes: those of the model. Their functions can be named by the class alone, ``MyNet.forward``, which is the only way
            to name one of a class that was made within a function.

    Raises:
        UserError: with one problem for each name that is none of a function.
        Unsupported: it is one, but not Python's.
    """
    own = list(dict.fromkeys(classes))
    found = [one for name in names for one in _found(name, own)]
    problems = [one for one in found if isinstance(one, Problem)]
    if problems:
        raise UserError(problems)
    return list({one.__code__: one for one in found if not isinstance(one, Problem)}.values())


def python_function(called: Any) -> FunctionType | None:
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


def _found(name: str, classes: Sequence[type]) -> list[FunctionType | Problem]:
    owner, _, attribute = name.rpartition(".")
    named = [c for c in classes if owner in (c.__name__, c.__qualname__, f"{c.__module__}.{c.__qualname__}")]
    found = [_attribute(c, owner, attribute, name) for c in named] or [_imported(name, classes)]
    return [one if isinstance(one, Problem) else _checked(name, one) for one in found]


def _imported(name: str, classes: Sequence[type]) -> Any:
    """What is there under the name, from the longest part of it that is a module, or the problem."""
    parts = name.split(".")
    found: Any = None
    depth = 0
    for length in range(1, len(parts) if all(parts) else 0):
        path = ".".join(parts[:length])
        try:
            found, depth = import_module(path), length
        except Exception as error:  # importing a user's module may raise anything
            if isinstance(error, ModuleNotFoundError) and error.name == path:
                break  # what follows are attributes
            return Problem(KEY, name, f"cannot be imported: {path} raised {described(error)}.")
    if found is None:
        guesses = [f"{c.__name__}.forward" for c in classes]
        return Problem(KEY, name, "is not the dotted name of a function that can be imported.", nearest(name, guesses))
    for index in range(depth, len(parts)):
        found = _attribute(found, ".".join(parts[:index]), parts[index], name)
        if isinstance(found, Problem):
            break
    return found


def _attribute(owner: Any, path: str, attribute: str, name: str) -> Any:
    try:
        return getattr(owner, attribute)
    except AttributeError:
        close = nearest(attribute, dir(owner))
        return Problem(KEY, name, f"does not exist: {path} has no {attribute!r}.", f"{path}.{close}" if close else None)


def _checked(name: str, found: Any) -> FunctionType | Problem:
    function = python_function(found)
    if function is not None:
        return function
    if isinstance(found, type) or not callable(found):
        kind = "class" if isinstance(found, type) else type(found).__name__
        return Problem(
            KEY, name, f"is a {kind}, not a function.", f"{name}.forward" if hasattr(found, "forward") else None
        )
    raise Unsupported(f"{name} has no source lines to watch: it is a {type(found).__name__}, not a Python function")
