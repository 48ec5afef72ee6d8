"""The speed of matrix products and memory copies on this machine, with the present settings of TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import tensorflow as tf

from sweeprof.backends.tensorflow import runtime
from sweeprof.backends.tensorflow.model import clock_of
from sweeprof.measuring.timing import sampled
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


def settings(device: str, dtype: str | None, model: object) -> PeakSettings:
    """Return the settings of this process.

    Args:
        device: where the benchmarks are to run.
        dtype: of the matrices; None: that of the first floating-point variable of the model, ``float32`` without any.
        model: whose variables tell the data type.
    """
    own = (tf.as_dtype(variable.dtype) for variable in getattr(model, "variables", ()))
    wanted = dtype or next((kind.name for kind in own if kind.is_floating), "float32")
    numerics = (
        f"tensor_float_32 {tf.config.experimental.tensor_float_32_execution_enabled()}",
        f"onednn {os.environ.get('TF_ENABLE_ONEDNN_OPTS', 'default')}",
    )
    return PeakSettings(wanted, device, tf.config.threading.get_intra_op_parallelism_threads(), numerics)


def peaks(settings: PeakSettings) -> Peaks:
    """The highest rates of short benchmarks; about a second, with the threads and the numerics that are set.

    A copy counts the bytes read and the bytes written, as STREAM does (McCalpin, 1995).
    """
    device = runtime.tensorflow_name(settings.device)
    with tf.device(device):
        return Peaks(
            flops_per_s=_product_rate(device, settings.dtype),
            bytes_per_s=_copy_rate(device, settings.threads),
            dtype=settings.dtype,
            device=settings.device,
            threads=settings.threads,
        )


def _product_rate(device: str, dtype: str) -> float:
    """FLOP/s of the best square product: twice as many rows and columns each time, until the next would take too long."""
    best, size = 0.0, SMALLEST
    while True:
        left, right = (tf.cast(_numbers(size, seed), dtype) for seed in (0, 1))

        def multiply(left: tf.Tensor = left, right: tf.Tensor = right) -> object:
            return tf.matmul(left, right)

        seconds = _best(multiply, device)
        best = max(best, 2 * size**3 / seconds)
        if size >= LARGEST or 8 * seconds > NEXT_S:
            return best
        size *= 2


def _numbers(size: int, seed: int) -> tf.Tensor:
    """Zeros or ones would let a GPU clock higher than numbers do. No generator of the caller's is drawn from."""
    return tf.random.stateless_normal((size, size), seed=(seed, size))


def _copy_rate(device: str, threads: int) -> float:
    if device == "cpu":
        return _host_copy_rate(threads)
    source = tf.ones(COPIED_BYTES, tf.uint8)
    return 2 * COPIED_BYTES / _best(lambda: tf.raw_ops.DeepCopy(x=source), device)  # an identity shares its memory


def _host_copy_rate(threads: int) -> float:
    """Bytes per second of a copy into memory that exists; TensorFlow's takes new pages for each, which takes several times as long.

    Args:
        threads: each copies its own part; 0: one for each processor.
    """
    threads = threads or os.cpu_count() or 1
    size = _beyond_caches()
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return 2 * size / _best(lambda: list(pool.map(lambda part: np.copyto(*part), parts)), "cpu")


def _beyond_caches() -> int:
    """Bytes of an array that no cache of this host holds, a sixteenth of its memory at most."""
    name = "SC_LEVEL3_CACHE_SIZE"
    cached = os.sysconf(name) if name in os.sysconf_names else 0
    return min(max(COPIED_BYTES, cached), psutil.virtual_memory().total // 16)


def _best(call: Callable[[], object], device: str) -> float:
    """Seconds of one call."""

    def step() -> None:
        call()
        if device != "cpu":
            tf.test.experimental.sync_devices()

    return min(sampled(step, SHORT, clock_of(device)))
