"""Keras models on JAX, compiled by XLA or eager.

XLA's client makes its pools when it starts, which is when the first device is asked for, and keeps them. Measured on two cores by
the processor time of each thread (jax 0.10.2): ``NPROC=1`` leaves one computing thread, while
``--xla_cpu_multi_thread_eigen=false`` and the option of that name in a compilation change nothing, and no flag sets a number.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from unittest.mock import patch

import jax
import keras
import numpy as np

from sweeprof.backends import Build, Gap, device_names
from sweeprof.backends.jax import private
from sweeprof.backends.jax.model import JaxModel, JaxTraining, training
from sweeprof.backends.keras.calls import NO_GENERATION, NO_GRAPH, NO_PEAKS, KerasBackend
from sweeprof.backends.keras.counting import count_layers, count_training
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Problem, Unsupported, UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig
from sweeprof.results.layers import LayerTable, Training


@dataclass(frozen=True, slots=True)
class JaxBackend(KerasBackend):
    """Keras models called with ``training=False``; ``KERAS_BACKEND=jax`` must be set before Keras is imported."""

    tensor_package: ClassVar[str] = "jax"
    gaps: ClassVar[Mapping[str, Gap]] = {
        "graph": NO_GRAPH,
        "own_counts": Gap("not implemented", "XLA's analysis of costs is not read"),
        "artifact": Gap("makes no sense", "JAX runs the model that its builder makes, and loads no file of it"),
        "generating": NO_GENERATION,
        "analyze_generation": NO_GENERATION,
        "watch": Gap("not implemented", "what runs is one compiled function, which no call of a layer can be seen in"),
        "layer_times": Gap("not implemented", "XLA fuses layers; its profiler's trace is not taken apart by layer"),
        "operators": Gap("not implemented", "the trace of JAX's profiler is not read"),
        "allocations": Gap("not possible upstream", "XLA plans one arena per program, and reports no allocation"),
        "peaks": NO_PEAKS,
        "lines": Gap("makes no sense", "the model's Python runs once, while it is traced, and not in a step"),
    }
    mode: Literal["jit", "eager"] = "jit"
    """``jit`` compiles the model once per input shape, ``eager`` runs (and compiles) operator by operator."""
    async_dispatch: bool = False
    """True: a call returns before its work is done, which is JAX's default. A step waits for it anyway, so this only adds the
    hand-over to another thread: 5 to 10 µs a step."""

    def configure(self, seed: int) -> None:
        start(self.threads, self.async_dispatch)
        # Not `keras.utils.set_random_seed`, which imports TensorFlow; Keras draws its seeds from Python's generator.
        random.seed(seed)
        np.random.seed(seed)

    def settings_in_effect(self, model: JaxModel | None = None) -> Mapping[str, Any]:
        # Threads are fixed when JAX starts, and it does not tell their number.
        return {
            "64 bits": bool(jax.config.jax_enable_x64),
            "default matmul precision": jax.config.jax_default_matmul_precision,
            "jit disabled": bool(jax.config.jax_disable_jit),
            "default device": None if jax.config.jax_default_device is None else str(jax.config.jax_default_device),
            "dtype policy": keras.config.dtype_policy().name,
            "floatx": keras.config.floatx(),
            **({} if model is None or self.precision is None else {"precision method": self.method()}),
        }

    def devices(self) -> list[str]:
        return device_names(len(_gpus()))

    def load(self, build: Build, device: str, channel_axis: int | None) -> JaxModel:
        place = device_named(device)
        with jax.default_device(place), _quickly_built(self.mode == "jit"):
            model = _checked(self.built(build))
        return JaxModel(model, place, self.mode == "jit", self.moved(channel_axis), self.dtype)

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        return count_layers(*self.described(build, inputs, channel_axis), formulas)

    def analyze_training(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> Training:
        return count_training(*self.described(build, inputs, channel_axis), formulas)

    def training(
        self, model: JaxModel, batch: Inputs, targets: object, config: TrainingConfig
    ) -> AbstractContextManager[JaxTraining]:
        return training(model, batch, targets, config)

    def device_of(self, model: object) -> str:
        weights = model.weights if isinstance(model, keras.Layer) else ()
        device = min(weights[0].value.devices(), key=lambda device: device.id) if weights else jax.local_devices()[0]
        return {"cpu": "cpu", "gpu": f"cuda:{device.id}"}.get(device.platform, f"{device.platform}:{device.id}")

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, jax.errors.JaxRuntimeError) and str(error).startswith("RESOURCE_EXHAUSTED")

    def described(self, build: Build, inputs: Inputs, channel_axis: int | None) -> tuple[object, Inputs]:
        with _quickly_built(is_compiled=True):
            model, called = KerasBackend.described(self, build, inputs, channel_axis)
        return _checked(model), called


def _checked(model: object) -> object:
    """The model, if it is one.

    Raises:
        Unsupported: Keras runs on another framework in this process.
    """
    if isinstance(model, keras.Layer) and keras.backend.backend() != "jax":
        message = f"Keras runs on {keras.backend.backend()} in this process"
        raise Unsupported(f"{message}; set KERAS_BACKEND=jax before it is imported")
    return model


@contextmanager
def _quickly_built(is_compiled: bool) -> Iterator[None]:
    """Within it XLA optimizes little: each initialiser of a weight is a program of its own, which takes seconds to optimize and
    microseconds to run, once. Weights differ in their last bit. What is compiled later, inner functions included, is optimized.

    Args:
        is_compiled: else a step would reuse what was compiled here.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", is_compiled or before)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


# JAX itself

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
    if _started or private.is_running():
        message = "is fixed once JAX has started; set it in a fresh process."
        raise UserError([Problem("backend.threads", threads, message)])
    jax.config.update("jax_cpu_enable_async_dispatch", async_dispatch)
    with patch.dict(os.environ, {VARIABLE: str(threads)}):
        jax.local_devices(backend="cpu")
    _started.append(wanted)


def device_named(name: str) -> jax.Device:
    """JAX's device of that name."""
    kind, _, index = name.partition(":")
    found = _gpus() if kind == "cuda" else jax.local_devices(backend=kind)
    return found[int(index or 0)]


def _gpus() -> list[jax.Device]:
    return [device for device in jax.local_devices() if device.platform == "gpu"]
