"""The graph of an ONNX file as plain data, its values with shapes for inputs of given shapes; no weight is read.

Node by node: what depends on constants alone and is small is computed, as shapes are computed from shapes; of everything else
the shape is inferred by the rules of the ONNX standard. What they do not tell stays unknown.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
from onnx import helper, inliner, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.optimizer import fold_constants_ir

from sweeprof.backends import AnyArray
from sweeprof.backends.call_signature import by_name
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.counting.graph import GraphNode, GraphValue, OperatorGraph
from sweeprof.results.layer_times import ROOT


def onnx_dtype(name: str) -> Any:
    """The numpy type of that name, or ml_dtypes' for those that numpy has not."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(getattr(ml_dtypes, name))


SCOPES = "pkg.torch.onnx.name_scopes"
"""torch's exporter: every module around the node, outermost first, and the traced operation."""


def path_of_scopes(scopes: str | None) -> str:
    """``stage1.conv1`` from ``['', 'stage1', 'stage1.conv1', 'conv2d']``."""
    found = ast.literal_eval(scopes)[:-1] if scopes else []
    return next((str(path) for path in reversed(found) if path and not path.startswith("_empty_nn_module")), ROOT)


def path_of(node: Any) -> str:
    """The same of a node of any file: from its metadata, or from a name as other exporters write it.

    torch's older exporter names ``/stage1/stage1.0/conv1/Conv`` what belongs to ``stage1.0.conv1``, Keras's
    ``model/conv1/Conv2D`` what belongs to ``model.conv1``.
    """
    for note in node.metadata_props:
        if note.key == SCOPES:
            return path_of_scopes(note.value)
    parts: list[str] = []
    for part in [part for part in node.name.split("/") if part][:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    return ".".join(parts) or ROOT


def tidy(model: onnx_ir.Model, weights: Collection[str]) -> dict[str, str]:
    """Fold the constants of a traced graph in place; returns the path of the module of every node, by the node's name.

    Args:
        model: the graph.
        weights: initializers that are the model's own, and stay as they are.
    """
    makers = {v.name: n.metadata_props[SCOPES] for n in model.graph for v in n.outputs if SCOPES in n.metadata_props}

    def should_fold(node: onnx_ir.Node) -> bool | None:
        return False if any(value is not None and value.name in weights for value in node.inputs) else None

    fold_constants_ir(model, onnx_shape_inference=True, should_fold=should_fold)
    for node in model.graph:
        if node.op_type in ("Conv", "ConvTranspose") and len(node.inputs) == 3 and _is_zero(node.inputs[2], weights):
            node.replace_input_with(2, None)
    RemoveUnusedNodesPass()(model)
    return {str(node.name): path_of_scopes(_scopes(node, makers)) for node in model.graph.all_nodes()}


def _scopes(node: onnx_ir.Node, makers: Any) -> str | None:
    """Return the scope in the node's metadata, or in that of the node that it replaces."""
    return node.metadata_props.get(SCOPES) or next((makers[v.name] for v in node.outputs if v.name in makers), None)


def _is_zero(value: onnx_ir.Value | None, weights: Collection[str]) -> bool:
    if value is None or value.name in weights:
        return False
    constant = onnx_ir.convenience.get_const_tensor(value)
    return constant is not None and not constant.numpy().any()


CONSTANT_ELEMENTS = 4096
"""Values up to this size that depend on no input are computed."""
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
FILLING = {"Expand", "ConstantOfShape", "Tile"}
"""Operators that make much of little: their last input tells the shape."""


def constant(node: onnx.NodeProto) -> Any:
    """The array of a Constant."""
    results: Any = ReferenceEvaluator(node).run(None, {})
    return np.asarray(results[0])


def computed(
    node: onnx.NodeProto, inputs: Sequence[GraphValue | None], opsets: Sequence[onnx.OperatorSetIdProto]
) -> Sequence[AnyArray] | None:
    """The results, where they depend on small constants alone, or on a known shape; None where they do not."""
    first = inputs[0] if inputs else None
    if first is None:
        return None
    if node.op_type == "Shape" and first.shape is not None:
        wanted: dict[str, int] = {str(a.name): int(a.i) for a in node.attribute}
        return [np.asarray(first.shape[wanted.get("start") : wanted.get("end")], np.int64)]
    if node.op_type == "CastLike" and first.data is not None and inputs[1] is not None and inputs[1].dtype:
        return [first.data.astype(onnx_dtype(inputs[1].dtype))]
    return _evaluated(node, inputs, opsets) if _may_be(node, inputs) else None


def _may_be(node: onnx.NodeProto, inputs: Sequence[GraphValue | None]) -> bool:
    """True if all inputs are constants, and they and the results computed from them are small."""
    given = [value for value in inputs if value is not None]
    has_body = any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)
    if node.op_type in RANDOM or has_body or any(value.data is None for value in given):
        return False
    if node.op_type in FILLING and math.prod(int(n) for n in given[-1].data.ravel()) > CONSTANT_ELEMENTS:
        return False
    return sum(value.elements for value in given) <= CONSTANT_ELEMENTS


def _evaluated(
    node: onnx.NodeProto, inputs: Sequence[GraphValue | None], opsets: Sequence[onnx.OperatorSetIdProto]
) -> Sequence[AnyArray] | None:
    feeds = {name: value.data for name, value in zip(node.input, inputs, strict=True) if value is not None}
    given = [numpy_helper.from_array(data, name) for name, data in feeds.items()]
    values = [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in given]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
    model = helper.make_model(helper.make_graph([node], "node", values, results), opset_imports=opsets)
    try:
        found: Any = ReferenceEvaluator(model).run(None, feeds)
    except Exception:  # the reference does not implement every operator; the shape is inferred then
        return None
    return list(found)


ALIKE = {"GroupNormalization", "MeanVarianceNormalization", "LRN", "LpNormalization", "Shrink"}
"""Operators that return what they are given, which the standard's rules do not say of all of them."""
SETTINGS_ELEMENTS = 16
"""Initializers of floating-point numbers up to this size may be settings, such as the scales of a Resize."""


def read(file: Exported, shapes: Sequence[tuple[int, ...]], named: Mapping[str, tuple[int, ...]]) -> OperatorGraph:
    """The graph of a file for inputs of these shapes: in their order, and by name.

    Raises:
        Unsupported: there are not as many as the graph has inputs; its own shapes may be open, and do not stand in.
        Exception: it is no ONNX file.
    """
    model = onnx.load(file.path, load_external_data=False)
    if model.functions:
        model = inliner.inline_local_functions(model)
    return _GraphReader(model, file).graph(shapes, named)


class _GraphReader:
    """One pass over the nodes."""

    def __init__(self, model: onnx.ModelProto, file: Exported) -> None:
        self._model, self._file = model, file
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._values: dict[str, GraphValue] = {}
        self._types: dict[str, onnx.TypeProto] = {}

    def graph(self, shapes: Sequence[tuple[int, ...]], named: Mapping[str, tuple[int, ...]]) -> OperatorGraph:
        graph = self._model.graph
        weights = tuple(self._weight(tensor) for tensor in graph.initializer)
        given = [value for value in graph.input if value.name not in self._values]
        sized = by_name([value.name for value in given], shapes, named)
        inputs = tuple(self._input(value, sized[value.name]) for value in given)
        nodes = tuple(self._node(node) for node in graph.node if node.op_type != "Constant" or self._constant(node))
        outputs = tuple(self._values[value.name] for value in graph.output)
        return OperatorGraph(nodes, inputs, outputs, weights)

    def _weight(self, tensor: onnx.TensorProto) -> GraphValue:
        shape = tuple(tensor.dims)
        value = GraphValue(tensor.name, shape, _dtype_name(tensor.data_type), is_fixed=True)
        most = SETTINGS_ELEMENTS if value.is_floating else CONSTANT_ELEMENTS
        if tensor.name not in self._file.weights and math.prod(shape) <= most:
            base = str(Path(self._file.path).parent) if uses_external_data(tensor) else ""
            value.data = numpy_helper.to_array(tensor, base)
        return self._know(value, helper.make_tensor_type_proto(tensor.data_type, shape))

    def _input(self, given: onnx.ValueInfoProto, shape: tuple[int, ...]) -> GraphValue:
        kind = given.type.tensor_type.elem_type
        return self._know(GraphValue(given.name, shape, _dtype_name(kind)), helper.make_tensor_type_proto(kind, shape))

    def _constant(self, node: onnx.NodeProto) -> bool:
        """Take note of a constant, which is no operator; false, so that it is none of the nodes."""
        self._know_array(node.output[0], constant(node))
        return False

    def _know_array(self, name: str, data: AnyArray) -> GraphValue:
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        kept = data if data.size <= CONSTANT_ELEMENTS else None
        value = GraphValue(name, tuple(data.shape), _dtype_name(kind), kept, is_fixed=True)
        return self._know(value, helper.make_tensor_type_proto(kind, data.shape))

    def _know(self, value: GraphValue, kind: onnx.TypeProto) -> GraphValue:
        self._values[value.name], self._types[value.name] = value, kind
        return value

    def _node(self, node: onnx.NodeProto) -> GraphNode:
        inputs = tuple(self._values[name] if name else None for name in node.input)
        outputs = tuple(self._outputs(node, inputs))
        paths = self._file.paths
        return GraphNode(
            name=node.name,
            namespace="onnx" if node.domain in ("", "ai.onnx") else node.domain,
            op=node.op_type,
            path=path_of(node) if paths is None else paths.get(node.name, ROOT),
            inputs=inputs,
            outputs=outputs,
            attributes={a.name: helper.get_attribute_value(a) for a in node.attribute},
        )

    def _outputs(self, node: onnx.NodeProto, inputs: Sequence[GraphValue | None]) -> Iterator[GraphValue]:
        results = computed(node, inputs, self._model.opset_import)
        if results is not None:
            for name, data in zip(node.output, results, strict=False):
                yield self._know_array(name, np.asarray(data))
            return
        inferred = self._inferred(node, inputs)
        is_fixed = all(value is None or value.is_constant for value in inputs) and node.op_type not in RANDOM
        for name in node.output:
            kind = inferred.get(name, onnx.TypeProto())
            value = GraphValue(name, _shape(kind), _dtype_name(kind.tensor_type.elem_type), is_fixed=is_fixed)
            yield self._know(value, kind)

    def _inferred(self, node: onnx.NodeProto, inputs: Sequence[GraphValue | None]) -> Mapping[str, onnx.TypeProto]:
        given = [(name, value) for name, value in zip(node.input, inputs, strict=True) if value is not None]
        if any(value.shape is None for _, value in given):
            return {}
        data = {name: numpy_helper.from_array(value.data, name) for name, value in given if value.data is not None}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets[node.domain], node.domain)
            found: Mapping[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: self._types[name] for name, _ in given},
                data,
                opset_imports=list(self._model.opset_import),
            )
        except Exception:  # another domain's operator, or shapes that do not fit: unknown
            return {}
        return {**found, node.output[0]: self._types[node.input[0]]} if node.op_type in ALIKE else found


def _dtype_name(kind: int) -> str:
    return helper.tensor_dtype_to_np_dtype(kind).name if kind else ""


def _shape(kind: onnx.TypeProto) -> tuple[int, ...] | None:
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)
