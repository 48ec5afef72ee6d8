"""Counts a Keras model on the graph that ``tf.function`` traces for it: shapes only, nothing is run.

Every operator that the outputs depend on is either counted by a formula, known to do no multiply-accumulate, or listed as
uncovered; there is no silent zero. Loops are uncovered: their bodies run an unknown number of times.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sweeprof.backends.tensorflow.free import FREE
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.paths import ROOT


def count_layers(model: Any, batch_shape: tuple[int, ...], dtype: Any) -> LayerTable:
    """The layers of ``model`` for one input of ``batch_shape``, in the layout the model expects."""
    keywords = {"training": False} if isinstance(model, keras.Layer) else {}
    traced = tf.function(lambda batch: model(batch, **keywords)).get_concrete_function(
        tf.TensorSpec(batch_shape, dtype)
    )
    layers = list(model._flatten_layers()) if isinstance(model, keras.Layer) else []
    macs: Counter[str] = Counter()
    uncovered: Counter[str] = Counter()
    shapes: dict[str, tuple[Any, Any]] = {}
    scopes = _Scopes({layer.name for layer in layers[1:]})
    for name, op in _reachable(traced.graph, tf.nest.flatten(traced.outputs)):
        path = scopes.path(name)
        if op.type in _FORMULAS:
            macs[path] += _FORMULAS[op.type](op)
            shapes[path] = (_shapes(op.inputs)[:1], _shapes(op.outputs))
        elif op.type not in FREE:
            uncovered[op.type] += 1
    return LayerTable(tuple(_rows(layers, macs, shapes)), dict(uncovered))


def _reachable(graph: Any, outputs: Any) -> Iterator[tuple[str, Any]]:
    """Scoped name and operator of everything the outputs depend on; Keras leaves other operators behind in the graph."""
    waiting = [tensor.op for tensor in outputs]
    found = set()
    while waiting:
        op = waiting.pop()
        if op in found:
            continue
        found.add(op)
        waiting.extend(tensor.op for tensor in op.inputs)
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):  # grouped convolutions are compiled functions
            body = graph._get_function(op.get_attr("f").name).graph
            yield from ((op.name, inner) for _, inner in _reachable(body, body.outputs))
        else:
            yield op.name, op


class _Scopes:
    """From an operator's name to the dotted path of the layers around it; tracing may append a number to a layer's name."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def path(self, op_name: str) -> str:
        layers = [name for part in op_name.split("/")[:-1] if (name := self._layer(part)) is not None]
        return ".".join(layers) or ROOT

    def _layer(self, part: str) -> str | None:
        if part in self._names:
            return part
        stem = re.sub(r"_\d+$", "", part)
        return stem if stem in self._names else None


def _rows(layers: list[Any], macs: Counter[str], shapes: dict[str, tuple[Any, Any]]) -> Iterator[LayerRow]:
    paths = {path.rsplit(".", 1)[-1]: path for path in macs}
    seen: set[int] = set()
    for index, layer in enumerate(layers):
        path = ROOT if index == 0 else paths.get(layer.name) or _below(layers[0], layer)
        # Keras puts what the optimizer may change into _trainable_variables whether or not the layer is frozen; the public
        # lists move frozen parameters in with the moving statistics.
        own = [v for v in layer._trainable_variables if id(v) not in seen]
        seen.update(id(v) for v in own)
        buffers = [v for v in layer._non_trainable_variables if not v.path.endswith("seed_generator_state")]
        inputs, outputs = shapes.get(path, ((), ()))
        if index == 0 or own or buffers or path in macs:
            yield LayerRow(
                path=path,
                type=type(layer).__name__,
                depth=0 if path == ROOT else path.count(".") + 1,
                call=0,
                params=sum(_numel(v) for v in own),
                trainable=sum(_numel(v) for v in own if v.trainable),
                params_bytes=sum(_numel(v) * tf.as_dtype(v.dtype).size for v in own),
                buffers=sum(_numel(v) for v in buffers),
                macs=macs.pop(path, 0),
                input_shapes=inputs,
                output_shapes=outputs,
            )
    for path, count in macs.items():  # a model that is not a Keras layer, or a layer whose path the names do not tell
        yield LayerRow(path, "", path.count(".") + 1, 0, 0, 0, 0, 0, count)


def _below(root: Any, layer: Any) -> str:
    """The path of a layer without multiply-accumulates, which Keras may begin with the name of the model."""
    return str(layer.path or layer.name).removeprefix(f"{root.name}/").replace("/", ".")


def _numel(variable: Any) -> int:
    return _size(variable.shape)


def _shapes(tensors: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in tensor.shape) for tensor in tensors if tensor.shape.is_fully_defined())


def _outputs(op: Any) -> int:
    return _size(op.outputs[0].shape)


def _positions(op: Any) -> int:
    """Output elements of a convolution; a dilated one computes padding between SpaceToBatchND and BatchToSpaceND, which is cut."""
    consumers = op.outputs[0].consumers()
    while len(consumers) == 1 and consumers[0].type == "Squeeze":
        consumers = consumers[0].outputs[0].consumers()
    is_cut = len(consumers) == 1 and consumers[0].type == "BatchToSpaceND"
    return _outputs(consumers[0] if is_cut else op)


def _size(shape: Any) -> int:
    return math.prod(int(n) for n in shape)


def _convolution(op: Any) -> int:
    """Kernel ``(*space, in/groups, out)``: each output element is a sum over space and in/groups."""
    return _positions(op) * _size(op.inputs[1].shape[:-1])


def _depthwise(op: Any) -> int:
    """Kernel ``(height, width, in, multiplier)``: each output element is a sum over space alone."""
    return _positions(op) * _size(op.inputs[1].shape[:2])


def _transposed(op: Any) -> int:
    """Inputs are (output shape, kernel ``(*space, out, in)``, values): each value is spread over space and out."""
    return _size(op.inputs[2].shape) * _size(op.inputs[1].shape[:-1])


def _matmul(op: Any) -> int:
    left = op.inputs[0].shape
    transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
    return _outputs(op) * int(left[-2 if transposed else -1])


def _einsum(op: Any) -> int:
    """Every index once: the size of the joint index space, for the two-operand products that Keras makes."""
    equation = op.get_attr("equation").decode()
    operands = equation.split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for labels, tensor in zip(operands, op.inputs, strict=True):
        sizes.update(_label_sizes(labels, tensor.shape))
    return math.prod(sizes.values()) if len(operands) > 1 else 0


def _label_sizes(labels: str, shape: Any) -> dict[str, int]:
    extra = len(shape) - len(labels.replace("...", ""))
    spelled = labels.replace("...", "".join(chr(0x2460 + i) for i in range(extra)))
    return {label: int(size) for label, size in zip(spelled, np.array(shape), strict=True)}


_FORMULAS: dict[str, Callable[[Any], int]] = {
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _transposed,
    "Conv3DBackpropInputV2": _transposed,
    "MatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "Einsum": _einsum,
}
