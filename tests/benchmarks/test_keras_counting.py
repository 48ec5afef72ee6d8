"""How long a full table of a Keras model's layers takes, beside freezing its graph and asking TensorFlow's profiler.

Ratios of processor time only, both in the same run, in turns, on the same model; the first call of ours is not timed, as the first
of TensorFlow's is not.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from sweeprof.backends.tensorflow.counting import count_layers, own_counts
from sweeprof.measuring.inputs import Inputs, TensorSpec

TURNS = 3
FASTER = 10
SHAPE = (1, 224, 224, 3)


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()
    begin = time.process_time()
    run()
    return time.process_time() - begin


def _frozen(model: keras.Model) -> int:
    """Float operations, by the way that most tutorials go."""
    traced = tf.function(lambda x: model(x, training=False)).get_concrete_function(tf.TensorSpec(SHAPE))
    frozen = convert_variables_to_constants_v2(traced)
    builder = tf.compat.v1.profiler.ProfileOptionBuilder
    options = builder(builder.float_operation()).with_empty_output().build()
    return int(tf.compat.v1.profiler.profile(graph=frozen.graph, options=options).total_float_ops)


@pytest.mark.parametrize("name", ["MobileNetV2", "ResNet50"])
def test_a_full_count_takes_a_tenth_of_freezing_and_asking(name: str) -> None:
    model = getattr(keras.applications, name)(weights=None)
    inputs = Inputs((TensorSpec(SHAPE),))
    table, theirs = count_layers(model, inputs), _frozen(model)
    assert own_counts(model, inputs).counts["tfprof"] == theirs
    assert abs(theirs - 2 * table.macs) < 0.05 * theirs
    ours, frozen, asked = [], [], []
    for _ in range(TURNS):
        ours.append(_seconds(lambda: count_layers(model, inputs)))
        frozen.append(_seconds(lambda: _frozen(model)))
        asked.append(_seconds(lambda: own_counts(model, inputs)))
    own = statistics.median(ours)
    ratio, without = statistics.median(frozen) / own, statistics.median(asked) / own
    print(f"\n{name}: freezing and asking takes {ratio:.1f} of a full count, asking without freezing {without:.1f}")
    assert ratio > FASTER
