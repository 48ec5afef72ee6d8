"""Inputs that are objects of their own, such as a cache of keys and values: copied with the tensors in them, and compared."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any

import torch

_CONSTANTS = (type, ModuleType, FunctionType, Enum, torch.nn.Module, str, bytes, int, float, complex, type(None))
"""What has no state that a forward is expected to change; a module has parameters, which are no input."""


def with_tensors(thing: object, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of an object in which every tensor is what ``change`` makes of it.

    A forward may change the object, which is its caller's. One that cannot be copied, as it holds a lock or a file, is returned
    itself.
    """
    if isinstance(thing, _CONSTANTS):
        return thing
    tensors = [part for part in parts_of(thing) if isinstance(part, torch.Tensor)]
    try:
        return copy.deepcopy(thing, {id(tensor): change(tensor) for tensor in tensors})
    except (TypeError, RuntimeError, NotImplementedError):
        return thing


def parts_of(tree: object) -> Iterator[object]:
    """Yield the object itself and everything that it holds, in containers and attributes, each once."""
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, (torch.Tensor, *_CONSTANTS)):
            continue
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list | tuple | set | frozenset | deque):
            waiting += part
        waiting += getattr(part, "__dict__", {}).values()
        slots = [name for kind in type(part).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
        waiting += [getattr(part, name) for name in slots if hasattr(part, name)]


def _names(slots: object) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)  # type: ignore[arg-type]


def state_of(tree: object) -> tuple[object, ...]:
    """Return what differs after something has written into an object, added to it, or replaced a part of it."""
    state: list[object] = []
    for part in parts_of(tree):
        if isinstance(part, torch.Tensor):
            shape = None if part.is_nested else part.shape
            state.append((id(part), shape, None if part.is_inference() else part._version))
        elif isinstance(part, int | float | str):
            state.append(part)
        elif hasattr(part, "__len__"):
            state.append(len(part))
    return tuple(state)
