"""The calibration kernel in TensorFlow: one layer's work of a middling model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sweeprof.backends.keras.kernel import resembling_kernel
from sweeprof.profiling.kernel import CHANNELS, ROWS, SIDE, Kernel, KernelName


def kernel(model: Any, device: str, wanted: KernelName | None) -> Kernel:
    """The kernel on ``device``; always in single precision, so that variants have the same.

    Args:
        model: a Keras layer, or any callable of a tensor.
        device: as TensorFlow calls it.
        wanted: which; None: the one that resembles the model.
    """
    name = wanted or resembling_kernel(model)
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
