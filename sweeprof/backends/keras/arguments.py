"""What a Keras model is called with."""

from __future__ import annotations

from typing import Any

import keras

from sweeprof.profiling.inputs import Inputs

GRAPHS = (keras.Sequential.call, keras.src.models.Functional.call)
OF_A_CALL = ("training", "mask")
"""Keywords of every layer's call, which are no tensors of the model's own."""


def as_called(model: Any, inputs: Inputs) -> Inputs:
    """The arguments as Keras takes them: a model made of a graph has one, and several tensors are a list or a mapping in it."""
    if inputs.forward is not None or getattr(type(model), "call", None) not in GRAPHS:
        return inputs
    if len(inputs.args) > 1 and not inputs.kwargs:
        return Inputs((list(inputs.args),))
    own = {name: value for name, value in inputs.kwargs.items() if name not in OF_A_CALL}
    if not inputs.args and own:
        is_one = len(own) == 1 and not isinstance(getattr(model, "_inputs_struct", None), dict)
        given = next(iter(own.values())) if is_one else own
        return Inputs((given,), {name: value for name, value in inputs.kwargs.items() if name in OF_A_CALL})
    return inputs
