"""The cost of each operator of a TensorFlow graph, by the definitions of docs/counting.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2, prod
from typing import TYPE_CHECKING

from sweeprof.backends.keras.costs import (
    NOTHING,
    arithmetic,
    batch_normalised,
    each_of,
    einsum,
    elements,
    parts,
    pointwise,
    product,
    softmaxed,
)
from sweeprof.counting.formulas import OperatorCost

if TYPE_CHECKING:
    import tensorflow as tf

TensorflowRule = Callable[["tf.Operation"], OperatorCost]


@dataclass(frozen=True, slots=True)
class Sized:
    """Shape and data type of a tensor, as the formulas of Keras's operations read them."""

    shape: tuple[int, ...]
    dtype: str


def sized(tensor: tf.Tensor) -> Sized:
    """Return the shape and data type of a tensor whose shape is known."""
    return Sized(tuple(int(size) for size in tensor.shape), tensor.dtype.name)


def _made(operator: tf.Operation) -> Sized:
    return sized(operator.outputs[0])


def _given(operator: tf.Operation, position: int = 0) -> Sized:
    return sized(operator.inputs[position])


def _positions(operator: tf.Operation) -> Sized:
    """Result of a convolution; a dilated one computes padding between SpaceToBatchND and BatchToSpaceND, which is cut."""
    consumers = operator.outputs[0].consumers()
    while len(consumers) == 1 and consumers[0].type == "Squeeze":
        consumers = consumers[0].outputs[0].consumers()
    is_cut = len(consumers) == 1 and consumers[0].type == "BatchToSpaceND"
    return _made(consumers[0] if is_cut else operator)


def _convolution(operator: tf.Operation) -> OperatorCost:
    """Kernel ``(*space, in/groups, out)``: each output element is a sum over space and in/groups."""
    made = _positions(operator)
    return product(elements(made) * prod(_given(operator, 1).shape[:-1]), elements(made), made)


def _depthwise(operator: tf.Operation) -> OperatorCost:
    """Kernel ``(height, width, in, multiplier)``: each output element is a sum over space alone."""
    made = _positions(operator)
    return product(elements(made) * prod(_given(operator, 1).shape[:2]), elements(made), made)


def _transposed(operator: tf.Operation) -> OperatorCost:
    """Inputs are (output shape, kernel ``(*space, out, in)``, values): each value is spread over space and out."""
    made = _made(operator)
    return product(elements(_given(operator, 2)) * prod(_given(operator, 1).shape[:-1]), elements(made), made)


def _matmul(operator: tf.Operation) -> OperatorCost:
    left, made = _given(operator), _made(operator)
    transposed = operator.get_attr("transpose_a" if operator.type == "MatMul" else "adj_x")
    return product(elements(made) * left.shape[-2 if transposed else -1], elements(made), made)


def _einsum(operator: tf.Operation) -> OperatorCost:
    return einsum(
        operator.get_attr("equation").decode(), [sized(tensor).shape for tensor in operator.inputs], _made(operator)
    )


def _elementwise(flops: int, ops: int) -> TensorflowRule:
    rule = pointwise(flops, ops)
    return lambda operator: rule(None, (), {}, _made(operator))


def _sum_of_all(operator: tf.Operation) -> OperatorCost:
    """``AddN``."""
    made = _made(operator)
    work = (len(operator.inputs) - 1) * elements(made)
    return (0, work, work) if arithmetic(made) else NOTHING


def _folded(each: int, rest: int) -> TensorflowRule:
    """So many operations for each input and ``rest`` for each output."""

    def rule(operator: tf.Operation) -> OperatorCost:
        given, made = _given(operator), _made(operator)
        work = each * elements(given) * parts(given)
        return (0, work, max(0, work + rest * elements(made) * parts(given))) if arithmetic(made) else NOTHING

    return rule


def _fourier(axes: int, each: float) -> TensorflowRule:
    """``5 n log₂ n`` for a complex transform over n points, half of it where one side is real."""

    def rule(operator: tf.Operation) -> OperatorCost:
        larger = max(_given(operator).shape, _made(operator).shape, key=prod)
        points = prod(larger[-axes:])
        work = round(each * prod(larger) * log2(points)) if points > 1 else 0
        return 0, work, work

    return rule


def _softmax(operator: tf.Operation) -> OperatorCost:
    return softmaxed(elements(_given(operator)), _given(operator).shape[-1])


def _log_softmax(operator: tf.Operation) -> OperatorCost:
    return 0, elements(_given(operator)), 4 * elements(_given(operator))


def _average_pool(operator: tf.Operation) -> OperatorCost:
    return 0, elements(_given(operator)), elements(_made(operator)) * prod(operator.get_attr("ksize"))


def _max_pool(operator: tf.Operation) -> OperatorCost:
    return 0, elements(_given(operator)), elements(_made(operator))


def _batch_norm(operator: tf.Operation) -> OperatorCost:
    training = operator.get_attr("is_training")
    return batch_normalised(elements(_given(operator)), elements(_given(operator, 1)), affine=True, training=training)


_SAME_AS = """
Add AddV2 BiasAdd: add
Sub: subtract
Mul: multiply
RealDiv Div DivNoNan FloorDiv FloorMod Mod Xdivy Xlogy: divide
Maximum Minimum ClipByValue: maximum
Neg Abs Sign Square Pow Exp Expm1 Log Log1p Sqrt Sin Cos Tan Erf Erfc Floor Ceil Round Rint Reciprocal Inv Sinh Cosh: exp
Asin Acos Atan Atan2 Asinh Acosh Atanh: exp
Rsqrt: rsqrt
Tanh: tanh
Sigmoid: sigmoid
Relu6: relu6
LeakyRelu: leaky_relu
Elu: elu
Selu: selu
Softplus: softplus
Softsign: softsign
"""


def _elementwise_rules() -> dict[str, TensorflowRule]:
    each = each_of()
    lines = (line.partition(": ") for line in _SAME_AS.strip().split("\n"))
    return {name: _elementwise(*each[known]) for names, _, known in lines for name in names.split()}


COSTS: dict[str, TensorflowRule] = {
    **_elementwise_rules(),
    "Relu": _elementwise(1, 1),
    "SquaredDifference": _elementwise(2, 2),
    "AddN": _sum_of_all,
    **dict.fromkeys(("Sum", "Prod", "Max", "Min"), _folded(1, -1)),
    **dict.fromkeys(("Mean", "Cumsum", "Cumprod"), _folded(1, 0)),
    "L2Loss": _folded(2, 0),
    "EuclideanNorm": _folded(2, 0),
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    **dict.fromkeys(("AvgPool", "AvgPool3D"), _average_pool),
    **dict.fromkeys(("MaxPool", "MaxPoolV2", "MaxPool3D"), _max_pool),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm),
    **dict.fromkeys(("RFFT", "IRFFT"), _fourier(1, 2.5)),
    **dict.fromkeys(("FFT", "IFFT"), _fourier(1, 5)),
    **dict.fromkeys(("FFT2D", "IFFT2D"), _fourier(2, 5)),
    "ResizeBilinear": _elementwise(7, 7),
    "ResizeBicubic": _elementwise(31, 31),
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolution),
    "DepthwiseConv2dNative": _depthwise,
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _transposed),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    "Einsum": _einsum,
}
"""Rule by type of operator."""


FREE = frozenset(
    """
    Placeholder Const Identity IdentityN NoOp ReadVariableOp ResourceGather VarHandleOp StopGradient PreventGradient
    Reshape Squeeze ExpandDims Transpose Shape ShapeN Size Rank StridedSlice Slice Split SplitV Unpack Pack Concat ConcatV2
    Pad PadV2 MirrorPad Tile Reverse ReverseV2 Roll GatherV2 GatherNd ScatterNd BroadcastTo BroadcastArgs Fill ZerosLike OnesLike
    Range Cast Bitcast OneHot Where SelectV2 Select SpaceToBatchND BatchToSpaceND SpaceToDepth DepthToSpace
    Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot IsNan IsInf IsFinite
    Real Imag Complex Bucketize DenseBincount Bincount AsString StringToHashBucketFast
    BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift RightShift
    LookupTableFindV2 StringLower StringUpper StringStrip StringLength StaticRegexReplace RegexReplaceV2 StringSplitV2 StringJoin
    StringNGrams UnicodeDecodeWithOffsets RaggedTensorToTensor RaggedRange RaggedGather
    All Any ArgMax ArgMin TopKV2 ResizeNearestNeighbor
    RandomUniform RandomStandardNormal StatelessRandomUniformV2 StatelessRandomNormalV2 MatrixBandPart MatrixDiagV3 EnsureShape
    """.split()
)
