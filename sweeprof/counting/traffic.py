"""The bytes that an operator reads and writes at least, defined once for all frameworks.

It reads each of its operands once and writes each of its results once: the traffic that no kernel can avoid, as in a roofline
(Williams, Waterman and Patterson, 2009). A cache that is too small, or a workspace, adds to it; fused operators save some of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import prod
from typing import NamedTuple


class Traffic(Enum):
    """How an operator accesses memory; the value is the definition."""

    EVERYTHING = "reads every operand once, and writes every result once"
    VIEW = "returns its operand under another shape, and moves nothing"
    ROWS = "gathers: reads the indices and as many elements as it returns, and writes these"
    OVERWRITE = "writes its result without reading what was there; reads its other operands"


class SizedTensor(NamedTuple):
    """The shape of a tensor and the bytes of one element."""

    shape: Sequence[int]
    itemsize: float

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return round(prod(self.shape) * self.itemsize)


def bytes_moved(traffic: Traffic, operands: Sequence[SizedTensor], results: Sequence[SizedTensor]) -> tuple[int, int]:
    """Return the bytes that an operator reads, and those that it writes.

    Args:
        traffic: how it accesses memory.
        operands: its tensors in their order; of a gather the table first, of an overwriting operator the target first.
        results: the tensors that it returns or writes in place.
    """
    if traffic is Traffic.VIEW:
        return 0, 0
    written = sum(result.nbytes for result in results)
    read = sum(operand.nbytes for operand in operands[1:])
    if traffic is Traffic.ROWS:
        read += written
    elif traffic is Traffic.EVERYTHING and operands:
        read += operands[0].nbytes
    return read, written
