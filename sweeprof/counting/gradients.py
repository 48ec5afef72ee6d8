"""The cost of the operators of a backward, as torch runs them; other backends estimate the backward.

A matrix product in a backward is a matrix product: as many multiply-accumulates as the forward, for each operand that needs a
gradient. The others cost so many FLOPs (and as many textbook operations) for each element of their input or result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sweeprof.counting.formulas import OperatorCost
from sweeprof.results.layers import Training


@dataclass(frozen=True, slots=True)
class Gradient:
    """FLOPs of a backward, beside those of products."""

    per_element: int
    of: Literal["input", "result"]
    """Whose elements; of the result for each operand that needs a gradient."""
    definition: str


GRADIENTS = {
    "norm": Gradient(8, "input", "two sums over the gradient, three terms, and the gradients of weight and bias"),
    "weight_norm": Gradient(5, "input", "the gradients of direction and length"),
    "softmax": Gradient(4, "input", "multiply, sum, subtract, multiply; also log-softmax"),
    "pooling": Gradient(1, "input", "pooling, resampling, padding: every element is written or added to once"),
    "activation": Gradient(2, "result", "any other elementwise operator"),
    "smooth_activation": Gradient(
        6, "result", "gelu, silu, hardswish, hardsigmoid, softplus, mish, binary cross-entropy"
    ),
    "rows": Gradient(1, "result", "embedding: every row of the gradient is added to its place"),
}
"""Cost by kind of operator."""


def gradient(name: str, elements: int) -> OperatorCost:
    """Return the cost of a backward of :data:`GRADIENTS` for so many elements."""
    work = GRADIENTS[name].per_element * elements
    return 0, work, work


def product_gradients(forward_macs: int, operands: int, bias: int = 0) -> OperatorCost:
    """Return the cost of the gradients of a product's operands.

    Args:
        forward_macs: multiply-accumulates of the forward.
        operands: that need a gradient.
        bias: elements of the result whose gradients are added up for that of the bias.
    """
    macs = forward_macs * operands
    return macs, 2 * macs + bias, 2 * macs + bias


def attention_gradients(rows: int, keys: int, width: int, value_width: int) -> OperatorCost:
    """Return the cost of the backward of attention: four products, for the gradients of v, of the scores, of q and of k.

    What a fused kernel computes again of its forward is not counted, as it is not in any other recomputation.
    """
    scores = rows * keys
    macs = 2 * scores * (width + value_width)
    return macs, 2 * macs + 4 * scores, 2 * macs + 4 * scores


BACKWARD_OVER_FORWARD = 2
"""Of an estimate: a product each for the gradient of the weights and for that of the inputs."""


def estimated_training(macs: int, flops: int, reason: str, uncovered: Mapping[str, int]) -> Training:
    """Return a training step whose backward is estimated from the forward.

    Args:
        macs: of the forward.
        flops: of the forward.
        reason: why it is not counted.
        uncovered: calls by operator without a formula.
    """
    backward = BACKWARD_OVER_FORWARD * macs, BACKWARD_OVER_FORWARD * flops
    return Training(macs, flops, *backward, liveness=None, estimated=reason, uncovered=dict(uncovered))
