"""TFLite files of one operator."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema


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
    graph.inputs, graph.outputs, graph.operators = [0], [3], [operator]
    model.version, model.operatorCodes, model.subgraphs = 3, [code], [graph]
    graph.tensors, model.buffers = [], []
    for index, array in enumerate((given, weights, bias, np.empty(output, np.float32))):
        tensor, buffer = schema.TensorT(), schema.BufferT()
        tensor.name, tensor.shape, tensor.buffer = f"tensor_{index}".encode(), list(array.shape), index
        tensor.type = schema.TensorType.FLOAT32
        buffer.data = np.frombuffer(array.tobytes(), np.uint8) if index in (1, 2) else None
        graph.tensors.append(tensor)
        model.buffers.append(buffer)
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
