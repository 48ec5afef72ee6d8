"""Norms, pooling, softmax, sums and transforms: operations that combine elements without multiply-accumulates."""

# every rule takes an operation, its arguments, keyword arguments and result
from __future__ import annotations

from collections.abc import Iterable
from math import ceil, log2, prod
from typing import Any

from sweeprof.backends.keras.costs.rule import (
    NOTHING,
    Cost,
    Rule,
    arithmetic,
    batch_normalised,
    elements,
    first_tensor,
    given_or,
    normalised,
    parts,
    root_mean_square,
    shape_of,
    softmaxed,
)
from sweeprof.counting.formulas import Args, Kwargs


def _batch_norm(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(x, mean, variance, offset, scale)``."""
    affine = any(given_or(kwargs, args, at, name) is not None for at, name in ((3, "offset"), (4, "scale")))
    return batch_normalised(elements(args[0]), elements(args[1]), affine=affine, training=False)


def length_along(shape: tuple[int, ...], axis: int | Iterable[int] | None) -> int:
    """Return the number of elements along one axis, several, or all."""
    axes = range(len(shape)) if axis is None else [axis] if isinstance(axis, int) else axis
    return prod(shape[at] for at in axes)


def _layer_norm(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(x, gamma, beta)``."""
    length = length_along(shape_of(args[0]), operation.axis)
    rows = elements(args[0]) // length if length else 0
    weight, bias = (given_or(kwargs, args, at, name) is not None for at, name in ((1, "gamma"), (2, "beta")))
    if operation.rms_scaling:
        return root_mean_square(rows, length, weight=weight)
    return normalised(rows, length, weight=weight, bias=bias)


def _rms_norm(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """``(x, scale)``."""
    length = length_along(shape_of(args[0]), operation.axis)
    rows = elements(args[0]) // length if length else 0
    return root_mean_square(rows, length, weight=given_or(kwargs, args, 1, "scale") is not None)


def _normalize(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """A norm, its maximum with an epsilon, and a division."""
    count = elements(args[0])
    length = length_along(shape_of(args[0]), operation.axis)
    rows = count // length if length else 0
    return 0, 3 * count + rows, 3 * count + rows


def _softmax(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    shape = shape_of(args[0])
    return softmaxed(elements(args[0]), length_along(shape, operation.axis)) if arithmetic(output) else NOTHING


def _log_softmax(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, a logarithm, subtract: 4n operations."""
    return 0, elements(args[0]), 4 * elements(args[0])


def _average_pool(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """Every input is touched once (FLOPs); each output sums its window and divides (operations)."""
    size, spatial = operation.pool_size, len(shape_of(args[0])) - 2
    window = size**spatial if isinstance(size, int) else prod(size) if len(size) == spatial else size[0] ** spatial
    return (0, elements(args[0]), elements(output) * window) if arithmetic(output) else NOTHING


def _adaptive_average_pool(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """Windows are ``floor(i·in/out) .. ceil((i+1)·in/out)`` along each axis."""
    given, made = shape_of(args[0]), shape_of(output)
    last = operation.data_format != "channels_first"
    spatial = range(1, len(given) - 1) if last else range(2, len(given))
    windows = [
        sum(ceil((i + 1) * given[at] / made[at]) - i * given[at] // made[at] for i in range(made[at])) for at in spatial
    ]
    return 0, prod(given), given[0] * given[-1 if last else 1] * prod(windows)


def _max_pool(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """Every input is touched once (FLOPs); finding a window's maximum is one operation."""
    return (0, elements(args[0]), elements(output)) if arithmetic(output) else NOTHING


def _folded(each: int, rest: int) -> Rule:
    """So many operations for each input and ``rest`` for each output."""

    def rule(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
        tensor = first_tensor(output)
        if not arithmetic(tensor):
            return NOTHING
        given, made = elements(args[0]) * parts(args[0]), elements(tensor) * parts(args[0])
        return 0, each * given, max(0, each * given + rest * made)

    return rule


def _average(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """A mean; with weights each element is multiplied, and the weights are summed too."""
    each = 1 if given_or(kwargs, args, 1, "weights") is None else 3
    return _folded(each, 0)(operation, args, kwargs, output)


def _logsumexp(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, a logarithm, add the maximum."""
    given = elements(args[0])
    return 0, given, 3 * given + elements(output)


def _trace(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    length = min(shape_of(args[0])[-2:])
    count = elements(output) * length
    return (0, count, count - elements(output)) if arithmetic(output) else NOTHING


def _fourier(axes: int, is_real: bool) -> Rule:
    """``5 n log₂ n`` for a complex transform over n points (Cooley and Tukey), half of it where one side is real."""

    def rule(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
        larger = max(shape_of(first_tensor(args[0])), shape_of(first_tensor(output)), key=prod)
        points = prod(larger[-axes:])
        work = round(prod(larger) * (2.5 if is_real else 5) * log2(points)) if points > 1 else 0
        return 0, work, work

    return rule


def _short_fourier(operation: Any, args: Args, kwargs: Kwargs, output: Any) -> Cost:
    """Every frame is multiplied by the window and transformed, of real numbers."""
    points = operation.fft_length
    frames = elements(first_tensor(output)) // (points // 2 + 1)
    work = round(frames * points * 2.5 * log2(points)) + frames * operation.sequence_length
    return 0, work, work


def _rules(function: Rule, names: str) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), function)


RULES: dict[str, Rule] = {
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "normalize": _normalize,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "average_pool": _average_pool,
    "adaptive_average_pool": _adaptive_average_pool,
    **_rules(_max_pool, "max_pool adaptive_max_pool"),
    **_rules(_folded(1, -1), "sum prod max min amax amin nansum nanprod nanmax nanmin"),
    **_rules(_folded(1, 0), "mean nanmean cumsum cumprod nancumsum nancumprod"),
    **_rules(_folded(1, 0), "segment_sum segment_max segment_min segment_prod segment_reduction"),
    **_rules(_folded(2, 0), "norm ptp"),
    **_rules(_folded(4, 0), "var std nanvar nanstd moments"),
    "average": _average,
    "logsumexp": _logsumexp,
    "trace": _trace,
    "fft": _fourier(1, False),
    **_rules(_fourier(2, False), "fft2 ifft2"),
    **_rules(_fourier(1, True), "rfft irfft"),
    "stft": _short_fourier,
}
