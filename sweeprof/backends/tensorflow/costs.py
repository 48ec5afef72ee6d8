"""Maps the operators of TensorFlow graphs to the definitions of :mod:`sweeprof.counting.operators`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from sweeprof.counting import mapping, operators
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import COMPLEX, INTEGER, REAL, Numbers

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, slots=True)
class Sized:
    """Shape and data type of a tensor."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def numbers(self) -> Numbers:
        """The kind of numbers of the elements."""
        if self.dtype.startswith("complex"):
            return COMPLEX
        return REAL if self.dtype.startswith(("float", "bfloat")) else INTEGER


def sized(tensor: tf.Tensor) -> Sized:
    """Return the shape and data type of a tensor whose shape is known."""
    return Sized(tuple(int(size) for size in tensor.shape), tensor.dtype.name)


@dataclass(frozen=True, slots=True)
class TensorflowCall:
    """An operator of a graph."""

    operator: tf.Operation

    def operand(self, position: int) -> Sized:
        """Return an input."""
        return sized(self.operator.inputs[position])

    @property
    def result(self) -> Sized:
        """The first output."""
        return sized(self.operator.outputs[0])


TensorflowRule = Callable[[TensorflowCall], OperatorCost]


_ELEMENTWISE = """
arithmetic: Add AddV2 BiasAdd Sub DivNoNan FloorDiv FloorMod Mod Xdivy Xlogy Maximum Minimum ClipByValue
arithmetic: Neg Abs Sign Square Pow Floor Ceil Round Rint
multiply: Mul
divide: RealDiv Div
function: Exp Expm1 Log Log1p Sqrt Sin Cos Tan Erf Erfc Reciprocal Inv Sinh Cosh Asin Acos Atan Atan2 Asinh Acosh Atanh
relu: Relu
rsqrt: Rsqrt
tanh: Tanh
sigmoid: Sigmoid
hardtanh: Relu6
leaky_relu: LeakyRelu
elu: Elu
selu: Selu
softplus: Softplus
softsign: Softsign
squared_difference: SquaredDifference
bilinear: ResizeBilinear
bicubic: ResizeBicubic
"""


def _positions(call: TensorflowCall) -> Sized:
    """Return the result of a convolution; a dilated one computes padding too, which a BatchToSpaceND after it cuts off."""
    consumers = call.operator.outputs[0].consumers()
    while len(consumers) == 1 and consumers[0].type == "Squeeze":
        consumers = consumers[0].outputs[0].consumers()
    is_cut = len(consumers) == 1 and consumers[0].type == "BatchToSpaceND"
    return sized(consumers[0].outputs[0]) if is_cut else call.result


def _convolution(call: TensorflowCall) -> OperatorCost:
    """Kernel ``(*space, in/groups, out)``."""
    made = _positions(call)
    return operators.convolution(made.elements, prod(call.operand(1).sizes[:-1]), made.numbers)


def _depthwise(call: TensorflowCall) -> OperatorCost:
    """Kernel ``(height, width, in, multiplier)``: each output element is a sum over space alone."""
    made = _positions(call)
    return operators.convolution(made.elements, prod(call.operand(1).sizes[:2]), made.numbers)


def _transposed(call: TensorflowCall) -> OperatorCost:
    """Inputs are (output shape, kernel ``(*space, out, in)``, values)."""
    window, made = prod(call.operand(1).sizes[:-1]), call.result
    return operators.transposed_convolution(call.operand(2).elements, window, made.elements, made.numbers)


def _matmul(call: TensorflowCall) -> OperatorCost:
    transposed = call.operator.get_attr("transpose_a" if call.operator.type == "MatMul" else "adj_x")
    inner = call.operand(0).sizes[-2 if transposed else -1]
    return operators.matmul(call.result.elements, inner, call.result.numbers)


def _einsum(call: TensorflowCall) -> OperatorCost:
    shapes = [sized(tensor).shape for tensor in call.operator.inputs]
    equation = call.operator.get_attr("equation").decode()
    return operators.einsum(equation, shapes, call.result.elements, call.result.numbers)


def _sum_of_all(call: TensorflowCall) -> OperatorCost:
    """``AddN``."""
    return operators.sum_of_tensors(len(call.operator.inputs), call.result.elements, call.result.numbers)


def _average_pool(call: TensorflowCall) -> OperatorCost:
    window = prod(call.operator.get_attr("ksize"))
    return operators.average_pool(call.operand(0).elements, call.result.elements, window)


def _batch_norm(call: TensorflowCall) -> OperatorCost:
    training = call.operator.get_attr("is_training")
    return operators.batch_norm(call.operand(0).elements, call.operand(1).elements, affine=True, training=training)


COSTS: dict[str, TensorflowRule] = {
    **mapping.elementwise_rules(_ELEMENTWISE),
    "AddN": _sum_of_all,
    **mapping.named(mapping.reduction("sum"), "Sum Prod Max Min"),
    **mapping.named(mapping.reduction("mean"), "Mean Cumsum Cumprod"),
    **mapping.named(mapping.reduction("norm"), "L2Loss EuclideanNorm"),
    "Softmax": mapping.softmax,
    "LogSoftmax": mapping.log_softmax,
    **mapping.named(_average_pool, "AvgPool AvgPool3D"),
    **mapping.named(mapping.max_pool, "MaxPool MaxPoolV2 MaxPool3D"),
    **mapping.named(_batch_norm, "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3"),
    **mapping.named(mapping.fourier(1, is_real=True), "RFFT IRFFT"),
    **mapping.named(mapping.fourier(1, is_real=False), "FFT IFFT"),
    **mapping.named(mapping.fourier(2, is_real=False), "FFT2D IFFT2D"),
    **mapping.named(_convolution, "Conv2D Conv3D"),
    "DepthwiseConv2dNative": _depthwise,
    **mapping.named(_transposed, "Conv2DBackpropInput Conv3DBackpropInputV2"),
    **mapping.named(_matmul, "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3"),
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
"""Operators that move, choose, compare or make data."""
