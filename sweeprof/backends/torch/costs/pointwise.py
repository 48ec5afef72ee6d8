"""Elementwise operators: so many FLOPs and textbook operations for each element of the result."""

# every rule takes an operator's arguments, keyword arguments and result
from __future__ import annotations

from collections.abc import Sequence

import torch

from sweeprof.backends.torch.costs.rule import NOTHING, TensorOrTensors, TorchRule, arithmetic, first_tensor
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost

_TABLE = """
sigmoid 1 3
tanh 1 7
relu 1 1
leaky_relu prelu _prelu_kernel rrelu rrelu_with_noise 1 4
elu celu 1 3
selu 1 7
softplus 1 5
gelu 1 5
silu 1 4
mish 1 13
hardtanh relu6 hardshrink softshrink threshold 1 2
hardsigmoid 1 4
hardswish 1 5
log_sigmoid log_sigmoid_forward 1 4
glu 1 4
add sub rsub mul div true_divide divide multiply subtract 1 1
floor_divide remainder fmod pow square float_power 1 1
neg negative abs absolute sign sgn maximum minimum fmax fmin clamp clamp_min clamp_max clip 1 1
ceil floor round trunc frac 1 1
exp exp2 expm1 log log2 log10 log1p sqrt erf erfc erfinv lgamma digamma sin cos tan asin acos atan atan2 sinh cosh 1 1
asinh acosh atanh sinc reciprocal i0 special_i0e special_erfcx 1 1
rsqrt 1 2
logit 1 3
hypot 1 4
logaddexp logaddexp2 1 5
lerp addcmul addcdiv 3 3
linalg_cross 3 3
polar 2 2
upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d 0 0
_upsample_nearest_exact2d _upsample_nearest_exact3d 0 0
upsample_linear1d 3 3
upsample_bilinear2d _upsample_bilinear2d_aa 7 7
upsample_trilinear3d 15 15
upsample_bicubic2d _upsample_bicubic2d_aa 31 31
"""
"""FLOPs and operations per element, behind the operators they hold for.

GELU is ``x/2·(1 + erf(x/√2))``; SiLU ``x·sigmoid(x)``; bilinear interpolation weighs 4 neighbours (4 multiplications, 3 additions);
a cross product takes 2 multiplications and a subtraction for each of its components; a polar number, which counts twice as it is
complex, a sine, a cosine and 2 multiplications.
"""
_COMPLEX = {"mul": 6, "multiply": 6, "div": 11, "divide": 11, "true_divide": 11}
"""``(a + bi)(c + di)`` takes 4 multiplications and 2 additions; a division also 3 for ``c² + d²`` and 2 divisions."""
_FOREACH = """
add sub mul div neg abs sqrt rsqrt reciprocal exp log pow addcmul addcdiv lerp maximum minimum clamp_min clamp_max sign
acos asin atan ceil cos cosh erf erfc expm1 floor frac lgamma log10 log1p log2 round sigmoid sin sinh tan tanh trunc
"""
"""Operators that exist for a list of tensors too."""


def pointwise(flops: int, ops: int, complex_each: int = 2) -> TorchRule:
    """The rule of an operator that does this for each element of a floating-point result, and nothing for any other.

    Args:
        complex_each: how many times as much it does for a complex element.
    """

    def rule(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
        tensor = first_tensor(output)
        elements = tensor.numel() * (complex_each if tensor.is_complex() else 1)
        return (0, flops * elements, ops * elements) if arithmetic(tensor) else NOTHING

    return rule


def _for_each(rule: TorchRule) -> TorchRule:
    """``rule`` for every tensor of a list; one that works in place returns nothing."""

    def summed(args: Args, kwargs: Kwargs, output: Sequence[torch.Tensor] | None) -> OperatorCost:
        costs = [rule((), {}, tensor) for tensor in (args[0] if output is None else output)]
        return 0, sum(cost[1] for cost in costs), sum(cost[2] for cost in costs)

    return summed


def _table() -> dict[str, TorchRule]:
    rules = {}
    for line in _TABLE.split("\n"):
        *names, flops, ops = line.split() or ("0", "0")
        for name in names:
            rule = pointwise(int(flops), int(ops), _COMPLEX.get(name, 2))
            rules[f"aten::{name}"] = rule
            if name in _FOREACH.split():
                rules[f"aten::_foreach_{name}"] = _for_each(rule)
    return rules


def _gelu(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """With ``approximate='tanh'``: ``x/2·(1 + tanh(√(2/π)·(x + 0.0447·x³)))``."""
    elements = output.numel()
    return 0, elements, elements * (15 if kwargs.get("approximate") == "tanh" else 5)


def _grid_sampler(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, grid, interpolation, ...)``: what the upsampling of that kind does; the nearest neighbour is merely read."""
    linear = 7 if output.dim() == 4 else 15
    work = {0: linear, 1: 0, 2: 31}[args[2]] * output.numel()
    return 0, work, work


RULES: dict[str, TorchRule] = {
    **_table(),
    "aten::gelu": _gelu,
    **dict.fromkeys(("aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d"), _grid_sampler),
}
ONE_EACH = pointwise(1, 1)
"""What any other operator that torch tags as pointwise is taken to do."""
