"""How a Keras model is built and called by the backends that run it: its tensors, arguments, precision, loss and optimizer."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any, ClassVar, Literal

import keras
import numpy as np
from keras import ops

from sweeprof.backends import Backend, Build, Gap
from sweeprof.backends.call_signature import is_tensor, with_channels_last
from sweeprof.backends.keras import private
from sweeprof.backends.keras.costs import shape_of
from sweeprof.backends.model_files import described as described_builder
from sweeprof.backends.precision import Precision, PrecisionMethod, checked_method
from sweeprof.counting.mapping import itemsize
from sweeprof.counting.rows import TensorShapes, together
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import EPSILON, LOSSES, OPTIMIZERS, RATE

# Tensors


def tensors_in(tree: object) -> list[keras.KerasTensor]:
    """Every tensor, symbolic or not, in nested containers, in their order."""
    if isinstance(tree, keras.KerasTensor):
        return [tree]
    return [leaf for leaf in keras.tree.flatten(tree) if is_tensor(leaf)]


def described(tree: object) -> TensorShapes:
    """Return a description of every tensor in ``tree``."""
    return together([_described(shape_of(tensor), dtype_of(tensor)) for tensor in tensors_in(tree)])


@lru_cache(maxsize=4096)  # what one layer returns, the next one is given
def _described(shape: tuple[int, ...], dtype: str) -> TensorShapes:
    elements, size = prod(shape), itemsize(dtype)
    return TensorShapes((shape,), (dtype,), elements * size if size else None, elements)


def dtype_of(tensor: keras.KerasTensor) -> str:
    """Return Keras's name of the data type, e.g. ``float32``; ``string`` for text, which NumPy holds as objects or characters."""
    dtype = tensor.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "OSU":
        return "string"
    return dtype if type(dtype) is str else str(keras.backend.standardize_dtype(dtype))


def symbolic(value: Any) -> Any:
    """A symbolic tensor for a tensor, an array or a :class:`~sweeprof.measuring.inputs.TensorSpec`; anything else as it is."""
    if isinstance(value, keras.KerasTensor) or not is_tensor(value):
        return value
    return like(value)


def like(tensor: Any) -> keras.KerasTensor:
    """Return a new symbolic tensor of the shape and data type of another tensor, symbolic or not."""
    return keras.KerasTensor(shape_of(tensor), dtype_of(tensor))


def symbolic_in(tensors: Iterable[Any]) -> list[keras.KerasTensor]:
    """Return the tensors that are symbolic."""
    return [tensor for tensor in tensors if isinstance(tensor, keras.KerasTensor)]


# Arguments

OF_A_CALL = ("training", "mask")
"""Keywords of every layer's call, which are no tensors of the model's own."""


def as_called(model: object, inputs: Inputs) -> Inputs:
    """The arguments as Keras takes them: a model made of a graph has one, and several tensors are a list or a mapping in it."""
    if inputs.forward is not None or getattr(type(model), "call", None) not in private.GRAPH_CALLS:
        return inputs
    if len(inputs.args) > 1 and not inputs.kwargs:
        return Inputs((list(inputs.args),))
    own = {name: value for name, value in inputs.kwargs.items() if name not in OF_A_CALL}
    if not inputs.args and own:
        is_one = len(own) == 1 and not private.takes_mapping(model)
        given = next(iter(own.values())) if is_one else own
        return Inputs((given,), {name: value for name, value in inputs.kwargs.items() if name in OF_A_CALL})
    return inputs


def as_described(inputs: Inputs, channel_axis: int | None, dtype: str | None) -> Inputs:
    """Return the shapes and data types that a model is called with.

    Args:
        inputs: of a dataset.
        channel_axis: where their channels are, which the model expects last; None: where the model expects them.
        dtype: of floating-point tensors; None: their own.
    """

    def change(value: Any) -> Any:
        if not is_tensor(value):
            return value
        shape = with_channels_last(shape_of(value), channel_axis)
        kind = dtype if dtype is not None and _is_floating(value) else dtype_of(value)
        is_same = (shape, kind) == (shape_of(value), dtype_of(value))
        return value if is_same else TensorSpec(shape, kind)

    return inputs.map(change)


# Precision and layout

PRECISIONS: dict[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "float32"}
"""Data type of weights, computation and floating-point inputs; with ``autocast`` of the computation alone."""
NO_GENERATION = Gap("not implemented", "Keras models that generate text are not measured: choose backend=torch")
NO_GRAPH = Gap(
    "not implemented",
    "the symbolic trace of a Keras model is counted by layer and not shown as a graph; keras.utils.plot_model draws one",
)
NO_PEAKS = Gap(
    "not implemented",
    "there is no benchmark of the machine in Keras's frameworks; backend=torch measures the same hardware",
)


@dataclass(frozen=True, slots=True)
class KerasBackend(Backend):
    """The settings of every backend that runs Keras models, and a model that is built with them."""

    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert", "autocast"),
        "bf16": ("convert", "autocast"),
        "int8": ("dynamic",),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {}
    threads: int = 1
    """Threads within an operator."""
    layout: Literal["channels_last", "channels_first"] = "channels_last"
    """Where the model expects the channels of an image; datasets give them first."""
    precision: Precision | None = None
    """Of weights, computation and inputs; ``int8``: layers are quantized by Keras; None: as the model is."""
    precision_method: PrecisionMethod | None = None
    """``autocast``: under a mixed policy, weights stay in 32 bits; None: weights are converted."""

    def __post_init__(self) -> None:
        self.method()

    def method(self) -> str | None:
        """Return the method by which models get their precision."""
        return checked_method(type(self), self.precision, self.precision_method)

    @property
    def computation_dtype(self) -> str | None:
        """The data type of most of the computation; None: the model's own."""
        return None if self.precision is None else PRECISIONS[self.precision]

    @property
    def dtype(self) -> str | None:
        """The data type of weights and floating-point inputs; None leaves them unchanged."""
        return "float32" if self.method() == "autocast" else self.computation_dtype

    def moved(self, channel_axis: int | None) -> int | None:
        """Return where the channels of a dataset are, if they must be moved."""
        return channel_axis if self.layout == "channels_last" else None

    def built(self, build: Build) -> Any:
        """Return the builder's model with its layers in the precision of this backend.

        Raises:
            TypeError: that cannot be called.
            Unsupported: the builder sets other data types itself, or the model has no layer that Keras quantizes.
        """
        before, dtype = keras.config.dtype_policy(), self.computation_dtype
        if dtype is not None:
            is_mixed = self.method() == "autocast" and dtype != "float32"
            keras.config.set_dtype_policy(f"mixed_{dtype}" if is_mixed else dtype)
        try:
            model = build()
        finally:
            keras.config.set_dtype_policy(before)
        if not callable(model):
            raise TypeError(f"the model's builder returned a {type(model).__name__}, which cannot be called")
        other = _other_dtype(model, self.dtype)
        if other is not None:
            raise Unsupported(f"the model's builder makes weights of {other}, and backend.precision={self.precision}")
        if self.precision == "int8":
            if described_builder(build) is None:
                raise Unsupported(
                    "Keras quantizes a model in place: call quantize('int8') of your model, and profile that"
                )
            _quantize(model)
        return model

    def described(self, build: Build, inputs: Inputs, channel_axis: int | None) -> tuple[object, Inputs]:
        """Return the model, and the shapes and data types that it is called with."""
        return self.built(build), as_described(inputs, self.moved(channel_axis), self.dtype)


def _other_dtype(model: object, wanted: str | None) -> str | None:
    """A data type among the model's weights that is not the wanted one; of numbers that are no floats any is right."""
    weights = model.weights if wanted is not None and isinstance(model, keras.Layer) else ()
    return next((v.dtype for v in weights if "float" in v.dtype and v.dtype != wanted), None)


def _quantize(model: object) -> None:
    """Give the layers that Keras can quantize weights of 8 bits; a layer's inputs are quantized as they come.

    Raises:
        Unsupported: there is none, or the model has no weights before its first call.
    """
    if not isinstance(model, keras.Model):
        raise Unsupported(f"Keras quantizes a keras.Model, and the builder returned a {type(model).__name__}")
    if not model.built:
        raise Unsupported("Keras quantizes models that are built, and this one has no weights before its first call")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning for every layer that cannot be quantized
        model.quantize("int8")
    if all(getattr(layer, "quantization_mode", None) != "int8" for layer in private.all_layers(model)):
        raise Unsupported("the model has no layer that Keras quantizes, such as Dense, EinsumDense or Embedding")


# Loss and optimizer of a training step

Loss = Callable[[object, Any], Any]
"""From what the model returned, and the targets, to a scalar."""


def loss_of(given: str | Callable[..., Any], has_targets: bool, tensors: Callable[[object], list[Any]]) -> Loss:
    """The loss that is given.

    Args:
        given: a name, or a function of outputs and targets; one of ``y_true`` and ``y_pred``, as Keras's own are, is given them by
            these names, and its mean is taken where it gives a value for each sample.
        has_targets: whether the data have any.
        tensors: returns the tensors in what the model returned.

    Raises:
        Unsupported: the loss needs targets that there are not.
    """

    def first(outputs: object) -> Any:
        found = tensors(outputs)
        if not found:
            raise Unsupported(f"the model returned a {type(outputs).__name__} without a tensor")
        return found[0]

    if not isinstance(given, str):
        if {"y_true", "y_pred"} <= set(inspect.signature(given).parameters):
            return lambda outputs, targets: ops.mean(given(y_true=targets, y_pred=first(outputs)))
        return given
    if given == "own":
        return lambda outputs, _: _own_loss(outputs, tensors(outputs))
    if given == "mean":
        return lambda outputs, _: _sum_of_means([first(outputs), *tensors(outputs)[1:]])
    if not has_targets:
        raise Unsupported(f"training.loss={given} needs targets, and the data have none")
    compare = _TARGETED[given]
    return lambda outputs, targets: compare(first(outputs), targets)


def _is_floating(tensor: Any) -> bool:
    return "float" in dtype_of(tensor)


def _cross_entropy(outputs: Any, targets: Any) -> Any:
    """Return the loss of logits, classes along their last axis; targets are classes, or a probability for each."""
    shape = tuple(outputs.shape)
    if _is_floating(targets):
        _belong("cross_entropy", targets, shape, shape)
        wanted = ops.cast(targets, outputs.dtype)
        return ops.mean(ops.categorical_crossentropy(wanted, outputs, from_logits=True))
    if tuple(targets.shape) == (*shape[:-1], 1):  # as Keras's own datasets have them
        targets = ops.squeeze(targets, -1)
    _belong("cross_entropy", targets, shape[:-1], shape)
    return ops.mean(ops.sparse_categorical_crossentropy(targets, outputs, from_logits=True))


def _mse(outputs: Any, targets: Any) -> Any:
    """The mean squared error; where targets are classes, against 1 for the class and 0 for the others."""
    shape = tuple(outputs.shape)
    if tuple(targets.shape) != shape and prod(targets.shape) == prod(shape):
        targets = ops.reshape(targets, shape)
    elif tuple(targets.shape) == shape[:-1] and not _is_floating(targets):
        targets = ops.one_hot(targets, shape[-1])
    _belong("mse", targets, shape, shape)
    return ops.mean(ops.square(ops.subtract(outputs, ops.cast(targets, outputs.dtype))))


def _belong(loss: str, targets: Any, wanted: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    """Raise Unsupported for targets of another shape, which a framework would stretch, or name by another message."""
    if tuple(targets.shape) != wanted:
        shapes = f"{tuple(targets.shape)} and the outputs of {outputs}"
        raise Unsupported(f"training.loss={loss}: targets of shape {shapes} do not belong together")


def _sum_of_means(outputs: list[Any]) -> Any:
    """The sum of the means of every output that is a number with a fraction."""
    means = [ops.mean(tensor) for tensor in outputs if _is_floating(tensor)]
    if not means:
        raise Unsupported("the model returned no floating-point tensor to take the mean of")
    if len({dtype_of(mean) for mean in means}) > 1:
        means = [ops.cast(mean, "float32") for mean in means]
    return sum(means[1:], start=means[0])


def _own_loss(outputs: object, tensors: list[Any]) -> Any:
    """The loss that a model returns which is given labels: by its name, or first of a tuple."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None and not isinstance(outputs, Mapping) and tensors and len(tensors[0].shape) == 0:
        found = tensors[0]
    if found is None or not is_tensor(found):
        raise Unsupported("training.loss=own: the model returned no loss; give it labels among its inputs")
    return found


_TARGETED: dict[str, Callable[[Any, Any], Any]] = {"cross_entropy": _cross_entropy, "mse": _mse}
assert {*_TARGETED, "mean", "own"} == set(LOSSES)


def optimizer_of(given: str | Callable[..., Any], variables: list[keras.Variable]) -> Any:
    """Return the optimizer that is given, built for the variables; None for the name ``none``.

    Keras's optimizers are made without the variables, a function of the caller's own is given them.
    """
    if given == "none":
        return None
    if isinstance(given, str):
        optimizer = _OPTIMIZERS[given]()
    else:
        kind = given.func if isinstance(given, partial) else given
        is_keras = isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
        optimizer = given() if is_keras else given(variables)
    if not optimizer.built:
        optimizer.build(variables)
    return optimizer


_OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": partial(keras.optimizers.SGD, RATE),
    "momentum": partial(keras.optimizers.SGD, RATE, momentum=0.9),
    "adam": partial(keras.optimizers.Adam, RATE, epsilon=EPSILON),
    "adamw": partial(keras.optimizers.AdamW, RATE, epsilon=EPSILON),
}
assert {*_OPTIMIZERS, "none"} == set(OPTIMIZERS)
