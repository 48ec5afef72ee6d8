"""Operations that do no arithmetic: they move, choose, compare or make data."""

from __future__ import annotations

VIEWS = frozenset("reshape squeeze expand_dims ravel view stop_gradient convert_to_tensor".split())
"""Those that return what they were given under another shape; a dense tensor need not be copied for it."""
FREE = VIEWS | frozenset(
    """
    cast slice slice_update scatter scatter_update unstack switch top_k in_top_k extract_sequences view_as_complex view_as_real
    one_hot multi_hot unfold depth_to_space space_to_depth
    rearrange extract_patches pad_images crop_images
    rot90 all all_close any append arange argmax argmin argsort array bincount bitwise_and bitwise_invert bitwise_not
    bitwise_or bitwise_xor bitwise_left_shift left_shift bitwise_right_shift right_shift broadcast_to concatenate conjugate conj
    copy count_nonzero diag diagflat diagonal digitize dstack empty_like equal flip fliplr flipud full full_like gcd get_item
    greater greater_equal hstack hsplit imag isclose isfinite is_in isinf isnan isneginf isposinf isreal lcm less less_equal
    linspace logical_and logical_not logical_or logical_xor meshgrid median moveaxis nanargmax nanargmin nanmedian nan_to_num
    ndim nonzero not_equal ones_like zeros_like pad real repeat roll search_sorted signbit size sort split stack
    swapaxes take take_along_axis tile transpose tril triu unravel_index vstack vsplit where select argpartition histogram
    array_split unique dsplit
    """.split()
)
