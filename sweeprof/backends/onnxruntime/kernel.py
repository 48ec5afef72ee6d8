"""The calibration kernel in ONNX Runtime: one layer's work of a middling model, as a graph of one node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from sweeprof.backends.onnxruntime.model import OnnxModel, SessionFeed
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName, resembling

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


def one_node(op: str, given: Any, weights: Any, **attributes: Any) -> bytes:
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
