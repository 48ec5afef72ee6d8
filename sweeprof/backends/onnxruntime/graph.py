"""Reads the graph of an ONNX file as plain data, with the shapes that all of its values have for inputs of given shapes.

The values of large initializers are not read. Node by node: what depends on constants alone and is small is computed, as shapes
are computed from shapes; of everything else the shape is inferred, once for equal nodes with equal inputs. The ONNX standard has
rules for most operators; :mod:`sweeprof.backends.onnxruntime.graph` has them for others.
A shape that no rule tells stays unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.helper import make_node, make_tensor_type_proto
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from sweeprof.backends import AnyArray
from sweeprof.backends.call_signature import by_name
from sweeprof.backends.onnxruntime.files import Exported, without_weights
from sweeprof.counting import mapping, operators
from sweeprof.counting.file_graph import QUANTISED, FileGraph
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.mapping import CallTensor, OperatorCall, elementwise, is_added, itemsize, numbers_of
from sweeprof.counting.operators import INTEGER, REAL, Numbers, added
from sweeprof.results.layer_times import ROOT

# The operators that ONNX Runtime adds to the standard, which its optimisers, its quantisation and exporters of decoders write.


ContribNode = OperatorCall[Any]
Shape = tuple[int, ...]
Typed = tuple[CallTensor | int, Shape]
"""The shape of a result, and the operand that has the same type of elements, or the type itself as ``TensorProto.DataType``."""
MICROSOFT = "com.microsoft"


def names(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(text.split())


# Shapes


def like_first(node: ContribNode) -> Sequence[Typed]:
    """Return the shape of the first operand for the first result."""
    first = node.operand(0)
    return [(first, first.sizes)]


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The operator of the standard whose result has the same shape."""

    op: str
    operands: tuple[int, ...] | slice = (0,)
    """Positions of its operands among those of ours."""
    typed: int | None = None
    """Position of the operand that has the type of the result; None: the first of ``operands``."""

    def inferred(self, node: ContribNode) -> Sequence[Typed]:
        """Return the shape of the result, as ONNX infers it for the operator of the standard."""
        if isinstance(self.operands, slice):
            given = [value for value in node.inputs[self.operands] if value is not None]
        else:
            given = [node.operand(position) for position in self.operands]
        if node.attributes.get("channels_last"):
            return []
        shapes = [value.sizes for value in given]
        schema = onnx.defs.get_schema(self.op, OPSET)
        attributes = {name: value for name, value in node.attributes.items() if name in schema.attributes}
        types = {f"x{i}": make_tensor_type_proto(TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)}
        call = make_node(self.op, [*types], ["y"], **attributes)
        sides = infer_node_outputs(schema, call, types)["y"].tensor_type.shape.dim
        made = tuple(side.dim_value for side in sides)
        if not made or not all(side.HasField("dim_value") for side in sides):
            return []
        typed = given[0] if self.typed is None else node.operand(self.typed)
        return [(typed, made)]


OPSET = 13
"""Version of the standard's operators, whose attributes ONNX Runtime's have."""


def matrix(sizes: Shape, *, transposed: bool, batch_transposed: bool) -> Shape:
    """Return the shape of an operand of FusedMatMul as it is multiplied."""
    if batch_transposed:
        sizes = (*sizes[1:-1], sizes[0], sizes[-1])
    return (*sizes[:-2], sizes[-1], sizes[-2]) if transposed and len(sizes) > 1 else sizes


def _factors(node: ContribNode) -> tuple[Shape, Shape]:
    first, second = (
        matrix(
            node.operand(position).sizes,
            transposed=bool(node.attributes.get(f"trans{name}")),
            batch_transposed=bool(node.attributes.get(f"transBatch{name}")),
        )
        for position, name in enumerate("AB")
    )
    return first, second


def _fused_matmul_shape(node: ContribNode) -> Sequence[Typed]:
    first, second = _factors(node)
    if len(second) == 1:
        return [(node.operand(0), first[:-1])]
    batch = np.broadcast_shapes(first[:-2], second[:-2])
    return [(node.operand(0), (*batch, *first[-2:-1], second[-1]))]


def _block_product_shape(node: ContribNode) -> Sequence[Typed]:
    given = node.operand(0)
    return [(given, (*given.sizes[:-1], int(node.attributes["N"])))]


def _embedding_norm_shape(node: ContribNode) -> Sequence[Typed]:
    ids, table = node.operand(0), node.operand(2)
    made = (*ids.sizes, table.sizes[1])
    return [(table, made), (ids, ids.sizes[:1]), (table, made)]


def _skip_norm_shape(node: ContribNode) -> Sequence[Typed]:
    """Of the results the mean, the deviation, and the sum that is normalised are optional."""
    given = node.operand(0)
    statistic = (given, (*given.sizes[:-1], 1))
    return [(given, given.sizes), statistic, statistic, (given, given.sizes)]


def _quantised_shape(node: ContribNode) -> Sequence[Typed]:
    """``(X, scale, zero point)``; the zero point has the type of the result."""
    return [(node.operand(2), node.operand(0).sizes)]


def _dequantised_shape(node: ContribNode) -> Sequence[Typed]:
    return [(node.operand(1), node.operand(0).sizes)]


def _blocked_gather_shape(node: ContribNode) -> Sequence[Typed]:
    """Rows of a quantised table: ``(data, indices, scales)``; numbers of four bits may be two in a byte."""
    rows = table_sizes(node)
    axis = int(node.attributes.get("gather_axis", 0)) % len(rows)
    return [(node.operand(2), (*rows[:axis], *node.operand(1).sizes, *rows[axis + 1 :]))]


def table_sizes(node: ContribNode) -> Shape:
    """Return the shape of the table that GatherBlockQuantized reads, whatever it is packed in."""
    table = node.operand(0)
    packed = 8 // int(node.attributes.get("bits", 4)) if table.dtype == "uint8" else 1
    return (*table.sizes[:-1], table.sizes[-1] * packed)


def _quantised_lstm_shape(node: ContribNode) -> Sequence[Typed]:
    """``X (steps, batch, I)`` and ``W (directions, I, 4 H)``."""
    given = node.operand(0)
    directions, hidden = node.operand(1).sizes[0], int(node.attributes["hidden_size"])
    steps, batch = given.sizes[:2]
    state = (given, (directions, batch, hidden))
    return [(given, (steps, directions, batch, hidden)), state, state]


def _short_fourier_shape(node: ContribNode) -> Sequence[Typed]:
    """``(signal, step, window, length of a frame)``; half of the points, unless an attribute says all."""
    signal, step, window = node.operand(0), node.operand(1), node.input(2)
    points = window.elements if window is not None else int(node.operand(3).data)
    frames = (signal.sizes[1] - points) // int(step.data) + 1
    bins = points // 2 + 1 if node.attributes.get("onesided", 1) else points
    return [(signal, (signal.sizes[0], frames, bins, 2))]


# Attention


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
        numbers = operators.REAL
        return operators.attention(rows, self.keys, self.width, self.value_width, numbers, masks=given, capped=capped)


def _projected_widths(node: ContribNode) -> tuple[int, int]:
    """Return the width of q and k, and that of v, of an attention that multiplies its input by ``(E, 2 width + value width)``."""
    sizes = node.attributes.get("qkv_hidden_sizes")
    if sizes:
        return int(sizes[0]), int(sizes[2])
    width = node.operand(1).sizes[1] // 3
    return width, width


def _self_attention(node: ContribNode, past: int) -> Heads:
    """Of ``(X (batch, L, E), weight, bias, …)``; the past keys and values are one tensor ``(2, batch, heads, P, width)``."""
    batch, length = node.operand(0).sizes[:2]
    heads = int(node.attributes["num_heads"])
    width, value_width = _projected_widths(node)
    before = node.input(past)
    keys = length + (before.sizes[3] if before is not None else 0)
    return Heads(batch, heads, length, keys, width // heads, value_width // heads)


def _self_attention_shape(node: ContribNode, *, past: int, typed: int) -> Sequence[Typed]:
    sizes = _self_attention(node, past)
    result = node.operand(typed)
    kept = (2, sizes.batch, sizes.heads, sizes.keys, sizes.width)
    return [(result, (sizes.batch, sizes.queries, sizes.heads * sizes.value_width)), (result, kept)]


def _projection(node: ContribNode, *, is_quantised: bool) -> OperatorCost:
    """Return the cost of the product with the weights of q, k and v, and of its bias."""
    given, weight = node.operand(0), node.operand(1)
    outputs = given.elements // given.sizes[-1] * weight.sizes[1]
    if is_quantised:
        return _scaled_product(outputs, weight.sizes[0], has_bias=node.input(2) is not None)
    return operators.matmul(outputs, weight.sizes[0], operators.REAL, bias=is_added(node.input(2)))


def _self_attention_cost(
    node: ContribNode, *, past: int, masks: tuple[int, ...], is_quantised: bool = False
) -> OperatorCost:
    heads = _self_attention(node, past)
    return added(_projection(node, is_quantised=is_quantised), heads.cost(node, masks))


def _multi_head(node: ContribNode) -> Heads:
    """Of q, k and v as ``(batch, L, heads · width)``, k and v as ``(batch, heads, S, width)``, or two or three of them in one.

    What is packed is ``(batch, S, heads, 2 or 3, width)``.
    """
    query, key, value = node.operand(0).sizes, node.input(1), node.input(2)
    heads, past = int(node.attributes["num_heads"]), node.input(6)
    batch, length = query[:2]
    width = query[-1] if len(query) == 5 else query[-1] // heads
    value_width = width
    if key is None:
        keys = length
    elif len(key.sizes) == 4:
        keys = key.sizes[2]
    else:
        keys = key.sizes[1]
    if value is not None:
        value_width = value.sizes[-1] if len(value.sizes) == 4 else value.sizes[-1] // heads
    return Heads(batch, heads, length, keys + (past.sizes[2] if past is not None else 0), width, value_width)


def _multi_head_shape(node: ContribNode) -> Sequence[Typed]:
    sizes, given = _multi_head(node), node.operand(0)
    kept = (sizes.batch, sizes.heads, sizes.keys)
    return [
        (given, (sizes.batch, sizes.queries, sizes.heads * sizes.value_width)),
        (given, (*kept, sizes.width)),
        (given, (*kept, sizes.value_width)),
        (given, (sizes.batch, sizes.heads, sizes.queries, sizes.keys)),
    ]


def _multi_head_cost(node: ContribNode) -> OperatorCost:
    """The bias is added to q, k and v."""
    cost = _multi_head(node).cost(node, masks=(4, 5))
    if node.input(3) is None:
        return cost
    projected = sum(value.elements for value in node.inputs[:3] if value is not None)
    return added(cost, operators.elementwise("arithmetic", projected, operators.REAL))


def _grouped(node: ContribNode) -> tuple[Heads, int]:
    """Return the sizes of an attention of grouped queries, and its heads of keys and values.

    Of q ``(batch, L, heads · width)``, or all three in one. How many keys there are is an operand, ``total_sequence_length``;
    where it depends on values of inputs, there are the past ones and those of this call.
    """
    query, past, total = node.operand(0).sizes, node.input(3), node.input(6)
    heads, key_heads = int(node.attributes["num_heads"]), int(node.attributes["kv_num_heads"])
    is_packed = node.input(1) is None
    width = query[2] // (heads + 2 * key_heads if is_packed else heads)
    if total is not None and total.data is not None:
        keys = int(np.max(total.data))
    else:
        keys = query[1] + (past.sizes[2] if past is not None else 0)
    return Heads(query[0], heads, query[1], keys, width, width), key_heads


def _grouped_shape(node: ContribNode) -> Sequence[Typed]:
    sizes, key_heads = _grouped(node)
    given, past = node.operand(0), node.input(3)
    length = max(sizes.keys, past.sizes[2]) if past is not None else sizes.keys
    width = past.sizes[3] if past is not None else sizes.width
    kept = (past or given, (sizes.batch, key_heads, length, width))
    return [(given, (sizes.batch, sizes.queries, sizes.heads * sizes.width)), kept, kept]


def _grouped_cost(node: ContribNode) -> OperatorCost:
    sizes, key_heads = _grouped(node)
    tokens = sizes.batch * sizes.queries
    parts = [sizes.cost(node, masks=(10,))]
    cosines = node.input(7)
    for heads, weight in ((sizes.heads, node.input(14)), (key_heads, node.input(15))):
        rows = tokens * heads
        if weight is not None:
            parts.append(operators.rms_norm(rows * sizes.width, rows, weight=True))
        if node.attributes.get("do_rotary") and cosines is not None:
            rotated = min(sizes.width, 2 * cosines.sizes[-1])
            parts.append(operators.elementwise("rotary", rows * rotated, operators.REAL))
    return added(*parts)


ShapeRule = Callable[[ContribNode], Sequence[Typed]]


def _compressed_shape(node: ContribNode) -> Sequence[Typed]:
    """As many as the condition holds for, of an axis or of all elements; its values must be known."""
    given, kept = node.operand(0), int(np.count_nonzero(node.operand(1).data))
    if "axis" not in node.attributes:
        return [(given, (kept,))]
    axis = int(node.attributes["axis"]) % len(given.sizes)
    return [(given, (*given.sizes[:axis], kept, *given.sizes[axis + 1 :]))]


SHAPES: dict[str, dict[str, ShapeRule | Counterpart]] = {
    "": mapping.by_name(
        {
            "GroupNormalization MeanVarianceNormalization LRN LpNormalization Shrink": like_first,
            "SimplifiedLayerNormalization": like_first,
            "STFT": _short_fourier_shape,
            "Compress": _compressed_shape,
        }
    ),
    MICROSOFT: mapping.by_name(
        {
            "BiasGelu FastGelu Gelu QuickGelu SimplifiedLayerNormalization RotaryEmbedding": like_first,
            "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax": like_first,
            "QuantizeLinear": _quantised_shape,
            "DequantizeLinear": _dequantised_shape,
            "QLinearAdd QLinearMul": Counterpart("Add", (0, 3)),
            "QLinearConcat": Counterpart("Concat", slice(2, None, 3)),
            "QLinearAveragePool": Counterpart("AveragePool"),
            "QLinearGlobalAveragePool": Counterpart("GlobalAveragePool"),
            "FusedConv": Counterpart("Conv", (0, 1)),
            "FusedGemm": Counterpart("Gemm", (0, 1)),
            "QGemm": Counterpart("Gemm", (0, 3)),
            "DynamicQuantizeMatMul": Counterpart("MatMul", (0, 1)),
            "MatMulIntegerToFloat": Counterpart("MatMul", (0, 1), typed=2),
            "FusedMatMul": _fused_matmul_shape,
            "MatMulNBits MatMulBnb4": _block_product_shape,
            "GatherBlockQuantized": _blocked_gather_shape,
            "EmbedLayerNormalization": _embedding_norm_shape,
            "SkipLayerNormalization SkipSimplifiedLayerNormalization": _skip_norm_shape,
            "DynamicQuantizeLSTM": _quantised_lstm_shape,
            "Attention": partial(_self_attention_shape, past=4, typed=0),
            "QAttention": partial(_self_attention_shape, past=8, typed=3),
            "MultiHeadAttention": _multi_head_shape,
            "GroupQueryAttention": _grouped_shape,
        }
    ),
}
"""By the domain and the name of an operator whose shapes ONNX does not infer, or infers wrongly (STFT's without an attribute)."""


def inferred(rule: ShapeRule | Counterpart, node: ContribNode) -> Sequence[Typed]:
    """Return the shapes of the results of an operator by its rule; nothing if its operands do not fit."""
    try:
        return rule.inferred(node) if isinstance(rule, Counterpart) else rule(node)
    except Exception:  # the file is not valid
        return []


# Costs


def activated(rule: Callable[[ContribNode], OperatorCost], node: ContribNode) -> OperatorCost | None:
    """Return the cost of an operator and of the nonlinearity in its attribute, if there is one; None if that is unknown."""
    name = node.text("activation", "")
    if not name:
        return rule(node)
    definition = mapping.activation(name)
    return None if definition is None else added(rule(node), elementwise(definition, node))


def _convolution(node: ContribNode) -> OperatorCost:
    """``(X, W, bias, what is added to the result)``."""
    cost = mapping.convolution(node, first=1)
    return added(cost, elementwise("arithmetic", node)) if node.input(3) is not None else cost


def _fused_matmul(node: ContribNode) -> OperatorCost:
    """The product is multiplied by ``alpha``, unless that is one."""
    first, _ = _factors(node)
    cost = operators.matmul(node.result.elements, first[-1], node.result.numbers)
    return added(cost, elementwise("multiply", node)) if node.attributes.get("alpha", 1.0) != 1 else cost


def _scaled_product(outputs: int, inner: int, *, has_bias: bool) -> OperatorCost:
    """Return the cost of a product of integers whose result is multiplied by its scale; a bias is added after that."""
    product = operators.matmul(outputs, inner, INTEGER)
    each = 2 if has_bias else 1
    return added(product, (0, each * outputs, each * outputs))


def _dynamic_product(node: ContribNode, *, bias: int) -> OperatorCost:
    return _scaled_product(node.result.elements, node.operand(0).sizes[-1], has_bias=node.input(bias) is not None)


def _quantised_gemm(node: ContribNode) -> OperatorCost:
    sizes = node.operand(0).sizes
    inner = sizes[0] if node.attributes.get("transA") else sizes[1]
    return operators.matmul(node.result.elements, inner, INTEGER, bias=node.input(6) is not None)


def _block_product(node: ContribNode) -> OperatorCost:
    """The weights are converted to floating-point numbers, and multiplied as these."""
    made = node.result
    return operators.matmul(made.elements, int(node.attributes["K"]), made.numbers, bias=node.input(5) is not None)


def _biased(definition: str, node: ContribNode) -> OperatorCost:
    """Return the cost of an elementwise operator, whose second operand is a bias that may be omitted."""
    cost = elementwise(definition, node)
    return added(elementwise("arithmetic", node), cost) if node.input(1) is not None else cost


def _quick_gelu(node: ContribNode) -> OperatorCost:
    """``x · sigmoid(a · x)``."""
    cost = elementwise("silu", node)
    return added(elementwise("multiply", node), cost) if node.attributes.get("alpha", 1.702) != 1 else cost


def rms_norm(node: ContribNode) -> OperatorCost:
    """Return the cost of a norm of rows by the roots of their mean squares, from an axis on."""
    given = node.operand(0)
    rows = prod(given.sizes[: int(node.attributes.get("axis", -1)) % len(given.sizes)])
    return operators.rms_norm(given.elements, rows, weight=True)


def _skip_norm(node: ContribNode) -> OperatorCost:
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


def _embedding_norm(node: ContribNode) -> OperatorCost:
    """The rows of two tables, or of three, are added up and normalised."""
    made = node.result
    sums = operators.sum_of_tensors(2 if node.input(4) is None else 3, made.elements, made.numbers)
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


def _quantised_lstm(node: ContribNode) -> OperatorCost:
    given, weight = node.operand(0), node.operand(1).sizes
    steps = weight[0] * given.elements // given.sizes[-1]
    hidden = weight[2] // 4
    biases = 0 if node.input(3) is None else 2
    peepholes = node.input(7) is not None
    return operators.recurrent(
        operators.LSTM, steps, weight[1], hidden, hidden, biases, peepholes=peepholes, is_quantized=True
    )


def _packed(node: ContribNode, weight: CallTensor) -> int:
    """Return the weights of experts in an element of a tensor."""
    return 8 // int(node.attributes.get("expert_weight_bits", 4)) if weight.dtype == "uint8" else 1


ContribRule = Callable[[ContribNode], OperatorCost | None]
COSTS: dict[str, ContribRule] = mapping.by_name(
    {
        "FusedConv": partial(activated, _convolution),
        "FusedGemm": partial(activated, partial(mapping.matmul, transposed="transA", bias=2)),
        "FusedMatMul": _fused_matmul,
        "QGemm": _quantised_gemm,
        "MatMulIntegerToFloat": partial(_dynamic_product, bias=6),
        "DynamicQuantizeMatMul": partial(_dynamic_product, bias=4),
        "MatMulNBits MatMulBnb4": _block_product,
        "DynamicQuantizeLSTM": _quantised_lstm,
        "Attention": partial(_self_attention_cost, past=4, masks=(3, 5)),
        "QAttention": partial(_self_attention_cost, past=8, masks=(5,), is_quantised=True),
        "MultiHeadAttention": _multi_head_cost,
        "GroupQueryAttention": _grouped_cost,
        "BiasGelu": partial(_biased, "gelu"),
        "FastGelu": partial(_biased, "gelu_tanh"),
        "Gelu": partial(elementwise, "gelu"),
        "QuickGelu": _quick_gelu,
        "SimplifiedLayerNormalization": rms_norm,
        "SkipLayerNormalization SkipSimplifiedLayerNormalization": _skip_norm,
        "EmbedLayerNormalization": _embedding_norm,
        "RotaryEmbedding": partial(rotary, cosines=2),
    }
)
"""Rule by the name of an operator of ONNX Runtime's domain."""
FREE = names(
    """
    QLinearAdd QLinearMul QLinearConcat QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QLinearAveragePool
    QLinearGlobalAveragePool QuantizeLinear DequantizeLinear GatherBlockQuantized
    """
)
"""Operators of that domain that move or convert, or compute with integers and have no products."""


# Weights

CONTRIB_SCALES: dict[str, tuple[int, ...]] = mapping.by_name(
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
"""Positions of the operands that say what quantised numbers stand for: scales and zero points."""
TABLES: dict[str, tuple[int, ...]] = mapping.by_name({"RotaryEmbedding": (2, 3), "GroupQueryAttention": (7, 8)})
"""Positions of the operands that are tables of sines and cosines."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight whose numbers are packed in bytes."""

    value: CallTensor
    shape: Shape
    bits: int


def packed_weights(node: ContribNode) -> Iterator[Packed]:
    """Return the weights of an operator that are packed, with their shapes."""
    bits = int(node.attributes.get("bits", 4))
    if node.op in ("MatMulNBits", "MatMulBnb4") and {"N", "K"} <= node.attributes.keys():
        yield Packed(node.operand(1), (int(node.attributes["N"]), int(node.attributes["K"])), bits)
    elif node.op == "GatherBlockQuantized":
        yield Packed(node.operand(0), table_sizes(node), bits)
    elif node.op == "QMoE":
        for weight in map(node.input, (2, 5, 8)):
            if weight is not None:
                shape = (*weight.sizes[:-1], weight.sizes[-1] * _packed(node, weight))
                yield Packed(weight, shape, int(node.attributes.get("expert_weight_bits", 4)))


# Reads the graph of an ONNX file as plain data, with the shapes that all of its values have for inputs of given shapes.


OnnxValue = CallTensor


@dataclass(slots=True, eq=False)
class OnnxNode(OperatorCall[OnnxValue]):
    """A node of the file."""

    version: int = 0
    """Of the set of operators that its own belongs to; what an attribute means may change from one to another."""


OnnxGraph = FileGraph[OnnxNode, OnnxValue]


@cache
def element(kind: int) -> tuple[str, float, Numbers]:
    """Return the name, the bytes (0 for texts) and the kind of numbers of the elements of a tensor, by ``TensorProto.DataType``."""
    name = helper.tensor_dtype_to_np_dtype(kind).name if kind else ""
    return name, itemsize(name), numbers_of(name)


SCOPES = "pkg.torch.onnx.name_scopes"
"""torch's exporter: every module around the node, outermost first, and the traced operation."""


def path_of_scopes(scopes: str | None) -> str:
    """``stage1.conv1`` from ``['', 'stage1', 'stage1.conv1', 'conv2d']``."""
    found = ast.literal_eval(scopes)[:-1] if scopes else []
    return next((str(path) for path in reversed(found) if path and not path.startswith("_empty_nn_module")), ROOT)


def path_of(node: Any) -> str:
    """The same of a node of any file: from its metadata, or from a name as other exporters write it.

    torch's older exporter names ``/stage1/stage1.0/conv1/Conv`` what belongs to ``stage1.0.conv1``, Keras's
    ``model/conv1/Conv2D`` what belongs to ``model.conv1``. An optimiser that replaces nodes makes names without scopes, or
    that end in ``/``; the result still has the name that the last of these nodes gave it.
    """
    for note in node.metadata_props:
        if note.key == SCOPES:
            return path_of_scopes(note.value)
    parts: list[str] = []
    name = node.name
    if ("/" not in name or name.endswith("/")) and node.output:
        name = node.output[0]
    for part in [part for part in name.split("/") if part][:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return ".".join(parts) or ROOT


CONSTANT_ELEMENTS = 4096
"""Values up to this size that depend on no input are computed."""
SETTINGS_ELEMENTS = 16
"""Initializers of floating-point numbers up to this size may be settings, such as the scales of a Resize."""
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
FILLING = {"Expand", "ConstantOfShape", "Tile"}
"""Operators whose last input decides the shape of the result."""


def read(
    file: Exported,
    shapes: Sequence[tuple[int, ...]],
    named: Mapping[str, tuple[int, ...]],
    values: Given = ((), {}),
) -> OnnxGraph:
    """The graph of a file for inputs of these shapes: in their order, and by name.

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


STANDARD = "ai.onnx"
"""The other name of the standard's domain, which has none."""

Given = tuple[Sequence["AnyArray | None"], Mapping[str, "AnyArray | None"]]


def deciding(values: AnyArray | None) -> AnyArray | None:
    """Return the values of an input if they may decide shapes: they are integers or truth values, and few."""
    is_deciding = values is not None and values.dtype.kind in "biu" and values.size <= CONSTANT_ELEMENTS
    return values if is_deciding else None


tensor_type = lru_cache(helper.make_tensor_type_proto)
T = TypeVar("T")
InferredTypes = Sequence[tuple[int, tuple[int, ...] | None]]
"""The ``TensorProto.DataType`` and the shape of each output."""


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
        """Weights in attributes."""

    def graph(
        self, shapes: Sequence[tuple[int, ...]], named: Mapping[str, tuple[int, ...]], values: Given
    ) -> OnnxGraph:
        graph = self._model.graph
        weights = [self._weight(tensor) for tensor in graph.initializer]
        weights += [self._sparse(tensor.values.name, tensor) for tensor in graph.sparse_initializer]
        given = [value for value in graph.input if value.name not in self._values]
        sized = by_name([value.name for value in given], shapes, named)
        valued = by_name([value.name for value in given], *values) if any(values) else {}
        inputs = tuple(
            self._know(v.name, v.type.tensor_type.elem_type, sized[v.name], deciding(valued.get(v.name))) for v in given
        )
        nodes, constants = [], []
        for node in in_order(graph.node):
            if node.op_type == "Constant":
                constants.append(self._constant(node))
            else:
                nodes.append(self._node(node))
        outputs = tuple(self._values[value.name] for value in graph.output)
        stored = self._stored(graph, weights, constants, nodes)
        return FileGraph(tuple(nodes), inputs, outputs, (*stored, *self._within))

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

    def _weight(self, tensor: onnx.TensorProto) -> OnnxValue:
        value = self._know(tensor.name, tensor.data_type, tuple(tensor.dims), is_constant=True)
        most = CONSTANT_ELEMENTS if value.numbers is INTEGER else SETTINGS_ELEMENTS
        if tensor.name not in self._file.weights and value.elements <= most:
            value.data = self._array(tensor)
        return value

    def _constant(self, node: onnx.NodeProto) -> OnnxValue:
        attribute = node.attribute[0]
        if attribute.name == "sparse_value":
            return self._sparse(node.output[0], attribute.sparse_tensor)
        if attribute.name != "value":
            return self._know_array(node.output[0], self._once(_attributes_key(node), partial(constant, node)))
        tensor = attribute.t
        value = self._know(node.output[0], tensor.data_type, tuple(tensor.dims), is_constant=True)
        if value.elements <= CONSTANT_ELEMENTS:
            value.data = self._once(tensor.SerializeToString(), partial(self._array, tensor))
        return value

    def _sparse(self, name: str, tensor: onnx.SparseTensorProto) -> OnnxValue:
        """Return a sparse constant, which the run-time expands when it opens the file: it is an array with all its zeros."""
        return self._know(name, tensor.values.data_type, tuple(tensor.dims), is_constant=True)

    def _array(self, tensor: onnx.TensorProto) -> AnyArray:
        base = str(Path(self._file.path).parent) if uses_external_data(tensor) else ""
        return numpy_helper.to_array(tensor, base)

    def _know_array(self, name: str, data: AnyArray, *, is_constant: bool = True) -> OnnxValue:
        kept = data if data.size <= CONSTANT_ELEMENTS else None
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        return self._know(name, kind, tuple(data.shape), kept, is_constant=is_constant)

    def _know(
        self,
        name: str,
        kind: int,
        shape: tuple[int, ...] | None,
        data: AnyArray | None = None,
        *,
        is_constant: bool = False,
    ) -> OnnxValue:
        value = OnnxValue(name, shape, *element(kind), is_constant, data)
        self._values[name], self._kinds[value] = value, kind
        return value

    def _once(self, key: object, make: Callable[[], T]) -> T:
        """Return the result for a key, made where it is the first."""
        if key not in self._known:
            self._known[key] = make()
        result: T = self._known[key]
        return result

    def _node(self, node: onnx.NodeProto) -> OnnxNode:
        inputs = tuple(self._values[name] if name else None for name in node.input)
        attributes = _attributes_key(node)
        key = (attributes, tuple(None if value is None else self._content(value) for value in inputs), len(node.output))
        outputs = tuple(self._outputs(node, inputs, key))
        paths = self._file.paths
        return OnnxNode(
            op=node.op_type,
            path=path_of(node) if paths is None else paths.get(node.name, ROOT),
            inputs=(*inputs, *self._weights_within(node)),
            outputs=tuple(value for value in outputs if value.name),
            attributes=self._once(("attributes", attributes), partial(_attributes, node)),
            namespace=node.domain or "onnx",
            name=node.name,
            version=self._opsets.get(node.domain, 0),
        )

    def _weights_within(self, node: onnx.NodeProto) -> Iterator[OnnxValue | None]:
        """Return the learned numbers that an operator has in its attributes, and in the graphs there, such as branches."""
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                weights = self._weights_of(inner)
                self._within += weights
                yield from weights
        names = CLASSICAL_WEIGHTS.get(node.op_type, ()) if node.domain == CLASSICAL else ()
        held = {attribute.name: len(attribute.floats) for attribute in node.attribute if attribute.floats}
        for name in names:
            value = None
            if name in held:
                label = f"{node.name or node.output[0]}.{name}"
                value = self._know(label, onnx.TensorProto.FLOAT, (held[name],), is_constant=True)
                self._within.append(value)
            yield value

    def _weights_of(self, graph: onnx.GraphProto) -> list[OnnxValue]:
        """Return the weights that a graph within a node holds; the shapes in it may differ from run to run."""
        outside, self._values = self._values, dict(self._values)
        weights = [self._weight(tensor) for tensor in graph.initializer]
        weights += [self._sparse(tensor.values.name, tensor) for tensor in graph.sparse_initializer]
        nodes, constants = [], []
        for node in in_order(graph.node):
            if node.op_type == "Constant":
                constants.append(self._constant(node))
                continue
            inputs = tuple(self._values.get(name) for name in node.input)
            is_constant = all(value is not None and value.is_constant for value in inputs)
            outputs = tuple(self._know(name, 0, None, is_constant=is_constant) for name in node.output if name)
            list(self._weights_within(node))
            nodes.append(OnnxNode(node.op_type, ROOT, inputs, outputs, _attributes(node), node.domain or "onnx"))
        stored = self._stored(graph, weights, constants, nodes)
        self._values = outside
        return stored

    def _content(self, value: OnnxValue) -> object:
        """Return all that the results of a node may depend on."""
        data = value.data
        if data is not None:
            data = repr(data.tolist()) if data.dtype == object else data.tobytes()
        return self._kinds[value], value.shape, data

    def _outputs(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], key: object) -> Iterator[OnnxValue]:
        results = self._once(("computed", key), lambda: computed(node, inputs, self._model.opset_import))
        if results is not None:
            for name, data in zip(node.output, results, strict=False):
                # A shape is the same in every step, whatever it is the shape of.
                is_constant = node.op_type == "Shape" or all(
                    v is None or v.is_constant or v.data is None for v in inputs
                )
                yield self._know_array(name, np.asarray(data), is_constant=is_constant)
            return
        inferred = self._once(("inferred", key), lambda: self._inferred(node, inputs))
        is_constant = all(value is None or value.is_constant for value in inputs) and node.op_type not in RANDOM
        for name, (kind, shape) in zip(node.output, inferred, strict=True):
            yield self._know(name, kind, shape, is_constant=is_constant)

    def _inferred(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> InferredTypes:
        given = [(name, value) for name, value in zip(node.input, inputs, strict=True) if value is not None]
        unknown = [(0, None)] * len(node.output)
        if any(value.shape is None for _, value in given):
            return unknown
        rule = SHAPES.get(node.domain, {}).get(node.op_type)
        if rule is not None:
            call = OnnxNode(node.op_type, "", tuple(inputs), (), _attributes(node), namespace=node.domain)
            shapes = inferred(rule, call)
            results = [(like if isinstance(like, int) else self._kinds[like], shape) for like, shape in shapes]
            return [*results, *unknown][: len(node.output)]
        data = {name: numpy_helper.from_array(value.data, name) for name, value in given if value.data is not None}
        try:
            found: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
                onnx.defs.get_schema(node.op_type, self._opsets[node.domain], node.domain),
                node,
                {name: tensor_type(self._kinds[value], value.sizes) for name, value in given},
                data,
                opset_imports=list(self._model.opset_import),
            )
        except Exception:  # another domain's operator, or shapes that do not fit: unknown
            return unknown
        return [_kind_and_shape(found[name]) if name in found else (0, None) for name in node.output]


def in_order(nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
    """Return nodes with each after those whose results it reads.

    The standard demands that of a file, but ONNX Runtime runs others too, and its conversion to 16 bits writes them.

    Raises:
        CycleError: a node reads what depends on itself.
    """
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needed = {index: {makers[name] for name in node.input if name in makers} for index, node in enumerate(nodes)}
    if all(before < index for index, indices in needed.items() for before in indices):
        return nodes
    sorter = TopologicalSorter(needed)
    sorter.prepare()
    ready = list(sorter.get_ready())
    heapify(ready)
    order = []
    while ready:
        first = heappop(ready)  # otherwise in the order of the file
        order.append(nodes[first])
        sorter.done(first)
        for index in sorter.get_ready():
            heappush(ready, index)
    return order


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _attributes_key(node: onnx.NodeProto) -> object:
    return node.domain, node.op_type, tuple(attribute.SerializeToString() for attribute in node.attribute)


def _kind_and_shape(kind: onnx.TypeProto) -> tuple[int, tuple[int, ...] | None]:
    tensor = kind.tensor_type
    is_open = not tensor.HasField("shape") or any(not dim.HasField("dim_value") for dim in tensor.shape.dim)
    return tensor.elem_type, None if is_open else tuple(dim.dim_value for dim in tensor.shape.dim)


def constant(node: onnx.NodeProto) -> AnyArray:
    """The array of a Constant whose attribute has numbers or texts, and no tensor."""
    results: Any = ReferenceEvaluator(node).run(None, {})
    return np.asarray(results[0])


WEIGHT_OPERANDS: dict[str, tuple[int, ...]] = mapping.by_name(
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


def weights_among(constants: Sequence[OnnxValue], nodes: Sequence[OnnxNode]) -> list[OnnxValue]:
    """Return the constants of ``Constant`` nodes that are weights, by the operands that they are, or that are computed from them.

    Exporters write there what a forward has in its code, too: the scales of a resize, or a vector that it multiplies by.
    """
    makers = {value: node.op for node in nodes for value in node.outputs}
    learned: set[OnnxValue] = set()
    for node in reversed(nodes):
        operands = {value for value in node.inputs if value is not None and value.is_constant}
        if node.result.is_constant:
            if not learned.isdisjoint(node.outputs):
                learned |= operands
        elif node.op == "Add" and any(makers.get(value) in BIASED for value in node.inputs if value is not None):
            learned.update(value for value in operands if value.shape and prod(value.shape) == max(value.shape))
        else:
            weights = set(map(node.input, WEIGHT_OPERANDS.get(node.op, ())))
            if node.op in ZERO_BIASED and not is_added(node.input(2)):
                weights.discard(node.input(2))
            learned.update(operands & weights)
    return [value for value in constants if value in learned]


SCALES: dict[str, tuple[int, ...]] = mapping.by_name(
    {
        "QuantizeLinear DequantizeLinear": (1, 2),
        "QLinearConv QLinearMatMul": (1, 2, 4, 5, 6, 7),
        "ConvInteger MatMulInteger": (2, 3),
    }
)
SCALES |= CONTRIB_SCALES
"""Positions of the operands that say what quantised numbers stand for: scales and zero points."""
CLASSICAL = "ai.onnx.ml"
"""The domain of classical machine learning, which scikit-learn's converters write. Its models are not counted."""
CLASSICAL_WEIGHTS: dict[str, tuple[str, ...]] = mapping.by_name(
    {
        "LinearClassifier LinearRegressor": ("coefficients", "intercepts"),
        "SVMClassifier SVMRegressor": ("coefficients", "support_vectors", "rho"),
        "TreeEnsembleClassifier": ("nodes_values", "class_weights"),
        "TreeEnsembleRegressor": ("nodes_values", "target_weights"),
        "Scaler": ("offset", "scale"),
    }
)
"""Attributes that have learned numbers; they are counted as further operands of the operator."""
CLASSICAL_BUFFERS: dict[str, tuple[int, ...]] = {"Scaler": (1, 2)}
"""Positions of those that are statistics of the data."""
WHOLE_BIASES = {"DequantizeLinear": 0, "QLinearConv": 8, "QGemm": 6}
"""Positions of the operands that are biases where they are integers of 32 bits."""


def without_scales(weights: Sequence[OnnxValue], nodes: Sequence[OnnxNode]) -> list[OnnxValue]:
    """Return the weights without the scales and zero points of quantised ones.

    Biases of 32 bits are marked as the real numbers that they stand for; other integers of that size are settings.
    """
    stored, scales = set(weights), set[OnnxValue | None]()
    measured = {scale for node in nodes if node.op == "DynamicQuantizeLinear" for scale in node.outputs[1:2]}
    """Scales of activations, which those of weights are multiplied with."""
    for node in nodes:
        scales.update(map(node.input, SCALES.get(node.op, ())))
        if node.op == "Mul" and not measured.isdisjoint(node.inputs):
            scales.update(node.inputs)
        bias = node.input(WHOLE_BIASES[node.op]) if node.op in WHOLE_BIASES else None
        if bias is not None and bias in stored and bias.dtype == "int32":
            bias.numbers = REAL
    return [value for value in weights if value not in scales]


def unpack(weights: Iterable[OnnxValue], nodes: Sequence[OnnxNode]) -> None:
    """Give weights whose numbers are packed in bytes their own shapes; the file stores as many bytes as before."""
    stored = {value for value in weights if value.dtype == "uint8"}
    for node in nodes:
        for packed in packed_weights(node):
            if packed.value in stored and packed.value.dtype == "uint8":
                packed.value.itemsize = packed.value.nbytes / prod(packed.shape)
                packed.value.shape = packed.shape
                if f"uint{packed.bits}" in QUANTISED:
                    packed.value.dtype = f"uint{packed.bits}"


def names_read(graph: onnx.GraphProto) -> set[str]:
    """Return the names of a graph's outputs, and of all that its nodes read, also in their own graphs."""
    found = {value.name for value in graph.output}
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found |= names_read(inner)
    return found


def computed(
    node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], opsets: Sequence[onnx.OperatorSetIdProto]
) -> Sequence[AnyArray] | None:
    """The results, where they depend on small constants alone, or on a known shape; None where they do not."""
    first = inputs[0] if inputs else None
    if first is None:
        return None
    if node.op_type == "Shape" and first.shape is not None:
        wanted: dict[str, int] = {str(a.name): int(a.i) for a in node.attribute}
        return [np.asarray(first.shape[wanted.get("start") : wanted.get("end")], np.int64)]
    if node.op_type == "CastLike" and first.data is not None and inputs[1] is not None and inputs[1].dtype:
        return [first.data.astype(inputs[1].dtype)]
    return _evaluated(node, inputs, opsets) if _may_be(node, inputs) else None


def _may_be(node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> bool:
    """True if all inputs are constants, and they and the results computed from them are small."""
    given = [value for value in inputs if value is not None]
    if node.op_type in RANDOM or any(value.data is None for value in given):
        return False
    if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
        return False
    if node.op_type in FILLING and prod(int(n) for n in given[-1].data.ravel()) > CONSTANT_ELEMENTS:
        return False
    return sum(value.elements for value in given) <= CONSTANT_ELEMENTS


def _evaluated(
    node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], opsets: Sequence[onnx.OperatorSetIdProto]
) -> Sequence[AnyArray] | None:
    feeds = {name: value.data for name, value in zip(node.input, inputs, strict=True) if value is not None}
    results = [name for name in node.output if name]
    function = helper.make_function("", node.op_type, list(feeds), results, [node], opsets)
    try:
        found: Any = ReferenceEvaluator(function).run(None, feeds, attributes={})
    except Exception:  # the reference does not implement every operator; the shape is inferred then
        return None
    return list(found)
