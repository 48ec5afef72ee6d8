"""Elementwise operators: so many FLOPs and textbook operations for each element of a floating-point result."""

from __future__ import annotations

from sweeprof.backends.onnxruntime.costs.rule import NOTHING, Cost, Rule, argument
from sweeprof.backends.onnxruntime.graph import OnnxNode

_TABLE = """
Relu 1 1
Sigmoid 1 3
Tanh 1 7
LeakyRelu PRelu 1 4
Elu Celu Softsign 1 3
Selu 1 7
Softplus 1 5
Mish 1 13
HardSigmoid Swish 1 4
HardSwish 1 5
ThresholdedRelu Shrink 1 2
Add Sub Mul Div Pow Mod Neg Abs Sign Clip 1 1
Sqrt Exp Log Reciprocal Floor Ceil Round Erf 1 1
Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh 1 1
"""
"""FLOPs and operations per element, behind the operators they hold for."""
_RESIZED = {b"nearest": (0, 0, 0), b"linear": (3, 7, 15), b"cubic": (31, 31, 31)}
"""FLOPs per element by mode and how many axes are resized, 1 to 3: bilinear interpolation weighs 4 neighbours."""


def pointwise(flops: int, ops: int) -> Rule:
    """The rule of an operator that does this for each element of a floating-point result, and nothing for any other."""

    def rule(node: OnnxNode) -> Cost:
        result = node.outputs[0]
        return (0, flops * result.elements, ops * result.elements) if result.is_floating else NOTHING

    return rule


def _table() -> dict[str, Rule]:
    rules = {}
    for line in _TABLE.split("\n"):
        *names, flops, ops = line.split() or ("0", "0")
        rules.update({f"onnx::{name}": pointwise(int(flops), int(ops)) for name in names})
    return rules


def _gelu(node: OnnxNode) -> Cost:
    """With ``approximate='tanh'``: ``x/2·(1 + tanh(√(2/π)·(x + 0.0447·x³)))``, else ``x/2·(1 + erf(x/√2))``."""
    elements = node.outputs[0].elements
    return 0, elements, elements * (15 if node.attributes.get("approximate") == b"tanh" else 5)


def _several(node: OnnxNode) -> Cost:
    """``Sum``, ``Max``, ``Min`` of any number of tensors."""
    result = node.outputs[0]
    work = (len(node.inputs) - 1) * result.elements
    return (0, work, work) if result.is_floating else NOTHING


def _mean(node: OnnxNode) -> Cost:
    result = node.outputs[0]
    work = len(node.inputs) * result.elements
    return (0, work, work) if result.is_floating else NOTHING


def _resize(node: OnnxNode) -> Cost:
    result, shapes = node.outputs[0], (argument(node).shape or (), node.outputs[0].shape or ())
    changed = sum(a != b for a, b in zip(*shapes, strict=True))
    if not changed or not result.is_floating:
        return NOTHING
    work = _RESIZED[node.attributes.get("mode", b"nearest")][min(changed, 3) - 1] * result.elements
    return 0, work, work


def _grid_sample(node: OnnxNode) -> Cost:
    """Return the cost of a Resize with the same interpolation mode."""
    mode = node.attributes.get("mode", b"linear").replace(b"bi", b"")
    work = _RESIZED[mode][len(node.outputs[0].shape or ()) - 3] * node.outputs[0].elements
    return 0, work, work


RULES: dict[str, Rule] = {
    **_table(),
    "onnx::Gelu": _gelu,
    **dict.fromkeys(("onnx::Sum", "onnx::Max", "onnx::Min"), _several),
    "onnx::Mean": _mean,
    "onnx::Resize": _resize,
    "onnx::Upsample": _resize,
    "onnx::GridSample": _grid_sample,
}
