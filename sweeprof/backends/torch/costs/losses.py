"""Losses that are one operator: so much for each element of the input, and the reduction over them."""

# every rule takes an operator's arguments, keyword arguments and result
from __future__ import annotations

from typing import Any

from sweeprof.backends.torch.costs.rule import Cost, Rule, argument
from sweeprof.counting.formulas import Args, Kwargs

_MEAN, _SUM = 1, 2
"""How torch numbers its reductions; 0 is none."""


def _reduced(each: int, elements: int, reduction: int) -> Cost:
    """``each`` operations for each of some elements, and one to add it up; a mean's division stands for the first addition."""
    work = each * elements
    flops = elements if reduction else 0
    return 0, work + flops, work + {_MEAN: elements, _SUM: max(0, elements - 1)}.get(reduction, 0)


def _elementwise(each: int) -> Rule:
    """``(input, target, reduction, ...)``."""

    def rule(args: Args, kwargs: Kwargs, output: Any) -> Cost:
        return _reduced(each, args[0].numel(), argument(args, 2, _MEAN))

    return rule


def _binary_cross_entropy(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(input, target, weight, reduction)``: ``-w·(t·log x + (1 - t)·log(1 - x))``, 8 and the weight."""
    weighted = argument(args, 2) is not None
    return _reduced(8 + weighted, args[0].numel(), argument(args, 3, _MEAN))


def _binary_cross_entropy_with_logits(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(input, target, weight, pos_weight, reduction)``.

    ``max(x, 0) - x·t + log(1 + exp(-|x|))`` takes 9; a weight of the positive ones, ``((p - 1)·t + 1)·log(...)``, 4.
    """
    weighted, positive = argument(args, 2) is not None, argument(args, 3) is not None
    return _reduced(9 + weighted + 4 * positive, args[0].numel(), argument(args, 4, _MEAN))


def _negative_log_likelihood(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(input, target, weight, reduction, ...)``: the negative of one element for each target, and its weight."""
    weighted = argument(args, 2) is not None
    return _reduced(1 + weighted, args[1].numel(), argument(args, 3, _MEAN))


def _cross_entropy(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(input, target, weight, reduction, ignore_index, label_smoothing)``.

    A log-softmax over the classes (one FLOP an element, 4 operations) and a negative log-likelihood: of the target's class, or
    with probabilities as target the sum of all classes. Smoothed labels take a sum over the classes too, and combine the two.
    """
    given, target, weighted, reduction = args[0], args[1], argument(args, 2) is not None, argument(args, 3, _MEAN)
    elements = given.numel()
    classes = given.shape[1] if given.dim() > 1 else given.shape[0]
    rows = elements // classes if classes else 0
    likely = target.is_floating_point()  # probabilities, not classes
    picked = (2 + weighted) * elements if likely else weighted * rows
    smoothed = elements + 3 * rows if argument(args, 5, 0.0) else 0
    _, flops, ops = _reduced(1, rows, reduction)
    return 0, elements + picked + smoothed + flops, 4 * elements + picked + smoothed + ops


def _multi_margin(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(input, target, p, margin, weight, reduction)``: ``max(0, margin - x_y + x_j)^p`` summed, 4 or with a power 5."""
    given, target = args[0], args[1]
    each = 4 + (argument(args, 2, 1) != 1) + (argument(args, 4) is not None)
    _, flops, ops = _reduced(1, target.numel(), argument(args, 5, _MEAN))
    return 0, each * given.numel() + flops, each * given.numel() + ops


RULES: dict[str, Rule] = {
    "aten::mse_loss": _elementwise(2),
    "aten::l1_loss": _elementwise(2),
    "aten::smooth_l1_loss": _elementwise(4),
    "aten::huber_loss": _elementwise(4),
    "aten::soft_margin_loss": _elementwise(5),  # log(1 + exp(-t·x))
    "aten::binary_cross_entropy": _binary_cross_entropy,
    "aten::binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    "aten::nll_loss_forward": _negative_log_likelihood,
    "aten::nll_loss2d_forward": _negative_log_likelihood,
    "aten::cross_entropy_loss": _cross_entropy,
    "aten::multi_margin_loss": _multi_margin,
}
