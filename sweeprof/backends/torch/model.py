"""Modules: built, on the meta device (shapes without memory) or on a device, in a precision and a memory layout, compiled.

Quantized modules have weights of 8 or 4 bits, by torchao; those of 8 bits quantize their inputs as they come.
A function is wrapped in a module, so that it is counted and measured like any model.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import chain
from math import prod
from types import ModuleType
from typing import Any, TypedDict, TypeGuard, TypeVar

import numpy as np
import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

from sweeprof.backends import (
    AnyArray,
    Build,
    CompileMode,
    Compiler,
    HostOutputs,
    LoadedModel,
    attribute,
    outputs_on_host,
)
from sweeprof.backends.torch.callsites import dtype_name, tensors_in
from sweeprof.backends.torch.dispatch import CONSTANT_ELEMENTS
from sweeprof.backends.torch.private import (
    SWITCHES_OF_AUTOGRAD,
    OpOverload,
    below_autograd,
    find_compiler,
    graphs_made,
    is_graph_break,
    sleep_on_device,
)
from sweeprof.backends.torch.state import (
    DispatchMode,
    any_lazy,
    is_compiled,
    is_training,
    known_accelerator,
    masks_of,
    modules_of,
    offloaded_to,
    state_of,
    tensors_of,
    with_tensors,
)
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Clock, WallClock
from sweeprof.nested import named_leaves
from sweeprof.results.layers import LayerTable

# How a forward runs: with as little of autograd as it allows, until everything that it returns is computed.


GradientMode = Callable[[], AbstractContextManager[Any]]


@contextmanager
def without_autograd() -> Iterator[None]:
    """Within it operators arrive whole, as in inference mode, and what is computed is not tied to that mode."""
    with torch.no_grad(), below_autograd():
        yield


MODES: tuple[GradientMode, ...] = (torch.inference_mode, torch.no_grad, torch.enable_grad)
"""The first one in which a forward does what it does for its users: forces, physics-informed networks and explanations by gradients
need autograd within it. In inference mode some functions of torch return zeros then, and raise nothing."""
UNTIED_MODES: tuple[GradientMode, ...] = (without_autograd, torch.no_grad, torch.enable_grad)
"""The same for a forward whose module may keep what it computes."""


class AutogradWatch:
    """Within it, notes whether autograd is switched on."""

    def __init__(self) -> None:
        self.was_switched_on = False
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before = [attribute(owner, name) for owner, name in SWITCHES_OF_AUTOGRAD]
        for (owner, name), switch in zip(SWITCHES_OF_AUTOGRAD, self._before, strict=True):
            setattr(owner, name, self._noting(switch))

    def __exit__(self, *error: object) -> None:
        for (owner, name), switch in zip(SWITCHES_OF_AUTOGRAD, self._before, strict=True):
            setattr(owner, name, switch)

    def _noting(self, switch: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            self.was_switched_on |= args != (False,)
            return switch(*args)

        return noting


class AutocastWatch:
    """Within it, notes whether autocast is on, or is switched on."""

    def __init__(self) -> None:
        self.was_on = False
        self._switch: Any = None

    def __enter__(self) -> None:
        accelerator = known_accelerator()
        for kind in ("cpu", None if accelerator is None else accelerator.type):
            if kind is not None and torch.amp.is_autocast_available(kind):
                self.was_on |= torch.is_autocast_enabled(kind)
        self._switch = torch.set_autocast_enabled
        setattr(torch, "set_autocast_enabled", self._noting)  # noqa: B010  # a function is not assigned to

    def __exit__(self, *error: object) -> None:
        setattr(torch, "set_autocast_enabled", self._switch)  # noqa: B010

    def _noting(self, *args: Any, **kwargs: Any) -> Any:
        self.was_on |= True in (*args, *kwargs.values())
        return self._switch(*args, **kwargs)


def further_modes(
    modes: Sequence[GradientMode], watch: AutogradWatch, error: Exception | None
) -> Sequence[GradientMode]:
    """Return the modes in which a forward is to be run again.

    Args:
        modes: the one in which it has run, and those after it.
        watch: on the forward.
        error: what it raised; None: it returned.
    """
    if watch.was_switched_on and modes[0] in (torch.inference_mode, without_autograd):
        return modes[1:]
    if error is None:
        return ()
    if modes[0] is without_autograd or "nference tensor" in str(error) or "require grad" in str(error):
        return modes[1:]
    return ()


@contextmanager
def inference(model: TorchModel, batch: Inputs) -> Iterator[Callable[[], Any]]:
    """Yield a function that runs a forward of inference and returns what it returned, completely computed.

    The first step finds the mode, and is run again in another one if it switches autograd on. Forwards of further batches of the
    same model begin in the mode of the one before.
    """
    forward = model.forward_of(batch)
    with ExitStack() as surrounding:
        modes: Sequence[GradientMode] = model.modes
        surrounding.enter_context(modes[0]())
        run_step: Callable[[], object] | None = None

        def first() -> object:
            nonlocal modes, run_step
            while True:
                watch = AutogradWatch()
                try:
                    # What is compiled would keep the functions by which autograd is watched.
                    with nullcontext() if is_compiled(model.native) else watch:
                        outputs = finished(forward())
                    further = further_modes(modes, watch, None)
                except Exception as error:
                    further = further_modes(modes, watch, error)
                    if not further:
                        raise
                if not further:
                    model.modes[:], run_step = modes, forward
                    return outputs
                outputs, modes = None, further
                surrounding.close()
                surrounding.enter_context(modes[0]())

        def step() -> object:
            if run_step is None:
                return first()
            outputs = run_step()
            if type(outputs) is torch.Tensor:
                return outputs
            return finished(outputs)

        yield step


def finished(outputs: Any) -> Any:
    """Return what a forward returned after what is lazy in it has run: generators and other iterators, and futures.

    Raises:
        Unsupported: it is a coroutine, which only an event loop runs.
    """
    kind = type(outputs)
    if isinstance(outputs, Iterator):
        return [finished(item) for item in outputs]
    if isinstance(outputs, Future):
        return finished(outputs.result())
    if isinstance(outputs, torch.futures.Future):
        return finished(outputs.wait())
    if kind in (list, tuple):
        return kind(finished(item) for item in outputs)
    if kind is dict:
        return {key: finished(item) for key, item in outputs.items()}
    if inspect.isawaitable(outputs) or inspect.isasyncgen(outputs):
        if inspect.iscoroutine(outputs):
            outputs.close()
        asks = "give a step that runs it, such as forward=lambda model, x: asyncio.run(model(x))"
        raise Unsupported(f"the model returned a coroutine, which has not run: {asks}")
    return outputs


# Modules: built, on the meta device (shapes without memory) or on a device, in a precision and a memory layout, compiled.


T = TypeVar("T")


class EventClock(WallClock):
    """Marks are events in the device's stream: taking one does not wait, reading the time between two does.

    Args:
        record: puts an event into the stream; it has ``synchronize()`` and ``elapsed_time(later)``, in milliseconds.
        spin: queues so many units of work for the device; all units take equally long.
        calibrated: the number of units whose time is measured first; they take about a millisecond.
    """

    def __init__(self, record: Callable[[], object], spin: Callable[[int], object], calibrated: int) -> None:
        self._record = record
        self._spin = spin
        self._calibrated = calibrated
        self._units_per_s: float | None = None

    def mark(self) -> Any:
        return self._record()

    def between(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def is_reached(self, mark: Any) -> bool:
        return bool(mark.query())

    def occupy(self, seconds: float) -> None:
        if self._units_per_s is None:
            self._spin(self._calibrated)  # the first one also loads the kernel
            begin = self.mark()
            self._spin(self._calibrated)
            self._units_per_s = self._calibrated / self.between(begin, self.mark())
        self._spin(math.ceil(seconds * self._units_per_s))


SPINNING_CYCLES = 1_000_000
"""About half a millisecond."""
SPINNING_ROWS = 2048
"""Of the square matrices whose product takes about a millisecond, on a device without a kernel that spins."""


def accelerators() -> list[str]:
    """Return the names of this host's accelerators: the current one, and each by its number."""
    current = known_accelerator()
    if current is None or not torch.accelerator.is_available():
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

    def spin(cycles: int) -> None:
        with torch.cuda.device(device):
            sleep_on_device(cycles)

    @cache
    def matrices() -> tuple[torch.Tensor, torch.Tensor]:
        matrix = torch.ones(SPINNING_ROWS, SPINNING_ROWS, device=device)
        return matrix, torch.empty_like(matrix)

    def multiply(products: int) -> None:
        matrix, product = matrices()
        for _ in range(products):
            torch.mm(matrix, matrix, out=product)

    if device.type == "cuda":
        return EventClock(record, spin, SPINNING_CYCLES)
    return EventClock(record, multiply, 1)


PRECISIONS: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.float32,
    "fp8": torch.bfloat16,
    "int4": torch.bfloat16,
}
"""Data type of parameters and floating-point inputs, apart from quantized weights, or with ``autocast`` of the computation."""


class CompileSettings(TypedDict, total=False):
    """Further arguments of ``torch.compile``; only inductor has modes."""

    mode: CompileMode | None
    dynamic: bool | None
    fullgraph: bool


@dataclass(frozen=True, slots=True)
class TorchVariant:
    """The precision and layout in which a module runs, and whether it is compiled."""

    precision: str | None = None
    """One of :data:`PRECISIONS`; None: as the module is."""
    channels_last: bool = False
    """True: images are stored with their channels last."""
    compiler: Compiler | None = None
    """What ``torch.compile`` generates kernels with; None: it is not compiled."""
    method: str | None = None
    """``autocast``: parameters stay in 32 bits; ``torchao``: they are quantized; None: they are converted."""
    compile_settings: CompileSettings = field(default_factory=CompileSettings)
    """How the compiler works."""

    @property
    def is_quantized(self) -> bool:
        """True if weights of linear layers have 8 or 4 bits."""
        return self.precision in QUANTIZED

    @property
    def dtype(self) -> torch.dtype | None:
        """The data type of floating-point parameters and inputs; None leaves them unchanged."""
        if self.precision is None:
            return None
        if self.method == "autocast":
            return torch.float32
        return PRECISIONS[self.precision]

    @property
    def peak_dtype(self) -> torch.dtype | None:
        """The data type of most of the computation."""
        return None if self.precision is None else PRECISIONS[self.precision]

    def of(self, module: torch.nn.Module, as_shapes: bool = False) -> torch.nn.Module:
        """The module as this variant runs it; parameters change in place, a quantized or compiled module is another one.

        Args:
            module: on the device where it will run.
            as_shapes: as of :func:`quantized`.

        Raises:
            Unsupported: this host has no kernels or no compiler for it, or the module no layer that can be quantized.
        """
        if self.dtype is not None:
            for parameter in module.parameters():
                parameter.grad = None  # it may be a caller's, and `to` would write into it
            with _ComplexStays():
                module = module.to(self.dtype)
        if self.channels_last:  # `Module.to` raises where there are three-dimensional convolutions too
            for parameter in module.parameters():
                if not isinstance(parameter, UninitializedParameter) and parameter.dim() == 4:
                    parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        if self.precision in QUANTIZED:
            module = quantized(module, self.precision, is_compiled=self.compiler == "inductor", as_shapes=as_shapes)
        if self.compiler is None:
            return module
        return compiled(module, self.compiler, self.peak_dtype, self.compile_settings)

    def prepared(self, leaf: object) -> Any:
        """An input as this variant wants it, wherever it is."""
        if isinstance(leaf, TensorSpec):
            return replace(leaf, dtype=dtype_name(self._converted(getattr(torch, leaf.dtype))))
        if isinstance(leaf, np.ndarray):
            leaf = torch.from_numpy(leaf)
        if isinstance(leaf, PackedSequence):
            return leaf.to(self._converted(leaf.data.dtype))
        if not isinstance(leaf, torch.Tensor):
            if self.dtype is not None or self.channels_last:
                leaf = with_tensors(leaf, self.prepared)
            return leaf
        made = leaf.detach()
        made = made.to(self._converted(made.dtype))
        if self.channels_last and made.dim() == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_(leaf.requires_grad)

    def _converted(self, dtype: torch.dtype) -> torch.dtype:
        """The data type to which an input of data type ``dtype`` is converted."""
        if self.dtype is not None and dtype.is_floating_point:
            return self.dtype
        if self.dtype is not None and dtype.is_complex:
            return COMPLEX
        return dtype


COMPLEX = torch.complex64
"""The data type of complex numbers in every precision: torch computes with no shorter ones."""


class _ComplexStays(TorchFunctionMode):
    """Within it ``Module.to`` gives complex tensors the type :data:`COMPLEX`, instead of dropping their imaginary parts."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if func is torch.Tensor.to and args[0].is_complex():
            return args[0].to(COMPLEX)
        return func(*args, **(kwargs or {}))


AS_IT_IS = TorchVariant()


def on_device(inputs: Inputs, device: str | torch.device) -> Inputs:
    """The inputs with every tensor on ``device``; on meta, shapes only. What is only specified is generated there."""
    place = torch.device(device)
    return inputs.map(lambda leaf: _placed(leaf, lambda _: place))


def with_own_state(inputs: Inputs) -> Inputs:
    """The inputs for one of several forwards: with containers and objects of its own, and the same tensors."""
    return inputs.map(lambda leaf: leaf if isinstance(leaf, torch.Tensor) else with_tensors(leaf, lambda held: held))


def as_shapes(inputs: Inputs, device: torch.device | None, zeros: bool = False) -> Inputs:
    """The inputs for a forward over shapes: floating-point tensors on meta, integers and truth values on ``device``.

    A forward may ask for the values of a mask or of a length. Large tensors are on meta.

    Args:
        device: where the model is; of None and meta, the CPU.
        zeros: replace integers that the caller has on meta by zeros; else they stay there.
    """
    real = device
    if real is None or real == _META:
        real = torch.device("cpu")

    def place_of(given: torch.Tensor | TensorSpec) -> torch.device:
        if isinstance(given, TensorSpec):
            dtype, elements = getattr(torch, given.dtype), prod(given.shape)
        elif given.is_quantized or given.layout != torch.strided or (given.is_meta and not zeros):
            return _META
        else:
            dtype, elements = given.dtype, given.numel()
        if dtype.is_floating_point or dtype.is_complex or elements > CONSTANT_ELEMENTS:
            return _META
        return real

    return inputs.map(lambda leaf: _placed(leaf, place_of))


_META = torch.device("meta")


def _placed(leaf: object, place_of: Callable[[torch.Tensor | TensorSpec], torch.device]) -> Any:
    """An input with every tensor in it on the device that ``place_of`` names; on meta, shapes only.

    Tensors are copies also where they stay on their device: a forward may write into its inputs, which are the caller's.
    """
    if isinstance(leaf, np.ndarray):
        leaf = torch.from_numpy(leaf)
    if isinstance(leaf, TensorSpec):
        return _generated(leaf, place_of(leaf))
    if isinstance(leaf, PackedSequence):  # its batch sizes stay on the host
        data = _placed(leaf.data, place_of)
        return PackedSequence(data, leaf.batch_sizes, leaf.sorted_indices, leaf.unsorted_indices)
    if isinstance(leaf, torch.Tensor):
        return _placed_tensor(leaf, place_of(leaf))
    if isinstance(leaf, Mapping):  # such as a tokenizer's BatchEncoding
        return {key: _placed(value, place_of) for key, value in leaf.items()}
    return with_tensors(leaf, lambda tensor: _placed_tensor(tensor, place_of(tensor)))


def _placed_tensor(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    if tensor.is_meta and tensor.device == place:
        return tensor
    if place == _META and tensor.is_nested:
        raise NotImplementedError("the lengths of a nested tensor are not known on the meta device")
    if place == _META and tensor.layout == torch.strided:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=place)
        return made.requires_grad_(tensor.requires_grad)
    if tensor.is_meta:
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=place)
    given = tensor.detach()
    if tensor.is_nested and tensor.layout is torch.strided:
        given = given.contiguous()  # torch copies no other one
    return given.to(place, copy=True).requires_grad_(tensor.requires_grad)


def _generated(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """Return a tensor generated from ``spec``, with the same values each time."""
    dtype = getattr(torch, spec.dtype)
    if device.type == "meta":
        return torch.empty(spec.shape, dtype=dtype, device=device)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(spec.shape, dtype=dtype, device=device)
    return torch.randn(spec.shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)


@dataclass(frozen=True, slots=True)
class TorchModel(LoadedModel):
    """A module in inference mode on a device."""

    native: torch.nn.Module
    device: torch.device
    variant: TorchVariant = AS_IT_IS
    graphs_before: int = 0
    """Graphs that ``torch.compile`` had captured in this process before the model was loaded."""
    modes: list[GradientMode] = field(default_factory=lambda: list(MODES))
    """The mode in which its forward has run, and those after it; before it has run, all."""

    @property
    def compiles(self) -> bool:
        return is_compiled(self.native)

    @property
    def graphs(self) -> int | None:
        return graphs_made() - self.graphs_before if self.compiles else None

    @property
    def precision_method(self) -> str:
        """By which method the module has its precision."""
        return self.variant.method or "convert"

    def check_compiled(self) -> None:
        # Not by `graphs`: a model of this class may have been compiled before, in this process.
        if self.compiles and graphs_made() == 0:
            raise Unsupported(
                "torch.compile has compiled nothing: what ran does not call the model itself, or all of its forward runs in "
                "Python; choose backend=torch"
            )

    def weights(self) -> Sequence[object]:
        # Several modules may have the same weights: a copy, a wrapper that compiles, or one with a pretrained embedding.
        held: list[object] = []
        for parameter in self.native.parameters():
            try:
                held.append(parameter.untyped_storage())
            except (NotImplementedError, ValueError):  # sparse, or of a lazy layer that was not called
                held.append(parameter)
        return held or [self.native]

    def clock(self) -> Clock:
        return clock_of(self.device)

    def put(self, inputs: Inputs) -> Inputs:
        with torch.inference_mode(False):  # a batch that is made within it can never be trained on
            return on_device(inputs, self.device).map(self.variant.prepared)

    @contextmanager
    def stepping(self, batch: Inputs) -> Iterator[Callable[[], object]]:
        with inference(self, batch) as forward:
            yield synchronised(forward, self.device)

    def forward_of(self, batch: Inputs) -> Callable[[], object]:
        """A function that runs one forward; it does not wait for the device, and leaves gradients as they are set.

        What it returns may have to be :func:`finished`.
        """
        forward: Callable[[], object]
        if batch.forward is None:
            forward = partial(self.native, *batch.args, **batch.kwargs)
        else:
            forward = partial(batch.forward, self.native, *batch.args, **batch.kwargs)
        forward = self.within_autocast(forward)
        if self.variant.compile_settings.get("fullgraph"):
            return partial(_as_one_graph, forward)
        return forward

    def within_autocast(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs ``call`` in :class:`torch.autocast`; ``call`` itself if the variant does not use it.

        What the variant applies to is a whole step, so that it also holds for methods beside the model's forward.
        """
        if self.variant.method != "autocast":
            return call

        def within(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(self.device.type, self.variant.peak_dtype):
                return finished(call(*args, **kwargs))

        return within

    def state_of(self, batch: Inputs) -> int:
        return hash(state_of((batch.args, batch.kwargs)))

    def host_outputs(self, outputs: object) -> HostOutputs:
        found = {name: leaf for name, leaf in named_leaves(outputs).items() if isinstance(leaf, torch.Tensor)}
        return outputs_on_host(outputs, found, _on_host)

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        if self.device.type == "cpu":
            return {}

        host = on_device(inputs, "cpu").map(self.variant.prepared)
        return {
            "h2d": synchronised(lambda: on_device(host, self.device), self.device),
            "d2h": lambda: [tensor.to("cpu") for tensor in tensors_in(outputs)],
        }


def _as_one_graph(forward: Callable[[], object]) -> object:
    try:
        return forward()
    except Exception as error:
        if not is_graph_break(error):
            raise
        reason = str(error).partition("\n")[0]
        raise Unsupported(f"compile_fullgraph=true: the forward is not one graph: {reason}") from error


def _on_host(tensor: torch.Tensor) -> AnyArray:
    if tensor.is_floating_point():
        tensor = tensor.float()
    array: AnyArray = tensor.numpy(force=True)
    return array


def synchronised(call: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """Return a function that returns what ``call`` does, when the device has done it."""
    if device.type == "cpu":
        return call

    def wait() -> T:
        returned = call()
        torch.accelerator.synchronize(device)
        return returned

    return wait


def first_tensor(outputs: object) -> torch.Tensor:
    """The first tensor in what a model returned.

    Raises:
        Unsupported: there is none.
    """
    tensors = tensors_in(outputs)
    if not tensors:
        raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
    return tensors[0]


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
    finder = _ImportsOnHost()
    sys.meta_path.insert(0, finder)
    try:
        # A module that loads its weights onto meta would warn.
        with warnings.catch_warnings(action="ignore"), torch.device("meta"), NoInitialisation():  # type: ignore[no-untyped-call]
            return built(build)
    finally:
        sys.meta_path.remove(finder)


class _ImportsOnHost(MetaPathFinder):
    """Has what is imported make its tensors on the host: they outlive what is built on meta."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            spec = None
            if finder is not self:
                spec = finder.find_spec(name, path, target)
            if spec is None:
                continue
            loader: Any = spec.loader
            # Those of built-in modules, which make no tensors, are classes.
            if hasattr(loader, "exec_module") and not isinstance(loader, type):
                loader.exec_module = partial(_executed_on_host, loader.exec_module)
            return spec
        return None


def _executed_on_host(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    with torch.device("cpu"):
        execute(module)


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

    Raises:
        NotImplementedError: one of them is sparse.
    """
    held = tensors_of(module)
    for inner in modules_of(module):
        held += [value for value in vars(inner).values() if isinstance(value, torch.Tensor) and not value.is_leaf]
    copies: dict[int, Any] = {id(tensor): _on_meta(tensor) for tensor in held}
    copies |= {id(mask): mask for mask in masks_of(module)}
    return copy.deepcopy(module, copies)


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, UninitializedParameter):
        return UninitializedParameter(tensor.requires_grad, device="meta", dtype=tensor.dtype)  # type: ignore[call-arg, arg-type]
    if isinstance(tensor, UninitializedBuffer):
        return UninitializedBuffer(device="meta", dtype=tensor.dtype)  # type: ignore[call-arg]
    if tensor.layout != torch.strided:
        raise NotImplementedError("how many elements a sparse tensor stores is not known on the meta device")
    shape = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(shape, tensor.requires_grad)
    return shape


def materialised(module: torch.nn.Module, inputs: Inputs) -> torch.nn.Module:
    """The module itself, or where it has lazy parameters a copy of it on meta that has met the shapes of ``inputs``."""
    if not any_lazy(tensors_of(module)):
        return module
    made = copied_to_meta(module)
    with torch.no_grad(), NoInitialisation():  # type: ignore[no-untyped-call]
        on_device(inputs, "meta").call(made)
    return made


def device_of(module: torch.nn.Module) -> torch.device | None:
    """Return the device of the model's first parameter, or of its first buffer; None where it has neither.

    That of a model whose weights are brought call by call to where it runs is the one where it runs.
    """
    device = offloaded_to(module)
    if device is not None:
        return device
    for tensor in chain(module.parameters(), module.buffers()):
        return tensor.device
    return None


def input_dtype(module: torch.nn.Module) -> str:
    """Return the type of an input of which only the shape is known: that of the weights, or ``float32`` if they are not numbers."""
    for tensor in chain(module.parameters(), module.buffers()):
        if tensor.is_floating_point() or tensor.is_complex():
            if tensor.itemsize > 1:
                return dtype_name(tensor.dtype)
            break
    return "float32"


class NoInitialisation(DispatchMode):  # type: ignore[no-untyped-call]
    """Skips what fills a tensor on meta, most of the time of building a model there."""

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if args and func._schema.name in _FILLS and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return args[0]
        if func._schema.name in _DRAWS and kwargs is not None and kwargs.get("device") == _META:
            return torch.empty(args[0], dtype=kwargs.get("dtype"), device=_META)  # torch's own would import sympy
        return func(*args, **(kwargs or {}))


_DRAWS = frozenset(("aten::rand", "aten::randn"))
_FILLS = frozenset(
    f"aten::{name}_"
    for name in "normal uniform zero fill copy erfinv mul add sub div clamp trunc exponential bernoulli random".split()
)


class FunctionModule(torch.nn.Module):
    """Calls a function; the modules and parameters that the function uses are its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        for path, value in _held_by(function):
            name = path.replace(".", "_")
            held = (*self._modules.values(), *self._parameters.values())
            if not hasattr(self, name) and not any(value is known for known in held):
                setattr(self, name, value)
        self.training = any(map(is_training, self.children()))

    def forward(self, *args: object, **kwargs: object) -> object:
        return self.function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, object]) -> FunctionModule:
        raise TypeError("a function cannot be copied with the modules that it uses: count a torch.nn.Module instead")


def module_of_program(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """Return the module of a program that ``torch.export`` has made."""
    module: torch.nn.Module = program.module()
    for inner in module.modules():  # it has the mode of the export only, and its eval() raises
        inner.training = False
    return module


def module_of(function: Callable[..., Any]) -> torch.nn.Module:
    """Return a module that calls the function, of a class with the function's name; of an exported program its own."""
    if isinstance(function, torch.export.ExportedProgram):
        return module_of_program(function)
    inner = function
    if isinstance(inner, partial):
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    if not name.isidentifier():
        name = "function"
    kind = type(name, (FunctionModule,), {"__module__": FunctionModule.__module__})
    return kind(function)  # type: ignore[no-any-return]


def _held_by(function: Any) -> Iterator[tuple[str, torch.nn.Module | torch.nn.Parameter]]:
    """Yield the modules and parameters that a function reads: from its closure, defaults, global variables, object or arguments."""
    if isinstance(function, partial):
        yield from _held_by(function.func)
        yield from _found({f"argument_{i}": value for i, value in enumerate(function.args)} | function.keywords)
        return
    owner = getattr(function, "__self__", None)
    # What a bound method's decorator wraps has no object any more.
    while owner is None and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
        owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.nn.Module):
        yield type(owner).__name__, owner
    elif owner is not None or not hasattr(function, "__code__"):
        yield from _found(getattr(function if owner is None else owner, "__dict__", {}))
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
        if not inspect.isfunction(function):
            return
    variables = inspect.getclosurevars(function)
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    yield from _found({**variables.nonlocals, **variables.globals, **defaults})


def _found(variables: Mapping[str, object]) -> Iterator[tuple[str, torch.nn.Module | torch.nn.Parameter]]:
    for name, value in variables.items():
        if isinstance(value, torch.nn.Module | torch.nn.Parameter):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from _found({f"{name}_{index}": item for index, item in enumerate(value)})
        elif isinstance(value, dict):
            yield from _found({f"{name}_{key}": item for key, item in value.items()})


QUANTIZED = {"int8": (1, 1), "fp8": (16, 16), "int4": (16, 128)}
"""By precision, what the outputs and the inputs of a linear layer must be multiples of; other layers are not quantized."""
INT4_GROUP = 128
"""Weights of a row that have a scale and a zero point in common."""
INT4_PACKING = {"cuda": "tile_packed_to_4d", "xpu": "plain_int32"}
"""torchao's name of the layout that the kernel of a device reads; the CPU's has a config of its own."""


def quantized(
    module: torch.nn.Module, precision: str, *, is_compiled: bool = False, as_shapes: bool = False
) -> torch.nn.Module:
    """A copy of a module whose linear layers have weights of 8 or 4 bits.

    Args:
        module: with parameters of the data type in :data:`PRECISIONS`.
        precision: one of :data:`QUANTIZED`.
        is_compiled: inductor will compile it, which torchao gives the settings that it recommends.
        as_shapes: weights of ``fp8`` and ``int4`` are not computed: they are on meta, with the sizes that they have in memory.
            No device is needed, and ``int4`` has no padding.

    Raises:
        Unsupported: there is no layer that can be quantized, torchao is not installed, or it lacks what it needs on this device.
    """
    multiples = QUANTIZED[precision]
    if not any(_is_quantizable(inner, multiples) for inner in module.modules()):
        sizes = ""
        if multiples != (1, 1):
            sizes = f" with outputs and inputs that are multiples of {multiples[0]} and {multiples[1]}"
        raise Unsupported(f"the model has no linear layer{sizes}, and torchao quantizes no other")
    if find_spec("torchao") is None:
        raise Unsupported(f"precision={precision} needs the package torchao: pip install torchao")
    made = copy.deepcopy(module)
    logged = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it tells which of its extensions were built for other platforms
    try:
        with warnings.catch_warnings(action="ignore"):
            from torchao.quantization import quantize_

            if as_shapes and precision != "int8":
                for inner in made.modules():
                    if _is_quantizable(inner, multiples):
                        shape = _quantized_shape(inner.weight, precision)
                        inner.weight = torch.nn.Parameter(shape, requires_grad=False)
            else:
                device = device_of(module) or torch.device("cpu")
                config = _torchao_config(precision, device.type, is_compiled)
                quantize_(made, config, filter_fn=lambda inner, _: _is_quantizable(inner, multiples))
    except (AssertionError, ImportError, NotImplementedError, ValueError) as error:
        # torchao tells by these that a GPU is too old, for example.
        raise Unsupported(f"torchao does not quantize to {precision} here: {error}") from error
    finally:
        logging.disable(logged)
    # torch.compile advises the authors of tensor classes.
    warnings.filterwarnings("ignore", message=r"(Int8|Float8|Int4\w+)Tensor does not implement")
    return made


def _torchao_config(precision: str, device: str, is_compiled: bool) -> Any:
    import torchao.quantization as torchao

    if precision == "int8":
        return torchao.Int8DynamicActivationInt8WeightConfig(set_inductor_config=is_compiled)
    if precision == "fp8":  # a scale for each row, so that a sample's outputs do not depend on others of its batch
        return torchao.Float8DynamicActivationFloat8WeightConfig(
            granularity=torchao.PerRow(), set_inductor_config=is_compiled
        )
    if device in INT4_PACKING:
        packing: Any = INT4_PACKING[device]
        return torchao.Int4WeightOnlyConfig(INT4_GROUP, is_compiled, int4_packing_format=packing)
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

    return PrototypeInt4WeightOnlyConfig(INT4_GROUP, set_inductor_config=is_compiled)


def _quantized_shape(weight: torch.Tensor, precision: str) -> torch.Tensor:
    """Return a quantized weight on meta."""
    rows, columns = weight.shape
    empty = partial(torch.empty, device="meta")
    if precision == "fp8":
        from torchao.quantization import Float8Tensor

        values = empty(rows, columns, dtype=torch.float8_e4m3fn)
        scales = empty(rows, 1, dtype=torch.float32)
        return Float8Tensor(values, scales, dtype=weight.dtype)  # type: ignore[no-any-return]
    from torchao.prototype.quantization.int4 import Int4OpaqueTensor

    groups = empty(columns // INT4_GROUP, rows, 2, dtype=weight.dtype)
    values = empty(rows, columns // 2, dtype=torch.uint8)
    return Int4OpaqueTensor(values, groups, [1, INT4_GROUP], weight.shape)  # type: ignore[no-any-return]


def with_quantized_weights(table: LayerTable, weights: LayerTable) -> LayerTable:
    """Return a table of layers with the bytes and data types of the parameters in another table of the same layers.

    Args:
        table: as counted before it was quantized.
        weights: of the quantized module.
    """
    held = {row.path: row for row in reversed(weights.rows)}
    rows = []
    for row in table.rows:
        other = held.pop(row.path, None)  # a second call of a layer holds nothing
        if other is not None:
            subtree = row.subtree
            if subtree is not None and other.subtree is not None:
                subtree = replace(subtree, params_bytes=other.subtree.params_bytes, dtypes=other.subtree.dtypes)
            row = replace(row, params_bytes=other.params_bytes, dtypes=other.dtypes, subtree=subtree)  # noqa: PLW2901
        rows.append(row)
    return replace(table, rows=tuple(rows))


def _is_quantizable(module: torch.nn.Module, multiples: tuple[int, int]) -> TypeGuard[torch.nn.Linear]:
    """True for a linear layer of these sizes that is called; attention reads the weight of its last one itself."""
    if not isinstance(module, torch.nn.Linear) or isinstance(module, NonDynamicallyQuantizableLinear):
        return False
    return module.out_features % multiples[0] == 0 and module.in_features % multiples[1] == 0


_PACKAGES = {
    "openvino": ("openvino", "openvino"),
    "tensorrt": ("torch_tensorrt", "torch-tensorrt"),
    "openxla": ("torch_xla", "torch-xla"),
    "tvm": ("tvm", "apache-tvm"),
}
"""By compiler, the package that has it: as it is imported, and as it is installed. torch has the others."""
_FELL_BACK = ("Failed in OpenVINO execution", "OpenVINO execution failed")


def compiled(
    module: torch.nn.Module,
    compiler: Compiler,
    dtype: torch.dtype | None = None,
    compile_settings: CompileSettings | None = None,
) -> torch.nn.Module:
    """Return the module as a compiler runs it; what it cannot compile is never run by another one instead.

    Args:
        dtype: that of most of the computation; None: single precision.
        compile_settings: none by default.

    Raises:
        Unsupported: it is not installed, or lacks what it needs on this host.
    """
    options: dict[str, Any] = {}
    if compiler in _PACKAGES and find_spec(_PACKAGES[compiler][0]) is None:
        raise Unsupported(f"compile={compiler} needs a package: pip install {_PACKAGES[compiler][1]}")
    if compiler == "inductor":
        device = next((parameter.device.type for parameter in module.parameters()), "cpu")
        program = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        if device == "cpu" and shutil.which(program) is None:
            raise Unsupported(
                f"torch.compile builds its kernels with a C++ compiler, and there is no {program}: install it, or set CXX"
            )
    elif compiler == "openvino":
        _prepare_openvino()
        settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
        if dtype in (None, torch.float32):  # by itself it computes in bfloat16 where the processor can
            settings["INFERENCE_PRECISION_HINT"] = "f32"
        # Without aot_autograd, OpenVINO traces in a way that torch 2.13 rejects.
        options = {"device": "CPU", "aot_autograd": True, "config": settings}
    made: Any = torch.compile(module, backend=compiler, options=options or None, **(compile_settings or {}))
    return made  # type: ignore[no-any-return]


def _prepare_openvino() -> None:
    """Let OpenVINO's compiler raise where it would only note in its log, at level DEBUG, that something else runs the model."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it sends statistics of use to a server
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about what it and OpenVINO import
        find_compiler("openvino")
    for module in ("backend", "execute"):
        logger = logging.getLogger(f"openvino.frontend.pytorch.torchdynamo.{module}")
        logger.setLevel(logging.DEBUG)
        logger.addFilter(_raise_if_fell_back)
        logger.propagate = False


def _raise_if_fell_back(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if message.startswith(_FELL_BACK):
        raise Unsupported(f"torch.compile with OpenVINO: {message}")
    return False
