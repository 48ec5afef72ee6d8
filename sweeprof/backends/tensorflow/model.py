"""A Keras model on a device, ready to step: operator by operator, as a graph, compiled by XLA, in another precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import keras
import numpy as np
import tensorflow as tf

from sweeprof.backends import Build
from sweeprof.backends.keras.calls import as_called
from sweeprof.backends.outputs import HostArray, HostOutputs, floating_outputs
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported, UserError, choice_problem
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Clock, WallClock
from sweeprof.nested import named_leaves


class Program:
    """Calls ``function`` as a ``tf.function``; what it raises while it is traced comes through as it was raised."""

    def __init__(self, function: Callable[..., object], by_xla: bool) -> None:
        self._function = graph_of(function, jit_compile=by_xla)

    def __call__(self, *args: object, **kwargs: object) -> object:
        return _as_raised(self._function, args, kwargs)

    def trace(self, *args: object, **kwargs: object) -> None:
        """Make the graph for such arguments, without running or compiling it; once made it is kept."""
        _as_raised(self._function.get_concrete_function, args, kwargs)


def graph_of(function: Callable[..., object], **options: object) -> Any:
    """A ``tf.function`` that does not warn of frequent tracing.

    TensorFlow counts traces by the code of a function, which is the same for every model that is profiled in a process.
    """
    found = tf.function(function, **options)
    found._omit_frequent_tracing_warning = True
    return found


def _as_raised(function: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Call it; AutoGraph's version of an error, whose message is its own traceback, becomes the error itself again."""
    try:
        return function(*args, **kwargs)
    except tf.errors.InvalidArgumentError as error:
        if "unsupported operations" in str(error):
            raise Unsupported(f"XLA does not compile this model: {_sentence(str(error))}") from error
        raise
    except Exception as error:
        original = error.__context__ if hasattr(error, "ag_error_metadata") else None
        if original is None:
            raise
        raise original from None


def _sentence(message: str) -> str:
    """The one that says which operators."""
    return next(line for line in message.splitlines() if "unsupported operations" in line).strip()


ExecutionMode = Literal["eager", "function", "xla"]
"""``eager``: operator by operator; ``function``: traced once per shape, as serving does; ``xla``: that, compiled by XLA."""
TensorflowPrecision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: dict[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Data type of weights, computation and floating-point inputs."""


@dataclass(frozen=True, slots=True)
class TensorflowVariant:
    """The mode, precision and layout in which a model runs.

    Raises:
        UserError: there is no such mode or precision.
    """

    mode: ExecutionMode = "function"
    precision: str | None = None
    """One of :data:`PRECISIONS`; None: as the model is."""

    def __post_init__(self) -> None:
        problems = []
        if self.mode not in get_args(ExecutionMode):
            problems.append(choice_problem("backend.mode", self.mode, "mode", get_args(ExecutionMode)))
        if self.precision is not None and self.precision not in PRECISIONS:
            problems.append(choice_problem("backend.precision", self.precision, "precision", PRECISIONS))
        if problems:
            raise UserError(problems)

    @property
    def dtype(self) -> str | None:
        """The data type of weights and floating-point inputs; None leaves them unchanged."""
        return None if self.precision is None else PRECISIONS[self.precision]

    def built(self, build: Build) -> Any:
        """Return the builder's model with its layers in this precision.

        Raises:
            TypeError: that cannot be called.
            Unsupported: the builder sets other data types itself.
        """
        with _dtype_policy(self.dtype):
            model = build()
        if not callable(model):
            raise TypeError(f"the model's builder returned a {type(model).__name__}, which cannot be called")
        other = _other_dtype(model, self.dtype)
        if other is not None:
            raise Unsupported(f"the model's builder makes weights of {other}, and backend.precision={self.precision}")
        return model

    def runs(self, function: Callable[..., object]) -> Program | Callable[..., object]:
        """``function`` as this variant runs it."""
        return function if self.mode == "eager" else Program(function, by_xla=self.mode == "xla")


AS_IT_IS = TensorflowVariant()


def _other_dtype(model: object, wanted: str | None) -> str | None:
    """A data type among the model's weights that is not the wanted one; of numbers that are no floats any is right."""
    weights = model.weights if wanted is not None and isinstance(model, keras.Layer) else ()
    return next((v.dtype for v in weights if "float" in v.dtype and v.dtype != wanted), None)


@contextmanager
def _dtype_policy(dtype: str | None) -> Iterator[None]:
    before = keras.config.dtype_policy()
    if dtype is not None:
        keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def on_device(inputs: Inputs, device: str, channel_axis: int | None = None, dtype: str | None = None) -> Inputs:
    """The inputs with every tensor on ``device``; what is only specified is generated there, the same values each time.

    Args:
        device: as TensorFlow calls it.
        channel_axis: where arrays have the channels that the model expects last; None: they stay as they are.
        dtype: of floating-point tensors; None: their own.
    """
    with tf.device(device):
        return inputs.map(partial(_tensor, channel_axis=channel_axis, dtype=dtype))


def as_tensor(values: object, device: str) -> Any:
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
    _programs: dict[object, Program | Callable[..., object]] = field(default_factory=dict, init=False, repr=False)

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

    def called(self, forward: Callable[..., object] | None = None, training: bool = False) -> Callable[..., object]:
        """Return the function that a step calls with its arguments: the model, or the caller's own ``forward`` function.

        It runs operator by operator, or becomes part of a graph that is being traced.
        """
        model = self.native
        if forward is not None:
            return partial(forward, model)
        if not isinstance(model, keras.Layer):
            called: Callable[..., object] = model
            return called

        def run(*args: object, **kwargs: object) -> Any:
            return model(*args, **{"training": training, **kwargs})

        return run

    def _running(self, batch: Inputs) -> Callable[[], object]:
        return partial(self._program(batch.forward), *batch.args, **batch.kwargs)

    def _program(self, forward: Callable[..., object] | None) -> Any:
        """One for all batches: TensorFlow keeps a graph for each of their shapes."""
        if forward not in self._programs:
            self._programs[forward] = self.variant.runs(self.called(forward))
        return self._programs[forward]

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        if self.device == "cpu":
            return {}
        host = on_device(inputs, "cpu", self.channel_axis, self.variant.dtype)

        def to_device() -> None:
            on_device(host, self.device)
            tf.test.experimental.sync_devices()

        return {"h2d": to_device, "d2h": lambda: [tensor.numpy() for tensor in tensors_in(outputs)]}

    def host_outputs(self, outputs: object) -> HostOutputs:
        found = {name: leaf for name, leaf in named_leaves(outputs).items() if tf.is_tensor(leaf)}
        return floating_outputs(outputs, found, lambda tensor: tensor.dtype.is_floating, _on_host)


def _on_host(tensor: tf.Tensor) -> HostArray:
    array: HostArray = tensor.numpy().astype(np.float32)
    return array


def tensors_in(outputs: object) -> list[tf.Tensor]:
    """The tensors in what a model returned, in their order; those of a mapping by its keys, as it lists them."""
    return [leaf for leaf in named_leaves(outputs).values() if tf.is_tensor(leaf)]


def first_tensor(outputs: object) -> tf.Tensor:
    """The first tensor in what a model returned.

    Raises:
        Unsupported: there is none.
    """
    tensors = tensors_in(outputs)
    if not tensors:
        raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
    return tensors[0]
