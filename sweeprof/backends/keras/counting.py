"""Counts a Keras model in one trace over shapes: every layer with its parameters and buffers, and one training step.

A training step is a forward, the sum of every output as loss, and a backward. The forward is traced in training mode, and the
backward is counted from what it did, last first: an operation's gradient is counted for each operand that is trained, or that
depends on what is trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import keras

from sweeprof.backends.keras import private
from sweeprof.backends.keras.calls import as_called, dtype_of, symbolic, tensors_in
from sweeprof.backends.keras.symbolic_trace import (
    CannotCall,
    Fallback,
    LayerCall,
    SymbolicTrace,
    hidden_in,
    live_bytes,
    patching,
)
from sweeprof.counting.formulas import (
    DEFAULTS,
    Cost,
    FormulaFailed,
    Formulas,
    ParamSize,
    Variable,
    declared_size,
    summed,
)
from sweeprof.counting.mapping import itemsize
from sweeprof.counting.operators import estimated_training
from sweeprof.counting.rows import layer_row
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import Bytes, LayerRow, LayerTable, Training, Weights

_STORED_SMALLER = frozenset({"int8", "int4", "gptq", "awq"})
"""Quantisations that store weights otherwise; ``float8`` scales them as it computes."""


LayersBelow = Mapping[int, list[keras.Layer]]
"""By the identity of a layer, those that it holds or calls."""


def inventory(
    root: keras.Layer, below: LayersBelow, sizes: Mapping[int, ParamSize], read: Sequence[Any] = ()
) -> tuple[dict[int, Weights], dict[int, Weights]]:
    """The weights of every layer, by the identity of the layer.

    The first are a layer's own, without what a layer before it holds already; the second with everything below, each variable once.

    Args:
        root: whose layers.
        below: the layers below each.
        sizes: by the identity of a layer, bytes per element, where a layer declares them.
        read: the variables that the forward of a root reads that is no Keras layer.
    """
    layers = _reached(root, below)
    held = {identity: _variables(layer, sizes.get(identity, {}), read) for identity, layer in layers.items()}
    before: set[Hashable] = set()
    own, subtree = {}, {}
    for identity, layer in layers.items():
        fresh = {variable.key: variable for variable in held[identity] if variable.key not in before}
        before.update(fresh)
        own[identity] = summed(fresh.values())
        inner = {variable.key: variable for found in _reached(layer, below) for variable in held[found]}
        subtree[identity] = summed(inner.values())
    return own, subtree


def _reached(root: keras.Layer, below: LayersBelow) -> dict[int, keras.Layer]:
    """The root and every layer below it by identity, each once, parents first."""
    found: dict[int, keras.Layer] = {}
    waiting = [root]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = layer
            waiting += reversed(below[id(layer)])
    return found


def _variables(layer: keras.Layer, sizes: ParamSize, read: Sequence[Any]) -> list[Variable]:
    """Parameters, and state that no optimizer sees.

    Keras keeps what an optimizer may change in ``_trainable_variables`` whether or not the layer is frozen; its public lists move
    frozen parameters in with moving statistics. The weights of a quantised layer, which no optimizer can change, are parameters
    too. The state of a random generator is none of the model's.
    """
    if not isinstance(layer, keras.Layer):
        return _of_other(layer, read)
    found = []
    for owner in (layer, *hidden_in(layer)):
        is_quantised = owner.quantization_mode in _STORED_SMALLER
        found += [_described(variable, sizes, is_buffer=False) for variable in private.own_parameters(owner)]
        for variable in private.own_state(owner):
            if not variable.path.endswith("seed_generator_state"):
                found.append(_described(variable, sizes, is_buffer=not is_quantised))
    return found


def _of_other(model: object, read: Sequence[Any]) -> list[Variable]:
    """The variables of a model that is no Keras layer: those that it lists, as a signature of a SavedModel does, or reads."""
    return [
        Variable(id(v), prod(v.shape), itemsize(dtype_of(v)), dtype_of(v), v.trainable, not v.trainable)
        for v in getattr(model, "variables", read)
    ]


def _described(variable: keras.Variable, sizes: ParamSize, *, is_buffer: bool) -> Variable:
    dtype = private.stored_dtype(variable)
    size = declared_size(sizes, variable.name, itemsize(dtype), is_buffer)
    return Variable(id(variable), prod(variable.shape), size, dtype, bool(variable.trainable), is_buffer)


def rows_of(trace: SymbolicTrace, root: object) -> tuple[LayerRow, ...]:
    """One row per call in the order of the calls, then every layer that was never called."""
    below = _below(trace, root)
    declared = {id(c.layer): c.counted.param_size for c in trace.calls if c.counted is not None}
    own_weights, subtree = inventory(root, below, declared, trace.variables)
    position: dict[LayerCall | None, int] = {}
    times: Counter[str] = Counter()
    rows: list[LayerRow] = []

    def add(call: LayerCall, index: int) -> None:
        position[call] = len(rows)
        own = own_weights.pop(id(call.layer), Weights())
        rows.append(_row(call, own, subtree.get(id(call.layer)), index, position.get(call.parent)))

    for call in trace.calls:
        add(call, times[call.path])
        times[call.path] += 1
    for layer, path in _uncalled(trace, root, below):
        add(LayerCall(layer, path, None), -1)
    if trace.outside.counts.operators:
        rows.append(_row(trace.outside, Weights(), None, 0, None))
    return tuple(rows)


def parts_of(layer: keras.Layer) -> list[keras.Layer]:
    """The layers that a layer holds, but for inputs, which do nothing, and those that are how it is made."""
    if not isinstance(layer, keras.Layer):
        return []
    hidden = {id(part) for part in hidden_in(layer)}
    return [
        part
        for part in private.children_of(layer)
        if not isinstance(part, keras.layers.InputLayer) and id(part) not in hidden
    ]


def _below(trace: SymbolicTrace, root: object) -> dict[int, list[keras.Layer]]:
    """Return the layers that each layer holds or calls, by the identity of the layer."""
    found: dict[int, list[keras.Layer]] = {}
    waiting = [root, *(call.layer for call in trace.calls)]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = parts_of(layer)
            waiting += found[id(layer)]
    for call in trace.calls:
        if call.parent is not None and id(call.parent.layer) in found:
            inner = found[id(call.parent.layer)]
            if not any(layer is call.layer for layer in inner):
                inner.append(call.layer)
    return found


def _uncalled(trace: SymbolicTrace, root: object, below: LayersBelow) -> list[tuple[keras.Layer, str]]:
    """Layers that were never called, with paths below the layers that hold them."""
    paths = {id(call.layer): call.path for call in reversed(trace.calls)}
    found = []
    for layer in _reached(root, below).values():
        path = paths.get(id(layer), ROOT)
        for part in parts_of(layer):
            if id(part) not in paths:
                paths[id(part)] = trace.paths.below(path, part)
                found.append((part, paths[id(part)]))
    return found


def _row(call: LayerCall, own: Weights, subtree: Weights | None, index: int, parent: int | None) -> LayerRow:
    inputs, outputs, message = call.inputs, call.outputs, call.counted or Cost()
    kind = type(call.layer).__name__ if isinstance(call.layer, keras.Layer) else ""
    row = layer_row(
        call.path,
        kind,
        own,
        call.costs,
        inputs._replace(shapes=message.input_shapes or inputs.shapes),
        outputs._replace(shapes=message.output_shapes or outputs.shapes, nbytes=_bytes(call)),
        is_leaf=not call.children,
    )
    row.call, row.parent, row.subtree = index, parent, subtree
    row.operators = call.operator_counts
    row.kernel_size, row.stride = _sizes(call.layer, "kernel_size", "pool_size"), _sizes(call.layer, "strides")
    row.groups = _groups(call.layer)
    return row


def _sizes(layer: object, *names: str) -> tuple[int, ...]:
    """Return the first of these attributes that a convolution or pooling has; empty for other layers."""
    value = next((value for name in names if (value := getattr(layer, name, None)) is not None), ())
    sizes = value if isinstance(value, tuple | list) else (value,)
    return tuple(sizes) if all(isinstance(size, int) for size in sizes) else ()


def _groups(layer: object) -> int | None:
    groups = getattr(layer, "groups", None)
    return groups if isinstance(groups, int) and _sizes(layer, "kernel_size") else None


def _bytes(call: LayerCall) -> Bytes | None:
    """Return the bytes of the call's results, over all repetitions."""
    scale = None if call.counted is None else call.counted.activation_size
    if scale is not None:
        return call.times * call.outputs.elements * scale
    nbytes = call.outputs.nbytes
    return None if nbytes is None else call.times * nbytes


def uncovered(calls: Iterable[LayerCall]) -> dict[str, int]:
    """Calls by operation without a formula, but for those of layers whose own formula says what they cost."""
    missed: Counter[str] = Counter()
    for call in calls:
        if not call.has_formula:
            missed.update(call.uncovered)
    return dict(missed)


ON_SHAPES = "shapes"


def count_layers(
    model: object, inputs: Inputs, formulas: Formulas = DEFAULTS, fallback: Fallback | None = None
) -> LayerTable:
    """The layers of ``model`` for one step on ``inputs`` in inference; it is left as it was found, and built if it was not.

    Args:
        model: a Keras layer or model; any other callable is counted by the fallback.
        inputs: their shapes and data types are all that is used, with the axes where the model expects them.
        fallback: counts a layer that cannot be called on symbolic tensors; without one it is listed as uncovered.

    Raises:
        Exception: whatever the model, or a formula, raised.
    """
    given = as_called(model, inputs).map(symbolic)
    trace = SymbolicTrace(formulas, fallback)
    tensors = tensors_in((given.args, dict(given.kwargs)))
    outputs = traced(model, given, trace)
    return LayerTable(
        rows=rows_of(trace, model),
        uncovered=uncovered((*trace.calls, trace.outside)),
        method=_method(trace),
        operator_calls=trace.operator_calls,
        liveness=live_bytes(trace.ran, tensors, tensors_in(outputs)),
    )


def _step(model: object, given: Inputs) -> Callable[..., object]:
    return lambda *args, **kwargs: Inputs(args, kwargs, given.forward).call(model)


def traced(model: object, given: Inputs, trace: SymbolicTrace) -> object:
    """Return the symbolic result of ``model`` for symbolic inputs, recorded by ``trace``.

    Raises:
        Exception: whatever the model, or a formula, raised.
    """
    try:
        with patching(trace):
            if not isinstance(model, keras.Layer):
                return trace.function(model, _step(model, given), given.args, dict(given.kwargs))
            if given.forward is None and private.takes_training(model):
                return model(*given.args, **{"training": trace.is_training, **given.kwargs})
            return given.call(model)
    except (CannotCall, FormulaFailed) as failed:
        raise failed.error from None


def _method(trace: SymbolicTrace) -> str:
    if not trace.fallen_back:
        return ON_SHAPES
    path, reason = next(iter(trace.fallen_back.items()))
    others = len(trace.fallen_back) - 1
    return f"{ON_SHAPES}; as a graph {path}{f' and {others} more' if others else ''}: {reason}"


# Training

NOT_COUNTED = "the backward of Keras models is not counted"


def count_training(
    model: object, inputs: Inputs, formulas: Formulas = DEFAULTS, fallback: Fallback | None = None
) -> Training:
    """One training step of ``model`` on ``inputs``: the forward is counted in training mode, the backward estimated as twice that.

    Raises:
        Unsupported: no parameter is trained.
        Exception: whatever the model, or a formula, raised.
    """
    given = as_called(model, inputs).map(symbolic)
    trace = SymbolicTrace(formulas, fallback, is_training=True)
    traced(model, given, trace)
    if not isinstance(model, keras.Layer) or not any(weight.trainable for weight in model.trainable_variables):
        raise Unsupported("no parameter requires a gradient")
    costs = [call.costs for call in (*trace.calls, trace.outside)]
    macs, flops = sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)
    return estimated_training(macs, flops, NOT_COUNTED, uncovered((*trace.calls, trace.outside)))
