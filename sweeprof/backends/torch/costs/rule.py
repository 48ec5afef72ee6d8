"""The type of a cost rule, and the arithmetic that rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from sweeprof.counting.formulas import Args, Kwargs, OperatorCost

TensorOrTensors = torch.Tensor | Sequence[torch.Tensor]
TorchRule = Callable[[Args, Kwargs, Any], OperatorCost]
"""From the arguments, the keyword arguments and the result of an operator: a tensor, or several."""

NOTHING: OperatorCost = (0, 0, 0)
_COMPLEX_MAC = 4
"""A complex multiplication and addition are 8 real operations where a real pair is 2."""


def argument(args: Args, position: int, default: Any = None) -> Any:
    """An operator's argument; the dispatcher leaves trailing defaults out."""
    return args[position] if len(args) > position else default


def product(macs: int, outputs: int, tensor: torch.Tensor, *, bias: bool) -> OperatorCost:
    """``outputs`` sums that take ``macs`` products together, each begun by its bias where there is one.

    A sum of n products takes n - 1 additions, with a bias n. On integers there are operations, but no FLOPs.
    """
    if not macs:  # empty sums are zero, and nobody computes them
        return 0, outputs if bias and arithmetic(tensor) else 0, 0
    work = 2 * macs * (_COMPLEX_MAC if tensor.is_complex() else 1)
    sums = outputs * parts(tensor)
    flops = work + (sums if bias else 0) if arithmetic(tensor) else 0
    return macs, flops, work - (0 if bias else sums)


def arithmetic(tensor: torch.Tensor) -> bool:
    """True if computing ``tensor`` took floating-point operations."""
    return tensor.is_floating_point() or tensor.is_complex()


def parts(tensor: torch.Tensor) -> int:
    """Real numbers in an element: a complex addition is two."""
    return 2 if tensor.is_complex() else 1


def first_tensor(output: TensorOrTensors) -> torch.Tensor:
    """The first tensor of an operator's result."""
    return output if isinstance(output, torch.Tensor) else output[0]


def per_row(tensor: torch.Tensor, normalized: int) -> tuple[int, int]:
    """Rows and elements per row of a tensor whose last ``normalized`` axes make a row."""
    length = prod(tensor.shape[tensor.dim() - normalized :])
    return (tensor.numel() // length if length else 0), length
