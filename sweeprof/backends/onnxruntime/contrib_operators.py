"""The operators that ONNX Runtime adds to the standard, which its optimisers, its quantisation and exporters of decoders write.

ONNX's shape inference does not know them, and ONNX Runtime's own is only within its sessions, which need a kernel for each
operator. So an operator has, besides its cost, a rule for the shapes of its results: those of its first input, those of an
operator of the standard, or a function here.

Only operators that users' files commonly contain are here; the others are listed as uncovered.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.helper import make_node, make_tensor_type_proto
from onnx.shape_inference import infer_node_outputs

from sweeprof.counting import mapping, operators
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.mapping import CallTensor, OperatorCall, elementwise, is_added
from sweeprof.counting.operators import INTEGER, added

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

SCALES: dict[str, tuple[int, ...]] = mapping.by_name(
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
