"""The speed of matrix products and memory copies in ONNX Runtime on this machine, with a backend's settings."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime
import psutil
from onnx import TensorProto, helper

from sweeprof.backends.onnxruntime.kernel import IR_VERSION, OPSET, one_node
from sweeprof.backends.onnxruntime.session import SessionSettings
from sweeprof.measuring.timing import WallClock, sampled
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol

SHORT = Protocol(sample_s=0.005, min_samples=5)
"""Of each benchmark the best sample counts: whatever disturbs one makes it slower."""
SMALLEST, LARGEST = 256, 8192
"""Rows and columns of the matrices."""
NEXT_S = 0.1
"""A product that is expected to take longer than this is not tried."""
COPIED_BYTES = 1 << 28
"""At least; more where the last-level cache is larger."""


def peaks(settings: PeakSettings, options: SessionSettings) -> Peaks:
    """The highest rates of short benchmarks; about a second, in single precision, with the session's settings.

    A copy counts the bytes read and the bytes written, as STREAM does (McCalpin, 1995).
    """
    return Peaks(
        flops_per_s=_product_rate(settings.device, options),
        bytes_per_s=_copy_rate(settings.device, options),
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
    )


def _product_rate(device: str, options: SessionSettings) -> float:
    """FLOP/s of the best square product: twice as many rows and columns each time, until the next would take too long."""
    best, size = 0.0, SMALLEST
    numbers = np.random.default_rng(0)  # zeros or ones would let a GPU clock higher than numbers do
    while True:
        left, right = (numbers.standard_normal((size, size), np.float32) for _ in range(2))
        seconds = _best(one_node("MatMul", left, right), left, device, options)
        best = max(best, 2 * size**3 / seconds)
        if size >= LARGEST or 8 * seconds > NEXT_S:
            return best
        size *= 2


def _copy_rate(device: str, options: SessionSettings) -> float:
    """Return the rate of a copy that changes the sign: the run-time would skip an unchanged copy."""
    size = COPIED_BYTES if device != "cpu" else _beyond_caches()
    source = np.ones(size // 4, np.float32)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, source.shape)
    copy = helper.make_tensor_value_info("y", TensorProto.FLOAT, source.shape)
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "copy", [value], [copy])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return 2 * source.nbytes / _best(model.SerializeToString(), source, device, options)


def _beyond_caches() -> int:
    """Bytes of an array that no cache of this host holds, a sixteenth of its memory at most."""
    name = "SC_LEVEL3_CACHE_SIZE"
    cached = os.sysconf(name) if name in os.sysconf_names else 0
    return min(max(COPIED_BYTES, cached), psutil.virtual_memory().total // 16)


def _best(model: bytes, given: Any, device: str, options: SessionSettings) -> float:
    """Seconds of one run into memory that is there already."""
    session = options.open(model, device)
    place, _, number = device.partition(":")
    value, result = (onnxruntime.OrtValue.ortvalue_from_numpy(given, place, int(number or 0)) for _ in range(2))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", result)

    def step() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return min(sampled(step, SHORT, WallClock()))
