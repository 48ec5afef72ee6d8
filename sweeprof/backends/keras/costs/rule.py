"""The type of a cost rule, and the arithmetic that rules share; shapes and integers only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

Cost = tuple[int, int, int]
"""MACs, FLOPs, ops."""
Rule = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], Cost]
"""From an operation (which holds its settings), its arguments, its keyword arguments and what it returns."""

NOTHING: Cost = (0, 0, 0)
_COMPLEX_MAC = 4
"""A complex multiplication and addition are 8 real operations where a real pair is 2."""
_COMPLEX_PRODUCT = 6
"""Four multiplications and two additions."""


def given_or(kwargs: Mapping[str, Any], args: tuple[Any, ...], position: int, name: str) -> Any:
    """An argument, whichever way it was given; None where it was not."""
    return args[position] if len(args) > position else kwargs.get(name)


def shape_of(value: Any) -> tuple[int, ...]:
    """Sizes of a tensor or variable; of a number none."""
    return tuple(int(size) for size in getattr(value, "shape", ()))


def elements(value: Any) -> int:
    """Elements of a tensor or variable."""
    return prod(shape_of(value))


def first_tensor(output: Any) -> Any:
    """The first tensor of what an operation returned."""
    return first_tensor(output[0]) if isinstance(output, list | tuple) else output


def is_complex(tensor: Any) -> bool:
    """True if the elements are complex numbers."""
    return str(tensor.dtype).startswith("complex")


def arithmetic(tensor: Any) -> bool:
    """True if computing ``tensor`` took floating-point operations."""
    return str(tensor.dtype).startswith(("float", "bfloat", "complex"))


def parts(tensor: Any) -> int:
    """Real numbers in an element: a complex addition is two."""
    return 2 if is_complex(tensor) else 1


def product(macs: int, outputs: int, tensor: Any) -> Cost:
    """``outputs`` sums that take ``macs`` products together; a sum of n products takes n - 1 additions.

    Biases are operations of their own here. On integers there are operations, but no FLOPs.
    """
    if not macs:  # empty sums are zero, and nobody computes them
        return NOTHING
    work = 2 * macs * (_COMPLEX_MAC if is_complex(tensor) else 1)
    return macs, work if arithmetic(tensor) else 0, work - outputs * parts(tensor)


def outer(elements: int, tensor: Any) -> Cost:
    """An outer product: one multiplication for each element, and nothing that is accumulated."""
    work = elements * (_COMPLEX_PRODUCT if is_complex(tensor) else 1)
    return 0, work if arithmetic(tensor) else 0, work


def added(*costs: Cost) -> Cost:
    """All of them together."""
    return sum(c[0] for c in costs), sum(c[1] for c in costs), sum(c[2] for c in costs)


def normalised(rows: int, length: int, *, weight: bool, bias: bool) -> Cost:
    """Rows that are normalised by their own mean and variance, like a batch norm in training."""
    count = rows * length
    return 0, (5 if weight else 4) * count, (5 + weight + bias) * count + 4 * rows


def root_mean_square(rows: int, length: int, *, weight: bool) -> Cost:
    """Squares, their mean, a root, a division, and a multiplication by the weight."""
    return 0, (3 + weight) * rows * length, (3 + weight) * rows * length + 2 * rows


def batch_normalised(count: int, channels: int, *, affine: bool, training: bool) -> Cost:
    """``count`` elements of ``channels`` channels; as the torch backend counts it, and docs/counting.md says."""
    if training:
        return 0, (5 if affine else 4) * count, (7 if affine else 5) * count + 4 * channels
    return 0, (2 if affine else 1) * count, (4 if affine else 2) * count + 2 * channels


def softmaxed(count: int, length: int) -> Cost:
    """Rows of ``length``: subtract the maximum, exponentiate, length - 1 additions, divide; one FLOP an element."""
    return 0, count, (count // length) * (4 * length - 1) if length else 0


def attended(scores: int, rows: int, width: int, value_width: int, tensor: Any, *, masks: int) -> Cost:
    """``softmax(q kᵀ / √d + masks) v`` in one kernel.

    Args:
        scores: elements of ``q kᵀ``, over the batch and all heads of q.
        rows: rows of them.
        width: of queries and keys.
        masks: tensors that are added to the scores, or that choose among them.
    """
    macs, flops, ops = product(scores * (width + value_width), scores + rows * value_width, tensor)
    softmax = rows * max(0, 4 * (scores // rows) - 1) if rows else 0
    return macs, flops + (2 + masks) * scores, ops + (1 + masks) * scores + softmax
