"""The cost of each operator of a TFLite file: MACs, FLOPs and ops by the tables of docs/counting.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sweeprof.backends.litert.graph import Tensor, TfliteOperator


class TfliteCost(NamedTuple):
    """The cost of one run of an operator, for the whole batch."""

    macs: int = 0
    flops: int = 0
    ops: int = 0


Ins = Sequence[Tensor | None]
TfliteRule = Callable[[TfliteOperator, Ins, Tensor], TfliteCost]

ELEMENTWISE = {
    "RELU": (1, 1),
    "RELU6": (1, 2),
    "RELU_N1_TO_1": (1, 2),
    "RELU_0_TO_1": (1, 2),
    "TANH": (1, 7),
    "LOGISTIC": (1, 3),
    "LEAKY_RELU": (1, 4),
    "PRELU": (1, 4),
    "ELU": (1, 3),
    "HARD_SWISH": (1, 5),
    "RSQRT": (1, 2),
    "SQUARED_DIFFERENCE": (2, 2),
    "RESIZE_BILINEAR": (7, 7),
    **dict.fromkeys("ADD SUB MUL DIV POW SQRT EXP LOG ABS NEG MAXIMUM MINIMUM SQUARE SIN COS".split(), (1, 1)),
    **dict.fromkeys("FLOOR CEIL ROUND SIGN FLOOR_DIV FLOOR_MOD".split(), (1, 1)),
}
"""FLOPs and ops of each element of the result."""
FREE = frozenset(
    """
    RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE CONCATENATION PACK UNPACK SLICE STRIDED_SLICE SPLIT SPLIT_V PAD PADV2 MIRROR_PAD SHAPE
    RANK FILL TILE GATHER GATHER_ND SCATTER_ND CAST BITCAST DEQUANTIZE QUANTIZE BROADCAST_TO BROADCAST_ARGS ARG_MAX ARG_MIN
    EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR LOGICAL_NOT SELECT SELECT_V2 WHERE RANGE
    SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND SPACE_TO_DEPTH DEPTH_TO_SPACE REVERSE_V2 REVERSE_SEQUENCE ZEROS_LIKE ONE_HOT TOPK_V2
    EMBEDDING_LOOKUP RESIZE_NEAREST_NEIGHBOR MATRIX_DIAG MATRIX_SET_DIAG DYNAMIC_UPDATE_SLICE REDUCE_ALL REDUCE_ANY
    """.split()
)
"""Operators that move or compare, and compute nothing."""


def cost_of(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost | None:
    """The cost of one run; None where it is not known. Quantized arithmetic costs what it stands for; that of indices nothing."""
    if operator.name in FREE:
        return TfliteCost()
    if operator.name in ELEMENTWISE:
        flops, ops = ELEMENTWISE[operator.name]
        own = TfliteCost(flops=flops * output.numel, ops=ops * output.numel) if output.is_real else TfliteCost()
    elif operator.name in RULES:
        own = RULES[operator.name](operator, inputs, output)
    else:
        return None
    if not operator.activation:
        return own
    if operator.activation not in ELEMENTWISE:
        return None
    flops, ops = ELEMENTWISE[operator.activation]
    return TfliteCost(own.macs, own.flops + flops * output.numel, own.ops + ops * output.numel)


def _product(macs: int, outputs: int, has_bias: bool) -> TfliteCost:
    """``outputs`` sums of products, each with a bias or without."""
    return TfliteCost(macs, 2 * macs + (outputs if has_bias else 0), 2 * macs - (0 if has_bias else outputs))


def _given(inputs: Ins, position: int) -> bool:
    return len(inputs) > position and inputs[position] is not None


def _shape(inputs: Ins, position: int) -> tuple[int, ...]:
    tensor = inputs[position]
    assert tensor is not None
    return tensor.shape


def _fully_connected(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    """Weights ``(out, in)``: over every leading axis of the input, however many it has."""
    return _product(output.numel * _shape(inputs, 1)[-1], output.numel, _given(inputs, 2))


def _convolution(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    """Weights ``(out, height, width, in/groups)``."""
    return _product(output.numel * math.prod(_shape(inputs, 1)[1:]), output.numel, _given(inputs, 2))


def _convolution_3d(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    """Weights ``(depth, height, width, in, out)``."""
    return _product(output.numel * math.prod(_shape(inputs, 1)[:-1]), output.numel, _given(inputs, 2))


def _depthwise(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    """Weights ``(1, height, width, out)``."""
    return _product(output.numel * math.prod(_shape(inputs, 1)[1:3]), output.numel, _given(inputs, 2))


def _transposed(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    """Inputs are (output shape, weights ``(out, height, width, in)``, values, bias): each value is spread over window and out."""
    macs = math.prod(_shape(inputs, 2)) * math.prod(_shape(inputs, 1)[:-1])
    return _product(macs, output.numel, _given(inputs, 3))


def _batch_matmul(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    left = _shape(inputs, 0)
    return _product(output.numel * left[-2 if operator.options.get("adjX") else -1], output.numel, False)


def _gelu(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    return TfliteCost(flops=output.numel, ops=(15 if operator.options.get("approximate") else 5) * output.numel)


def _softmax(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    n, width = output.numel, output.shape[-1]
    return TfliteCost(flops=n, ops=4 * n - n // width)


def _log_softmax(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    return TfliteCost(flops=output.numel, ops=4 * output.numel)


def _average_pool(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    window = operator.options["filterWidth"] * operator.options["filterHeight"]
    return TfliteCost(flops=math.prod(_shape(inputs, 0)), ops=output.numel * window)


def _max_pool(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    return TfliteCost(flops=math.prod(_shape(inputs, 0)), ops=output.numel)


def _folded(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    """A sum or an extreme."""
    n = math.prod(_shape(inputs, 0)) if output.is_real else 0
    return TfliteCost(flops=n, ops=max(0, n - output.numel) if output.is_real else 0)


def _mean(operator: TfliteOperator, inputs: Ins, output: Tensor) -> TfliteCost:
    n = math.prod(_shape(inputs, 0))
    return TfliteCost(flops=n, ops=n)


RULES: dict[str, TfliteRule] = {
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _batch_matmul,
    "CONV_2D": _convolution,
    "CONV_3D": _convolution_3d,
    "DEPTHWISE_CONV_2D": _depthwise,
    "TRANSPOSE_CONV": _transposed,
    "CONV_3D_TRANSPOSE": _transposed,  # its weights are (depth, height, width, out, in)
    "AVERAGE_POOL_2D": _average_pool,
    "MAX_POOL_2D": _max_pool,
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": _log_softmax,
    "GELU": _gelu,
    "SUM": _folded,
    "REDUCE_MAX": _folded,
    "REDUCE_MIN": _folded,
    "MEAN": _mean,
}
