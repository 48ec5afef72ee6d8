"""Operators of a TensorFlow graph that do no arithmetic: they move, choose, compare or make data."""

from __future__ import annotations

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
