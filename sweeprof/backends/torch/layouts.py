"""Memory layouts of new tensors on the meta device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

META = torch.device("meta")


def new(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor on meta."""
    return torch.empty_strided(shape, _strides(tuple(shape)), dtype=dtype, device=META)


@lru_cache(maxsize=4096)  # a model has few shapes and many tensors
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a new tensor."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size if size > 1 else 1
    return tuple(reversed(strides))


def _channels_last(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor ``(N, C, H, W)`` on meta whose channels are side by side in memory."""
    samples, channels, height, width = shape
    return new((samples, height, width, channels), dtype).permute(0, 3, 1, 2)


def like(given: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """A tensor of ``shape`` in the layout of ``given``, contiguous or channels-last; None for any other."""
    if given.dim() == 4 and _suggests_channels_last(given):
        return _channels_last(shape, given.dtype) if given.is_contiguous(memory_format=torch.channels_last) else None
    return new(shape, given.dtype) if is_new(given) else None


def is_new(tensor: torch.Tensor) -> bool:
    """True if the strides are those of a new tensor: torch treats others as another layout even where an axis has length one."""
    return tensor.stride() == _strides(tensor.shape)


def _suggests_channels_last(given: torch.Tensor) -> bool:
    """True if torch reads channels-last from the strides; with a single sample, channel or pixel they fit both layouts."""
    strides, shape = given.stride(), given.shape
    least = strides[1]
    if not least:
        return False
    for axis in (1, 3, 2, 0):
        if not shape[axis] or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * shape[axis] if shape[axis] > 1 else strides[axis]
    return True


def packed_strides(tensor: torch.Tensor) -> Sequence[int] | None:
    """Strides of a new tensor with the axes in the order that they have in memory; None where elements may overlap.

    That is the layout that torch gives to what has a result for each element of ``tensor``.
    """
    if tensor.is_contiguous():
        return tensor.stride()
    strides = list(tensor.stride())
    expected = least = 1
    for stride, size, axis in sorted(zip(tensor.stride(), tensor.shape, range(tensor.dim()), strict=True)):
        if size > 1:
            if stride < least:
                return None
            least = stride * size
            strides[axis] = expected
            expected *= size
    return strides


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the elements lie in memory without gaps or overlaps, in any order of the axes."""
    return tensor.is_contiguous() or packed_strides(tensor) == list(tensor.stride())


def is_plain(tensor: Any) -> bool:
    """True if the value is a contiguous meta tensor."""
    return isinstance(tensor, torch.Tensor) and tensor.is_meta and tensor.is_contiguous()
