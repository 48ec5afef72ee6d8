"""Norms, pooling, softmax, sums, transforms and losses: operators that combine elements without multiply-accumulates."""

from __future__ import annotations

from math import ceil, log2, prod

import torch

from sweeprof.backends.torch.costs.rule import (
    NOTHING,
    TensorOrTensors,
    TorchRule,
    argument,
    arithmetic,
    first_tensor,
    parts,
    per_row,
)
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost

# every rule takes an operator's arguments, keyword arguments and result


def _batch_norm(weight: torch.Tensor | None, given: torch.Tensor, *, training: bool) -> OperatorCost:
    """For m elements of each of C channels.

    Inference subtracts, divides, and with an affine transform multiplies and adds: C(4m + 2) operations, C(2m + 2) without; as
    the mean and the deviation are constants, a scale and a shift: 2 FLOPs an element, 1 without. Training computes mean and
    variance too: C(7m + 4) operations, C(5m + 4) without; 5 FLOPs an element, 4 without.
    """
    elements, channels = given.numel(), given.shape[1] if given.dim() > 1 else given.numel()
    affine = weight is not None
    if training:
        return 0, (5 if affine else 4) * elements, (7 if affine else 5) * elements + 4 * channels
    return 0, (2 if affine else 1) * elements, (4 if affine else 2) * elements + 2 * channels


def _batch_norm_rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, weight, bias, mean, variance, training, ...)``."""
    return _batch_norm(args[1], args[0], training=bool(args[5]))


def _batch_norm_inference(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return _batch_norm(args[1], args[0], training=False)


def _batch_norm_training(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return _batch_norm(args[1], args[0], training=True)


def _batch_norm_statistics(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """Return the cost of batch statistics in training, where they are an operator of their own."""
    elements, channels = args[0].numel(), args[0].shape[1]
    return 0, 3 * elements, 3 * elements + 2 * channels


def _normalised(rows: int, length: int, *, weight: bool, bias: bool) -> OperatorCost:
    """Rows that are normalised by their own mean and variance, like a batch norm in training."""
    elements = rows * length
    return 0, (5 if weight else 4) * elements, (5 + weight + bias) * elements + 4 * rows


def _layer_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, normalized_shape, weight, bias, eps)``."""
    rows, length = per_row(args[0], len(args[1]))
    return _normalised(rows, length, weight=argument(args, 2) is not None, bias=argument(args, 3) is not None)


def _group_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, groups, weight, bias, ...)``."""
    rows = args[0].shape[0] * args[1]
    weight, bias = argument(args, 2) is not None, argument(args, 3) is not None
    return _normalised(rows, args[0].numel() // rows if rows else 0, weight=weight, bias=bias)


def _native_group_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, weight, bias, N, C, HxW, groups, eps)``."""
    rows = args[3] * args[6]
    return _normalised(
        rows, args[0].numel() // rows if rows else 0, weight=args[1] is not None, bias=args[2] is not None
    )


def _instance_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, weight, bias, mean, variance, use_input_stats, ...)``: every channel of every sample by itself."""
    given, weight, bias = args[0], args[1], args[2]
    if not args[5]:
        return _batch_norm(weight, given, training=False)
    rows = given.shape[0] * given.shape[1]
    return _normalised(rows, given.numel() // rows if rows else 0, weight=weight is not None, bias=bias is not None)


def _rms_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """Squares, their mean, a root, a division, and a multiplication by the weight."""
    rows, length = per_row(args[0], len(args[1]))
    weight = argument(args, 2) is not None
    return 0, (4 if weight else 3) * rows * length, (3 + weight) * rows * length + 2 * rows


def _softmax(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, divide: 4n - 1 operations; one FLOP an element."""
    given = args[0]
    if not arithmetic(output):
        return NOTHING
    length = given.shape[args[1]] if given.dim() else 1
    return 0, given.numel(), (given.numel() // length) * (4 * length - 1) if length else 0


def _log_softmax(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, a logarithm, subtract: 4n operations."""
    return 0, args[0].numel(), 4 * args[0].numel()


def _kernel(args: Args, spatial: int) -> int:
    size = args[1]
    if isinstance(size, int):
        return int(size**spatial)
    return prod(size) if len(size) == spatial else int(size[0] ** spatial)


def _average_pool(spatial: int) -> TorchRule:
    """Every input is touched once (FLOPs); each output sums its window and divides (operations)."""

    def rule(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
        return (0, args[0].numel(), output.numel() * _kernel(args, spatial)) if arithmetic(output) else NOTHING

    return rule


def _adaptive_average_pool(spatial: int) -> TorchRule:
    """Windows are ``floor(i·in/out) .. ceil((i+1)·in/out)`` along each axis, as torch defines them."""

    def rule(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
        given = args[0]
        channels = prod(given.shape[: given.dim() - spatial])
        windows = [
            sum(ceil((i + 1) * size / made) - i * size // made for i in range(made))
            for size, made in zip(given.shape[-spatial:], output.shape[-spatial:], strict=True)
        ]
        return 0, given.numel(), channels * prod(windows)

    return rule


def _max_pool(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """Every input is touched once (FLOPs); finding a window's maximum is one operation."""
    made = first_tensor(output)
    return (0, args[0].numel(), made.numel()) if arithmetic(made) else NOTHING


def _extreme(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """``max`` and ``min``: of two tensors elementwise, else along axes."""
    if isinstance(argument(args, 1), torch.Tensor):
        return _scan(args, kwargs, output)
    return _sum(args, kwargs, output)


def _sum(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    return _folded(args, output, each=1, rest=-1)


def _mean(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    return _folded(args, output, each=1, rest=0)


def _variance(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """Mean, differences, squares, sum, division."""
    return _folded(args, output, each=4, rest=0)


def _norm(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """Squares, sum, root."""
    return _folded(args, output, each=2, rest=0)


def _folded(args: Args, output: TensorOrTensors, *, each: int, rest: int) -> OperatorCost:
    """So many operations for each input and ``rest`` for each output."""
    tensor = first_tensor(output)
    if not arithmetic(tensor):
        return NOTHING
    given, made = args[0].numel() * parts(args[0]), tensor.numel() * parts(args[0])
    return 0, each * given, max(0, each * given + rest * made)


def _trace(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    length = min(args[0].shape)
    return (0, length, max(0, length - 1)) if arithmetic(output) else NOTHING


def _logsumexp(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """For rows of n: subtract the maximum, exponentiate, n - 1 additions, a logarithm, add the maximum: 3n + 1 operations."""
    given = args[0].numel()
    return 0, given, 3 * given + output.numel()


def _weight_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(v, g, axis)``: ``v·(g/‖v‖)``: squares, sums, a root and a division for each row, a multiplication."""
    elements, rows = args[0].numel(), args[1].numel()
    return 0, 3 * elements + 2 * rows, 3 * elements + rows


def _renorm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``renorm(self, ...)``: squares, sums and a multiplication of every row, as if each were too long."""
    work = 3 * args[0].numel()
    return 0, work, work


def _embedding_renorm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(weight, indices, ...)``: the rows that are looked up, as if each were another one and too long."""
    work = 3 * args[1].numel() * args[0].shape[-1]
    return 0, work, work


def _fold(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Each element of the blocks is added to its place."""
    return 0, args[0].numel() * parts(output), args[0].numel() * parts(output)


def _gathered(position: int) -> TorchRule:
    """Operators that add each element of an argument to its place, or combine them otherwise."""

    def rule(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
        elements = args[position].numel() * parts(output)
        return (0, elements, elements) if arithmetic(output) else NOTHING

    return rule


def _scatter(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``scatter(self, axis, index, source)`` only moves, unless it is to ``reduce``."""
    reduces = kwargs.get("reduce", argument(args, 4)) is not None
    return (0, args[2].numel(), args[2].numel()) if reduces and arithmetic(output) else NOTHING


def _index_put(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(self, indices, values, accumulate)`` only moves, unless it is to accumulate."""
    adds = kwargs.get("accumulate", argument(args, 3, False))
    return (0, args[2].numel(), args[2].numel()) if adds and arithmetic(output) else NOTHING


def _scan(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    tensor = first_tensor(output)
    elements = tensor.numel() * parts(tensor)
    return (0, elements, elements) if arithmetic(tensor) else NOTHING


def _fourier(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``5 n log₂ n`` for a complex transform over n points (Cooley and Tukey), half of it where one side is real."""
    complex_both = args[0].is_complex() and output.is_complex()
    larger = args[0] if args[0].numel() >= output.numel() else output
    points = prod(larger.shape[axis] for axis in args[1])
    work = larger.numel() * (5 if complex_both else 2.5) * log2(points) if points > 1 else 0
    return 0, round(work), round(work)


def _rules(function: TorchRule, names: str) -> dict[str, TorchRule]:
    return {f"aten::{name}": function for name in names.split()}


RULES: dict[str, TorchRule] = {
    **_rules(
        _batch_norm_rule, "batch_norm native_batch_norm _native_batch_norm_legit_functional _batch_norm_impl_index"
    ),
    **_rules(_batch_norm_rule, "_native_batch_norm_legit cudnn_batch_norm"),
    **_rules(_batch_norm_inference, "_native_batch_norm_legit_no_training batch_norm_elemt"),
    **_rules(_batch_norm_training, "_batch_norm_with_update"),
    **_rules(_batch_norm_statistics, "batch_norm_stats"),
    **_rules(_layer_norm, "layer_norm native_layer_norm"),
    **_rules(_group_norm, "group_norm"),
    **_rules(_native_group_norm, "native_group_norm"),
    **_rules(_instance_norm, "instance_norm"),
    **_rules(_rms_norm, "rms_norm _fused_rms_norm"),
    **_rules(_softmax, "softmax _softmax _safe_softmax"),
    **_rules(_log_softmax, "log_softmax _log_softmax"),
    **_rules(_average_pool(1), "avg_pool1d"),
    **_rules(_average_pool(2), "avg_pool2d"),
    **_rules(_average_pool(3), "avg_pool3d"),
    **_rules(_adaptive_average_pool(1), "adaptive_avg_pool1d"),
    **_rules(_adaptive_average_pool(2), "adaptive_avg_pool2d _adaptive_avg_pool2d"),
    **_rules(_adaptive_average_pool(3), "adaptive_avg_pool3d _adaptive_avg_pool3d"),
    **_rules(
        _max_pool,
        "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
        "mkldnn_max_pool2d",
    ),
    **_rules(_sum, "sum nansum prod amax amin aminmax _aminmax"),
    **_rules(_extreme, "max min"),
    **_rules(_mean, "mean nanmean"),
    **_rules(_logsumexp, "logsumexp"),
    **_rules(_variance, "var std var_mean std_mean"),
    **_rules(_norm, "norm linalg_vector_norm linalg_matrix_norm frobenius_norm native_norm"),
    **_rules(_scan, "cumsum cumprod logcumsumexp cummax cummin"),
    **_rules(_fourier, "_fft_r2c _fft_c2r _fft_c2c"),
    **_rules(_trace, "trace"),
    **_rules(_weight_norm, "_weight_norm_interface"),
    **_rules(_renorm, "renorm"),
    **_rules(_embedding_renorm, "embedding_renorm_"),
    **_rules(_fold, "col2im"),
    **_rules(_gathered(0), "segment_reduce"),
    **_rules(_gathered(3), "scatter_add scatter_reduce index_add index_reduce"),
    **_rules(_scatter, "scatter"),
    **_rules(_index_put, "index_put _index_put_impl_ _unsafe_index_put put"),
}


# every rule takes an operator's arguments, keyword arguments and result


_MEAN, _SUM = 1, 2
"""How torch numbers its reductions; 0 is none."""


def _reduced_loss(each: int, elements: int, reduction: int) -> OperatorCost:
    """``each`` operations for each of some elements, and one to add it up; a mean's division stands for the first addition."""
    work = each * elements
    flops = elements if reduction else 0
    return 0, work + flops, work + {_MEAN: elements, _SUM: max(0, elements - 1)}.get(reduction, 0)


def _elementwise_loss(each: int) -> TorchRule:
    """``(input, target, reduction, ...)``."""

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        return _reduced_loss(each, args[0].numel(), argument(args, 2, _MEAN))

    return rule


def _binary_cross_entropy(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, weight, reduction)``: ``-w·(t·log x + (1 - t)·log(1 - x))``, 8 and the weight."""
    weighted = argument(args, 2) is not None
    return _reduced_loss(8 + weighted, args[0].numel(), argument(args, 3, _MEAN))


def _binary_cross_entropy_with_logits(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, weight, pos_weight, reduction)``.

    ``max(x, 0) - x·t + log(1 + exp(-|x|))`` takes 9; a weight of the positive ones, ``((p - 1)·t + 1)·log(...)``, 4.
    """
    weighted, positive = argument(args, 2) is not None, argument(args, 3) is not None
    return _reduced_loss(9 + weighted + 4 * positive, args[0].numel(), argument(args, 4, _MEAN))


def _negative_log_likelihood(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, weight, reduction, ...)``: the negative of one element for each target, and its weight."""
    weighted = argument(args, 2) is not None
    return _reduced_loss(1 + weighted, args[1].numel(), argument(args, 3, _MEAN))


def _cross_entropy(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
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
    _, flops, ops = _reduced_loss(1, rows, reduction)
    return 0, elements + picked + smoothed + flops, 4 * elements + picked + smoothed + ops


def _multi_margin(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, p, margin, weight, reduction)``: ``max(0, margin - x_y + x_j)^p`` summed, 4 or with a power 5."""
    given, target = args[0], args[1]
    each = 4 + (argument(args, 2, 1) != 1) + (argument(args, 4) is not None)
    _, flops, ops = _reduced_loss(1, target.numel(), argument(args, 5, _MEAN))
    return 0, each * given.numel() + flops, each * given.numel() + ops


LOSS_RULES: dict[str, TorchRule] = {
    "aten::mse_loss": _elementwise_loss(2),
    "aten::l1_loss": _elementwise_loss(2),
    "aten::smooth_l1_loss": _elementwise_loss(4),
    "aten::huber_loss": _elementwise_loss(4),
    "aten::soft_margin_loss": _elementwise_loss(5),  # log(1 + exp(-t·x))
    "aten::binary_cross_entropy": _binary_cross_entropy,
    "aten::binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    "aten::nll_loss_forward": _negative_log_likelihood,
    "aten::nll_loss2d_forward": _negative_log_likelihood,
    "aten::cross_entropy_loss": _cross_entropy,
    "aten::multi_margin_loss": _multi_margin,
}
