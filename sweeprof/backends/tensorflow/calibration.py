"""What a probe costs on this machine: measured on layers that do nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

from sweeprof.backends.tensorflow.laps import Lap, laps_of
from sweeprof.backends.tensorflow.tasks import Task
from sweeprof.profiling.spans import LEFT, Cost

CALLS = 40
"""Empty layers in one step."""
PAIRS = 25
"""Steps with probes, and as many without, in alternating order; medians count."""


def calibrated(is_eager: bool, with_backward: bool) -> Cost:
    """The cost of the probes of a call, and with ``with_backward`` of a mark in the backward; seconds."""
    weight, root = tf.Variable(1.0), _Many()

    def forward() -> Any:
        outputs = root(weight * tf.ones((4, 4)))
        return tf.reduce_mean(outputs) if with_backward else outputs

    plain: list[Lap] = []
    probed: list[Lap] = []
    with _without_keras():
        laps = laps_of(Task(root, forward, (), (weight,) if with_backward else ()), is_eager)
        for number in range(PAIRS):
            for is_probed in (False, True) if number % 2 else (True, False):
                (probed if is_probed else plain).append(laps.lap(is_probed))
    inside = statistics.median(map(_window, probed))
    whole = _added(plain, probed, lambda lap: lap.turned - lap.begin) / (CALLS + 1)
    backward = _added(plain, probed, lambda lap: lap.end - lap.turned) / max(1, len(probed[-1].backward))
    return Cost(inside, max(0.0, whole - inside), max(0.0, backward))


@contextmanager
def _without_keras() -> Iterator[None]:
    """Within it an empty layer is called without what Keras does around a call, which would be taken for the probes' cost."""
    call = keras.Layer.__call__

    def called(layer: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        return args[0] if isinstance(layer, _Empty) else call(layer, *args, **kwargs)

    with patch.object(keras.Layer, "__call__", called):
        yield


def _added(plain: list[Lap], probed: list[Lap], seconds: Callable[[Lap], float]) -> float:
    """Return the median of what probes added to the step beside them."""
    differences = [seconds(after) - seconds(before) for before, after in zip(plain, probed, strict=True)]
    return statistics.median(differences)


def _window(lap: Lap) -> float:
    """Median seconds within the window of an empty call; an interrupted one does not count."""
    windows = [b[2] - a[2] for a, b in zip(lap.forward, lap.forward[1:], strict=False) if a[0] != LEFT and b[0] == LEFT]
    median: float = statistics.median(windows)
    return median


class _Empty(keras.Layer):  # type: ignore[misc]
    """Returns what it is given."""


class _Many(keras.Layer):  # type: ignore[misc]
    """Empty calls."""

    def __init__(self) -> None:
        super().__init__(name="many")
        self.built = True  # it has no weights
        self.inner = [_Empty(name=f"empty_{number}") for number in range(CALLS)]

    def call(self, x: Any) -> Any:
        for layer in self.inner:
            x = layer(x)
        return x
