"""Descriptions of tensors that do not hold the tensors: shapes, data types, bytes, and how many bytes are alive at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import keras

from sweeprof.measuring.inputs import TensorSpec
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import Liveness, Shapes


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


def tensors_in(tree: object) -> list[keras.KerasTensor]:
    """Every tensor, symbolic or not, in nested containers, in their order."""
    return [leaf for leaf in keras.tree.flatten(tree) if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]


def described(tree: object) -> SymbolicTensors:
    """Return a description of every tensor in ``tree``."""
    found = tensors_in(tree)
    return SymbolicTensors(tuple(shape_of(tensor) for tensor in found), tuple(dtype_of(tensor) for tensor in found))


def shape_of(tensor: keras.KerasTensor) -> tuple[int, ...]:
    """Sizes; 0 for one that is not known before the values are, as of ``nonzero``."""
    shape = tensor.shape
    if getattr(shape, "rank", ()) is None:  # a tensor of TensorFlow without even a rank
        return ()
    return tuple(0 if size is None else int(size) for size in shape)


def dtype_of(tensor: keras.KerasTensor) -> str:
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


class TensorLifetimes:
    """Each tensor lives from the operation that makes it to the last one that uses it, as a compiled graph frees it."""

    def __init__(self) -> None:
        self._storage: dict[int, int] = {}
        """Storage by the identity of a tensor."""
        self._held: list[keras.KerasTensor] = []
        """The tensors, which hold no memory, so that their identities stay theirs."""
        self._bytes: list[int] = []
        self._begin: list[int] = []
        self._end: list[int] = []
        self._where: list[str] = []
        """By event: the path of the layer that was running."""

    def given(self, tensors: list[keras.KerasTensor]) -> None:
        """The model's inputs, which are there anyhow."""
        for tensor in tensors:
            self._place(tensor, 0)

    def ran(
        self,
        path: str,
        used: list[keras.KerasTensor],
        made: list[keras.KerasTensor],
        in_place: keras.KerasTensor | None = None,
    ) -> None:
        """Note an operation.

        Args:
            in_place: one of ``used`` in whose memory the result is; None: it has memory of its own.
        """
        self._where.append(path)
        now = len(self._where) - 1
        for tensor in used:
            self._end[self._of(tensor)] = now
        if in_place is not None:
            shared = self._of(in_place)
            for tensor in made:
                self._held.append(tensor)
                self._storage.setdefault(id(tensor), shared)
        for tensor in made:
            self._end[self._of(tensor)] = now

    def result(self, inputs: list[keras.KerasTensor], outputs: list[keras.KerasTensor]) -> Liveness:
        """The peak, without the inputs; the outputs live to the end."""
        for tensor in outputs:
            self._end[self._of(tensor)] = len(self._where)
        changes = [0] * (len(self._where) + 2)
        for size, begin, end in zip(self._bytes, self._begin, self._end, strict=True):
            changes[begin] += size
            changes[end + 1] -= size
        live = peak = 0
        peak_at = ROOT
        for path, change in zip(self._where, changes, strict=False):
            live += change
            if live > peak:
                peak, peak_at = live, path
        return Liveness(peak, peak_at, described(inputs).nbytes or 0)

    def mark(self) -> int:
        """Return the current position of the trace, for :meth:`forget`."""
        return len(self._where)

    def forget(self, mark: int) -> None:
        """Drop what was noted since."""
        del self._where[mark:]
        for storage, begin in enumerate(self._begin):
            self._end[storage] = min(self._end[storage], max(mark - 1, 0))
            if begin >= mark:
                self._bytes[storage] = self._begin[storage] = self._end[storage] = 0

    def _of(self, tensor: keras.KerasTensor) -> int:
        """The storage of a tensor; one that no operation made has been made just now, as by a cast on the way into a layer."""
        found = self._storage.get(id(tensor))
        return self._place(tensor, described(tensor).nbytes or 0) if found is None else found

    def _place(self, tensor: keras.KerasTensor, nbytes: int) -> int:
        now = max(len(self._where) - 1, 0)
        self._held.append(tensor)
        self._storage[id(tensor)] = len(self._bytes)
        self._bytes.append(nbytes)
        self._begin.append(now)
        self._end.append(now)
        return len(self._bytes) - 1
