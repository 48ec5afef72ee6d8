"""Matrix products, convolutions and attention; quantised products, which keep their weights packed.

An integer multiply-accumulate is one; it is no FLOP.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from sweeprof.backends.torch.costs.rule import (
    TensorOrTensors,
    TorchRule,
    argument,
    arithmetic,
    first_tensor,
    parts,
    product,
)
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost

# every rule takes an operator's arguments, keyword arguments and result


_COMPLEX_PRODUCT = 6
"""Four multiplications and two additions."""


def _linear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``y = x Wᵀ + b``."""
    outputs = output.numel()
    return product(outputs * args[0].shape[-1], outputs, output, bias=argument(args, 2) is not None)


def _matmul(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _product_of(args[0], args[1], output, bias=False)


def _added_matmul(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``addmm``, ``baddbmm``, ``addmv``: what is added counts as a bias; the scalars alpha and beta are left out."""
    return _product_of(args[1], args[2], output, bias=_is_added(kwargs))


def _is_added(kwargs: Kwargs) -> bool:
    """True if there is an addend: with a beta of zero torch does not even read it."""
    return bool(kwargs.get("beta", 1) != 0)


def _product_of(left: torch.Tensor, right: torch.Tensor, output: torch.Tensor, *, bias: bool) -> OperatorCost:
    """Each output element is a sum over the last axis of the left operand, whatever is broadcast.

    Of a sparse operand only the stored elements are multiplied: by each column of a right one, by each row of a left one.
    """
    outputs = output.numel()
    if left.layout != torch.strided:
        macs = _stored(left) * (right.shape[-1] if right.dim() > 1 else 1)
    elif right.layout != torch.strided:
        macs = _stored(right) * (left.shape[-2] if left.dim() > 1 else 1)
    else:
        macs = outputs * left.shape[-1]
    return product(macs, min(outputs, macs), output, bias=bias)


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
    stored = _stored(output)
    return product(stored * args[1].shape[-1], stored, args[1], bias=_is_added(kwargs))


def _addbmm(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Sums a batch of products: each output element is a sum over the batch and the inner axis."""
    outputs = output.numel()
    return product(outputs * args[1].shape[-1] * args[1].shape[0], outputs, output, bias=_is_added(kwargs))


def _dot(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return product(args[0].numel(), 1, output, bias=False)


def _vecdot(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A sum of products along one axis for each output element."""
    length = args[0].shape[kwargs.get("dim", -1)]
    return product(output.numel() * length, output.numel(), output, bias=False)


def _triangular(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Substitution in ``A X = B`` or ``X A = B`` for A ``(n, n)``: row i is B minus the products with the i rows before it.

    That is n (n - 1) / 2 multiply-accumulates for each column, and a division by the diagonal for each element unless it is one.
    """
    size = args[0].shape[-1]
    macs = output.numel() * max(0, size - 1) // 2
    division = _COMPLEX_PRODUCT if output.is_complex() else 1
    divisions = 0 if kwargs.get("unitriangular", False) else output.numel() * division
    _, work, _ = product(macs, 0, output, bias=False)
    return macs, work + divisions, work + divisions


def _outer(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``addr``: an outer product, one multiplication for each element, and its addition to what is there.

    Nothing is accumulated, so there is no MAC: ``outer`` and an ``einsum`` that sums over nothing reach torch as ``mul``, and
    ``torch.utils.flop_counter`` has no formula for any of them.
    """
    multiplication = _COMPLEX_PRODUCT if output.is_complex() else 1
    work = (multiplication + (parts(output) if _is_added(kwargs) else 0)) * output.numel()
    return 0, work if arithmetic(output) else 0, work


def _bilinear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``yₖ = x₁ᵀ Aₖ x₂ + bₖ``, contracted over x₁ first: I₁·I₂ and then I₂ products for each output element."""
    outputs, weight = output.numel(), args[2]
    sums = outputs * weight.shape[2] + outputs
    macs, flops, ops = product(outputs * weight.shape[2] * (weight.shape[1] + 1), sums, output, bias=False)
    biases = outputs if argument(args, 3) is not None else 0
    return macs, flops + biases * parts(output), ops + biases * parts(output)


def _convolution_of(
    weight: torch.Tensor, given: torch.Tensor, output: torch.Tensor, *, transposed: bool, bias: bool
) -> OperatorCost:
    """Each output element is a sum over the kernel and its group's input channels.

    A transposed convolution instead spreads each input element over the kernel and its group's output channels. Both are the
    product of all but the first axis of the weight ``(out, in/groups, *kernel)`` or ``(in, out/groups, *kernel)``. Products with
    padding are counted, as is usual.
    """
    each = prod(weight.shape[1:])
    positions = given.numel() if transposed else output.numel()
    return product(positions * each, output.numel(), output, bias=bias)


def _conv(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _convolution_of(args[1], args[0], output, transposed=False, bias=_has_bias(args))


def _conv_transpose(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _convolution_of(args[1], args[0], output, transposed=True, bias=_has_bias(args))


def _has_bias(args: Args) -> bool:
    """Behind the weight, or behind the kernel's size; some devices' convolutions take none."""
    return any(isinstance(value, torch.Tensor) for value in args[2:4])


def _convolution(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    return _convolution_of(args[1], args[0], output, transposed=args[6], bias=args[2] is not None)


def _conv_tbc(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Weight ``(kernel, in, out)``."""
    outputs = output.numel()
    return product(outputs * args[1].shape[0] * args[1].shape[1], outputs, output, bias=True)


def attention(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``softmax(q kᵀ / √d + mask) v`` for q ``(..., heads, L, E)``, k ``(..., S, E)``, v ``(..., S, V)``.

    With grouped queries k and v have fewer heads, and each is used by several of q's: the heads of q count. A causal mask saves
    nothing here: what is masked is computed by the textbook's formula, and skipped only by some kernels.
    """
    query, key, value = args[0], args[1], args[2]
    rows, keys = query.numel() // query.shape[-1] if query.shape[-1] else 0, key.shape[-2]
    scores = rows * keys
    width = value.shape[-1]
    macs = scores * (query.shape[-1] + width)
    masked = scores if isinstance(kwargs.get("attn_mask", argument(args, 3)), torch.Tensor) else 0
    sums = scores + rows * width
    _, flops, ops = product(macs, sums, query, bias=False)
    softmax = rows * max(0, 4 * keys - 1)
    return macs, flops + 2 * scores + masked, ops + scores + masked + softmax


def _native_attention(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``_native_multi_head_attention(q, k, v, width, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, ...)``."""
    query, key, width, heads = args[0], args[1], args[3], args[4]
    batch, length, source = query.shape[0], query.shape[1], key.shape[1]
    projected = batch * (2 * length + 2 * source) * width
    scores = batch * heads * length * source
    macs = projected * width + 2 * batch * length * source * width
    return macs, 2 * macs + projected + 2 * scores, 2 * macs - batch * length * width + 4 * scores


def _cdist(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``cdist``, ``pdist``: a subtraction, a power and an addition for each coordinate of each pair; no multiply-accumulate."""
    work = 3 * output.numel() * args[0].shape[-1]
    return 0, work, work


def _embedding_bag(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """Sums the rows of each bag; with weights per sample each row is multiplied first, which makes multiply-accumulates."""
    weight, indices = args[0], args[1]
    rows = indices.numel() * weight.shape[1]
    outputs = first_tensor(output).numel()
    mode = argument(args, 4, 0)
    if argument(args, 6) is not None:
        return product(rows, outputs, weight, bias=False)
    mean = outputs if mode == 1 else 0
    return 0, rows + mean, max(0, rows - outputs) + mean


def _trilinear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Return the cost of ``bilinear``: ``x₁ (N, 1, I₁, 1) · A (1, O, I₁, I₂) · x₂ (N, 1, 1, I₂)``, summed over both inputs."""
    outputs, weight = output.numel(), args[1]
    inner = prod(weight.shape[-2:])
    return product(outputs * (inner + weight.shape[-1]), outputs * (weight.shape[-1] + 1), output, bias=False)


def _by_inner_axis(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A product with a packed or scaled right operand."""
    outputs = output.numel()
    return product(outputs * args[0].shape[-1], outputs, output, bias=False)


def _grouped(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """A product for each group, whose rows, columns or inner axis the offsets divide up among the groups.

    Where both operands are matrices, the groups share the inner axis: a result for each of them, all together one product.
    """
    left, right = args[0], args[1]
    outputs = output.numel()
    if left.dim() == right.dim() == 2:
        return product(left.numel() * right.shape[1], outputs, output, bias=False)
    return product(outputs * left.shape[-1], outputs, output, bias=False)


def _affine_grid(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """Every position of the grid, with a one behind, times the transposed matrix."""
    outputs = output.numel()
    return product(outputs * args[0].shape[-1], outputs, output, bias=False)


def _rules(function: TorchRule, names: str) -> dict[str, TorchRule]:
    return {f"aten::{name}": function for name in names.split()}


RULES: dict[str, TorchRule] = {
    **_rules(_linear, "linear mkldnn_linear"),
    **_rules(_matmul, "matmul mm bmm mv _sparse_mm _int_mm"),
    **_rules(_by_inner_axis, "_scaled_mm _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu"),
    **_rules(_grouped, "_grouped_mm _scaled_grouped_mm"),
    **_rules(_added_matmul, "addmm baddbmm addmv _addmm_activation _sparse_addmm"),
    **_rules(_sampled, "sparse_sampled_addmm"),
    **_rules(_vecdot, "linalg_vecdot"),
    **_rules(_triangular, "linalg_solve_triangular"),
    **_rules(_affine_grid, "affine_grid_generator"),
    **_rules(_addbmm, "addbmm"),
    **_rules(_dot, "dot vdot"),
    **_rules(_outer, "addr"),
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
    **_rules(_cdist, "cdist _cdist_forward _pdist_forward"),
    **_rules(_embedding_bag, "embedding_bag _embedding_bag _embedding_bag_forward_only"),
}


# every rule takes an operator's arguments, keyword arguments and result


def _quantized_linear(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(input, packed weight, ...)``."""
    macs = output.numel() * args[0].shape[-1]
    return macs, 0, _quantized_ops(macs, output, args[1])


def _quantized_conv(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    weight = args[1].weight() if hasattr(args[1], "weight") else args[1].unpack()[0]
    macs = output.numel() * prod(weight.shape[1:])
    return macs, 0, _quantized_ops(macs, output, args[1])


def _quantized_conv_transpose(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """From each input element, as in :mod:`products`; the weight is ``(in, out/groups, *kernel)``."""
    weight = args[1].weight() if hasattr(args[1], "weight") else args[1].unpack()[0]
    macs = args[0].numel() * prod(weight.shape[1:])
    return macs, 0, _quantized_ops(macs, output, args[1])


def _quantized_embedding_bag(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
    """``(packed weight, indices, ...)``: the rows are made floating-point, and added up."""
    rows = args[1].numel() * output.shape[-1]
    return 0, rows, max(0, rows - output.numel())


def _quantized_elementwise(ops: int) -> TorchRule:
    def rule(args: Args, kwargs: Kwargs, output: torch.Tensor) -> OperatorCost:
        return 0, 0, ops * output.numel()

    return rule


def _quantized_ops(macs: int, output: torch.Tensor, packed: Any) -> int:
    bias = packed.bias() if hasattr(packed, "bias") else packed.unpack()[1]
    return int(2 * macs - (0 if bias is not None else output.numel()))


def _quantized_rules(function: TorchRule, names: str) -> dict[str, TorchRule]:
    return {f"quantized::{name}": function for name in names.split()}


QUANTIZED_RULES: dict[str, TorchRule] = {
    **_quantized_rules(_quantized_linear, "linear linear_relu linear_dynamic linear_relu_dynamic linear_dynamic_fp16"),
    **_quantized_rules(
        _quantized_conv,
        "conv1d conv2d conv3d conv1d_relu conv2d_relu conv3d_relu conv1d_dynamic conv2d_dynamic conv3d_dynamic",
    ),
    **_quantized_rules(_quantized_conv_transpose, "conv_transpose1d conv_transpose2d conv_transpose3d"),
    **_quantized_rules(
        _quantized_conv_transpose, "conv_transpose1d_dynamic conv_transpose2d_dynamic conv_transpose3d_dynamic"
    ),
    **_quantized_rules(_quantized_embedding_bag, "embedding_bag_byte embedding_bag_4bit"),
    **_quantized_rules(_quantized_elementwise(0), "embedding_byte embedding_4bit cat"),
    **_quantized_rules(_quantized_elementwise(1), "add mul add_scalar mul_scalar"),
    **_quantized_rules(_quantized_elementwise(2), "add_relu mul_relu add_scalar_relu mul_scalar_relu relu6"),
    **_quantized_rules(_quantized_elementwise(4), "batch_norm batch_norm1d batch_norm2d batch_norm3d leaky_relu"),
    **_quantized_rules(_quantized_elementwise(5), "hardswish batch_norm2d_relu batch_norm3d_relu"),
}
