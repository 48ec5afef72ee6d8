"""What the times of the layers of Keras models add up to, over what a step takes without probes; and layers run alone.

Both kinds of steps take turns. The bound is that of the layers of torch (tests/unit/backends/test_torch_layer_times.py): five per
cent in each direction. It is asked of the best of several attempts, as nothing but the wall clock tells when a graph's operator
ran, and another program may take the processor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from sweeprof.backends.tensorflow.adapter import TensorflowBackend
from sweeprof.backends.tensorflow.model import ExecutionMode
from sweeprof.errors import UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig, Work
from sweeprof.results.layer_times import OUTSIDE, LayerTimes
from sweeprof.results.record import Protocol

ATTEMPTS = 10
BOUND = 0.05
PROTOCOL = Protocol(warmup_steps=3, warmup_s=0.5, min_samples=30, min_s=1.0, max_s=20.0)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Where TensorFlow has not run yet in this process; else it stays with the threads that it has."""
    with suppress(UserError):
        TensorflowBackend().configure(seed=0)


def lenet5() -> Any:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, padding="same", activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 5, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            *(layers.Dense(units, activation="tanh") for units in (120, 84)),
            layers.Dense(10),
        ]
    )


def mobilenet() -> Any:
    return keras.applications.MobileNetV2((96, 96, 3), weights=None, classes=10)


def lstm() -> Any:
    return keras.Sequential(
        [
            keras.Input((20,), dtype="int32"),
            layers.Embedding(100, 64),
            layers.LSTM(64, return_sequences=True),
            layers.LSTM(64),
            layers.Dense(10),
        ]
    )


def vit() -> Any:
    inputs = keras.Input((32, 32, 3))
    x = layers.Reshape((64, 64))(layers.Conv2D(64, 4, 4)(inputs))
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(y, y)])
        y = layers.Dense(64)(layers.Dense(256, activation="gelu")(layers.LayerNormalization()(x)))
        x = layers.Add()([x, y])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


@dataclass(frozen=True)
class Timed:
    """A model and one batch."""

    make: Callable[[], Any]
    shape: tuple[int, ...]
    dtype: str = "float32"


MODELS = {
    "LeNet-5": Timed(lenet5, (32, 28, 28, 1)),
    "MobileNetV2": Timed(mobilenet, (4, 96, 96, 3)),
    "LSTM": Timed(lstm, (32, 20), "int32"),
    "ViT": Timed(vit, (8, 32, 32, 3)),
}


def layer_times(
    timed: Timed, mode: ExecutionMode, trains: bool, attempts: int
) -> tuple[LayerTimes, list[tuple[float, ...]]]:
    """The last times, and the sums over the whole of each attempt: forward and, where it trains, backward."""
    backend = TensorflowBackend(mode=mode)
    model = backend.load(timed.make, "cpu", None)
    batch = model.put(Inputs.of(np.random.default_rng(0).integers(0, 2, timed.shape).astype(timed.dtype)))
    work, seen = Work(batch, None, TrainingConfig("none", "mean") if trains else None), []
    for _ in range(attempts):
        times = backend.layer_times(model, work, PROTOCOL)
        covered = [times.forward_covered, *([times.backward_covered] if trains else [])]
        seen.append(tuple(each for each in covered if each is not None))
        if all(abs(each - 1) <= BOUND for each in seen[-1]):
            break
    return times, seen


@pytest.mark.timeout(900)
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mode", ["function", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_the_layers_add_up_to_the_step(name: str, mode: ExecutionMode, trains: bool) -> None:
    times, seen = layer_times(MODELS[name], mode, trains, ATTEMPTS)
    best = min(seen, key=lambda each: max(abs(part - 1) for part in each))
    overhead = [part.overhead for part in (times.summary.forward, times.summary.backward) if part is not None]
    outside = times.summary.forward.outside_s / (times.summary.forward.plain_s or 1.0)
    print(
        f"\n{name:<12} {mode:<9} {'training' if trains else 'inference':<10} {len(times.calls) - 1:>4} calls"
        f"  sum over whole {' '.join(f'{part:.3f}' for part in best)}  with probes {' '.join(f'{o or 0:.3f}' for o in overhead)}"
        f"  outside layers {outside:.2f}  attempts {len(seen)}"
        f"  threads {tf.config.threading.get_intra_op_parallelism_threads()}  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    assert all(abs(part - 1) <= BOUND for part in best), f"forward and backward: {seen}"


REPEATED = 3
"""Calls of a layer in one graph."""


@pytest.mark.timeout(300)
def test_layers_take_as_long_as_when_they_run_alone() -> None:
    """Alone a layer finds its inputs and its weights in the caches; the quickest of many calls each, whatever else runs."""
    timed = replace(MODELS["LeNet-5"], shape=(64, 28, 28, 1))
    times, _ = layer_times(timed, "function", trains=False, attempts=3)
    model = timed.make()
    shapes = {layer.name: (timed.shape[0], *layer.input.shape[1:]) for layer in model.layers}
    order = [call for call in times.calls if call.path not in (OUTSIDE, times.calls[1].path)]
    ratios = {}
    for call, layer in zip(order, model.layers, strict=True):
        inside = min(call.forward[times.warmup :])
        ratios[call.path] = (inside, _alone(layer, tf.ones(shapes[layer.name])))
    print()
    for path, (inside, alone) in ratios.items():
        print(
            f"{path:<24} in the model {inside * 1e6:8.1f} µs, alone {alone * 1e6:8.1f} µs, ratio {inside / alone:.2f}"
        )
    heavy = [pair for pair in ratios.values() if pair[0] > 5e-5]
    assert heavy
    assert 0.75 < sum(inside for inside, _ in heavy) / sum(alone for _, alone in heavy) < 2


def _alone(layer: Any, given: Any) -> float:
    """Seconds of one call, from a graph that calls the layer again and again, without what calling a graph takes."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def graph(x: Any, count: int) -> Any:
        ends: list[Any] = []
        for _ in range(count):
            with tf.control_dependencies(ends[-1:]):
                given = tf.identity(x)
            # Of each call one number is returned: what is not needed is not computed, and what waits is not fused.
            ends.append(tf.reshape(layer(given), [-1])[:1])
        return ends

    many, one = _quickest(lambda: graph(given, REPEATED)), _quickest(lambda: graph(given, 1))
    return (many - one) / (REPEATED - 1)


def _quickest(step: Callable[[], object]) -> float:
    step()
    taken = []
    for _ in range(300):
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return min(taken)
