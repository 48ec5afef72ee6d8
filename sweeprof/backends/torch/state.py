"""Leaving a model, and torch itself, as they were found."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch
from torch.nn.parameter import is_lazy

_CONTAINERS: frozenset[Any] = frozenset({dict, OrderedDict, list, set})


@contextmanager
def unchanged(module: torch.nn.Module, *, values: bool = True) -> Iterator[None]:
    """Put back everything that happens to ``module`` within it, also after an error.

    Restored: mode, attributes, hooks and what they hold, which tensors are its parameters and buffers, their device and data
    type, ``requires_grad`` and gradients, the state of the random generators.

    Args:
        values: the values of the buffers too, which takes a copy of them; parameters are not written to by a forward.
    """
    attributes = [_Attributes(vars(inner)) for inner in modules_of(module)]
    tensors = (
        [(tensor, tensor.data, tensor.requires_grad, tensor.grad) for tensor in _tensors(module)] if values else []
    )
    buffers = (
        [(buffer, buffer.detach().clone()) for buffer in module.buffers() if not is_lazy(buffer)] if values else []
    )
    try:
        with torch.random.fork_rng(devices=_accelerators()) if values else _nothing():
            yield
    finally:
        for remembered in attributes:
            remembered.restore()
        for tensor, data, requires_grad, grad in tensors:
            tensor.data = data
            tensor.requires_grad_(requires_grad)
            tensor.grad = grad
        for buffer, before_value in buffers:
            if buffer.layout != torch.strided or not torch.equal(buffer, before_value):
                buffer.detach().copy_(before_value)


@contextmanager
def without_collection() -> Iterator[None]:
    """Without the collector of cycles: what is alive when should not depend on when it runs, nor should the time of a pass."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def modules_of(root: torch.nn.Module) -> list[torch.nn.Module]:
    """Every module below a root and the root itself, each once; a few times quicker than ``root.modules()``."""
    found: dict[torch.nn.Module, None] = {}
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting.extend(child for child in module._modules.values() if child is not None)
    return list(found)


def tensors_of(root: torch.nn.Module) -> list[torch.Tensor]:
    """Every parameter and buffer of a module and all below it; one that is shared as often as it is held."""
    return [
        tensor
        for module in modules_of(root)
        for held in (module._parameters, module._buffers)
        for tensor in held.values()
        if tensor is not None
    ]


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [t for t in (*module.parameters(), *module.buffers()) if not is_lazy(t)]


def _accelerators() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


class _Attributes:
    """The attributes of an object, and what those that are plain containers held."""

    __slots__ = ("_before", "_containers", "_current")

    def __init__(self, current: dict[str, Any]) -> None:
        self._current = current
        self._before = current.copy()
        containers: list[Any] = [value for value in current.values() if value.__class__ in _CONTAINERS]
        self._containers = [(value, value.copy() if value else None) for value in containers]

    def restore(self) -> None:
        """Put every one back that was exchanged, added or removed."""
        current, before = self._current, self._before
        if len(current) != len(before) or not all(map(is_, current.values(), before.values())):
            current.clear()
            current.update(before)
        for value, content in self._containers:
            if content is None:
                if value:
                    value.clear()
            elif not _same(value, content):
                value.clear()
                value.extend(content) if isinstance(value, list) else value.update(content)


def _same(value: Any, content: Any) -> bool:
    """Whether two containers of one kind hold the very same objects."""
    if len(value) != len(content):
        return False
    if isinstance(value, dict):
        return all(map(is_, value.values(), content.values())) and value.keys() == content.keys()
    return all(map(is_, value, content)) if isinstance(value, list) else bool(value == content)
