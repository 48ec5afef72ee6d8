"""Checks of the classes and functions that configs name by ``_target_``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from sweeprof.errors import Problem, choice_problem, described, nearest


def target_problems(key: str, target: str, arguments: Iterable[str]) -> list[Problem]:
    """Return the problems of a ``_target_`` and the names of its arguments; imports it."""
    found = _found(key, target)
    if isinstance(found, Problem):
        return [found]
    try:
        signature = inspect.signature(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # what is written in C need not have one
        return []
    return [
        choice_problem(key.removesuffix("._target_"), name, f"argument of {target}", signature.parameters)
        for name in arguments
        if not _accepts(signature, name)
    ]


def _found(key: str, target: str) -> object:
    """Return what a dotted name stands for, which may also be a method of a class, or the problem with it."""
    package, *names = target.split(".")
    if not names or not all([package, *names]):
        return Problem(key, target, "is not the dotted name of a class or function, such as my_package.MyNet.")
    try:
        value: object = importlib.import_module(package)
        path = package
        for name in names[:-1]:
            if isinstance(value, ModuleType) and not hasattr(value, name):
                value = importlib.import_module(f"{path}.{name}")
            else:
                value = getattr(value, name)
            path = f"{path}.{name}"
    except Exception as error:  # importing user code may raise anything
        return Problem(key, target, f"cannot be imported: {described(error)}.")
    attribute = names[-1]
    if not hasattr(value, attribute):
        known = [name for name in dir(value) if not name.startswith("_")]
        return Problem(key, target, f"cannot be imported: {path} has no '{attribute}'.", nearest(attribute, known))
    value = getattr(value, attribute)
    if not callable(value):
        return Problem(key, target, f"is a {type(value).__name__}, which cannot be called; name a class or a function.")
    return value


def _accepts(signature: inspect.Signature, name: str) -> bool:
    try:
        signature.bind_partial(**{name: None})
    except TypeError:
        return False
    return True


def source_file(target: str) -> Path | None:
    """Return the file of the module that a dotted name begins with, found without importing anything: that may take a framework."""
    where, found = None, None
    for part in target.split("."):
        spec = _spec(part, where) if part.isidentifier() else None
        if spec is None:
            break
        found, where = spec.origin, spec.submodule_search_locations
        if where is None:
            break
    return Path(found) if found not in (None, "built-in", "frozen") else None


def _spec(name: str, where: Sequence[str] | None) -> ModuleSpec | None:
    """Return the spec of a module within ``where``, or at the top level, where an editable installation may have its own finder."""
    try:
        return find_spec(name) if where is None else PathFinder.find_spec(name, where)
    except ValueError:  # a module that runs without a file, as __main__ does
        return None
