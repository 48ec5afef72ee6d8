"""The cost of each operation of ``keras.ops``: multiply-accumulates, floating-point operations and textbook scalar operations.

The definitions are those of the torch backend; docs/counting.md is the table for readers, and tests hold both together. One file
per family; a rule is a function of an operation (which holds its settings), its arguments and its result:

    def matmul(operation, args, kwargs, output) -> (macs, flops, ops)

Rules see shapes and data types alone, so that they hold on whatever Keras runs on.
"""

from __future__ import annotations

from sweeprof.backends.keras.costs import pointwise, products, reductions
from sweeprof.backends.keras.costs.rule import Cost, Rule

__all__ = ["COSTS", "Cost", "Rule"]

COSTS: dict[str, Rule] = {**pointwise.RULES, **reductions.RULES, **products.RULES}
"""Rule by the name of the operation's class in small letters, e.g. ``depthwise_conv``."""
