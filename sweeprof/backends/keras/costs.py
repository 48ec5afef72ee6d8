"""The cost of each operation of ``keras.ops``: multiply-accumulates, floating-point operations and textbook scalar operations.

The definitions are those of the torch backend; docs/counting.md is the table for readers, and tests hold both together. A rule
is a function of an operation (which holds its settings), its arguments and its result:

    def matmul(operation, args, kwargs, output) -> (macs, flops, ops)

Rules see shapes and data types alone, so that they hold on whatever Keras runs on. A product's backward takes as many
multiply-accumulates for the gradient of each operand that needs one as it took forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, log2, prod
from typing import TYPE_CHECKING, Any, Protocol

from sweeprof.counting.formulas import Args, Kwargs, OperatorCost

if TYPE_CHECKING:
    import keras


class ShapedTensor(Protocol):
    """The properties of a tensor, or of its description, that the rules read."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes of the axes."""

    @property
    def dtype(self) -> object:
        """The data type, whose text is its name."""


KerasRule = Callable[["keras.Operation", Args, Kwargs, Any], OperatorCost]
"""From an operation (which holds its settings), its arguments, its keyword arguments and what it returns."""

NOTHING: OperatorCost = (0, 0, 0)
_COMPLEX_MAC = 4
"""A complex multiplication and addition are 8 real operations where a real pair is 2."""
_COMPLEX_PRODUCT = 6
"""Four multiplications and two additions."""


def given_or(kwargs: Kwargs, args: Args, position: int, name: str) -> Any:
    """An argument, whichever way it was given; None where it was not."""
    return args[position] if len(args) > position else kwargs.get(name)


def shape_of(value: object) -> tuple[int, ...]:
    """Sizes of a tensor or variable; of a number none."""
    return tuple(int(size) for size in getattr(value, "shape", ()))


def elements(value: object) -> int:
    """Elements of a tensor or variable."""
    return prod(shape_of(value))


def first_tensor(output: keras.KerasTensor) -> Any:
    """The first tensor of what an operation returned."""
    return first_tensor(output[0]) if isinstance(output, list | tuple) else output


def is_complex(tensor: ShapedTensor) -> bool:
    """True if the elements are complex numbers."""
    return str(tensor.dtype).startswith("complex")


def arithmetic(tensor: ShapedTensor) -> bool:
    """True if computing ``tensor`` took floating-point operations."""
    return str(tensor.dtype).startswith(("float", "bfloat", "complex"))


def parts(tensor: ShapedTensor) -> int:
    """Real numbers in an element: a complex addition is two."""
    return 2 if is_complex(tensor) else 1


def product(macs: int, outputs: int, tensor: ShapedTensor) -> OperatorCost:
    """``outputs`` sums that take ``macs`` products together; a sum of n products takes n - 1 additions.

    Biases are operations of their own here. On integers there are operations, but no FLOPs.
    """
    if not macs:  # empty sums are zero, and nobody computes them
        return NOTHING
    work = 2 * macs * (_COMPLEX_MAC if is_complex(tensor) else 1)
    return macs, work if arithmetic(tensor) else 0, work - outputs * parts(tensor)


def outer(elements: int, tensor: ShapedTensor) -> OperatorCost:
    """An outer product: one multiplication for each element, and nothing that is accumulated."""
    work = elements * (_COMPLEX_PRODUCT if is_complex(tensor) else 1)
    return 0, work if arithmetic(tensor) else 0, work


def added(*costs: OperatorCost) -> OperatorCost:
    """All of them together."""
    return sum(c[0] for c in costs), sum(c[1] for c in costs), sum(c[2] for c in costs)


def normalised(rows: int, length: int, *, weight: bool, bias: bool) -> OperatorCost:
    """Rows that are normalised by their own mean and variance, like a batch norm in training."""
    count = rows * length
    return 0, (5 if weight else 4) * count, (5 + weight + bias) * count + 4 * rows


def root_mean_square(rows: int, length: int, *, weight: bool) -> OperatorCost:
    """Squares, their mean, a root, a division, and a multiplication by the weight."""
    return 0, (3 + weight) * rows * length, (3 + weight) * rows * length + 2 * rows


def batch_normalised(count: int, channels: int, *, affine: bool, training: bool) -> OperatorCost:
    """``count`` elements of ``channels`` channels; as the torch backend counts it, and docs/counting.md says."""
    if training:
        return 0, (5 if affine else 4) * count, (7 if affine else 5) * count + 4 * channels
    return 0, (2 if affine else 1) * count, (4 if affine else 2) * count + 2 * channels


def softmaxed(count: int, length: int) -> OperatorCost:
    """Rows of ``length``: subtract the maximum, exponentiate, length - 1 additions, divide; one FLOP an element."""
    return 0, count, (count // length) * (4 * length - 1) if length else 0


def attended(scores: int, rows: int, width: int, value_width: int, tensor: ShapedTensor, *, masks: int) -> OperatorCost:
    """``softmax(q kᵀ / √d + masks) v`` in one kernel.

    Args:
        scores: elements of ``q kᵀ``, over the batch and all heads of q.
        rows: rows of them.
        width: of queries and keys.
        masks: tensors that are added to the scores, or that choose among them.
    """
    macs, flops, ops = product(scores * (width + value_width), scores + rows * value_width, tensor)
    softmax = rows * max(0, 4 * (scores // rows) - 1) if rows else 0
    return macs, flops + (2 + masks) * scores, ops + (1 + masks) * scores + softmax


# every rule takes an operation, its arguments, keyword arguments and result


_TABLE = """
sigmoid 1 3
tanh 1 7
leaky_relu sparse_sigmoid sparse_plus 1 4
elu celu 1 3
selu 1 7
softplus 1 5
silu 1 4
mish 1 13
relu6 hard_tanh hard_shrink soft_shrink threshold saturate_cast 1 2
hard_sigmoid 1 4
hard_silu 1 5
log_sigmoid 1 4
glu 1 4
softsign 3 3
tanh_shrink 2 8
squareplus 5 5
sparsemax 7 7
add subtract multiply divide true_divide divide_no_nan floor_divide mod fmod power square 1 1
negative absolute abs fabs sign maximum minimum fmax fmin clip heaviside ldexp nextafter angle diff 1 1
ceil floor round trunc 1 1
exp exp2 expm1 log log2 log10 log1p sqrt cbrt erf erfc erfinv sin cos tan arcsin arccos arctan arctan2 sinh cosh 1 1
arcsinh arccosh arctanh sinc reciprocal i0 deg2rad rad2deg 1 1
rsqrt 1 2
hypot 1 4
logaddexp logaddexp2 1 5
cross 3 3
polar 2 2
rgb_to_grayscale 5 5
"""
_COMPLEX = {"multiply": 6, "divide": 11, "true_divide": 11}
"""``(a + bi)(c + di)`` takes 4 multiplications and 2 additions; a division also 3 for ``c² + d²`` and 2 divisions."""
_RESIZED = {"nearest": 0, "bilinear": 7, "bicubic": 31, "lanczos3": 71, "lanczos5": 199}
"""So many neighbours are weighed: 4, 16, 36 and 100 multiplications, one addition less."""


def pointwise(flops: int, ops: int, complex_each: int = 2) -> KerasRule:
    """The rule of an operation that does this for each element of a floating-point result, and nothing for any other."""

    def rule(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
        tensor = first_tensor(output)
        count = elements(tensor) * (complex_each if is_complex(tensor) else 1)
        return (0, flops * count, ops * count) if arithmetic(tensor) else NOTHING

    return rule


def each_of() -> dict[str, tuple[int, int]]:
    """FLOPs and operations per element by name."""
    found = {}
    for line in _TABLE.split("\n"):
        *names, flops, ops = line.split() or ("0", "0")
        found.update(dict.fromkeys(names, (int(flops), int(ops))))
    return found


def _gelu(operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    count = elements(output)
    return 0, count, count * (15 if operation.approximate else 5)


def _rectified(operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """``ops.relu``, and ``activations.relu``, which may have a slope (a leaky one), a maximum (relu6) or a threshold."""
    settings = vars(operation)
    is_cut = settings.get("max_value") is not None or settings.get("threshold")
    each = 4 if settings.get("negative_slope") else 2 if is_cut else 1
    return pointwise(1, each)(operation, args, kwargs, output)


def _resize(operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    work = _RESIZED[operation.interpolation] * elements(output)
    return (0, work, work) if arithmetic(output) else NOTHING


ELEMENTWISE_RULES: dict[str, KerasRule] = {
    **{name: pointwise(flops, ops, _COMPLEX.get(name, 2)) for name, (flops, ops) in each_of().items()},
    "gelu": _gelu,
    "relu": _rectified,
    "resize": _resize,
}


# every rule takes an operation, its arguments, keyword arguments and result


def _matmul(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """Each output element is a sum over the last axis of the left operand, whatever is broadcast."""
    outputs = elements(output)
    left, right = shape_of(args[0]), shape_of(args[1])
    inner = left[-1] if left and right else 1
    return product(outputs * inner, outputs, output)


def _contracted(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """``tensordot``: every output element is a sum over the axes that both operands lose."""
    outputs = elements(output)
    inner = round((elements(args[0]) * elements(args[1]) / outputs) ** 0.5) if outputs else 0
    return product(outputs * inner, outputs, output)


def _outer(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """``outer`` and ``kron``."""
    return outer(elements(output), output)


def _einsum(operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    return einsum(operation.subscripts, [shape_of(operand) for operand in args], output)


def einsum(subscripts: str, shapes: Sequence[tuple[int, ...]], tensor: ShapedTensor) -> OperatorCost:
    """Operands are multiplied two by two from the left; what neither the others nor the result need is summed on the way.

    Args:
        subscripts: as ``numpy.einsum`` reads them.
        shapes: of the operands.
        tensor: what tells the data type.
    """
    labels, result = _labels(subscripts, shapes)
    sizes = {
        label: size
        for names, shape in zip(labels, shapes, strict=True)
        for label, size in zip(names, shape, strict=True)
    }
    total: OperatorCost = (0, 0, 0)
    current = labels[0]
    for position in range(1, len(labels)):
        joint = dict.fromkeys([*current, *labels[position]])
        needed = {*result, *(label for names in labels[position + 1 :] for label in names)}
        current = [label for label in joint if label in needed]
        outputs = prod(sizes[label] for label in current)
        if len(current) == len(joint):
            total = added(total, outer(outputs, tensor))
        else:
            total = added(total, product(prod(sizes[label] for label in joint), outputs, tensor))
    return total


def _labels(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[list[str]], list[str]]:
    """The labels of every operand and of the result, an ellipsis as labels of their own, numbered from the last axis."""
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    operands = given.split(",")
    widest = 0
    spelled = []
    for names, shape in zip(operands, shapes, strict=True):
        extra = len(shape) - len(names.replace("...", ""))
        widest = max(widest, extra if "..." in names else 0)
        spelled.append(_spelled(names, extra))
    if arrow:
        return spelled, _spelled(result, widest)
    every = [label for names in spelled for label in names]
    return spelled, [label for label in every if len(label) > 1 or every.count(label) == 1]


def _spelled(names: str, extra: int) -> list[str]:
    before, dots, behind = names.partition("...")
    return [*before, *(f"...{extra - i}" for i in range(extra if dots else 0)), *behind]


def _convolution(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """Kernel ``(*space, in/groups, out)``: each output element is a sum over space and its group's input channels.

    Products with padding are counted, as is usual.
    """
    outputs = elements(output)
    return product(outputs * prod(shape_of(args[1])[:-1]), outputs, output)


def _depthwise(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """Kernel ``(*space, in, multiplier)``: each output element is a sum over space alone."""
    outputs = elements(output)
    return product(outputs * prod(shape_of(args[1])[:-2]), outputs, output)


def _transposed(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """Kernel ``(*space, out, in)``: each input element is spread over space and the output channels."""
    return product(elements(args[0]) * prod(shape_of(args[1])[:-1]), elements(output), output)


def _attention(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """``(query (B, T, N, E), key (B, S, heads, E), value, bias, mask)``; with grouped queries the heads of q count.

    A causal mask saves nothing: what is masked is computed by the textbook's formula, and skipped only by some kernels.
    """
    query, key, value = (shape_of(tensor) for tensor in args[:3])
    masks = sum(given_or(kwargs, args, at, name) is not None for at, name in ((3, "bias"), (4, "mask")))
    rows = prod(query[:-1])
    return attended(rows * key[1], rows, query[-1], value[-1], output, masks=masks)


def _distances(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """A subtraction, a power and an addition for each coordinate of each pair; no multiply-accumulate."""
    work = 3 * elements(output) * shape_of(args[0])[-1]
    return 0, work, work


PRODUCT_RULES: dict[str, KerasRule] = {
    **dict.fromkeys(("matmul", "dot", "inner", "vdot"), _matmul),
    **dict.fromkeys(("outer", "kron"), _outer),
    "tensordot": _contracted,
    "einsum": _einsum,
    "conv": _convolution,
    "depthwise_conv": _depthwise,
    "conv_transpose": _transposed,
    "dot_product_attention": _attention,
    "c_dist": _distances,
}


# every rule takes an operation, its arguments, keyword arguments and result


def _batch_norm(operation: object, args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(x, mean, variance, offset, scale)``."""
    affine = any(given_or(kwargs, args, at, name) is not None for at, name in ((3, "offset"), (4, "scale")))
    return batch_normalised(elements(args[0]), elements(args[1]), affine=affine, training=False)


def length_along(shape: tuple[int, ...], axis: int | Iterable[int] | None) -> int:
    """Return the number of elements along one axis, several, or all."""
    axes = range(len(shape)) if axis is None else [axis] if isinstance(axis, int) else axis
    return prod(shape[at] for at in axes)


def _layer_norm(operation: keras.Operation, args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(x, gamma, beta)``."""
    length = length_along(shape_of(args[0]), operation.axis)
    rows = elements(args[0]) // length if length else 0
    weight, bias = (given_or(kwargs, args, at, name) is not None for at, name in ((1, "gamma"), (2, "beta")))
    if operation.rms_scaling:
        return root_mean_square(rows, length, weight=weight)
    return normalised(rows, length, weight=weight, bias=bias)


def _rms_norm(operation: keras.Operation, args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(x, scale)``."""
    length = length_along(shape_of(args[0]), operation.axis)
    rows = elements(args[0]) // length if length else 0
    return root_mean_square(rows, length, weight=given_or(kwargs, args, 1, "scale") is not None)


def _normalize(operation: keras.Operation, args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """A norm, its maximum with an epsilon, and a division."""
    count = elements(args[0])
    length = length_along(shape_of(args[0]), operation.axis)
    rows = count // length if length else 0
    return 0, 3 * count + rows, 3 * count + rows


def _softmax(operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    shape = shape_of(args[0])
    return softmaxed(elements(args[0]), length_along(shape, operation.axis)) if arithmetic(output) else NOTHING


def _log_softmax(operation: object, args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, a logarithm, subtract: 4n operations."""
    return 0, elements(args[0]), 4 * elements(args[0])


def _average_pool(operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """Every input is touched once (FLOPs); each output sums its window and divides (operations)."""
    size, spatial = operation.pool_size, len(shape_of(args[0])) - 2
    window = size**spatial if isinstance(size, int) else prod(size) if len(size) == spatial else size[0] ** spatial
    return (0, elements(args[0]), elements(output) * window) if arithmetic(output) else NOTHING


def _adaptive_average_pool(
    operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor
) -> OperatorCost:
    """Windows are ``floor(i·in/out) .. ceil((i+1)·in/out)`` along each axis."""
    given, made = shape_of(args[0]), shape_of(output)
    last = operation.data_format != "channels_first"
    spatial = range(1, len(given) - 1) if last else range(2, len(given))
    windows = [
        sum(ceil((i + 1) * given[at] / made[at]) - i * given[at] // made[at] for i in range(made[at])) for at in spatial
    ]
    return 0, prod(given), given[0] * given[-1 if last else 1] * prod(windows)


def _max_pool(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """Every input is touched once (FLOPs); finding a window's maximum is one operation."""
    return (0, elements(args[0]), elements(output)) if arithmetic(output) else NOTHING


def _folded(each: int, rest: int) -> KerasRule:
    """So many operations for each input and ``rest`` for each output."""

    def rule(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
        tensor = first_tensor(output)
        if not arithmetic(tensor):
            return NOTHING
        given, made = elements(args[0]) * parts(args[0]), elements(tensor) * parts(args[0])
        return 0, each * given, max(0, each * given + rest * made)

    return rule


def _average(operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """A mean; with weights each element is multiplied, and the weights are summed too."""
    each = 1 if given_or(kwargs, args, 1, "weights") is None else 3
    return _folded(each, 0)(operation, args, kwargs, output)


def _logsumexp(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, a logarithm, add the maximum."""
    given = elements(args[0])
    return 0, given, 3 * given + elements(output)


def _trace(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    length = min(shape_of(args[0])[-2:])
    count = elements(output) * length
    return (0, count, count - elements(output)) if arithmetic(output) else NOTHING


def _fourier(axes: int, is_real: bool) -> KerasRule:
    """``5 n log₂ n`` for a complex transform over n points (Cooley and Tukey), half of it where one side is real."""

    def rule(operation: object, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
        larger = max(shape_of(first_tensor(args[0])), shape_of(first_tensor(output)), key=prod)
        points = prod(larger[-axes:])
        work = round(prod(larger) * (2.5 if is_real else 5) * log2(points)) if points > 1 else 0
        return 0, work, work

    return rule


def _short_fourier(operation: keras.Operation, args: Args, kwargs: Kwargs, output: keras.KerasTensor) -> OperatorCost:
    """Every frame is multiplied by the window and transformed, of real numbers."""
    points = operation.fft_length
    frames = elements(first_tensor(output)) // (points // 2 + 1)
    work = round(frames * points * 2.5 * log2(points)) + frames * operation.sequence_length
    return 0, work, work


def _rules(function: KerasRule, names: str) -> dict[str, KerasRule]:
    return dict.fromkeys(names.split(), function)


REDUCTION_RULES: dict[str, KerasRule] = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "normalize": _normalize,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "average_pool": _average_pool,
    "adaptive_average_pool": _adaptive_average_pool,
    **_rules(_max_pool, "max_pool adaptive_max_pool"),
    **_rules(_folded(1, -1), "sum prod max min amax amin nansum nanprod nanmax nanmin"),
    **_rules(_folded(1, 0), "mean nanmean cumsum cumprod nancumsum nancumprod"),
    **_rules(_folded(1, 0), "segment_sum segment_max segment_min segment_prod segment_reduction"),
    **_rules(_folded(2, 0), "norm ptp"),
    **_rules(_folded(4, 0), "var std nanvar nanstd moments"),
    "average": _average,
    "logsumexp": _logsumexp,
    "trace": _trace,
    "fft": _fourier(1, False),
    **_rules(_fourier(2, False), "fft2 ifft2"),
    **_rules(_fourier(1, True), "rfft irfft"),
    "stft": _short_fourier,
}


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


COSTS: dict[str, KerasRule] = {**ELEMENTWISE_RULES, **REDUCTION_RULES, **PRODUCT_RULES}
"""Rule by the name of the operation's class in small letters, e.g. ``depthwise_conv``."""


PRODUCTS = frozenset("matmul dot inner vdot tensordot einsum conv depthwise_conv conv_transpose".split())
ATTENTION = "dot_product_attention"

BACKWARD_FLOPS_PER_INPUT = {
    **dict.fromkeys(("batch_norm", "layer_norm", "group_norm", "rms_norm"), 8),
    **dict.fromkeys(("max_pool", "average_pool", "adaptive_average_pool", "adaptive_max_pool", "resize"), 1),
    **dict.fromkeys(("mean", "max", "min", "amax", "amin", "prod", "dropout"), 1),
    **dict.fromkeys(("softmax", "log_softmax"), 4),
    **dict.fromkeys(("var", "std", "moments", "norm", "normalize", "logsumexp"), 4),
}
"""FLOPs for each element of the input."""
_ACTIVATIONS = "gelu silu hard_silu hard_sigmoid softplus mish squareplus"
BACKWARD_FLOPS_PER_OUTPUT = {
    **dict.fromkeys(("add", "subtract", "sum", "negative", "cumsum"), 0),
    **dict.fromkeys(("maximum", "minimum", "multiply", "outer", "kron"), 1),
    "prelu": 2,
    **dict.fromkeys(_ACTIVATIONS.split(), 6),
    **dict.fromkeys(("divide", "true_divide", "power"), 3),
}
"""FLOPs for each element of the result and operand that needs a gradient; other elementwise operations take 2."""
ELEMENTWISE_BACKWARD_FLOPS = 2
KEEPS_RESULT = frozenset("relu relu6 tanh sigmoid softmax log_softmax exp sqrt".split())
"""Operations whose backward reads what they returned; that of others reads what they were given."""
KEEPS_NOTHING = frozenset("add subtract sum mean negative".split())


FREE_FORWARD = {"take": 1}
"""FLOPs for each element of the result, of operations that have none forward: rows are added to their places."""
_FROZEN_NORM = 4


def backward_flops(
    name: str, cost: OperatorCost, given: tuple[int, ...], made: tuple[int, ...], needing: int, is_elementwise: bool
) -> int | None:
    """FLOPs beside those of products; None where they are not known.

    Args:
        cost: of the forward.
        given: shape of the first tensor.
        made: shape of the result.
        needing: how many operands need a gradient.
        is_elementwise: whether each element of the result comes from one of each operand.
    """
    if name == ATTENTION:
        return 4 * prod(given[:-1]) * given[1]
    if name in PRODUCTS:
        return 0
    if name == "batch_norm" and cost[1] <= 2 * prod(given):  # with statistics that are constants
        return _FROZEN_NORM * prod(given)
    if name in BACKWARD_FLOPS_PER_INPUT:
        return BACKWARD_FLOPS_PER_INPUT[name] * prod(given)
    if name in BACKWARD_FLOPS_PER_OUTPUT or is_elementwise:
        return BACKWARD_FLOPS_PER_OUTPUT.get(name, ELEMENTWISE_BACKWARD_FLOPS) * prod(made) * needing
    return None
