"""Maps torch's operators to the definitions of :mod:`sweeprof.counting.operators` and :mod:`sweeprof.counting.gradients`.

A rule takes an operator's arguments, keyword arguments and result, and reads shapes and data types only:

    def linear(args, kwargs, output) -> (macs, flops, ops)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._ops import OpOverload

from sweeprof.counting import gradients, operators
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


def numbers_of(tensor: torch.Tensor) -> Numbers:
    """Return the kind of numbers that a tensor has."""
    if tensor.is_floating_point():
        return REAL
    return COMPLEX if tensor.is_complex() else INTEGER


def first_tensor(output: TensorOrTensors) -> torch.Tensor:
    """Return the first tensor of an operator's result."""
    return output if isinstance(output, torch.Tensor) else output[0]


def _parts(tensor: torch.Tensor) -> int:
    """Return the real numbers in an element: a complex addition is two."""
    return 2 if tensor.is_complex() else 1


def _rules(function: TorchRule, names: str, namespace: str = "aten") -> dict[str, TorchRule]:
    return {f"{namespace}::{name}": function for name in names.split()}


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


def elementwise(name: str) -> TorchRule:
    """Return the rule of an elementwise operator, by the name of its definition."""

    def rule(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
        tensor = output if isinstance(output, torch.Tensor) else output[0]
        return operators.elementwise(name, tensor.numel(), numbers_of(tensor))

    return rule


def _for_each(rule: TorchRule) -> TorchRule:
    """Return ``rule`` for every tensor of a list; one that works in place returns nothing."""

    def summed(args: Args, kwargs: Kwargs, output: Sequence[torch.Tensor] | None) -> OperatorCost:
        return added(*(rule((), {}, tensor) for tensor in (args[0] if output is None else output)))

    return summed


def _elementwise_rules() -> dict[str, TorchRule]:
    rules = {}
    for line in _ELEMENTWISE.strip().split("\n"):
        definition, _, names = line.partition(": ")
        rule = elementwise(definition)
        for name in names.split():
            rules[f"aten::{name}"] = rule
            if name in _FOREACH.split():
                rules[f"aten::_foreach_{name}"] = _for_each(rule)
    return rules


def _gelu(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return operators.elementwise(
        "gelu_tanh" if kwargs.get("approximate") == "tanh" else "gelu", output.numel(), numbers_of(output)
    )


def _grid_sampler(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, grid, interpolation, ...)``: as the upsampling of that kind."""
    kind = ("bilinear" if output.dim() == 4 else "trilinear", "nearest", "bicubic")[args[2]]
    return operators.elementwise(kind, output.numel(), numbers_of(output))


ONE_EACH = elementwise("arithmetic")
"""The rule of any other operator that torch tags as pointwise."""


# Products


def _linear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``y = x Wᵀ + b``."""
    return operators.matmul(output.numel(), args[0].shape[-1], numbers_of(output), bias=argument(args, 2) is not None)


def _matmul(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _product_of(args[0], args[1], output, bias=False)


def _added_matmul(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``addmm``, ``baddbmm``, ``addmv``: what is added counts as a bias; the scalars alpha and beta are left out."""
    return _product_of(args[1], args[2], output, bias=_is_added(kwargs))


def _is_added(kwargs: Kwargs) -> bool:
    """Return True if there is an addend: with a beta of zero torch does not even read it."""
    return bool(kwargs.get("beta", 1) != 0)


def _product_of(left: torch.Tensor, right: torch.Tensor, output: torch.Tensor, *, bias: bool) -> OperatorCost:
    """Of a sparse operand only the stored elements are multiplied: by each column of a right one, by each row of a left one."""
    outputs, numbers = output.numel(), numbers_of(output)
    if left.layout != torch.strided:
        macs = _stored(left) * (right.shape[-1] if right.dim() > 1 else 1)
    elif right.layout != torch.strided:
        macs = _stored(right) * (left.shape[-2] if left.dim() > 1 else 1)
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
    return int(tensor._nnz()) if tensor.layout == torch.sparse_coo else tensor.values().numel()


def _sampled(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A product of which only the elements that the result stores are computed."""
    return operators.matmul(_stored(output), args[1].shape[-1], numbers_of(args[1]), bias=_is_added(kwargs))


def _addbmm(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A sum of a batch of products: each output element is a sum over the batch and the inner axis."""
    inner = args[1].shape[-1] * args[1].shape[0]
    return operators.matmul(output.numel(), inner, numbers_of(output), bias=_is_added(kwargs))


def _dot(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return operators.matmul(1, args[0].numel(), numbers_of(output))


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
    return operators.bilinear(output.numel(), first, second, numbers_of(output), bias=argument(args, 3) is not None)


def _trilinear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``x₁ (N, 1, I₁, 1) · A (1, O, I₁, I₂) · x₂ (N, 1, 1, I₂)``, summed over both inputs: how ``bilinear`` is computed."""
    first, second = args[1].shape[-2:]
    return operators.bilinear(output.numel(), first, second, numbers_of(output))


def _convolution_of(
    weight: torch.Tensor, given: torch.Tensor, output: torch.Tensor, *, transposed: bool, bias: bool
) -> OperatorCost:
    """Weight ``(out, in/groups, *kernel)``, transposed ``(in, out/groups, *kernel)``."""
    window, outputs, numbers = prod(weight.shape[1:]), output.numel(), numbers_of(output)
    if transposed:
        return operators.transposed_convolution(given.numel(), window, outputs, numbers, bias=bias)
    return operators.convolution(outputs, window, numbers, bias=bias)


def _conv(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _convolution_of(args[1], args[0], output, transposed=False, bias=_has_bias(args))


def _conv_transpose(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _convolution_of(args[1], args[0], output, transposed=True, bias=_has_bias(args))


def _has_bias(args: Args) -> bool:
    """Return True if there is a bias: behind the weight, or behind the kernel's size; some devices' convolutions take none."""
    return any(isinstance(value, torch.Tensor) for value in args[2:4])


def _convolution(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _convolution_of(args[1], args[0], output, transposed=args[6], bias=args[2] is not None)


def _conv_tbc(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Weight ``(kernel, in, out)``."""
    window = args[1].shape[0] * args[1].shape[1]
    return operators.convolution(output.numel(), window, numbers_of(output), bias=True)


def attention(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """Query ``(..., heads, L, E)``, k ``(..., S, E)``, v ``(..., S, V)``."""
    query, key, value = args[0], args[1], args[2]
    width = query.shape[-1]
    rows = query.numel() // width if width else 0
    is_masked = isinstance(kwargs.get("attn_mask", argument(args, 3)), torch.Tensor)
    return operators.attention(
        rows, key.shape[-2], width, value.shape[-1], numbers_of(query), masks=1 if is_masked else 0
    )


def _native_attention(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``_native_multi_head_attention(q, k, v, width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, ...)``."""
    batch, length = args[0].shape[:2]
    return operators.attention_with_projections(batch, length, args[1].shape[1], args[3], args[4])


def _distances(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return operators.distances(output.numel(), args[0].shape[-1])


def _embedding_bag(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """``(weight, indices, offsets, scale_grad, mode, sparse, per_sample_weights, ...)``; mode 1 is a mean."""
    weight, indices = args[0], args[1]
    return operators.embedding_bag(
        indices.numel() * weight.shape[1],
        first_tensor(output).numel(),
        numbers_of(weight),
        weighted=argument(args, 6) is not None,
        mean=argument(args, 4, 0) == 1,
    )


def _by_inner_axis(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A product with a packed or scaled right operand; also the positions of an affine grid times the transposed matrix."""
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
    **_rules(_linear, "linear mkldnn_linear"),
    **_rules(_matmul, "matmul mm bmm mv _sparse_mm _int_mm"),
    **_rules(_by_inner_axis, "_scaled_mm _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu"),
    **_rules(_by_inner_axis, "affine_grid_generator"),
    **_rules(_grouped, "_grouped_mm _scaled_grouped_mm"),
    **_rules(_added_matmul, "addmm baddbmm addmv _addmm_activation _sparse_addmm"),
    **_rules(_sampled, "sparse_sampled_addmm"),
    **_rules(_vecdot, "linalg_vecdot"),
    **_rules(_triangular, "linalg_solve_triangular"),
    **_rules(_addbmm, "addbmm"),
    **_rules(_dot, "dot vdot"),
    **_rules(_addr, "addr"),
    **_rules(_bilinear, "bilinear"),
    **_rules(_trilinear, "_trilinear"),
    **_rules(
        _conv,
        "conv1d conv2d conv3d mkldnn_convolution _slow_conv2d_forward slow_conv3d_forward _conv_depthwise2d "
        "conv_depthwise3d slow_conv_dilated2d slow_conv_dilated3d cudnn_convolution miopen_convolution",
    ),
    **_rules(
        _conv_transpose,
        "conv_transpose1d conv_transpose2d conv_transpose3d slow_conv_transpose2d slow_conv_transpose3d "
        "cudnn_convolution_transpose",
    ),
    **_rules(_convolution, "convolution _convolution convolution_overrideable"),
    **_rules(_conv_tbc, "conv_tbc"),
    **_rules(
        attention,
        "scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable",
    ),
    **_rules(_native_attention, "_native_multi_head_attention"),
    **_rules(_distances, "cdist _cdist_forward _pdist_forward"),
    **_rules(_embedding_bag, "embedding_bag _embedding_bag _embedding_bag_forward_only"),
}


# Quantised operators, which keep their weights packed. An integer multiply-accumulate is one; it is no FLOP.


def _unpacked(packed: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight and the bias of packed parameters."""
    if hasattr(packed, "weight"):
        return packed.weight(), packed.bias()
    weight, bias = packed.unpack()[:2]
    return weight, bias


def _quantized_linear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, packed weight, ...)``."""
    _, bias = _unpacked(args[1])
    return operators.matmul(output.numel(), args[0].shape[-1], INTEGER, bias=bias is not None)


def _quantized_conv(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    weight, bias = _unpacked(args[1])
    return operators.convolution(output.numel(), prod(weight.shape[1:]), INTEGER, bias=bias is not None)


def _quantized_conv_transpose(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    weight, bias = _unpacked(args[1])
    return operators.transposed_convolution(
        args[0].numel(), prod(weight.shape[1:]), output.numel(), INTEGER, bias=bias is not None
    )


def _quantized_embedding_bag(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(packed weight, indices, ...)``: the rows are made floating-point, and added up."""
    return operators.embedding_bag(args[1].numel() * output.shape[-1], output.numel(), REAL, weighted=False, mean=False)


def _quantized_elementwise(ops: int) -> TorchRule:
    def rule(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
        return 0, 0, ops * output.numel()

    return rule


_QUANTIZED: dict[str, TorchRule] = {
    **_rules(
        _quantized_linear, "linear linear_relu linear_dynamic linear_relu_dynamic linear_dynamic_fp16", "quantized"
    ),
    **_rules(_quantized_conv, "conv1d conv2d conv3d conv1d_relu conv2d_relu conv3d_relu", "quantized"),
    **_rules(_quantized_conv, "conv1d_dynamic conv2d_dynamic conv3d_dynamic", "quantized"),
    **_rules(_quantized_conv_transpose, "conv_transpose1d conv_transpose2d conv_transpose3d", "quantized"),
    **_rules(
        _quantized_conv_transpose,
        "conv_transpose1d_dynamic conv_transpose2d_dynamic conv_transpose3d_dynamic",
        "quantized",
    ),
    **_rules(_quantized_embedding_bag, "embedding_bag_byte embedding_bag_4bit", "quantized"),
    **_rules(_quantized_elementwise(0), "embedding_byte embedding_4bit cat", "quantized"),
    **_rules(_quantized_elementwise(1), "add mul add_scalar mul_scalar", "quantized"),
    **_rules(_quantized_elementwise(2), "add_relu mul_relu add_scalar_relu mul_scalar_relu relu6", "quantized"),
    **_rules(_quantized_elementwise(4), "batch_norm batch_norm1d batch_norm2d batch_norm3d leaky_relu", "quantized"),
    **_rules(_quantized_elementwise(5), "hardswish batch_norm2d_relu batch_norm3d_relu", "quantized"),
}


# Recurrent networks


def _network(kind: RecurrentCell) -> TorchRule:
    """Return the rule of a network: ``(input, hx, params, has_biases, ...)``, packed: ``(data, batch_sizes, hx, params, ...)``."""

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        given = args[0]
        is_packed = isinstance(args[3], list | tuple)
        weights, has_biases = (args[3], args[4]) if is_packed else (args[2], args[3])
        steps = given.numel() // given.shape[-1]
        total = NOTHING
        index = 0
        while index < len(weights):  # of each layer and direction: w_ih, w_hh[, b_ih, b_hh][, w_hr]
            w_ih, w_hh = weights[index], weights[index + 1]
            hidden, projected = w_hh.shape[0] // kind.gates, w_hh.shape[1]
            biases = 2 if has_biases else 0
            total = added(total, operators.recurrent(kind, steps, w_ih.shape[1], hidden, projected, biases))
            index += 2 + biases + (projected != hidden)
        return total

    return rule


def _cell(kind: RecurrentCell) -> TorchRule:
    """Return the rule of a cell: ``(input, hx, w_ih, w_hh, b_ih, b_hh)``."""

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        given, w_ih, w_hh = args[0], args[2], args[3]
        hidden = w_hh.shape[1]
        biases = sum(argument(args, position) is not None for position in (4, 5))
        return operators.recurrent(kind, given.numel() // given.shape[-1], w_ih.shape[1], hidden, hidden, biases)

    return rule


def _mkldnn(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """One layer and direction.

    ``(input, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, batch_sizes, mode, hidden, layers, has_biases, ...)``.
    """
    given, w_ih, mode, hidden = args[0], args[1], args[9], args[10]
    kind = {0: RELU, 1: TANH, 2: LSTM, 3: GRU}[mode]
    steps = given.numel() // given.shape[-1]
    return operators.recurrent(kind, steps, w_ih.shape[1], hidden, hidden, 2 if args[12] else 0)


def _mkldnn_backward(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, w_ih, w_hh, b_ih, b_hh, ..., reverse, mode, hidden, layers, has_biases, ...)``: twice the forward's products."""
    forward = _mkldnn((*args[:8], None, *args[14:]), kwargs, output)
    return added(forward, forward)


def _thnn_lstm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """CUDA's fused gates, after the matrix products: ``(input_gates, hidden_gates, cx, input_bias, hidden_bias)``."""
    units = args[2].numel()
    biases = LSTM.gates * sum(argument(args, position) is not None for position in (3, 4))
    return 0, units * (LSTM.flops + biases), units * (LSTM.ops + biases)


def _quantized_network(kind: RecurrentCell) -> TorchRule:
    """Return the rule of ``(input, hx, params, has_biases, layers, dropout, train, bidirectional, ...)``.

    A packed sequence has one argument more before ``hx``.
    """

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        first = 2 if isinstance(args[1], torch.Tensor) and not args[1].is_floating_point() else 1
        hidden = (args[first] if isinstance(args[first], torch.Tensor) else args[first][0]).shape[-1]
        biases = 2 if args[first + 2] else 0
        layers, directions = args[first + 3], 2 if args[first + 6] else 1
        size = args[0].shape[-1]
        steps = directions * args[0].numel() // size
        total = NOTHING
        for given in (size, *(hidden * directions,) * (layers - 1)):
            total = added(total, operators.recurrent(kind, steps, given, hidden, hidden, biases, is_quantized=True))
        return total

    return rule


def _quantized_cell(kind: RecurrentCell) -> TorchRule:
    """Return the rule of ``(input, hx, w_ih, w_hh, b_ih, b_hh)``, where the weights are packed."""

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        hidden = (args[1] if isinstance(args[1], torch.Tensor) else args[1][0]).shape[-1]
        size = args[0].shape[-1]
        steps = args[0].numel() // size
        return operators.recurrent(kind, steps, size, hidden, hidden, 2, is_quantized=True)

    return rule


_RECURRENT: dict[str, TorchRule] = {
    "aten::rnn_tanh": _network(TANH),
    "aten::rnn_relu": _network(RELU),
    "aten::gru": _network(GRU),
    "aten::lstm": _network(LSTM),
    "aten::rnn_tanh_cell": _cell(TANH),
    "aten::rnn_relu_cell": _cell(RELU),
    "aten::gru_cell": _cell(GRU),
    "aten::lstm_cell": _cell(LSTM),
    "aten::mkldnn_rnn_layer": _mkldnn,
    "aten::mkldnn_rnn_layer_backward": _mkldnn_backward,
    "aten::_thnn_fused_lstm_cell": _thnn_lstm,
    "aten::quantized_lstm": _quantized_network(LSTM),
    "aten::quantized_gru": _quantized_network(GRU),
    "quantized::quantized_lstm_cell_dynamic": _quantized_cell(LSTM),
    "quantized::quantized_gru_cell_dynamic": _quantized_cell(GRU),
    "quantized::quantized_rnn_tanh_cell_dynamic": _quantized_cell(TANH),
    "quantized::quantized_rnn_relu_cell_dynamic": _quantized_cell(RELU),
}


# Norms, softmax and pooling


def _batch_norm_of(weight: torch.Tensor | None, given: torch.Tensor, *, training: bool) -> OperatorCost:
    channels = given.shape[1] if given.dim() > 1 else given.numel()
    return operators.batch_norm(given.numel(), channels, affine=weight is not None, training=training)


def _batch_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, weight, bias, mean, variance, training, ...)``."""
    return _batch_norm_of(args[1], args[0], training=bool(args[5]))


def _batch_norm_inference(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return _batch_norm_of(args[1], args[0], training=False)


def _batch_norm_training(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return _batch_norm_of(args[1], args[0], training=True)


def _batch_norm_statistics(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return operators.batch_norm_statistics(args[0].numel(), args[0].shape[1])


def _rows(tensor: torch.Tensor, axes: int) -> int:
    """Return the rows of a tensor whose last axes make a row."""
    length = prod(tensor.shape[tensor.dim() - axes :])
    return tensor.numel() // length if length else 0


def _layer_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, normalized_shape, weight, bias, eps)``."""
    weight, bias = argument(args, 2) is not None, argument(args, 3) is not None
    return operators.normalisation(args[0].numel(), _rows(args[0], len(args[1])), weight=weight, bias=bias)


def _group_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, groups, weight, bias, ...)``."""
    weight, bias = argument(args, 2) is not None, argument(args, 3) is not None
    return operators.normalisation(args[0].numel(), args[0].shape[0] * args[1], weight=weight, bias=bias)


def _native_group_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, weight, bias, N, C, HxW, groups, eps)``."""
    return operators.normalisation(
        args[0].numel(), args[3] * args[6], weight=args[1] is not None, bias=args[2] is not None
    )


def _instance_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, weight, bias, mean, variance, use_input_stats, ...)``: every channel of every sample by itself."""
    given, weight, bias = args[0], args[1], args[2]
    if not args[5]:
        return _batch_norm_of(weight, given, training=False)
    rows = given.shape[0] * given.shape[1]
    return operators.normalisation(given.numel(), rows, weight=weight is not None, bias=bias is not None)


def _rms_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, normalized_shape, weight, eps)``."""
    weight = argument(args, 2) is not None
    return operators.rms_norm(args[0].numel(), _rows(args[0], len(args[1])), weight=weight)


def _softmax(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, axis, ...)``."""
    given = args[0]
    if numbers_of(output) is INTEGER:
        return NOTHING
    return operators.softmax(given.numel(), given.shape[args[1]] if given.dim() else 1)


def _log_softmax(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return operators.log_softmax(args[0].numel())


def _logsumexp(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return operators.logsumexp(args[0].numel(), output.numel())


def _weight_norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(v, g, axis)``."""
    return operators.weight_norm(args[0].numel(), args[1].numel())


def _average_pool(spatial: int) -> TorchRule:
    """Return the rule of ``(input, kernel_size, ...)``."""

    def rule(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
        size = args[1]
        sizes = (size,) if isinstance(size, int) else size
        window = prod(sizes) if len(sizes) == spatial else sizes[0] ** spatial
        is_counted = numbers_of(output) is not INTEGER
        return operators.average_pool(args[0].numel(), output.numel(), window) if is_counted else NOTHING

    return rule


def _adaptive_average_pool(spatial: int) -> TorchRule:
    def rule(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
        given = args[0]
        channels = prod(given.shape[: given.dim() - spatial])
        return operators.adaptive_average_pool(given.shape[-spatial:], output.shape[-spatial:], channels)

    return rule


def _max_pool(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    made = first_tensor(output)
    return NOTHING if numbers_of(made) is INTEGER else operators.max_pool(args[0].numel(), made.numel())


# Reductions, scans, transforms


def reduction(name: str) -> TorchRule:
    """Return the rule of a reduction, by the name of its definition."""

    def rule(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
        tensor = first_tensor(output)
        if numbers_of(tensor) is INTEGER:
            return NOTHING
        parts = _parts(args[0])
        return operators.reduction(name, args[0].numel() * parts, tensor.numel() * parts)

    return rule


def _extreme(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """``max`` and ``min``: of two tensors elementwise, else along axes."""
    if isinstance(argument(args, 1), torch.Tensor):
        return _scan(args, kwargs, output)
    return _SUM(args, kwargs, output)


_SUM = reduction("sum")


def _trace(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return NOTHING if numbers_of(output) is INTEGER else operators.trace(min(args[0].shape))


def _scan(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    tensor = first_tensor(output)
    return NOTHING if numbers_of(tensor) is INTEGER else operators.scan(tensor.numel() * _parts(tensor))


def _renorm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    return operators.renormalised(args[0].numel())


def _embedding_renorm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(weight, indices, ...)``: the rows that are looked up, as if each were another one."""
    return operators.renormalised(args[1].numel() * args[0].shape[-1])


def _fold(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Each element of the blocks is added to its place."""
    return operators.scan(args[0].numel() * _parts(output))


def _scattered(position: int) -> TorchRule:
    """Return the rule of operators that add each element of an argument to its place, or combine them otherwise."""

    def rule(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
        if numbers_of(output) is INTEGER:
            return NOTHING
        return operators.scan(args[position].numel() * _parts(output))

    return rule


def _scatter(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``scatter(self, axis, index, source)`` only moves, unless it is to ``reduce``."""
    reduces = kwargs.get("reduce", argument(args, 4)) is not None
    return operators.scan(args[2].numel()) if reduces and numbers_of(output) is not INTEGER else NOTHING


def _index_put(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(self, indices, values, accumulate)`` only moves, unless it is to accumulate."""
    adds = kwargs.get("accumulate", argument(args, 3, False))
    return operators.scan(args[2].numel()) if adds and numbers_of(output) is not INTEGER else NOTHING


def _fourier(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, axes, ...)``."""
    larger = args[0] if args[0].numel() >= output.numel() else output
    points = prod(larger.shape[axis] for axis in args[1])
    is_real = not (args[0].is_complex() and output.is_complex())
    return operators.fourier(larger.numel(), points, is_real=is_real)


_REDUCTIONS: dict[str, TorchRule] = {
    **_rules(_batch_norm, "batch_norm native_batch_norm _native_batch_norm_legit_functional _batch_norm_impl_index"),
    **_rules(_batch_norm, "_native_batch_norm_legit cudnn_batch_norm"),
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
    **_rules(_SUM, "sum nansum prod amax amin aminmax _aminmax"),
    **_rules(_extreme, "max min"),
    **_rules(reduction("mean"), "mean nanmean"),
    **_rules(_logsumexp, "logsumexp"),
    **_rules(reduction("variance"), "var std var_mean std_mean"),
    **_rules(reduction("norm"), "norm linalg_vector_norm linalg_matrix_norm frobenius_norm native_norm"),
    **_rules(_scan, "cumsum cumprod logcumsumexp cummax cummin"),
    **_rules(_fourier, "_fft_r2c _fft_c2r _fft_c2c"),
    **_rules(_trace, "trace"),
    **_rules(_weight_norm, "_weight_norm_interface"),
    **_rules(_renorm, "renorm"),
    **_rules(_embedding_renorm, "embedding_renorm_"),
    **_rules(_fold, "col2im"),
    **_rules(_scattered(0), "segment_reduce"),
    **_rules(_scattered(3), "scatter_add scatter_reduce index_add index_reduce"),
    **_rules(_scatter, "scatter"),
    **_rules(_index_put, "index_put _index_put_impl_ _unsafe_index_put put"),
}


# Losses


_REDUCED_BY = (None, "mean", "sum")
"""How torch numbers the reductions of losses."""
_MEAN = 1


def _loss(name: str) -> TorchRule:
    """Return the rule of ``(input, target, reduction, ...)``."""

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        return operators.loss(operators.LOSSES[name], args[0].numel(), _REDUCED_BY[argument(args, 2, _MEAN)])

    return rule


def _binary_cross_entropy(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, weight, reduction)``."""
    each = operators.LOSSES["binary_cross_entropy"] + (argument(args, 2) is not None)
    return operators.loss(each, args[0].numel(), _REDUCED_BY[argument(args, 3, _MEAN)])


def _binary_cross_entropy_with_logits(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, weight, pos_weight, reduction)``; a weight of the positive ones, ``((p - 1)·t + 1)·log(...)``, takes 4."""
    weighted, positive = argument(args, 2) is not None, argument(args, 3) is not None
    each = operators.LOSSES["binary_cross_entropy_with_logits"] + weighted + 4 * positive
    return operators.loss(each, args[0].numel(), _REDUCED_BY[argument(args, 4, _MEAN)])


def _negative_log_likelihood(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, weight, reduction, ...)``."""
    each = operators.LOSSES["negative_log_likelihood"] + (argument(args, 2) is not None)
    return operators.loss(each, args[1].numel(), _REDUCED_BY[argument(args, 3, _MEAN)])


def _cross_entropy(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, weight, reduction, ignore_index, label_smoothing)``."""
    given, target = args[0], args[1]
    classes = given.shape[1] if given.dim() > 1 else given.shape[0]
    return operators.cross_entropy(
        given.numel(),
        given.numel() // classes if classes else 0,
        _REDUCED_BY[argument(args, 3, _MEAN)],
        weighted=argument(args, 2) is not None,
        of_probabilities=target.is_floating_point(),
        smoothed=bool(argument(args, 5, 0.0)),
    )


def _multi_margin(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(input, target, p, margin, weight, reduction)``; a power takes one more."""
    each = operators.LOSSES["margin"] + (argument(args, 2, 1) != 1) + (argument(args, 4) is not None)
    reduced_by = _REDUCED_BY[argument(args, 5, _MEAN)]
    return added(operators.loss(each, args[0].numel(), None), operators.loss(1, args[1].numel(), reduced_by))


_LOSSES: dict[str, TorchRule] = {
    "aten::mse_loss": _loss("squared_error"),
    "aten::l1_loss": _loss("absolute_error"),
    "aten::smooth_l1_loss": _loss("huber"),
    "aten::huber_loss": _loss("huber"),
    "aten::soft_margin_loss": _loss("soft_margin"),
    "aten::binary_cross_entropy": _binary_cross_entropy,
    "aten::binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    "aten::nll_loss_forward": _negative_log_likelihood,
    "aten::nll_loss2d_forward": _negative_log_likelihood,
    "aten::cross_entropy_loss": _cross_entropy,
    "aten::multi_margin_loss": _multi_margin,
}


# Operators of a backward


def _convolution_backward(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)``."""
    grad, given, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    forward = (given if transposed else grad).numel() * prod(weight.shape[1:])
    bias = grad.numel() if mask[2] else 0
    return gradients.product_gradients(forward, bool(mask[0]) + bool(mask[1]), bias)


def attention_backward(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, query, key, value, ...)``."""
    query, key, value = args[1], args[2], args[3]
    width = query.shape[-1]
    return gradients.attention_gradients(query.numel() // width, key.shape[-2], width, value.shape[-1])


def _embedding_bag_backward(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, indices, ...)``: the gradient of a bag is added to each of its rows."""
    return gradients.gradient("rows", args[1].numel() * args[0].shape[-1])


def _distances_backward(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, points, ...)``."""
    return gradients.distance_gradients(args[0].numel(), args[1].shape[-1])


def _of_given(name: str) -> TorchRule:
    """Return the rule of a backward that costs so much for each element of its first argument, the gradient of the result."""

    def rule(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
        return gradients.gradient(name, args[0].numel())

    return rule


def _of_result(name: str) -> TorchRule:
    """Return the rule of a backward that costs so much for each element of its first result, the gradient of the input."""

    def rule(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
        tensor = first_tensor(output)
        numbers = numbers_of(tensor)
        return NOTHING if numbers is INTEGER else gradients.gradient(name, tensor.numel() * numbers)

    return rule


def _of_pooled(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    return gradients.gradient("pooling", first_tensor(output).numel())


_BACKWARD: dict[str, TorchRule] = {
    **_rules(_convolution_backward, "convolution_backward convolution_backward_overrideable"),
    **_rules(
        attention_backward,
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward",
    ),
    **_rules(
        _of_given("norm"),
        "native_batch_norm_backward native_layer_norm_backward native_group_norm_backward cudnn_batch_norm_backward "
        "_fused_rms_norm_backward batch_norm_backward",
    ),
    **_rules(
        _of_pooled,
        "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward "
        "adaptive_max_pool3d_backward upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward "
        "grid_sampler_2d_backward grid_sampler_3d_backward reflection_pad2d_backward replication_pad2d_backward "
        "reflection_pad1d_backward replication_pad1d_backward reflection_pad3d_backward replication_pad3d_backward "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward "
        "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward adaptive_avg_pool3d_backward "
        "fractional_max_pool2d_backward fractional_max_pool3d_backward",
    ),
    **_rules(_of_given("softmax"), "_softmax_backward_data _log_softmax_backward_data"),
    **_rules(_embedding_bag_backward, "_embedding_bag_backward"),
    **_rules(_distances_backward, "_cdist_backward _pdist_backward"),
    **_rules(_of_result("weight_norm"), "_weight_norm_interface_backward"),
    **_rules(_of_given("rows"), "embedding_dense_backward embedding_backward _embedding_bag_dense_backward"),
    **_rules(
        _of_result("activation"),
        "threshold_backward sigmoid_backward tanh_backward leaky_relu_backward hardtanh_backward elu_backward "
        "nll_loss_backward nll_loss2d_backward mse_loss_backward native_dropout_backward hardshrink_backward softshrink_backward "
        "rrelu_with_noise_backward smooth_l1_loss_backward huber_loss_backward multi_margin_loss_backward "
        "_prelu_kernel_backward glu_backward log_sigmoid_backward",
    ),
    **_rules(
        _of_result("smooth_activation"),
        "gelu_backward silu_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward "
        "binary_cross_entropy_backward soft_margin_loss_backward logit_backward",
    ),
}


COSTS: dict[str, TorchRule] = {
    **_elementwise_rules(),
    "aten::gelu": _gelu,
    **_rules(_grid_sampler, "grid_sampler grid_sampler_2d grid_sampler_3d"),
    **_REDUCTIONS,
    **_LOSSES,
    **_PRODUCTS,
    **_RECURRENT,
    **_BACKWARD,
    **_QUANTIZED,
}
"""Rule by qualified name, e.g. ``aten::linear``."""


# Operators that do no arithmetic


FREE = frozenset(
    """
    dropout dropout_ feature_dropout alpha_dropout feature_alpha_dropout native_dropout bernoulli bernoulli_
    transpose_ t_ squeeze_ unsqueeze_ as_strided_ swapaxes_ swapdims_ reshape contiguous flatten to type_as _to_copy
    clone copy copy_ resize_ resize_as_ resolve_conj resolve_neg conj _conj _neg_view
    view_as_real view_as_complex real imag complex detach detach_ alias lift lift_fresh lift_fresh_copy
    unsafe_split unsafe_split_with_sizes unsafe_chunk _unsafe_view _reshape_copy _reshape_alias reshape_as
    cat concat concatenate stack hstack vstack dstack repeat repeat_interleave tile roll flip rot90 fliplr flipud
    pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d _pad_circular _pad_enum pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle
    tril triu tril_ triu_ tril_indices triu_indices diag diag_embed diagonal_scatter
    embedding gather index index_select _unsafe_index select_scatter
    slice_scatter masked_fill masked_fill_ masked_scatter masked_scatter_ masked_select take take_along_dim where
    index_fill index_fill_ index_copy index_copy_ fill fill_ zero zero_ set_ max_unpool2d max_unpool3d
    topk sort argsort argmax argmin msort any all isnan isinf isfinite equal allclose isclose nonzero nonzero_static
    bucketize searchsorted one_hot _unique2 unique_consecutive bincount histc
    median nanmedian mode kthvalue count_nonzero multinomial _linalg_check_errors _local_scalar_dense item
    is_nonzero
    empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones
    full
    full_like new_full arange linspace logspace scalar_tensor eye rand randn rand_like randn_like randint
    randint_like
    randperm normal normal_ uniform_ random_ exponential_ cauchy_ log_normal_ geometric_ meshgrid cartesian_prod
    hann_window hamming_window blackman_window bartlett_window kaiser_window
    im2col unfold_backward slice_backward select_backward expand_copy view_copy diagonal_backward
    _pack_padded_sequence _pad_packed_sequence
    quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic dequantize int_repr q_scale q_zero_point
    _nested_tensor_from_mask nested_to_padded_tensor _coalesce coalesce _sparse_coo_tensor_unsafe sparse_coo_tensor
    _sparse_coo_tensor_with_dims_and_tensors
    _to_sparse _to_dense to_dense to_sparse sparse_mask _values values _indices indices
    _assert_async _assert_scalar _assert_tensor_metadata sym_size sym_numel sym_stride sym_storage_offset
    sym_constrain_range sym_constrain_range_for_size get_device is_floating_point is_complex size stride
    record_stream pin_memory is_pinned _pin_memory set_data requires_grad_ retain_grad
    eq ne lt le gt ge logical_and logical_or logical_xor logical_not signbit
    _is_all_true _is_any_true isin is_same_size is_set_to is_coalesced _has_same_storage_numel _nnz
    dense_dim sparse_dim _dimI _dimV qscheme q_per_channel_axis q_per_channel_scales q_per_channel_zero_points
    _functional_assert_async _functional_assert_scalar _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _print _validate_compressed_sparse_indices
    _nested_tensor_size _nested_tensor_strides _nested_tensor_storage_offsets _nested_get_lengths _nested_get_offsets
    _nested_get_ragged_idx _nested_get_min_seqlen _nested_get_max_seqlen _nested_get_jagged_dummy
    _chunk_cat _stack block_diag narrow_copy as_strided_scatter _lazy_clone _unique unique_dim unique_dim_consecutive
    empty_permuted range _foreach_copy _foreach_zero _foreach_clone
    to_padded_tensor _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
    """.split()
)
"""Names within ``aten`` of operators that move, choose, compare or make data."""
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
    view = getattr(torch.ops.aten, name.removesuffix("_copy"), None) if name.endswith("_copy") else None
    return view is not None and any(getattr(view, overload).is_view for overload in view.overloads())
