"""Operators that do no arithmetic: they move, choose, compare or make data."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

_FREE = frozenset(
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
_NAMESPACES = frozenset({"prim", "profiler", "c10d_functional_trace"})


def does_no_arithmetic(func: OpOverload) -> bool:
    """True if the operator overload is a view, or one of the listed operators or their variants: in place, or a view's copy."""
    namespace, _, name = func._schema.name.partition("::")
    if func.is_view or namespace in _NAMESPACES:
        return True
    if namespace != "aten":
        return False
    return name in _FREE or name.removesuffix("_") in _FREE or f"{name}_" in _FREE or _copies_a_view(name)


def _copies_a_view(name: str) -> bool:
    """True if torch uses the operator in place of a view where views are not allowed, e.g. ``slice_copy``."""
    view = getattr(torch.ops.aten, name.removesuffix("_copy"), None) if name.endswith("_copy") else None
    return view is not None and any(getattr(view, overload).is_view for overload in view.overloads())


FREE = _FREE
"""Names within ``aten``, for the test that nothing is both free and counted."""
