"""Reads the graph of an ONNX file for inputs of given shapes; nothing is run and no weight is read.

Node by node: what depends on constants alone and is small is computed (``folding.py``), as shapes are computed from shapes; of
everything else the shape is inferred by the rules of the ONNX standard. What they do not tell stays unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner, numpy_helper
from onnx.external_data_helper import uses_external_data

from sweeprof.backends.onnxruntime.files import Exported, by_name
from sweeprof.backends.onnxruntime.graph import (
    CONSTANT_ELEMENTS,
    RANDOM,
    OnnxGraph,
    OnnxNode,
    OnnxValue,
    computed,
    constant,
    path_of,
)
from sweeprof.results.layer_times import ROOT

ALIKE = {"GroupNormalization", "MeanVarianceNormalization", "LRN", "LpNormalization", "Shrink"}
"""Operators that return what they are given, which the standard's rules do not say of all of them."""
SETTINGS_ELEMENTS = 16
"""Initializers of floating-point numbers up to this size may be settings, such as the scales of a Resize."""


def read(file: Exported, shapes: Sequence[tuple[int, ...]], named: Mapping[str, tuple[int, ...]]) -> OnnxGraph:
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
        self._values: dict[str, OnnxValue] = {}
        self._types: dict[str, onnx.TypeProto] = {}

    def graph(self, shapes: Sequence[tuple[int, ...]], named: Mapping[str, tuple[int, ...]]) -> OnnxGraph:
        graph = self._model.graph
        weights = tuple(self._weight(tensor) for tensor in graph.initializer)
        given = [value for value in graph.input if value.name not in self._values]
        sized = by_name([value.name for value in given], shapes, named)
        inputs = tuple(self._input(value, sized[value.name]) for value in given)
        nodes = tuple(self._node(node) for node in graph.node if node.op_type != "Constant" or self._constant(node))
        outputs = tuple(self._values[value.name] for value in graph.output)
        return OnnxGraph(nodes, inputs, outputs, weights)

    def _weight(self, tensor: onnx.TensorProto) -> OnnxValue:
        shape = tuple(tensor.dims)
        value = OnnxValue(tensor.name, shape, _dtype_name(tensor.data_type), is_fixed=True)
        most = SETTINGS_ELEMENTS if value.is_floating else CONSTANT_ELEMENTS
        if tensor.name not in self._file.weights and math.prod(shape) <= most:
            base = str(Path(self._file.path).parent) if uses_external_data(tensor) else ""
            value.data = numpy_helper.to_array(tensor, base)
        return self._know(value, helper.make_tensor_type_proto(tensor.data_type, shape))

    def _input(self, given: onnx.ValueInfoProto, shape: tuple[int, ...]) -> OnnxValue:
        kind = given.type.tensor_type.elem_type
        return self._know(OnnxValue(given.name, shape, _dtype_name(kind)), helper.make_tensor_type_proto(kind, shape))

    def _constant(self, node: onnx.NodeProto) -> bool:
        """Take note of a constant, which is no operator; false, so that it is none of the nodes."""
        self._know_array(node.output[0], constant(node))
        return False

    def _know_array(self, name: str, data: Any) -> OnnxValue:
        kind = helper.np_dtype_to_tensor_dtype(data.dtype)
        kept = data if data.size <= CONSTANT_ELEMENTS else None
        value = OnnxValue(name, tuple(data.shape), _dtype_name(kind), kept, is_fixed=True)
        return self._know(value, helper.make_tensor_type_proto(kind, data.shape))

    def _know(self, value: OnnxValue, kind: onnx.TypeProto) -> OnnxValue:
        self._values[value.name], self._types[value.name] = value, kind
        return value

    def _node(self, node: onnx.NodeProto) -> OnnxNode:
        inputs = tuple(self._values[name] if name else None for name in node.input)
        outputs = tuple(self._outputs(node, inputs))
        paths = self._file.paths
        return OnnxNode(
            name=node.name,
            domain="" if node.domain == "ai.onnx" else node.domain,
            op=node.op_type,
            path=path_of(node) if paths is None else paths.get(node.name, ROOT),
            inputs=inputs,
            outputs=outputs,
            attributes={a.name: helper.get_attribute_value(a) for a in node.attribute},
        )

    def _outputs(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> Iterator[OnnxValue]:
        results = computed(node, inputs, self._model.opset_import)
        if results is not None:
            for name, data in zip(node.output, results, strict=False):
                yield self._know_array(name, np.asarray(data))
            return
        inferred = self._inferred(node, inputs)
        is_fixed = all(value is None or value.is_constant for value in inputs) and node.op_type not in RANDOM
        for name in node.output:
            kind = inferred.get(name, onnx.TypeProto())
            value = OnnxValue(name, _shape(kind), _dtype_name(kind.tensor_type.elem_type), is_fixed=is_fixed)
            yield self._know(value, kind)

    def _inferred(self, node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> Mapping[str, onnx.TypeProto]:
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
