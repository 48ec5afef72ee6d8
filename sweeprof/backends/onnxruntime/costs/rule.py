"""The type of a cost rule, and the arithmetic that rules share."""

from __future__ import annotations

from collections.abc import Callable

from sweeprof.backends.onnxruntime.graph import OnnxNode, OnnxValue

Cost = tuple[int, int, int]
"""MACs, FLOPs, ops."""
Rule = Callable[[OnnxNode], Cost]

NOTHING: Cost = (0, 0, 0)


def argument(node: OnnxNode, position: int = 0) -> OnnxValue:
    """An input that every node of the operator has."""
    value = node.input(position)
    assert value is not None
    return value


def shape_of(value: OnnxValue) -> tuple[int, ...]:
    """The shape, which is known of every node that is counted."""
    assert value.shape is not None
    return value.shape


def product(macs: int, outputs: int, result: OnnxValue, *, bias: bool) -> Cost:
    """``outputs`` sums that take ``macs`` products together, each begun by its bias where there is one.

    A sum of n products takes n - 1 additions, with a bias n. On integers there are operations, but no FLOPs.
    """
    if not macs:
        return 0, outputs if bias and result.is_floating else 0, 0
    flops = 2 * macs + (outputs if bias else 0) if result.is_floating else 0
    return macs, flops, 2 * macs - (0 if bias else outputs)


def is_added(bias: OnnxValue | None) -> bool:
    """True if there is a bias; torch's exporter puts constant zeros where a convolution has none."""
    return bias is not None and (bias.data is None or bool(bias.data.any()))
