"""Benchmarks in ONNX Runtime: the calibration kernel, and the speed of matrix products and memory copies on this machine."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import psutil
from onnx import TensorProto, helper, numpy_helper

from sweeprof.backends import AnyArray
from sweeprof.backends.onnxruntime.model import OnnxModel, SessionFeed, SessionSettings
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName, resembling
from sweeprof.measuring.timing import WallClock, sampled
from sweeprof.results.peaks import Peaks, PeakSettings
from sweeprof.results.protocol import Protocol

OPSET, IR_VERSION = 17, 8
"""Those that every ONNX Runtime of these years knows."""


def kernel(model: OnnxModel, wanted: KernelName | None) -> Kernel:
    """The kernel on the model's device with its session's settings; always in single precision.

    Args:
        model: whose kernel.
        wanted: which; None: the one that resembles the model.
    """
    name = wanted or _resembling(model.file.path)
    if name == "convolution":
        given = np.ones((1, CHANNELS, SIDE, SIDE), np.float32)
        graph = one_node("Conv", given, np.full((CHANNELS, CHANNELS, 3, 3), 1e-3, np.float32), pads=[1, 1, 1, 1])
    else:
        given = np.full((ROWS, ROWS), 1e-3, np.float32)
        graph = one_node("MatMul", given, given)
    session = model.settings.open(graph, model.device)
    place, _, number = model.device.partition(":")
    value = onnxruntime.OrtValue.ortvalue_from_numpy(given, place, int(number or 0))
    return Kernel(name, model.steps_of(session, SessionFeed({"x": value}, {"x": given.shape})))


def one_node(op: str, given: AnyArray, weights: AnyArray, **attributes: Any) -> bytes:
    """A serialised model ``y = op(x, weights)`` for ``x`` of the shape of ``given``."""
    node = helper.make_node(op, ["x", "weights"], ["y"], op, **attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, given.shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], op, inputs, outputs, [numpy_helper.from_array(weights, "weights")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    serialised: bytes = model.SerializeToString()
    return serialised


def _resembling(path: str) -> KernelName:
    found = Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)
    return resembling(found["Conv"] + found["ConvTranspose"], found["Gemm"] + found["MatMul"])


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


def _best(model: bytes, given: AnyArray, device: str, options: SessionSettings) -> float:
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
