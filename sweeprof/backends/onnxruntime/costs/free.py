"""Operators of the standard that do no arithmetic: they move, choose, compare, convert or make data."""

from __future__ import annotations

FREE = frozenset(
    f"onnx::{name}"
    for name in """
    Identity Cast CastLike BitCast Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Gather GatherElements GatherND
    Expand Tile Pad CenterCropPad DepthToSpace SpaceToDepth Shape Size Constant ConstantOfShape EyeLike Range OneHot Trilu
    ReverseSequence Compress Unique NonZero Where Dropout MaxUnpool TensorScatter
    Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift
    ArgMax ArgMin TopK Hardmax NonMaxSuppression
    RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial HannWindow HammingWindow BlackmanWindow
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear
    SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence ConcatFromSequence
    Optional OptionalGetElement OptionalHasElement
    """.split()
)
