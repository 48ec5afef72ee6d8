"""The cost of each operator of the ONNX standard: multiply-accumulates, floating-point operations and textbook operations.

The definitions are those of docs/counting.md, by the operators' ONNX names; a rule is a function of a node, whose shapes are known:

    def matmul(node) -> (macs, flops, ops)
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod

from sweeprof.backends.onnxruntime.graph import OnnxNode, OnnxValue
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.recurrent_cells import GRU, LSTM, RELU, TANH, RecurrentCell, cost_of_steps

OnnxRule = Callable[[OnnxNode], OperatorCost]

NOTHING: OperatorCost = (0, 0, 0)


def argument(node: OnnxNode, position: int = 0) -> OnnxValue:
    """An input that every node of the operator has."""
    value = node.input(position)
    assert value is not None
    return value


def shape_of(value: OnnxValue) -> tuple[int, ...]:
    """The shape, which is known of every node that is counted."""
    assert value.shape is not None
    return value.shape


def product(macs: int, outputs: int, result: OnnxValue, *, bias: bool) -> OperatorCost:
    """``outputs`` sums that take ``macs`` products together, each begun by its bias where there is one.

    A sum of n products takes n - 1 additions, with a bias n. On integers there are operations, but no FLOPs.
    """
    if not macs:
        return 0, outputs if bias and result.is_floating else 0, 0
    flops = 2 * macs + (outputs if bias else 0) if result.is_floating else 0
    return macs, flops, 2 * macs - (0 if bias else outputs)


def is_added(bias: OnnxValue | None) -> bool:
    """True if there is a bias; torch's exporter puts constant zeros where a convolution has none."""
    return bias is not None and (bias.data is None or bool(bias.data.any()))


_TABLE = """
Relu 1 1
Sigmoid 1 3
Tanh 1 7
LeakyRelu PRelu 1 4
Elu Celu Softsign 1 3
Selu 1 7
Softplus 1 5
Mish 1 13
HardSigmoid Swish 1 4
HardSwish 1 5
ThresholdedRelu Shrink 1 2
Add Sub Mul Div Pow Mod Neg Abs Sign Clip 1 1
Sqrt Exp Log Reciprocal Floor Ceil Round Erf 1 1
Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh 1 1
"""
"""FLOPs and operations per element, behind the operators they hold for."""
_RESIZED = {b"nearest": (0, 0, 0), b"linear": (3, 7, 15), b"cubic": (31, 31, 31)}
"""FLOPs per element by mode and how many axes are resized, 1 to 3: bilinear interpolation weighs 4 neighbours."""


def pointwise(flops: int, ops: int) -> OnnxRule:
    """The rule of an operator that does this for each element of a floating-point result, and nothing for any other."""

    def rule(node: OnnxNode) -> OperatorCost:
        result = node.outputs[0]
        return (0, flops * result.elements, ops * result.elements) if result.is_floating else NOTHING

    return rule


def _table() -> dict[str, OnnxRule]:
    rules = {}
    for line in _TABLE.split("\n"):
        *names, flops, ops = line.split() or ("0", "0")
        rules.update({f"onnx::{name}": pointwise(int(flops), int(ops)) for name in names})
    return rules


def _gelu(node: OnnxNode) -> OperatorCost:
    """With ``approximate='tanh'``: ``x/2·(1 + tanh(√(2/π)·(x + 0.0447·x³)))``, else ``x/2·(1 + erf(x/√2))``."""
    elements = node.outputs[0].elements
    return 0, elements, elements * (15 if node.attributes.get("approximate") == b"tanh" else 5)


def _several(node: OnnxNode) -> OperatorCost:
    """``Sum``, ``Max``, ``Min`` of any number of tensors."""
    result = node.outputs[0]
    work = (len(node.inputs) - 1) * result.elements
    return (0, work, work) if result.is_floating else NOTHING


def _mean(node: OnnxNode) -> OperatorCost:
    result = node.outputs[0]
    work = len(node.inputs) * result.elements
    return (0, work, work) if result.is_floating else NOTHING


def _resize(node: OnnxNode) -> OperatorCost:
    result, shapes = node.outputs[0], (argument(node).shape or (), node.outputs[0].shape or ())
    changed = sum(a != b for a, b in zip(*shapes, strict=True))
    if not changed or not result.is_floating:
        return NOTHING
    work = _RESIZED[node.attributes.get("mode", b"nearest")][min(changed, 3) - 1] * result.elements
    return 0, work, work


def _grid_sample(node: OnnxNode) -> OperatorCost:
    """Return the cost of a Resize with the same interpolation mode."""
    mode = node.attributes.get("mode", b"linear").replace(b"bi", b"")
    work = _RESIZED[mode][len(node.outputs[0].shape or ()) - 3] * node.outputs[0].elements
    return 0, work, work


ELEMENTWISE_RULES: dict[str, OnnxRule] = {
    **_table(),
    "onnx::Gelu": _gelu,
    **dict.fromkeys(("onnx::Sum", "onnx::Max", "onnx::Min"), _several),
    "onnx::Mean": _mean,
    "onnx::Resize": _resize,
    "onnx::Upsample": _resize,
    "onnx::GridSample": _grid_sample,
}


def _gemm(node: OnnxNode) -> OperatorCost:
    """``Y = A B + C``; the scalars alpha and beta are left out."""
    left, result = shape_of(argument(node)), node.outputs[0]
    inner = left[0] if node.attributes.get("transA") else left[1]
    return product(result.elements * inner, result.elements, result, bias=is_added(node.input(2)))


def _matmul(node: OnnxNode) -> OperatorCost:
    """Each output element is a sum over the last axis of the left operand, whatever is broadcast."""
    result = node.outputs[0]
    return product(result.elements * shape_of(argument(node))[-1], result.elements, result, bias=False)


def _convolution(weight: int, bias: int) -> OnnxRule:
    """Each output element is a sum over the kernel and its group's input channels: weight ``(out, in/groups, *kernel)``.

    Products with padding are counted, as is usual.
    """

    def rule(node: OnnxNode) -> OperatorCost:
        result = node.outputs[0]
        each = prod(shape_of(argument(node, weight))[1:])
        return product(result.elements * each, result.elements, result, bias=is_added(node.input(bias)))

    return rule


def _transposed(node: OnnxNode) -> OperatorCost:
    """Each input element is spread over the kernel and its group's output channels: weight ``(in, out/groups, *kernel)``."""
    result = node.outputs[0]
    macs = argument(node).elements * prod(shape_of(argument(node, 1))[1:])
    return product(macs, result.elements, result, bias=is_added(node.input(2)))


def _einsum(node: OnnxNode) -> OperatorCost:
    """From left to right, two operands at a time; each such product takes every index of the two once."""
    terms, arrow, target = node.attributes["equation"].decode().replace(" ", "").partition("->")
    operands = [_sizes(term, value) for term, value in zip(terms.split(","), node.inputs, strict=True) if value]
    wanted = set(target) if arrow else {label for label in terms if terms.count(label) == 1}
    if len(operands) == 1:
        return _summed(node)
    result, left, total = node.outputs[0], operands[0], (0, 0, 0)
    for index, right in enumerate(operands[1:], start=2):
        joint = {label: max(left.get(label, 1), right.get(label, 1)) for label in {**left, **right}}
        later = {label for operand in operands[index:] for label in operand}
        left = {label: size for label, size in joint.items() if label in later | wanted or label.startswith(".")}
        outputs = prod(left.values())
        if left == joint:  # an outer product: nothing is summed
            macs, flops, ops = 0, outputs if result.is_floating else 0, outputs
        else:
            macs, flops, ops = product(prod(joint.values()), outputs, result, bias=False)
        total = (total[0] + macs, total[1] + flops, total[2] + ops)
    return total


def _summed(node: OnnxNode) -> OperatorCost:
    """An operand by itself is turned, or summed over what the result has not."""
    value, result = argument(node), node.outputs[0]
    work = value.elements if result.elements < value.elements and result.is_floating else 0
    return 0, work, max(0, work - result.elements)


def _sizes(term: str, value: OnnxValue) -> dict[str, int]:
    """Size by label; what the dots stand for is labelled ``.0``, ``.1`` … from the last."""
    shape = shape_of(value)
    extra = len(shape) - len(term.replace("...", ""))
    before, dots, after = term.partition("...")
    labels = [*before, *(f".{extra - 1 - i}" for i in range(extra) if dots), *after]
    return dict(zip(labels, shape, strict=True))


def _attention(node: OnnxNode) -> OperatorCost:
    """``softmax(Q Kᵀ · scale + mask) V`` for ``(batch, heads, L, E)``, or ``(batch, L, heads · E)`` with the heads as attributes.

    With fewer heads of keys than of queries each is used by several: the heads of the queries count. A causal mask saves nothing.
    """
    query, key, value = (shape_of(argument(node, position)) for position in range(3))
    heads = query[1] if len(query) == 4 else int(node.attributes["q_num_heads"])
    key_heads = key[1] if len(key) == 4 else int(node.attributes["kv_num_heads"])
    width, value_width = (
        shape[3] if len(shape) == 4 else shape[2] // count for shape, count in ((key, key_heads), (value, key_heads))
    )
    past = node.input(4)
    keys = key[-2] + (shape_of(past)[2] if past is not None else 0)
    rows = query[0] * heads * query[-2]
    scores = rows * keys
    macs, flops, ops = product(scores * (width + value_width), scores + rows * value_width, argument(node), bias=False)
    masked = scores if node.input(3) is not None else 0
    capped = 3 * scores if node.attributes.get("softcap") else 0  # a division, a tanh, a multiplication
    softmax = rows * max(0, 4 * keys - 1)
    return macs, flops + 2 * scores + masked + capped, ops + scores + masked + capped + softmax


PRODUCT_RULES: dict[str, OnnxRule] = {
    "onnx::Gemm": _gemm,
    "onnx::MatMul": _matmul,
    "onnx::MatMulInteger": _matmul,
    "onnx::Conv": _convolution(1, 2),
    "onnx::ConvInteger": _convolution(1, 4),
    "onnx::QLinearConv": _convolution(3, 8),
    "onnx::ConvTranspose": _transposed,
    "onnx::Einsum": _einsum,
    "onnx::Attention": _attention,
}


def _batch_norm(node: OnnxNode) -> OperatorCost:
    """``(X, scale, B, mean, variance)``; as mean and deviation are constants, a scale and a shift: 2 FLOPs an element."""
    elements, channels = argument(node).elements, argument(node, 1).elements
    if node.attributes.get("training_mode"):
        return 0, 5 * elements, 7 * elements + 4 * channels
    return 0, 2 * elements, 4 * elements + 2 * channels


def _normalised(rows: int, elements: int, *, weight: bool, bias: bool) -> OperatorCost:
    """Rows that are normalised by their own mean and variance."""
    return 0, (5 if weight else 4) * elements, (5 + weight + bias) * elements + 4 * rows


def _layer_norm(node: OnnxNode) -> OperatorCost:
    shape = shape_of(argument(node))
    rows = prod(shape[: node.attributes.get("axis", -1) % len(shape)])
    return _normalised(rows, argument(node).elements, weight=True, bias=is_added(node.input(2)))


def _rms_norm(node: OnnxNode) -> OperatorCost:
    """Squares, their mean, a root, a division, and a multiplication by the weight."""
    shape, elements = shape_of(argument(node)), argument(node).elements
    rows = prod(shape[: node.attributes.get("axis", -1) % len(shape)])
    return 0, 4 * elements, 4 * elements + 2 * rows


def _instance_norm(node: OnnxNode) -> OperatorCost:
    batch, channels = shape_of(argument(node))[:2]
    return _normalised(batch * channels, argument(node).elements, weight=True, bias=True)


def _group_norm(node: OnnxNode) -> OperatorCost:
    rows = shape_of(argument(node))[0] * int(node.attributes["num_groups"])
    return _normalised(rows, argument(node).elements, weight=True, bias=True)


def _softmax(node: OnnxNode) -> OperatorCost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, divide: 4n - 1 operations; one FLOP an element."""
    value = argument(node)
    length = shape_of(value)[node.attributes.get("axis", -1)] if value.shape else 1
    return 0, value.elements, (value.elements // length) * (4 * length - 1) if length else 0


def _log_softmax(node: OnnxNode) -> OperatorCost:
    """One more, a logarithm."""
    return 0, argument(node).elements, 4 * argument(node).elements


def _average_pool(node: OnnxNode) -> OperatorCost:
    """Every input is touched once (FLOPs); each output sums its window and divides (operations)."""
    return 0, argument(node).elements, node.outputs[0].elements * prod(node.attributes["kernel_shape"])


def _max_pool(node: OnnxNode) -> OperatorCost:
    """Every input is touched once (FLOPs); finding a window's maximum is one operation."""
    result = node.outputs[0]
    return (0, argument(node).elements, result.elements) if result.is_floating else NOTHING


def _folded(each: int, rest: int) -> OnnxRule:
    """So many operations for each input, and ``rest`` for each output."""

    def rule(node: OnnxNode) -> OperatorCost:
        value, result = argument(node), node.outputs[0]
        if not result.is_floating:
            return NOTHING
        work = each * value.elements
        return 0, work, max(0, work + rest * result.elements)

    return rule


def _scan(node: OnnxNode) -> OperatorCost:
    result = node.outputs[0]
    return (0, result.elements, result.elements) if result.is_floating else NOTHING


def _log_sum_exp(node: OnnxNode) -> OperatorCost:
    """Subtract the maximum, exponentiate, add up, a logarithm, add the maximum."""
    value = argument(node).elements
    return 0, value, 3 * value + node.outputs[0].elements


def _scatter(node: OnnxNode) -> OperatorCost:
    """Only moves, unless it is to reduce."""
    updates = argument(node, 2)
    reduces = node.attributes.get("reduction", b"none") != b"none"
    return (0, updates.elements, updates.elements) if reduces and updates.is_floating else NOTHING


def _fourier(node: OnnxNode) -> OperatorCost:
    """``5 n log₂ n`` for a complex transform over n points (Cooley and Tukey), half of it for real numbers.

    The last axis has the real and the imaginary parts.
    """
    shape = shape_of(node.outputs[0])
    axis = argument(node, 2).data if node.input(2) is not None else node.attributes.get("axis", -2)
    points = shape[int(axis)]
    each = 5 if shape_of(argument(node))[-1] == 2 else 2.5
    work = round(each * prod(shape[:-1]) * log2(points)) if points > 1 else 0
    return 0, work, work


def _rules(function: OnnxRule, names: str) -> dict[str, OnnxRule]:
    return {f"onnx::{name}": function for name in names.split()}


REDUCTION_RULES: dict[str, OnnxRule] = {
    **_rules(_batch_norm, "BatchNormalization"),
    **_rules(_layer_norm, "LayerNormalization"),
    **_rules(_rms_norm, "RMSNormalization"),
    **_rules(_instance_norm, "InstanceNormalization"),
    **_rules(_group_norm, "GroupNormalization"),
    **_rules(_softmax, "Softmax"),
    **_rules(_log_softmax, "LogSoftmax"),
    **_rules(_average_pool, "AveragePool"),
    **_rules(_max_pool, "MaxPool GlobalMaxPool"),
    **_rules(_folded(1, 0), "GlobalAveragePool ReduceMean"),
    **_rules(_folded(1, -1), "ReduceSum ReduceMax ReduceMin ReduceProd"),
    **_rules(_folded(2, 0), "ReduceL2"),
    **_rules(_folded(2, -1), "ReduceL1 ReduceSumSquare"),
    **_rules(_folded(1, 1), "ReduceLogSum"),
    **_rules(_log_sum_exp, "ReduceLogSumExp"),
    **_rules(_scan, "CumSum CumProd"),
    **_rules(_scatter, "ScatterElements ScatterND"),
    **_rules(_fourier, "DFT"),
}


def _network(cell: RecurrentCell, node: OnnxNode) -> OperatorCost:
    """Inputs ``X (steps, batch, I)``, ``W (directions, gates·H, I)``, ``R (directions, gates·H, H)``, ``B`` of both products."""
    directions, rows, size = shape_of(argument(node, 1))
    hidden = rows // cell.gates
    steps = directions * argument(node).elements // shape_of(argument(node))[-1]
    macs, flops, ops = cost_of_steps(cell, steps, size, hidden, hidden, 2 if is_added(node.input(3)) else 0)
    # each of an LSTM's three: a multiplication and an addition
    peepholes = 2 * 3 * steps * hidden if node.input(7) is not None else 0
    return macs, flops + peepholes, ops + peepholes


def _rnn(node: OnnxNode) -> OperatorCost:
    named = [name.decode() for name in node.attributes.get("activations", [b"Tanh"])]
    return _network(RELU if named[0] == "Relu" else TANH, node)


def _gru(node: OnnxNode) -> OperatorCost:
    return _network(GRU, node)


def _lstm(node: OnnxNode) -> OperatorCost:
    return _network(LSTM, node)


RECURRENT_RULES: dict[str, OnnxRule] = {"onnx::RNN": _rnn, "onnx::GRU": _gru, "onnx::LSTM": _lstm}


FREE = frozenset(
    f"onnx::{name}"
    for name in """
    Identity Cast CastLike BitCast Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Gather GatherElements GatherND
    Expand Tile Pad CenterCropPad DepthToSpace SpaceToDepth Shape Size Constant ConstantOfShape EyeLike Range OneHot Trilu
    ReverseSequence Compress Unique NonZero Where Dropout MaxUnpool TensorScatter
    Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift
    ArgMax ArgMin TopK Hardmax NonMaxSuppression
    RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial HannWindow HammingWindow BlackmanWindow
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear
    SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence ConcatFromSequence
    Optional OptionalGetElement OptionalHasElement
    """.split()
)


COSTS: dict[str, OnnxRule] = {
    **ELEMENTWISE_RULES,
    **REDUCTION_RULES,
    **PRODUCT_RULES,
    **RECURRENT_RULES,
}
"""Rule by qualified name, e.g. ``onnx::Conv``."""
