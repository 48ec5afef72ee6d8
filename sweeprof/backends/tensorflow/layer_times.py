"""How long every call of every layer takes, forward and backward: steps with probes and steps without, in turns.

Operator by operator, marks are taken by Python. In a graph they are taken by the graph itself, which is traced twice, with probes
and without. With probes its operators run in the order of the layers, and none is fused with one of another layer: what that adds
is part of the difference between the two, which is told beside the times.
"""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from sweeprof.backends.tensorflow.calibration import calibrated
from sweeprof.backends.tensorflow.laps import Lap, laps_of
from sweeprof.backends.tensorflow.model import TensorflowModel
from sweeprof.backends.tensorflow.tasks import task_of
from sweeprof.errors import Unsupported
from sweeprof.profiling.layer_timing import Turn, in_turns, timed_in_turns
from sweeprof.profiling.recipe import Work
from sweeprof.profiling.spans import Reader
from sweeprof.profiling.timing import Protocol, without_collection
from sweeprof.results.layer_times import LayerTimes


def layer_times(model: TensorflowModel, work: Work, protocol: Protocol) -> LayerTimes:
    """The layers' times of inference, or with a recipe of training; as many repeats as the protocol asks of a round.

    Raises:
        Unsupported: the model has no layers when it runs, it is on an accelerator, or the recipe does not fit it.
        Exception: whatever the model raised.
    """
    if model.device != "cpu":
        raise Unsupported("timestamps are the host's, which is ahead of an accelerator: layers are timed on the CPU")
    task, is_eager, clock = task_of(model, work), model.variant.mode == "eager", model.clock()
    with tf.device(model.device), without_collection():
        laps = laps_of(task, is_eager)

        reader = Reader(laps.described, clock.between)
        pairs = in_turns(lambda: _read(laps.lap(False), None), lambda: _read(laps.lap(True), reader))
        calibrate = partial(calibrated, is_eager, task.trains)
        return timed_in_turns(pairs, calibrate, clock.now, protocol, task.trains)


def _read(lap: Lap, reader: Reader | None) -> Turn:
    """What a step took, and with a reader of its marks what each call did."""
    forward, backward = lap.turned - lap.begin, lap.end - lap.turned
    if reader is None:
        return Turn(forward, backward)
    step, timeline = reader.step(lap.forward, lap.begin, lap.turned)
    if lap.backward:
        reader.backward(step, timeline, lap.backward, lap.turned, lap.end)
    return Turn(forward, backward, step)
