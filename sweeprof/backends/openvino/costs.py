"""Maps the operators of OpenVINO's operation sets to the definitions of :mod:`sweeprof.counting.operators`.

Source: https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets.html
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from sweeprof.counting import mapping, operators
from sweeprof.counting.file_graph import FileOperator, FileTensor
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import GRU, INTEGER, LINEAR_BY_AXES, LSTM, NOTHING, RELU, TANH, RecurrentCell

Node = FileOperator[FileTensor]
OpenvinoRule = Callable[[Node], OperatorCost]

_ELEMENTWISE = """
arithmetic: Add Subtract Power Mod FloorMod Negative Abs Sign Clamp Floor Ceiling Round Maximum Minimum
multiply: Multiply
divide: Divide
function: Sqrt Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh
relu: Relu ReLU
sigmoid: Sigmoid
tanh: Tanh
leaky_relu: PRelu PReLU
elu: Elu
softsign: SoftSign
selu: Selu
softplus: SoftPlus
mish: Mish
hardsigmoid: HardSigmoid HSigmoid
silu: Swish
hardswish: HSwish
squared_difference: SquaredDifference
"""


def _gelu(node: Node) -> OperatorCost:
    is_tanh = str(node.attributes.get("approximation_mode", "")).lower() == "tanh"
    return operators.elementwise("gelu_tanh" if is_tanh else "gelu", node.result.elements, node.result.numbers)


def _matmul(node: Node) -> OperatorCost:
    sizes = node.operand(0).sizes
    inner = sizes[-2] if node.attributes.get("transpose_a") and len(sizes) > 1 else sizes[-1]
    return operators.matmul(node.result.elements, inner, node.result.numbers)


def _convolution(first: int) -> OpenvinoRule:
    """Return the rule of a convolution, the sizes of whose weight have those of its window from ``first`` on."""

    def rule(node: Node) -> OperatorCost:
        return operators.convolution(node.result.elements, prod(node.operand(1).sizes[first:]), node.result.numbers)

    return rule


def _transposed(first: int) -> OpenvinoRule:
    """Return the same of a transposed convolution."""

    def rule(node: Node) -> OperatorCost:
        inputs, window = node.operand(0).elements, prod(node.operand(1).sizes[first:])
        return operators.transposed_convolution(inputs, window, node.result.elements, node.result.numbers)

    return rule


def _einsum(node: Node) -> OperatorCost:
    shapes = [value.sizes for value in node.inputs if value is not None]
    return operators.einsum(node.attributes["equation"], shapes, node.result.elements, node.result.numbers)


def _attention(node: Node) -> OperatorCost:
    """``(batch, …, heads, L, E)``; the mask may be a scalar that stands for none."""
    query, key, value = (node.operand(position).sizes for position in range(3))
    mask = node.input(3)
    masks = int(bool(node.attributes.get("causal")) or (mask is not None and bool(mask.sizes)))
    return operators.attention(prod(query[:-1]), key[-2], query[-1], value[-1], node.operand(0).numbers, masks=masks)


def _batch_norm(node: Node) -> OperatorCost:
    """``(X, scale, B, mean, variance)``."""
    return operators.batch_norm(node.operand(0).elements, node.operand(1).elements, affine=True, training=False)


def _mean_variance_norm(node: Node) -> OperatorCost:
    """Weight and bias are operators of their own."""
    given, axes = node.operand(0), node.input(1)
    if axes is None or axes.data is None:
        return operators.normalisation(given.elements, prod(given.sizes[:2]), weight=False, bias=False)
    length = prod(given.sizes[int(axis)] for axis in axes.data.ravel())
    return operators.normalisation(given.elements, given.elements // max(1, length), weight=False, bias=False)


def _group_norm(node: Node) -> OperatorCost:
    given = node.operand(0)
    rows = given.sizes[0] * int(node.attributes["num_groups"])
    return operators.normalisation(given.elements, rows, weight=True, bias=True)


def _softmax(node: Node) -> OperatorCost:
    return mapping.softmax(node, [node.attributes.get("axis", 1)])


def _average_pool(node: Node) -> OperatorCost:
    return operators.average_pool(node.operand(0).elements, node.result.elements, prod(node.attributes["kernel"]))


def _adaptive_average_pool(node: Node) -> OperatorCost:
    given, made = node.operand(0).sizes, node.result.sizes
    return operators.adaptive_average_pool(given[2:], made[2:], prod(made[:2]))


def _interpolated(node: Node) -> OperatorCost:
    changed = sum(a != b for a, b in zip(node.operand(0).sizes, node.result.sizes, strict=True))
    if not changed:
        return NOTHING
    mode = str(node.attributes.get("mode", "nearest"))
    kinds = ("nearest",) * 3 if mode == "nearest" else ("bicubic",) * 3 if "cubic" in mode else LINEAR_BY_AXES
    return operators.elementwise(kinds[min(changed, 3) - 1], node.result.elements, node.result.numbers)


def _scatter(node: Node) -> OperatorCost:
    """Only moves, unless it is to reduce."""
    updates = node.operand(2)
    reduces = str(node.attributes.get("reduction", "none")) != "none"
    return operators.scan(updates.elements) if reduces and updates.numbers is not INTEGER else NOTHING


def _network(node: Node, cell: RecurrentCell, weight: int) -> OperatorCost:
    """``X (batch, steps, I)``, at ``weight`` ``W (directions, gates·H, I)``; then R, and one bias for both products."""
    sizes = node.operand(weight).sizes
    directions, hidden = (sizes[0] if len(sizes) == 3 else 1), int(node.attributes["hidden_size"])
    steps = node.operand(0).elements // sizes[-1]
    return operators.recurrent(cell, directions * steps, sizes[-1], hidden, hidden, 1)


def _recurrent(cell: RecurrentCell, weight: int) -> OpenvinoRule:
    return lambda node: _network(node, cell, weight)


def _rnn(weight: int) -> OpenvinoRule:
    return lambda node: _network(node, RELU if "relu" in node.attributes.get("activations", []) else TANH, weight)


_RULES: dict[str, OpenvinoRule] = {
    **mapping.elementwise_rules(_ELEMENTWISE),
    "Gelu": _gelu,
    "MatMul": _matmul,
    "Convolution": _convolution(1),
    "GroupConvolution": _convolution(2),
    "ConvolutionBackpropData": _transposed(1),
    "GroupConvolutionBackpropData": _transposed(2),
    "Einsum": _einsum,
    "ScaledDotProductAttention": _attention,
    "BatchNormInference": _batch_norm,
    "MVN": _mean_variance_norm,
    "GroupNormalization": _group_norm,
    "Softmax": _softmax,
    "LogSoftmax": mapping.log_softmax,
    "AvgPool": _average_pool,
    "AdaptiveAvgPool": _adaptive_average_pool,
    **mapping.named(mapping.max_pool, "MaxPool AdaptiveMaxPool"),
    "ReduceMean": mapping.reduction("mean"),
    **mapping.named(mapping.reduction("sum"), "ReduceSum ReduceMax ReduceMin ReduceProd"),
    "ReduceL1": mapping.reduction("sum_of_squares"),
    "ReduceL2": mapping.reduction("norm"),
    "Interpolate": _interpolated,
    "CumSum": mapping.scan,
    **mapping.named(_scatter, "ScatterElementsUpdate ScatterNDUpdate"),
    "LSTMSequence": _recurrent(LSTM, 4),
    "LSTMCell": _recurrent(LSTM, 3),
    "GRUSequence": _recurrent(GRU, 3),
    "GRUCell": _recurrent(GRU, 2),
    "RNNSequence": _rnn(3),
    "RNNCell": _rnn(2),
}
COSTS: dict[str, OpenvinoRule] = {f"openvino::{name}": rule for name, rule in _RULES.items()}
"""Rule by qualified name, e.g. ``openvino::Convolution``."""

FREE = frozenset(
    f"openvino::{name}"
    for name in """
    Convert ConvertLike ConvertPromoteTypes Reshape Squeeze Unsqueeze Transpose Concat Split VariadicSplit Slice StridedSlice
    SliceScatter Gather GatherElements GatherND GatherTree Broadcast Tile Pad DepthToSpace SpaceToDepth SpaceToBatch BatchToSpace
    ShuffleChannels ShapeOf Range OneHot Eye Roll Reverse ReverseSequence NonZero Unique Select ScatterUpdate ExtractImagePatches
    Identity Equal NotEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalXor LogicalNot IsNaN IsInf IsFinite
    ReduceLogicalAnd ReduceLogicalOr BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift
    TopK ArgMax NonMaxSuppression Bucketize SearchSorted RandomUniform Multinomial FakeQuantize FakeConvert
    ReadValue Assign
    """.split()
)
"""Operators that move, choose, compare or make data."""
