"""Norms, pooling, softmax and sums: operators that combine elements without multiply-accumulates."""

from __future__ import annotations

from math import log2, prod

from sweeprof.backends.onnxruntime.costs.rule import NOTHING, Cost, Rule, argument, is_added, shape_of
from sweeprof.backends.onnxruntime.graph import OnnxNode


def _batch_norm(node: OnnxNode) -> Cost:
    """``(X, scale, B, mean, variance)``; as mean and deviation are constants, a scale and a shift: 2 FLOPs an element."""
    elements, channels = argument(node).elements, argument(node, 1).elements
    if node.attributes.get("training_mode"):
        return 0, 5 * elements, 7 * elements + 4 * channels
    return 0, 2 * elements, 4 * elements + 2 * channels


def _normalised(rows: int, elements: int, *, weight: bool, bias: bool) -> Cost:
    """Rows that are normalised by their own mean and variance."""
    return 0, (5 if weight else 4) * elements, (5 + weight + bias) * elements + 4 * rows


def _layer_norm(node: OnnxNode) -> Cost:
    shape = shape_of(argument(node))
    rows = prod(shape[: node.attributes.get("axis", -1) % len(shape)])
    return _normalised(rows, argument(node).elements, weight=True, bias=is_added(node.input(2)))


def _rms_norm(node: OnnxNode) -> Cost:
    """Squares, their mean, a root, a division, and a multiplication by the weight."""
    shape, elements = shape_of(argument(node)), argument(node).elements
    rows = prod(shape[: node.attributes.get("axis", -1) % len(shape)])
    return 0, 4 * elements, 4 * elements + 2 * rows


def _instance_norm(node: OnnxNode) -> Cost:
    batch, channels = shape_of(argument(node))[:2]
    return _normalised(batch * channels, argument(node).elements, weight=True, bias=True)


def _group_norm(node: OnnxNode) -> Cost:
    rows = shape_of(argument(node))[0] * int(node.attributes["num_groups"])
    return _normalised(rows, argument(node).elements, weight=True, bias=True)


def _softmax(node: OnnxNode) -> Cost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, divide: 4n - 1 operations; one FLOP an element."""
    value = argument(node)
    length = shape_of(value)[node.attributes.get("axis", -1)] if value.shape else 1
    return 0, value.elements, (value.elements // length) * (4 * length - 1) if length else 0


def _log_softmax(node: OnnxNode) -> Cost:
    """One more, a logarithm."""
    return 0, argument(node).elements, 4 * argument(node).elements


def _average_pool(node: OnnxNode) -> Cost:
    """Every input is touched once (FLOPs); each output sums its window and divides (operations)."""
    return 0, argument(node).elements, node.outputs[0].elements * prod(node.attributes["kernel_shape"])


def _max_pool(node: OnnxNode) -> Cost:
    """Every input is touched once (FLOPs); finding a window's maximum is one operation."""
    result = node.outputs[0]
    return (0, argument(node).elements, result.elements) if result.is_floating else NOTHING


def _folded(each: int, rest: int) -> Rule:
    """So many operations for each input, and ``rest`` for each output."""

    def rule(node: OnnxNode) -> Cost:
        value, result = argument(node), node.outputs[0]
        if not result.is_floating:
            return NOTHING
        work = each * value.elements
        return 0, work, max(0, work + rest * result.elements)

    return rule


def _scan(node: OnnxNode) -> Cost:
    result = node.outputs[0]
    return (0, result.elements, result.elements) if result.is_floating else NOTHING


def _log_sum_exp(node: OnnxNode) -> Cost:
    """Subtract the maximum, exponentiate, add up, a logarithm, add the maximum."""
    value = argument(node).elements
    return 0, value, 3 * value + node.outputs[0].elements


def _scatter(node: OnnxNode) -> Cost:
    """Only moves, unless it is to reduce."""
    updates = argument(node, 2)
    reduces = node.attributes.get("reduction", b"none") != b"none"
    return (0, updates.elements, updates.elements) if reduces and updates.is_floating else NOTHING


def _fourier(node: OnnxNode) -> Cost:
    """``5 n log₂ n`` for a complex transform over n points (Cooley and Tukey), half of it for real numbers.

    The last axis has the real and the imaginary parts.
    """
    shape = shape_of(node.outputs[0])
    axis = argument(node, 2).data if node.input(2) is not None else node.attributes.get("axis", -2)
    points = shape[int(axis)]
    each = 5 if shape_of(argument(node))[-1] == 2 else 2.5
    work = round(each * prod(shape[:-1]) * log2(points)) if points > 1 else 0
    return 0, work, work


def _rules(function: Rule, names: str) -> dict[str, Rule]:
    return {f"onnx::{name}": function for name in names.split()}


RULES: dict[str, Rule] = {
    **_rules(_batch_norm, "BatchNormalization"),
    **_rules(_layer_norm, "LayerNormalization"),
    **_rules(_rms_norm, "RMSNormalization"),
    **_rules(_instance_norm, "InstanceNormalization"),
    **_rules(_group_norm, "GroupNormalization"),
    **_rules(_softmax, "Softmax"),
    **_rules(_log_softmax, "LogSoftmax"),
    **_rules(_average_pool, "AveragePool"),
    **_rules(_max_pool, "MaxPool GlobalMaxPool"),
    **_rules(_folded(1, 0), "GlobalAveragePool ReduceMean"),
    **_rules(_folded(1, -1), "ReduceSum ReduceMax ReduceMin ReduceProd"),
    **_rules(_folded(2, 0), "ReduceL2"),
    **_rules(_folded(2, -1), "ReduceL1 ReduceSumSquare"),
    **_rules(_folded(1, 1), "ReduceLogSum"),
    **_rules(_log_sum_exp, "ReduceLogSumExp"),
    **_rules(_scan, "CumSum CumProd"),
    **_rules(_scatter, "ScatterElements ScatterND"),
    **_rules(_fourier, "DFT"),
}
