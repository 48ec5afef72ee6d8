"""Peaks: how fast a machine multiplies matrices and copies memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweeprof.results.record import Stored


@dataclass(frozen=True, slots=True)
class PeakSettings:
    """The settings of this process that the peaks of a machine depend on."""

    dtype: str
    device: str
    threads: int
    numerics: tuple[str, ...] = ()
    """Other settings that change how fast a product is, e.g. whether TF32 is allowed."""


@dataclass(frozen=True, slots=True)
class Peaks(Stored):
    """The best that short benchmarks reached, in the data type, on the device and with the threads of the combination.

    Raises:
        ValueError: a rate is not a finite number above zero.
        TypeError: a rate is no number.
    """

    flops_per_s: float
    """A matrix product of two large square matrices, two FLOPs for each multiply-accumulate."""
    bytes_per_s: float
    """A copy between two arrays larger than the caches, bytes read and bytes written."""
    dtype: str
    device: str
    threads: int
    is_cached: bool = False
    """True if the figures were measured on this host before."""

    def __post_init__(self) -> None:
        for rate in (self.flops_per_s, self.bytes_per_s):
            if not math.isfinite(rate) or rate <= 0:
                raise ValueError(f"a peak is a finite rate above zero, not {rate!r}")

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which a computation is limited by arithmetic."""
        return self.flops_per_s / self.bytes_per_s
