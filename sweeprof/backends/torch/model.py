"""A module on a device, ready to step: as it is, in another precision, another memory layout, compiled; and its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils.rnn import PackedSequence

from sweeprof.backends.compilers import Compiler
from sweeprof.backends.outputs import HostArray, HostOutputs, floating_outputs
from sweeprof.backends.torch.callsites import tensors_in
from sweeprof.backends.torch.compiling import compiled
from sweeprof.backends.torch.dispatch import CONSTANT_ELEMENTS
from sweeprof.backends.torch.quantization import method_of, quantized
from sweeprof.backends.torch.state import WrappedForward, is_compiled
from sweeprof.errors import Unsupported, UserError, choice_problem
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Clock, WallClock
from sweeprof.nested import named_leaves


class EventClock(WallClock):
    """Marks are events in the device's stream: taking one does not wait, reading the time between two does.

    Args:
        record: puts an event into the stream; it has ``synchronize()`` and ``elapsed_time(later)``, in milliseconds.
    """

    def __init__(self, record: Callable[[], object]) -> None:
        self._record = record

    def mark(self) -> Any:
        return self._record()

    def between(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def accelerators() -> list[str]:
    """Return the names of this host's accelerators: the current one, and each by its number."""
    current = torch.accelerator.current_accelerator(check_available=True)
    if current is None:
        return []
    return [current.type, *(f"{current.type}:{index}" for index in range(torch.accelerator.device_count()))]


def clock_of(device: torch.device) -> Clock:
    """The clock of a device: of the host where it has no events."""
    if device.type == "cpu":
        return WallClock()

    def record() -> torch.Event:
        event = torch.Event(device.type, enable_timing=True)
        event.record(torch.accelerator.current_stream(device))  # an event's own choice is the current device's stream
        return event

    return EventClock(record)


PRECISIONS: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,
}
"""Data type of parameters and floating-point inputs, or with ``autocast`` of the computation."""


@dataclass(frozen=True, slots=True)
class TorchVariant:
    """The precision and layout in which a module runs, and whether it is compiled.

    Raises:
        UserError: there is no such precision.
    """

    precision: str | None = None
    """One of :data:`PRECISIONS`; None: as the module is."""
    channels_last: bool = False
    """True: images are stored with their channels last."""
    compiler: Compiler | None = None
    """What ``torch.compile`` generates kernels with; None: it is not compiled."""
    method: str | None = None
    """``autocast``: parameters stay in 32 bits; ``torchao`` or ``torch_ao``: what quantizes; None: parameters are converted, and
    quantized by torchao where it is installed."""

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in PRECISIONS:
            raise UserError([choice_problem("backend.precision", self.precision, "precision", PRECISIONS)])

    @property
    def is_quantized(self) -> bool:
        """True if parameters have 8 bits."""
        return self.precision == "int8"

    @property
    def dtype(self) -> torch.dtype | None:
        """The data type of floating-point parameters and inputs; None leaves them unchanged."""
        if self.precision is None:
            return None
        return torch.float32 if self.method == "autocast" else PRECISIONS[self.precision]

    @property
    def peak_dtype(self) -> torch.dtype | None:
        """The data type of most of the computation."""
        return None if self.precision is None else PRECISIONS[self.precision]

    def of(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module as this variant runs it; parameters change in place, a quantized or compiled module is another one.

        Raises:
            Unsupported: this host has no kernels or no compiler for it, or the module no layer that can be quantized.
        """
        if self.dtype is not None:
            for parameter in module.parameters():
                parameter.grad = None  # it may be a caller's, and `to` would write into it
            module = module.to(self.dtype)
        if self.channels_last:
            _store_channels_last(module)
        if self.is_quantized:
            module = quantized(module, self.method)
        if self.method == "autocast" and self.precision is not None:
            _autocast(module, PRECISIONS[self.precision])
        return compiled(module, self.compiler) if self.compiler is not None else module

    def prepared(self, leaf: object) -> Any:
        """An input as this variant wants it, wherever it is."""
        if isinstance(leaf, TensorSpec):
            return self._specified(leaf)
        if isinstance(leaf, np.ndarray):
            leaf = torch.from_numpy(leaf)
        if isinstance(leaf, PackedSequence):
            return leaf.to(self.dtype) if self.dtype is not None and leaf.data.is_floating_point() else leaf
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach()
        if self.dtype is not None and made.is_floating_point():
            made = made.to(self.dtype)
        if self.channels_last and made.dim() == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_(leaf.requires_grad)

    def _specified(self, spec: TensorSpec) -> TensorSpec:
        if self.dtype is None or not getattr(torch, spec.dtype).is_floating_point:
            return spec
        return replace(spec, dtype=str(self.dtype).removeprefix("torch."))


AS_IT_IS = TorchVariant()


def _store_channels_last(module: torch.nn.Module) -> None:
    """The weights of two-dimensional convolutions; ``Module.to`` raises where there are three-dimensional ones too."""
    for parameter in module.parameters():
        if not isinstance(parameter, UninitializedParameter) and parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def _autocast(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Let the forward of a module compute in ``dtype`` where :class:`torch.autocast` does."""
    if isinstance(module, torch.jit.ScriptModule):
        raise Unsupported("a scripted module has no forward in Python that autocast could surround")
    device = next((parameter.device.type for parameter in module.parameters()), "cpu")
    forward = module.forward

    def within_autocast(*args: object, **kwargs: object) -> object:
        with torch.autocast(device, dtype):
            return forward(*args, **kwargs)

    module.__dict__["forward"] = WrappedForward.of(forward, within_autocast)


def on_device(inputs: Inputs, device: str | torch.device) -> Inputs:
    """The inputs with every tensor on ``device``; on meta, shapes only. What is only specified is generated there."""
    place = torch.device(device)
    return inputs.map(lambda leaf: _placed(leaf, lambda _: place))


def as_shapes(inputs: Inputs, device: torch.device | None, zeros: bool = False) -> Inputs:
    """The inputs for a forward over shapes: floating-point tensors on meta, integers and truth values on ``device``.

    A forward may ask for the values of a mask or of a length. Large tensors are on meta.

    Args:
        device: where the model is; of None and meta, the CPU.
        zeros: replace integers that the caller has on meta by zeros; else they stay there.
    """
    real = torch.device("cpu") if device is None or device == _META else device

    def place_of(given: torch.Tensor | TensorSpec) -> torch.device:
        stays = isinstance(given, torch.Tensor) and given.is_meta and not zeros
        return real if not stays and _may_be_asked_for(given) else _META

    return inputs.map(lambda leaf: _placed(leaf, place_of))


_META = torch.device("meta")


def _may_be_asked_for(given: torch.Tensor | TensorSpec) -> bool:
    """True for integers and truth values, but for large tensors."""
    if isinstance(given, TensorSpec):
        dtype, elements = getattr(torch, given.dtype), prod(given.shape)
    elif given.is_quantized or given.layout != torch.strided:
        return False
    else:
        dtype, elements = given.dtype, given.numel()
    return not (dtype.is_floating_point or dtype.is_complex) and elements <= CONSTANT_ELEMENTS


def _placed(leaf: object, place_of: Callable[[torch.Tensor | TensorSpec], torch.device]) -> Any:
    """An input with every tensor in it on the device that ``place_of`` names; on meta, shapes only."""
    if isinstance(leaf, np.ndarray):
        made = torch.from_numpy(leaf)
        place = place_of(made)
        return made.to(place) if place != _META else torch.empty_like(made, device=place)
    if isinstance(leaf, TensorSpec):
        return _generated(leaf, place_of(leaf))
    if isinstance(leaf, PackedSequence):  # its batch sizes stay on the host
        data = _placed(leaf.data, place_of)
        return PackedSequence(data, leaf.batch_sizes, leaf.sorted_indices, leaf.unsorted_indices)
    if isinstance(leaf, torch.Tensor):
        return _placed_tensor(leaf, place_of(leaf))
    if isinstance(leaf, Mapping):  # such as a tokenizer's BatchEncoding
        return {key: _placed(value, place_of) for key, value in leaf.items()}
    return leaf


def _placed_tensor(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    if tensor.is_meta and tensor.device == place:
        return tensor
    if place == _META and tensor.layout == torch.strided:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=place)
        return made.requires_grad_(tensor.requires_grad)
    if tensor.is_meta:
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=place)
    return tensor.detach().to(place, copy=True).requires_grad_(tensor.requires_grad)  # a forward may write into it


def _generated(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """Return a tensor generated from ``spec``, with the same values each time."""
    dtype = getattr(torch, spec.dtype)
    if device.type == "meta":
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(spec.shape, dtype=dtype, device=device)
    values = torch.randn(spec.shape, generator=torch.Generator().manual_seed(0))
    return values.to(device, dtype)


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A module in inference mode on a device."""

    module: torch.nn.Module
    device: torch.device
    variant: TorchVariant = AS_IT_IS

    @property
    def native(self) -> torch.nn.Module:
        return self.module

    @property
    def compiles(self) -> bool:
        return is_compiled(self.module)

    @property
    def precision_method(self) -> str:
        """By which method the module has its precision."""
        if not self.variant.is_quantized:
            return self.variant.method or "convert"
        return self.variant.method or method_of(self.module)

    def clock(self) -> Clock:
        return clock_of(self.device)

    def put(self, inputs: Inputs) -> Inputs:
        with torch.inference_mode(False):  # a batch that is made within it can never be trained on
            return on_device(inputs, self.device).map(self.variant.prepared)

    @contextmanager
    def stepping(self, batch: Inputs) -> Iterator[Callable[[], object]]:
        step = self.forward_of(batch)

        def synchronised_step() -> object:
            outputs = step()
            torch.accelerator.synchronize(self.device)
            return outputs

        with torch.inference_mode():
            yield step if self.device.type == "cpu" else synchronised_step

    def forward_of(self, batch: Inputs) -> Callable[[], object]:
        """A function that runs one forward; it does not wait for the device, and leaves gradients as they are set."""
        called = self.module if batch.forward is None else partial(batch.forward, self.module)
        return partial(called, *batch.args, **batch.kwargs)

    def host_outputs(self, outputs: object) -> HostOutputs:
        found = {name: leaf for name, leaf in named_leaves(outputs).items() if isinstance(leaf, torch.Tensor)}
        return floating_outputs(outputs, found, torch.is_floating_point, _on_host)

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        if self.device.type == "cpu":
            return {}

        host = on_device(inputs, "cpu").map(self.variant.prepared)

        def to_device() -> None:
            on_device(host, self.device)
            torch.accelerator.synchronize(self.device)

        return {"h2d": to_device, "d2h": lambda: [tensor.to("cpu") for tensor in tensors_in(outputs)]}


def _on_host(tensor: torch.Tensor) -> HostArray:
    array: HostArray = tensor.detach().to("cpu", torch.float32).numpy()
    return array


def first_tensor(outputs: object) -> torch.Tensor:
    """The first tensor in what a model returned.

    Raises:
        Unsupported: there is none.
    """
    tensors = tensors_in(outputs)
    if not tensors:
        raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
    return tensors[0]
