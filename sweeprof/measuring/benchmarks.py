"""How matrix products and memory copies are measured on every framework, which provides the products and the copies."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil

from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol

SHORT = Protocol(sample_s=0.005, min_samples=5)
"""Of each benchmark the best sample counts: whatever disturbs one makes it slower."""
SMALLEST, LARGEST = 256, 8192
"""Rows and columns of the matrices."""
NEXT_S = 0.1
"""A product that is expected to take longer than this is not tried: where a data type is slow, the small ones tell as much."""
COPIED_BYTES = 1 << 28
"""At least; more where the last-level cache is larger."""


def measured_peaks(
    settings: PeakSettings, seconds_of_product: Callable[[int], float], copy_rate: Callable[[], float]
) -> Peaks:
    """Return the highest rates of short benchmarks; about a second.

    A copy counts the bytes read and the bytes written, as STREAM does (McCalpin, 1995).

    Args:
        settings: that the benchmarks run with.
        seconds_of_product: as :func:`product_rate` takes it.
        copy_rate: measures the bytes per second of a copy.
    """
    flops, bandwidth = product_rate(seconds_of_product), copy_rate()
    return Peaks(flops, bandwidth, settings.dtype, settings.device, settings.threads)


def product_rate(seconds: Callable[[int], float]) -> float:
    """FLOP/s of the best square product: twice as many rows and columns each time, until the next would take too long.

    Args:
        seconds: of one product of matrices with so many rows and columns.
    """
    best, size = 0.0, SMALLEST
    while True:
        taken = seconds(size)
        best = max(best, 2 * size**3 / taken)
        if size >= LARGEST or 8 * taken > NEXT_S:
            return best
        size *= 2


def copied_bytes_on_host() -> int:
    """Bytes of an array that no cache of this host holds, a sixteenth of its memory at most."""
    name = "SC_LEVEL3_CACHE_SIZE"
    cached = os.sysconf(name) if name in os.sysconf_names else 0
    return min(max(COPIED_BYTES, cached), psutil.virtual_memory().total // 16)
