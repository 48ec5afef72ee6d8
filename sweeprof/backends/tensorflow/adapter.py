"""Keras models on TensorFlow: operator by operator, as a graph, or compiled by XLA.

TensorFlow's threads, and how it takes memory of GPUs, are set before it starts or never.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import keras
import tensorflow as tf

from sweeprof.backends import Build, Gap, device_names
from sweeprof.backends.keras.calls import NO_GENERATION, NO_GRAPH, NO_PEAKS, KerasBackend
from sweeprof.backends.tensorflow.counting import count_layers, count_training, own_counts
from sweeprof.backends.tensorflow.model import (
    EagerTraining,
    ExecutionMode,
    FusedTraining,
    TensorflowModel,
    native,
    sweeprof_name,
    training,
    unchanged,
)
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.process_memory import ProcessMemory
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.observations import Allocations, Lines, Operators, OwnCounts
from sweeprof.results.record import Protocol

INTER_OP_THREADS = 1
"""Operators run one after the other; ``threads`` work within one."""


class _MemoryMeter(ProcessMemory):
    """On processors with AVX-512 VNNI and later ones, TensorFlow computes with oneDNN, whose allocator keeps what is freed."""

    def give_back_freed(self) -> None:
        os.environ["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] = "1"  # read when the first tensor is made
        super().give_back_freed()


@dataclass(frozen=True, slots=True)
class TensorflowBackend(KerasBackend):
    """Keras models called with ``training=False``."""

    tensor_package: ClassVar[str] = "tensorflow"
    gaps: ClassVar[Mapping[str, Gap]] = {
        "graph": NO_GRAPH,
        "generating": NO_GENERATION,
        "analyze_generation": NO_GENERATION,
        "peaks": NO_PEAKS,
        "artifact": Gap("not applicable", "TensorFlow runs the model that its builder makes, and loads no file of it"),
        "watch": Gap(
            "not implemented",
            "a loop of Keras's own, fit, runs a compiled step that no call of a layer passes through; profile the model, "
            "or run it with mode=training",
        ),
    }
    mode: ExecutionMode = "function"
    """``function`` traces the model once per input shape, as serving does; ``xla`` compiles that graph by XLA; ``eager`` runs
    operator by operator."""

    def __post_init__(self) -> None:
        if self.mode not in get_args(ExecutionMode):
            raise UserError([choice_problem("backend.mode", self.mode, "mode", get_args(ExecutionMode))])
        self.method()

    def configure(self, seed: int) -> None:
        threading = tf.config.threading
        try:
            if threading.get_intra_op_parallelism_threads() != self.threads:
                threading.set_intra_op_parallelism_threads(self.threads)
            if threading.get_inter_op_parallelism_threads() != INTER_OP_THREADS:
                threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)
            for gpu in tf.config.list_physical_devices("GPU"):
                if not tf.config.experimental.get_memory_growth(gpu):
                    tf.config.experimental.set_memory_growth(gpu, True)  # memory is taken as it is needed
        except RuntimeError as error:
            now = f"{threading.get_intra_op_parallelism_threads()} and {threading.get_inter_op_parallelism_threads()}"
            allowed = (
                "cannot be set: TensorFlow already runs in this process, and takes its threads (within an operator and "
                f"between operators, now {now}; 0: one per processor) and the way it takes memory of GPUs only before it "
                f"starts ({error}). Set them before its first operation, or use isolation=fork."
            )
            raise UserError([Problem("backend.threads", self.threads, allowed)]) from error
        keras.utils.set_random_seed(seed)

    def settings_in_effect(self, model: TensorflowModel | None = None) -> Mapping[str, Any]:
        threading, optimizer, method = tf.config.threading, tf.config.optimizer, self.method()
        settings = {
            "threads": threading.get_intra_op_parallelism_threads(),
            "inter-op threads": threading.get_inter_op_parallelism_threads(),
            "dtype policy": keras.config.dtype_policy().name,
            "floatx": keras.config.floatx(),
            "XLA": optimizer.get_jit(),
            "TF32": tf.config.experimental.tensor_float_32_execution_enabled(),
            "functions run eagerly": tf.config.functions_run_eagerly(),
            "graph optimizer": {name: str(value) for name, value in optimizer.get_experimental_options().items()},
        }
        if model is not None and method is not None:
            settings["precision method"] = method
        return settings

    def devices(self) -> list[str]:
        return device_names(len(tf.config.list_physical_devices("GPU")))

    def load(self, build: Build, device: str, channel_axis: int | None) -> TensorflowModel:
        name = tensorflow_name(device)
        with tf.device(name):
            model = self.built(build)
        return TensorflowModel(model, name, self.mode, self.dtype, self.moved(channel_axis))

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        return count_layers(*self.described(build, inputs, channel_axis), formulas)

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        return count_training(*self.described(build, inputs, channel_axis), formulas)

    def own_counts(self, build: Build, inputs: Inputs, channel_axis: int | None) -> OwnCounts:
        return own_counts(*self.described(build, inputs, channel_axis))

    def device_of(self, model: object) -> str:
        variables = list(getattr(model, "variables", ()))
        return sweeprof_name(native(variables[0]).device) if variables else "cpu"

    def borrowed(self, model: object, is_run: bool = False, is_trained: bool = False) -> AbstractContextManager[None]:
        return unchanged(model, is_trained)

    # The passes that take a step apart are imported when they run: measured processes do not carry what they need.

    def training(
        self, model: TensorflowModel, batch: Inputs, targets: object, config: TrainingConfig
    ) -> AbstractContextManager[EagerTraining | FusedTraining]:
        return training(model, batch, targets, config)

    def layer_times(self, model: TensorflowModel, work: Work, protocol: Protocol) -> LayerTimes:
        from sweeprof.backends.tensorflow.operators import layer_times

        return layer_times(model, work, protocol)

    def operators(self, model: TensorflowModel, work: Work) -> Operators:
        from sweeprof.backends.tensorflow.operators import operators

        return operators(model, work)

    def allocations(self, model: TensorflowModel, work: Work) -> Allocations:
        from sweeprof.backends.tensorflow.operators import allocations

        return allocations(model, work)

    def memory_meter(self) -> ProcessMemory:
        return _MemoryMeter()

    def lines(self, model: TensorflowModel, work: Work, functions: Sequence[str]) -> Lines:
        from sweeprof.backends.tensorflow.operators import lines

        return lines(model, work, functions)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, tf.errors.ResourceExhaustedError)


def tensorflow_name(device: str) -> str:
    """``cuda:0`` as TensorFlow calls it."""
    return device.replace("cuda", "gpu")
