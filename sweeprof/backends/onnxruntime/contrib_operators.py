"""The operators that ONNX Runtime adds to the standard, which its optimisers, its quantisation and exporters of decoders write.

ONNX's shape inference does not know them, and ONNX Runtime's own is only within its sessions, which need a kernel for each
operator. So an operator has, besides its cost, a rule for the shapes of its results: those of its first input, those of an
operator of the standard, or a function here.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md; the operators of the blocked layout (NCHWc) are
in onnxruntime/core/graph/contrib_ops/nchwc_schema_defs.cc there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
MICROSOFT, BLOCKED = "com.microsoft", "com.microsoft.nchwc"


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
        shapes = [value.sizes for value in given]
        is_last = node.op in CHANNELS_LAST or bool(node.attributes.get("channels_last"))
        if is_last:
            shapes[0] = channels_second(shapes[0])
        if node.op in WEIGHT_CHANNELS_LAST:
            shapes[1] = channels_second(shapes[1])
        schema = onnx.defs.get_schema(self.op, OPSET)
        attributes = {name: value for name, value in node.attributes.items() if name in schema.attributes}
        types = {f"x{i}": make_tensor_type_proto(TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)}
        call = make_node(self.op, [*types], ["y"], **attributes)
        sides = infer_node_outputs(schema, call, types)["y"].tensor_type.shape.dim
        made = tuple(side.dim_value for side in sides)
        if not made or not all(side.HasField("dim_value") for side in sides):
            return []
        typed = given[0] if self.typed is None else node.operand(self.typed)
        return [(typed, channels_at_end(made) if is_last else made)]


OPSET = 13
"""Version of the standard's operators, whose attributes ONNX Runtime's have."""
CHANNELS_LAST = names("NhwcConv NhwcFusedConv NhwcMaxPool")
"""Operators whose first operand and result have the channels on the last axis; others have an attribute that tells."""
WEIGHT_CHANNELS_LAST = names("NhwcConv NhwcFusedConv")


def channels_second(sizes: Shape) -> Shape:
    """Return a shape whose channels are the last axis in the order of the standard."""
    return (sizes[0], sizes[-1], *sizes[1:-1])


def channels_at_end(sizes: Shape) -> Shape:
    """Return a shape in the order of the standard with the channels as the last axis."""
    return (sizes[0], *sizes[2:], sizes[1])


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


def _skip_group_norm_shape(node: ContribNode) -> Sequence[Typed]:
    given = node.operand(0)
    return [(given, given.sizes)] * 2


def _split_gelu_shape(node: ContribNode) -> Sequence[Typed]:
    given = node.operand(0)
    return [(given, (*given.sizes[:-1], given.sizes[-1] // 2))]


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


def _packing_shape(node: ContribNode) -> Sequence[Typed]:
    """``(X (batch, L, E), tokens of each)``: as if no sample had padding, because only values tell how much there is."""
    given, counts = node.operand(0), node.operand(1)
    batch, length = given.sizes[:2]
    tokens = (batch * length, *given.sizes[2:])
    return [(given, tokens), (counts, (batch, length)), (counts, (batch + 1,)), (counts, (1,))]


def _unpacking_shape(node: ContribNode) -> Sequence[Typed]:
    given, offsets = node.operand(0), node.operand(1)
    return [(given, (*offsets.sizes, *given.sizes[1:]))]


def _quantised_lstm_shape(node: ContribNode) -> Sequence[Typed]:
    """``X (steps, batch, I)`` and ``W (directions, I, 4 H)``."""
    given = node.operand(0)
    directions, hidden = node.operand(1).sizes[0], int(node.attributes["hidden_size"])
    steps, batch = given.sizes[:2]
    state = (given, (directions, batch, hidden))
    return [(given, (steps, directions, batch, hidden)), state, state]


def _reorder_output_shape(node: ContribNode) -> Sequence[Typed]:
    given = node.operand(0)
    sizes = (given.sizes[0], int(node.attributes["channels"]), *given.sizes[2:])
    return [(given, channels_at_end(sizes) if node.attributes.get("channels_last") else sizes)]


def _reorder_input_shape(node: ContribNode) -> Sequence[Typed]:
    """Channels are not filled up to whole blocks here: only the host tells how large a block is."""
    given = node.operand(0)
    return [(given, channels_second(given.sizes) if node.attributes.get("channels_last") else given.sizes)]


def _blocked_upsample_shape(node: ContribNode) -> Sequence[Typed]:
    given, scales = node.operand(0), node.attributes["scales"]
    return [(given, tuple(size * int(scale) for size, scale in zip(given.sizes, scales, strict=True)))]


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


def _linear_attention_shape(node: ContribNode) -> Sequence[Typed]:
    """Of q ``(batch, L, heads · E)``, k and v."""
    query, key, value = (node.operand(position) for position in range(3))
    heads, key_heads = int(node.attributes["q_num_heads"]), int(node.attributes["kv_num_heads"])
    width, value_width = key.sizes[2] // key_heads, value.sizes[2] // key_heads
    state = node.input(3) or query
    return [
        (query, (*query.sizes[:2], heads * value_width)),
        (state, (query.sizes[0], key_heads, width, value_width)),
    ]


def linear_attention(node: ContribNode) -> OperatorCost:
    """Return the cost of a linear attention of q ``(batch, L, heads · E)``, k and v; its rule is an attribute."""
    query, key, value = (node.operand(position).sizes for position in range(3))
    heads, key_heads = int(node.attributes["q_num_heads"]), int(node.attributes["kv_num_heads"])
    rule = node.text("update_rule", "gated_delta")
    tokens, width, value_width = query[0] * query[1], key[2] // key_heads, value[2] // key_heads
    is_gated, is_delta = "gated" in rule, "delta" in rule
    return operators.linear_attention(tokens, heads, key_heads, width, value_width, gated=is_gated, delta=is_delta)


def _causal_convolution_shape(node: ContribNode) -> Sequence[Typed]:
    given, kernel = node.operand(0), node.operand(1).sizes[-1]
    return [(given, given.sizes), (node.input(3) or given, (*given.sizes[:2], kernel - 1))]


def _packed_shape(node: ContribNode) -> Sequence[Typed]:
    given = node.operand(0)
    if node.op == "PackedAttention":
        return [(given, (given.sizes[0], _projected_widths(node)[1]))]
    value = node.input(2)
    return [(given, (given.sizes[0], value.sizes[1] if value is not None else given.sizes[1] * given.sizes[3]))]


def _packed_cost(node: ContribNode) -> OperatorCost:
    """Samples without their padding, one after the other: the scores are those of samples of the full length L.

    The operand before the cumulated lengths is ``(batch, L)``.
    """
    given, heads = node.operand(0), int(node.attributes["num_heads"])
    if node.op == "PackedAttention":
        batch, length = node.operand(3).sizes
        width, value_width = _projected_widths(node)
        sizes = Heads(batch, heads, length, length, width // heads, value_width // heads)
        return added(_projection(node, is_quantised=False), sizes.cost(node, masks=(5,)))
    batch, length = node.operand(4).sizes
    width = given.sizes[-1] if len(given.sizes) == 4 else given.sizes[1] // heads
    value = node.input(2)
    value_width = value.sizes[1] // heads if value is not None else width
    cost = Heads(batch, heads, length, length, width, value_width).cost(node, masks=(6,))
    if node.input(3) is None:
        return cost
    projected = sum(value.elements for value in node.inputs[:3] if value is not None)
    return added(cost, operators.elementwise("arithmetic", projected, operators.REAL))


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
            "BiasAdd BiasGelu BiasSoftmax FastGelu Gelu QuickGelu MoE QMoE": like_first,
            "GroupNorm SimplifiedLayerNormalization RotaryEmbedding": like_first,
            "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax Trilu": like_first,
            "QuantizeLinear": _quantised_shape,
            "DequantizeLinear": _dequantised_shape,
            "QLinearAdd QLinearMul": Counterpart("Add", (0, 3)),
            "QLinearWhere": Counterpart("Max", (0, 1, 4), typed=1),
            "QLinearConcat": Counterpart("Concat", slice(2, None, 3)),
            "QLinearReduceMean": Counterpart("ReduceMean"),
            "QLinearAveragePool": Counterpart("AveragePool"),
            "QLinearGlobalAveragePool": Counterpart("GlobalAveragePool"),
            "QLinearConv": Counterpart("Conv", (0, 3), typed=7),
            "FusedConv NhwcConv NhwcFusedConv": Counterpart("Conv", (0, 1)),
            "NhwcMaxPool": Counterpart("MaxPool"),
            "FusedGemm": Counterpart("Gemm", (0, 1)),
            "QGemm": Counterpart("Gemm", (0, 3)),
            "GemmFastGelu DynamicQuantizeMatMul": Counterpart("MatMul", (0, 1)),
            "MatMulIntegerToFloat": Counterpart("MatMul", (0, 1), typed=2),
            "FusedMatMul FusedMatMulActivation TransposeMatMul": _fused_matmul_shape,
            "MatMulNBits MatMulBnb4": _block_product_shape,
            "GatherBlockQuantized": _blocked_gather_shape,
            "EmbedLayerNormalization": _embedding_norm_shape,
            "SkipLayerNormalization SkipSimplifiedLayerNormalization": _skip_norm_shape,
            "SkipGroupNorm": _skip_group_norm_shape,
            "BiasSplitGelu": _split_gelu_shape,
            "DynamicQuantizeLSTM": _quantised_lstm_shape,
            "RemovePadding": _packing_shape,
            "RestorePadding": _unpacking_shape,
            "PackedAttention PackedMultiHeadAttention": _packed_shape,
            "LinearAttention": _linear_attention_shape,
            "CausalConvWithState": _causal_convolution_shape,
            "Attention": partial(_self_attention_shape, past=4, typed=0),
            "QAttention": partial(_self_attention_shape, past=8, typed=3),
            "MultiHeadAttention": _multi_head_shape,
            "GroupQueryAttention": _grouped_shape,
        }
    ),
    BLOCKED: mapping.by_name(
        {
            "Conv": Counterpart("Conv", (0, 1)),
            **{op: Counterpart(op) for op in ("AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool")},
            "ReorderInput": _reorder_input_shape,
            "ReorderOutput": _reorder_output_shape,
            "Upsample": _blocked_upsample_shape,
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


def _activated(rule: Callable[[ContribNode], OperatorCost], node: ContribNode) -> OperatorCost | None:
    """Return the cost of an operator and of the nonlinearity in its attribute, if there is one; None if that is unknown."""
    name = node.text("activation", "")
    if not name:
        return rule(node)
    definition = mapping.activation(name)
    return None if definition is None else added(rule(node), elementwise(definition, node))


def causal_convolution(node: ContribNode) -> OperatorCost | None:
    """Return the cost of a convolution of each channel ``(X, W (channels, 1, K), bias)`` with the activation in its attribute."""
    if node.text("activation", "none") == "none":
        return mapping.convolution(node, first=1)
    return _activated(partial(mapping.convolution, first=1), node)


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


def _gemm_gelu(node: ContribNode) -> OperatorCost:
    return added(mapping.matmul(node, bias=2), elementwise("gelu_tanh", node))


def _biased(definition: str, node: ContribNode) -> OperatorCost:
    """Return the cost of an elementwise operator, whose second operand is a bias that may be omitted."""
    cost = elementwise(definition, node)
    return added(elementwise("arithmetic", node), cost) if node.input(1) is not None else cost


def _quick_gelu(node: ContribNode) -> OperatorCost:
    """``x · sigmoid(a · x)``."""
    cost = elementwise("silu", node)
    return added(elementwise("multiply", node), cost) if node.attributes.get("alpha", 1.702) != 1 else cost


def _split_gelu(node: ContribNode) -> OperatorCost:
    """The GELU of one half of ``x + bias`` multiplies the other one."""
    given = node.operand(0)
    bias = operators.elementwise("arithmetic", given.elements, given.numbers)
    return added(bias, elementwise("gelu", node), elementwise("multiply", node))


def _twice_added(node: ContribNode) -> OperatorCost:
    return added(elementwise("arithmetic", node), elementwise("arithmetic", node))


def _bias_softmax(node: ContribNode) -> OperatorCost:
    given = node.operand(0)
    row = prod(given.sizes[int(node.attributes.get("axis", 1)) :])
    return added(elementwise("arithmetic", node), operators.softmax(given.elements, row))


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


def _group_norm(node: ContribNode) -> OperatorCost:
    """``(X, gamma, beta)``, of the fused one also what is added to X before, and a bias; the activation is a SiLU."""
    given = node.operand(0)
    rows = given.sizes[0] * int(node.attributes["groups"])
    sums = sum(node.input(position) is not None for position in (3, 4))
    parts = [
        operators.normalisation(given.elements, rows, weight=True, bias=True),
        operators.elementwise("arithmetic", sums * given.elements, given.numbers),
    ]
    if node.attributes.get("activation"):
        parts.append(elementwise("silu", node))
    return added(*parts)


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


def _experts(weights: tuple[int, ...], biases: tuple[int, ...], node: ContribNode) -> OperatorCost:
    """Return the cost of a mixture of experts for ``(X (…, E), scores of the router (tokens, experts), …)``.

    Every token is multiplied with the weights of ``k`` experts, and their results are weighted and added up.

    Args:
        weights: positions of the weights of all experts: the second ones are those of the result.
        biases: positions of their biases.
        node: of the mixture.
    """
    given, router = node.operand(0), node.operand(1)
    experts, width = router.sizes[-1], given.sizes[-1]
    chosen = given.elements // width * int(node.attributes.get("k", 1))
    held = [value for value in map(node.input, weights) if value is not None]
    each = [value.elements * _packed(node, value) // experts for value in held]
    added_biases = sum(value.elements // experts for value in map(node.input, biases) if value is not None)
    macs = chosen * sum(each)
    inner = each[1] // width
    name = node.text("activation_type", "relu")
    is_gated = name == "swiglu" or len(held) == 3
    definition = "silu" if name == "swiglu" else mapping.activation(name) or "relu"
    return added(
        operators.sums_of_products(macs, chosen * sum(size // width for size in each), operators.REAL),
        operators.elementwise("arithmetic", chosen * added_biases, operators.REAL),
        operators.elementwise(definition, chosen * inner, operators.REAL),
        operators.elementwise("multiply", chosen * inner if is_gated else 0, operators.REAL),
        operators.softmax(router.elements, experts),
        (0, 2 * chosen * width, 2 * chosen * width),
    )


def _packed(node: ContribNode, weight: CallTensor) -> int:
    """Return the weights of experts in an element of a tensor."""
    return 8 // int(node.attributes.get("expert_weight_bits", 4)) if weight.dtype == "uint8" else 1


ContribRule = Callable[[ContribNode], OperatorCost | None]
COSTS: dict[str, ContribRule] = mapping.by_name(
    {
        "FusedConv NhwcConv NhwcFusedConv": partial(_activated, _convolution),
        "QLinearConv": partial(mapping.convolution, first=1, weight=3, bias=8),
        "NhwcMaxPool": mapping.max_pool,
        "FusedGemm": partial(_activated, partial(mapping.matmul, transposed="transA", bias=2)),
        "FusedMatMul TransposeMatMul": _fused_matmul,
        "FusedMatMulActivation": partial(_activated, _fused_matmul),
        "GemmFastGelu": _gemm_gelu,
        "QGemm": _quantised_gemm,
        "MatMulIntegerToFloat": partial(_dynamic_product, bias=6),
        "DynamicQuantizeMatMul": partial(_dynamic_product, bias=4),
        "MatMulNBits MatMulBnb4": _block_product,
        "DynamicQuantizeLSTM": _quantised_lstm,
        "Attention": partial(_self_attention_cost, past=4, masks=(3, 5)),
        "QAttention": partial(_self_attention_cost, past=8, masks=(5,), is_quantised=True),
        "MultiHeadAttention": _multi_head_cost,
        "GroupQueryAttention": _grouped_cost,
        "PackedAttention PackedMultiHeadAttention": _packed_cost,
        "LinearAttention": linear_attention,
        "CausalConvWithState": causal_convolution,
        "MoE": partial(_experts, (2, 4, 6), (3, 5, 7)),
        "QMoE": partial(_experts, (2, 5, 8), (4, 7, 10)),
        "BiasGelu": partial(_biased, "gelu"),
        "FastGelu": partial(_biased, "gelu_tanh"),
        "Gelu": partial(elementwise, "gelu"),
        "QuickGelu": _quick_gelu,
        "BiasSplitGelu": _split_gelu,
        "BiasAdd": _twice_added,
        "BiasSoftmax": _bias_softmax,
        "SimplifiedLayerNormalization": rms_norm,
        "SkipLayerNormalization SkipSimplifiedLayerNormalization": _skip_norm,
        "EmbedLayerNormalization": _embedding_norm,
        "GroupNorm SkipGroupNorm": _group_norm,
        "RotaryEmbedding": partial(rotary, cosines=2),
    }
)
"""Rule by the name of an operator of ONNX Runtime's domain."""
FREE = names(
    """
    QLinearAdd QLinearMul QLinearWhere QLinearConcat QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QLinearReduceMean
    QLinearAveragePool QLinearGlobalAveragePool
    QuantizeLinear DequantizeLinear GatherBlockQuantized RemovePadding RestorePadding
    ExpandDims GatherND Pad Range Trilu Unique
    """
)
"""Operators of that domain that move or convert, or compute with integers and have no products."""
BLOCKED_COSTS: dict[str, ContribRule] = mapping.by_name(
    {
        "Conv": partial(_activated, _convolution),
        "AveragePool": partial(mapping.average_pool, window=("kernel_shape",)),
        "MaxPool GlobalMaxPool": mapping.max_pool,
        "GlobalAveragePool": partial(mapping.reduction, "mean"),
        "Upsample": mapping.resize,
    }
)
"""The same of the domain of the blocked layout."""
BLOCKED_FREE = names("ReorderInput ReorderOutput")
RULES: Mapping[str, tuple[Mapping[str, ContribRule], frozenset[str]]] = {
    MICROSOFT: (COSTS, FREE),
    BLOCKED: (BLOCKED_COSTS, BLOCKED_FREE),
}
"""Rules, and operators without arithmetic, by domain."""


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
