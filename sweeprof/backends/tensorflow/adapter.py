"""Keras models on TensorFlow: operator by operator, as a graph, or compiled by XLA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import tensorflow as tf

from sweeprof.backends import Build, Gap
from sweeprof.backends.keras.tensors import channels_last, in_precision
from sweeprof.backends.precision import Precision, PrecisionMethod, checked_method
from sweeprof.backends.tensorflow import runtime
from sweeprof.backends.tensorflow.counting import count_layers, count_training
from sweeprof.backends.tensorflow.model import ExecutionMode, TensorflowModel, TensorflowVariant
from sweeprof.backends.tensorflow.runtime import kernel
from sweeprof.backends.tensorflow.state import device_of, unchanged
from sweeprof.backends.tensorflow.training import EagerTraining, FusedTraining, training
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.calibration import Kernel, KernelName
from sweeprof.measuring.generation_config import GenerationConfig
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.process_memory import ProcessMemory
from sweeprof.measuring.timing import GenerationStep
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.generation import Generation
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.lines import Lines
from sweeprof.results.memory import Allocations
from sweeprof.results.operators import Operators, OwnCounts
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol

FOLLOWED = "layers, operators, allocations and lines of a generation are followed with backend=torch only"


@dataclass(frozen=True, slots=True)
class TensorflowBackend:
    """Keras models called with ``training=False``."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        "TracesGraph": Gap(
            "not implemented",
            "the symbolic trace of a Keras model is counted by layer and not shown as a graph; keras.utils.plot_model draws one",
        ),
        "HasArtifact": Gap(
            "makes no sense", "TensorFlow runs the model that its builder makes, and loads no file of it"
        ),
        "Watches": Gap(
            "not implemented",
            "a loop of Keras's own, fit, runs a compiled step that no call of a layer passes through; profile the model, "
            "or run it with mode=training",
        ),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert", "autocast"),
        "bf16": ("convert", "autocast"),
        "int8": ("dynamic",),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {}
    threads: int = 1
    """Threads within an operator."""
    mode: ExecutionMode = "function"
    """``function`` traces the model once per input shape, as serving does; ``xla`` compiles that graph by XLA; ``eager`` runs
    operator by operator."""
    layout: Literal["channels_last", "channels_first"] = "channels_last"
    """Where the model expects the channels of an image; datasets give them first."""
    precision: Precision | None = None
    """Of weights, computation and inputs; ``int8``: layers are quantized by Keras; None: as the model is."""
    precision_method: PrecisionMethod | None = None
    """``autocast``: under a mixed policy, weights stay in 32 bits; None: weights are converted."""

    def __post_init__(self) -> None:
        self._variant()

    def configure(self, seed: int) -> None:
        runtime.configure(self.threads, seed)

    def settings_in_effect(self, model: TensorflowModel | None = None) -> Mapping[str, Any]:
        method = self._method()
        known = {} if model is None or method is None else {"precision method": method}
        return {**runtime.settings_in_effect(), **known}

    def devices(self) -> list[str]:
        return runtime.devices()

    def load(self, build: Build, device: str, channel_axis: int | None) -> TensorflowModel:
        name, variant = runtime.tensorflow_name(device), self._variant()
        with tf.device(name):
            model = variant.built(build)
        return TensorflowModel(model, name, variant, self._moved(channel_axis))

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        return count_layers(*self._described(build, inputs, channel_axis), formulas)

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        return count_training(*self._described(build, inputs, channel_axis), formulas)

    def analyze_generation(
        self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas, config: GenerationConfig
    ) -> Generation:
        from sweeprof.backends.tensorflow.generation_counts import count_generation

        native, described = self._described(build, inputs, channel_axis)
        return count_generation(native, described, formulas, config, skips_logits=self.mode != "eager")

    def own_counts(self, build: Build, inputs: Inputs, channel_axis: int | None) -> OwnCounts:
        from sweeprof.backends.tensorflow.counting import own_counts

        return own_counts(*self._described(build, inputs, channel_axis))

    def device_of(self, model: object) -> str:
        return device_of(model)

    def borrowed(self, model: object, is_trained: bool = False) -> AbstractContextManager[None]:
        return unchanged(model, is_trained)

    def memory_meter(self) -> ProcessMemory:
        return ProcessMemory()

    # The passes that take a step apart are imported when they run: measured processes do not carry what they need.

    def training(
        self, model: TensorflowModel, batch: Inputs, targets: object, config: TrainingConfig
    ) -> AbstractContextManager[EagerTraining | FusedTraining]:
        return training(model, batch, targets, config)

    def generating(
        self, model: TensorflowModel, batch: Inputs, config: GenerationConfig
    ) -> AbstractContextManager[GenerationStep]:
        from sweeprof.backends.tensorflow.generation import generating

        return generating(model, batch, config)

    def layer_times(self, model: TensorflowModel, work: Work, protocol: Protocol) -> LayerTimes:
        from sweeprof.backends.tensorflow.layer_times import layer_times

        _check_followed(work)
        return layer_times(model, work, protocol)

    def operators(self, model: TensorflowModel, work: Work) -> Operators:
        from sweeprof.backends.tensorflow.operators import operators

        _check_followed(work)
        return operators(model, work)

    def allocations(self, model: TensorflowModel, work: Work) -> Allocations:
        from sweeprof.backends.tensorflow.allocations import allocations

        _check_followed(work)
        return allocations(model, work)

    def kernel(self, model: TensorflowModel, wanted: KernelName | None) -> Kernel:
        return kernel(model.native, model.device, wanted)

    def peak_settings(self, device: str, model: object = None) -> PeakSettings:
        from sweeprof.backends.tensorflow.peaks import settings

        return settings(device, self._variant().of_keras.peak_dtype, model)

    def peaks(self, settings: PeakSettings) -> Peaks:
        from sweeprof.backends.tensorflow.peaks import peaks

        return peaks(settings)

    def lines(self, model: TensorflowModel, work: Work, functions: Sequence[str]) -> Lines:
        from sweeprof.backends.tensorflow.lines import lines

        _check_followed(work)
        return lines(model, work, functions)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, tf.errors.ResourceExhaustedError)

    def _variant(self) -> TensorflowVariant:
        return TensorflowVariant(self.mode, self.precision, self._method())

    def _method(self) -> str | None:
        return checked_method(type(self), self.precision, self.precision_method)

    def _described(self, build: Build, inputs: Inputs, channel_axis: int | None) -> tuple[object, Inputs]:
        """The model, and the shapes and data types that it is called with."""
        variant, axis = self._variant(), self._moved(channel_axis)
        described = inputs.map(lambda value: in_precision(channels_last(value, axis), variant.dtype))
        return variant.built(build), described

    def _moved(self, channel_axis: int | None) -> int | None:
        return channel_axis if self.layout == "channels_last" else None


def _check_followed(work: Work) -> None:
    """Raise :class:`Unsupported` for a generation, whose loop is not taken apart."""
    if work.generation is not None:
        raise Unsupported(FOLLOWED)
