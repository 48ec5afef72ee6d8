"""Counts the graph of a file as it was converted: before OpenVINO fuses and folds, which changes how it is computed.

What depends on no input is computed once, when the model is compiled, and not counted. Loops and branches are uncovered: what
they run is not known from shapes.

Source of the operators: https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import openvino

from sweeprof.backends.call_signature import by_name
from sweeprof.backends.openvino.convert import MODULE, WEIGHT, Converted
from sweeprof.backends.openvino.model import reshape
from sweeprof.counting import mapping, operators
from sweeprof.counting.file_graph import BATCH_NORM_BUFFERS, QUANTISED, FileGraph, GraphFacts, module_table
from sweeprof.counting.formulas import Formulas, OperatorCost
from sweeprof.counting.mapping import GRU, LSTM, RNN, CallTensor, OperatorCall, cost_by, numbers_of
from sweeprof.counting.operators import INTEGER, NOTHING, REAL
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerTable

OpenvinoNode = OperatorCall[CallTensor]
OpenvinoGraph = FileGraph[OpenvinoNode, CallTensor]
VIEWS = {"Reshape", "Squeeze", "Unsqueeze"}
"""Operators whose result is their input under another shape: no memory of its own."""
KINDS = {"f": "float", "bf": "bfloat", "nf": "normal_float", "i": "int", "u": "uint"}
"""What the names of data types begin with: ``f32`` is ``float32``, ``f8e4m3`` is ``float8_e4m3``."""
SETTINGS_ELEMENTS = 64
"""Constants of integers up to this size may be settings of an operator, such as axes."""
COMPRESSED = "_compressed"
"""What the names of constants of 16 bits end in."""
EIGHT_BITS = ("int8", "uint8")


def count_file(
    file: Converted,
    stored: Converted,
    shapes: Sequence[tuple[int, ...]],
    named: Mapping[str, tuple[int, ...]],
    formulas: Formulas,
) -> LayerTable:
    """Return the layers of a file for inputs of these shapes, with the bytes of the one that is stored of it."""
    model = openvino.Core().read_model(file.path)
    sized = by_name(file.input_names(model), shapes, named)
    reshape(model, {model.input(name): shape for name, shape in sized.items()})
    graph = read(model, file)
    if file.is_of_onnx:
        graph = replace(graph, weights=without_scales(graph))
    sizes = {} if stored == file else stored_bytes(graph, read(openvino.Core().read_model(stored.path), stored))
    facts = GraphFacts(file.types, file.weights, sizes, VIEWS, {"BatchNormInference": BATCH_NORM_BUFFERS})
    return module_table(graph, facts, partial(cost_of, formulas=formulas), "openvino")


def cost_of(node: OpenvinoNode, formulas: Formulas) -> OperatorCost | None:
    """Return the cost of an operator in a step, or None if it is unknown."""
    if all(value is None or value.is_constant for value in node.inputs):
        return NOTHING
    return cost_by(node, formulas, "openvino", COSTS, FREE)


def read(model: openvino.Model, file: Converted) -> OpenvinoGraph:
    """Return the graph of a model with the shapes that it has."""
    values: dict[Any, CallTensor] = {}
    nodes, weights = [], []
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        given = tuple(values[_key(slot)] for slot in node.input_values())
        is_fixed = kind == "Constant" or (bool(given) and all(value.is_constant for value in given))
        made = []
        for index, slot in enumerate(node.outputs()):
            shape = tuple(slot.get_shape()) if slot.get_partial_shape().is_static else None
            label, dtype = name if index == 0 else f"{name}:{index}", _dtype(slot)
            size = slot.get_element_type().bitwidth / 8
            value = CallTensor(label, shape, dtype, size, numbers_of(dtype), is_constant=is_fixed)
            values[_key(slot)] = value
            made.append(value)
        if kind == "Constant":
            made[0].name = name.removeprefix(WEIGHT).removesuffix(COMPRESSED)
            if made[0].numbers is not INTEGER or made[0].dtype in QUANTISED:
                weights.append(made[0])
            elif made[0].elements <= SETTINGS_ELEMENTS:
                made[0].data = np.asarray(node.data)
        elif kind not in ("Parameter", "Result"):
            path = path_of(name, file)
            attributes = node.get_attributes()
            nodes.append(OperatorCall(kind, path, given, tuple(made), attributes, name, "openvino"))
    inputs = tuple(values[_key(slot)] for slot in model.inputs)
    outputs = tuple(values[_key(slot.get_node().input_value(0))] for slot in model.outputs)
    return FileGraph(tuple(nodes), inputs, outputs, tuple(weights))


def _key(slot: Any) -> tuple[str, int]:
    return slot.get_node().get_name(), slot.get_index()


def _dtype(slot: Any) -> str:
    name: str = slot.get_element_type().to_string()
    found = re.fullmatch(r"(bf|nf|[fiu])(\d+)(\w*)", name)
    if found is None:
        return "bool" if name == "boolean" else name
    kind, bits, variant = found.groups()
    return f"{KINDS[kind]}{bits}{'_' if variant else ''}{variant}"


def path_of(name: str, file: Converted) -> str:
    """Return the module of an operator, by its name: ``__module.model.stage1.conv1/aten::_convolution/Convolution``.

    Other converters write ``model/conv1/Conv2D``, or names without modules.
    """
    start = MODULE if file.types else "__module"
    first, *others = [part for part in name.split("/") if part] or [""]
    if first == start or first.startswith(f"{start}."):
        return first.removeprefix(start).lstrip(".") or ROOT
    return ROOT if file.types else ".".join([first, *others[:-1]]) if others else ROOT


def stored_bytes(graph: OpenvinoGraph, quantized: OpenvinoGraph) -> dict[str, int]:
    """Return by the name of each weight of several axes the bytes that a quantized graph stores instead of it.

    Its scale and its zero point are among them.
    """
    found: dict[str, int] = {}
    stored = _weights_by_reader(quantized)
    for reader, weights in _weights_by_reader(graph).items():
        instead = stored.get(reader, [])
        if any(weight.dtype in EIGHT_BITS and weight.elements > 1 for weight in instead):
            name = next((weight.name for weight in weights if weight.shape is not None and len(weight.shape) > 1), None)
            if name is not None:
                found[name] = sum(int(weight.nbytes) for weight in instead)
    return found


def without_scales(graph: OpenvinoGraph) -> tuple[CallTensor, ...]:
    """Return the weights without the scales and zero points of quantised ones, as they are counted in an ONNX file.

    They are converted, a zero point is subtracted, and a scale is multiplied. Biases of 32 bits are marked as the real numbers
    that they stand for; other integers of that size are settings.
    """
    made = {value for node in graph.operators for value in node.outputs}
    behind: dict[CallTensor | None, CallTensor] = {
        value: value
        for node in graph.operators
        for value in node.inputs
        if value is not None and value.is_constant and value not in made
    }
    scales: set[CallTensor] = set()
    biases: dict[CallTensor, None] = {}
    for node in graph.operators:
        first, second = behind.get(node.input(0)), behind.get(node.input(1))
        if first is None or node.op not in ("Convert", "Reshape", "Unsqueeze", "Broadcast", "Subtract", "Multiply"):
            continue
        behind[node.result] = first
        if node.op in ("Subtract", "Multiply") and second is not None and first.dtype in (*QUANTISED, "int32"):
            scales.add(second)
            if node.op == "Multiply" and first.dtype == "int32":
                first.numbers = REAL
                biases[first] = None
    return tuple(value for value in dict.fromkeys([*graph.weights, *biases]) if value not in scales)


def _weights_by_reader(graph: OpenvinoGraph) -> dict[str, list[CallTensor]]:
    """Return by the name of each operator that a step runs the weights that it reads, past what only converts or scales them."""
    behind = {weight: [weight] for weight in graph.weights}
    found: dict[str, list[CallTensor]] = {}
    for node in graph.operators:
        read = [weight for value in node.inputs if value is not None for weight in behind.get(value, ())]
        if node.result.is_constant:
            behind[node.result] = read
        elif node.op != "FakeQuantize":
            found[node.name] = read
    return found


OpenvinoRule = Callable[[OpenvinoNode], OperatorCost | None]

_ELEMENTWISE = """
arithmetic: Add Subtract Power Mod FloorMod Negative Abs Sign Clamp Floor Ceiling Round Maximum Minimum
multiply: Multiply
divide: Divide
function: Sqrt Exp Log Erf Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh
relu: Relu ReLU
sigmoid: Sigmoid
tanh: Tanh
leaky_relu: PRelu PReLU
elu: Elu
softsign: SoftSign
selu: Selu
softplus: SoftPlus
mish: Mish
hardsigmoid: HardSigmoid HSigmoid
silu: Swish
hardswish: HSwish
squared_difference: SquaredDifference
"""


def _attention(node: OpenvinoNode) -> OperatorCost:
    """``(batch, …, heads, L, E)``; the mask may be a scalar that stands for none, and a causal one is no operand."""
    query, key, value = (node.operand(position).sizes for position in range(3))
    mask = node.input(3)
    masks = 1 if mask is not None and mask.sizes else 0
    return operators.attention(prod(query[:-1]), key[-2], query[-1], value[-1], node.operand(0).numbers, masks=masks)


def _mean_variance_norm(node: OpenvinoNode) -> OperatorCost:
    """Weight and bias are operators of their own."""
    given, axes = node.operand(0), node.input(1)
    if axes is None or axes.data is None:
        return operators.normalisation(given.elements, prod(given.sizes[:2]), weight=False, bias=False)
    length = prod(given.sizes[int(axis)] for axis in axes.data.ravel())
    return operators.normalisation(given.elements, given.elements // max(1, length), weight=False, bias=False)


COSTS: dict[str, OpenvinoRule] = mapping.by_name(
    {
        **mapping.elementwise_rules(_ELEMENTWISE),
        "Gelu": partial(mapping.gelu, "approximation_mode"),
        "MatMul": partial(mapping.matmul, transposed="transpose_a"),
        "Convolution": partial(mapping.convolution, first=1),
        "GroupConvolution": partial(mapping.convolution, first=2),
        "ConvolutionBackpropData": partial(mapping.transposed_convolution, first=1, bias=None),
        "GroupConvolutionBackpropData": partial(mapping.transposed_convolution, first=2, bias=None),
        "Einsum": mapping.einsum,
        "ScaledDotProductAttention": _attention,
        "BatchNormInference": mapping.batch_norm,
        "MVN": _mean_variance_norm,
        "GroupNormalization": mapping.group_norm,
        "Softmax": partial(mapping.softmax, axis=1),
        "LogSoftmax": mapping.log_softmax,
        "AvgPool": partial(mapping.average_pool, window=("kernel",)),
        "AdaptiveAvgPool": mapping.adaptive_average_pool,
        "MaxPool AdaptiveMaxPool": mapping.max_pool,
        "ReduceMean": partial(mapping.reduction, "mean"),
        "ReduceSum ReduceMax ReduceMin ReduceProd": partial(mapping.reduction, "sum"),
        "ReduceL1": partial(mapping.reduction, "sum_of_squares"),
        "ReduceL2": partial(mapping.reduction, "norm"),
        "Interpolate": mapping.resize,
        "CumSum": mapping.scan,
        "ScatterElementsUpdate ScatterNDUpdate": mapping.scatter,
        "LSTMSequence": partial(mapping.recurrent, LSTM, weight=4),
        "LSTMCell": partial(mapping.recurrent, LSTM, weight=3),
        "GRUSequence": partial(mapping.recurrent, GRU, weight=3),
        "GRUCell": partial(mapping.recurrent, GRU, weight=2),
        "RNNSequence": partial(mapping.recurrent, RNN, weight=3),
        "RNNCell": partial(mapping.recurrent, RNN, weight=2),
    }
)
"""Rule by the name of the operator."""

FREE = frozenset(
    """
    Convert ConvertLike ConvertPromoteTypes Reshape Squeeze Unsqueeze Transpose Concat Split VariadicSplit Slice StridedSlice
    SliceScatter Gather GatherElements GatherND GatherTree Broadcast Tile Pad DepthToSpace SpaceToDepth SpaceToBatch BatchToSpace
    ShuffleChannels ShapeOf Range OneHot Eye Roll Reverse ReverseSequence NonZero Unique Select ScatterUpdate ExtractImagePatches
    Identity Equal NotEqual Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr LogicalXor LogicalNot IsNaN IsInf IsFinite
    ReduceLogicalAnd ReduceLogicalOr BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseLeftShift BitwiseRightShift
    TopK ArgMax NonMaxSuppression Bucketize SearchSorted RandomUniform Multinomial FakeQuantize FakeConvert
    ReadValue Assign
    """.split()
)
"""Operators that move, choose, compare or make data."""
