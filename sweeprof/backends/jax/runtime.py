"""JAX's own run-time: how many threads it computes with, and its devices by the names that sweeprof uses.

XLA's client makes its pools when it starts, which is when the first device is asked for, and keeps them. Measured on two cores by
the processor time of each thread (jax 0.10.2): ``NPROC=1`` leaves one computing thread, while
``--xla_cpu_multi_thread_eigen=false`` and the option of that name in a compilation change nothing, and no flag sets a number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from sweeprof.backends.keras.kernel import resembling_kernel
from sweeprof.errors import Problem, UserError
from sweeprof.measuring.calibration import CHANNELS, ROWS, SIDE, Kernel, KernelName

VARIABLE = "NPROC"
"""Where XLA looks first for the number of processors (``DefaultThreadPoolSize``); it has no other switch."""

_started: list[tuple[int, bool]] = []
"""With what this process's client was started by :func:`start`; nothing before."""


def start(threads: int, async_dispatch: bool) -> None:
    """Start the client with that many threads within an operator.

    Args:
        threads: at least 1.
        async_dispatch: whether calls return before their work is done, which another thread then does.

    Raises:
        UserError: this process's client was started with other settings.
    """
    wanted = (threads, async_dispatch)
    if _started == [wanted]:
        return
    if _started or _is_running():
        message = "is fixed once JAX has started; set it in a fresh process."
        raise UserError([Problem("backend.threads", threads, message)])
    jax.config.update("jax_cpu_enable_async_dispatch", async_dispatch)
    with _processors(threads):
        jax.local_devices(backend="cpu")
    _started.append(wanted)


def _is_running() -> bool:
    """True if the process already has a JAX client."""
    from jax._src import xla_bridge  # which has no public name

    return bool(xla_bridge.backends_are_initialized())


@contextmanager
def _processors(number: int) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def device_names() -> list[str]:
    """``cpu`` and, where JAX sees GPUs, ``cuda``, ``cuda:0`` …"""
    gpus = _gpus()
    return ["cpu"] + (["cuda", *(f"cuda:{index}" for index in range(len(gpus)))] if gpus else [])


def device_named(name: str) -> jax.Device:
    """JAX's device of that name."""
    kind, _, index = name.partition(":")
    found = _gpus() if kind == "cuda" else jax.local_devices(backend=kind)
    return found[int(index or 0)]


def _gpus() -> list[jax.Device]:
    return [device for device in jax.local_devices() if device.platform == "gpu"]


def kernel(model: object, device: jax.Device, wanted: KernelName | None) -> Kernel:
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
