"""Leaving a Keras model, and Keras itself, as they were found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state  # where Keras keeps the generator that `set_random_seed` seeds
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from sweeprof.backends.tensorflow.runtime import sweeprof_name


@contextmanager
def unchanged(model: object, is_trained: bool) -> Iterator[None]:
    """Put back everything that happens to ``model`` within it, also after an error.

    Restored: the values of its variables (those of the optimizer that it was compiled with too, where it is trained), the
    attributes of its layers and what their containers hold, so that a model that was never called is not built afterwards, and
    the generators of random numbers of Keras, numpy and Python. What TensorFlow itself draws without a seed cannot be taken
    back.

    Args:
        is_trained: whether an optimizer will write to its trainable variables.
    """
    attributes = [_ObjectAttributes(vars(thing)) for thing in _holders(model)]
    values = [(variable, _copy(variable)) for variable in _written(model, is_trained)]
    try:
        with _draws_kept():
            yield
    finally:
        for remembered in attributes:
            remembered.restore()
        for variable, value in values:
            native(variable).assign(value)


def device_of(model: object) -> str:
    """Return the device of the model's first variable; ``cpu`` if it has none."""
    found = next(iter(getattr(model, "variables", ())), None)
    return "cpu" if found is None else sweeprof_name(native(found).device)


def native(variable: keras.Variable | tf.Variable) -> tf.Variable:
    """A variable as TensorFlow has it."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def _copy(variable: keras.Variable | tf.Variable) -> Any:
    """Memory of its own: an identity would share the variable's, and every update would have to write elsewhere."""
    return tf.raw_ops.DeepCopy(x=native(variable))


def _written(model: object, is_trained: bool) -> list[keras.Variable]:
    """The variables that a forward may write to, or also those that an optimizer may."""
    variables = list(getattr(model, "variables", ()))
    if is_trained:
        return [*variables, *getattr(getattr(model, "optimizer", None), "variables", ())]
    trained = {id(variable) for variable in getattr(model, "trainable_variables", ())}
    return [variable for variable in variables if id(variable) not in trained]


def _holders(model: object) -> list[object]:
    """The layers of a model, and what Keras keeps of each to know its weights by."""
    layers = list(model._flatten_layers()) if isinstance(model, keras.Layer) else []
    return [*layers, *(layer._tracker for layer in layers)]


@contextmanager
def _draws_kept() -> Iterator[None]:
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    drawn = None if generator is None else _copy(generator.state)
    python, numbers = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
        if generator is not None:
            native(generator.state).assign(drawn)


class _ObjectAttributes:
    """The attributes of an object, and what those that are containers held."""

    def __init__(self, current: dict[str, Any]) -> None:
        self._current, self._before = current, dict(current)
        outer = [value for value in current.values() if _is_container(value)]
        inner = [value for held in outer if isinstance(held, dict) for value in held.values() if _is_container(value)]
        self._held = [(value, _copied(value)) for value in (*outer, *inner)]

    def restore(self) -> None:
        """Put every one back that was exchanged, added or removed."""
        self._current.clear()
        self._current.update(self._before)
        for value, content in self._held:
            _refill(value, content)


def _is_container(value: object) -> bool:
    """Proxies of TensorFlow's, which only look like a container, are none."""
    return issubclass(type(value), list | dict | set)


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else set(value)


def _refill(value: Any, content: Any) -> None:
    """Refill a container by the methods of the plain type: those of Keras's own types would track the values."""
    if isinstance(value, list):
        list.__setitem__(value, slice(None), content)
    elif isinstance(value, dict):
        dict.clear(value)
        dict.update(value, content)
    else:
        set.clear(value)
        set.update(value, content)
