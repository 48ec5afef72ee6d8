"""The classes and functions that configs name by ``_target_``: their checks, the objects made by them, and their nodes as JSON."""

from __future__ import annotations

import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from sweeprof.errors import Problem, Unsupported, UserError, choice_problem, described, nearest
from sweeprof.paths import kind_of_model


def target_problems(key: str, target: str, arguments: Iterable[str], is_complete: bool = False) -> list[Problem]:
    """Return the problems of a ``_target_`` and the names of its arguments; imports it.

    Args:
        key: of the target; its arguments are beside it.
        is_complete: True if it is called with these arguments only, so that none of those that it requires may be absent.
    """
    found = _found(key, target)
    if isinstance(found, Problem):
        return [found]
    try:
        signature = inspect.signature(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # what is written in C need not have one
        return []
    node = key.removesuffix("._target_")
    given = list(arguments)
    problems = []
    for name in given:
        try:
            signature.bind_partial(**{name: None})
        except TypeError:
            problems.append(choice_problem(node, name, f"argument of {target}", signature.parameters))
    if is_complete:
        suggested = [problem.nearest for problem in problems]
        for name, parameter in signature.parameters.items():
            is_optional = parameter.default is not parameter.empty
            is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if not is_optional and not is_variable and name not in (*given, *suggested):
                message = f"is a required argument of {target}: set {node}.{name}=VALUE."
                problems.append(Problem(node, name, message))
    return problems


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


def source_file(target: str) -> Path | None:
    """Return the file of the module that a dotted name begins with, found without importing anything: that may take a framework."""
    where: Sequence[str] | None = None
    found = None
    for part in target.split("."):
        if not part.isidentifier():
            break
        spec = None
        with suppress(ValueError):  # a module that runs without a file, as __main__ does
            # At the top level an editable installation may have its own finder.
            spec = find_spec(part) if where is None else PathFinder.find_spec(part, where)
        if spec is None:
            break
        found, where = spec.origin, spec.submodule_search_locations
        if where is None:
            break
    if found in (None, "built-in", "frozen"):
        return None
    return Path(str(found))


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
    # Hydra resolves the node, and takes what comes out for another one.
    return hydra_instantiate(_literal(_literal(arguments)), _convert_="all")


def _literal(node: Any) -> Any:
    """Return a node that resolves to this one, in which each ``${`` stands for itself."""
    if isinstance(node, dict):
        return {key: _literal(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_literal(value) for value in node]
    if isinstance(node, str):
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", node)
    return node


ITEMS, NUMBER = "_items_", "_number_"
"""The only key of a mapping that stands for another mapping, whose keys are not text, and for a number that JSON does not have."""


def storable(node: Any) -> Any:
    """Return a config node as JSON has it; the same object if nothing changes.

    A mapping such as ``{1: a}`` becomes ``{"_items_": [[1, "a"]]}``, and an infinite number ``{"_number_": "inf"}``.
    """
    if isinstance(node, float) and not math.isfinite(node):
        return {NUMBER: str(node)}
    stored: Any = node
    if isinstance(node, list):
        stored = [storable(value) for value in node]
    elif isinstance(node, Mapping) and all(isinstance(key, str) for key in node):
        stored = {key: storable(value) for key, value in node.items()}
    elif isinstance(node, Mapping):
        return {ITEMS: [[storable(key), storable(value)] for key, value in node.items()]}
    return node if stored == node else stored


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
    if framework:
        node = {**node, "framework": framework}
    return partial(instantiate, node)


def builders_of(backend: Mapping[str, Any]) -> list[str]:
    """Return the builders that a backend can run, by their keys in a model's node, the preferred one first."""
    return list(backend.get("builders") or [backend.get("framework")])


def chosen_builder(backend: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the key and the node of the builder by which ``backend`` runs ``model``.

    Raises:
        Unsupported: the model names none that it can run.
        UserError: what the model has for the backend is not a node.
    """
    names = builders_of(backend)
    offered = [name for name in names if model.get(name) is not None]
    for name in offered:
        node = model[name]
        if not isinstance(node, Mapping):
            raise UserError([Problem(f"model.{name}", node, "is not a builder: a mapping with _target_ is.")])
        kinds = node.get("for_files")  # the kinds of files that it reads; None: any
        if kinds is None or kind_of_model(str(node.get("path"))) in kinds:
            return name, node
    if offered and model.get("path") is not None:
        raise Unsupported(f"the backend does not run a {Path(str(model['path'])).suffix} file")
    *others, last = map(str, names)
    listed = f"{', '.join(others)} or {last}" if others else last
    raise Unsupported(f"the model names no builder for {listed}")


def located(target: str) -> Callable[..., object]:
    """Return the class or function of that dotted name.

    Raises:
        Exception: it cannot be imported.
    """
    from hydra.utils import get_object

    return cast("Callable[..., object]", get_object(target))
