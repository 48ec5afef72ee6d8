"""Counts the graph of an ONNX file as it was exported: before the run-time fuses and folds, which changes how it is computed.

Every node is counted by a definition of :mod:`sweeprof.counting.operators`, known to do no arithmetic, or listed as uncovered;
there is no silent zero. Loops and branches are uncovered: what they run is not known from shapes. A node whose shapes are not known
is uncovered too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

from sweeprof.backends.onnxruntime import graph
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.onnxruntime.graph import Given, OnnxNode, read
from sweeprof.counting import file_graph, operators
from sweeprof.counting.file_graph import BATCH_NORM_BUFFERS, GRU, LSTM, RNN, GraphFacts, cost_by, is_added, module_table
from sweeprof.counting.formulas import Formulas, OperatorCost
from sweeprof.results.layers import LayerTable

VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}
"""Operators whose result is their input under another shape: no memory of its own."""


def count_file(
    file: Exported,
    shapes: Sequence[tuple[int, ...]],
    named: dict[str, tuple[int, ...]],
    formulas: Formulas,
    values: Given = ((), {}),
) -> LayerTable:
    """Return the layers of a file for inputs of these shapes, in their order and by name, and of these values where they are known.

    Raises:
        Exception: it is no ONNX file.
    """
    buffers = {"BatchNormalization": BATCH_NORM_BUFFERS, **graph.TABLES}
    facts = GraphFacts(file.types, file.weights, file.sizes, VIEWS, buffers)
    return module_table(read(file, shapes, named, values), facts, partial(cost_of, formulas=formulas), "onnx")


def cost_of(node: OnnxNode, formulas: Formulas) -> OperatorCost | None:
    """Return the cost of a node, or None if it is unknown."""
    rules, free = RULES.get(node.namespace, ({}, frozenset()))
    return cost_by(node, formulas, node.namespace, rules, free)


OnnxRule = Callable[[OnnxNode], OperatorCost | None]


def grid_sample(node: OnnxNode) -> OperatorCost:
    """As a Resize with the same interpolation mode."""
    mode = node.text("mode", "linear")
    return file_graph.interpolation(mode, len(node.result.sizes) - 2, node.result)


def attention(node: OnnxNode) -> OperatorCost:
    """``(batch, heads, L, E)``, or ``(batch, L, heads · E)`` with the heads as attributes; keys of the past are further keys."""
    query, key, value = (node.operand(position).sizes for position in range(3))
    if len(query) == 4:
        heads, width, value_width = query[1], key[3], value[3]
    else:
        heads, key_heads = int(node.attributes["q_num_heads"]), int(node.attributes["kv_num_heads"])
        width, value_width = key[2] // key_heads, value[2] // key_heads
    return operators.attention(
        query[0] * heads * query[-2],
        key[-2] + graph.past_keys(node.input(4), 2),
        width,
        value_width,
        node.operand(0).numbers,
        masks=int(node.input(3) is not None),
        capped=bool(node.attributes.get("softcap")),
    )


def layer_norm(node: OnnxNode) -> OperatorCost:
    """Rows are normalised from an axis on."""
    given = node.operand(0)
    rows = prod(given.sizes[: node.attributes.get("axis", -1) % len(given.sizes)])
    return operators.normalisation(given.elements, rows, weight=True, bias=is_added(node.input(2)))


def instance_norm(node: OnnxNode) -> OperatorCost:
    """The axes after the channels are normalised."""
    given = node.operand(0)
    return operators.normalisation(given.elements, prod(given.sizes[:2]), weight=True, bias=True)


def softmax(node: OnnxNode) -> OperatorCost:
    """Along an axis; before version 13 of the operators along all axes from one on."""
    if node.version >= 13:
        return file_graph.softmax(node)
    sizes = node.operand(0).sizes
    first = node.attributes.get("axis", 1)
    return operators.softmax(node.operand(0).elements, prod(sizes[first:]))


def fourier(node: OnnxNode) -> OperatorCost | None:
    """``(X, length, axis)``; the last axis has the real and the imaginary parts, and of a real one the half may be left out.

    None if an input of the model says along which axis it is.
    """
    given, made = node.operand(0).sizes, node.result.sizes
    larger = max(given, made, key=lambda sizes: prod(sizes[:-1]))
    length, axis = node.input(1), node.input(2)
    position = node.attributes.get("axis", 1 if node.version < 20 else -2)
    if axis is not None:
        if axis.data is None:
            return None
        position = axis.data
    points = along = larger[int(position)]
    if length is not None and length.data is not None:
        points = int(length.data)
    return operators.fourier(prod(larger[:-1]) // max(1, along) * points, points, is_real=1 in (given[-1], made[-1]))


def reduction(name: str, node: OnnxNode) -> OperatorCost:
    """Return the cost of a reduction; an attribute tells that no axes are none, and not all: then nothing is added up."""
    given, axes = node.operand(0), node.input(1)
    has_axes = node.attributes.get("axes") if axes is None else axes.elements
    if node.attributes.get("noop_with_empty_axes") and not has_axes:
        return operators.elementwise("function", STEPS.get(node.op, 0) * given.elements, given.numbers)
    if name == "logsumexp":
        return file_graph.logsumexp(node)
    return file_graph.reduction(name, node)


STEPS = {"ReduceL1": 1, "ReduceL2": 2, "ReduceSumSquare": 1, "ReduceLogSum": 1, "ReduceLogSumExp": 2}
"""What reductions compute for each element if none are added up, such as a square and its root."""


def norm_pool(node: OnnxNode) -> OperatorCost:
    """Return the cost of pooling by norms."""
    window = prod(node.attributes["kernel_shape"])
    return operators.norm_pool(node.operand(0).elements, node.result.elements, window)


def unit_norm(node: OnnxNode) -> OperatorCost:
    """Return the cost of a division by the norm along an axis."""
    given = node.operand(0)
    return operators.unit_norm(given.elements, given.elements // given.sizes[node.attributes.get("axis", -1)])


def local_response_norm(node: OnnxNode) -> OperatorCost:
    """Return the cost of a norm over neighbouring channels."""
    return operators.local_response_norm(node.operand(0).elements, int(node.attributes["size"]))


def mean_variance_norm(node: OnnxNode) -> OperatorCost:
    """Return the cost of a norm without weight and bias along some axes."""
    given = node.operand(0)
    length = file_graph.length_along(given.sizes, node.attributes.get("axes", (0, 2, 3)))
    return operators.normalisation(given.elements, given.elements // max(1, length), weight=False, bias=False)


def deformable_convolution(node: OnnxNode) -> OperatorCost:
    """``(X, W, offsets, bias, mask)``."""
    given, weight, made = node.operand(0).sizes, node.operand(1).sizes, node.result
    sampled = given[0] * given[1] * prod(weight[2:]) * prod(made.sizes[2:])
    return operators.deformable_convolution(
        made.elements,
        prod(weight[1:]),
        sampled,
        made.numbers,
        bias=is_added(node.input(3)),
        modulated=node.input(4) is not None,
    )


def region_align(node: OnnxNode) -> OperatorCost | None:
    """Every result is the mean, or the maximum, of interpolated values; None if their number depends on the regions."""
    made, ratio = node.result, int(node.attributes.get("sampling_ratio", 0))
    if ratio <= 0:
        return None
    sampled = made.elements * ratio**2
    combined = operators.average_pool(sampled, made.elements, ratio**2)
    return operators.added(operators.elementwise("bilinear", sampled, made.numbers), combined)


def short_fourier(node: OnnxNode) -> OperatorCost | None:
    """``(signal (batch, length, 1 or 2), step, window, length of a frame)``; None if an input of the model says how long it is."""
    signal, window, length = node.operand(0).sizes, node.input(2), node.input(3)
    if window is not None:
        points = window.elements
    elif length is not None and length.data is not None:
        points = int(length.data)
    else:
        return None
    frames = prod(node.result.sizes[:2])
    multiplied = 0 if window is None else points
    if signal[-1] == 1:
        return operators.short_time_fourier(frames, points, multiplied)
    windows = 2 * frames * multiplied
    return operators.added(operators.fourier(frames * points, points, is_real=False), (0, windows, windows))


def linear_attention(node: OnnxNode) -> OperatorCost:
    """Return the cost of a linear attention of q ``(batch, L, heads · E)``, k and v; its rule is an attribute."""
    query, key, value = (node.operand(position).sizes for position in range(3))
    heads, key_heads = int(node.attributes["q_num_heads"]), int(node.attributes["kv_num_heads"])
    rule = node.text("update_rule", "gated_delta")
    tokens, width, value_width = query[0] * query[1], key[2] // key_heads, value[2] // key_heads
    is_gated, is_delta = "gated" in rule, "delta" in rule
    return operators.linear_attention(tokens, heads, key_heads, width, value_width, gated=is_gated, delta=is_delta)


def causal_convolution(node: OnnxNode) -> OperatorCost | None:
    """Return the cost of a convolution of each channel ``(X, W (channels, 1, K), bias)`` with the activation in its attribute."""
    if node.text("activation", "none") == "none":
        return file_graph.convolution(node, first=1)
    return graph.activated(partial(file_graph.convolution, first=1), node)


def gated(node: OnnxNode) -> OperatorCost:
    """One operand, through its SiLU, multiplies the other."""
    return operators.added(file_graph.elementwise("silu", node), file_graph.elementwise("multiply", node))


def added_up(node: OnnxNode) -> OperatorCost:
    """Every element of the operand is added to a place of the result."""
    return operators.scan(node.operand(0).elements)


COSTS: dict[str, OnnxRule] = file_graph.by_name(
    {
        "Add Sub Pow Mod Neg Abs Sign Clip Floor Ceil Round": partial(file_graph.elementwise, "arithmetic"),
        "Mul": partial(file_graph.elementwise, "multiply"),
        "Div": partial(file_graph.elementwise, "divide"),
        "Sqrt Exp Log Reciprocal Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh": partial(
            file_graph.elementwise, "function"
        ),
        "Relu": partial(file_graph.elementwise, "relu"),
        "Sigmoid": partial(file_graph.elementwise, "sigmoid"),
        "Tanh": partial(file_graph.elementwise, "tanh"),
        "LeakyRelu PRelu": partial(file_graph.elementwise, "leaky_relu"),
        "Elu Celu": partial(file_graph.elementwise, "elu"),
        "Softsign": partial(file_graph.elementwise, "softsign"),
        "Selu": partial(file_graph.elementwise, "selu"),
        "Softplus": partial(file_graph.elementwise, "softplus"),
        "Mish": partial(file_graph.elementwise, "mish"),
        "HardSigmoid": partial(file_graph.elementwise, "hardsigmoid"),
        "Swish": partial(file_graph.elementwise, "silu"),
        "HardSwish": partial(file_graph.elementwise, "hardswish"),
        "ThresholdedRelu Shrink": partial(file_graph.elementwise, "hardtanh"),
        "Gelu": partial(file_graph.gelu, "approximate"),
        "Sum Mean Max Min": file_graph.sum_of_tensors,
        "Resize Upsample": file_graph.resize,
        "GridSample": grid_sample,
        "Gemm": partial(file_graph.matmul, transposed="transA", bias=2),
        "MatMul MatMulInteger QLinearMatMul": file_graph.matmul,
        "Conv": partial(file_graph.convolution, first=1),
        "ConvInteger": partial(file_graph.convolution, first=1, bias=4),
        "QLinearConv": partial(file_graph.convolution, first=1, weight=3, bias=8),
        "ConvTranspose": partial(file_graph.transposed_convolution, first=1),
        "Einsum": file_graph.einsum,
        "Attention": attention,
        "BatchNormalization": partial(file_graph.batch_norm, training="training_mode"),
        "LayerNormalization": layer_norm,
        "RMSNormalization SimplifiedLayerNormalization": graph.rms_norm,
        "InstanceNormalization": instance_norm,
        "GroupNormalization": file_graph.group_norm,
        "Softmax": softmax,
        "LogSoftmax": file_graph.log_softmax,
        "AveragePool": partial(file_graph.average_pool, window=("kernel_shape",)),
        "MaxPool GlobalMaxPool": file_graph.max_pool,
        "GlobalAveragePool ReduceMean": partial(reduction, "mean"),
        "ReduceSum ReduceMax ReduceMin ReduceProd": partial(reduction, "sum"),
        "ReduceL2 GlobalLpPool": partial(reduction, "norm"),
        "ReduceL1 ReduceSumSquare": partial(reduction, "sum_of_squares"),
        "ReduceLogSum": partial(reduction, "log_sum"),
        "ReduceLogSumExp": partial(reduction, "logsumexp"),
        "LpPool": norm_pool,
        "LpNormalization": unit_norm,
        "LRN": local_response_norm,
        "MeanVarianceNormalization": mean_variance_norm,
        "DeformConv": deformable_convolution,
        "CausalConvWithState": causal_convolution,
        "LinearAttention": linear_attention,
        "RotaryEmbedding": partial(graph.rotary, cosines=1),
        "SwiGLU": gated,
        "RoiAlign": region_align,
        "AffineGrid": file_graph.matmul,
        "Col2Im": added_up,
        "STFT": short_fourier,
        "CumSum CumProd": file_graph.scan,
        "ScatterElements ScatterND": file_graph.scatter,
        "DFT": fourier,
        "RNN": partial(file_graph.recurrent, RNN, weight=1, bias=3),
        "GRU": partial(file_graph.recurrent, GRU, weight=1, bias=3),
        "LSTM": partial(file_graph.recurrent, LSTM, weight=1, bias=3),
    }
)
"""Rule by the name of the operator."""
FREE = frozenset(
    """
    Identity Cast CastLike BitCast Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice Gather GatherElements GatherND
    Expand Tile Pad CenterCropPad DepthToSpace SpaceToDepth Shape Size Constant ConstantOfShape EyeLike Range OneHot Trilu
    ReverseSequence Compress Unique NonZero Where Dropout MaxUnpool TensorScatter
    Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not IsNaN IsInf BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift
    ArgMax ArgMin TopK Hardmax NonMaxSuppression
    RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial HannWindow HammingWindow BlackmanWindow
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear
    SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SplitToSequence ConcatFromSequence
    Optional OptionalGetElement OptionalHasElement
    Scatter MelWeightMatrix StringConcat StringNormalizer StringSplit RegexFullMatch
    """.split()
)
"""Operators that move, choose, compare or make data."""
CLASSICAL_FREE = frozenset(
    """
    ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer LabelEncoder OneHotEncoder
    ZipMap
    """.split()
)
"""The same of the domain of classical machine learning; its models are uncovered."""
RULES: Mapping[str, tuple[Mapping[str, OnnxRule], frozenset[str]]] = {
    "onnx": (COSTS, FREE),
    graph.MICROSOFT: (graph.COSTS, graph.FREE),
    "ai.onnx.ml": ({}, CLASSICAL_FREE),
}
"""Rules, and operators without arithmetic, by domain."""
