"""Counts the graph of an ONNX file as it was exported: before the run-time fuses and folds, which changes how it is computed.

Every node is counted by a definition of :mod:`sweeprof.counting.operators`, known to do no arithmetic, or listed as uncovered;
there is no silent zero. Loops and branches are uncovered: what they run is not known from shapes. A node whose shapes the
standard's rules do not tell is uncovered too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.onnxruntime.graph import OnnxNode, read
from sweeprof.counting import file_graph, mapping, operators
from sweeprof.counting.file_graph import GraphFacts, cost_by, is_added, module_table
from sweeprof.counting.formulas import Formulas, OperatorCost
from sweeprof.counting.operators import GRU, LSTM, RELU, TANH, RecurrentCell
from sweeprof.results.layers import LayerTable

VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}
"""Operators whose result is their input under another shape: no memory of its own."""


def count_file(
    file: Exported, shapes: Sequence[tuple[int, ...]], named: dict[str, tuple[int, ...]], formulas: Formulas
) -> LayerTable:
    """The layers of a file for inputs of these shapes, in their order and by name.

    Raises:
        Exception: it is no ONNX file.
    """
    facts = GraphFacts(file.types, file.weights, file.sizes, VIEWS, ("BatchNormalization",))
    return module_table(read(file, shapes, named), facts, partial(cost_of, formulas=formulas), "onnx")


def cost_of(node: OnnxNode, formulas: Formulas) -> OperatorCost | None:
    """Return the cost of a node, or None if it is unknown."""
    return cost_by(node, formulas, COSTS, FREE)


OnnxRule = Callable[[OnnxNode], OperatorCost]


_ELEMENTWISE = """
arithmetic: Add Sub Pow Mod Neg Abs Sign Clip Floor Ceil Round
multiply: Mul
divide: Div
function: Sqrt Exp Log Reciprocal Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh
relu: Relu
sigmoid: Sigmoid
tanh: Tanh
leaky_relu: LeakyRelu PRelu
elu: Elu Celu
softsign: Softsign
selu: Selu
softplus: Softplus
mish: Mish
hardsigmoid: HardSigmoid
silu: Swish
hardswish: HardSwish
hardtanh: ThresholdedRelu Shrink
"""


def _several(node: OnnxNode) -> OperatorCost:
    """``Sum``, ``Mean``, ``Max``, ``Min`` of any number of tensors."""
    made = node.result
    return operators.sum_of_tensors(len(node.inputs), made.elements, made.numbers, mean=node.op == "Mean")


def _grid_sample(node: OnnxNode) -> OperatorCost:
    """As a Resize with the same interpolation mode."""
    mode = file_graph.text_of(node, "mode", "linear")
    return file_graph.interpolation(mode, len(node.result.sizes) - 2, node.result)


def _attention(node: OnnxNode) -> OperatorCost:
    """``(batch, heads, L, E)``, or ``(batch, L, heads · E)`` with the heads as attributes; keys of the past are further keys."""
    query, key, value = (node.operand(position).sizes for position in range(3))
    heads = query[1] if len(query) == 4 else int(node.attributes["q_num_heads"])
    key_heads = key[1] if len(key) == 4 else int(node.attributes["kv_num_heads"])
    width = key[3] if len(key) == 4 else key[2] // key_heads
    value_width = value[3] if len(value) == 4 else value[2] // key_heads
    past = node.input(4)
    return operators.attention(
        query[0] * heads * query[-2],
        key[-2] + (past.sizes[2] if past is not None else 0),
        width,
        value_width,
        node.operand(0).numbers,
        masks=0 if node.input(3) is None else 1,
        capped=bool(node.attributes.get("softcap")),
    )


def _rows(node: OnnxNode) -> int:
    """Return the rows of an input that is normalised from an axis on."""
    sizes = node.operand(0).sizes
    return prod(sizes[: node.attributes.get("axis", -1) % len(sizes)])


def _layer_norm(node: OnnxNode) -> OperatorCost:
    return operators.normalisation(node.operand(0).elements, _rows(node), weight=True, bias=is_added(node.input(2)))


def _rms_norm(node: OnnxNode) -> OperatorCost:
    return operators.rms_norm(node.operand(0).elements, _rows(node), weight=True)


def _instance_norm(node: OnnxNode) -> OperatorCost:
    given = node.operand(0)
    return operators.normalisation(given.elements, prod(given.sizes[:2]), weight=True, bias=True)


def _softmax(node: OnnxNode) -> OperatorCost:
    return mapping.softmax(node, [node.attributes.get("axis", -1)])


def _fourier(node: OnnxNode) -> OperatorCost:
    """The last axis has the real and the imaginary parts."""
    sizes = node.result.sizes
    axis = node.input(2)
    points = sizes[int(axis.data if axis is not None else node.attributes.get("axis", -2))]
    return operators.fourier(prod(sizes[:-1]), points, is_real=node.operand(0).sizes[-1] != 2)


def _network(cell: RecurrentCell, node: OnnxNode) -> OperatorCost:
    """``X (steps, batch, I)``, ``W (directions, gates·H, I)``, ``R (directions, gates·H, H)``, ``B`` of both products."""
    directions, rows, size = node.operand(1).sizes
    given, hidden = node.operand(0), rows // cell.gates
    return operators.recurrent(
        cell,
        directions * given.elements // given.sizes[-1],
        size,
        hidden,
        hidden,
        2 if is_added(node.input(3)) else 0,
        peepholes=node.input(7) is not None,
    )


def _rnn(node: OnnxNode) -> OperatorCost:
    activation = node.attributes.get("activations", [b"Tanh"])[0]
    return _network(RELU if activation == b"Relu" else TANH, node)


_RULES: dict[str, OnnxRule] = {
    **mapping.elementwise_rules(_ELEMENTWISE),
    "Gelu": file_graph.gelu("approximate"),
    **mapping.named(_several, "Sum Mean Max Min"),
    **mapping.named(file_graph.resize, "Resize Upsample"),
    "GridSample": _grid_sample,
    "Gemm": file_graph.matmul("transA", bias=2),
    **mapping.named(file_graph.matmul(), "MatMul MatMulInteger"),
    "Conv": file_graph.convolution(1),
    "ConvInteger": file_graph.convolution(1, bias=4),
    "QLinearConv": file_graph.convolution(1, weight=3, bias=8),
    "ConvTranspose": file_graph.transposed_convolution(1),
    "Einsum": file_graph.einsum,
    "Attention": _attention,
    "BatchNormalization": file_graph.batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": file_graph.group_norm,
    "Softmax": _softmax,
    "LogSoftmax": mapping.log_softmax,
    "AveragePool": file_graph.average_pool("kernel_shape"),
    **mapping.named(mapping.max_pool, "MaxPool GlobalMaxPool"),
    **mapping.named(mapping.reduction("mean"), "GlobalAveragePool ReduceMean"),
    **mapping.named(mapping.reduction("sum"), "ReduceSum ReduceMax ReduceMin ReduceProd"),
    "ReduceL2": mapping.reduction("norm"),
    **mapping.named(mapping.reduction("sum_of_squares"), "ReduceL1 ReduceSumSquare"),
    "ReduceLogSum": mapping.reduction("log_sum"),
    "ReduceLogSumExp": mapping.logsumexp,
    **mapping.named(mapping.scan, "CumSum CumProd"),
    **mapping.named(file_graph.scatter, "ScatterElements ScatterND"),
    "DFT": _fourier,
    "RNN": _rnn,
    "GRU": partial(_network, GRU),
    "LSTM": partial(_network, LSTM),
}
COSTS: dict[str, OnnxRule] = {f"onnx::{name}": rule for name, rule in _RULES.items()}
"""Rule by qualified name, e.g. ``onnx::Conv``."""


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
"""Operators that move, choose, compare or make data."""
