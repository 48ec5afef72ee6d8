"""Reads the graph of an ONNX file as plain data, with the shapes that all of its values have for inputs of given shapes.

The values of large initializers are not read. Node by node: what depends on constants alone and is small is computed, as shapes
are computed from shapes; of everything else the shape is inferred, once for equal nodes with equal inputs. The ONNX standard has
rules for most operators; :mod:`sweeprof.backends.onnxruntime.contrib_operators` has them for others.
A shape that no rule tells stays unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.reference import ReferenceEvaluator

from sweeprof.backends import AnyArray
from sweeprof.backends.call_signature import by_name
from sweeprof.backends.onnxruntime import contrib_operators
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.onnxruntime.model_proto import without_weights
from sweeprof.counting import mapping
from sweeprof.counting.file_graph import QUANTISED, FileGraph
from sweeprof.counting.mapping import CallTensor, OperatorCall, is_added, itemsize, numbers_of
from sweeprof.counting.operators import INTEGER, REAL, Numbers
from sweeprof.results.layer_times import ROOT

OnnxValue = CallTensor


@dataclass(slots=True, eq=False)
class OnnxNode(OperatorCall[OnnxValue]):
    """A node of the file."""

    version: int = 0
    """Of the set of operators that its own belongs to; what an attribute means may change from one to another."""


OnnxGraph = FileGraph[OnnxNode, OnnxValue]


@cache
def element(kind: int) -> tuple[str, float, Numbers]:
    """Return the name, the bytes (0 for texts) and the kind of numbers of the elements of a tensor, by ``TensorProto.DataType``."""
    name = helper.tensor_dtype_to_np_dtype(kind).name if kind else ""
    return name, itemsize(name), numbers_of(name)


SCOPES = "pkg.torch.onnx.name_scopes"
"""torch's exporter: every module around the node, outermost first, and the traced operation."""


def path_of_scopes(scopes: str | None) -> str:
    """``stage1.conv1`` from ``['', 'stage1', 'stage1.conv1', 'conv2d']``."""
    found = ast.literal_eval(scopes)[:-1] if scopes else []
    return next((str(path) for path in reversed(found) if path and not path.startswith("_empty_nn_module")), ROOT)


def path_of(node: Any) -> str:
    """The same of a node of any file: from its metadata, or from a name as other exporters write it.

    torch's older exporter names ``/stage1/stage1.0/conv1/Conv`` what belongs to ``stage1.0.conv1``, Keras's
    ``model/conv1/Conv2D`` what belongs to ``model.conv1``. An optimiser that replaces nodes makes names without scopes, or
    that end in ``/``; the result still has the name that the last of these nodes gave it.
    """
    for note in node.metadata_props:
        if note.key == SCOPES:
            return path_of_scopes(note.value)
    parts: list[str] = []
    name = node.name
    if ("/" not in name or name.endswith("/")) and node.output:
        name = node.output[0]
    for part in [part for part in name.split("/") if part][:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return ".".join(parts) or ROOT


CONSTANT_ELEMENTS = 4096
"""Values up to this size that depend on no input are computed."""
SETTINGS_ELEMENTS = 16
"""Initializers of floating-point numbers up to this size may be settings, such as the scales of a Resize."""
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
FILLING = {"Expand", "ConstantOfShape", "Tile"}
"""Operators whose last input decides the shape of the result."""


def read(
    file: Exported,
    shapes: Sequence[tuple[int, ...]],
    named: Mapping[str, tuple[int, ...]],
    values: Given = ((), {}),
) -> OnnxGraph:
    """The graph of a file for inputs of these shapes: in their order, and by name.

    Args:
        file: the file.
        shapes: by position.
        named: by name.
        values: those of the inputs by position and by name, which may decide shapes; None where they are not known.

    Raises:
        Unsupported: there are not as many as the graph has inputs; its own shapes may be open, and do not stand in.
        Exception: it is no ONNX file.
    """
    model = without_weights(file.path)
    if model.functions:
        model = inliner.inline_local_functions(model)
    for entry in (*model.opset_import, *model.graph.node):
        if entry.domain == STANDARD:
            entry.domain = ""
    return _GraphReader(model, file).graph(shapes, named, values)


STANDARD = "ai.onnx"
"""The other name of the standard's domain, which has none."""

Given = tuple[Sequence["AnyArray | None"], Mapping[str, "AnyArray | None"]]


def deciding(values: AnyArray | None) -> AnyArray | None:
    """Return the values of an input if they may decide shapes: they are integers or truth values, and few."""
    is_deciding = values is not None and values.dtype.kind in "biu" and values.size <= CONSTANT_ELEMENTS
    return values if is_deciding else None


tensor_type = lru_cache(helper.make_tensor_type_proto)
T = TypeVar("T")
InferredTypes = Sequence[tuple[int, tuple[int, ...] | None]]
"""The ``TensorProto.DataType`` and the shape of each output."""


class _GraphReader:
    """One pass over the nodes."""

    def __init__(self, model: onnx.ModelProto, file: Exported) -> None:
        self._model, self._file = model, file
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._values: dict[str, OnnxValue] = {}
        self._kinds: dict[OnnxValue, int] = {}
        self._known: dict[object, Any] = {}
        """Results for nodes of which equal ones may follow."""
        self._within: list[OnnxValue] = []
        """Weights in attributes."""

    def graph(
        self, shapes: Sequence[tuple[int, ...]], named: Mapping[str, tuple[int, ...]], values: Given
    ) -> OnnxGraph:
        graph = self._model.graph
        weights = [self._weight(tensor) for tensor in graph.initializer]
        weights += [self._sparse(tensor.values.name, tensor) for tensor in graph.sparse_initializer]
        given = [value for value in graph.input if value.name not in self._values]
        sized = by_name([value.name for value in given], shapes, named)
        valued = by_name([value.name for value in given], *values) if any(values) else {}
        inputs = tuple(
            self._know(v.name, v.type.tensor_type.elem_type, sized[v.name], deciding(valued.get(v.name))) for v in given
        )
        nodes, constants = [], []
        for node in in_order(graph.node):
            if node.op_type == "Constant":
                constants.append(self._constant(node))
            else:
                nodes.append(self._node(node))
        outputs = tuple(self._values[value.name] for value in graph.output)
        stored = self._stored(graph, weights, constants, nodes)
        return FileGraph(tuple(nodes), inputs, outputs, (*stored, *self._within))

    def _stored(
        self,
        graph: onnx.GraphProto,
        weights: Sequence[OnnxValue],
        constants: Sequence[OnnxValue],
        nodes: Sequence[OnnxNode],
    ) -> list[OnnxValue]:
        """Return the constants of a graph that are learned."""
        used = names_read(graph)
        read = [value for value in weights if value.name in used or value.name in self._file.weights]
        stored = without_scales([*read, *weights_among(constants, nodes)], nodes)
        unpack(stored, nodes)
        return stored

    def _weight(self, tensor: onnx.TensorProto) -> OnnxValue:
        value = self._know(tensor.name, tensor.data_type, tuple(tensor.dims), is_constant=True)
        most = CONSTANT_ELEMENTS if value.numbers is INTEGER else SETTINGS_ELEMENTS
        if tensor.name not in self._file.weights and value.elements <= most:
            value.data = self._array(tensor)
        return value

    def _constant(self, node: onnx.NodeProto) -> OnnxValue:
        attribute = node.attribute[0]
        if attribute.name == "sparse_value":
            return self._sparse(node.output[0], attribute.sparse_tensor)
        if attribute.name != "value":
            return self._know_array(node.output[0], self._once(_attributes_key(node), partial(constant, node)))
        tensor = attribute.t
        value = self._know(node.output[0], tensor.data_type, tuple(tensor.dims), is_constant=True)
        if value.elements <= CONSTANT_ELEMENTS:
            value.data = self._once(tensor.SerializeToString(), partial(self._array, tensor))
        return value

    def _sparse(self, name: str, tensor: onnx.SparseTensorProto) -> OnnxValue:
        """Return a sparse constant, which the run-time expands when it opens the file: it is an array with all its zeros."""
        return self._know(name, tensor.values.data_type, tuple(tensor.dims), is_constant=True)

    def _array(self, tensor: onnx.TensorProto) -> AnyArray:
        base = str(Path(self._file.path).parent) if uses_external_data(tensor) else ""
        return numpy_helper.to_array(tensor, base)

    def _know_array(self, name: str, data: AnyArray, *, is_constant: bool = True) -> OnnxValue:
        kept = data if data.size <= CONSTANT_ELEMENTS else None
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        return self._know(name, kind, tuple(data.shape), kept, is_constant=is_constant)

    def _know(
        self,
        name: str,
        kind: int,
        shape: tuple[int, ...] | None,
        data: AnyArray | None = None,
        *,
        is_constant: bool = False,
    ) -> OnnxValue:
        value = OnnxValue(name, shape, *element(kind), is_constant, data)
        self._values[name], self._kinds[value] = value, kind
        return value

    def _once(self, key: object, make: Callable[[], T]) -> T:
        """Return the result for a key, made where it is the first."""
        if key not in self._known:
            self._known[key] = make()
        result: T = self._known[key]
        return result

    def _node(self, node: onnx.NodeProto) -> OnnxNode:
        inputs = tuple(self._values[name] if name else None for name in node.input)
        attributes = _attributes_key(node)
        key = (attributes, tuple(None if value is None else self._content(value) for value in inputs), len(node.output))
        outputs = tuple(self._outputs(node, inputs, key))
        paths = self._file.paths
        return OnnxNode(
            op=node.op_type,
            path=path_of(node) if paths is None else paths.get(node.name, ROOT),
            inputs=(*inputs, *self._weights_within(node)),
            outputs=tuple(value for value in outputs if value.name),
            attributes=self._once(("attributes", attributes), partial(_attributes, node)),
            namespace=node.domain or "onnx",
            name=node.name,
            version=self._opsets.get(node.domain, 0),
        )

    def _weights_within(self, node: onnx.NodeProto) -> Iterator[OnnxValue | None]:
        """Return the learned numbers that an operator has in its attributes, and in the graphs there, such as branches."""
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                weights = self._weights_of(inner)
                self._within += weights
                yield from weights
        names = CLASSICAL_WEIGHTS.get(node.op_type, ()) if node.domain == CLASSICAL else ()
        held = {attribute.name: len(attribute.floats) for attribute in node.attribute if attribute.floats}
        for name in names:
            value = None
            if name in held:
                label = f"{node.name or node.output[0]}.{name}"
                value = self._know(label, onnx.TensorProto.FLOAT, (held[name],), is_constant=True)
                self._within.append(value)
            yield value

    def _weights_of(self, graph: onnx.GraphProto) -> list[OnnxValue]:
        """Return the weights that a graph within a node holds; the shapes in it may differ from run to run."""
        outside, self._values = self._values, dict(self._values)
        weights = [self._weight(tensor) for tensor in graph.initializer]
        weights += [self._sparse(tensor.values.name, tensor) for tensor in graph.sparse_initializer]
        nodes, constants = [], []
        for node in in_order(graph.node):
            if node.op_type == "Constant":
                constants.append(self._constant(node))
                continue
            inputs = tuple(self._values.get(name) for name in node.input)
            is_constant = all(value is not None and value.is_constant for value in inputs)
            outputs = tuple(self._know(name, 0, None, is_constant=is_constant) for name in node.output if name)
            list(self._weights_within(node))
            nodes.append(OnnxNode(node.op_type, ROOT, inputs, outputs, _attributes(node), node.domain or "onnx"))
        stored = self._stored(graph, weights, constants, nodes)
        self._values = outside
        return stored

    def _content(self, value: OnnxValue) -> object:
        """Return all that the results of a node may depend on."""
        data = value.data
        if data is not None:
            data = repr(data.tolist()) if data.dtype == object else data.tobytes()
        return self._kinds[value], value.shape, data

    def _outputs(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], key: object) -> Iterator[OnnxValue]:
        results = self._once(("computed", key), lambda: computed(node, inputs, self._model.opset_import))
        if results is not None:
            for name, data in zip(node.output, results, strict=False):
                # A shape is the same in every step, whatever it is the shape of.
                is_constant = node.op_type == "Shape" or all(
                    v is None or v.is_constant or v.data is None for v in inputs
                )
                yield self._know_array(name, np.asarray(data), is_constant=is_constant)
            return
        inferred = self._once(("inferred", key), lambda: self._inferred(node, inputs))
        is_constant = all(value is None or value.is_constant for value in inputs) and node.op_type not in RANDOM
        for name, (kind, shape) in zip(node.output, inferred, strict=True):
            yield self._know(name, kind, shape, is_constant=is_constant)

    def _inferred(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> InferredTypes:
        given = [(name, value) for name, value in zip(node.input, inputs, strict=True) if value is not None]
        unknown = [(0, None)] * len(node.output)
        if any(value.shape is None for _, value in given):
            return unknown
        rule = contrib_operators.SHAPES.get(node.domain, {}).get(node.op_type)
        if rule is not None:
            call = OnnxNode(node.op_type, "", tuple(inputs), (), _attributes(node), namespace=node.domain)
            shapes = contrib_operators.inferred(rule, call)
            results = [(like if isinstance(like, int) else self._kinds[like], shape) for like, shape in shapes]
            return [*results, *unknown][: len(node.output)]
        data = {name: numpy_helper.from_array(value.data, name) for name, value in given if value.data is not None}
        try:
            found: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
                onnx.defs.get_schema(node.op_type, self._opsets[node.domain], node.domain),
                node,
                {name: tensor_type(self._kinds[value], value.sizes) for name, value in given},
                data,
                opset_imports=list(self._model.opset_import),
            )
        except Exception:  # another domain's operator, or shapes that do not fit: unknown
            return unknown
        return [_kind_and_shape(found[name]) if name in found else (0, None) for name in node.output]


def in_order(nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
    """Return nodes with each after those whose results it reads.

    The standard demands that of a file, but ONNX Runtime runs others too, and its conversion to 16 bits writes them.

    Raises:
        CycleError: a node reads what depends on itself.
    """
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needed = {index: {makers[name] for name in node.input if name in makers} for index, node in enumerate(nodes)}
    if all(before < index for index, indices in needed.items() for before in indices):
        return nodes
    sorter = TopologicalSorter(needed)
    sorter.prepare()
    ready = list(sorter.get_ready())
    heapify(ready)
    order = []
    while ready:
        first = heappop(ready)  # otherwise in the order of the file
        order.append(nodes[first])
        sorter.done(first)
        for index in sorter.get_ready():
            heappush(ready, index)
    return order


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _attributes_key(node: onnx.NodeProto) -> object:
    return node.domain, node.op_type, tuple(attribute.SerializeToString() for attribute in node.attribute)


def _kind_and_shape(kind: onnx.TypeProto) -> tuple[int, tuple[int, ...] | None]:
    tensor = kind.tensor_type
    is_open = not tensor.HasField("shape") or any(not dim.HasField("dim_value") for dim in tensor.shape.dim)
    return tensor.elem_type, None if is_open else tuple(dim.dim_value for dim in tensor.shape.dim)


def constant(node: onnx.NodeProto) -> AnyArray:
    """The array of a Constant whose attribute has numbers or texts, and no tensor."""
    results: Any = ReferenceEvaluator(node).run(None, {})
    return np.asarray(results[0])


WEIGHT_OPERANDS: dict[str, tuple[int, ...]] = mapping.by_name(
    {
        "Conv ConvTranspose": (1, 2),
        "ConvInteger": (1,),
        "QLinearConv": (3, 8),
        "Gemm": (0, 1, 2),
        "MatMul MatMulInteger Einsum": (0, 1),
        "QLinearMatMul": (0, 3),
        "BatchNormalization": (1, 2, 3, 4),
        "LayerNormalization RMSNormalization InstanceNormalization GroupNormalization PRelu": (1, 2),
        "RNN GRU LSTM": (1, 2, 3, 7),
        "Gather": (0,),
    }
)
"""Positions of the operands that are learned where they are constants: weights, biases, statistics of norms, rows of a table."""
BIASED = {"MatMul", "Conv", "ConvTranspose"}
"""Operators whose bias may be an addition of its own."""
ZERO_BIASED = {"Gemm", "Conv", "ConvTranspose"}
"""Operators whose bias, the third operand, exporters make of zeros where there is none."""


def weights_among(constants: Sequence[OnnxValue], nodes: Sequence[OnnxNode]) -> list[OnnxValue]:
    """Return the constants of ``Constant`` nodes that are weights, by the operands that they are, or that are computed from them.

    Exporters write there what a forward has in its code, too: the scales of a resize, or a vector that it multiplies by.
    """
    makers = {value: node.op for node in nodes for value in node.outputs}
    learned: set[OnnxValue] = set()
    for node in reversed(nodes):
        operands = {value for value in node.inputs if value is not None and value.is_constant}
        if node.result.is_constant:
            if not learned.isdisjoint(node.outputs):
                learned |= operands
        elif node.op == "Add" and any(makers.get(value) in BIASED for value in node.inputs if value is not None):
            learned.update(value for value in operands if value.shape and prod(value.shape) == max(value.shape))
        else:
            weights = set(map(node.input, WEIGHT_OPERANDS.get(node.op, ())))
            if node.op in ZERO_BIASED and not is_added(node.input(2)):
                weights.discard(node.input(2))
            learned.update(operands & weights)
    return [value for value in constants if value in learned]


SCALES: dict[str, tuple[int, ...]] = mapping.by_name(
    {
        "QuantizeLinear DequantizeLinear": (1, 2),
        "QLinearConv QLinearMatMul": (1, 2, 4, 5, 6, 7),
        "ConvInteger MatMulInteger": (2, 3),
    }
)
SCALES |= contrib_operators.SCALES
"""Positions of the operands that say what quantised numbers stand for: scales and zero points."""
CLASSICAL = "ai.onnx.ml"
"""The domain of classical machine learning, which scikit-learn's converters write. Its models are not counted."""
CLASSICAL_WEIGHTS: dict[str, tuple[str, ...]] = mapping.by_name(
    {
        "LinearClassifier LinearRegressor": ("coefficients", "intercepts"),
        "SVMClassifier SVMRegressor": ("coefficients", "support_vectors", "rho"),
        "TreeEnsembleClassifier": ("nodes_values", "class_weights"),
        "TreeEnsembleRegressor": ("nodes_values", "target_weights"),
        "Scaler": ("offset", "scale"),
    }
)
"""Attributes that have learned numbers; they are counted as further operands of the operator."""
CLASSICAL_BUFFERS: dict[str, tuple[int, ...]] = {"Scaler": (1, 2)}
"""Positions of those that are statistics of the data."""
WHOLE_BIASES = {"DequantizeLinear": 0, "QLinearConv": 8, "QGemm": 6}
"""Positions of the operands that are biases where they are integers of 32 bits."""


def without_scales(weights: Sequence[OnnxValue], nodes: Sequence[OnnxNode]) -> list[OnnxValue]:
    """Return the weights without the scales and zero points of quantised ones.

    Biases of 32 bits are marked as the real numbers that they stand for; other integers of that size are settings.
    """
    stored, scales = set(weights), set[OnnxValue | None]()
    measured = {scale for node in nodes if node.op == "DynamicQuantizeLinear" for scale in node.outputs[1:2]}
    """Scales of activations, which those of weights are multiplied with."""
    for node in nodes:
        scales.update(map(node.input, SCALES.get(node.op, ())))
        if node.op == "Mul" and not measured.isdisjoint(node.inputs):
            scales.update(node.inputs)
        bias = node.input(WHOLE_BIASES[node.op]) if node.op in WHOLE_BIASES else None
        if bias is not None and bias in stored and bias.dtype == "int32":
            bias.numbers = REAL
    return [value for value in weights if value not in scales]


def unpack(weights: Iterable[OnnxValue], nodes: Sequence[OnnxNode]) -> None:
    """Give weights whose numbers are packed in bytes their own shapes; the file stores as many bytes as before."""
    stored = {value for value in weights if value.dtype == "uint8"}
    for node in nodes:
        for packed in contrib_operators.packed_weights(node):
            if packed.value in stored and packed.value.dtype == "uint8":
                packed.value.itemsize = packed.value.nbytes / prod(packed.shape)
                packed.value.shape = packed.shape
                if f"uint{packed.bits}" in QUANTISED:
                    packed.value.dtype = f"uint{packed.bits}"


def names_read(graph: onnx.GraphProto) -> set[str]:
    """Return the names of a graph's outputs, and of all that its nodes read, also in their own graphs."""
    found = {value.name for value in graph.output}
    for node in graph.node:
        found.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found |= names_read(inner)
    return found


def computed(
    node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], opsets: Sequence[onnx.OperatorSetIdProto]
) -> Sequence[AnyArray] | None:
    """The results, where they depend on small constants alone, or on a known shape; None where they do not."""
    first = inputs[0] if inputs else None
    if first is None:
        return None
    if node.op_type == "Shape" and first.shape is not None:
        wanted: dict[str, int] = {str(a.name): int(a.i) for a in node.attribute}
        return [np.asarray(first.shape[wanted.get("start") : wanted.get("end")], np.int64)]
    if node.op_type == "CastLike" and first.data is not None and inputs[1] is not None and inputs[1].dtype:
        return [first.data.astype(inputs[1].dtype)]
    return _evaluated(node, inputs, opsets) if _may_be(node, inputs) else None


def _may_be(node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> bool:
    """True if all inputs are constants, and they and the results computed from them are small."""
    given = [value for value in inputs if value is not None]
    if node.op_type in RANDOM or any(value.data is None for value in given):
        return False
    if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
        return False
    if node.op_type in FILLING and prod(int(n) for n in given[-1].data.ravel()) > CONSTANT_ELEMENTS:
        return False
    return sum(value.elements for value in given) <= CONSTANT_ELEMENTS


def _evaluated(
    node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], opsets: Sequence[onnx.OperatorSetIdProto]
) -> Sequence[AnyArray] | None:
    feeds = {name: value.data for name, value in zip(node.input, inputs, strict=True) if value is not None}
    results = [name for name in node.output if name]
    function = helper.make_function("", node.op_type, list(feeds), results, [node], opsets)
    try:
        found: Any = ReferenceEvaluator(function).run(None, feeds, attributes={})
    except Exception:  # the reference does not implement every operator; the shape is inferred then
        return None
    return list(found)
