"""Maps the operations of ``keras.ops`` to the definitions of :mod:`sweeprof.counting.operators` and their gradients.

A rule reads the settings of an operation, and the shapes and data types of its arguments and its result: it holds on every
framework that Keras runs on. Biases are operations of their own here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from sweeprof.counting import mapping, operators
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost
from sweeprof.counting.mapping import CallTensor, OperatorCall
from sweeprof.counting.operators import INTEGER, NOTHING, Numbers

if TYPE_CHECKING:
    import keras


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
    return mapping.numbers_of(str(getattr(tensor, "dtype", "")))


def sized(value: Any) -> CallTensor:
    """Return the shape and data type of an argument or a result; of several the first one's."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return CallTensor("", shape_of(value), str(getattr(value, "dtype", "")), numbers=numbers_of(value))


def call_of(name: str, operation: keras.Operation, args: Args, kwargs: Kwargs, output: object) -> KerasCall:
    """Return a call of an operation, whose settings and keyword arguments are attributes."""
    inputs = tuple(None if value is None else sized(value) for value in args)
    return OperatorCall(name, "", inputs, (sized(output),), {**vars(operation), **kwargs})


def _has(call: KerasCall, position: int, name: str) -> bool:
    """Return True if an argument is given, by position or by name."""
    return call.input(position) is not None or call.attributes.get(name) is not None


KerasCall = OperatorCall[CallTensor]
KerasRule = Callable[[KerasCall], OperatorCost]

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
    return mapping.elementwise(name, call)


def _resize(call: KerasCall) -> OperatorCost:
    return mapping.elementwise(call.attributes["interpolation"], call)


ELEMENTWISE_RULES: dict[str, KerasRule] = {
    **mapping.elementwise_rules(_ELEMENTWISE),
    "gelu": partial(mapping.gelu, "approximate"),
    "relu": _rectified,
    "resize": _resize,
}


def _matmul(call: KerasCall) -> OperatorCost:
    left, right, made = call.operand(0).sizes, call.operand(1).sizes, call.result
    return operators.matmul(made.elements, left[-1] if left and right else 1, made.numbers)


def _contracted(call: KerasCall) -> OperatorCost:
    """``tensordot``: every output element is a sum over the axes that both operands lose."""
    made = call.result
    both = call.operand(0).elements * call.operand(1).elements
    inner = round((both / made.elements) ** 0.5) if made.elements else 0
    return operators.matmul(made.elements, inner, made.numbers)


def _outer(call: KerasCall) -> OperatorCost:
    """``outer`` and ``kron``."""
    return operators.outer(call.result.elements, call.result.numbers)


def _attention(call: KerasCall) -> OperatorCost:
    """``(query (B, T, N, E), key (B, S, heads, E), value, bias, mask)``."""
    query, key, value = (call.operand(position).sizes for position in range(3))
    masks = _has(call, 3, "bias") + _has(call, 4, "mask")
    return operators.attention(prod(query[:-1]), key[1], query[-1], value[-1], call.result.numbers, masks=masks)


def _distances(call: KerasCall) -> OperatorCost:
    return operators.distances(call.result.elements, call.operand(0).sizes[-1])


def _batch_norm(call: KerasCall) -> OperatorCost:
    """``(x, mean, variance, offset, scale)``."""
    affine = _has(call, 3, "offset") or _has(call, 4, "scale")
    return operators.batch_norm(call.operand(0).elements, call.operand(1).elements, affine=affine, training=False)


def _rows(call: KerasCall) -> int:
    """Return the rows of an input, each of which extends along the operation's axes."""
    given = call.operand(0)
    length = mapping.length_along(given.sizes, call.attributes["axis"])
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


def _normalize(call: KerasCall) -> OperatorCost:
    return operators.unit_norm(call.operand(0).elements, _rows(call))


def _average_pool(call: KerasCall) -> OperatorCost:
    size, spatial = call.attributes["pool_size"], len(call.operand(0).sizes) - 2
    window = size**spatial if isinstance(size, int) else prod(size) if len(size) == spatial else size[0] ** spatial
    made = call.result
    is_counted = made.numbers is not INTEGER
    return operators.average_pool(call.operand(0).elements, made.elements, window) if is_counted else NOTHING


def _average(call: KerasCall) -> OperatorCost:
    """A mean, with weights or without."""
    return mapping.reduction("weighted_mean" if _has(call, 1, "weights") else "mean", call)


def _trace(call: KerasCall) -> OperatorCost:
    made = call.result
    return NOTHING if made.numbers is INTEGER else operators.trace(min(call.operand(0).sizes[-2:]), made.elements)


def _short_fourier(call: KerasCall) -> OperatorCost:
    points = call.attributes["fft_length"]
    frames = call.result.elements // (points // 2 + 1)
    return operators.short_time_fourier(frames, points, call.attributes["sequence_length"])


COSTS: dict[str, KerasRule] = mapping.by_name(
    {
        **ELEMENTWISE_RULES,
        "matmul dot inner vdot": _matmul,
        "outer kron": _outer,
        "tensordot": _contracted,
        "einsum": partial(mapping.einsum, attribute="subscripts"),
        # Kernels (*space, in/groups, out), (*space, in, multiplier) and (*space, out, in).
        "conv": partial(mapping.convolution, first=0, end=-1),
        "depthwise_conv": partial(mapping.convolution, first=0, end=-2),
        "conv_transpose": partial(mapping.transposed_convolution, first=0, end=-1, bias=None),
        "dot_product_attention": _attention,
        "c_dist": _distances,
        "batch_norm": _batch_norm,
        "layer_norm": _layer_norm,
        "rms_norm": _rms_norm,
        "normalize": _normalize,
        "softmax": mapping.softmax,
        "log_softmax": mapping.log_softmax,
        "average_pool": _average_pool,
        "adaptive_average_pool": mapping.adaptive_average_pool,
        "max_pool adaptive_max_pool": mapping.max_pool,
        "sum prod max min amax amin nansum nanprod nanmax nanmin": partial(mapping.reduction, "sum"),
        "mean nanmean cumsum cumprod nancumsum nancumprod": partial(mapping.reduction, "mean"),
        "segment_sum segment_max segment_min segment_prod segment_reduction": partial(mapping.reduction, "mean"),
        "norm ptp": partial(mapping.reduction, "norm"),
        "var std nanvar nanstd moments": partial(mapping.reduction, "variance"),
        "average": _average,
        "logsumexp": mapping.logsumexp,
        "trace": _trace,
        "fft": partial(mapping.fourier, axes=1, is_real=False),
        "fft2 ifft2": partial(mapping.fourier, axes=2, is_real=False),
        "rfft irfft": partial(mapping.fourier, axes=1, is_real=True),
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
