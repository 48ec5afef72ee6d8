"""Keras models with known weights, for configs that name their builders."""

from __future__ import annotations

import keras
import numpy as np


def dense(inputs: int = 16, outputs: int = 8) -> keras.Model:
    model = keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(outputs)])
    weight = np.random.default_rng(1).standard_normal((inputs, outputs)).astype(np.float32)
    bias = np.random.default_rng(2).standard_normal(outputs).astype(np.float32)
    dtype = str(model.weights[0].dtype)
    if dtype != "float32":
        weight, bias = keras.ops.cast(weight, dtype), keras.ops.cast(bias, dtype)
    model.layers[0].kernel.assign(weight)
    model.layers[0].bias.assign(bias)
    return model


def flatten() -> keras.Model:
    return keras.Sequential([keras.Input((4, 4)), keras.layers.Flatten()])


def random_dense() -> keras.Model:
    """Return a layer whose weights come from TensorFlow's generator."""
    import tensorflow as tf

    def draw(shape: tuple[int, ...], dtype: str | None = None) -> tf.Tensor:
        return tf.random.normal(shape)

    return keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, kernel_initializer=draw)])
