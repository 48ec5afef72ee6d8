"""The cost of an operation's backward pass, by the formulas of the torch backend; FLOPs in addition to those of products.

A product takes as many multiply-accumulates for the gradient of each operand that needs one as it took forward.
"""

from __future__ import annotations

from math import prod

from sweeprof.backends.keras.costs.rule import Cost

PRODUCTS = frozenset("matmul dot inner vdot tensordot einsum conv depthwise_conv conv_transpose".split())
ATTENTION = "dot_product_attention"

PER_INPUT = {
    **dict.fromkeys(("batch_norm", "layer_norm", "group_norm", "rms_norm"), 8),
    **dict.fromkeys(("max_pool", "average_pool", "adaptive_average_pool", "adaptive_max_pool", "resize"), 1),
    **dict.fromkeys(("mean", "max", "min", "amax", "amin", "prod", "dropout"), 1),
    **dict.fromkeys(("softmax", "log_softmax"), 4),
    **dict.fromkeys(("var", "std", "moments", "norm", "normalize", "logsumexp"), 4),
}
"""FLOPs for each element of the input."""
_ACTIVATIONS = "gelu silu hard_silu hard_sigmoid softplus mish squareplus"
PER_OUTPUT = {
    **dict.fromkeys(("add", "subtract", "sum", "negative", "cumsum"), 0),
    **dict.fromkeys(("maximum", "minimum", "multiply", "outer", "kron"), 1),
    "prelu": 2,
    **dict.fromkeys(_ACTIVATIONS.split(), 6),
    **dict.fromkeys(("divide", "true_divide", "power"), 3),
}
"""FLOPs for each element of the result and operand that needs a gradient; other elementwise operations take 2."""
ELEMENTWISE = 2
KEEPS_RESULT = frozenset("relu relu6 tanh sigmoid softmax log_softmax exp sqrt".split())
"""Operations whose backward reads what they returned; that of others reads what they were given."""
KEEPS_NOTHING = frozenset("add subtract sum mean negative".split())


FREE_FORWARD = {"take": 1}
"""FLOPs for each element of the result, of operations that have none forward: rows are added to their places."""
_FROZEN_NORM = 4


def flops_of(
    name: str, cost: Cost, given: tuple[int, ...], made: tuple[int, ...], needing: int, is_elementwise: bool
) -> int | None:
    """FLOPs beside those of products; None where they are not known.

    Args:
        cost: of the forward.
        given: shape of the first tensor.
        made: shape of the result.
        needing: how many operands need a gradient.
        is_elementwise: whether each element of the result comes from one of each operand.
    """
    if name == ATTENTION:
        return 4 * prod(given[:-1]) * given[1]
    if name in PRODUCTS:
        return 0
    if name == "batch_norm" and cost[1] <= 2 * prod(given):  # with statistics that are constants
        return _FROZEN_NORM * prod(given)
    if name in PER_INPUT:
        return PER_INPUT[name] * prod(given)
    if name in PER_OUTPUT or is_elementwise:
        return PER_OUTPUT.get(name, ELEMENTWISE) * prod(made) * needing
    return None
