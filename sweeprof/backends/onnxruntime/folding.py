"""Computes nodes of a graph that depend on small constants alone, by ONNX's own reference implementation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sweeprof.backends.onnxruntime.graph import Value, onnx_dtype

CONSTANT_ELEMENTS = 4096
"""Values up to this size that depend on no input are computed."""
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
FILLING = {"Expand", "ConstantOfShape", "Tile"}
"""Operators that make much of little: their last input tells the shape."""


def constant(node: onnx.NodeProto) -> Any:
    """The array of a Constant."""
    results: Any = ReferenceEvaluator(node).run(None, {})
    return np.asarray(results[0])


def computed(node: onnx.NodeProto, inputs: Sequence[Value | None], opsets: Any) -> Sequence[Any] | None:
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


def _may_be(node: onnx.NodeProto, inputs: Sequence[Value | None]) -> bool:
    """Whether all inputs are constants, and they and what is made of them small."""
    given = [value for value in inputs if value is not None]
    has_body = any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)
    if node.op_type in RANDOM or has_body or any(value.data is None for value in given):
        return False
    if node.op_type in FILLING and math.prod(int(n) for n in given[-1].data.ravel()) > CONSTANT_ELEMENTS:
        return False
    return sum(value.elements for value in given) <= CONSTANT_ELEMENTS


def _evaluated(node: onnx.NodeProto, inputs: Sequence[Value | None], opsets: Any) -> Sequence[Any] | None:
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
