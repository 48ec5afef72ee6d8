"""ONNX files of a few nodes, and what is counted of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader

from sweeprof.backends.onnxruntime.counting import cost_of, count_file
from sweeprof.backends.onnxruntime.files import OnnxFile
from sweeprof.backends.onnxruntime.graph import OnnxGraph, read
from sweeprof.counting.formulas import DEFAULTS, Formulas, OperatorCost
from sweeprof.results.layers import LayerTable

Shape = tuple[int, ...]


def saved(
    folder: Path,
    nodes: Sequence[Any],
    inputs: dict[str, Shape],
    weights: dict[str, Any],
    outputs: Sequence[str] = ("y",),
    opset: int = 23,
) -> str:
    """The path of a model whose inputs have a batch size of their own name."""
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape[1:]] if shape else [])
        for name, shape in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "graph", given, results, initializers)
    domains = sorted({node.domain for node in nodes} - {""})
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    return str(path)


def counted(path: str, *shapes: Shape, formulas: Formulas = DEFAULTS) -> LayerTable:
    return count_file(OnnxFile(path).known(), shapes, {}, formulas)


def one(folder: Path, op: str, inputs: Sequence[Shape], weights: dict[str, Any], **attributes: Any) -> LayerTable:
    """A graph of one node: inputs ``a``, ``b`` … and then the weights, where an empty name stands for none."""
    names = [chr(ord("a") + index) for index in range(len(inputs))]
    node = helper.make_node(op, [*names, *weights], ["y"], op, **attributes)
    held = {name: value for name, value in weights.items() if value is not None}
    node.input[:] = [name if name in names or name in held else "" for name in node.input]
    return counted(saved(folder, [node], dict(zip(names, inputs, strict=True)), held), *inputs)


def floats(*shape: int) -> Any:
    return np.full(shape, 0.5, np.float32)


def call(
    folder: Path,
    op: str,
    operands: Sequence[Any],
    outputs: int = 1,
    *,
    domain: str = "com.microsoft",
    version: int = 21,
    weights: Sequence[int] = (),
    **attributes: Any,
) -> str:
    """A file of one node whose operands are inputs of these types and shapes, apart from those that are weights; None: omitted."""
    names = ["" if value is None else f"x{index}" for index, value in enumerate(operands)]
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, names, results, op, domain=domain, **attributes)
    given, held = [], []
    for index, (name, value) in enumerate(zip(names, operands, strict=True)):
        if value is not None and index in weights:
            held.append(numpy_helper.from_array(value, name))
        elif value is not None:
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            given.append(helper.make_tensor_value_info(name, kind, value.shape))
    made = [helper.make_empty_tensor_value_info(name) for name in results]
    graph = helper.make_graph([node], op, given, made, held)
    opsets = [helper.make_opsetid("", version)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    path = folder / f"{op}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    return str(path)


def graph_of(path: str, feeds: Mapping[str, Any]) -> OnnxGraph:
    """The graph of a file for such inputs."""
    return read(OnnxFile(path).known(), (), {name: value.shape for name, value in feeds.items()})


def checked(path: str, feeds: Mapping[str, Any]) -> OnnxGraph:
    """The graph of a file, every result of which has the shape and the type that it has when ONNX Runtime runs the file."""
    graph = graph_of(path, feeds)
    model = onnx.load(path)
    known = {value.name for value in model.graph.output}
    for node in model.graph.node:
        model.graph.output.extend(
            helper.make_empty_tensor_value_info(name) for name in node.output if name and name not in known
        )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    arrays = dict(zip(names, session.run(names, dict(feeds)), strict=True))
    made = {value.name: value for node in graph.operators for value in node.outputs}
    assert {name: (made[name].shape, made[name].dtype) for name in made} == {
        name: (arrays[name].shape, str(arrays[name].dtype)) for name in made
    }
    return graph


def cost_of_call(
    folder: Path, op: str, operands: Sequence[Any], outputs: int = 1, *, weights: Sequence[int] = (), **attributes: Any
) -> OperatorCost | None:
    """The cost of one node, whose results have the shapes that ONNX Runtime computes."""
    path = call(folder, op, operands, outputs, weights=weights, **attributes)
    feeds = {f"x{i}": value for i, value in enumerate(operands) if value is not None and i not in weights}
    (node,) = checked(path, feeds).operators
    return cost_of(node, DEFAULTS)


class Samples(CalibrationDataReader):  # type: ignore[misc]
    """One batch, from which ranges of activations are taken."""

    def __init__(self, feeds: Mapping[str, Any]) -> None:
        self.left: Iterator[Mapping[str, Any]] = iter([feeds])

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self.left, None)
