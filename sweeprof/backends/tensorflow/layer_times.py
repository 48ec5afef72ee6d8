"""The time of every layer call, forward and backward: steps with probes and steps without alternate.

Operator by operator, marks are taken by Python. In a graph they are taken by the graph itself, which is traced twice, with probes
and without. With probes its operators run in the order of the layers, and none is fused with one of another layer: what that adds
is part of the difference between the two, which is told beside the times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import keras
import tensorflow as tf

from sweeprof.backends.tensorflow.model import TensorflowModel
from sweeprof.backends.tensorflow.steps import TimedStep, timed_steps_of
from sweeprof.backends.tensorflow.training import StepPhases, step_phases_of
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import LEFT, Cost, Reader, Turn, in_turns, timed_in_turns
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.protocol import Protocol

CALLS = 40
"""Empty layers in one step."""
PAIRS = 25
"""Steps with probes, and as many without, in alternating order; medians count."""


def calibrated(is_eager: bool, with_backward: bool) -> Cost:
    """The cost of the probes of a call, and with ``with_backward`` of a mark in the backward; seconds."""
    weight, root = tf.Variable(1.0), _EmptyLayers()

    def forward() -> object:
        outputs = root(weight * tf.ones((4, 4)))
        return tf.reduce_mean(outputs) if with_backward else outputs

    plain: list[TimedStep] = []
    probed: list[TimedStep] = []
    with _without_keras():
        steps = timed_steps_of(StepPhases(root, forward, (), (weight,) if with_backward else ()), is_eager)
        for number in range(PAIRS):
            for is_probed in (False, True) if number % 2 else (True, False):
                (probed if is_probed else plain).append(steps.run_step(is_probed))
    inside = statistics.median(map(_window, probed))
    whole = _added(plain, probed, lambda step: step.turned - step.begin) / (CALLS + 1)
    backward = _added(plain, probed, lambda step: step.end - step.turned) / max(1, len(probed[-1].backward))
    return Cost(inside, max(0.0, whole - inside), max(0.0, backward))


@contextmanager
def _without_keras() -> Iterator[None]:
    """Within it an empty layer is called without what Keras does around a call, which would be taken for the probes' cost."""
    call = keras.Layer.__call__

    def called(layer: keras.Layer, *args: object, **kwargs: object) -> object:
        return args[0] if isinstance(layer, _EmptyLayer) else call(layer, *args, **kwargs)

    with patch.object(keras.Layer, "__call__", called):
        yield


def _added(plain: list[TimedStep], probed: list[TimedStep], seconds: Callable[[TimedStep], float]) -> float:
    """Return the median of what probes added to the step beside them."""
    differences = [seconds(after) - seconds(before) for before, after in zip(plain, probed, strict=True)]
    return statistics.median(differences)


def _window(step: TimedStep) -> float:
    """Median seconds within the window of an empty call; an interrupted one does not count."""
    windows = [
        b[2] - a[2] for a, b in zip(step.forward, step.forward[1:], strict=False) if a[0] != LEFT and b[0] == LEFT
    ]
    median: float = statistics.median(windows)
    return median


class _EmptyLayer(keras.Layer):  # type: ignore[misc]
    """A layer that returns its input."""


class _EmptyLayers(keras.Layer):  # type: ignore[misc]
    """Empty calls."""

    def __init__(self) -> None:
        super().__init__(name="many")
        self.built = True  # it has no weights
        self.inner = [_EmptyLayer(name=f"empty_{number}") for number in range(CALLS)]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        for layer in self.inner:
            x = layer(x)
        return x


def layer_times(model: TensorflowModel, work: Work, protocol: Protocol) -> LayerTimes:
    """The layers' times of inference, or of training with a config; as many repeats as the protocol asks of a round.

    Raises:
        Unsupported: the model has no layers when it runs, it is on an accelerator, or the training config does not fit it.
        Exception: whatever the model raised.
    """
    if model.device != "cpu":
        raise Unsupported("timestamps are the host's, which is ahead of an accelerator: layers are timed on the CPU")
    task, is_eager, clock = step_phases_of(model, work), model.variant.mode == "eager", model.clock()
    with tf.device(model.device), without_collection():
        steps = timed_steps_of(task, is_eager)

        reader = Reader(steps.described, clock.between)
        pairs = in_turns(lambda: _read(steps.run_step(False), None), lambda: _read(steps.run_step(True), reader))
        calibrate = partial(calibrated, is_eager, task.trains)
        return timed_in_turns(pairs, calibrate, clock.now, protocol, task.trains)


def _read(timed: TimedStep, reader: Reader | None) -> Turn:
    """Return the times of a step and, with a reader of timestamps, of each call in it."""
    forward, backward = timed.turned - timed.begin, timed.end - timed.turned
    if reader is None:
        return Turn(forward, backward)
    step, timeline = reader.step(timed.forward, timed.begin, timed.turned)
    if timed.backward:
        reader.backward(step, timeline, timed.backward, timed.turned, timed.end)
    return Turn(forward, backward, step)
