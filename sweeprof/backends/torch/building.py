"""Modules on the meta device, where tensors have shapes and no memory."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch._ops import OpOverload
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from sweeprof.backends import Build
from sweeprof.backends.torch.state import any_lazy, masks_of, modules_of, tensors_of
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.measuring.inputs import Inputs


def built(build: Build) -> torch.nn.Module:
    """Return the module that the builder makes.

    Raises:
        TypeError: that is no module.
    """
    module = build()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"the model's builder returned a {type(module).__name__}, not a torch.nn.Module")
    return module


def build_on_meta(build: Build) -> torch.nn.Module:
    """The module that ``build`` makes, without memory for its parameters and without filling them."""
    with warnings.catch_warnings(), torch.device("meta"), NoInitialisation():  # type: ignore[no-untyped-call]
        warnings.simplefilter("ignore")  # a module loading its weights onto meta is what is wanted here
        return built(build)


def made(build: Build) -> torch.nn.Module:
    """The module that ``build`` makes, on meta where that is possible."""
    try:
        return build_on_meta(build)
    except Exception:  # whatever it is, building for real either works or reports it
        return built(build)


def copied_to_meta(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of the module whose parameters and buffers are on the meta device; nothing is allocated for them.

    It shares the pruning masks, whose values say how many parameters are pruned. Results of operators among the attributes, such as
    a pruned weight, which Python cannot copy, are on meta too.
    """
    masks = {id(mask): mask for mask in masks_of(module)}
    computed = [value for inner in modules_of(module) for value in vars(inner).values() if _is_computed(value)]
    on_meta = {id(tensor): _on_meta(tensor) for tensor in [*tensors_of(module), *computed]}
    return copy.deepcopy(module, on_meta | masks)


def _is_computed(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_leaf


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, UninitializedParameter):
        return UninitializedParameter(tensor.requires_grad, device="meta", dtype=tensor.dtype)  # type: ignore[call-arg, arg-type]
    if isinstance(tensor, UninitializedBuffer):
        return UninitializedBuffer(device="meta", dtype=tensor.dtype)  # type: ignore[call-arg]
    shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return torch.nn.Parameter(shape, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else shape


def materialised(module: torch.nn.Module, inputs: Inputs) -> torch.nn.Module:
    """The module itself, or where it has lazy parameters a copy of it on meta that has met ``inputs``, also on meta."""
    if not any_lazy(tensors_of(module)):
        return module
    made = copied_to_meta(module)
    with torch.no_grad(), NoInitialisation():  # type: ignore[no-untyped-call]
        inputs.call(made)
    return made


def device_of(module: torch.nn.Module) -> torch.device | None:
    """Return the device of the model's first parameter or buffer."""
    for inner in module.modules():
        for tensor in (*inner._parameters.values(), *inner._buffers.values()):
            if tensor is not None:
                return tensor.device
    return None


class NoInitialisation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Skips what fills a tensor on meta, most of the time of building a model there."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        filled = args[0] if args and func._schema.name in _FILLS else None
        if isinstance(filled, torch.Tensor) and filled.is_meta:
            return filled
        return func(*args, **(kwargs or {}))


_FILLS = frozenset(
    f"aten::{name}_"
    for name in "normal uniform zero fill copy erfinv mul add sub div clamp trunc exponential bernoulli random".split()
)
