"""A graph whose values have shapes: plain data, made by ``reading.py``."""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.optimizer import fold_constants_ir

from sweeprof.results.layer_times import ROOT


@dataclass(slots=True, eq=False)
class OnnxValue:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...] | None
    """None where it is not known."""
    dtype: str
    """As numpy calls it; ``""`` where it is not known."""
    data: Any = None
    """The array, of what is constant and small."""
    is_fixed: bool = False
    """True if it is an initializer, or computed from initializers only."""

    @property
    def elements(self) -> int:
        assert self.shape is not None
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * itemsize(self.dtype)

    @property
    def is_floating(self) -> bool:
        return "float" in self.dtype or "complex" in self.dtype

    @property
    def is_constant(self) -> bool:
        """True if the value depends on no input."""
        return self.is_fixed or self.data is not None


@dataclass(slots=True, eq=False)
class OnnxNode:
    """An operator of the graph."""

    name: str
    domain: str
    op: str
    path: str
    """Of its module."""
    inputs: tuple[OnnxValue | None, ...]
    """None for an optional one that is not given."""
    outputs: tuple[OnnxValue, ...]
    attributes: Mapping[str, Any]

    def input(self, position: int) -> OnnxValue | None:
        """Return the input at a position, or None if it is omitted."""
        return self.inputs[position] if len(self.inputs) > position else None

    @property
    def qualified(self) -> str:
        """``onnx::Conv`` for what the standard has."""
        return f"{self.domain or 'onnx'}::{self.op}"

    @property
    def is_known(self) -> bool:
        """True if the shapes of all inputs and outputs are known."""
        return all(value is None or value.shape is not None for value in (*self.inputs, *self.outputs))


@dataclass(frozen=True)
class OnnxGraph:
    """Nodes in the order in which they run."""

    nodes: tuple[OnnxNode, ...]
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    weights: tuple[OnnxValue, ...]
    """Initializers."""

    @cached_property
    def consumers(self) -> dict[OnnxValue, list[OnnxNode]]:
        """The nodes that read each value."""
        found: dict[OnnxValue, list[OnnxNode]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value is not None:
                    found.setdefault(value, []).append(node)
        return found


def itemsize(dtype: str) -> int:
    """Bytes of an element; 0 for texts."""
    if dtype in ("", "object"):
        return 0
    return int(np.dtype(onnx_dtype(dtype)).itemsize)


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


def computed(node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], opsets: Any) -> Sequence[Any] | None:
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


def _may_be(node: onnx.NodeProto, inputs: Sequence[OnnxValue | None]) -> bool:
    """True if all inputs are constants, and they and the results computed from them are small."""
    given = [value for value in inputs if value is not None]
    has_body = any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute)
    if node.op_type in RANDOM or has_body or any(value.data is None for value in given):
        return False
    if node.op_type in FILLING and math.prod(int(n) for n in given[-1].data.ravel()) > CONSTANT_ELEMENTS:
        return False
    return sum(value.elements for value in given) <= CONSTANT_ELEMENTS


def _evaluated(node: onnx.NodeProto, inputs: Sequence[OnnxValue | None], opsets: Any) -> Sequence[Any] | None:
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
