"""Quantised products, which keep their weights packed. An integer multiply-accumulate is one; it is no FLOP."""

# every rule takes an operator's arguments, keyword arguments and result
from __future__ import annotations

from math import prod
from typing import Any

from sweeprof.backends.torch.costs.rule import Cost, Rule
from sweeprof.counting.formulas import Args, Kwargs


def _linear(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(input, packed weight, ...)``."""
    macs = output.numel() * args[0].shape[-1]
    return macs, 0, _ops(macs, output, args[1])


def _conv(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    weight = args[1].weight() if hasattr(args[1], "weight") else args[1].unpack()[0]
    macs = output.numel() * prod(weight.shape[1:])
    return macs, 0, _ops(macs, output, args[1])


def _conv_transpose(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """From each input element, as in :mod:`products`; the weight is ``(in, out/groups, *kernel)``."""
    weight = args[1].weight() if hasattr(args[1], "weight") else args[1].unpack()[0]
    macs = args[0].numel() * prod(weight.shape[1:])
    return macs, 0, _ops(macs, output, args[1])


def _embedding_bag(args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(packed weight, indices, ...)``: the rows are made floating-point, and added up."""
    rows = args[1].numel() * output.shape[-1]
    return 0, rows, max(0, rows - output.numel())


def _elementwise(ops: int) -> Rule:
    def rule(args: Args, kwargs: Kwargs, output: Any) -> Cost:
        return 0, 0, ops * output.numel()

    return rule


def _ops(macs: int, output: Any, packed: Any) -> int:
    bias = packed.bias() if hasattr(packed, "bias") else packed.unpack()[1]
    return int(2 * macs - (0 if bias is not None else output.numel()))


def _rules(function: Rule, names: str) -> dict[str, Rule]:
    return {f"quantized::{name}": function for name in names.split()}


RULES: dict[str, Rule] = {
    **_rules(_linear, "linear linear_relu linear_dynamic linear_relu_dynamic linear_dynamic_fp16"),
    **_rules(
        _conv, "conv1d conv2d conv3d conv1d_relu conv2d_relu conv3d_relu conv1d_dynamic conv2d_dynamic conv3d_dynamic"
    ),
    **_rules(_conv_transpose, "conv_transpose1d conv_transpose2d conv_transpose3d"),
    **_rules(_conv_transpose, "conv_transpose1d_dynamic conv_transpose2d_dynamic conv_transpose3d_dynamic"),
    **_rules(_embedding_bag, "embedding_bag_byte embedding_bag_4bit"),
    **_rules(_elementwise(0), "embedding_byte embedding_4bit cat"),
    **_rules(_elementwise(1), "add mul add_scalar mul_scalar"),
    **_rules(_elementwise(2), "add_relu mul_relu add_scalar_relu mul_scalar_relu relu6"),
    **_rules(_elementwise(4), "batch_norm batch_norm1d batch_norm2d batch_norm3d leaky_relu"),
    **_rules(_elementwise(5), "hardswish batch_norm2d_relu batch_norm3d_relu"),
}
