"""What TensorFlow's own profiler counts in a model's graph, without freezing it: the same number, in a hundredth of the time.

Its gaps are known: nothing for a grouped convolution, which Keras runs in a compiled function; the body of a loop once, however
often it runs; no softmax, norm or activation, other than as the additions and products that they consist of. Where a graph
initialises its own variables, it counts that too; a Keras model's are not in its graph.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from sweeprof.backends.keras.arguments import as_called
from sweeprof.backends.keras.tensors import symbolic
from sweeprof.profiling.inputs import Inputs
from sweeprof.results.own_counts import OwnCounts

NAME = "tfprof"


def own_counts(model: Any, inputs: Inputs) -> OwnCounts:
    """Float operations of one forward on ``inputs``, two for a multiply-accumulate.

    Raises:
        Exception: whatever the model raised.
    """
    given = as_called(model, inputs).map(_specified)
    keywords = {"training": False} if isinstance(model, keras.Layer) and model._call_has_training_arg else {}
    step = Inputs(given.args, {**keywords, **given.kwargs}, given.forward)
    leaves = tf.nest.flatten((step.args, dict(step.kwargs)))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, tf.TensorSpec)]

    def run(*tensors: Any) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = tf.nest.pack_sequence_as((step.args, dict(step.kwargs)), filled)
        return Inputs(args, kwargs, step.forward).call(model)

    graph = tf.function(run).get_concrete_function(*(leaves[place] for place in places)).graph
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation()).with_empty_output().build()
    found = int(profiler.profile(graph=graph, options=options).total_float_ops)
    return OwnCounts({NAME: found}) if found else OwnCounts({}, {NAME: _NOTHING})


_NOTHING = (
    "TensorFlow's profiler finds no float operation in the graph; into functions, as of a SavedModel, it does not look"
)


def _specified(value: Any) -> Any:
    tensor = symbolic(value)
    return tf.TensorSpec(tensor.shape, tensor.dtype) if isinstance(tensor, keras.KerasTensor) else value
