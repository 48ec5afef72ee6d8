"""Counts a Keras model in one trace over shapes, and the parameters and buffers of every layer, each variable once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import keras

from sweeprof.backends.keras.calls import LayerCall, as_called, uncovered
from sweeprof.backends.keras.layer_overrides import hidden_in
from sweeprof.backends.keras.symbolic_trace import CannotCall, Fallback, SymbolicTrace, patching
from sweeprof.backends.keras.tensors import dtype_of, itemsize, symbolic, tensors_in
from sweeprof.counting.formulas import DEFAULTS, Cost, FormulaFailed, Formulas
from sweeprof.counting.parameters import Variable, summed
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import Bytes, LayerRow, LayerTable, Weights

_STORED_SMALLER = frozenset({"int8", "int4", "gptq", "awq"})
"""Quantisations that store weights otherwise; ``float8`` scales them as it computes."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of every layer, by the identity of the layer."""

    own: dict[int, Weights]
    """Without what a layer before it holds already."""
    subtree: dict[int, Weights]
    """With everything below, each variable once."""


def inventory(
    layers: Iterable[keras.Layer], below: Mapping[int, list[keras.Layer]], sizes: Mapping[int, Mapping[str, float]]
) -> LayerWeights:
    """The weights of every layer.

    Args:
        layers: each once, those that come first own what they share with others.
        below: by the identity of a layer, those that it holds or calls.
        sizes: by the identity of a layer, bytes per element by name of variable, where a layer declares them.
    """
    held = {id(layer): _variables(layer, sizes.get(id(layer), {})) for layer in layers}
    before: set[Hashable] = set()
    own = {}
    for identity, variables in held.items():
        fresh = {variable.key: variable for variable in variables if variable.key not in before}
        before.update(fresh)
        own[identity] = summed(fresh.values())
    subtree = {}
    for identity in held:
        inner = {variable.key: variable for found in _reached(identity, below) for variable in held.get(found, ())}
        subtree[identity] = summed(inner.values())
    return LayerWeights(own, subtree)


def _reached(identity: int, below: Mapping[int, list[keras.Layer]]) -> list[int]:
    found: dict[int, None] = {}
    waiting = [identity]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found[current] = None
            waiting += [id(layer) for layer in below.get(current, ())]
    return list(found)


def _variables(layer: keras.Layer, sizes: Mapping[str, float]) -> list[Variable]:
    """Parameters, and state that no optimizer sees.

    Keras keeps what an optimizer may change in ``_trainable_variables`` whether or not the layer is frozen; its public lists move
    frozen parameters in with moving statistics. The weights of a quantised layer, which no optimizer can change, are parameters
    too. The state of a random generator is none of the model's.
    """
    if not isinstance(layer, keras.Layer):
        return _of_other(layer)
    found = []
    for owner in (layer, *hidden_in(layer)):
        is_quantised = owner.quantization_mode in _STORED_SMALLER
        found += [_described(variable, sizes, is_buffer=False) for variable in owner._trainable_variables]
        for variable in owner._non_trainable_variables:
            if not variable.path.endswith("seed_generator_state"):
                found.append(_described(variable, sizes, is_buffer=not is_quantised))
    return found


def _of_other(model: object) -> list[Variable]:
    """The variables of a model that is no Keras layer, where it tells them, as a function of a SavedModel does."""
    return [
        Variable(id(v), prod(v.shape), itemsize(dtype_of(v)) or 0, dtype_of(v), v.trainable, not v.trainable)
        for v in getattr(model, "variables", ())
    ]


def _described(variable: keras.Variable, sizes: Mapping[str, float], *, is_buffer: bool) -> Variable:
    dtype = str(variable._dtype)  # as it is stored, whatever it is cast to within a layer of mixed precision
    size = sizes.get(variable.name, itemsize(dtype) or 0)
    return Variable(id(variable), prod(variable.shape), size, dtype, bool(variable.trainable), is_buffer)


_AS_COUNTED = Cost()
_NO_WEIGHTS = Weights()


def rows_of(trace: SymbolicTrace, root: object) -> tuple[LayerRow, ...]:
    """One row per call in the order of the calls, then every layer that was never called."""
    called = {id(call.layer) for call in trace.calls}
    below = _below(trace, root)
    layers = _known(root, below)
    declared = {id(c.layer): c.counted.param_size for c in trace.calls if c.counted is not None}
    weights = inventory(layers.values(), below, declared)
    position: dict[LayerCall | None, int] = {}
    times: Counter[str] = Counter()
    rows: list[LayerRow] = []

    def add(call: LayerCall, index: int) -> None:
        position[call] = len(rows)
        own = weights.own.pop(id(call.layer), _NO_WEIGHTS)
        rows.append(_row(call, own, weights.subtree.get(id(call.layer)), index, position.get(call.parent)))

    for call in trace.calls:
        add(call, times[call.path])
        times[call.path] += 1
    for layer, path in _uncalled(trace, root, below, called):
        add(LayerCall(layer, path, None), -1)
    if trace.outside.operators:
        rows.append(_row(trace.outside, _NO_WEIGHTS, None, 0, None))
    return tuple(rows)


def parts_of(layer: keras.Layer) -> list[keras.Layer]:
    """The layers that a layer holds, but for inputs, which do nothing, and those that are how it is made."""
    if not isinstance(layer, keras.Layer):
        return []
    hidden = {id(part) for part in hidden_in(layer)}
    return [part for part in layer._layers if not isinstance(part, keras.layers.InputLayer) and id(part) not in hidden]


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


def _known(root: object, below: dict[int, list[keras.Layer]]) -> dict[int, keras.Layer]:
    """The root and every layer below it by identity, each once, parents first."""
    found: dict[int, keras.Layer] = {}
    waiting = [root]
    while waiting:
        layer = waiting.pop()
        if id(layer) not in found:
            found[id(layer)] = layer
            waiting += reversed(below[id(layer)])
    return found


def _uncalled(
    trace: SymbolicTrace, root: object, below: dict[int, list[keras.Layer]], called: set[int]
) -> list[tuple[keras.Layer, str]]:
    """Layers that were never called, with paths below the layers that hold them."""
    paths = {id(call.layer): call.path for call in reversed(trace.calls)}
    found = []
    for layer in _known(root, below).values():
        path = paths.get(id(layer), ROOT)
        for part in parts_of(layer):
            if id(part) not in called and id(part) not in paths:
                paths[id(part)] = trace.paths.below(path, part)
                found.append((part, paths[id(part)]))
    return found


def _row(call: LayerCall, own: Weights, subtree: Weights | None, index: int, parent: int | None) -> LayerRow:
    macs, flops, ops = call.costs
    inputs, outputs, message = call.inputs, call.outputs, call.counted or _AS_COUNTED
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
        input_shapes=message.input_shapes or inputs.shapes,
        output_shapes=message.output_shapes or outputs.shapes,
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
        kernel_size=_sizes(call.layer, "kernel_size", "pool_size"),
        stride=_sizes(call.layer, "strides"),
        groups=_groups(call.layer),
    )


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
    trace.lifetimes.given(tensors)
    outputs = traced(model, given, trace)
    return LayerTable(
        rows=rows_of(trace, model),
        uncovered=uncovered((*trace.calls, trace.outside)),
        method=_method(trace),
        operator_calls=trace.operator_calls,
        liveness=trace.lifetimes.result(tensors, tensors_in(outputs)),
    )


def _step(model: object, given: Inputs) -> Callable[..., object]:
    return lambda *args, **kwargs: Inputs(args, kwargs, given.forward).call(model)


def traced(model: object, given: Inputs, trace: SymbolicTrace, training: bool = False) -> object:
    """Return the symbolic result of ``model`` for symbolic inputs, recorded by ``trace``.

    Raises:
        Exception: whatever the model, or a formula, raised.
    """
    try:
        with patching(trace):
            if not isinstance(model, keras.Layer):
                return trace.function(model, _step(model, given), given.args, dict(given.kwargs))
            if given.forward is None and model._call_has_training_arg:
                return model(*given.args, **{"training": training, **given.kwargs})
            return given.call(model)
    except (CannotCall, FormulaFailed) as failed:
        raise failed.error from None


def _method(trace: SymbolicTrace) -> str:
    if not trace.fallen_back:
        return ON_SHAPES
    path, reason = next(iter(trace.fallen_back.items()))
    others = len(trace.fallen_back) - 1
    return f"{ON_SHAPES}; as a graph {path}{f' and {others} more' if others else ''}: {reason}"
