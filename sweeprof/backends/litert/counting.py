"""Counts a TFLite file: a row for each of its operators, by the layer that the converter's names tell."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sweeprof.backends.litert.costs import TfliteCall, cost_of
from sweeprof.backends.litert.files import TfliteFile
from sweeprof.backends.litert.graph import Tensor, TfliteGraph, TfliteOperator, read
from sweeprof.backends.litert.model import InterpreterSettings, inputs_of, sized
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import NOTHING
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Liveness, OperatorCount

VIEWS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
"""Operators whose output has the memory of their input."""
_WEIGHED = re.compile("conv|depthwise|matmul|einsum", re.IGNORECASE)
_WORKING = re.compile("^(?!Relu|Tanh|Sigmoid)")


def count_file(file: TfliteFile, shapes: Sequence[tuple[int, ...]]) -> LayerTable:
    """The operators of the file for inputs of these shapes.

    Parameters are the constants that stand for real numbers, once each, as the file has them: after the converter has folded
    batch normalisation into the weights before it. A file does not say which of them learned; all count as trainable.
    """
    graph = read(file.path)
    method = "shapes"
    if [graph.tensors[index].shape for index in graph.inputs] != [tuple(shape) for shape in shapes]:
        graph, method = _resized(graph, file, shapes)
    rows, uncovered, peak = [], Counter[str](), _Peak(graph)
    calls: Counter[str] = Counter()
    known: set[int] = set()
    widened = _widened(graph)
    for position, operator in enumerate(graph.operators):
        if operator.outputs[0] in widened:
            continue
        path = _path(operator, graph)
        cost = cost_of(TfliteCall(operator, graph))
        if cost is None:
            uncovered[operator.name] += 1
        rows.append(
            _row(operator, graph, path, calls[path], cost or NOTHING, _new_weights(operator, graph, widened, known))
        )
        calls[path] += 1
        peak.step(position, path)
    root = _root(graph)
    return LayerTable((root, *rows), dict(uncovered), method, len(graph.operators), peak.result())


def _resized(graph: TfliteGraph, file: TfliteFile, shapes: Sequence[tuple[int, ...]]) -> tuple[TfliteGraph, str]:
    """The graph with the shapes that a forward on zeros leaves: a file for any batch computes some of them itself."""
    interpreter = InterpreterSettings(xnnpack=False).open(model_path=file.path)
    sized(interpreter, list(shapes))
    for detail in inputs_of(interpreter):
        interpreter.set_tensor(detail["index"], np.zeros_like(interpreter.get_tensor(detail["index"])))
    interpreter.invoke()
    found = {detail["index"]: tuple(map(int, detail["shape"])) for detail in interpreter.get_tensor_details()}
    tensors = tuple(
        dataclasses.replace(tensor, shape=found.get(index, tensor.shape)) for index, tensor in enumerate(graph.tensors)
    )
    return dataclasses.replace(graph, tensors=tensors), "real forward: the file leaves sizes open"


def _of(graph: TfliteGraph, indices: Sequence[int | None]) -> list[Tensor | None]:
    return [None if index is None else graph.tensors[index] for index in indices]


def _widened(graph: TfliteGraph) -> Mapping[int, int]:
    """Return for each widened tensor the constant that it copies: weights of 16 bits are widened before they are used."""
    return {
        operator.outputs[0]: source
        for operator in graph.operators
        if operator.name == "DEQUANTIZE"
        and (source := operator.inputs[0]) is not None
        and graph.tensors[source].is_constant
    }


def _new_weights(
    operator: TfliteOperator, graph: TfliteGraph, widened: Mapping[int, int], known: set[int]
) -> list[Tensor]:
    """Parameters that this operator reads and none before it did."""
    found = []
    for index in operator.inputs:
        source = None if index is None else widened.get(index, index)
        if source is None or source in known:
            continue
        tensor = graph.tensors[source]
        if tensor.is_constant and tensor.is_real:
            known.add(source)
            found.append(tensor)
    return found


def _path(operator: TfliteOperator, graph: TfliteGraph) -> str:
    """The layer, by the scopes in the name of what the operator returns; of several layers fused into one the one with weights,
    or one that is more than an activation.

    The last tensor of a file is renamed: then the names of its weights tell. A model that has been traced before has its scopes
    numbered, which is taken off.
    """
    parts = _scoped(_of(graph, operator.outputs)) or _scoped(_of(graph, operator.inputs[1:]))
    if not parts:
        return operator.name.lower()
    ranked = [part for pattern in (_WEIGHED, _WORKING) for part in parts if pattern.search(part.rpartition("/")[2])]
    model, *scopes = [*ranked, parts[0]][0].split("/")[:-1]
    return ".".join(scope.removesuffix("_1") if model.endswith("_1") else scope for scope in scopes)


def _scoped(tensors: Sequence[Tensor | None]) -> list[str]:
    """Names with a model and a layer in them; what was fused has several in one."""
    names = [part for tensor in tensors if tensor is not None for part in tensor.name.split(";")]
    return [name for name in names if name.count("/") >= 2]


def _row(
    operator: TfliteOperator, graph: TfliteGraph, path: str, call: int, cost: OperatorCost, weights: list[Tensor]
) -> LayerRow:
    macs, flops, ops = cost
    given = [tensor for tensor in _of(graph, operator.inputs) if tensor is not None and not tensor.is_constant]
    made = [graph.tensors[index] for index in operator.outputs]
    params = sum(tensor.elements for tensor in weights)
    types: Counter[str] = Counter()
    for tensor in weights:
        types[tensor.type.lower()] += tensor.elements
    bytes_out = sum(tensor.bytes for tensor in made)
    inputs = given[0].elements if given else 0
    return LayerRow(
        path=path,
        type=operator.name,
        depth=path.count(".") + 1,
        call=call,
        parent=0,
        params=params,
        trainable=params,
        buffers=0,
        dtypes=dict(types),
        params_bytes=_whole(sum(tensor.bytes for tensor in weights)),
        macs=macs,
        flops=flops,
        ops=ops,
        input_shapes=tuple(tensor.shape for tensor in given),
        output_shapes=tuple(tensor.shape for tensor in made),
        act_bytes=_whole(bytes_out),
        input_bytes=_whole(sum(tensor.bytes for tensor in given)),
        output_bytes=_whole(bytes_out),
        input_dtypes=tuple(tensor.type.lower() for tensor in given),
        output_dtypes=tuple(tensor.type.lower() for tensor in made),
        operators=(OperatorCount(operator.name, 1, *cost, inputs, made[0].elements),),
    )


def _root(graph: TfliteGraph) -> LayerRow:
    given, made = ([graph.tensors[index] for index in part] for part in (graph.inputs, graph.outputs))
    return LayerRow(
        path=ROOT,
        type="tflite",
        depth=0,
        call=0,
        params=0,
        trainable=0,
        params_bytes=0,
        buffers=0,
        macs=0,
        flops=0,
        ops=0,
        act_bytes=0,
        input_shapes=tuple(tensor.shape for tensor in given),
        output_shapes=tuple(tensor.shape for tensor in made),
        input_dtypes=tuple(tensor.type.lower() for tensor in given),
        output_dtypes=tuple(tensor.type.lower() for tensor in made),
    )


def _whole(bytes: float) -> int | float:
    return int(bytes) if bytes == int(bytes) else bytes


class _Peak:
    """Bytes alive while each operator runs: what was made and is still read, weights and the file's inputs left out."""

    def __init__(self, graph: TfliteGraph) -> None:
        self._graph, self._storage = graph, dict(self._storages(graph))
        last: dict[int, int] = defaultdict(int)
        for position, operator in enumerate(graph.operators):
            for index in (*operator.inputs, *operator.outputs):
                last[self._storage.get(index, index) if index is not None else -1] = position
        for index in graph.outputs:
            last[self._storage.get(index, index)] = len(graph.operators)
        self._last, self._live = last, dict[int, float]()
        self._peak: tuple[float, str] = (0.0, ROOT)

    @staticmethod
    def _storages(graph: TfliteGraph) -> Iterator[tuple[int, int]]:
        """Yield pairs of a tensor and the tensor whose memory it shares."""
        found: dict[int, int] = {}
        for operator in graph.operators:
            if operator.name in VIEWS and operator.inputs[0] is not None:
                source = found.get(operator.inputs[0], operator.inputs[0])
                found[operator.outputs[0]] = source
                yield operator.outputs[0], source

    def step(self, position: int, path: str) -> None:
        """The operator at ``position`` has run."""
        operator = self._graph.operators[position]
        for index in operator.outputs:
            if index not in self._storage:
                self._live[index] = self._graph.tensors[index].bytes
        self._peak = max(self._peak, (sum(self._live.values()), path), key=lambda seen: seen[0])
        for index in [index for index in self._live if self._last[index] <= position]:
            del self._live[index]

    def result(self) -> Liveness:
        """The peak."""
        given: Any = sum(self._graph.tensors[index].bytes for index in self._graph.inputs)
        return Liveness(int(self._peak[0]), self._peak[1], int(given))
