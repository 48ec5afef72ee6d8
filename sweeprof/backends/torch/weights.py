"""Parameters and buffers of every module, each tensor in memory once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from sweeprof.backends.torch.callsites import dtype_name
from sweeprof.backends.torch.state import children_of, modules_of
from sweeprof.counting.parameters import Variable, added, summed
from sweeprof.results.layers import Weights

StorageKey = tuple[int, int, int]


Held = dict[torch.nn.Module, list[Variable]]


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """The weights of every module."""

    own: dict[torch.nn.Module, Weights]
    """Without what a module before it holds already."""
    subtree: dict[torch.nn.Module, Weights]
    """With everything below, each tensor once."""


def inventory(
    modules: Mapping[torch.nn.Module, Sequence[str]], sizes: Mapping[torch.nn.Module, Mapping[str, float]]
) -> ModuleWeights:
    """The weights of every module.

    Args:
        modules: a root and everything below it, parents first, each with the paths under which it is held.
        sizes: bytes per element by parameter name, of modules that declare them.
    """
    held: Held = {module: _tensors(module, sizes.get(module, {})) for module in modules}
    places = {tensor.key for tensors in held.values() for tensor in tensors}
    shares_tensors = len(places) != sum(len(tensors) for tensors in held.values())
    shares_modules = any(len(paths) > 1 for paths in modules.values())
    return _of_graph(held) if shares_tensors or shares_modules else _of_tree(held)


def _of_tree(held: Held) -> ModuleWeights:
    """Return the weights if nothing is shared: they simply add up."""
    own = {module: summed(tensors) for module, tensors in held.items()}
    subtree = dict(own)
    for module in reversed(held):  # children come after their parents
        children = children_of(module)
        if children:
            subtree[module] = added([own[module], *(subtree[child] for child in children)])
    return ModuleWeights(own, subtree)


def _of_graph(held: Held) -> ModuleWeights:
    """Return the weights if tensors or modules are shared: each tensor counts once, with its first module and in each subtree."""
    before: set[Hashable] = set()
    own: dict[torch.nn.Module, Weights] = {}
    for module, tensors in held.items():
        fresh = {tensor.key: tensor for tensor in tensors if tensor.key not in before}
        before.update(fresh)
        own[module] = summed(fresh.values())
    subtree = {}
    for module in held:
        below = {tensor.key: tensor for inner in modules_of(module) for tensor in held[inner]}
        subtree[module] = summed(below.values())
    return ModuleWeights(own, subtree)


def _tensors(module: torch.nn.Module, sizes: Mapping[str, float]) -> list[Variable]:
    found = [
        _described(name, parameter, sizes, False)
        for name, parameter in module._parameters.items()
        if parameter is not None and not is_lazy(parameter)
    ]
    for name, buffer in module._buffers.items():
        if buffer is not None and not is_lazy(buffer) and name not in module._non_persistent_buffers_set:
            found.append(_described(name, buffer, sizes, True))
    if _may_be_packed(type(module).__module__):
        found += [_described(name, packed, sizes, False) for name, packed in _packed(module)]
    return found


@cache
def _may_be_packed(package: str) -> bool:
    return "ao.nn" in package or "nn.quantized" in package


def _packed(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights of torch's quantised modules, which hold them in an object of their own and give them by a method."""
    for name in ("weight", "bias"):
        give: Any = getattr(module, name, None)
        value = give() if callable(give) else None
        if isinstance(value, torch.Tensor):
            yield name, value
    for name in ("get_weight", "get_bias"):
        give = getattr(module, name, None)
        if callable(give):
            yield from ((key, value) for key, value in give().items() if isinstance(value, torch.Tensor))


def _described(name: str, tensor: torch.Tensor, sizes: Mapping[str, float], is_buffer: bool) -> Variable:
    place = place_of(tensor)
    return Variable(
        place,
        place[2],
        sizes.get(name, tensor.itemsize),
        dtype_name(tensor.dtype),
        tensor.requires_grad,
        is_buffer,
    )


def place_of(tensor: torch.Tensor) -> StorageKey:
    """Return a key that is equal for tensors which share memory, whatever their shapes; on meta there are no addresses."""
    try:
        return tensor.untyped_storage()._cdata, int(tensor.storage_offset()), tensor.numel()
    except (RuntimeError, NotImplementedError):  # sparse and other layouts have no storage of their own
        return id(tensor), 0, tensor.numel()
