"""Operators that do no multiply-accumulate: MACs are those of matrix products, convolutions and attention."""

from __future__ import annotations

from typing import Any

import torch

_FREE = frozenset(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d
    max_pool2d_with_indices max_pool3d_with_indices _softmax _log_softmax _safe_softmax unsafe_split
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm native_layer_norm
    native_group_norm _fused_rms_norm batch_norm_elemt
    mean sum prod amax amin max min argmax argmin any all var var_mean std norm linalg_vector_norm cumsum cumprod logsumexp
    embedding gather index index_select scatter take topk sort where masked_fill nonzero bucketize one_hot
    cat stack repeat flip roll constant_pad_nd reflection_pad1d reflection_pad2d replication_pad2d pixel_shuffle tril triu
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d
    empty empty_like empty_strided new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones full full_like
    new_full arange linspace scalar_tensor eye rand randn rand_like randn_like randint bernoulli native_dropout
    clone copy copy_ _to_copy contiguous resize_ fill zero_ zero fill_ detach lift_fresh _local_scalar_dense
    normal_ uniform_ random_ bernoulli_ index_put index_put_ _unsafe_index _unsafe_view _reshape_copy channel_shuffle
    """.split()
)


def does_no_macs(func: Any) -> bool:
    """Whether the operator overload is pointwise, a view, or one of the listed reductions, norms, poolings and copies."""
    return bool(torch.Tag.pointwise in func.tags or func.is_view or func._overloadpacket.__name__ in _FREE)
