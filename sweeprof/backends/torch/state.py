"""Leaving a model, and torch itself, as they were found."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import is_
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

ORIGINAL, MASK = "_orig", "_mask"
"""The ends of the names by which ``torch.nn.utils.prune`` registers a parameter and its mask."""
_CONTAINERS: frozenset[Any] = frozenset({dict, OrderedDict, list, set})


@contextmanager
def unchanged(
    module: torch.nn.Module, *, values: bool = True, modules: Sequence[torch.nn.Module] | None = None
) -> Iterator[None]:
    """Put back everything that happens to ``module`` within it, also after an error.

    Restored: mode, attributes, hooks and what they hold, which tensors are its parameters and buffers, which of them want
    gradients, and the state of the random generators.

    Args:
        values: their values, device and gradients too, for a model that really runs; buffers are copied for that, parameters
            are not written to by a forward.
        modules: itself and every module below it, where the caller has them at hand.
    """
    modules = modules_of(module) if modules is None else modules
    tensors = [tensor for tensor in tensors_among(modules) if not is_lazy(tensor)]
    attributes = [_ModuleAttributes(vars(inner)) for inner in modules]
    lazy: list[Any] = [inner for inner in modules if isinstance(inner, LazyModuleMixin)] if values else []
    lazy += [tensor for tensor in tensors_among(modules) if is_lazy(tensor)] if lazy else []
    kinds = [(thing, type(thing)) for thing in lazy]
    wanting = [(tensor, tensor.requires_grad) for tensor in tensors]
    holding = [(tensor, tensor.data, tensor.grad) for tensor in tensors if tensor.is_leaf] if values else []
    buffers = [(b, b.detach().clone()) for b in module.buffers() if not is_lazy(b) and not b.is_meta] if values else []
    try:
        with torch.random.fork_rng(devices=_accelerators()):
            yield
    finally:
        for remembered in attributes:
            remembered.restore()
        for thing, kind in kinds:
            if type(thing) is not kind:  # it became a layer for the shape that it met
                if isinstance(thing, torch.Tensor):
                    thing.data = torch.empty(0, dtype=thing.dtype, device=thing.device)
                thing.__class__ = kind
        for tensor, data, grad in holding:
            tensor.data, tensor.grad = data, grad
        for tensor, requires_grad in wanting:
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
        for buffer, before in buffers:
            if buffer.layout != torch.strided or not torch.equal(buffer, before):
                buffer.detach().copy_(before)


class WrappedForward(partial[Any]):
    """A forward in the place of another; a copy or a pickle of its module has the other one."""

    original: Callable[..., object]

    @classmethod
    def of(cls, original: Callable[..., object], wrapping: Callable[..., object]) -> WrappedForward:
        """``wrapping`` in the place of ``original``."""
        made = cls(wrapping)
        made.original = original
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.original, memo)

    def __reduce_ex__(self, _protocol: object) -> Any:
        return _itself, (self.original,)


def _itself(forward: Callable[..., object]) -> Callable[..., object]:
    return forward


@contextmanager
def forwards_wrapped(
    modules: Iterable[torch.nn.Module], wrap: Callable[[torch.nn.Module], Callable[..., Any]]
) -> Iterator[None]:
    """Within it each instance has the ``forward`` that ``wrap`` makes of it; afterwards the one it had.

    Unlike a pair of hooks a wrapped forward sees arguments and results in one place, sees ``module.forward(...)`` too, costs a
    fifth, and is not taken along when the module is copied or saved.
    """
    wrapped: list[tuple[dict[str, Any], Any]] = []
    try:
        for module in modules:
            attributes = vars(module)
            wrapped.append((attributes, attributes.get("forward", wrapped)))
            attributes["forward"] = WrappedForward.of(module.forward, wrap(module))
        yield
    finally:
        for attributes, before in wrapped:
            if before is wrapped:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = before


@contextmanager
def parameters_kept(module: torch.nn.Module) -> Iterator[None]:
    """Give the parameters the values back that they had, after an optimizer has written to them; lazy ones have none."""
    parameters: list[torch.Tensor] = list(module.parameters())
    before = [(parameter, parameter.detach().clone()) for parameter in parameters if not is_lazy(parameter)]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, values in before:
                parameter.copy_(values)


def children_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that a module holds itself; the mapping of a scripted module has no length and no truth."""
    return [child for child in module._modules.values() if child is not None]


def modules_of(root: torch.nn.Module) -> list[torch.nn.Module]:
    """A root and every module below it, each once, parents first: ``root.modules()``, a few times quicker."""
    found: dict[torch.nn.Module, None] = {}
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += reversed(children_of(module))
    return list(found)


def is_compiled(module: torch.nn.Module) -> bool:
    """True if ``torch.compile`` made the module, or was applied to it in place."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def running_as_python(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules whose forward Python calls: scripted or compiled modules would skip a probe, or compile it."""
    compiled = {
        inner for module in modules if is_compiled(module) for inner in modules_of(getattr(module, "_orig_mod", module))
    }
    return [m for m in modules if m not in compiled and not isinstance(m, torch.jit.ScriptModule)]


def tensors_of(root: torch.nn.Module) -> list[torch.Tensor]:
    """Every parameter and buffer of a module and all below it; one that is shared as often as it is held."""
    return tensors_among(modules_of(root))


def tensors_among(modules: Iterable[torch.nn.Module]) -> list[torch.Tensor]:
    """Every parameter and buffer that the modules hold themselves."""
    return [
        tensor
        for module in modules
        for held in (module._parameters, module._buffers)
        for tensor in held.values()
        if tensor is not None
    ]


def masks_of(root: torch.nn.Module) -> list[torch.Tensor]:
    """The pruning masks of a module and all below it."""
    found = []
    for module in modules_of(root):
        for name in module._parameters:
            mask = module._buffers.get(f"{name.removesuffix(ORIGINAL)}{MASK}") if name.endswith(ORIGINAL) else None
            if mask is not None:
                found.append(mask)
    return found


def _accelerators() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


class _ModuleAttributes:
    """The attributes of a module, and what those that are plain containers held."""

    __slots__ = ("_before", "_current", "_held", "_own")

    def __init__(self, current: dict[str, Any]) -> None:
        self._current = current
        self._before = current.copy()
        values = list(current.values())
        # A module sets its own attributes first, always the same; of these mostly three or four hold anything.
        first = _OWN if len(values) >= _OWN and values[_OWN - 1] is current.get("_modules", self) else 0
        self._own = values[:first]
        containers = [value for value in filter(None, self._own) if value is not True]
        containers += [value for value in values[first:] if value.__class__ in _CONTAINERS]
        self._held = [(value, value.copy()) for value in containers]

    def restore(self) -> None:
        """Put every one back that was exchanged, added or removed."""
        current, before = self._current, self._before
        if len(current) != len(before) or not all(map(is_, current.values(), before.values())):
            current.clear()
            current.update(before)
        held = {id(value) for value, _ in self._held}
        for value in filter(None, self._own):
            if value is not True and id(value) not in held:
                value.clear()
        for value, content in self._held:
            if not _same(value, content):
                value.clear()
                value.extend(content) if isinstance(value, list) else value.update(content)


_OWN = list(vars(torch.nn.Module())).index("_modules") + 1
"""How many attributes ``torch.nn.Module.__init__`` sets."""


def _same(value: Any, content: Any) -> bool:
    """True if two containers of one kind hold the identical objects."""
    if len(value) != len(content):
        return False
    if isinstance(value, dict):
        return all(map(is_, value.values(), content.values())) and value.keys() == content.keys()
    return all(map(is_, value, content)) if isinstance(value, list) else bool(value == content)
