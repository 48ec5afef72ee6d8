"""Operators of a backward. Matrix products in a backward are matrix products; these are the others."""

# every rule takes an operator's arguments, keyword arguments and result
from __future__ import annotations

from math import prod

from sweeprof.backends.torch.costs.pointwise import pointwise
from sweeprof.backends.torch.costs.rule import TensorOrTensors, TorchRule, first_tensor
from sweeprof.counting.formulas import Args, Kwargs, OperatorCost


def _convolution(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask)``.

    The gradient of the input and that of the weight each take as many products as the forward, groups or not; that of the bias
    is a sum of the output's gradient.
    """
    grad, given, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    forward = (given if transposed else grad).numel() * prod(weight.shape[1:])
    macs = forward * (bool(mask[0]) + bool(mask[1]))
    bias = grad.numel() if mask[2] else 0
    return macs, 2 * macs + bias, 2 * macs + bias


def attention(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, query, key, value, ...)``: four products, for the gradients of v, of the scores, of q and of k.

    What a fused kernel computes again of its forward is not counted, as it is not in any other recomputation.
    """
    query, key, value = args[1], args[2], args[3]
    scores = query.numel() // query.shape[-1] * key.shape[-2]
    macs = 2 * scores * (query.shape[-1] + value.shape[-1])
    return macs, 2 * macs + 4 * scores, 2 * macs + 4 * scores


def _norm(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """Two sums over the gradient and a combination of three terms, and the gradients of weight and bias: 8 an element."""
    work = 8 * args[0].numel()
    return 0, work, work


def _batch_norm_inference(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    work = 4 * args[0].numel()
    return 0, work, work


def _pool(args: Args, kwargs: Kwargs, output: TensorOrTensors) -> OperatorCost:
    """Every element of the input's gradient is written or added to once."""
    elements = first_tensor(output).numel()
    return 0, elements, elements


def _softmax(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """Multiply, sum, subtract, multiply."""
    return 0, 4 * args[0].numel(), 4 * args[0].numel()


def _embedding(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """Each row of the gradient is added to its place."""
    return 0, args[0].numel(), args[0].numel()


def _embedding_bag(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, indices, ...)``: the gradient of a bag is added to each of its rows."""
    work = args[1].numel() * args[0].shape[-1]
    return 0, work, work


def _distances(args: Args, kwargs: Kwargs, output: object) -> OperatorCost:
    """``(grad, points, ...)``: for each coordinate of each pair a difference, a product and an addition."""
    work = 3 * args[0].numel() * args[1].shape[-1]
    return 0, work, work


def _rules(function: TorchRule, names: str) -> dict[str, TorchRule]:
    return {f"aten::{name}": function for name in names.split()}


RULES: dict[str, TorchRule] = {
    **_rules(_convolution, "convolution_backward convolution_backward_overrideable"),
    **_rules(
        attention,
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward",
    ),
    **_rules(
        _norm,
        "native_batch_norm_backward native_layer_norm_backward native_group_norm_backward cudnn_batch_norm_backward "
        "_fused_rms_norm_backward batch_norm_backward",
    ),
    **_rules(
        _pool,
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
    **_rules(_softmax, "_softmax_backward_data _log_softmax_backward_data"),
    **_rules(_embedding_bag, "_embedding_bag_backward"),
    **_rules(_distances, "_cdist_backward _pdist_backward"),
    **_rules(pointwise(5, 5), "_weight_norm_interface_backward"),
    **_rules(_embedding, "embedding_dense_backward embedding_backward _embedding_bag_dense_backward"),
    **_rules(
        pointwise(2, 2),
        "threshold_backward sigmoid_backward tanh_backward leaky_relu_backward hardtanh_backward elu_backward "
        "nll_loss_backward nll_loss2d_backward mse_loss_backward native_dropout_backward hardshrink_backward softshrink_backward "
        "rrelu_with_noise_backward smooth_l1_loss_backward huber_loss_backward multi_margin_loss_backward",
    ),
    **_rules(
        pointwise(6, 6),
        "gelu_backward silu_backward hardswish_backward hardsigmoid_backward softplus_backward mish_backward "
        "binary_cross_entropy_backward soft_margin_loss_backward logit_backward",
    ),
    **_rules(pointwise(2, 2), "_prelu_kernel_backward glu_backward log_sigmoid_backward"),
}
