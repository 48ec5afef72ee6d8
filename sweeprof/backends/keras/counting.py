"""Counts a Keras model in one walk over shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from sweeprof.backends.keras.arguments import as_called
from sweeprof.backends.keras.calls import uncovered
from sweeprof.backends.keras.following import following
from sweeprof.backends.keras.rows import rows_of
from sweeprof.backends.keras.tensors import symbolic, tensors_in
from sweeprof.backends.keras.walk import CannotCall, Fallback, Walk
from sweeprof.profiling.formulas import DEFAULTS, FormulaFailed, Formulas
from sweeprof.profiling.inputs import Inputs
from sweeprof.results.layers import LayerTable

ON_SHAPES = "shapes"


def count_layers(
    model: Any, inputs: Inputs, formulas: Formulas = DEFAULTS, fallback: Fallback | None = None
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
    walk = Walk(formulas, fallback)
    tensors = tensors_in((given.args, dict(given.kwargs)))
    walk.trace.given(tensors)
    outputs = walked(model, given, walk)
    return LayerTable(
        rows=rows_of(walk, model),
        uncovered=uncovered((*walk.calls, walk.outside)),
        method=_method(walk),
        operator_calls=walk.operator_calls,
        liveness=walk.trace.result(tensors, tensors_in(outputs)),
    )


def _step(model: Any, given: Inputs) -> Callable[..., Any]:
    return lambda *args, **kwargs: Inputs(args, kwargs, given.forward).call(model)


def walked(model: Any, given: Inputs, walk: Walk, training: bool = False) -> Any:
    """What ``model`` returns for symbolic inputs, seen by ``walk``.

    Raises:
        Exception: whatever the model, or a formula, raised.
    """
    try:
        with following(walk):
            if not isinstance(model, keras.Layer):
                return walk.function(model, _step(model, given), given.args, dict(given.kwargs))
            if given.forward is None and model._call_has_training_arg:
                return model(*given.args, **{"training": training, **given.kwargs})
            return given.call(model)
    except (CannotCall, FormulaFailed) as failed:
        raise failed.error from None


def _method(walk: Walk) -> str:
    if not walk.fallen_back:
        return ON_SHAPES
    path, reason = next(iter(walk.fallen_back.items()))
    others = len(walk.fallen_back) - 1
    return f"{ON_SHAPES}; as a graph {path}{f' and {others} more' if others else ''}: {reason}"
