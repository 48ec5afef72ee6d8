"""Matrix products, convolutions and attention."""

# every rule takes an operation, its arguments, keyword arguments and result
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from sweeprof.backends.keras.costs.rule import Cost, Rule, added, attended, elements, given_or, outer, product, shape_of
from sweeprof.counting.formulas import Args, Kwargs


def _matmul(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """Each output element is a sum over the last axis of the left operand, whatever is broadcast."""
    outputs = elements(output)
    left, right = shape_of(args[0]), shape_of(args[1])
    inner = left[-1] if left and right else 1
    return product(outputs * inner, outputs, output)


def _contracted(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``tensordot``: every output element is a sum over the axes that both operands lose."""
    outputs = elements(output)
    inner = round((elements(args[0]) * elements(args[1]) / outputs) ** 0.5) if outputs else 0
    return product(outputs * inner, outputs, output)


def _outer(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``outer`` and ``kron``."""
    return outer(elements(output), output)


def _einsum(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    return einsum(operation.subscripts, [shape_of(operand) for operand in args], output)


def einsum(subscripts: str, shapes: Sequence[tuple[int, ...]], tensor: Any) -> Cost:
    """Operands are multiplied two by two from the left; what neither the others nor the result need is summed on the way.

    Args:
        subscripts: as ``numpy.einsum`` reads them.
        shapes: of the operands.
        tensor: what tells the data type.
    """
    labels, result = _labels(subscripts, shapes)
    sizes = {
        label: size
        for names, shape in zip(labels, shapes, strict=True)
        for label, size in zip(names, shape, strict=True)
    }
    total: Cost = (0, 0, 0)
    current = labels[0]
    for position in range(1, len(labels)):
        joint = dict.fromkeys([*current, *labels[position]])
        needed = {*result, *(label for names in labels[position + 1 :] for label in names)}
        current = [label for label in joint if label in needed]
        outputs = prod(sizes[label] for label in current)
        if len(current) == len(joint):
            total = added(total, outer(outputs, tensor))
        else:
            total = added(total, product(prod(sizes[label] for label in joint), outputs, tensor))
    return total


def _labels(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[list[str]], list[str]]:
    """The labels of every operand and of the result, an ellipsis as labels of their own, numbered from the last axis."""
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    operands = given.split(",")
    widest = 0
    spelled = []
    for names, shape in zip(operands, shapes, strict=True):
        extra = len(shape) - len(names.replace("...", ""))
        widest = max(widest, extra if "..." in names else 0)
        spelled.append(_spelled(names, extra))
    if arrow:
        return spelled, _spelled(result, widest)
    every = [label for names in spelled for label in names]
    return spelled, [label for label in every if len(label) > 1 or every.count(label) == 1]


def _spelled(names: str, extra: int) -> list[str]:
    before, dots, behind = names.partition("...")
    return [*before, *(f"...{extra - i}" for i in range(extra if dots else 0)), *behind]


def _convolution(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """Kernel ``(*space, in/groups, out)``: each output element is a sum over space and its group's input channels.

    Products with padding are counted, as is usual.
    """
    outputs = elements(output)
    return product(outputs * prod(shape_of(args[1])[:-1]), outputs, output)


def _depthwise(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """Kernel ``(*space, in, multiplier)``: each output element is a sum over space alone."""
    outputs = elements(output)
    return product(outputs * prod(shape_of(args[1])[:-2]), outputs, output)


def _transposed(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """Kernel ``(*space, out, in)``: each input element is spread over space and the output channels."""
    return product(elements(args[0]) * prod(shape_of(args[1])[:-1]), elements(output), output)


def _attention(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(query (B, T, N, E), key (B, S, heads, E), value, bias, mask)``; with grouped queries the heads of q count.

    A causal mask saves nothing: what is masked is computed by the textbook's formula, and skipped only by some kernels.
    """
    query, key, value = (shape_of(tensor) for tensor in args[:3])
    masks = sum(given_or(kwargs, args, at, name) is not None for at, name in ((3, "bias"), (4, "mask")))
    rows = prod(query[:-1])
    return attended(rows * key[1], rows, query[-1], value[-1], output, masks=masks)


def _distances(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """A subtraction, a power and an addition for each coordinate of each pair; no multiply-accumulate."""
    work = 3 * elements(output) * shape_of(args[0])[-1]
    return 0, work, work


RULES: dict[str, Rule] = {
    **dict.fromkeys(("matmul", "dot", "inner", "vdot"), _matmul),
    **dict.fromkeys(("outer", "kron"), _outer),
    "tensordot": _contracted,
    "einsum": _einsum,
    "conv": _convolution,
    "depthwise_conv": _depthwise,
    "conv_transpose": _transposed,
    "dot_product_attention": _attention,
    "c_dist": _distances,
}
