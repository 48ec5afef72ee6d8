"""Counts the graph of a file as it was converted: before OpenVINO fuses and folds, which changes how it is computed.

What depends on no input is computed once, when the model is compiled, and not counted. Loops and branches are uncovered: what
they run is not known from shapes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import openvino

from sweeprof.backends import Build
from sweeprof.backends.call_signature import by_name, shapes_of
from sweeprof.backends.openvino.converting import Converter
from sweeprof.backends.openvino.costs import COSTS, FREE
from sweeprof.backends.openvino.files import MODULE, WEIGHT, Converted
from sweeprof.backends.openvino.model import reshape
from sweeprof.counting.file_graph import FileGraph, FileOperator, FileTensor, GraphFacts, cost_by, module_table
from sweeprof.counting.formulas import Formulas, OperatorCost
from sweeprof.counting.operators import INTEGER, NOTHING, REAL
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerTable

OpenvinoNode = FileOperator[FileTensor]
OpenvinoGraph = FileGraph[OpenvinoNode, FileTensor]
VIEWS = {"Reshape", "Squeeze", "Unsqueeze"}
"""Operators whose result is their input under another shape: no memory of its own."""
DTYPES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "boolean": "bool"}
SETTINGS_ELEMENTS = 64
"""Constants of integers up to this size may be settings of an operator, such as axes."""
COMPRESSED = "_compressed"
"""What the names of constants of 16 bits end in."""
EIGHT_BITS = ("int8", "uint8")


def count(converter: Converter, build: Build, inputs: Inputs, axis: int | None, formulas: Formulas) -> LayerTable:
    """Return the layers of a model for such inputs; a quantized one has the counts of the model in 32 bits, and its own bytes."""
    plain = converter if converter.storage != "int8" else replace(converter, storage="fp32")
    with plain.converted(build, inputs, axis) as file:
        model = openvino.Core().read_model(file.path)
        names = file.input_names(model)
        shapes, named = shapes_of(inputs, axis if file.channels == "last" else None)
        reshape(model, {model.input(name): shape for name, shape in by_name(names, shapes, named).items()})
        graph = read(model, file)
        sizes: dict[str, int] = {}
        if converter.storage == "int8":
            with converter.converted(build, inputs, axis) as quantized:
                stored = stored_bytes(read(openvino.Core().read_model(quantized.path), quantized))
            sizes = {name: stored[reader] for reader, name in weights_by_reader(graph).items() if reader in stored}
        facts = GraphFacts(file.types, file.weights, sizes, VIEWS, ("BatchNormInference",))
        return module_table(graph, facts, partial(cost_of, formulas=formulas), "openvino")


def cost_of(node: OpenvinoNode, formulas: Formulas) -> OperatorCost | None:
    """Return the cost of an operator in a step, or None if it is unknown."""
    if all(value is None or value.is_constant for value in node.inputs):
        return NOTHING
    return cost_by(node, formulas, COSTS, FREE)


def read(model: openvino.Model, file: Converted) -> OpenvinoGraph:
    """Return the graph of a model with the shapes that it has."""
    values: dict[Any, FileTensor] = {}
    nodes, weights = [], []
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        given = tuple(values[_key(slot)] for slot in node.input_values())
        is_fixed = kind == "Constant" or (bool(given) and all(value.is_constant for value in given))
        made = []
        for index, slot in enumerate(node.outputs()):
            shape = tuple(slot.get_shape()) if slot.get_partial_shape().is_static else None
            label, dtype = name if index == 0 else f"{name}:{index}", _dtype(slot)
            size = slot.get_element_type().bitwidth / 8
            value = FileTensor(label, shape, dtype, size, REAL if "float" in dtype else INTEGER, is_constant=is_fixed)
            values[_key(slot)] = value
            made.append(value)
        if kind == "Constant":
            made[0].name = name.removeprefix(WEIGHT).removesuffix(COMPRESSED)
            if made[0].numbers is not INTEGER or made[0].dtype in EIGHT_BITS:
                weights.append(made[0])
            elif made[0].elements <= SETTINGS_ELEMENTS:
                made[0].data = np.asarray(node.data)
        elif kind not in ("Parameter", "Result"):
            path = path_of(name, file)
            attributes = node.get_attributes()
            nodes.append(FileOperator(kind, path, given, tuple(made), attributes, name, "openvino"))
    inputs = tuple(values[_key(slot)] for slot in model.inputs)
    outputs = tuple(values[_key(slot.get_node().input_value(0))] for slot in model.outputs)
    return FileGraph(tuple(nodes), inputs, outputs, tuple(weights))


def _key(slot: Any) -> tuple[str, int]:
    return slot.get_node().get_name(), slot.get_index()


def _dtype(slot: Any) -> str:
    name: str = slot.get_element_type().to_string()
    return DTYPES.get(name, name.replace("i", "int", 1) if name.startswith("i") else name.replace("u", "uint", 1))


def path_of(name: str, file: Converted) -> str:
    """Return the module of an operator, by its name: ``__module.model.stage1.conv1/aten::_convolution/Convolution``.

    Other converters write ``model/conv1/Conv2D``, or names without modules.
    """
    start = MODULE if file.types else "__module"
    first, *others = [part for part in name.split("/") if part] or [""]
    if first == start or first.startswith(f"{start}."):
        return first.removeprefix(start).lstrip(".") or ROOT
    return ROOT if file.types else ".".join([first, *others[:-1]]) if others else ROOT


def weights_by_reader(graph: OpenvinoGraph) -> dict[str, str]:
    """Return by the name of each operator that computes with a weight of several axes the name of that weight."""
    found: dict[str, str] = {}
    for value in graph.weights:
        for reader in _readers(value, graph):
            if value.shape is not None and len(value.shape) > 1:
                found.setdefault(reader.name, value.name)
    return found


def stored_bytes(graph: OpenvinoGraph) -> dict[str, int]:
    """Return by the name of each operator that computes with a weight of 8 bits the bytes of it, its scale and its zero point."""
    found: dict[str, int] = {}
    quantized: set[str] = set()
    for value in graph.weights:
        for reader in _readers(value, graph):
            if reader.op != "FakeQuantize":
                found[reader.name] = found.get(reader.name, 0) + int(value.nbytes)
                quantized |= {reader.name} if value.dtype in EIGHT_BITS and value.elements > 1 else set()
    return {name: size for name, size in found.items() if name in quantized}


def _readers(value: FileTensor, graph: OpenvinoGraph) -> list[OpenvinoNode]:
    """Return the operators that a step computes with a constant, past what only converts or scales it."""
    found: list[OpenvinoNode] = []
    for node in graph.operators:
        if any(given is value for given in node.inputs):
            if node.result.is_constant:
                found += _readers(node.result, graph)
            else:
                found.append(node)
    return found
