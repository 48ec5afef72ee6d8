"""Keras models on TensorFlow, compiled by ``tf.function`` or eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sweeprof.backends import Build
from sweeprof.backends.tensorflow.counting import count_layers
from sweeprof.errors import Unsupported
from sweeprof.profiling.formulas import Formulas
from sweeprof.profiling.inputs import Inputs, TensorSpec
from sweeprof.profiling.memory import ProcessMemory
from sweeprof.profiling.timing import WallClock
from sweeprof.results.layers import LayerTable


@dataclass(frozen=True, slots=True)
class TensorflowBackend:
    """Keras models called with ``training=False``."""

    threads: int = 1
    """Threads within an operator."""
    mode: Literal["function", "eager"] = "function"
    """``function`` traces the model once per input shape, as serving does; ``eager`` runs it operator by operator."""
    layout: Literal["channels_last", "channels_first"] = "channels_last"
    """Where the model expects the channels of an image; datasets give them first."""

    def configure(self, seed: int) -> None:
        threading = tf.config.threading
        if threading.get_intra_op_parallelism_threads() != self.threads:  # cannot be set once the run-time has started
            threading.set_intra_op_parallelism_threads(self.threads)
        if threading.get_inter_op_parallelism_threads() != 1:
            threading.set_inter_op_parallelism_threads(1)
        keras.utils.set_random_seed(seed)

    def devices(self) -> list[str]:
        gpus = tf.config.list_physical_devices("GPU")
        return ["cpu"] + (["cuda", *(f"cuda:{i}" for i in range(len(gpus)))] if gpus else [])

    def load(self, build: Build, device: str, channel_axis: int | None) -> TensorflowModel:
        name = device.replace("cuda", "gpu")
        with tf.device(name):
            model = _checked(build())
        return TensorflowModel(model, name, self.mode, self._moved(channel_axis))

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        model = _checked(build())
        layers = model._flatten_layers() if isinstance(model, keras.Layer) else ()
        if any(formulas.of_module(layer) is not None for layer in layers):
            raise Unsupported("this backend counts operators of a graph and takes no formulas for layers")
        batch, axis = _only(inputs), self._moved(channel_axis)
        arranged = batch if axis is None else np.moveaxis(batch, axis, -1)
        return count_layers(model, arranged.shape, arranged.dtype)

    def memory_meter(self) -> ProcessMemory:
        return ProcessMemory()

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, tf.errors.ResourceExhaustedError)

    def _moved(self, channel_axis: int | None) -> int | None:
        return channel_axis if self.layout == "channels_last" else None


def _checked(model: Any) -> Any:
    if not callable(model):
        raise TypeError(f"the model's builder returned a {type(model).__name__}, which cannot be called")
    return model


class TensorflowModel:
    """A Keras model (or any callable of a tensor) on a device."""

    def __init__(self, model: Any, device: str, mode: str, channel_axis: int | None) -> None:
        self.native = model
        self._device, self._channel_axis = device, channel_axis
        forward = _inference(model)
        self._forward = tf.function(forward) if mode == "function" else forward
        self.compiles = mode == "function"

    def clock(self) -> WallClock:
        return WallClock()

    def put(self, inputs: Inputs) -> Any:
        batch = _only(inputs)
        arranged = batch if self._channel_axis is None else np.moveaxis(batch, self._channel_axis, -1)
        with tf.device(self._device):
            return tf.constant(arranged)

    @contextmanager
    def stepping(self, batch: Any) -> Iterator[Callable[[], Any]]:
        forward = self._forward

        def step() -> Any:
            return forward(batch)

        def synchronised_step() -> Any:
            outputs = forward(batch)
            tf.test.experimental.sync_devices()
            return outputs

        with tf.device(self._device):
            yield step if self._device == "cpu" else synchronised_step

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        if self._device == "cpu":
            return {}
        return {"h2d": lambda: self._placed(inputs), "d2h": lambda: self.host_outputs(outputs)}

    def _placed(self, inputs: Inputs) -> None:
        self.put(inputs)
        tf.test.experimental.sync_devices()

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        tensors = [leaf for leaf in tf.nest.flatten(outputs) if tf.is_tensor(leaf)]
        if not tensors:
            raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
        answer: npt.NDArray[np.float32] = tensors[0].numpy().astype(np.float32)
        return answer


def _only(inputs: Inputs) -> Any:
    """The one array that the model is called with; a specified one is generated."""
    if len(inputs.args) != 1 or inputs.kwargs or inputs.forward:
        raise Unsupported("a model on this backend is called with one tensor")
    (given,) = inputs.args
    if isinstance(given, TensorSpec):
        random = np.random.default_rng(0)
        values = random.standard_normal(given.shape) if "float" in given.dtype else np.zeros(given.shape)
        return values.astype(given.dtype)
    return np.asarray(given)


def _inference(model: Any) -> Callable[[Any], Any]:
    if isinstance(model, keras.Layer):
        return lambda batch: model(batch, training=False)
    answer: Callable[[Any], Any] = model
    return answer
