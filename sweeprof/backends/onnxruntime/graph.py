"""Reads the graph of an ONNX file as plain data, with the shapes of all values for inputs of given shapes.

The values of large initializers are not read. Node by node, small results that depend on constants alone are computed, as shapes
are computed from shapes; the shapes of all others are inferred, once for equal nodes with equal inputs. The ONNX standard has
shape rules for most operators. This file has those of others, and the costs of the operators that ONNX Runtime adds to the
standard, which its optimisers, its quantisation and exporters of decoders write. A shape without a rule stays unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from graphlib import TopologicalSorter
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from sweeprof.backends import AnyArray, Shape, by_name
from sweeprof.backends.onnxruntime.files import Exported, without_weights
from sweeprof.counting import file_graph, operators
from sweeprof.counting.file_graph import (
    QUANTISED,
    CallTensor,
    FileGraph,
    OperatorCall,
    elementwise,
    is_added,
    itemsize,
    numbers_of,
)
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import INTEGER, REAL, Numbers, added
from sweeprof.results.layer_times import ROOT

ContribNode = OperatorCall[Any]
Typed = tuple[CallTensor | int, Shape]
"""The shape of a result, and the operand that has the same type of elements, or the type itself as ``TensorProto.DataType``."""
ShapeRule = Callable[[ContribNode], Sequence[Typed]]
ContribRule = Callable[[ContribNode], OperatorCost | None]
MICROSOFT = "com.microsoft"


# ---------------------------------------------------------------------------------------------------------------
# Shapes of the results of operators that ONNX does not infer
# ---------------------------------------------------------------------------------------------------------------


def like_first(node: ContribNode) -> Sequence[Typed]:
    """Return the shape of the first operand for the first result."""
    first = node.operand(0)
    return [(first, first.sizes)]


OPSET = 13
"""Version of the standard's operators, whose attributes ONNX Runtime's have."""


def like_standard(op: str, operands: Sequence[int], node: ContribNode, *, typed: int | None = None) -> Sequence[Typed]:
    """Return the shape that ONNX infers for the result of an operator of the standard.

    Args:
        op: the operator of the standard.
        operands: positions of its operands among those of ``node``.
        node: of ONNX Runtime's operator.
        typed: position of the operand that has the type of the result; None: the first of ``operands``.
    """
    if node.attributes.get("channels_last"):
        return []
    schema = onnx.defs.get_schema(op, OPSET)
    attributes = {name: value for name, value in node.attributes.items() if name in schema.attributes}
    types = {}
    for position in operands:
        types[f"x{position}"] = tensor_type(TensorProto.FLOAT, node.operand(position).sizes)
    call = helper.make_node(op, [*types], ["y"], **attributes)
    _, shape = type_and_shape(infer_node_outputs(schema, call, types)["y"])
    if not shape:
        return []
    if typed is None:
        typed = operands[0]
    return [(node.operand(typed), shape)]


def concatenated(node: ContribNode) -> Sequence[Typed]:
    """``(scale, zero point, and for each operand X, scale, zero point)``."""
    return like_standard("Concat", range(2, len(node.inputs), 3), node)


def factors(node: ContribNode) -> list[Shape]:
    """Return the shapes of both operands of FusedMatMul as they are multiplied."""
    found = []
    for position, name in enumerate("AB"):
        sizes = node.operand(position).sizes
        if node.attributes.get(f"transBatch{name}"):
            sizes = (*sizes[1:-1], sizes[0], sizes[-1])
        if node.attributes.get(f"trans{name}") and len(sizes) > 1:
            sizes = (*sizes[:-2], sizes[-1], sizes[-2])
        found.append(sizes)
    return found


def fused_matmul_shape(node: ContribNode) -> Sequence[Typed]:
    """Return the shape of a product whose leading axes are broadcast."""
    first, second = factors(node)
    if len(second) == 1:
        return [(node.operand(0), first[:-1])]
    batch = np.broadcast_shapes(first[:-2], second[:-2])
    return [(node.operand(0), (*batch, *first[-2:-1], second[-1]))]


def block_product_shape(node: ContribNode) -> Sequence[Typed]:
    """The attribute ``N`` has the size of the last axis."""
    given = node.operand(0)
    return [(given, (*given.sizes[:-1], int(node.attributes["N"])))]


def embedding_norm_shape(node: ContribNode) -> Sequence[Typed]:
    """``(ids, …, table of words)``."""
    ids, table = node.operand(0), node.operand(2)
    made = (*ids.sizes, table.sizes[1])
    return [(table, made), (ids, ids.sizes[:1]), (table, made)]


def skip_norm_shape(node: ContribNode) -> Sequence[Typed]:
    """Of the results the mean, the deviation, and the sum that is normalised are optional."""
    given = node.operand(0)
    statistic = (given, (*given.sizes[:-1], 1))
    return [(given, given.sizes), statistic, statistic, (given, given.sizes)]


def like_first_typed(typed: int, node: ContribNode) -> Sequence[Typed]:
    """Return the shape of the first operand with the type of another one, such as the zero point or the scale."""
    return [(node.operand(typed), node.operand(0).sizes)]


def table_sizes(node: ContribNode) -> Shape:
    """Return the shape of the table that GatherBlockQuantized reads; numbers of four bits may be two in a byte."""
    table = node.operand(0)
    packed = 1
    if table.dtype == "uint8":
        packed = 8 // int(node.attributes.get("bits", 4))
    return (*table.sizes[:-1], table.sizes[-1] * packed)


def blocked_gather_shape(node: ContribNode) -> Sequence[Typed]:
    """Rows of a quantised table: ``(data, indices, scales)``."""
    rows = table_sizes(node)
    axis = int(node.attributes.get("gather_axis", 0)) % len(rows)
    return [(node.operand(2), (*rows[:axis], *node.operand(1).sizes, *rows[axis + 1 :]))]


def quantised_lstm_shape(node: ContribNode) -> Sequence[Typed]:
    """``X (steps, batch, I)`` and ``W (directions, I, 4 H)``."""
    given = node.operand(0)
    directions, hidden = node.operand(1).sizes[0], int(node.attributes["hidden_size"])
    steps, batch = given.sizes[:2]
    state = (given, (directions, batch, hidden))
    return [(given, (steps, directions, batch, hidden)), state, state]


def short_fourier_shape(node: ContribNode) -> Sequence[Typed]:
    """``(signal, step, window, length of a frame)``; half of the points, unless an attribute says all."""
    signal, step, window = node.operand(0), node.operand(1), node.input(2)
    points = window.elements if window is not None else int(node.operand(3).data)
    frames = (signal.sizes[1] - points) // int(step.data) + 1
    bins = points // 2 + 1 if node.attributes.get("onesided", 1) else points
    return [(signal, (signal.sizes[0], frames, bins, 2))]


def compressed_shape(node: ContribNode) -> Sequence[Typed]:
    """As many as the condition holds for, of an axis or of all elements; its values must be known."""
    given, kept = node.operand(0), int(np.count_nonzero(node.operand(1).data))
    if "axis" not in node.attributes:
        return [(given, (kept,))]
    axis = int(node.attributes["axis"]) % len(given.sizes)
    return [(given, (*given.sizes[:axis], kept, *given.sizes[axis + 1 :]))]


# ---------------------------------------------------------------------------------------------------------------
# Attention
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heads:
    """The sizes of an attention."""

    batch: int
    heads: int
    queries: int
    keys: int
    """With those of the past."""
    width: int
    value_width: int

    def cost(self, node: ContribNode, masks: Sequence[int]) -> OperatorCost:
        """Return the cost of the scores and the weighted sums.

        Args:
            node: of the attention.
            masks: positions of what is added to the scores, or chooses among them.
        """
        rows = self.batch * self.heads * self.queries
        given = sum(node.input(position) is not None for position in masks)
        capped = bool(node.attributes.get("softcap"))
        return operators.attention(rows, self.keys, self.width, self.value_width, REAL, masks=given, capped=capped)


def past_keys(past: CallTensor | None, axis: int) -> int:
    """Return the number of keys in a cache, which may be omitted, by the axis that they are on."""
    if past is None:
        return 0
    return past.sizes[axis]


def self_attention(node: ContribNode, past: int) -> Heads:
    """Return the sizes for ``(X (batch, L, E), weight (E, 2 width + value width), bias, …)``.

    The past keys and values are one tensor ``(2, batch, heads, P, width)``.
    """
    batch, length = node.operand(0).sizes[:2]
    heads = int(node.attributes["num_heads"])
    sizes = node.attributes.get("qkv_hidden_sizes") or [node.operand(1).sizes[1] // 3] * 3
    keys = length + past_keys(node.input(past), 3)
    return Heads(batch, heads, length, keys, int(sizes[0]) // heads, int(sizes[2]) // heads)


def self_attention_shape(node: ContribNode, *, past: int, typed: int) -> Sequence[Typed]:
    """Return the shapes of the result and of the keys and values, which have the type of an operand."""
    sizes = self_attention(node, past)
    result = node.operand(typed)
    kept = (2, sizes.batch, sizes.heads, sizes.keys, sizes.width)
    return [(result, (sizes.batch, sizes.queries, sizes.heads * sizes.value_width)), (result, kept)]


def self_attention_cost(node: ContribNode, *, past: int, masks: tuple[int, ...]) -> OperatorCost:
    """The product with the weights of q, k and v, and its bias, are part of the operator."""
    given, weight, bias = node.operand(0), node.operand(1), node.input(2)
    outputs = given.elements // given.sizes[-1] * weight.sizes[1]
    if node.op == "QAttention":
        projection = scaled_product(outputs, weight.sizes[0], has_bias=bias is not None)
    else:
        projection = operators.matmul(outputs, weight.sizes[0], REAL, bias=is_added(bias))
    return added(projection, self_attention(node, past).cost(node, masks))


def multi_head(node: ContribNode) -> Heads:
    """Return the sizes for q, k and v as ``(batch, L, heads · width)``, k and v as ``(batch, heads, S, width)``, or two or three of
    them in one: ``(batch, S, heads, 2 or 3, width)``.
    """
    query, key, value = node.operand(0).sizes, node.input(1), node.input(2)
    heads = int(node.attributes["num_heads"])
    batch, length = query[:2]
    width = query[-1] if len(query) == 5 else query[-1] // heads
    keys, value_width = length, width
    if key is not None:
        keys = key.sizes[2] if len(key.sizes) == 4 else key.sizes[1]
    if value is not None:
        value_width = value.sizes[-1] if len(value.sizes) == 4 else value.sizes[-1] // heads
    return Heads(batch, heads, length, keys + past_keys(node.input(6), 2), width, value_width)


def multi_head_shape(node: ContribNode) -> Sequence[Typed]:
    """Return the shapes of the result, of the keys and values, and of the scores."""
    sizes, given = multi_head(node), node.operand(0)
    kept = (sizes.batch, sizes.heads, sizes.keys)
    return [
        (given, (sizes.batch, sizes.queries, sizes.heads * sizes.value_width)),
        (given, (*kept, sizes.width)),
        (given, (*kept, sizes.value_width)),
        (given, (sizes.batch, sizes.heads, sizes.queries, sizes.keys)),
    ]


def multi_head_cost(node: ContribNode) -> OperatorCost:
    """The bias is added to q, k and v."""
    cost = multi_head(node).cost(node, masks=(4, 5))
    if node.input(3) is None:
        return cost
    projected = sum(value.elements for value in node.inputs[:3] if value is not None)
    return added(cost, operators.elementwise("arithmetic", projected, REAL))


def grouped(node: ContribNode) -> tuple[Heads, int]:
    """Return the sizes of an attention of grouped queries, and its heads of keys and values.

    Of q ``(batch, L, heads · width)``, or all three in one. How many keys there are is an operand, ``total_sequence_length``;
    if it depends on values of inputs, there are the past ones and those of this call.
    """
    query, total = node.operand(0).sizes, node.input(6)
    heads, key_heads = int(node.attributes["num_heads"]), int(node.attributes["kv_num_heads"])
    width = query[2] // heads
    if node.input(1) is None:
        width = query[2] // (heads + 2 * key_heads)
    keys = query[1] + past_keys(node.input(3), 2)
    if total is not None and total.data is not None:
        keys = int(np.max(total.data))
    return Heads(query[0], heads, query[1], keys, width, width), key_heads


def grouped_shape(node: ContribNode) -> Sequence[Typed]:
    """Return the shapes of the result and of the keys and values; a cache may be larger than its content."""
    sizes, key_heads = grouped(node)
    given, past = node.operand(0), node.input(3)
    kept: Typed = (given, (sizes.batch, key_heads, sizes.keys, sizes.width))
    if past is not None:
        kept = (past, (sizes.batch, key_heads, max(sizes.keys, past.sizes[2]), past.sizes[3]))
    return [(given, (sizes.batch, sizes.queries, sizes.heads * sizes.width)), kept, kept]


def grouped_cost(node: ContribNode) -> OperatorCost:
    """Queries and keys may be normalised and rotated first."""
    sizes, key_heads = grouped(node)
    cost = sizes.cost(node, masks=(10,))
    cosines = node.input(7)
    for heads, weight in ((sizes.heads, node.input(14)), (key_heads, node.input(15))):
        rows = sizes.batch * sizes.queries * heads
        if weight is not None:
            cost = added(cost, operators.rms_norm(rows * sizes.width, rows, weight=True))
        if node.attributes.get("do_rotary") and cosines is not None:
            rotated = min(sizes.width, 2 * cosines.sizes[-1])
            cost = added(cost, operators.elementwise("rotary", rows * rotated, REAL))
    return cost


SHAPES: dict[str, dict[str, ShapeRule]] = {
    "": file_graph.by_name(
        {
            "GroupNormalization MeanVarianceNormalization LRN LpNormalization Shrink": like_first,
            "SimplifiedLayerNormalization": like_first,
            "STFT": short_fourier_shape,
            "Compress": compressed_shape,
        }
    ),
    MICROSOFT: file_graph.by_name(
        {
            "BiasGelu FastGelu Gelu QuickGelu SimplifiedLayerNormalization RotaryEmbedding": like_first,
            "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax": like_first,
            "QuantizeLinear": partial(like_first_typed, 2),
            "DequantizeLinear": partial(like_first_typed, 1),
            "QLinearAdd QLinearMul": partial(like_standard, "Add", (0, 3)),
            "QLinearConcat": concatenated,
            "QLinearAveragePool": partial(like_standard, "AveragePool", (0,)),
            "QLinearGlobalAveragePool": partial(like_standard, "GlobalAveragePool", (0,)),
            "FusedConv": partial(like_standard, "Conv", (0, 1)),
            "FusedGemm": partial(like_standard, "Gemm", (0, 1)),
            "QGemm": partial(like_standard, "Gemm", (0, 3)),
            "DynamicQuantizeMatMul": partial(like_standard, "MatMul", (0, 1)),
            "MatMulIntegerToFloat": partial(like_standard, "MatMul", (0, 1), typed=2),
            "FusedMatMul": fused_matmul_shape,
            "MatMulNBits MatMulBnb4": block_product_shape,
            "GatherBlockQuantized": blocked_gather_shape,
            "EmbedLayerNormalization": embedding_norm_shape,
            "SkipLayerNormalization SkipSimplifiedLayerNormalization": skip_norm_shape,
            "DynamicQuantizeLSTM": quantised_lstm_shape,
            "Attention": partial(self_attention_shape, past=4, typed=0),
            "QAttention": partial(self_attention_shape, past=8, typed=3),
            "MultiHeadAttention": multi_head_shape,
            "GroupQueryAttention": grouped_shape,
        }
    ),
}
"""By the domain and the name of an operator whose shapes ONNX does not infer, or infers wrongly (STFT's without an attribute)."""


# ---------------------------------------------------------------------------------------------------------------
# Costs of ONNX Runtime's own operators
# ---------------------------------------------------------------------------------------------------------------


def activated(rule: Callable[[ContribNode], OperatorCost], node: ContribNode) -> OperatorCost | None:
    """Return the cost of an operator and of the nonlinearity in its attribute, if there is one; None if that is unknown."""
    name = node.text("activation", "")
    if not name:
        return rule(node)
    definition = file_graph.activation(name)
    if definition is None:
        return None
    return added(rule(node), elementwise(definition, node))


def fused_convolution(node: ContribNode) -> OperatorCost:
    """``(X, W, bias, what is added to the result)``."""
    cost = file_graph.convolution(node, first=1)
    if node.input(3) is None:
        return cost
    return added(cost, elementwise("arithmetic", node))


def fused_matmul(node: ContribNode) -> OperatorCost:
    """The product is multiplied by ``alpha``, unless that is one."""
    cost = operators.matmul(node.result.elements, factors(node)[0][-1], node.result.numbers)
    if node.attributes.get("alpha", 1.0) == 1:
        return cost
    return added(cost, elementwise("multiply", node))


def scaled_product(outputs: int, inner: int, *, has_bias: bool) -> OperatorCost:
    """Return the cost of a product of integers whose result is multiplied by its scale; a bias is added after that."""
    scaled = (1 + has_bias) * outputs
    return added(operators.matmul(outputs, inner, INTEGER), (0, scaled, scaled))


def dynamic_product(node: ContribNode, *, bias: int) -> OperatorCost:
    """Return the cost of a product that is scaled, by the position of its bias."""
    return scaled_product(node.result.elements, node.operand(0).sizes[-1], has_bias=node.input(bias) is not None)


def quantised_gemm(node: ContribNode) -> OperatorCost:
    """Return the cost of a product of integers."""
    inner = node.operand(0).sizes[0 if node.attributes.get("transA") else 1]
    return operators.matmul(node.result.elements, inner, INTEGER, bias=node.input(6) is not None)


def block_product(node: ContribNode) -> OperatorCost:
    """The weights are converted to floating-point numbers, and multiplied as these."""
    made = node.result
    return operators.matmul(made.elements, int(node.attributes["K"]), made.numbers, bias=node.input(5) is not None)


def biased(definition: str, node: ContribNode) -> OperatorCost:
    """Return the cost of an elementwise operator, whose second operand is a bias that may be omitted."""
    cost = elementwise(definition, node)
    if node.input(1) is None:
        return cost
    return added(elementwise("arithmetic", node), cost)


def quick_gelu(node: ContribNode) -> OperatorCost:
    """``x · sigmoid(a · x)``."""
    cost = elementwise("silu", node)
    if node.attributes.get("alpha", 1.702) == 1:
        return cost
    return added(elementwise("multiply", node), cost)


def rms_norm(node: ContribNode) -> OperatorCost:
    """Return the cost of a norm of rows by the roots of their mean squares, from an axis on."""
    given = node.operand(0)
    rows = prod(given.sizes[: int(node.attributes.get("axis", -1)) % len(given.sizes)])
    return operators.rms_norm(given.elements, rows, weight=True)


def skip_norm(node: ContribNode) -> OperatorCost:
    """Rows of ``input + skip + bias`` are normalised; without a mean the operands lack beta, the bias of the norm."""
    given = node.operand(0)
    rows = given.elements // given.sizes[-1]
    if node.op == "SkipLayerNormalization":
        bias = node.input(4)
        norm = operators.normalisation(given.elements, rows, weight=True, bias=node.input(3) is not None)
    else:
        bias = node.input(3)
        norm = operators.rms_norm(given.elements, rows, weight=True)
    sums = 1 if bias is None else 2
    return added(norm, operators.elementwise("arithmetic", sums * given.elements, given.numbers))


def embedding_norm(node: ContribNode) -> OperatorCost:
    """The rows of two tables, or of three, are added up and normalised."""
    made = node.result
    tables = 2 if node.input(4) is None else 3
    sums = operators.sum_of_tensors(tables, made.elements, made.numbers)
    rows = made.elements // made.sizes[-1]
    return added(sums, operators.normalisation(made.elements, rows, weight=True, bias=node.input(6) is not None))


def rotary(node: ContribNode, *, cosines: int) -> OperatorCost:
    """Return the cost of a rotation by positions, by the position of the table of cosines; it may leave a part of a head."""
    given, rotated = node.operand(0), 2 * node.operand(cosines).sizes[-1]
    heads = int(node.attributes.get("num_heads", 0))
    width = rotated
    if len(given.sizes) == 4:
        width = given.sizes[3]
    elif heads:
        width = given.sizes[2] // heads
    elements = given.elements // width * min(width, rotated)
    return operators.elementwise("rotary", elements, given.numbers)


def quantised_lstm(node: ContribNode) -> OperatorCost:
    """``X (steps, batch, I)`` and ``W (directions, I, 4 H)``."""
    given, weight = node.operand(0), node.operand(1).sizes
    steps = weight[0] * given.elements // given.sizes[-1]
    hidden = weight[2] // 4
    biases = 0 if node.input(3) is None else 2
    peepholes = node.input(7) is not None
    return operators.recurrent(
        operators.LSTM, steps, weight[1], hidden, hidden, biases, peepholes=peepholes, is_quantized=True
    )


COSTS: dict[str, ContribRule] = file_graph.by_name(
    {
        "FusedConv": partial(activated, fused_convolution),
        "FusedGemm": partial(activated, partial(file_graph.matmul, transposed="transA", bias=2)),
        "FusedMatMul": fused_matmul,
        "QGemm": quantised_gemm,
        "MatMulIntegerToFloat": partial(dynamic_product, bias=6),
        "DynamicQuantizeMatMul": partial(dynamic_product, bias=4),
        "MatMulNBits MatMulBnb4": block_product,
        "DynamicQuantizeLSTM": quantised_lstm,
        "Attention": partial(self_attention_cost, past=4, masks=(3, 5)),
        "QAttention": partial(self_attention_cost, past=8, masks=(5,)),
        "MultiHeadAttention": multi_head_cost,
        "GroupQueryAttention": grouped_cost,
        "BiasGelu": partial(biased, "gelu"),
        "FastGelu": partial(biased, "gelu_tanh"),
        "Gelu": partial(elementwise, "gelu"),
        "QuickGelu": quick_gelu,
        "SimplifiedLayerNormalization": rms_norm,
        "SkipLayerNormalization SkipSimplifiedLayerNormalization": skip_norm,
        "EmbedLayerNormalization": embedding_norm,
        "RotaryEmbedding": partial(rotary, cosines=2),
    }
)
"""Rule by the name of an operator of ONNX Runtime's domain."""
FREE = frozenset(
    """
    QLinearAdd QLinearMul QLinearConcat QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QLinearAveragePool
    QLinearGlobalAveragePool QuantizeLinear DequantizeLinear GatherBlockQuantized
    """.split()
)
"""Operators of that domain that move or convert, or compute with integers and have no products."""


# ---------------------------------------------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------------------------------------------

WEIGHT_OPERANDS: dict[str, tuple[int, ...]] = file_graph.by_name(
    {
        "Conv ConvTranspose": (1, 2),
        "ConvInteger": (1,),
        "QLinearConv": (3, 8),
        "Gemm": (0, 1, 2),
        "MatMul MatMulInteger Einsum": (0, 1),
        "QLinearMatMul": (0, 3),
        "BatchNormalization": (1, 2, 3, 4),
        "LayerNormalization RMSNormalization InstanceNormalization GroupNormalization PRelu": (1, 2),
        "RNN GRU LSTM": (1, 2, 3, 7),
        "Gather": (0,),
    }
)
"""Positions of the operands that are learned where they are constants: weights, biases, statistics of norms, rows of a table."""
BIASED = {"MatMul", "Conv", "ConvTranspose"}
"""Operators whose bias may be an addition of its own."""
ZERO_BIASED = {"Gemm", "Conv", "ConvTranspose"}
"""Operators whose bias, the third operand, exporters make of zeros where there is none."""
CONTRIB_SCALES: dict[str, tuple[int, ...]] = file_graph.by_name(
    {
        "QLinearAdd QLinearMul": (1, 2, 4, 5, 6, 7),
        "QLinearWhere": (2, 3, 5, 6, 7, 8),
        "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QLinearReduceMean": (1, 2, 3, 4),
        "QLinearAveragePool QLinearGlobalAveragePool": (1, 2, 3, 4),
        "QGemm": (1, 2, 4, 5, 7, 8),
        "MatMulIntegerToFloat": (2, 3, 4, 5),
        "DynamicQuantizeMatMul MatMulNBits GatherBlockQuantized": (2, 3),
        "MatMulBnb4": (2,),
        "QAttention": (3, 4, 6, 7),
        "DynamicQuantizeLSTM": (8, 9, 10, 11),
        "QMoE": (3, 6, 9, 11, 12, 13, 15, 16, 17, 18, 19, 20),
        "GroupQueryAttention": (12, 13),
    }
)
SCALES = CONTRIB_SCALES | file_graph.by_name(
    {
        "QuantizeLinear DequantizeLinear": (1, 2),
        "QLinearConv QLinearMatMul": (1, 2, 4, 5, 6, 7),
        "ConvInteger MatMulInteger": (2, 3),
    }
)
"""Positions of the operands that say what quantised numbers stand for: scales and zero points."""
WHOLE_BIASES = {"DequantizeLinear": 0, "QLinearConv": 8, "QGemm": 6}
"""Positions of the operands that are biases where they are integers of 32 bits."""
TABLES: dict[str, tuple[int, ...]] = file_graph.by_name({"RotaryEmbedding": (2, 3), "GroupQueryAttention": (7, 8)})
"""Positions of the operands that are tables of sines and cosines."""


def unpack(weights: Iterable[CallTensor], nodes: Sequence[ContribNode]) -> None:
    """Give weights whose numbers are packed in bytes their own shapes; the file stores as many bytes as before."""
    stored = {value for value in weights if value.dtype == "uint8"}
    for node in nodes:
        bits = int(node.attributes.get("bits", 4))
        packed: list[tuple[CallTensor, Shape]] = []
        if node.op in ("MatMulNBits", "MatMulBnb4") and {"N", "K"} <= node.attributes.keys():
            packed.append((node.operand(1), (int(node.attributes["N"]), int(node.attributes["K"]))))
        elif node.op == "GatherBlockQuantized":
            packed.append((node.operand(0), table_sizes(node)))
        elif node.op == "QMoE":
            bits = int(node.attributes.get("expert_weight_bits", 4))
            experts = filter(None, map(node.input, (2, 5, 8)))
            packed += [(value, (*value.sizes[:-1], value.sizes[-1] * 8 // bits)) for value in experts]
        for value, shape in packed:
            if value in stored and value.dtype == "uint8":
                value.itemsize = value.nbytes / prod(shape)
                value.shape = shape
                if f"uint{bits}" in QUANTISED:
                    value.dtype = f"uint{bits}"


def weights_among(constants: Sequence[CallTensor], nodes: Sequence[ContribNode]) -> list[CallTensor]:
    """Return the constants of ``Constant`` nodes that are weights, by the operands that they are, or that are computed from them.

    Exporters write there what a forward has in its code, too: the scales of a resize, or a vector that it multiplies by.
    """
    products = set[CallTensor | None]()
    for node in nodes:
        if node.op in BIASED:
            products.update(node.outputs)
    learned = set[CallTensor | None]()
    for node in reversed(nodes):
        operands = {value for value in node.inputs if value is not None and value.is_constant}
        if node.result.is_constant:
            if not learned.isdisjoint(node.outputs):
                learned |= operands
        elif node.op == "Add" and not products.isdisjoint(node.inputs):
            learned.update(value for value in operands if value.shape and prod(value.shape) == max(value.shape))
        else:
            weights = set(map(node.input, WEIGHT_OPERANDS.get(node.op, ())))
            if node.op in ZERO_BIASED and not is_added(node.input(2)):
                weights.discard(node.input(2))
            learned |= operands & weights
    return [value for value in constants if value in learned]


def without_scales(weights: Sequence[CallTensor], nodes: Sequence[ContribNode]) -> list[CallTensor]:
    """Return the weights without the scales and zero points of quantised ones.

    Biases of 32 bits are marked as the real numbers that they stand for; other integers of that size are settings.
    """
    stored, scales = set(weights), set[CallTensor | None]()
    measured = set[CallTensor | None]()
    """Scales of activations, which those of weights are multiplied with."""
    for node in nodes:
        if node.op == "DynamicQuantizeLinear":
            measured.update(node.outputs[1:2])
    for node in nodes:
        scales.update(map(node.input, SCALES.get(node.op, ())))
        if node.op == "Mul" and not measured.isdisjoint(node.inputs):
            scales.update(node.inputs)
        if node.op in WHOLE_BIASES:
            bias = node.input(WHOLE_BIASES[node.op])
            if bias is not None and bias in stored and bias.dtype == "int32":
                bias.numbers = REAL
    return [value for value in weights if value not in scales]


# ---------------------------------------------------------------------------------------------------------------
# The graph of a file
# ---------------------------------------------------------------------------------------------------------------

OnnxValue = CallTensor


@dataclass(slots=True, eq=False)
class OnnxNode(OperatorCall[OnnxValue]):
    """A node of the file."""

    version: int = 0
    """Of the set of operators that its own belongs to; what an attribute means may change from one to another."""


OnnxGraph = FileGraph[OnnxNode, OnnxValue]
Given = tuple[Sequence["AnyArray | None"], Mapping[str, "AnyArray | None"]]
InferredTypes = Sequence[tuple[int, Shape | None]]
"""The ``TensorProto.DataType`` and the shape of each output."""
T = TypeVar("T")
SCOPES = "pkg.torch.onnx.name_scopes"
"""torch's exporter: every module around the node, outermost first, and the traced operation."""
CONSTANT_ELEMENTS = 4096
"""Values up to this size that depend on no input are computed."""
SETTINGS_ELEMENTS = 16
"""Initializers of floating-point numbers up to this size may be settings, such as the scales of a Resize."""
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
FILLING = {"Expand", "ConstantOfShape", "Tile"}
"""Operators whose last input decides the shape of the result."""
STANDARD = "ai.onnx"
"""The other name of the standard's domain, which has none."""


@cache
def element(kind: int) -> tuple[str, float, Numbers]:
    """Return the name, the bytes (0 for texts) and the kind of numbers of the elements of a tensor, by ``TensorProto.DataType``."""
    name = helper.tensor_dtype_to_np_dtype(kind).name if kind else ""
    return name, itemsize(name), numbers_of(name)


def path_of_scopes(scopes: str | None) -> str:
    """Return ``stage1.conv1`` for ``['', 'stage1', 'stage1.conv1', 'conv2d']``."""
    found = ast.literal_eval(scopes)[:-1] if scopes else []
    for path in reversed(found):
        if path and not path.startswith("_empty_nn_module"):
            return str(path)
    return ROOT


def path_of(node: Any) -> str:
    """Return the module of a node of any file: from its metadata, or from a name as other exporters write it.

    torch's older exporter names ``/stage1/stage1.0/conv1/Conv`` what belongs to ``stage1.0.conv1``, Keras's
    ``model/conv1/Conv2D`` what belongs to ``model.conv1``. An optimiser that replaces nodes makes names without scopes, or
    that end in ``/``; the result still has the name that the last of these nodes gave it.
    """
    for note in node.metadata_props:
        if note.key == SCOPES:
            return path_of_scopes(note.value)
    name = node.name
    if ("/" not in name or name.endswith("/")) and node.output:
        name = node.output[0]
    parts: list[str] = []
    for part in list(filter(None, name.split("/")))[:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return ".".join(parts) or ROOT


def read(file: Exported, shapes: Sequence[Shape], named: Mapping[str, Shape], values: Given = ((), {})) -> OnnxGraph:
    """Return the graph of a file for inputs of these shapes: in their order, and by name.

    Args:
        file: the file.
        shapes: by position.
        named: by name.
        values: those of the inputs by position and by name, which may decide shapes; None where they are not known.

    Raises:
        Unsupported: there are not as many as the graph has inputs; its own shapes may be open, and do not stand in.
        Exception: it is no ONNX file.
    """
    model = without_weights(file.path)
    if model.functions:
        model = inliner.inline_local_functions(model)
    for entry in (*model.opset_import, *model.graph.node):
        if entry.domain == STANDARD:
            entry.domain = ""
    return _GraphReader(model, file).graph(shapes, named, values)


tensor_type = lru_cache(helper.make_tensor_type_proto)


class _GraphReader:
    """One pass over the nodes."""

    def __init__(self, model: onnx.ModelProto, file: Exported) -> None:
        self._model, self._file = model, file
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._values: dict[str, OnnxValue] = {}
        self._kinds: dict[OnnxValue, int] = {}
        self._known: dict[object, Any] = {}
        """Results for nodes of which equal ones may follow."""
        self._within: list[OnnxValue] = []
        """Weights in the graphs of operators."""

    def graph(self, shapes: Sequence[Shape], named: Mapping[str, Shape], values: Given) -> OnnxGraph:
        graph = self._model.graph
        weights = self._initializers(graph)
        given = [value for value in graph.input if value.name not in self._values]
        names = [value.name for value in given]
        sized = by_name(names, shapes, named)
        valued = by_name(names, *values) if any(values) else {}
        inputs = []
        for value in given:
            data = valued.get(value.name)
            if data is not None and (data.dtype.kind not in "biu" or data.size > CONSTANT_ELEMENTS):
                data = None  # only a few integers or truth values may decide shapes
            inputs.append(self._know(value.name, value.type.tensor_type.elem_type, sized[value.name], data))
        nodes, constants = [], []
        for node in in_order(graph.node):
            if node.op_type == "Constant":
                constants.append(self._constant(node))
            else:
                nodes.append(self._node(node))
        outputs = tuple(self._values[value.name] for value in graph.output)
        stored = self._stored(graph, weights, constants, nodes)
        return FileGraph(tuple(nodes), tuple(inputs), outputs, (*stored, *self._within))

    def _initializers(self, graph: onnx.GraphProto) -> list[OnnxValue]:
        """Return the initializers; the run-time expands sparse ones when it opens the file, to arrays with all their zeros."""
        found = []
        for tensor in graph.initializer:
            value = self._know(tensor.name, tensor.data_type, tuple(tensor.dims), is_constant=True)
            most = CONSTANT_ELEMENTS if value.numbers is INTEGER else SETTINGS_ELEMENTS
            if tensor.name not in self._file.weights and value.elements <= most:
                value.data = self._array(tensor)
            found.append(value)
        found += [self._sparse(tensor.values.name, tensor) for tensor in graph.sparse_initializer]
        return found

    def _stored(
        self,
        graph: onnx.GraphProto,
        weights: Sequence[OnnxValue],
        constants: Sequence[OnnxValue],
        nodes: Sequence[OnnxNode],
    ) -> list[OnnxValue]:
        """Return the constants of a graph that are learned."""
        used = names_read(graph)
        read = [value for value in weights if value.name in used or value.name in self._file.weights]
        stored = without_scales([*read, *weights_among(constants, nodes)], nodes)
        unpack(stored, nodes)
        return stored

    def _constant(self, node: onnx.NodeProto) -> OnnxValue:
        attribute = node.attribute[0]
        if attribute.name == "sparse_value":
            return self._sparse(node.output[0], attribute.sparse_tensor)
        if attribute.name != "value":  # numbers or texts, and no tensor
            results: Any = self._once(attributes_key(node), lambda: ReferenceEvaluator(node).run(None, {}))
            return self._know_array(node.output[0], np.asarray(results[0]))
        tensor = attribute.t
        value = self._know(node.output[0], tensor.data_type, tuple(tensor.dims), is_constant=True)
        if value.elements <= CONSTANT_ELEMENTS:
            value.data = self._once(tensor.SerializeToString(), partial(self._array, tensor))
        return value

    def _sparse(self, name: str, tensor: onnx.SparseTensorProto) -> OnnxValue:
        return self._know(name, tensor.values.data_type, tuple(tensor.dims), is_constant=True)

    def _array(self, tensor: onnx.TensorProto) -> AnyArray:
        base = str(Path(self._file.path).parent) if uses_external_data(tensor) else ""
        return numpy_helper.to_array(tensor, base)

    def _know_array(self, name: str, data: AnyArray, *, is_constant: bool = True) -> OnnxValue:
        value = self._know(name, helper.np_dtype_to_tensor_dtype(data.dtype), data.shape, is_constant=is_constant)
        if data.size <= CONSTANT_ELEMENTS:
            value.data = data
        return value

    def _know(
        self, name: str, kind: int, shape: Shape | None, data: AnyArray | None = None, *, is_constant: bool = False
    ) -> OnnxValue:
        value = OnnxValue(name, shape, *element(kind), is_constant, data)
        self._kinds[value] = kind
        if name:  # an optional result may be omitted
            self._values[name] = value
        return value

    def _once(self, key: object, make: Callable[[], T]) -> T:
        """Return the result for a key, made where it is the first."""
        if key not in self._known:
            self._known[key] = make()
        result: T = self._known[key]
        return result

    def _node(self, node: onnx.NodeProto) -> OnnxNode:
        # An optional operand that is omitted has an empty name.
        inputs = tuple(self._values[name] if name else None for name in node.input)
        attributes = attributes_key(node)
        path = path_of(node) if self._file.paths is None else self._file.paths.get(node.name, ROOT)
        outputs = self._outputs(node, inputs, (attributes, tuple(map(self._content, inputs)), len(node.output)))
        return OnnxNode(
            op=node.op_type,
            path=path,
            inputs=(*inputs, *self._weights_within(node)),
            outputs=tuple(value for value in outputs if value.name),
            attributes=self._once(("attributes", attributes), partial(attributes_of, node)),
            namespace=node.domain or "onnx",
            name=node.name,
            version=self._opsets.get(node.domain, 0),
        )

    def _weights_within(self, node: onnx.NodeProto) -> list[OnnxValue]:
        """Return the weights in the graphs that an operator has, such as branches."""
        found = []
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                weights = self._weights_of(inner)
                self._within += weights
                found += weights
        return found

    def _weights_of(self, graph: onnx.GraphProto) -> list[OnnxValue]:
        """Return the weights that a graph within a node holds; the shapes in it may differ from run to run."""
        outside, self._values = self._values, dict(self._values)
        weights = self._initializers(graph)
        nodes, constants = [], []
        for node in in_order(graph.node):
            if node.op_type == "Constant":
                constants.append(self._constant(node))
                continue
            inputs = tuple(map(self._values.get, node.input))
            is_constant = all(value is not None and value.is_constant for value in inputs)
            outputs = tuple(self._know(name, 0, None, is_constant=is_constant) for name in node.output if name)
            self._weights_within(node)
            nodes.append(OnnxNode(node.op_type, ROOT, inputs, outputs, attributes_of(node), node.domain or "onnx"))
        stored = self._stored(graph, weights, constants, nodes)
        self._values = outside
        return stored

    def _content(self, value: OnnxValue | None) -> object:
        """Return all that the results of a node may depend on."""
        if value is None:
            return None
        data = value.data
        if data is not None:
            data = repr(data.tolist()) if data.dtype == object else data.tobytes()
        return self._kinds[value], value.shape, data

    def _outputs(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], key: object) -> list[OnnxValue]:
        given = [value for value in inputs if value is not None]
        found = []
        results = self._once(("computed", key), lambda: self._computed(node, inputs))
        if results is not None:
            # A shape is the same in every step, whatever it is the shape of.
            is_constant = node.op_type == "Shape" or all(value.is_constant or value.data is None for value in given)
            for name, data in zip(node.output, results, strict=False):
                found.append(self._know_array(name, np.asarray(data), is_constant=is_constant))
            return found
        inferred = self._once(("inferred", key), lambda: self._inferred(node, inputs))
        is_constant = all(value.is_constant for value in given) and node.op_type not in RANDOM
        for name, (kind, shape) in zip(node.output, inferred, strict=True):
            found.append(self._know(name, kind, shape, is_constant=is_constant))
        return found

    def _computed(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> Sequence[AnyArray] | None:
        """Return the results if they depend on small constants alone, or on a known shape."""
        first = inputs[0] if inputs else None
        if first is None:
            return None
        if node.op_type == "Shape" and first.shape is not None:
            wanted: dict[str, int] = {str(attribute.name): int(attribute.i) for attribute in node.attribute}
            return [np.asarray(first.shape[wanted.get("start") : wanted.get("end")], np.int64)]
        if node.op_type == "CastLike" and first.data is not None and inputs[1] is not None and inputs[1].dtype:
            return [first.data.astype(inputs[1].dtype)]
        feeds = {name: value.data for name, value in zip(node.input, inputs, strict=True) if value is not None}
        if not is_small(node, list(feeds.values())):
            return None
        names = [name for name in node.output if name]
        function = helper.make_function("", node.op_type, list(feeds), names, [node], self._model.opset_import)
        try:
            found: Any = ReferenceEvaluator(function).run(None, feeds, attributes={})
        except Exception:  # the reference does not implement every operator; the shape is inferred then
            return None
        return list(found)

    def _inferred(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> InferredTypes:
        unknown = [(0, None)] * len(node.output)
        types, data = {}, {}
        for name, value in zip(node.input, inputs, strict=True):
            if value is not None:
                if value.shape is None:
                    return unknown
                types[name] = tensor_type(self._kinds[value], value.shape)
                if value.data is not None:
                    data[name] = numpy_helper.from_array(value.data, name)
        rule = SHAPES.get(node.domain, {}).get(node.op_type)
        try:
            if rule is not None:
                results: list[tuple[int, Shape | None]] = []
                call = OnnxNode(node.op_type, "", tuple(inputs), (), attributes_of(node), namespace=node.domain)
                for like, shape in rule(call):
                    results.append((like if isinstance(like, int) else self._kinds[like], shape))
                return [*results, *unknown][: len(node.output)]
            schema = onnx.defs.get_schema(node.op_type, self._opsets[node.domain], node.domain)
            opsets = list(self._model.opset_import)
            found: Any = infer_node_outputs(schema, node, types, data, opset_imports=opsets)
        except Exception:  # another domain's operator, or shapes that do not fit: unknown
            return unknown
        inferred: list[tuple[int, Shape | None]] = list(unknown)
        for position, name in enumerate(node.output):
            if name in found:
                inferred[position] = type_and_shape(found[name])
        return inferred


def is_small(node: onnx.NodeProto, operands: Sequence[AnyArray | None]) -> bool:
    """Return True if all operands are known, and they and the results computed from them are small."""
    elements = 0
    for operand in operands:
        if operand is None:
            return False
        elements += operand.size
    if node.op_type in RANDOM or any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
        return False
    last = operands[-1]
    if node.op_type in FILLING and last is not None and prod(map(int, last.ravel())) > CONSTANT_ELEMENTS:
        return False
    return elements <= CONSTANT_ELEMENTS


def in_order(nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
    """Return nodes with each after those whose results it reads.

    The standard demands that of a file, but ONNX Runtime runs others too, and its conversion to 16 bits writes them.

    Raises:
        CycleError: a node reads what depends on itself.
    """
    makers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        makers.update(dict.fromkeys(filter(None, node.output), index))
    needed: dict[int, set[int]] = {}
    is_ordered = True
    for index, node in enumerate(nodes):
        needed[index] = {makers[name] for name in node.input if name in makers}
        is_ordered = is_ordered and max(needed[index], default=-1) < index
    if is_ordered:
        return nodes
    return [nodes[index] for index in TopologicalSorter(needed).static_order()]


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def attributes_key(node: onnx.NodeProto) -> object:
    """Return what is equal for nodes of the same operator with the same attributes."""
    return node.domain, node.op_type, tuple(attribute.SerializeToString() for attribute in node.attribute)


def type_and_shape(kind: onnx.TypeProto) -> tuple[int, Shape | None]:
    """Return the ``TensorProto.DataType`` and the shape of an inferred type; None if an axis is open."""
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or not all(axis.HasField("dim_value") for axis in tensor.shape.dim):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(axis.dim_value for axis in tensor.shape.dim)


def names_read(graph: onnx.GraphProto) -> set[str]:
    """Return the names of a graph's outputs, and of all that its nodes read, also in their own graphs."""
    found = {value.name for value in graph.output}
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found |= names_read(inner)
    return found
