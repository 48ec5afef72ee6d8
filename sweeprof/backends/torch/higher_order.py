"""Operators that take functions: control flow, attention with a score function, and what else torch calls higher-order.

Their functions are run while they are counted, so that the body of a loop counts as often as it runs, and of ``torch.cond`` the
branch that is taken. Where neither is known, because a value decides and there are only shapes, the operator cannot be counted.
"""

# every rule takes an operator's arguments, keyword arguments and result
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from sweeprof.backends.torch.costs import backward, products
from sweeprof.backends.torch.costs.rule import Cost, Rule

TorchFunction = Callable[..., Any]


def _flex_attention(args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Cost:
    """``(query, key, value, score_mod, block_mask, ...)``: every query by every key, as ``torch.utils.flop_counter`` counts it.

    A block mask saves nothing, as a causal mask does not; what the score function does is counted as it runs.
    """
    return products.attention(args[:3], {}, output)


def _flex_attention_backward(args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Cost:
    """``(query, key, value, out, logsumexp, grad_out, ...)``."""
    return backward.attention((args[5], *args[:3]), {}, output)


COSTS: dict[str, Rule] = {
    "higher_order::flex_attention": _flex_attention,
    "higher_order::flex_attention_backward": _flex_attention_backward,
}
"""What an operator costs beside its functions, by qualified name."""


def with_functions(tree: Any, change: Callable[[TorchFunction], TorchFunction]) -> Any:
    """The arguments of an operator with every function among them replaced by ``change(function)``."""
    if isinstance(tree, list | tuple):
        return type(tree)(with_functions(item, change) for item in tree)
    if isinstance(tree, dict):
        return {key: with_functions(item, change) for key, item in tree.items()}
    is_function = callable(tree) and not isinstance(tree, type | OpOverload | OpOverloadPacket | HigherOrderOperator)
    return change(tree) if is_function else tree


def without_values(name: str, args: tuple[Any, ...]) -> Callable[[], Any] | None:
    """A function that returns what control flow returns on shapes, where a value that is not there decides; else None."""
    if name == "higher_order::cond":
        decides, branch, _, operands = args
        return partial(branch, *operands) if _is_unknown(decides) else None
    if name == "higher_order::while_loop":
        condition, _, carried, further = args
        return partial(_same, carried) if _is_unknown(condition(*carried, *further)) else None
    return None


def _is_unknown(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def _same(carried: Any) -> tuple[Any, ...]:
    """The results of a loop, which are like what it began with."""
    return tuple(torch.empty_like(value) if isinstance(value, torch.Tensor) else value for value in carried)
