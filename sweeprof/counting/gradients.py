"""The cost of the backward of every operator, defined once for all frameworks.

A matrix product in a backward is a matrix product: as many multiply-accumulates as the forward, for each operand that needs a
gradient. The others cost so many FLOPs (and as many textbook operations) for each element of their input or result. A framework
that runs its backward operator by operator maps these operators to the costs here; one that only has the forward (Keras) looks up
the gradient of each operator of it.
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
    "frozen_norm": Gradient(4, "input", "a batch norm with constant statistics"),
    "weight_norm": Gradient(5, "input", "the gradients of direction and length"),
    "softmax": Gradient(4, "input", "multiply, sum, subtract, multiply; also log-softmax"),
    "statistics": Gradient(4, "input", "variance, deviation, norm, logsumexp"),
    "pooling": Gradient(1, "input", "pooling, resampling, padding: every element is written or added to once"),
    "spread": Gradient(1, "input", "mean, maximum, minimum, product, dropout"),
    "sum": Gradient(0, "result", "add, subtract, negate, sum: the gradient is passed on"),
    "multiply": Gradient(1, "result", "multiply, maximum, minimum"),
    "divide": Gradient(3, "result", "divide, power"),
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


def distance_gradients(pairs: int, width: int) -> OperatorCost:
    """Return the cost of the backward of distances: a difference, a product and an addition for each coordinate of each pair."""
    return 0, 3 * pairs * width, 3 * pairs * width


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
