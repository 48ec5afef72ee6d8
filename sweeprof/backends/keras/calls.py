"""How a Keras model is built, called and trained by the backends that run it, and what its operations cost.

The first part maps the operations of ``keras.ops`` to the definitions of :mod:`sweeprof.counting.operators`. The others describe
tensors and arguments, and build models, losses and optimizers for any framework that Keras runs on.
"""

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

from sweeprof.backends import (
    Backend,
    Build,
    Gap,
    Precision,
    PrecisionMethod,
    channels_last,
    checked_method,
    is_tensor,
    shape_in,
)
from sweeprof.backends.keras import private
from sweeprof.backends.model_files import described as described_builder
from sweeprof.counting import file_graph, operators
from sweeprof.counting.file_graph import CallTensor, OperatorCall, itemsize
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost, TensorShapes, together
from sweeprof.counting.operators import INTEGER, NOTHING, Numbers
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.training_config import EPSILON, RATE

# ---------------------------------------------------------------------------------------------------------------------
# Costs of the operations of keras.ops
# ---------------------------------------------------------------------------------------------------------------------


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor or variable; of a number none, 0 for one that is known only from values (``nonzero``)."""
    shape: Any = getattr(value, "shape", ())
    if type(shape) is tuple and None not in shape:
        return shape
    if getattr(shape, "rank", ()) is None:  # a tensor of TensorFlow without even a rank
        return ()
    return tuple(0 if size is None else int(size) for size in shape)


def elements(value: object) -> int:
    """Return the number of elements of a tensor or variable."""
    return prod(shape_of(value))


def numbers_of(tensor: object) -> Numbers:
    """Return the kind of numbers of a tensor or variable."""
    return file_graph.numbers_of(str(getattr(tensor, "dtype", "")))


def sized(value: Any) -> CallTensor:
    """Return the shape and data type of an argument or a result; of several the first one's."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return CallTensor("", shape_of(value), str(getattr(value, "dtype", "")), numbers=numbers_of(value))


def call_of(name: str, operation: keras.Operation, args: Args, kwargs: Kwargs, output: object) -> KerasCall:
    """Return a call of an operation, whose settings and keyword arguments are attributes."""
    inputs = tuple(None if value is None else sized(value) for value in args)
    return OperatorCall(name, "", inputs, (sized(output),), {**vars(operation), **kwargs})


KerasCall = OperatorCall[CallTensor]
KerasRule = Callable[[KerasCall], OperatorCost]


def _has(call: KerasCall, position: int, name: str) -> bool:
    """Return True if an argument is given, by position or by name."""
    return call.input(position) is not None or call.attributes.get(name) is not None


_ELEMENTWISE = """
arithmetic: add subtract floor_divide mod fmod power square negative absolute abs fabs sign maximum minimum fmax fmin clip heaviside
arithmetic: ldexp nextafter angle diff ceil floor round trunc divide_no_nan
multiply: multiply
divide: divide true_divide
function: exp exp2 expm1 log log2 log10 log1p sqrt cbrt erf erfc erfinv sin cos tan arcsin arccos arctan arctan2 sinh cosh
function: arcsinh arccosh arctanh sinc reciprocal i0 deg2rad rad2deg
sigmoid: sigmoid
tanh: tanh
leaky_relu: leaky_relu sparse_sigmoid sparse_plus
elu: elu celu
selu: selu
softplus: softplus
silu: silu
mish: mish
hardtanh: relu6 hard_tanh hard_shrink soft_shrink threshold saturate_cast
hardsigmoid: hard_sigmoid
hardswish: hard_silu
log_sigmoid: log_sigmoid
glu: glu
softsign: softsign
tanhshrink: tanh_shrink
squareplus: squareplus
sparsemax: sparsemax
rsqrt: rsqrt
hypot: hypot
logaddexp: logaddexp logaddexp2
cross: cross
polar: polar
grayscale: rgb_to_grayscale
"""


def _rectified(call: KerasCall) -> OperatorCost:
    """``ops.relu``, and ``activations.relu``, which may have a slope (a leaky one), a maximum (relu6) or a threshold."""
    settings = call.attributes
    name = "relu"
    if settings.get("negative_slope"):
        name = "leaky_relu"
    elif settings.get("max_value") is not None or settings.get("threshold"):
        name = "hardtanh"
    return file_graph.elementwise(name, call)


def _matmul(call: KerasCall) -> OperatorCost:
    left, right, made = call.operand(0).sizes, call.operand(1).sizes, call.result
    return operators.matmul(made.elements, left[-1] if left and right else 1, made.numbers)


def _contracted(call: KerasCall) -> OperatorCost:
    """``tensordot`` and ``vdot``: every output element is a sum over the axes that both operands lose."""
    made = call.result
    both = call.operand(0).elements * call.operand(1).elements
    inner = round((both / made.elements) ** 0.5) if made.elements else 0
    return operators.matmul(made.elements, inner, made.numbers)


def _attention(call: KerasCall) -> OperatorCost:
    """``(query (B, T, N, E), key (B, S, heads, E), value, bias, mask)``."""
    query, key, value = (call.operand(position).sizes for position in range(3))
    masks = _has(call, 3, "bias") + _has(call, 4, "mask")
    return operators.attention(prod(query[:-1]), key[1], query[-1], value[-1], call.result.numbers, masks=masks)


def _batch_norm(call: KerasCall) -> OperatorCost:
    """``(x, mean, variance, offset, scale)``."""
    affine = _has(call, 3, "offset") or _has(call, 4, "scale")
    return operators.batch_norm(call.operand(0).elements, call.operand(1).elements, affine=affine, training=False)


def _rows(call: KerasCall) -> int:
    """Return the rows of an input, each of which extends along the operation's axes."""
    given = call.operand(0)
    length = file_graph.length_along(given.sizes, call.attributes["axis"])
    return given.elements // length if length else 0


def _layer_norm(call: KerasCall) -> OperatorCost:
    """``(x, gamma, beta)``."""
    weight, bias = _has(call, 1, "gamma"), _has(call, 2, "beta")
    if call.attributes["rms_scaling"]:
        return operators.rms_norm(call.operand(0).elements, _rows(call), weight=weight)
    return operators.normalisation(call.operand(0).elements, _rows(call), weight=weight, bias=bias)


def _rms_norm(call: KerasCall) -> OperatorCost:
    """``(x, scale)``."""
    return operators.rms_norm(call.operand(0).elements, _rows(call), weight=_has(call, 1, "scale"))


def _average_pool(call: KerasCall) -> OperatorCost:
    given, made = call.operand(0), call.result
    if made.numbers is INTEGER:
        return NOTHING
    size, spatial = call.attributes["pool_size"], len(given.sizes) - 2
    sizes = [size] if isinstance(size, int) else list(size)
    if len(sizes) != spatial:
        sizes = sizes[:1] * spatial
    return operators.average_pool(given.elements, made.elements, prod(sizes))


def _average(call: KerasCall) -> OperatorCost:
    """A mean, with weights or without."""
    return file_graph.reduction("weighted_mean" if _has(call, 1, "weights") else "mean", call)


def _trace(call: KerasCall) -> OperatorCost:
    if call.result.numbers is INTEGER:
        return NOTHING
    return operators.trace(min(call.operand(0).sizes[-2:]), call.result.elements)


def _short_fourier(call: KerasCall) -> OperatorCost:
    points = call.attributes["fft_length"]
    frames = call.result.elements // (points // 2 + 1)
    return operators.short_time_fourier(frames, points, call.attributes["sequence_length"])


COSTS: dict[str, KerasRule] = file_graph.by_name(
    {
        **file_graph.elementwise_rules(_ELEMENTWISE),
        "gelu": partial(file_graph.gelu, "approximate"),
        "relu": _rectified,
        "resize": lambda call: file_graph.elementwise(call.attributes["interpolation"], call),
        "matmul dot inner": _matmul,
        "outer kron": lambda call: operators.outer(call.result.elements, call.result.numbers),
        "tensordot vdot": _contracted,
        "einsum": partial(file_graph.einsum, attribute="subscripts"),
        # Kernels (*space, in/groups, out), (*space, in, multiplier) and (*space, out, in).
        "conv": partial(file_graph.convolution, first=0, end=-1),
        "depthwise_conv": partial(file_graph.convolution, first=0, end=-2),
        "conv_transpose": partial(file_graph.transposed_convolution, first=0, end=-1, bias=None),
        "dot_product_attention": _attention,
        "c_dist": lambda call: operators.distances(call.result.elements, call.operand(0).sizes[-1]),
        "batch_norm": _batch_norm,
        "layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "normalize": lambda call: operators.unit_norm(call.operand(0).elements, _rows(call)),
        "softmax": file_graph.softmax,
        "log_softmax": file_graph.log_softmax,
        "average_pool": _average_pool,
        "adaptive_average_pool": file_graph.adaptive_average_pool,
        "max_pool adaptive_max_pool": file_graph.max_pool,
        "sum prod max min amax amin nansum nanprod nanmax nanmin": partial(file_graph.reduction, "sum"),
        "mean nanmean cumsum cumprod nancumsum nancumprod": partial(file_graph.reduction, "mean"),
        "segment_sum segment_max segment_min segment_prod segment_reduction": partial(file_graph.reduction, "mean"),
        "norm ptp": partial(file_graph.reduction, "norm"),
        "var std nanvar nanstd moments": partial(file_graph.reduction, "variance"),
        "average": _average,
        "logsumexp": file_graph.logsumexp,
        "trace": _trace,
        "fft": partial(file_graph.fourier, axes=1, is_real=False),
        "fft2 ifft2": partial(file_graph.fourier, axes=2, is_real=False),
        "rfft irfft": partial(file_graph.fourier, axes=1, is_real=True),
        "stft": _short_fourier,
    }
)
"""Rule by the name of the operation's class in small letters, e.g. ``depthwise_conv``."""


VIEWS = frozenset("reshape squeeze expand_dims ravel view stop_gradient convert_to_tensor".split())
"""Those that return what they were given under another shape; a dense tensor need not be copied for it."""
FREE = VIEWS | frozenset(
    """
    cast slice slice_update scatter scatter_update unstack switch top_k in_top_k extract_sequences view_as_complex view_as_real
    one_hot multi_hot unfold depth_to_space space_to_depth
    rearrange extract_patches pad_images crop_images
    rot90 all all_close any append arange argmax argmin argsort array bincount bitwise_and bitwise_invert bitwise_not
    bitwise_or bitwise_xor bitwise_left_shift left_shift bitwise_right_shift right_shift broadcast_to concatenate conjugate conj
    copy count_nonzero diag diagflat diagonal digitize dstack empty_like equal flip fliplr flipud full full_like gcd get_item
    greater greater_equal hstack hsplit imag isclose isfinite is_in isinf isnan isneginf isposinf isreal lcm less less_equal
    linspace logical_and logical_not logical_or logical_xor meshgrid median moveaxis nanargmax nanargmin nanmedian nan_to_num
    ndim nonzero not_equal ones_like zeros_like pad real repeat roll search_sorted signbit size sort split stack
    swapaxes take take_along_axis tile transpose tril triu unravel_index vstack vsplit where select argpartition histogram
    array_split unique dsplit
    """.split()
)
"""Operations that move, choose, compare or make data."""

ATTENTION = "dot_product_attention"


# ---------------------------------------------------------------------------------------------------------------------
# Tensors
# ---------------------------------------------------------------------------------------------------------------------


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
    return like(value) if is_tensor(value) and not isinstance(value, keras.KerasTensor) else value


def like(tensor: Any) -> keras.KerasTensor:
    """Return a new symbolic tensor of the shape and data type of another tensor, symbolic or not."""
    return keras.KerasTensor(shape_of(tensor), dtype_of(tensor))


def symbolic_in(tensors: Iterable[Any]) -> list[keras.KerasTensor]:
    """Return the tensors that are symbolic."""
    return [tensor for tensor in tensors if isinstance(tensor, keras.KerasTensor)]


# ---------------------------------------------------------------------------------------------------------------------
# Arguments of a model
# ---------------------------------------------------------------------------------------------------------------------

OF_A_CALL = ("training", "mask")
"""Keywords of every layer's call, which are no tensors of the model's own."""


def as_called(model: object, inputs: Inputs) -> Inputs:
    """The arguments as Keras takes them: a model made of a graph has one, and several tensors are a list or a mapping in it."""
    if inputs.forward is not None or getattr(type(model), "call", None) not in private.GRAPH_CALLS:
        return inputs
    if len(inputs.args) > 1 and not inputs.kwargs:
        return Inputs((list(inputs.args),))
    own, of_the_call = {}, {}
    for name, value in inputs.kwargs.items():
        if name in OF_A_CALL:
            of_the_call[name] = value
        else:
            own[name] = value
    if inputs.args or not own:
        return inputs
    if len(own) == 1 and not private.takes_mapping(model):
        return Inputs(tuple(own.values()), of_the_call)
    return Inputs((own,), of_the_call)


# ---------------------------------------------------------------------------------------------------------------------
# Models in a precision and a layout
# ---------------------------------------------------------------------------------------------------------------------

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
        before, policy = keras.config.dtype_policy(), self.computation_dtype
        if policy is not None:
            if self.method() == "autocast" and policy != "float32":
                policy = f"mixed_{policy}"
            keras.config.set_dtype_policy(policy)
        try:
            model = build()
        finally:
            keras.config.set_dtype_policy(before)
        if not callable(model):
            raise TypeError(f"the model's builder returned a {type(model).__name__}, which cannot be called")
        if self.dtype is not None and isinstance(model, keras.Layer):
            for weight in model.weights:  # of numbers that are no floats any type is right
                if "float" in weight.dtype and weight.dtype != self.dtype:
                    raise Unsupported(
                        f"the model's builder makes weights of {weight.dtype}, and backend.precision={self.precision}"
                    )
        if self.precision == "int8":
            if described_builder(build) is None:
                raise Unsupported(
                    "Keras quantizes a model in place: call quantize('int8') of your model, and profile that"
                )
            _quantize(model)
        return model

    def described(self, build: Build, inputs: Inputs, channel_axis: int | None) -> tuple[object, Inputs]:
        """Return the model, and the shapes and data types that it is called with."""
        order = channels_last(inputs, self.moved(channel_axis))

        def change(value: Any) -> Any:
            if not is_tensor(value):
                return value
            shape, kind = shape_in(shape_of(value), order), dtype_of(value)
            if self.dtype is not None and _is_floating(value):
                kind = self.dtype
            if (shape, kind) == (shape_of(value), dtype_of(value)):
                return value
            return TensorSpec(shape, kind)

        return self.built(build), inputs.map(change)


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


# ---------------------------------------------------------------------------------------------------------------------
# Loss and optimizer of a training step
# ---------------------------------------------------------------------------------------------------------------------

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
    compare = {"cross_entropy": _cross_entropy, "mse": _mse}[given]
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
    if isinstance(outputs, Mapping):
        found = outputs.get("loss")
    else:
        found = getattr(outputs, "loss", None)
        if found is None and tensors and len(tensors[0].shape) == 0:
            found = tensors[0]
    if found is None or not is_tensor(found):
        raise Unsupported("training.loss=own: the model returned no loss; give it labels among its inputs")
    return found


def optimizer_of(given: str | Callable[..., Any], variables: list[keras.Variable]) -> Any:
    """Return the optimizer that is given, built for the variables; None for the name ``none``.

    Keras's optimizers are made without the variables; a user-defined function is called with them.
    """
    if given == "none":
        return None
    if isinstance(given, str):
        optimizer = {
            "sgd": partial(keras.optimizers.SGD, RATE),
            "momentum": partial(keras.optimizers.SGD, RATE, momentum=0.9),
            "adam": partial(keras.optimizers.Adam, RATE, epsilon=EPSILON),
            "adamw": partial(keras.optimizers.AdamW, RATE, epsilon=EPSILON),
        }[given]()
    else:
        kind = given.func if isinstance(given, partial) else given
        is_keras = isinstance(kind, type) and issubclass(kind, keras.optimizers.Optimizer)
        optimizer = given() if is_keras else given(variables)
    if not optimizer.built:
        optimizer.build(variables)
    return optimizer
