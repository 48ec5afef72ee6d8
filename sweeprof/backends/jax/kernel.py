"""The calibration kernel in JAX: one layer's work of a middling model, compiled."""

from __future__ import annotations

from typing import Any

import jax
import keras
from jax import lax
from jax import numpy as jnp

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


def kernel(model: Any, device: Any, wanted: KernelName | None) -> Kernel:
    """The kernel on ``device``; always in single precision, so that variants have the same. It is compiled here.

    Args:
        model: a Keras layer, or any function of arrays.
        device: JAX's.
        wanted: which; None: the one that resembles the model.
    """
    name = wanted or _resembling(model)
    with jax.default_device(device):
        run, left, right = _convolution() if name == "convolution" else _product()

    def step() -> None:
        run(left, right).block_until_ready()

    step()
    return Kernel(name, step)


def _convolution() -> tuple[Any, jax.Array, jax.Array]:
    images = jnp.ones((1, SIDE, SIDE, CHANNELS))
    weights = jnp.full((3, 3, CHANNELS, CHANNELS), 1e-3)
    layout = ("NHWC", "HWIO", "NHWC")
    return (
        jax.jit(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)),
        images,
        weights,
    )


def _product() -> tuple[Any, jax.Array, jax.Array]:
    matrix = jnp.full((ROWS, ROWS), 1e-3)
    return jax.jit(jnp.matmul), matrix, matrix


def _resembling(model: Any) -> KernelName:
    layers = model._flatten_layers() if isinstance(model, keras.Layer) else ()
    kinds = [type(layer) for layer in layers]
    convolutions = sum(issubclass(kind, _CONVOLUTIONS) for kind in kinds)
    return resembling(convolutions, sum(issubclass(kind, keras.layers.Dense) for kind in kinds))
