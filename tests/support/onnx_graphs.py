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


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> Any:
    """A node whose inputs and outputs are words; a dash is one that is omitted."""
    given, made = (["" if word == "-" else word for word in words.split()] for words in (inputs, outputs))
    return helper.make_node(op, given, made, name or None, **attributes)


def given(name: str, value: Any) -> Any:
    """An input: as it is described, of the type and shape of an array, or of floats of a shape whose batch size is open."""
    if isinstance(value, onnx.ValueInfoProto):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *value[1:]] if value else [])


def saved(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Any],
    weights: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    opset: int = 23,
) -> str:
    """The path of a model; its inputs are what ``given`` takes."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [given(name, value) for name, value in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    domains = sorted({node.domain for node in nodes} - {""})
    versions = {"ai.onnx.ml": 2}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, versions.get(name, 1)) for name in domains)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    return str(path)


def counted(path: str, *shapes: Shape, formulas: Formulas = DEFAULTS) -> LayerTable:
    return count_file(OnnxFile(path).known(), shapes, {}, formulas)


def one(
    folder: Path, op: str, inputs: Sequence[Shape], weights: Mapping[str, Any], opset: int = 23, **attributes: Any
) -> LayerTable:
    """A graph of one node: inputs ``a``, ``b`` … and then the weights, where None is one that is omitted."""
    given = dict(zip("abcdefgh", inputs, strict=False))
    held = {name: value for name, value in weights.items() if value is not None}
    made = helper.make_node(op, [*given, *(name if name in held else "" for name in weights)], ["y"], op, **attributes)
    return counted(saved(folder, [made], given, held, opset=opset), *inputs)


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
    made = helper.make_node(op, names, results, op, domain=domain, **attributes)
    inputs = {name: value for name, value in zip(names, operands, strict=True) if value is not None}
    held = {f"x{index}": inputs.pop(f"x{index}") for index in weights if operands[index] is not None}
    return saved(folder, [made], inputs, held, results, version)


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
