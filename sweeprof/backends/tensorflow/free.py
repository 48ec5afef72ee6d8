"""Operators of a TensorFlow graph that do no multiply-accumulate: MACs are those of matrix products and convolutions."""

from __future__ import annotations

FREE = frozenset(
    """
    Placeholder Const Identity IdentityN NoOp ReadVariableOp ResourceGather VarHandleOp StopGradient PreventGradient
    Reshape Squeeze ExpandDims Transpose Shape ShapeN Size Rank StridedSlice Slice Split SplitV Unpack Pack Concat ConcatV2
    Pad PadV2 MirrorPad Tile Reverse ReverseV2 Roll GatherV2 GatherNd ScatterNd BroadcastTo Fill ZerosLike OnesLike Range
    Cast Bitcast OneHot Where SelectV2 Select SpaceToBatchND BatchToSpaceND SpaceToDepth DepthToSpace
    Add AddV2 AddN BiasAdd Sub Mul RealDiv Div DivNoNan FloorDiv FloorMod Maximum Minimum Neg Abs Sign Square
    SquaredDifference Sqrt Rsqrt Reciprocal Pow Exp Expm1 Log Log1p Sin Cos Tanh Sigmoid Erf Erfc Floor Ceil Round Rint
    Relu Relu6 LeakyRelu Elu Selu Softplus Softsign Softmax LogSoftmax ClipByValue
    Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot
    AvgPool AvgPool3D MaxPool MaxPoolV2 MaxPool3D FusedBatchNormV3 FusedBatchNormV2 FusedBatchNorm L2Loss
    Mean Sum Prod Max Min All Any ArgMax ArgMin Cumsum Cumprod TopKV2
    ResizeNearestNeighbor ResizeBilinear ResizeBicubic
    RandomUniform RandomStandardNormal StatelessRandomUniformV2 StatelessRandomNormalV2 MatrixBandPart EnsureShape
    """.split()
)
