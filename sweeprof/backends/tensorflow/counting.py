"""Counts what cannot be called on Keras's symbolic tensors, on the graph that ``tf.function`` traces of it: nothing is run.

Keras models are counted by ``sweeprof.backends.keras``. This is for layers that call TensorFlow itself, and for models that are
no Keras layers. A Keras layer that such code calls is again counted by the symbolic trace, and is a placeholder in the graph, so
that the rest of the graph is the outer layer's own. Every operator that the outputs, or the inner layers, depend on is counted by
a formula, known to do no arithmetic, or listed as uncovered. Loops are uncovered: their bodies run an unknown number of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
from tensorflow.python.ops import handle_data_util

from sweeprof.backends.keras import counting as of_keras
from sweeprof.backends.keras import training as training_of_keras
from sweeprof.backends.keras.calls import as_called
from sweeprof.backends.keras.symbolic_trace import replaced
from sweeprof.backends.keras.tensors import symbolic
from sweeprof.backends.tensorflow.costs import COSTS, FREE, TensorflowCall, sized
from sweeprof.counting.formulas import DEFAULTS, Args, Formulas, Kwargs
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.results.layers import LayerTable, Training
from sweeprof.results.operators import OwnCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sweeprof.backends.keras.symbolic_trace import SymbolicTrace


PREFIX = "tensorflow::"


def count_layers(model: object, inputs: Inputs, formulas: Formulas = DEFAULTS) -> LayerTable:
    """The layers of a Keras model, or of any callable of tensors, for ``inputs`` in the layout that the model expects.

    Raises:
        Exception: whatever the model, or a formula, raised.
    """
    return of_keras.count_layers(model, inputs, formulas, count_graph)


def count_training(model: object, inputs: Inputs, formulas: Formulas = DEFAULTS) -> Training:
    """One training step of a Keras model.

    Raises:
        Unsupported: no parameter is trained.
        Exception: whatever the model, or a formula, raised.
    """
    return training_of_keras.count_training(model, inputs, formulas, count_graph)


def count_graph(trace: SymbolicTrace, compute: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Count ``compute`` into the call that is running, and return what it does as symbolic tensors."""
    leaves = keras.tree.flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, keras.KerasTensor)]
    start_over = tf.autograph.experimental.do_not_convert(trace.beginning())

    def run(*tensors: object) -> object:
        start_over()  # a function that makes variables is traced twice
        entering.clear()
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        positional, named = keras.tree.pack_sequence_as((args, kwargs), filled)
        return compute(*positional, **named)

    specs = [tf.TensorSpec(leaves[place].shape, leaves[place].dtype) for place in places]
    with _layers_apart(trace) as entering:
        traced = tf.function(run).get_concrete_function(*specs)
    graph = traced.graph
    wanted = [*tf.nest.flatten(traced.outputs), *(tensor for tensor in entering if tensor.graph is graph)]
    for operator in reversed(list(_reachable(graph, wanted))):
        _count(trace, operator)
    outputs = _sized(trace, keras.tree.map_structure(_tensor, traced.structured_outputs), args, kwargs)
    trace.lifetimes.ran(trace.current.path, [leaves[place] for place in places], keras.tree.flatten(outputs))
    return outputs


def _symbolic(value: object) -> Any:
    return symbolic(value) if tf.is_tensor(value) else value


def _tensor(value: Any) -> Any:
    """A symbolic tensor with whatever sizes the graph knows."""
    if not (tf.is_tensor(value) or isinstance(value, tf.TypeSpec)):
        return value
    return keras.KerasTensor(value.shape if value.shape.rank is not None else (None,), value.dtype)


def _sized(trace: SymbolicTrace, outputs: object, args: Args, kwargs: Kwargs) -> object:
    """Outputs whose sizes are known: the graph may not know what the layer itself says.

    Raises:
        Unsupported: neither does.
    """
    layer = trace.current.layer
    if _are_known(outputs):
        return outputs
    if isinstance(layer, keras.Layer):
        with trace.paused():
            outputs = layer.compute_output_spec(*args, **kwargs)
    if not _are_known(outputs):
        raise Unsupported(f"the sizes of what {trace.current.path} returns are known only from values")
    return outputs


def _are_known(outputs: object) -> bool:
    return all(
        None not in tensor.shape for tensor in keras.tree.flatten(outputs) if isinstance(tensor, keras.KerasTensor)
    )


@contextmanager
def _layers_apart(trace: SymbolicTrace) -> Iterator[list[tf.Tensor]]:
    """Within it, layers that are called on tensors of a graph are counted by the trace; gives the tensors that they were given."""
    call = keras.Layer.__call__
    entering: list[tf.Tensor] = []

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def apart(layer: keras.Layer, *args: object, **kwargs: object) -> object:
        tensors = [leaf for leaf in keras.tree.flatten((args, kwargs)) if tf.is_tensor(leaf)]
        if not tensors or not trace.sees():
            return call(layer, *args, **kwargs)
        entering.extend(tensors)
        args, kwargs = keras.tree.map_structure(_symbolic, (args, kwargs))
        outputs = call(layer, *args, **kwargs)
        return keras.tree.map_structure(lambda tensor: tf.compat.v1.placeholder(tensor.dtype, tensor.shape), outputs)

    with replaced(keras.Layer, "__call__", apart):
        yield entering


def _reachable(graph: tf.Graph, outputs: Sequence[tf.Tensor]) -> Iterator[tf.Operation]:
    """Everything the outputs depend on; Keras leaves other operators behind in the graph."""
    waiting = [tensor.op for tensor in outputs]
    found = set()
    while waiting:
        operator = waiting.pop()
        if operator in found:
            continue
        found.add(operator)
        waiting.extend(tensor.op for tensor in operator.inputs)
        if operator.type in (
            "PartitionedCall",
            "StatefulPartitionedCall",
        ):  # grouped convolutions are compiled functions
            yield from _reachable(*_body(graph, operator))
        else:
            yield operator


def _body(graph: tf.Graph, operator: tf.Operation) -> tuple[tf.Graph, list[tf.Tensor]]:
    """The graph of the function that an operator calls, and its outputs, in the shapes that it is called with.

    A function from a file may have been traced for any size of the batch.
    """
    function = graph._get_function(operator.get_attr("f").name)
    definition = getattr(function, "function_def", None) or function.definition
    with graph.as_default():
        nodes, names = function_def_to_graph_def(definition, include_library_functions=True)
    given = {}
    with tf.Graph().as_default() as body:
        for argument, outer in zip(definition.signature.input_arg, operator.inputs, strict=True):
            given[argument.name] = tf.compat.v1.placeholder(outer.dtype, outer.shape)
            handle_data_util.copy_handle_data(outer, given[argument.name])  # the shape of a variable
        tf.graph_util.import_graph_def(nodes, given, name="")
        returned = [names[definition.ret[argument.name]] for argument in definition.signature.output_arg]
        return body, [given[name] if name in given else body.get_tensor_by_name(name) for name in returned]


def _count(trace: SymbolicTrace, operator: tf.Operation) -> None:
    """Add an operator of a graph to the call that is running."""
    rule, name = COSTS.get(operator.type), PREFIX + operator.type
    written = trace.formula_of(name)
    if written is None and operator.type in FREE:
        trace.current.operator_calls += trace.times
        return
    is_known = all(tensor.shape.is_fully_defined() for tensor in (*operator.inputs, *operator.outputs))
    given, made = (
        [sized(tensor) for tensor in tensors] if is_known else [] for tensors in (operator.inputs, operator.outputs)
    )
    if is_known and written is not None:
        trace.current.count(
            name, written(given, {}, made[0] if len(made) == 1 else made), given[:1], made[:1], trace.times
        )
    elif is_known and rule is not None:
        trace.current.count(name, rule(TensorflowCall(operator)), given[:1], made[:1], trace.times)
    else:
        trace.current.miss(name, trace.times)


NAME = "tfprof"


def own_counts(model: object, inputs: Inputs) -> OwnCounts:
    """Float operations of one forward on ``inputs``, two for a multiply-accumulate.

    Raises:
        Exception: whatever the model raised.
    """
    given = as_called(model, inputs).map(_specified)
    keywords = {"training": False} if isinstance(model, keras.Layer) and model._call_has_training_arg else {}
    step = Inputs(given.args, {**keywords, **given.kwargs}, given.forward)
    leaves = tf.nest.flatten((step.args, dict(step.kwargs)))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, tf.TensorSpec)]

    def run(*tensors: object) -> object:
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


def _specified(value: object) -> Any:
    tensor = symbolic(value)
    return tf.TensorSpec(tensor.shape, tensor.dtype) if isinstance(tensor, keras.KerasTensor) else value
