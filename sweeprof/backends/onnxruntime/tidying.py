"""Folds the constants of a traced graph, which nobody means to compute at every step, and leaves the model's own operators alone.

Tracing writes down how shapes are computed from shapes, and torch's exporter gives a convolution without a bias one of zeros: both
keep the run-time from recognising what it could fuse. What torch's exporter would do by itself goes further, and merges batch norms
into convolutions: here that is the run-time's own optimisation, which is a setting.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx_ir
from onnx_ir.passes.common import RemoveUnusedNodesPass
from onnxscript.optimizer import fold_constants_ir

from sweeprof.backends.onnxruntime.paths import SCOPES, path_of_scopes


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
    """What the node notes, or noted the one that it stands for."""
    return node.metadata_props.get(SCOPES) or next((makers[v.name] for v in node.outputs if v.name in makers), None)


def _is_zero(value: onnx_ir.Value | None, weights: Collection[str]) -> bool:
    if value is None or value.name in weights:
        return False
    constant = onnx_ir.convenience.get_const_tensor(value)
    return constant is not None and not constant.numpy().any()
