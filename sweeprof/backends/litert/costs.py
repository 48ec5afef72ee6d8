"""Maps the operators of a TFLite file to the definitions of :mod:`sweeprof.counting.operators`.

Quantised arithmetic costs what it stands for: its numbers are real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from sweeprof.backends.litert.graph import Tensor, TfliteGraph, TfliteOperator
from sweeprof.counting import mapping, operators
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import NOTHING, added


@dataclass(frozen=True, slots=True)
class TfliteCall:
    """An operator of a file, with its tensors."""

    operator: TfliteOperator
    graph: TfliteGraph

    def operand(self, position: int) -> Tensor:
        """Return an input that every call of the operator has."""
        index = self.operator.inputs[position]
        assert index is not None
        return self.graph.tensors[index]

    @property
    def result(self) -> Tensor:
        """The first output."""
        return self.graph.tensors[self.operator.outputs[0]]

    def has(self, position: int) -> bool:
        """Return True if an input is given."""
        return len(self.operator.inputs) > position and self.operator.inputs[position] is not None


TfliteRule = Callable[[TfliteCall], OperatorCost]


_ELEMENTWISE = """
arithmetic: ADD SUB POW ABS NEG MAXIMUM MINIMUM SQUARE FLOOR CEIL ROUND SIGN FLOOR_DIV FLOOR_MOD
multiply: MUL
divide: DIV
function: SQRT EXP LOG SIN COS
relu: RELU
hardtanh: RELU6 RELU_N1_TO_1 RELU_0_TO_1
tanh: TANH
sigmoid: LOGISTIC
leaky_relu: LEAKY_RELU PRELU
elu: ELU
hardswish: HARD_SWISH
rsqrt: RSQRT
squared_difference: SQUARED_DIFFERENCE
bilinear: RESIZE_BILINEAR
"""


def _fully_connected(call: TfliteCall) -> OperatorCost:
    """Weights ``(out, in)``: over every leading axis of the input, however many it has."""
    made = call.result
    return operators.matmul(made.elements, call.operand(1).sizes[-1], made.numbers, bias=call.has(2))


def _convolution(first: int, end: int | None) -> TfliteRule:
    """Return the rule of a convolution whose window is this slice of the weights' sizes."""

    def rule(call: TfliteCall) -> OperatorCost:
        window, made = prod(call.operand(1).sizes[first:end]), call.result
        return operators.convolution(made.elements, window, made.numbers, bias=call.has(2))

    return rule


def _transposed(call: TfliteCall) -> OperatorCost:
    """Inputs are (output shape, weights, values, bias); weights ``(out, height, width, in)`` or ``(depth, …, out, in)``."""
    window, made = prod(call.operand(1).sizes[:-1]), call.result
    inputs = call.operand(2).elements
    return operators.transposed_convolution(inputs, window, made.elements, made.numbers, bias=call.has(3))


def _matmul(call: TfliteCall) -> OperatorCost:
    inner = call.operand(0).sizes[-2 if call.operator.options.get("adjX") else -1]
    return operators.matmul(call.result.elements, inner, call.result.numbers)


def _gelu(call: TfliteCall) -> OperatorCost:
    name = "gelu_tanh" if call.operator.options.get("approximate") else "gelu"
    return operators.elementwise(name, call.result.elements, call.result.numbers)


def _average_pool(call: TfliteCall) -> OperatorCost:
    window = call.operator.options["filterWidth"] * call.operator.options["filterHeight"]
    return operators.average_pool(call.operand(0).elements, call.result.elements, window)


_RULES: dict[str, TfliteRule] = {
    **mapping.elementwise_rules(_ELEMENTWISE),
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": _matmul,
    "CONV_2D": _convolution(1, None),  # weights (out, height, width, in/groups)
    "CONV_3D": _convolution(0, -1),  # weights (depth, height, width, in, out)
    "DEPTHWISE_CONV_2D": _convolution(1, 3),  # weights (1, height, width, out)
    **mapping.named(_transposed, "TRANSPOSE_CONV CONV_3D_TRANSPOSE"),
    "AVERAGE_POOL_2D": _average_pool,
    "MAX_POOL_2D": mapping.max_pool,
    "SOFTMAX": mapping.softmax,
    "LOG_SOFTMAX": mapping.log_softmax,
    "GELU": _gelu,
    **mapping.named(mapping.reduction("sum"), "SUM REDUCE_MAX REDUCE_MIN"),
    "MEAN": mapping.reduction("mean"),
}


def cost_of(call: TfliteCall) -> OperatorCost | None:
    """Return the cost of one call with the activation that is fused into it; None where it is not known."""
    name, activation = call.operator.name, call.operator.activation
    if name in FREE:
        return NOTHING
    if name not in _RULES or (activation and activation not in _RULES):
        return None
    own = _RULES[name](call)
    return added(own, _RULES[activation](call)) if activation else own


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
