"""The calibration kernel in OpenVINO: a graph of one operator, one layer's work of a middling model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import openvino
from openvino import opset8

from sweeprof.backends import AnyArray
from sweeprof.backends.openvino.model import Feed, OpenvinoModel
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName, resembling


def kernel(model: OpenvinoModel, wanted: KernelName | None) -> Kernel:
    """The kernel with the model's threads; always in single precision, so that variants have the same.

    Args:
        model: which has met its inputs.
        wanted: which; None: the one that resembles the model.
    """
    found = Counter(node.get_type_name() for node in model.graph.get_ordered_ops())
    name = wanted or resembling(found["Convolution"] + found["GroupConvolution"], found["MatMul"])
    if name == "convolution":
        given = np.ones((1, CHANNELS, SIDE, SIDE), np.float32)
        weights = np.full((CHANNELS, CHANNELS, 3, 3), 1e-3, np.float32)
        slot = opset8.parameter(given.shape, np.float32)
        node = opset8.convolution(slot, weights, [1, 1], [1, 1], [1, 1], [1, 1])
    else:
        given = np.full((ROWS, ROWS), 1e-3, np.float32)
        slot = opset8.parameter(given.shape, np.float32)
        node = opset8.matmul(slot, given, transpose_a=False, transpose_b=False)
    settings = replace(model.settings, inference_precision="f32")
    request = settings.compiled(openvino.Model([node], [slot], name)).create_infer_request()
    return Kernel(name, model.steps_of(request, _feed(given)))


def _feed(array: AnyArray) -> Feed:
    return Feed((openvino.Tensor(array),), None)
