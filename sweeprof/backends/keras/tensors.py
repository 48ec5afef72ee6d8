"""Descriptions of tensors that do not hold the tensors: shapes, data types, bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import keras

from sweeprof.measuring.inputs import TensorSpec
from sweeprof.results.layers import Shapes


@dataclass(frozen=True, slots=True)
class SymbolicTensors:
    """Shapes and data types of some tensors."""

    shapes: Shapes = ()
    dtypes: tuple[str, ...] = ()

    @property
    def elements(self) -> int:
        """The number of elements of all tensors together."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def nbytes(self) -> int | None:
        """None where a data type has no size, as strings have none."""
        total = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = itemsize(dtype)
            if size is None:
                return None
            total += prod(shape) * size
        return total


@lru_cache(maxsize=64)
def itemsize(dtype: str) -> int | None:
    """Bytes of an element, ``bfloat16`` and ``float8_e4m3fn`` among them; None for strings."""
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return 1 if dtype == "bool" else int(bits[1]) // 8 if bits else None


def tensors_in(tree: Any) -> list[Any]:
    """Every tensor, symbolic or not, in nested containers, in their order."""
    return [leaf for leaf in keras.tree.flatten(tree) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]


def described(tree: Any) -> SymbolicTensors:
    """Return a description of every tensor in ``tree``."""
    found = tensors_in(tree)
    return SymbolicTensors(tuple(shape_of(tensor) for tensor in found), tuple(dtype_of(tensor) for tensor in found))


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Sizes; 0 for one that is not known before the values are, as of ``nonzero``."""
    shape = tensor.shape
    if getattr(shape, "rank", ()) is None:  # a tensor of TensorFlow without even a rank
        return ()
    return tuple(0 if size is None else int(size) for size in shape)


def dtype_of(tensor: Any) -> str:
    """Return Keras's name of the data type, e.g. ``float32``."""
    return str(keras.backend.standardize_dtype(tensor.dtype))


def symbolic(value: Any) -> Any:
    """A symbolic tensor for a tensor, an array or a :class:`~sweeprof.measuring.inputs.TensorSpec`; anything else as it is."""
    if isinstance(value, keras.KerasTensor) or not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return value
    return keras.KerasTensor(shape_of(value), dtype_of(value))


def channels_last(value: Any, axis: int | None) -> Any:
    """The shape of a tensor with its channels behind everything else; anything else as it is.

    Args:
        axis: where the channels are; None: where the model expects them.
    """
    if axis is None or not (hasattr(value, "shape") and hasattr(value, "dtype")) or len(value.shape) <= max(axis, 1):
        return value
    shape = list(shape_of(value))
    shape.append(shape.pop(axis))
    return TensorSpec(tuple(shape), dtype_of(value))


def in_precision(value: Any, dtype: str | None) -> Any:
    """The shape of a floating-point tensor in another data type; anything else, and with None everything, as it is."""
    if dtype is None or not (hasattr(value, "shape") and hasattr(value, "dtype")) or "float" not in dtype_of(value):
        return value
    return TensorSpec(shape_of(value), dtype)
