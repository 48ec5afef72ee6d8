"""Nested tuples, lists and mappings of arrays: the samples of a dataset, the arguments of a model, or its outputs."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same lists, tuples and dicts with every leaf changed.

    A container of another type is a leaf: its constructor may take something else than its items.
    """
    if type(tree) in (list, tuple):
        return type(tree)(mapped(item, change) for item in tree)
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, mapped(item, change)) for key, item in tree.items())
    if isinstance(tree, tuple) and type(tree).__bases__ == (tuple,):  # a named tuple
        return type(tree)(*(mapped(item, change) for item in tree))
    return change(tree)


def named_leaves(tree: object) -> dict[str, Any]:
    """Return the leaves by their paths: ``ids``, ``0``, ``encoder.0.mask``; a single leaf has the path ``""``.

    Every mapping, list, tuple and dataclass is a container here, whatever its type.
    """
    found: dict[str, Any] = {}
    _collect(tree, "", found)
    return found


def _collect(tree: object, path: str, found: dict[str, Any]) -> None:
    if isinstance(tree, Mapping):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        items = [(str(name), value) for name, value in zip(names, tree, strict=True)]
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        items = [(field.name, getattr(tree, field.name)) for field in dataclasses.fields(tree)]
    else:
        found[path] = tree
        return
    for name, value in items:
        _collect(value, f"{path}.{name}" if path else name, found)
