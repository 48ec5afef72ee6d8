"""Parameters and buffers of every module, each tensor in memory once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from sweeprof.backends.torch.callsites import dtype_name
from sweeprof.results.layers import Weights

Place = tuple[int, int, int]


class _Tensor(NamedTuple):
    place: Place
    elements: int
    itemsize: float
    dtype: str
    trainable: bool
    is_buffer: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """What every module holds."""

    own: dict[torch.nn.Module, Weights]
    """Without what a module before it holds already."""
    subtree: dict[torch.nn.Module, Weights]
    """With everything below, each tensor once."""


@dataclass(slots=True)
class _Held:
    own: dict[Place, _Tensor]
    below: dict[Place, _Tensor]
    """With everything below."""
    weights: Weights
    """Of :attr:`below`."""


def inventory(root: torch.nn.Module, sizes: Mapping[torch.nn.Module, Mapping[str, float]]) -> Inventory:
    """The weights of ``root`` and of everything below it.

    Args:
        sizes: bytes per element by parameter name, of modules that declare them.
    """
    held: dict[torch.nn.Module, _Held] = {}
    _visit(root, sizes, held)
    before: set[Place] = set()
    own: dict[torch.nn.Module, Weights] = {}
    for module, holding in held.items():
        fresh = {place: tensor for place, tensor in holding.own.items() if place not in before}
        before.update(fresh)
        own[module] = holding.weights if len(fresh) == len(holding.below) else _summed(fresh)
    return Inventory(own, {module: holding.weights for module, holding in held.items()})


def _visit(
    module: torch.nn.Module,
    sizes: Mapping[torch.nn.Module, Mapping[str, float]],
    held: dict[torch.nn.Module, _Held],
) -> _Held:
    found = held.get(module)
    if found is not None:
        return found
    own = {tensor.place: tensor for tensor in _tensors(module, sizes.get(module, {}))}
    found = held[module] = _Held(own, own, _summed(own))
    children = [_visit(child, sizes, held) for child in module._modules.values() if child is not None]
    if children:
        found.below = dict(own)
        for child in children:
            found.below.update(child.below)
        shared = len(found.below) != len(own) + sum(len(child.below) for child in children)
        parts = [found.weights, *(child.weights for child in children)]
        found.weights = _summed(found.below) if shared else _added(parts)
    return found


def _tensors(module: torch.nn.Module, sizes: Mapping[str, float]) -> Iterator[_Tensor]:
    for name, parameter in module._parameters.items():
        if parameter is not None and not is_lazy(parameter):
            yield _described(name, parameter, sizes, is_buffer=False)
    for name, buffer in module._buffers.items():
        if buffer is not None and not is_lazy(buffer) and name not in module._non_persistent_buffers_set:
            yield _described(name, buffer, sizes, is_buffer=True)
    for name, packed in _packed(module):
        yield _described(name, packed, sizes, is_buffer=False)


def _packed(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights of torch's quantised modules, which hold them in an object of their own and give them by a method."""
    if "ao.nn" not in type(module).__module__ and "nn.quantized" not in type(module).__module__:
        return
    for name in ("weight", "bias"):
        give: Any = getattr(module, name, None)
        value = give() if callable(give) else None
        if isinstance(value, torch.Tensor):
            yield name, value
    for name in ("get_weight", "get_bias"):
        give = getattr(module, name, None)
        if callable(give):
            yield from ((key, value) for key, value in give().items() if isinstance(value, torch.Tensor))


def _described(name: str, tensor: torch.Tensor, sizes: Mapping[str, float], *, is_buffer: bool) -> _Tensor:
    return _Tensor(
        place_of(tensor),
        tensor.numel(),
        sizes.get(name, tensor.itemsize),
        dtype_name(tensor.dtype),
        tensor.requires_grad,
        is_buffer,
    )


def place_of(tensor: torch.Tensor) -> Place:
    """What two tensors share that are one in memory, whatever their shapes; on meta there are no addresses."""
    try:
        return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel()
    except (RuntimeError, NotImplementedError):  # sparse and other layouts have no storage of their own
        return id(tensor), 0, tensor.numel()


_NONE = Weights()


def _summed(tensors: Mapping[Place, _Tensor]) -> Weights:
    if not tensors:
        return _NONE
    params = trainable = buffers = 0
    params_bytes: float = 0
    buffers_bytes: float = 0
    dtypes: dict[str, int] = {}
    for _, elements, itemsize, dtype, is_trainable, is_buffer in tensors.values():
        if is_buffer:
            buffers += elements
            buffers_bytes += elements * itemsize
        else:
            params += elements
            trainable += elements if is_trainable else 0
            params_bytes += elements * itemsize
            dtypes[dtype] = dtypes.get(dtype, 0) + elements
    return Weights(params, trainable, _whole(params_bytes), buffers, _whole(buffers_bytes), dtypes)


def _added(parts: list[Weights]) -> Weights:
    """The weights of parts that share none."""
    parts = [part for part in parts if part is not _NONE]
    if len(parts) < 2:
        return parts[0] if parts else _NONE
    dtypes: dict[str, int] = {}
    for part in parts:
        for dtype, elements in part.dtypes.items():
            dtypes[dtype] = dtypes.get(dtype, 0) + elements
    return Weights(
        sum(part.params for part in parts),
        sum(part.trainable for part in parts),
        _whole(sum(part.params_bytes for part in parts)),
        sum(part.buffers for part in parts),
        _whole(sum(part.buffers_bytes for part in parts)),
        dtypes,
    )


def _whole(size: float) -> int | float:
    return int(size) if size == int(size) else size
