"""The calibration kernel in TensorFlow: one layer's work of a middling model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from sweeprof.profiling.kernel import Kernel, KernelName, resembling

CHANNELS, SIDE = 64, 28
"""As in the first stages of a ResNet, and small enough to stay in a processor's own cache, whatever memory a process was given."""
ROWS = 256
"""Of the square matrices; a product costs about a quarter of a convolution."""
_CONVOLUTIONS = tuple(
    getattr(keras.layers, f"{kind}{dims}D")
    for kind, last in (("Conv", 3), ("DepthwiseConv", 2), ("SeparableConv", 2))
    for dims in range(1, last + 1)
)


def kernel(model: Any, device: str, wanted: KernelName | None) -> Kernel:
    """The kernel on ``device``; always in single precision, so that variants have the same.

    Args:
        model: a Keras layer, or any callable of a tensor.
        device: as TensorFlow calls it.
        wanted: which; None: the one that resembles the model.
    """
    name = wanted or _resembling(model)
    with tf.device(device):
        run = _convolution() if name == "convolution" else _product()

    def step() -> None:
        with tf.device(device):
            run()
        if device != "cpu":
            tf.test.experimental.sync_devices()

    return Kernel(name, step)


def _convolution() -> Callable[[], object]:
    images = tf.ones((1, SIDE, SIDE, CHANNELS))
    weights = tf.fill((3, 3, CHANNELS, CHANNELS), 1e-3)
    return lambda: tf.nn.conv2d(images, weights, 1, "SAME")


def _product() -> Callable[[], object]:
    matrix = tf.fill((ROWS, ROWS), 1e-3)
    return lambda: tf.matmul(matrix, matrix)


def _resembling(model: Any) -> KernelName:
    layers = model._flatten_layers() if isinstance(model, keras.Layer) else ()
    kinds = [type(layer) for layer in layers]
    convolutions = sum(issubclass(kind, _CONVOLUTIONS) for kind in kinds)
    return resembling(convolutions, sum(issubclass(kind, keras.layers.Dense) for kind in kinds))
