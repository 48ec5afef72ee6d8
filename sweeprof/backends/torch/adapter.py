"""PyTorch, eager or compiled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
import torch

from sweeprof.backends import (
    Backend,
    Build,
    CompileMode,
    Compiler,
    Gap,
    MatmulPrecision,
    Precision,
    PrecisionMethod,
    checked_method,
    uncompilable_reason,
    unsupported_device_reason,
)
from sweeprof.backends.torch.callsites import dtype_name
from sweeprof.backends.torch.counting import count_built, in_inference, traced_graph, weights_alone
from sweeprof.backends.torch.generation import count_generation, generating
from sweeprof.backends.torch.model import (
    CompileSettings,
    EventClock,
    TorchModel,
    TorchVariant,
    accelerators,
    built,
    device_of,
    input_dtype,
    synchronised,
    with_quantized_weights,
)
from sweeprof.backends.torch.private import graphs_made, inductor_settings
from sweeprof.backends.torch.state import (
    attributes_of,
    in_inference_mode,
    known_accelerator,
    modules_of,
    offloaded_to,
    parameters_kept,
    tensors_among,
    tensors_of,
    unchanged,
)
from sweeprof.backends.torch.training import TorchTraining, count_built_training, stepping, training
from sweeprof.backends.torch.weights import built_once
from sweeprof.counting.formulas import EVERYTHING, Formulas, ModuleSelection
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.line_profile import AllocationMeter
from sweeprof.measuring.timing import GenerationStep, WallClock, measure_queued, sampled
from sweeprof.measuring.training_config import GenerationConfig, TrainingConfig, Work
from sweeprof.results.environment import Peaks, PeakSettings
from sweeprof.results.graph import Graph
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.observations import Allocations, Generation, Lines, Operators
from sweeprof.results.record import Protocol

if TYPE_CHECKING:
    from sweeprof.backends.torch.layer_times import TorchTrainingHooks


@dataclass(frozen=True, slots=True)
class TorchBackend(Backend):
    """PyTorch; a forward runs under ``torch.inference_mode``."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        "own_counts": Gap("not implemented", "PyTorch's own counter is not read"),
        "artifact": Gap("not applicable", "PyTorch runs the model's own code, and loads no file of it"),
    }
    selects_modules: ClassVar[bool] = True
    tensor_package: ClassVar[str] = "torch"
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert", "autocast"),
        "bf16": ("convert", "autocast"),
        "int8": ("torchao",),
        "fp8": ("torchao",),
        "int4": ("torchao",),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {}
    precision_devices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp8": ("cuda", "xpu"),
        "int4": ("cpu", "cuda", "xpu"),
    }
    threads: int = 1
    """Threads within an operator."""
    precision: Precision | None = None
    """Of parameters and inputs, or of the weights of linear layers; None: as the model is."""
    precision_method: PrecisionMethod | None = None
    """``autocast`` keeps parameters in 32 bits; ``torchao`` quantizes; None: parameters are converted, or quantized."""
    channels_last: bool = False
    """True: images are stored with their channels last."""
    compile: bool | Compiler = False
    """What ``torch.compile`` generates kernels with; true: inductor; false: the model is not compiled."""
    compile_mode: CompileMode | None = None
    """As of ``torch.compile``; None: its default."""
    compile_dynamic: bool | None = None
    """As ``dynamic`` of ``torch.compile``."""
    compile_fullgraph: bool = False
    """True: a forward that is not captured as one graph is unsupported."""
    matmul_precision: MatmulPrecision | None = None
    """Of products of float32 matrices; None: as torch has it."""

    def configure(self, seed: int) -> None:
        torch.set_num_threads(self.threads)
        if self.matmul_precision is not None:
            torch.set_float32_matmul_precision(self.matmul_precision)
        if torch.get_num_interop_threads() != 1:  # can be set once in a process
            torch.set_num_interop_threads(1)
        if known_accelerator() is None:
            # torch.manual_seed keeps a traceback for every kind of device that is not there, which takes 2 ms.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def settings_in_effect(self, model: TorchModel | None = None) -> Mapping[str, Any]:
        settings: dict[str, Any] = {
            "threads": torch.get_num_threads(),
            "inter-op threads": torch.get_num_interop_threads(),
            "float32 matmul precision": torch.get_float32_matmul_precision(),
            "TF32 in cuDNN": torch.backends.cudnn.allow_tf32,
            "cudnn.benchmark": torch.backends.cudnn.benchmark,
            "cudnn.deterministic": torch.backends.cudnn.deterministic,
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "oneDNN": torch.backends.mkldnn.enabled,
            "default dtype": str(torch.get_default_dtype()),
            "default device": str(torch.get_default_device()),
            # Only what is not at its default; until something compiles, the module is not imported.
            "inductor": inductor_settings(),
        }
        current = known_accelerator()
        for kind in ("cpu", None if current is None else current.type):
            if kind is not None and torch.amp.is_autocast_available(kind):
                is_enabled = torch.is_autocast_enabled(kind)
                settings[f"autocast on {kind}"] = str(torch.get_autocast_dtype(kind)) if is_enabled else None
        if model is None:
            return settings
        device = device_of(model.native)
        if device is not None:
            settings["device"] = str(device)
        if model.variant.precision is not None:
            settings["precision method"] = model.precision_method
            if model.variant.is_quantized and model.variant.compiler == "inductor":
                del settings["inductor"]  # torchao sets what it recommends: a part of the precision, not a deviation
        return settings

    def devices(self) -> list[str]:
        return ["cpu", *accelerators()]

    def load(self, build: Build, device: str, channel_axis: int | None) -> TorchModel:
        variant = self._variant()
        settings = {f"compile_{name}": value for name, value in variant.compile_settings.items()}
        reason = uncompilable_reason({"compile": self.compile, **settings}, torch.device(device).type)
        kinds = self.precision_devices.get(str(self.precision), ())
        reason = reason or unsupported_device_reason(self.precision, device, kinds)
        if reason is not None:
            raise Unsupported(reason)
        module = in_inference(built_once(build, is_mapped=torch.device(device).type != "cpu"))
        if offloaded_to(module) is None:
            module = module.to(device)
        return TorchModel(variant.of(module), torch.device(device), variant, graphs_made())

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        return self._as_held(count_built(*self._counted(build, inputs), formulas), build)

    def weights(self, build: Build, reason: str) -> LayerTable:
        return self._as_held(weights_alone(self._counted(build, Inputs())[0], reason), build)

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        return count_built_training(*self._counted(build, inputs), formulas)

    def graph(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Graph:
        return traced_graph(*self._counted(build, inputs), formulas)

    def _variant(self) -> TorchVariant:
        method = checked_method(type(self), self.precision, self.precision_method)
        compiler: Compiler | None = "inductor" if self.compile is True else self.compile or None
        settings = CompileSettings(
            mode=self.compile_mode, dynamic=self.compile_dynamic, fullgraph=self.compile_fullgraph
        )
        return TorchVariant(self.precision, self.channels_last, compiler, method, settings)

    def _counted(self, build: Build, inputs: Inputs) -> tuple[Build, Inputs]:
        """Return what is counted: compiling, quantizing and autocast change the kernels, not the computation."""
        variant = self._variant()
        precision = variant.precision
        if variant.method in ("autocast", "torchao"):
            precision = "bf16" if variant.dtype == torch.bfloat16 else "fp32"
        counted = TorchVariant(precision, self.channels_last)
        return partial(_made, counted, build), inputs.map(counted.prepared)

    def _as_held(self, table: LayerTable, build: Build) -> LayerTable:
        """Return the table with the parameters as they are held: those of the quantized model, if it is."""
        variant = replace(self._variant(), compiler=None)
        if not variant.is_quantized:
            return table
        return with_quantized_weights(table, weights_alone(partial(_made, variant, build, as_shapes=True), "quantized"))

    def device_of(self, model: torch.nn.Module) -> str:
        return str(device_of(model) or "cpu")

    def input_dtype(self, model: torch.nn.Module) -> str:
        return input_dtype(model)

    @contextmanager
    def borrowed(self, model: torch.nn.Module, is_run: bool = False, is_trained: bool = False) -> Iterator[None]:
        modules = modules_of(model)
        tensors = tensors_among(modules)
        # On the meta device nothing is run, and the model stays as it is.
        is_converted = self.precision is not None or self.channels_last
        may_change_values = is_converted or not all(tensor.is_meta for tensor in tensors)
        kept: AbstractContextManager[None] = nullcontext()
        if is_run:
            kept = parameters_kept(model, is_trained)
        with (
            in_inference_mode(modules),
            unchanged(model, values=may_change_values, attributes=attributes_of(model, modules), tensors=tensors),
            kept,
        ):
            yield

    # The passes that take a step apart are imported when they run: measured processes do not carry what they need.

    def training(
        self, model: TorchModel, batch: Inputs, targets: object, config: TrainingConfig
    ) -> AbstractContextManager[TorchTraining]:
        return training(model, batch, targets, config)

    def generating(
        self, model: TorchModel, batch: Inputs, config: GenerationConfig
    ) -> AbstractContextManager[GenerationStep]:
        return generating(model, batch, config)

    def analyze_generation(
        self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas, config: GenerationConfig
    ) -> Generation:
        reason = None
        if self._variant().is_quantized:
            reason = f"backend.precision={self.precision}: the bytes of quantized weights are not counted"
        return count_generation(*self._counted(build, inputs), formulas, config, reason)

    def watch(self, model: torch.nn.Module, selection: ModuleSelection = EVERYTHING) -> TorchTrainingHooks:
        from sweeprof.backends.torch.layer_times import TorchTrainingHooks

        return TorchTrainingHooks(model, selection)

    def device_times(self, model: TorchModel, work: Work, protocol: Protocol) -> tuple[float, ...]:
        clock = model.clock()
        if not isinstance(clock, EventClock):
            raise Unsupported("the model runs on the host")
        with stepping(model, work) as steps:
            steps.whole()  # makes the state of the optimizer
            return measure_queued(steps.queue, protocol, clock)

    def layer_times(self, model: TorchModel, work: Work, protocol: Protocol) -> LayerTimes:
        from sweeprof.backends.torch.layer_times import layer_times

        return layer_times(model, work, protocol)

    def operators(self, model: TorchModel, work: Work) -> Operators:
        from sweeprof.backends.torch.operators import operators

        return operators(model, work)

    def allocations(self, model: TorchModel, work: Work) -> Allocations:
        from sweeprof.backends.torch.memory import allocations

        return allocations(model, work)

    def peak_settings(self, device: str, model: torch.nn.Module | None = None) -> PeakSettings:
        return settings(device, self._variant().peak_dtype, model)

    def peaks(self, settings: PeakSettings) -> Peaks:
        return peaks(settings)

    def lines(self, model: TorchModel, work: Work, functions: Sequence[str]) -> Lines:
        from sweeprof.backends.torch.memory import lines

        return lines(model, work, functions)

    def allocation_meter(self, device: str) -> AllocationMeter:
        from sweeprof.backends.torch.memory import line_meter_of

        return line_meter_of(device)

    def is_out_of_memory(self, error: BaseException) -> bool:
        # The CPU allocator raises a plain RuntimeError.
        return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _made(variant: TorchVariant, build: Build, as_shapes: bool = False) -> torch.nn.Module:
    return variant.of(built(build), as_shapes)


# The peak rates of a device with the present settings.


SHORT = Protocol(sample_s=0.005, min_samples=5)
"""Of each benchmark the best sample counts: whatever disturbs one makes it slower."""
SMALLEST, LARGEST = 256, 8192
"""Rows and columns of the matrices."""
NEXT_S = 0.1
"""A product that is expected to take longer than this is not tried: where a data type is slow, the small ones tell as much."""
COPIED_BYTES = 1 << 28
"""At least; more where the last-level cache is larger."""


def product_rate(seconds: Callable[[int], float]) -> float:
    """FLOP/s of the best square product: twice as many rows and columns each time, until the next would take too long.

    Args:
        seconds: of one product of matrices with so many rows and columns.
    """
    best, size = 0.0, SMALLEST
    while True:
        taken = seconds(size)
        best = max(best, 2 * size**3 / taken)
        if size >= LARGEST or 8 * taken > NEXT_S:
            return best
        size *= 2


def copied_bytes_on_host() -> int:
    """Bytes of an array that no cache of this host holds, a sixteenth of its memory at most."""
    name = "SC_LEVEL3_CACHE_SIZE"
    cached = 0
    if name in os.sysconf_names:
        cached = os.sysconf(name)
    return min(max(COPIED_BYTES, cached), psutil.virtual_memory().total // 16)


def settings(device: str, dtype: torch.dtype | None, model: torch.nn.Module | None) -> PeakSettings:
    """Return the settings of this process.

    Args:
        device: where the benchmarks are to run.
        dtype: of the matrices; None: that of the first floating-point parameter of the model, ``float32`` without any.
        model: whose parameters tell the data type.
    """
    if dtype is None and model is not None:
        dtype = next((tensor.dtype for tensor in tensors_of(model) if tensor.is_floating_point()), None)
    mkldnn = getattr(torch.backends.mkldnn, "matmul", None)
    numerics: tuple[str, ...]
    if mkldnn is None:  # before PyTorch 2.9 one setting is for all
        numerics = (f"matmul {torch.get_float32_matmul_precision()}",)
    else:
        numerics = (f"cuda {torch.backends.cuda.matmul.fp32_precision}", f"mkldnn {mkldnn.fp32_precision}")
    return PeakSettings(dtype_name(dtype or torch.float32), device, torch.get_num_threads(), numerics)


def peaks(settings: PeakSettings) -> Peaks:
    """The highest rates of short benchmarks; about a second, with the threads and the numerics (TF32, say) that are set.

    Matrix products are of the data type by itself; a quantized model is held against that of its inputs and outputs.
    A copy counts the bytes read and the bytes written, as STREAM does (McCalpin, 1995).
    """
    device = torch.device(settings.device)
    copied = COPIED_BYTES
    if device.type == "cpu":
        copied = copied_bytes_on_host()
    with torch.inference_mode():
        flops = product_rate(partial(_product_seconds, device, getattr(torch, settings.dtype)))
        source = torch.ones(copied, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        bandwidth = 2 * copied / _best(lambda: target.copy_(source), device)
    return Peaks(flops, bandwidth, settings.dtype, settings.device, settings.threads)


def _product_seconds(device: torch.device, dtype: torch.dtype, size: int) -> float:
    numbers = torch.Generator(device).manual_seed(0)  # zeros or ones would let a GPU clock higher than numbers do
    left = torch.randn(size, size, generator=numbers, device=device).to(dtype)
    right = torch.randn(size, size, generator=numbers, device=device).to(dtype)
    return _best(partial(torch.mm, left, right, out=torch.empty_like(left)), device)


def _best(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call."""
    return min(sampled(synchronised(call, device), SHORT, WallClock()))
