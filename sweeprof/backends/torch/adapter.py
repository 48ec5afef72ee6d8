"""PyTorch, eager or compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from sweeprof.backends import Backend, Build, Compiler, Gap
from sweeprof.backends.precision import Precision, PrecisionMethod, checked_method
from sweeprof.backends.torch.counting import count_built, in_inference, traced_graph, weights_alone
from sweeprof.backends.torch.generation import count_generation, generating
from sweeprof.backends.torch.model import (
    TorchModel,
    TorchVariant,
    accelerators,
    built,
    device_of,
    input_dtype,
    with_quantized_weights,
)
from sweeprof.backends.torch.private import inductor_settings
from sweeprof.backends.torch.state import (
    in_mode,
    known_accelerator,
    modules_of,
    offloaded_to,
    parameters_kept,
    tensors_among,
    unchanged,
)
from sweeprof.backends.torch.training import TorchTraining, count_built_training, training
from sweeprof.counting.formulas import Formulas
from sweeprof.counting.selection import EVERYTHING, ModuleSelection
from sweeprof.measuring.generation_config import GenerationConfig
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.line_profile import AllocationMeter
from sweeprof.measuring.timing import GenerationStep
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.generation import Generation
from sweeprof.results.graph import Graph
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.lines import Lines
from sweeprof.results.memory import Allocations
from sweeprof.results.operators import Operators
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol

if TYPE_CHECKING:
    from sweeprof.backends.torch.layer_times import TorchTrainingHooks


@dataclass(frozen=True, slots=True)
class TorchBackend(Backend):
    """PyTorch; a forward runs under ``torch.inference_mode``."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        "own_counts": Gap("not implemented", "PyTorch's own counter is not read"),
        "artifact": Gap("makes no sense", "PyTorch runs the model's own code, and loads no file of it"),
    }
    selects_modules: ClassVar[bool] = True
    tensor_package: ClassVar[str] = "torch"
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert", "autocast"),
        "bf16": ("convert", "autocast"),
        "int8": ("torchao",),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {}
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

    def configure(self, seed: int) -> None:
        torch.set_num_threads(self.threads)
        if torch.get_num_interop_threads() != 1:  # can be set once in a process
            torch.set_num_interop_threads(1)
        if known_accelerator() is None:
            # torch.manual_seed keeps a traceback for every kind of device that is not there, which takes 2 ms.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def settings_in_effect(self, model: TorchModel | None = None) -> Mapping[str, Any]:
        settings = {
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
            **{f"autocast on {kind}": _autocast(kind) for kind in ("cpu", *_accelerator_types())},
            # Only what is not at its default; until something compiles, the module is not imported.
            "inductor": inductor_settings(),
        }
        device = None if model is None else device_of(model.native)
        if device is not None:
            settings["device"] = str(device)
        if model is not None and model.variant.precision is not None:
            settings["precision method"] = model.precision_method
            if model.variant.is_quantized and model.variant.compiler == "inductor":
                del settings["inductor"]  # torchao sets what it recommends: a part of the precision, not a deviation
        return settings

    def devices(self) -> list[str]:
        return ["cpu", *accelerators()]

    def load(self, build: Build, device: str, channel_axis: int | None) -> TorchModel:
        variant = self._variant()
        module = in_inference(built(build))
        if offloaded_to(module) is None:
            module = module.to(device)
        return TorchModel(variant.of(module), torch.device(device), variant)

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
        return TorchVariant(self.precision, self.channels_last, compiler, method)

    def _counted(self, build: Build, inputs: Inputs) -> tuple[Build, Inputs]:
        """Return what is counted: compiling, quantizing and autocast change the kernels, not the computation."""
        variant = self._variant()
        precision = None if variant.is_quantized else "fp32" if variant.method == "autocast" else variant.precision
        counted = TorchVariant(precision, self.channels_last)
        return partial(_made, counted, build), inputs.map(counted.prepared)

    def _as_held(self, table: LayerTable, build: Build) -> LayerTable:
        """Return the table with the parameters as they are held: those of the quantized model, if it is."""
        variant = replace(self._variant(), compiler=None)
        if not variant.is_quantized:
            return table
        return with_quantized_weights(table, weights_alone(partial(_made, variant, build), "quantized"))

    def device_of(self, model: torch.nn.Module) -> str:
        return str(device_of(model) or "cpu")

    def input_dtype(self, model: torch.nn.Module) -> str:
        return input_dtype(model)

    @contextmanager
    def borrowed(self, model: torch.nn.Module, is_trained: bool = False) -> Iterator[None]:
        modules = modules_of(model)
        tensors = tensors_among(modules)
        with (
            in_mode(modules, is_training=False),
            unchanged(model, values=self._may_change_values(tensors), modules=modules, tensors=tensors),
            parameters_kept(model) if is_trained else nullcontext(),
        ):
            yield

    def _may_change_values(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True unless the model is on the meta device, where nothing is run, and stays as it is."""
        is_converted = self.precision is not None or self.channels_last
        return is_converted or not all(tensor.is_meta for tensor in tensors)

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
        reason = f"backend.precision={self.precision}: the bytes of quantized weights are not counted"
        is_quantized = self._variant().is_quantized
        return count_generation(*self._counted(build, inputs), formulas, config, reason if is_quantized else None)

    def watch(self, model: torch.nn.Module, selection: ModuleSelection = EVERYTHING) -> TorchTrainingHooks:
        from sweeprof.backends.torch.layer_times import TorchTrainingHooks

        return TorchTrainingHooks(model, selection)

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
        from sweeprof.backends.torch.device import settings

        return settings(device, self._variant().peak_dtype, model)

    def peaks(self, settings: PeakSettings) -> Peaks:
        from sweeprof.backends.torch.device import peaks

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


def _accelerator_types() -> list[str]:
    """Return the type of the accelerator that this PyTorch is built for."""
    current = known_accelerator()
    return [] if current is None or not torch.amp.is_autocast_available(current.type) else [current.type]


def _autocast(device: str) -> str | None:
    """Return the data type that autocast computes in; None where it is off."""
    return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None


def _made(variant: TorchVariant, build: Build) -> torch.nn.Module:
    return variant.of(built(build))
