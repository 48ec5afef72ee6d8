"""A Keras model in a caller's hands: profiled in all passes, and left as it was found."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import sweeprof
from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.results.record import Protocol

X = np.random.default_rng(0).standard_normal((4, 6), np.float32)
SHORT = Protocol(warmup_steps=1, warmup_s=0, sample_s=0, min_samples=3, min_s=0)


class Subclassed(keras.Model):  # type: ignore[misc]
    """Nested, with every kind of state: weights, moving averages, a seed, a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(5)
        self.inner = keras.Sequential(
            [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        )
        self.calls: list[int] = []

    def call(self, x: Any, training: bool = False) -> Any:
        self.calls.append(1)
        self.marked = True
        return self.inner(self.first(x), training=training)


def compiled() -> Any:
    model = Subclassed()
    model(X)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    return model


def state(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer is not None else ())]
    return [(variable.path, variable.numpy().tolist()) for variable in variables]


def attributes(model: Any) -> list[Any]:
    """Of every layer: names, identities, and how much its containers hold."""
    return [
        {
            name: (id(value), len(value) if isinstance(value, list | dict | set) else None)
            for name, value in vars(thing).items()
        }
        for layer in model._flatten_layers()
        for thing in (layer, layer._tracker)
    ]


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_trained_model_is_as_it_was(mode: Any) -> None:
    model = compiled()
    before, held = state(model), attributes(model)
    sweeprof.profile(
        model,
        X,
        ["latency/forward", "latency/iteration", "latency/update"],
        backend=TensorflowBackend(mode=mode),
        mode="training",
        optimizer=lambda variables: model.optimizer,
        protocol=SHORT,
    )
    assert state(model) == before
    assert attributes(model) == held
    model.fit(X, np.zeros(4), verbose=0)  # its own compiled functions are whole
    assert state(model) != before


def test_a_model_that_was_never_called_is_not_built_afterwards() -> None:
    model = Subclassed()
    before = attributes(model)
    found = sweeprof.profile(model, (4, 6), ["latency/forward"], protocol=SHORT)
    assert found["latency/forward"].value is not None
    assert attributes(model) == before
    assert (model.built, model.weights, model.calls) == (False, [], [])
    assert model(np.ones((2, 9), np.float32)).shape == (2, 3)  # it may still become one for another shape
    assert len(model.weights) == 2 + 4 + 2


def test_also_after_an_error() -> None:
    model = compiled()
    before, held = state(model), attributes(model)
    with pytest.raises(ValueError, match=r"^Exception encountered when calling"):  # as Keras says it, and not AutoGraph
        sweeprof.profile(model, (4, 7), ["latency/forward"], protocol=SHORT)
    assert (state(model), attributes(model)) == (before, held)


@pytest.mark.parametrize("has_generator", [True, False])
def test_the_callers_random_numbers_stay(has_generator: bool) -> None:
    """Also where Keras makes its generator only within."""
    model = compiled()

    def drawn(between: Callable[[], object]) -> list[float]:
        keras.utils.set_random_seed(3)
        if has_generator:
            keras.random.uniform(())
        between()
        return [random.random(), float(np.random.rand()), float(keras.random.uniform(()))]

    def disturbed() -> None:
        with TensorflowBackend().borrowed(model):
            drawing = keras.layers.Dropout(0.5)(np.ones((2, 2), np.float32), training=True)
            keras.random.uniform(tf.shape(drawing))
            random.random()
            np.random.rand()
        eager = TensorflowBackend(mode="eager")
        sweeprof.profile(model, X, ["latency/iteration"], backend=eager, mode="training", protocol=SHORT)

    assert drawn(disturbed) == drawn(lambda: None)
