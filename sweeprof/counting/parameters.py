"""From single variables to the parameters and buffers of a layer."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from sweeprof.counting.formulas import ParamSize
from sweeprof.results.layers import Weights

NO_WEIGHTS = Weights()


class Variable(NamedTuple):
    """A parameter or a buffer."""

    key: Hashable
    """The same for what is one in memory."""
    elements: int
    itemsize: float
    """Bytes of an element; a fraction where a layer declares that it stores less."""
    dtype: str
    trainable: bool
    is_buffer: bool
    pruned: int | None = 0
    """Elements that a pruning mask sets to zero; None where the mask has no values."""


def summed(variables: Collection[Variable]) -> Weights:
    """The weights of variables, each of which counts."""
    if not variables:
        return NO_WEIGHTS
    params = trainable = buffers = 0
    pruned: int | None = 0
    params_bytes: float = 0
    buffers_bytes: float = 0
    dtypes: dict[str, int] = {}
    for _, elements, itemsize, dtype, is_trainable, is_buffer, masked in variables:
        pruned = _both(pruned, masked)
        if is_buffer:
            buffers += elements
            buffers_bytes += elements * itemsize
        else:
            params += elements
            trainable += elements if is_trainable else 0
            params_bytes += elements * itemsize
            dtypes[dtype] = dtypes.get(dtype, 0) + elements
    return Weights(params, trainable, whole(params_bytes), buffers, whole(buffers_bytes), dtypes, pruned)


def added(parts: Sequence[Weights]) -> Weights:
    """The weights of parts that share none."""
    parts = [part for part in parts if part is not NO_WEIGHTS]
    if len(parts) < 2:
        return parts[0] if parts else NO_WEIGHTS
    params = trainable = buffers = 0
    pruned: int | None = 0
    params_bytes: float = 0
    buffers_bytes: float = 0
    dtypes: dict[str, int] = {}
    for part in parts:
        params += part.params
        trainable += part.trainable
        params_bytes += part.params_bytes
        buffers += part.buffers
        buffers_bytes += part.buffers_bytes
        pruned = _both(pruned, part.pruned)
        for dtype, elements in part.dtypes.items():
            dtypes[dtype] = dtypes.get(dtype, 0) + elements
    return Weights(params, trainable, whole(params_bytes), buffers, whole(buffers_bytes), dtypes, pruned)


def _both(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def whole(size: float) -> int | float:
    """Return the size as an integer unless it has half bytes; bytes per element are fractions, whose products are not exact."""
    if isinstance(size, int):
        return size
    nearest = round(size)
    return nearest if math.isclose(size, nearest, rel_tol=1e-9) else size


def declared_size(sizes: ParamSize, name: str, usual: float, is_buffer: bool) -> float:
    """Return the bytes per element of a parameter or buffer: as its module declares, else the usual ones.

    A size of all parameters holds for no buffer.
    """
    if isinstance(sizes, Mapping):
        return sizes.get(name, usual)
    return usual if is_buffer else sizes
