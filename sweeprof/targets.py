"""Checks of the classes and functions that configs name by ``_target_``."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from sweeprof.errors import Problem, Unsupported, choice_problem, described, nearest
from sweeprof.paths import kind_of_model


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


# The one function that turns a config node into an object, and how a node is stored as JSON.


NOT_ARGUMENTS = (
    *("framework", "builders", "preload", "preload_for", "environment", "environment_for", "tolerance", "for_files"),
    "prepare",
)
"""Keys that tell the sweep about a node and are not passed to its constructor."""


def instantiate(node: Mapping[str, object]) -> Any:
    """Call ``node['_target_']`` with the other keys as arguments; nested nodes are instantiated too.

    Raises:
        hydra.errors.InstantiationException: the target cannot be imported, or raised; its cause is the original error.
    """
    from hydra.utils import instantiate as hydra_instantiate

    # A node is called here, with whatever arguments are missing, so that `_partial_` changes nothing.
    arguments = {key: restored(value) for key, value in node.items() if key not in (*NOT_ARGUMENTS, "_partial_")}
    return hydra_instantiate(arguments, _convert_="all")


ITEMS, NUMBER = "_items_", "_number_"
"""The only key of a mapping that stands for another mapping, whose keys are not text, and for a number that JSON does not have."""


def storable(node: Any) -> Any:
    """Return a config node as JSON has it; the same object if nothing changes.

    A mapping such as ``{1: a}`` becomes ``{"_items_": [[1, "a"]]}``, and an infinite number ``{"_number_": "inf"}``.
    """
    if isinstance(node, float) and not math.isfinite(node):
        return {NUMBER: str(node)}
    if isinstance(node, Mapping):
        if not all(isinstance(key, str) for key in node):
            return {ITEMS: [[storable(key), storable(value)] for key, value in node.items()]}
        changed = {key: storable(value) for key, value in node.items()}
        return changed if any(changed[key] is not node[key] for key in node) else node
    if isinstance(node, list):
        elements = [storable(value) for value in node]
        return elements if any(new is not old for new, old in zip(elements, node, strict=True)) else node
    return node


def restored(node: Any) -> Any:
    """Return the node that :func:`storable` stored."""
    if isinstance(node, Mapping):
        if set(node) == {NUMBER}:
            return float(node[NUMBER])
        if set(node) == {ITEMS}:
            return {restored(key): restored(value) for key, value in node[ITEMS]}
        return {key: restored(value) for key, value in node.items()}
    if isinstance(node, list):
        return [restored(value) for value in node]
    return node


def builder(node: Mapping[str, object], framework: str | None = None) -> Callable[[], Any]:
    """Return a function that instantiates ``node`` when called, e.g. under another default device.

    Args:
        node: of a config.
        framework: of the model that is built, as configs name it; a process that builds it seeds this one's generators.
    """
    return partial(instantiate, {**node, **({"framework": framework} if framework else {})})


def builders_of(backend: Mapping[str, Any]) -> list[str]:
    """The builders that a backend can run, by their keys in a model's node, the one it likes best first."""
    return list(backend.get("builders") or [backend.get("framework")])


def chosen_builder(backend: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The key and the node of the builder that ``backend`` runs ``model`` by.

    Raises:
        Unsupported: the model names none that it can run.
    """
    names = builders_of(backend)
    for name in names:
        if model.get(name) is not None and _is_for_file(model[name]):
            return name, model[name]
    if model.get("path") is not None and any(model.get(name) is not None for name in names):
        raise Unsupported(f"the backend does not run a {Path(str(model['path'])).suffix} file")
    listed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else str(names[0])
    raise Unsupported(f"the model names no builder for {listed}")


def _is_for_file(node: Mapping[str, Any]) -> bool:
    """True if a builder reads any file, or files of the kind that its path has."""
    kinds = node.get("for_files")
    return kinds is None or kind_of_model(str(node.get("path"))) in kinds


def located(target: str) -> Callable[..., object]:
    """The class or function of that dotted name.

    Raises:
        Exception: it cannot be imported.
    """
    from hydra.utils import get_object

    return cast("Callable[..., object]", get_object(target))
