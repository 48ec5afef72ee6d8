"""Elementwise operations: so many FLOPs and textbook operations for each element of the result, as docs/counting.md has them."""

# every rule takes an operation, its arguments, keyword arguments and result
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeprof.backends.keras.costs.rule import NOTHING, Cost, Rule, arithmetic, elements, first_tensor, is_complex

_TABLE = """
sigmoid 1 3
tanh 1 7
leaky_relu sparse_sigmoid sparse_plus 1 4
elu celu 1 3
selu 1 7
softplus 1 5
silu 1 4
mish 1 13
relu6 hard_tanh hard_shrink soft_shrink threshold saturate_cast 1 2
hard_sigmoid 1 4
hard_silu 1 5
log_sigmoid 1 4
glu 1 4
softsign 3 3
tanh_shrink 2 8
squareplus 5 5
sparsemax 7 7
add subtract multiply divide true_divide divide_no_nan floor_divide mod fmod power square 1 1
negative absolute abs fabs sign maximum minimum fmax fmin clip heaviside ldexp nextafter angle diff 1 1
ceil floor round trunc 1 1
exp exp2 expm1 log log2 log10 log1p sqrt cbrt erf erfc erfinv sin cos tan arcsin arccos arctan arctan2 sinh cosh 1 1
arcsinh arccosh arctanh sinc reciprocal i0 deg2rad rad2deg 1 1
rsqrt 1 2
hypot 1 4
logaddexp logaddexp2 1 5
cross 3 3
polar 2 2
rgb_to_grayscale 5 5
"""
_COMPLEX = {"multiply": 6, "divide": 11, "true_divide": 11}
"""``(a + bi)(c + di)`` takes 4 multiplications and 2 additions; a division also 3 for ``c² + d²`` and 2 divisions."""
_RESIZED = {"nearest": 0, "bilinear": 7, "bicubic": 31, "lanczos3": 71, "lanczos5": 199}
"""So many neighbours are weighed: 4, 16, 36 and 100 multiplications, one addition less."""


def pointwise(flops: int, ops: int, complex_each: int = 2) -> Rule:
    """The rule of an operation that does this for each element of a floating-point result, and nothing for any other."""

    def rule(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Cost:
        tensor = first_tensor(output)
        count = elements(tensor) * (complex_each if is_complex(tensor) else 1)
        return (0, flops * count, ops * count) if arithmetic(tensor) else NOTHING

    return rule


def each_of() -> dict[str, tuple[int, int]]:
    """FLOPs and operations per element by name."""
    found = {}
    for line in _TABLE.split("\n"):
        *names, flops, ops = line.split() or ("0", "0")
        found.update(dict.fromkeys(names, (int(flops), int(ops))))
    return found


def _gelu(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Cost:
    count = elements(output)
    return 0, count, count * (15 if operation.approximate else 5)


def _rectified(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Cost:
    """``ops.relu``, and ``activations.relu``, which may have a slope (a leaky one), a maximum (relu6) or a threshold."""
    settings = vars(operation)
    is_cut = settings.get("max_value") is not None or settings.get("threshold")
    each = 4 if settings.get("negative_slope") else 2 if is_cut else 1
    return pointwise(1, each)(operation, args, kwargs, output)


def _resize(operation: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Cost:
    work = _RESIZED[operation.interpolation] * elements(output)
    return (0, work, work) if arithmetic(output) else NOTHING


RULES: dict[str, Rule] = {
    **{name: pointwise(flops, ops, _COMPLEX.get(name, 2)) for name, (flops, ops) in each_of().items()},
    "gelu": _gelu,
    "relu": _rectified,
    "resize": _resize,
}
