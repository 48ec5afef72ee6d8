"""A Keras model on a device, ready to step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sweeprof.backends.keras.calls import as_called
from sweeprof.backends.tensorflow.variants import AS_IT_IS, Program, TensorflowVariant
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Clock, WallClock


def on_device(inputs: Inputs, device: str, channel_axis: int | None = None, dtype: str | None = None) -> Inputs:
    """The inputs with every tensor on ``device``; what is only specified is generated there, the same values each time.

    Args:
        device: as TensorFlow calls it.
        channel_axis: where arrays have the channels that the model expects last; None: they stay as they are.
        dtype: of floating-point tensors; None: their own.
    """
    with tf.device(device):
        return inputs.map(partial(_tensor, channel_axis=channel_axis, dtype=dtype))


def as_tensor(values: Any, device: str) -> Any:
    """Targets as tensors on ``device``; None stays None."""
    return on_device(Inputs((values,)), device).args[0]


def arranged(array: Any, channel_axis: int | None) -> Any:
    """An array with its channels last; one without such an axis as it is."""
    if channel_axis is None or array.ndim <= max(channel_axis, 1):
        return array
    return np.moveaxis(array, channel_axis, -1)


def _tensor(leaf: Any, channel_axis: int | None, dtype: str | None) -> Any:
    if isinstance(leaf, Mapping):  # of a kind of its own, such as a tokenizer's BatchEncoding
        return {key: _tensor(value, channel_axis, dtype) for key, value in leaf.items()}
    if isinstance(leaf, TensorSpec):
        leaf = _generated(leaf)
    elif hasattr(leaf, "detach"):  # one of torch, as its data loaders give
        leaf = leaf.detach().cpu().numpy()
    if isinstance(leaf, np.ndarray | np.generic):
        leaf = tf.constant(arranged(leaf, channel_axis))
    if not tf.is_tensor(leaf):
        return leaf
    wanted = leaf.dtype if dtype is None or not leaf.dtype.is_floating else tf.as_dtype(dtype)
    return tf.identity(tf.cast(leaf, wanted)) if isinstance(leaf, tf.Tensor) else leaf


def _generated(spec: TensorSpec) -> Any:
    dtype = tf.as_dtype(spec.dtype)
    if not (dtype.is_floating or dtype.is_complex):
        return tf.zeros(spec.shape, dtype)
    return tf.cast(np.random.default_rng(0).standard_normal(spec.shape, np.float32), dtype)


class SynchronisedClock(WallClock):
    """A clock for an accelerator: a mark waits for the device, because TensorFlow has no events in its stream."""

    def mark(self) -> float:
        tf.test.experimental.sync_devices()
        return self.now()


def clock_of(device: str) -> Clock:
    """The clock of a device, as TensorFlow calls it."""
    return WallClock() if device == "cpu" else SynchronisedClock()


@dataclass(frozen=True, slots=True)
class TensorflowModel:
    """A Keras model, or any callable of tensors, called with ``training=False``."""

    native: Any
    device: str
    """As TensorFlow calls it, e.g. ``gpu:0``."""
    variant: TensorflowVariant = AS_IT_IS
    channel_axis: int | None = None
    """Where arrays that are put have the channels that the model expects last."""
    _programs: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def compiles(self) -> bool:
        return self.variant.mode != "eager"

    def clock(self) -> Clock:
        return clock_of(self.device)

    def put(self, inputs: Inputs) -> Inputs:
        return as_called(self.native, on_device(inputs, self.device, self.channel_axis, self.variant.dtype))

    @contextmanager
    def stepping(self, batch: Inputs) -> Iterator[Callable[[], Any]]:
        step = self._running(batch)

        def synchronised_step() -> Any:
            outputs = step()
            tf.test.experimental.sync_devices()
            return outputs

        with tf.device(self.device):
            yield step if self.device == "cpu" else synchronised_step

    def tracing(self, batch: Inputs) -> Callable[[], None] | None:
        """A function that makes the graph of a step on ``batch``; None where steps need no graph."""
        program = self._program(batch.forward)
        return partial(program.trace, *batch.args, **batch.kwargs) if isinstance(program, Program) else None

    def called(self, forward: Callable[..., Any] | None = None, training: bool = False) -> Callable[..., Any]:
        """Return the function that a step calls with its arguments: the model, or the caller's own ``forward`` function.

        It runs operator by operator, or becomes part of a graph that is being traced.
        """
        model = self.native
        if forward is not None:
            return partial(forward, model)
        if not isinstance(model, keras.Layer):
            called: Callable[..., Any] = model
            return called

        def run(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **{"training": training, **kwargs})

        return run

    def _running(self, batch: Inputs) -> Callable[[], Any]:
        return partial(self._program(batch.forward), *batch.args, **batch.kwargs)

    def _program(self, forward: Callable[..., Any] | None) -> Any:
        """One for all batches: TensorFlow keeps a graph for each of their shapes."""
        if forward not in self._programs:
            self._programs[forward] = self.variant.runs(self.called(forward))
        return self._programs[forward]

    def transfers(self, inputs: Inputs, outputs: Any) -> Mapping[str, Callable[[], object]]:
        if self.device == "cpu":
            return {}
        host = on_device(inputs, "cpu", self.channel_axis, self.variant.dtype)

        def to_device() -> None:
            on_device(host, self.device)
            tf.test.experimental.sync_devices()

        return {"h2d": to_device, "d2h": lambda: [tensor.numpy() for tensor in tensors_in(outputs)]}

    def host_outputs(self, outputs: Any) -> npt.NDArray[np.float32]:
        answer: npt.NDArray[np.float32] = first_tensor(outputs).numpy().astype(np.float32)
        return answer


def tensors_in(outputs: Any) -> list[Any]:
    """The tensors in what a model returned, in their order; those of a mapping by its keys, as it lists them."""
    if isinstance(outputs, Mapping):
        return [tensor for value in outputs.values() for tensor in tensors_in(value)]
    if isinstance(outputs, list | tuple):
        return [tensor for value in outputs for tensor in tensors_in(value)]
    return [outputs] if tf.is_tensor(outputs) else []


def first_tensor(outputs: Any) -> Any:
    """The first tensor in what a model returned.

    Raises:
        Unsupported: there is none.
    """
    tensors = tensors_in(outputs)
    if not tensors:
        raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
    return tensors[0]
