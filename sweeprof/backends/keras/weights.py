"""Parameters and buffers of every layer, each variable once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import keras

from sweeprof.backends.keras.recurrent import hidden_in
from sweeprof.backends.keras.tensors import dtype_of, itemsize
from sweeprof.counting.parameters import Variable, summed
from sweeprof.results.layers import Weights

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
    layers: Iterable[Any], below: Mapping[int, list[Any]], sizes: Mapping[int, Mapping[str, float]]
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


def _reached(identity: int, below: Mapping[int, list[Any]]) -> list[int]:
    found: dict[int, None] = {}
    waiting = [identity]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found[current] = None
            waiting += [id(layer) for layer in below.get(current, ())]
    return list(found)


def _variables(layer: Any, sizes: Mapping[str, float]) -> list[Variable]:
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


def _of_other(model: Any) -> list[Variable]:
    """The variables of a model that is no Keras layer, where it tells them, as a function of a SavedModel does."""
    return [
        Variable(id(v), prod(v.shape), itemsize(dtype_of(v)) or 0, dtype_of(v), v.trainable, not v.trainable)
        for v in getattr(model, "variables", ())
    ]


def _described(variable: Any, sizes: Mapping[str, float], *, is_buffer: bool) -> Variable:
    dtype = str(variable._dtype)  # as it is stored, whatever it is cast to within a layer of mixed precision
    size = sizes.get(variable.name, itemsize(dtype) or 0)
    return Variable(id(variable), prod(variable.shape), size, dtype, bool(variable.trainable), is_buffer)
