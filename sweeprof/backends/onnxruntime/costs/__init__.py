"""The cost of each operator of the ONNX standard: multiply-accumulates, floating-point operations and textbook operations.

The definitions are those of docs/counting.md, by the operators' ONNX names; a rule is a function of a node, whose shapes are known:

    def matmul(node) -> (macs, flops, ops)
"""

from __future__ import annotations

from sweeprof.backends.onnxruntime.costs import elementwise, products, recurrent, reductions
from sweeprof.backends.onnxruntime.costs.free import FREE
from sweeprof.backends.onnxruntime.costs.rule import NOTHING, Cost, Rule

__all__ = ["COSTS", "FREE", "NOTHING", "Cost", "Rule"]

COSTS: dict[str, Rule] = {**elementwise.RULES, **reductions.RULES, **products.RULES, **recurrent.RULES}
"""Rule by qualified name, e.g. ``onnx::Conv``."""
