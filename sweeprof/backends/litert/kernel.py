"""The calibration kernel in LiteRT: a file of one operator, one layer's work of a middling model."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from sweeprof.backends.litert.graph import read
from sweeprof.backends.litert.model import LitertModel
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName, resembling

_CONVOLUTIONS = ("CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "CONV_3D_TRANSPOSE")


def kernel(model: LitertModel, wanted: KernelName | None) -> Kernel:
    """The kernel with the model's threads and delegate; always in single precision, so that variants have the same.

    Args:
        model: which has met its inputs.
        wanted: which; None: the one that resembles the model.
    """
    name = wanted or _resembling(model)
    content, given = _convolution() if name == "convolution" else _product()
    interpreter = model.settings.open(model_content=content)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given)
    interpreter.invoke()
    return Kernel(name, interpreter.invoke)


def _resembling(model: LitertModel) -> KernelName:
    assert model.file is not None
    names = [operator.name for operator in read(model.file.path).operators]
    return resembling(sum(name in _CONVOLUTIONS for name in names), sum(name == "FULLY_CONNECTED" for name in names))


def _convolution() -> tuple[bytes, Any]:
    options = schema.Conv2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.SAME, 1, 1
    given = np.ones((1, SIDE, SIDE, CHANNELS), np.float32)
    weights = np.full((CHANNELS, 3, 3, CHANNELS), 1e-3, np.float32)
    return one_operator("CONV_2D", given, weights, "Conv2DOptions", options, given.shape), given


def _product() -> tuple[bytes, Any]:
    matrix = np.full((ROWS, ROWS), 1e-3, np.float32)
    options = schema.FullyConnectedOptionsT()
    return one_operator("FULLY_CONNECTED", matrix, matrix, "FullyConnectedOptions", options, matrix.shape), matrix


def one_operator(name: str, given: Any, weights: Any, kind: str, options: Any, output: tuple[int, ...]) -> bytes:
    """The file of ``output = name(given, weights)``.

    Args:
        name: of the operator in the schema.
        given: an array of the shape and type of the input.
        weights: a constant.
        kind: the name of the class of ``options`` in the schema.
        options: of the operator.
        output: shape of what it returns.
    """
    bias = np.zeros(output[-1], np.float32)
    code, operator, graph, model = schema.OperatorCodeT(), schema.OperatorT(), schema.SubGraphT(), schema.ModelT()
    code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, name)
    operator.inputs, operator.outputs = [0, 1, 2], [3]
    operator.builtinOptionsType, operator.builtinOptions = getattr(schema.BuiltinOptions, kind), options
    shapes = [given.shape, weights.shape, bias.shape, output]
    buffers = [b"", weights.tobytes(), bias.tobytes(), b""]
    graph.tensors = [_tensor(index, shape) for index, shape in enumerate(shapes)]
    graph.inputs, graph.outputs, graph.operators = [0], [3], [operator]
    model.version, model.operatorCodes, model.subgraphs = 3, [code], [graph]
    model.buffers = [_buffer(data) for data in buffers]
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _tensor(index: int, shape: tuple[int, ...]) -> Any:
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.buffer = f"tensor_{index}".encode(), list(shape), index
    tensor.type = schema.TensorType.FLOAT32
    return tensor


def _buffer(data: bytes) -> Any:
    buffer = schema.BufferT()
    buffer.data = np.frombuffer(data, np.uint8) if data else None
    return buffer
