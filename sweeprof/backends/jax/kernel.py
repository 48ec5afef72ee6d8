"""The calibration kernel in JAX: one layer's work of a middling model, compiled."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from sweeprof.backends.keras.kernel import resembling_kernel
from sweeprof.profiling.kernel import CHANNELS, ROWS, SIDE, Kernel, KernelName


def kernel(model: Any, device: Any, wanted: KernelName | None) -> Kernel:
    """The kernel on ``device``; always in single precision, so that variants have the same. It is compiled here.

    Args:
        model: a Keras layer, or any function of arrays.
        device: JAX's.
        wanted: which; None: the one that resembles the model.
    """
    name = wanted or resembling_kernel(model)
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
