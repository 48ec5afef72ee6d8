"""Maps torch's operators to the definitions of :mod:`sweeprof.counting.operators`.

A rule takes an operator's arguments, keyword arguments and result, and reads shapes and data types only:

    def linear(args, kwargs, output) -> (macs, flops, ops)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from sweeprof.backends.torch.private import OpOverload
from sweeprof.counting import operators
from sweeprof.counting.file_graph import by_name, definitions
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost
from sweeprof.counting.operators import (
    COMPLEX,
    GRU,
    INTEGER,
    LSTM,
    NOTHING,
    REAL,
    RELU,
    TANH,
    Numbers,
    RecurrentCell,
    added,
)

TensorOrTensors = torch.Tensor | Sequence[torch.Tensor]
TorchRule = Callable[[Args, Kwargs, Any], OperatorCost]
"""From the arguments, the keyword arguments and the result of an operator: a tensor, or several."""


def argument(args: Args, position: int, default: Any = None) -> Any:
    """Return an operator's argument; the dispatcher leaves trailing defaults out."""
    return args[position] if len(args) > position else default


def is_given(args: Args, position: int) -> bool:
    """Return True if an operator has an optional argument."""
    return len(args) > position and args[position] is not None


def numbers_of(tensor: torch.Tensor) -> Numbers:
    """Return the kind of numbers that a tensor has."""
    if tensor.is_floating_point():
        return REAL
    if tensor.is_complex():
        return COMPLEX
    return INTEGER


def first_tensor(output: TensorOrTensors) -> torch.Tensor:
    """Return the first tensor of an operator's result."""
    if isinstance(output, torch.Tensor):
        return output
    return output[0]


def _parts(tensor: torch.Tensor) -> int:
    """Return the real numbers in an element: a complex addition is two."""
    return 1 + tensor.is_complex()


# Elementwise operators


_ELEMENTWISE = """
arithmetic: add sub rsub subtract floor_divide remainder fmod pow square float_power neg negative abs absolute sign sgn
arithmetic: maximum minimum fmax fmin clamp clamp_min clamp_max clip ceil floor round trunc frac
multiply: mul multiply
divide: div divide true_divide
function: exp exp2 expm1 log log2 log10 log1p sqrt erf erfc erfinv lgamma digamma sin cos tan asin acos atan atan2 sinh cosh
function: asinh acosh atanh sinc reciprocal i0 special_i0e special_erfcx
relu: relu
sigmoid: sigmoid
tanh: tanh
leaky_relu: leaky_relu prelu _prelu_kernel rrelu rrelu_with_noise
elu: elu celu
selu: selu
softplus: softplus
silu: silu
mish: mish
hardtanh: hardtanh relu6 hardshrink softshrink threshold
hardsigmoid: hardsigmoid
hardswish: hardswish
log_sigmoid: log_sigmoid log_sigmoid_forward
glu: glu
rsqrt: rsqrt
logit: logit
hypot: hypot
logaddexp: logaddexp logaddexp2
lerp: lerp addcmul addcdiv
cross: linalg_cross
polar: polar
nearest: upsample_nearest1d upsample_nearest2d upsample_nearest3d
nearest: _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
linear: upsample_linear1d
bilinear: upsample_bilinear2d _upsample_bilinear2d_aa
trilinear: upsample_trilinear3d
bicubic: upsample_bicubic2d _upsample_bicubic2d_aa
"""
_FOREACH = """
add sub mul div neg abs sqrt rsqrt reciprocal exp log pow addcmul addcdiv lerp maximum minimum clamp_min clamp_max sign
acos asin atan ceil cos cosh erf erfc expm1 floor frac lgamma log10 log1p log2 round sigmoid sin sinh tan tanh trunc
"""
"""Operators that exist for a list of tensors too."""


def _elementwise(definition: str, args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    tensor = first_tensor(output)
    return operators.elementwise(definition, tensor.numel(), numbers_of(tensor))


def _for_each(rule: TorchRule, args: Args, kwargs: Kwargs, output: Sequence[torch.Tensor] | None) -> OperatorCost:
    """The cost for every tensor of a list; one that works in place returns nothing."""
    if output is None:
        output = args[0]
    return added(*[rule((), {}, tensor) for tensor in output])


def _elementwise_rules() -> dict[str, TorchRule]:
    rules: dict[str, TorchRule] = {}
    for name, kind in definitions(_ELEMENTWISE).items():
        rules[name] = partial(_elementwise, kind)
    for name in _FOREACH.split():
        rules[f"_foreach_{name}"] = partial(_for_each, rules[name])
    return rules


def _gelu(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    if kwargs.get("approximate") == "tanh":
        return _elementwise("gelu_tanh", args, kwargs, output)
    return _elementwise("gelu", args, kwargs, output)


def _grid_sampler(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, grid, interpolation, ...)``: as the upsampling of that kind."""
    kind = ("bilinear", "nearest", "bicubic")[args[2]]
    if kind == "bilinear" and output.dim() == 5:
        kind = "trilinear"
    return _elementwise(kind, args, kwargs, output)


def _dropout(
    args: Args, kwargs: Kwargs, output: TensorOrTensors, *, alpha: bool = False, by_channel: bool = False
) -> OperatorCost:
    """``(input, p, training)``."""
    given, probability, is_training = args
    if not is_training or not probability:
        return NOTHING
    drawn = given.numel()
    if by_channel:
        drawn = prod(given.shape[:2])
    return operators.dropout(given.numel(), drawn, alpha=alpha)


ONE_EACH: TorchRule = partial(_elementwise, "arithmetic")
"""The rule of any other operator that torch tags as pointwise."""


# Products


def _linear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``y = x Wᵀ + b``."""
    return operators.matmul(output.numel(), args[0].shape[-1], numbers_of(output), bias=is_given(args, 2))


def _matmul(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _product_of(args[0], args[1], output, bias=False)


def _added_matmul(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``addmm``, ``baddbmm``, ``addmv``: what is added counts as a bias; the scalars alpha and beta are left out."""
    return _product_of(args[1], args[2], output, bias=_is_added(kwargs))


def _is_added(kwargs: Kwargs) -> bool:
    """Return True if there is an addend: with a beta of zero torch does not even read it."""
    return bool(kwargs.get("beta", 1) != 0)


def _product_of(left: torch.Tensor, right: torch.Tensor, output: torch.Tensor, *, bias: bool) -> OperatorCost:
    """Return the cost of a matrix product.

    Of a sparse operand only the stored elements are multiplied: by each column of a right one, by each row of a left one.
    """
    outputs, numbers = output.numel(), numbers_of(output)
    if left.layout != torch.strided:
        macs = _stored(left)
        if right.dim() > 1:
            macs *= right.shape[-1]
    elif right.layout != torch.strided:
        macs = _stored(right)
        if left.dim() > 1:
            macs *= left.shape[-2]
    else:
        return operators.matmul(outputs, left.shape[-1], numbers, bias=bias)
    return operators.sums_of_products(macs, min(outputs, macs), numbers, bias=bias)


def _stored(tensor: torch.Tensor) -> int:
    """Return the number of elements that a sparse tensor stores.

    Raises:
        ValueError: it is on the meta device, where that is not known.
    """
    if tensor.is_meta:
        raise ValueError("how many elements a sparse tensor stores is not known on the meta device")
    if tensor.layout == torch.sparse_coo:
        return int(tensor._nnz())
    return tensor.values().numel()


def _addbmm(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A sum of a batch of products: each output element is a sum over the batch and the inner axis."""
    inner = args[1].shape[-1] * args[1].shape[0]
    return operators.matmul(output.numel(), inner, numbers_of(output), bias=_is_added(kwargs))


def _vecdot(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A sum of products along one axis for each output element."""
    return operators.matmul(output.numel(), args[0].shape[kwargs.get("dim", -1)], numbers_of(output))


def _triangular(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    divides = not kwargs.get("unitriangular", False)
    return operators.triangular_solve(output.numel(), args[0].shape[-1], numbers_of(output), divides=divides)


def _addr(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """An outer product and its addition to what is there; ``outer`` itself and such an ``einsum`` reach torch as ``mul``."""
    return operators.outer(output.numel(), numbers_of(output), addend=_is_added(kwargs))


def _bilinear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Weight ``(out, I₁, I₂)``."""
    _, first, second = args[2].shape
    return operators.bilinear(output.numel(), first, second, numbers_of(output), bias=is_given(args, 3))


def _trilinear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``x₁ (N, 1, I₁, 1) · A (1, O, I₁, I₂) · x₂ (N, 1, 1, I₂)``, summed over both inputs: how ``bilinear`` is computed.

    Its backward has the gradient ``(N, O, 1, 1)`` in the place of the operand whose gradient it computes.
    """
    sizes: dict[int, int] = {}
    for tensor, inserted in zip(args[:3], args[3:6], strict=True):
        axes = [axis for axis in range(4) if axis not in inserted]
        sizes |= zip(axes, tensor.shape, strict=True)
    return operators.bilinear(sizes[0] * sizes[1], sizes[2], sizes[3], numbers_of(output))


def _conv(args: Args, kwargs: Kwargs, output: torch.Tensor, *, transposed: bool = False) -> OperatorCost:
    """``(input, weight, ...)`` with a bias behind the weight, or behind the kernel's size, or without any.

    Weight ``(out, in/groups, *kernel)``, transposed ``(in, out/groups, *kernel)``.
    """
    bias = isinstance(argument(args, 2), torch.Tensor) or isinstance(argument(args, 3), torch.Tensor)
    window, outputs, numbers = prod(args[1].shape[1:]), output.numel(), numbers_of(output)
    if transposed:
        return operators.transposed_convolution(args[0].numel(), window, outputs, numbers, bias=bias)
    return operators.convolution(outputs, window, numbers, bias=bias)


def _convolution(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, weight, bias, stride, padding, dilation, transposed, ...)``."""
    return _conv(args, kwargs, output, transposed=args[6])


def _conv_tbc(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Weight ``(kernel, in, out)``."""
    window = args[1].shape[0] * args[1].shape[1]
    return operators.convolution(output.numel(), window, numbers_of(output), bias=True)


def _attention(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """Query ``(..., heads, L, E)``, k ``(..., S, E)``, v ``(..., S, V)``; axes of samples and heads are broadcast."""
    query, key, value = args[0], args[1], args[2]
    mask = kwargs.get("attn_mask", argument(args, 3))
    is_masked = isinstance(mask, torch.Tensor)
    of_keys, of_values = key.shape[:-2], value.shape[:-2]
    if kwargs.get("enable_gqa"):  # each head of k and v is repeated for several of q
        of_keys, of_values = (*of_keys[:-1], query.shape[-3]), (*of_values[:-1], query.shape[-3])
    products = torch.broadcast_shapes(query.shape[:-2], of_keys)  # type: ignore[no-untyped-call]
    scores = products
    if is_masked:
        scores = torch.broadcast_shapes(products, mask.shape[:-2])  # type: ignore[no-untyped-call]
    results = torch.broadcast_shapes(scores, of_values)  # type: ignore[no-untyped-call]
    length = query.shape[-2]
    return operators.attention(
        prod(scores) * length,
        key.shape[-2],
        query.shape[-1],
        value.shape[-1],
        numbers_of(query),
        masks=int(is_masked),
        product_rows=prod(products) * length,
        result_rows=prod(results) * length,
    )


def _native_attention(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``_native_multi_head_attention(q, k, v, width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, ...)``."""
    batch, length = args[0].shape[:2]
    return operators.attention_with_projections(batch, length, args[1].shape[1], args[3], args[4])


def _embedding_bag(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """``(weight, indices, offsets, scale_grad, mode, sparse, per_sample_weights, ...)``; mode 1 is a mean."""
    weight, indices = args[0], args[1]
    return operators.embedding_bag(
        indices.numel() * weight.shape[1],
        first_tensor(output).numel(),
        numbers_of(weight),
        weighted=is_given(args, 6),
        mean=argument(args, 4, 0) == 1,
    )


def _by_inner_axis(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Also a product with a packed or scaled right operand, and the positions of an affine grid times the transposed matrix."""
    return operators.matmul(output.numel(), args[0].shape[-1], numbers_of(output))


def _grouped(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A product for each group, whose rows, columns or inner axis the offsets divide up among the groups.

    Where both operands are matrices, the groups share the inner axis: a result for each of them, all together one product.
    """
    left, right = args[0], args[1]
    if left.dim() == right.dim() == 2:
        return operators.sums_of_products(left.numel() * right.shape[1], output.numel(), numbers_of(output))
    return operators.matmul(output.numel(), left.shape[-1], numbers_of(output))


_PRODUCTS: dict[str, TorchRule] = {
    "linear mkldnn_linear": _linear,
    "matmul mm bmm mv _sparse_mm _int_mm": _matmul,
    "dot vdot _scaled_mm _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu "
    "affine_grid_generator": _by_inner_axis,
    "_grouped_mm _scaled_grouped_mm": _grouped,
    "addmm baddbmm addmv _addmm_activation _sparse_addmm": _added_matmul,
    "linalg_vecdot": _vecdot,
    "linalg_solve_triangular": _triangular,
    "addbmm": _addbmm,
    "addr": _addr,
    "bilinear": _bilinear,
    "_trilinear": _trilinear,
    "conv1d conv2d conv3d mkldnn_convolution _slow_conv2d_forward slow_conv3d_forward _conv_depthwise2d "
    "conv_depthwise3d slow_conv_dilated2d slow_conv_dilated3d cudnn_convolution miopen_convolution": _conv,
    "conv_transpose1d conv_transpose2d conv_transpose3d slow_conv_transpose2d slow_conv_transpose3d "
    "cudnn_convolution_transpose": partial(_conv, transposed=True),
    "convolution _convolution convolution_overrideable": _convolution,
    "conv_tbc": _conv_tbc,
    "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable": _attention,
    "_native_multi_head_attention": _native_attention,
    "embedding_bag _embedding_bag _embedding_bag_forward_only": _embedding_bag,
}


# Recurrent networks


def _steps(given: torch.Tensor) -> int:
    """Return the time steps times samples of what a network is given."""
    return given.numel() // given.shape[-1]


def _network(kind: RecurrentCell, args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, hx, params, has_biases, ...)``, packed: ``(data, batch_sizes, hx, params, has_biases, ...)``."""
    weights, has_biases = args[2:4]
    if isinstance(args[3], list | tuple):
        weights, has_biases = args[3:5]
    biases = 2 * bool(has_biases)
    total = NOTHING
    index = 0
    while index < len(weights):  # of each layer and direction: w_ih, w_hh[, b_ih, b_hh][, w_hr]
        w_ih, w_hh = weights[index], weights[index + 1]
        hidden, projected = w_hh.shape[0] // kind.gates, w_hh.shape[1]
        total = added(total, operators.recurrent(kind, _steps(args[0]), w_ih.shape[1], hidden, projected, biases))
        index += 2 + biases + (projected != hidden)
    return total


def _cell(kind: RecurrentCell, args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, hx, w_ih, w_hh, b_ih, b_hh)``."""
    hidden = args[3].shape[1]
    return operators.recurrent(
        kind, _steps(args[0]), args[2].shape[1], hidden, hidden, is_given(args, 4) + is_given(args, 5)
    )


def _mkldnn(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """One layer and direction.

    ``(input, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, batch_sizes, mode, hidden, layers, has_biases, ...)``.
    """
    kind, hidden = (RELU, TANH, LSTM, GRU)[args[9]], args[10]
    return operators.recurrent(kind, _steps(args[0]), args[1].shape[1], hidden, hidden, 2 * bool(args[12]))


def _mkldnn_backward(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, w_ih, w_hh, b_ih, b_hh, ..., reverse, mode, hidden, layers, has_biases, ...)``: twice the forward's products."""
    forward = _mkldnn((*args[:8], None, *args[14:]), kwargs, output)
    return added(forward, forward)


def _thnn_lstm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """CUDA's fused gates, after the matrix products: ``(input_gates, hidden_gates, cx, input_bias, hidden_bias)``."""
    units = args[2].numel()
    biases = LSTM.gates * (is_given(args, 3) + is_given(args, 4))
    return 0, units * (LSTM.flops + biases), units * (LSTM.ops + biases)


_CELLS = {"rnn_tanh": TANH, "rnn_relu": RELU, "gru": GRU, "lstm": LSTM}
_RECURRENT: dict[str, TorchRule] = {
    **{name: partial(_network, cell) for name, cell in _CELLS.items()},
    **{f"{name}_cell": partial(_cell, cell) for name, cell in _CELLS.items()},
    "mkldnn_rnn_layer": _mkldnn,
    "mkldnn_rnn_layer_backward": _mkldnn_backward,
    "_thnn_fused_lstm_cell": _thnn_lstm,
}

# Norms, softmax and pooling


def _batch_norm(args: Args, kwargs: Kwargs, output: object, *, training: bool | None = None) -> OperatorCost:
    """``(input, weight, bias, mean, variance, training, ...)``, unless the operator is always in one mode."""
    given = args[0]
    if training is None:
        training = bool(args[5])
    channels = given.numel()
    if given.dim() > 1:
        channels = given.shape[1]
    return operators.batch_norm(given.numel(), channels, affine=args[1] is not None, training=training)


def _batch_norm_statistics(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return operators.batch_norm_statistics(args[0].numel(), args[0].shape[1])


def _rows(tensor: torch.Tensor, axes: int) -> int:
    """Return the rows of a tensor whose last axes make a row."""
    return tensor.numel() // max(1, prod(tensor.shape[tensor.dim() - axes :]))


def _normalised(args: Args, rows: int, first: int) -> OperatorCost:
    """Return the cost where an optional weight is the argument at ``first``, and an optional bias comes after it."""
    weight, bias = is_given(args, first), is_given(args, first + 1)
    return operators.normalisation(args[0].numel(), rows, weight=weight, bias=bias)


def _layer_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, normalized_shape, weight, bias, eps)``."""
    return _normalised(args, _rows(args[0], len(args[1])), 2)


def _group_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, groups, weight, bias, ...)``."""
    return _normalised(args, args[0].shape[0] * args[1], 2)


def _native_group_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, weight, bias, N, C, HxW, groups, eps)``."""
    return _normalised(args, args[3] * args[6], 1)


def _instance_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, weight, bias, mean, variance, use_input_stats, ...)``: every channel of every sample by itself."""
    if not args[5]:
        return _batch_norm(args, kwargs, output, training=False)
    return _normalised(args, args[0].shape[0] * args[0].shape[1], 1)


def _rms_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, normalized_shape, weight, eps)``."""
    return operators.rms_norm(args[0].numel(), _rows(args[0], len(args[1])), weight=is_given(args, 2))


def _softmax(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, axis, ...)``."""
    given = args[0]
    if numbers_of(output) is INTEGER:
        return NOTHING
    length = 1
    if given.dim():
        length = given.shape[args[1]]
    return operators.softmax(given.numel(), length)


def _log_softmax(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return operators.log_softmax(args[0].numel())


def _logsumexp(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return operators.logsumexp(args[0].numel(), output.numel())


def _weight_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(v, g, axis)``."""
    return operators.weight_norm(args[0].numel(), args[1].numel())


def _average_pool(spatial: int, args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, kernel_size, ...)``."""
    if numbers_of(output) is INTEGER:
        return NOTHING
    sizes = args[1]
    if isinstance(sizes, int):
        sizes = (sizes,)
    window = prod(sizes)
    if len(sizes) < spatial:
        window = sizes[0] ** spatial
    return operators.average_pool(args[0].numel(), output.numel(), window)


def _adaptive_average_pool(spatial: int, args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    given = args[0]
    channels = prod(given.shape[: given.dim() - spatial])
    return operators.adaptive_average_pool(given.shape[-spatial:], output.shape[-spatial:], channels)


def _max_pool(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    made = first_tensor(output)
    if numbers_of(made) is INTEGER:
        return NOTHING
    return operators.max_pool(args[0].numel(), made.numel())


# Reductions, scans, transforms


def _reduction(definition: str, args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    tensor = first_tensor(output)
    if numbers_of(tensor) is INTEGER:
        return NOTHING
    parts = _parts(args[0])
    return operators.reduction(definition, args[0].numel() * parts, tensor.numel() * parts)


def _extreme(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """``max`` and ``min``: of two tensors elementwise, else along axes."""
    if isinstance(argument(args, 1), torch.Tensor):
        return _scan(args, kwargs, output)
    return _reduction("sum", args, kwargs, output)


def _trace(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    if numbers_of(output) is INTEGER:
        return NOTHING
    return operators.trace(min(args[0].shape))


def _scan(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    tensor = first_tensor(output)
    if numbers_of(tensor) is INTEGER:
        return NOTHING
    return operators.scan(tensor.numel() * _parts(tensor))


def _scattered(position: int, args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Each element of the argument at ``position`` is added to its place, or combined with it otherwise."""
    if numbers_of(output) is INTEGER:
        return NOTHING
    return operators.scan(args[position].numel() * _parts(output))


def _combining(name: str, position: int, args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """The third argument is only moved, unless an argument says that it is to combine."""
    combines = kwargs.get(name, argument(args, position))
    if not combines or numbers_of(output) is INTEGER:
        return NOTHING
    return operators.scan(args[2].numel())


def _fourier(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, axes, ...)``."""
    larger = max(args[0], output, key=torch.Tensor.numel)
    points = prod(larger.shape[axis] for axis in args[1])
    is_real = not (args[0].is_complex() and output.is_complex())
    return operators.fourier(larger.numel(), points, is_real=is_real)


_REDUCTIONS: dict[str, TorchRule] = {
    "gelu": _gelu,
    "dropout native_dropout": _dropout,
    "feature_dropout": partial(_dropout, by_channel=True),
    "alpha_dropout": partial(_dropout, alpha=True),
    "feature_alpha_dropout": partial(_dropout, alpha=True, by_channel=True),
    "grid_sampler grid_sampler_2d grid_sampler_3d": _grid_sampler,
    "batch_norm native_batch_norm _native_batch_norm_legit_functional _batch_norm_impl_index "
    "_native_batch_norm_legit cudnn_batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training batch_norm_elemt": partial(_batch_norm, training=False),
    "_batch_norm_with_update": partial(_batch_norm, training=True),
    "batch_norm_stats": _batch_norm_statistics,
    "layer_norm native_layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "native_group_norm": _native_group_norm,
    "instance_norm": _instance_norm,
    "rms_norm _fused_rms_norm": _rms_norm,
    "softmax _softmax _safe_softmax": _softmax,
    "log_softmax _log_softmax": _log_softmax,
    "avg_pool1d": partial(_average_pool, 1),
    "avg_pool2d": partial(_average_pool, 2),
    "avg_pool3d": partial(_average_pool, 3),
    "adaptive_avg_pool1d": partial(_adaptive_average_pool, 1),
    "adaptive_avg_pool2d _adaptive_avg_pool2d": partial(_adaptive_average_pool, 2),
    "adaptive_avg_pool3d _adaptive_avg_pool3d": partial(_adaptive_average_pool, 3),
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d "
    "mkldnn_max_pool2d": _max_pool,
    "sum nansum prod amax amin aminmax _aminmax": partial(_reduction, "sum"),
    "max min": _extreme,
    "mean nanmean": partial(_reduction, "mean"),
    "logsumexp": _logsumexp,
    "var std var_mean std_mean": partial(_reduction, "variance"),
    "norm linalg_vector_norm linalg_matrix_norm frobenius_norm native_norm": partial(_reduction, "norm"),
    "cumsum cumprod logcumsumexp cummax cummin": _scan,
    "_fft_r2c _fft_c2r _fft_c2c": _fourier,
    "trace": _trace,
    "_weight_norm_interface": _weight_norm,
    "col2im segment_reduce": partial(_scattered, 0),
    "scatter_add scatter_reduce index_add index_reduce": partial(_scattered, 3),
    "scatter": partial(_combining, "reduce", 4),
    "index_put _index_put_impl_ _unsafe_index_put put": partial(_combining, "accumulate", 3),
}


# Losses


_REDUCED_BY = (None, "mean", "sum")
"""How torch numbers the reductions of losses."""
_MEAN = 1


def _loss(name: str, reduction: int = 2, weights: Mapping[int, int] | None = None, counted: int = 0) -> TorchRule:
    """Return the rule of a loss.

    Args:
        name: of its definition.
        reduction: position of the argument that says how it is reduced.
        weights: operations more for each element, by the position of the optional argument that they are for.
        counted: position of the argument whose elements count.
    """

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        weighing = sum(more for position, more in (weights or {}).items() if is_given(args, position))
        reduced_by = _REDUCED_BY[argument(args, reduction, _MEAN)]
        return operators.loss(operators.LOSSES[name] + weighing, args[counted].numel(), reduced_by)

    return rule


def _cross_entropy(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, weight, reduction, ignore_index, label_smoothing)``."""
    given, target = args[0], args[1]
    classes = given.shape[min(1, given.dim() - 1)]
    return operators.cross_entropy(
        given.numel(),
        given.numel() // max(1, classes),
        _REDUCED_BY[argument(args, 3, _MEAN)],
        weighted=is_given(args, 2),
        of_probabilities=target.is_floating_point(),
        smoothed=bool(argument(args, 5, 0.0)),
    )


_LOSSES: dict[str, TorchRule] = {
    "mse_loss": _loss("squared_error"),
    "l1_loss": _loss("absolute_error"),
    "smooth_l1_loss huber_loss": _loss("huber"),
    "binary_cross_entropy": _loss("binary_cross_entropy", 3, {2: 1}),
    # A weight of the positive ones, ``((p - 1)·t + 1)·log(...)``, takes 4.
    "binary_cross_entropy_with_logits": _loss("binary_cross_entropy_with_logits", 4, {2: 1, 3: 4}),
    "nll_loss_forward nll_loss2d_forward": _loss("negative_log_likelihood", 3, {2: 1}, counted=1),
    "cross_entropy_loss": _cross_entropy,
}


# Operators of a backward


def _convolution_backward(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)``."""
    grad, given, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    forward = (given if transposed else grad).numel() * prod(weight.shape[1:])
    return operators.product_gradients(forward, bool(mask[0]) + bool(mask[1]), grad.numel() * bool(mask[2]))


def _attention_backward(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, query, key, value, ...)``."""
    query, key, value = args[1], args[2], args[3]
    width = query.shape[-1]
    return operators.attention_gradients(query.numel() // width, key.shape[-2], width, value.shape[-1])


def _embedding_bag_backward(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, indices, ...)``: the gradient of a bag is added to each of its rows."""
    return operators.gradient("rows", args[1].numel() * args[0].shape[-1])


def _of_given(definition: str, args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """So much for each element of the first argument, the gradient of the result."""
    return operators.gradient(definition, args[0].numel())


def _of_result(definition: str, args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """So much for each element of the first result, the gradient of the input."""
    tensor = first_tensor(output)
    return operators.gradient(definition, tensor.numel() * numbers_of(tensor))


def _of_pooled(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    return operators.gradient("pooling", first_tensor(output).numel())


_BACKWARD: dict[str, TorchRule] = {
    "convolution_backward convolution_backward_overrideable": _convolution_backward,
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "native_batch_norm_backward native_layer_norm_backward native_group_norm_backward "
    "cudnn_batch_norm_backward _fused_rms_norm_backward batch_norm_backward": partial(_of_given, "norm"),
    "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward "
    "adaptive_max_pool3d_backward upsample_nearest1d_backward upsample_nearest2d_backward "
    "upsample_nearest3d_backward upsample_linear1d_backward upsample_bilinear2d_backward "
    "upsample_bicubic2d_backward upsample_trilinear3d_backward grid_sampler_2d_backward "
    "grid_sampler_3d_backward reflection_pad2d_backward replication_pad2d_backward reflection_pad1d_backward "
    "replication_pad1d_backward reflection_pad3d_backward replication_pad3d_backward "
    "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward "
    "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward adaptive_avg_pool3d_backward "
    "fractional_max_pool2d_backward fractional_max_pool3d_backward": _of_pooled,
    "_softmax_backward_data _log_softmax_backward_data": partial(_of_given, "softmax"),
    "_embedding_bag_backward": _embedding_bag_backward,
    "_weight_norm_interface_backward": partial(_of_result, "weight_norm"),
    "embedding_dense_backward embedding_backward _embedding_bag_dense_backward": partial(_of_given, "rows"),
    "threshold_backward sigmoid_backward tanh_backward leaky_relu_backward hardtanh_backward elu_backward "
    "nll_loss_backward nll_loss2d_backward mse_loss_backward native_dropout_backward hardshrink_backward "
    "softshrink_backward rrelu_with_noise_backward smooth_l1_loss_backward huber_loss_backward "
    "_prelu_kernel_backward glu_backward log_sigmoid_backward": partial(_of_result, "activation"),
    "gelu_backward silu_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward "
    "binary_cross_entropy_backward logit_backward": partial(_of_result, "smooth_activation"),
}


# Operators that take functions


def _flex_attention(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(query, key, value, score_mod, block_mask, ...)``: every query by every key, as ``torch.utils.flop_counter`` counts it.

    A block mask saves nothing, as a causal mask does not; what the score function does is counted as it runs.
    """
    return _attention(args[:3], {"enable_gqa": True}, output)


def _flex_attention_backward(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(query, key, value, out, logsumexp, grad_out, ...)``."""
    return _attention_backward((args[5], *args[:3]), {}, output)


HIGHER_ORDER_COSTS: dict[str, TorchRule] = {
    "higher_order::flex_attention": _flex_attention,
    "higher_order::flex_attention_backward": _flex_attention_backward,
}
"""What an operator costs beside its functions, by qualified name."""


COSTS: dict[str, TorchRule] = {
    f"aten::{name}": rule
    for name, rule in by_name(_elementwise_rules() | _PRODUCTS | _RECURRENT | _REDUCTIONS | _LOSSES | _BACKWARD).items()
}
"""Rule by qualified name, e.g. ``aten::linear``."""


# Operators that do no arithmetic


FREE = frozenset(
    """
    bernoulli transpose_ t_ squeeze_ unsqueeze_ as_strided_ swapaxes_ swapdims_ type_as _to_copy clone copy resize_
    resize_as_ complex detach lift unsafe_split unsafe_split_with_sizes unsafe_chunk _unsafe_view _reshape_copy cat
    concat concatenate stack hstack vstack dstack repeat repeat_interleave tile roll flip rot90 fliplr flipud pad
    constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d _pad_circular _pad_enum
    pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle tril triu tril_indices triu_indices diag
    diag_embed diagonal_scatter embedding gather index index_select _unsafe_index select_scatter slice_scatter
    masked_fill masked_scatter masked_select take take_along_dim where index_fill index_copy fill zero set_ max_unpool2d
    max_unpool3d topk sort argsort argmax argmin msort any all isnan isinf isfinite equal allclose isclose nonzero
    nonzero_static bucketize searchsorted one_hot _unique2 unique_consecutive bincount histc median nanmedian mode
    kthvalue count_nonzero multinomial _linalg_check_errors _local_scalar_dense item is_nonzero empty empty_like
    empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full
    arange linspace logspace scalar_tensor eye rand randn rand_like randn_like randint randint_like randperm normal
    uniform_ random_ exponential_ cauchy_ log_normal_ geometric_ meshgrid cartesian_prod hann_window hamming_window
    blackman_window bartlett_window kaiser_window im2col unfold_backward slice_backward select_backward
    _nested_tensor_from_tensor_list _nested_view_from_buffer _nested_view_from_jagged _nested_from_padded to_padded_tensor
    _nested_tensor_from_mask _nested_tensor_size _nested_tensor_strides _nested_tensor_storage_offsets
    diagonal_backward _pack_padded_sequence _pad_packed_sequence quantize_per_tensor quantize_per_channel
    quantize_per_tensor_dynamic dequantize int_repr q_scale q_zero_point _nested_tensor_from_mask
    nested_to_padded_tensor _coalesce _sparse_coo_tensor_unsafe sparse_coo_tensor
    _sparse_coo_tensor_with_dims_and_tensors _to_sparse _to_dense to_dense to_sparse sparse_mask values _assert_async
    _assert_scalar _assert_tensor_metadata sym_size sym_numel sym_stride sym_storage_offset sym_constrain_range
    sym_constrain_range_for_size get_device is_floating_point is_complex size stride record_stream is_pinned _pin_memory
    set_data requires_grad_ retain_grad eq ne lt le gt ge logical_and logical_or logical_xor logical_not signbit
    _is_all_true _is_any_true isin is_same_size is_set_to is_coalesced _has_same_storage_numel _nnz dense_dim sparse_dim
    _dimI _dimV qscheme q_per_channel_axis q_per_channel_scales q_per_channel_zero_points _functional_assert_async
    _functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size _print
    _validate_compressed_sparse_indices _nested_tensor_size _nested_tensor_strides _nested_tensor_storage_offsets
    _nested_get_lengths _nested_get_offsets _nested_get_ragged_idx _nested_get_min_seqlen _nested_get_max_seqlen
    _nested_get_jagged_dummy _chunk_cat _stack block_diag as_strided_scatter _lazy_clone _unique unique_dim
    unique_dim_consecutive empty_permuted range _foreach_copy _foreach_zero _foreach_clone to_padded_tensor
    _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward _efficientzerotensor
    """.split()
)
"""Names within ``aten`` of operators that move, choose, compare or make data; views, and what works in place, need no name."""
GATHERS = frozenset("embedding gather index index_select _unsafe_index take take_along_dim".split())
"""Operators that read the rows or elements that they return, and no others, of their first operand (a table)."""
OVERWRITES = frozenset("copy fill zero bernoulli normal uniform random exponential cauchy log_normal geometric".split())
"""Operators that do not read the tensor that they write in place."""
_NAMESPACES = frozenset({"prim", "profiler", "c10d_functional_trace"})


def does_no_arithmetic(func: OpOverload) -> bool:
    """True if the operator overload is a view, or one of the listed operators or their variants: in place, or a view's copy."""
    namespace, _, name = func._schema.name.partition("::")
    if func.is_view or namespace in _NAMESPACES:
        return True
    if namespace != "aten":
        return False
    return name in FREE or name.removesuffix("_") in FREE or f"{name}_" in FREE or _copies_a_view(name)


def _copies_a_view(name: str) -> bool:
    """True if torch uses the operator in place of a view where views are not allowed, e.g. ``slice_copy``."""
    if not name.endswith("_copy"):
        return False
    view = getattr(torch.ops.aten, name.removesuffix("_copy"), None)
    return view is not None and any(getattr(view, overload).is_view for overload in view.overloads())
