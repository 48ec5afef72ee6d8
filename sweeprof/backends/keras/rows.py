"""From the calls that were followed to the rows of a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras

from sweeprof.backends.keras.calls import Call
from sweeprof.backends.keras.recurrent import hidden_in
from sweeprof.backends.keras.walk import Walk
from sweeprof.backends.keras.weights import inventory
from sweeprof.profiling.formulas import Cost
from sweeprof.results.layers import Bytes, LayerRow, Weights
from sweeprof.results.paths import OUTSIDE, ROOT

_AS_COUNTED = Cost()
_NO_WEIGHTS = Weights()


def rows_of(walk: Walk, root: Any) -> tuple[LayerRow, ...]:
    """One row per call in the order of the calls, then every layer that was never called."""
    called = {id(call.layer) for call in walk.calls}
    below = _below(walk, root)
    layers = _known(root, below)
    declared = {id(c.layer): c.counted.param_size for c in walk.calls if c.counted is not None}
    weights = inventory(layers.values(), below, declared)
    position: dict[Call | None, int] = {}
    times: Counter[str] = Counter()
    rows: list[LayerRow] = []

    def add(call: Call, index: int) -> None:
        position[call] = len(rows)
        own = weights.own.pop(id(call.layer), _NO_WEIGHTS)
        rows.append(_row(call, own, weights.subtree.get(id(call.layer)), index, position.get(call.parent)))

    for call in walk.calls:
        add(call, times[call.path])
        times[call.path] += 1
    for layer, path in _uncalled(walk, root, below, called):
        add(Call(layer, path, None), -1)
    if walk.outside.operators:
        rows.append(_row(walk.outside, _NO_WEIGHTS, None, 0, None))
    return tuple(rows)


def parts_of(layer: Any) -> list[Any]:
    """The layers that a layer holds, but for inputs, which do nothing, and those that are how it is made."""
    if not isinstance(layer, keras.Layer):
        return []
    hidden = {id(part) for part in hidden_in(layer)}
    return [part for part in layer._layers if not isinstance(part, keras.layers.InputLayer) and id(part) not in hidden]


def _below(walk: Walk, root: Any) -> dict[int, list[Any]]:
    """By the identity of a layer, those that it holds or calls."""
    found: dict[int, list[Any]] = {}
    waiting = [root, *(call.layer for call in walk.calls)]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = parts_of(layer)
            waiting += found[id(layer)]
    for call in walk.calls:
        if call.parent is not None and id(call.parent.layer) in found:
            inner = found[id(call.parent.layer)]
            if not any(layer is call.layer for layer in inner):
                inner.append(call.layer)
    return found


def _known(root: Any, below: dict[int, list[Any]]) -> dict[int, Any]:
    """The root and every layer below it by identity, each once, parents first."""
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = layer
            waiting += reversed(below[id(layer)])
    return found


def _uncalled(walk: Walk, root: Any, below: dict[int, list[Any]], called: set[int]) -> list[tuple[Any, str]]:
    """Layers that were never called, with paths below the layers that hold them."""
    paths = {id(call.layer): call.path for call in reversed(walk.calls)}
    found = []
    for layer in _known(root, below).values():
        path = paths.get(id(layer), ROOT)
        for part in parts_of(layer):
            if id(part) not in called and id(part) not in paths:
                paths[id(part)] = walk.paths.below(path, part)
                found.append((part, paths[id(part)]))
    return found


def _row(call: Call, own: Weights, subtree: Weights | None, index: int, parent: int | None) -> LayerRow:
    macs, flops, ops = call.costs
    inputs, outputs, said = call.inputs, call.outputs, call.counted or _AS_COUNTED
    output_bytes = _bytes(call)
    return LayerRow(
        path=call.path,
        type=type(call.layer).__name__ if isinstance(call.layer, keras.Layer) else "",
        depth=0 if call.path in (ROOT, OUTSIDE) else call.path.count(".") + 1,
        call=index,
        params=own.params,
        trainable=own.trainable,
        params_bytes=own.params_bytes,
        buffers=own.buffers,
        macs=macs,
        input_shapes=said.input_shapes or inputs.shapes,
        output_shapes=said.output_shapes or outputs.shapes,
        flops=flops,
        ops=ops,
        act_bytes=0 if call.children else output_bytes,
        input_bytes=inputs.nbytes,
        output_bytes=output_bytes,
        input_dtypes=inputs.dtypes,
        output_dtypes=outputs.dtypes,
        buffers_bytes=own.buffers_bytes,
        dtypes=own.dtypes,
        subtree=subtree,
        parent=parent,
        operators=call.operator_counts,
    )


def _bytes(call: Call) -> Bytes | None:
    """Of what the call returned, every time."""
    scale = None if call.counted is None else call.counted.activation_size
    if scale is not None:
        return call.times * call.outputs.elements * scale
    nbytes = call.outputs.nbytes
    return None if nbytes is None else call.times * nbytes
