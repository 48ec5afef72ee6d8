"""The private interfaces of TensorFlow that sweeprof uses.

``tests/unit/backends/test_private_interfaces.py`` looks up each of them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sweeprof.backends import attribute, interface

autograph_artifact = interface("tensorflow.python.autograph.impl.api:autograph_artifact")
pywrap_tf_session = interface("tensorflow.python.client.pywrap_tf_session")
record = interface("tensorflow.python.eager.record")
c_api_util = interface("tensorflow.python.framework.c_api_util")
function_def_to_graph_def = interface("tensorflow.python.framework.function_def_to_graph:function_def_to_graph_def")
get_resource_handle_data = interface("tensorflow.python.ops.handle_data_util:get_resource_handle_data")
xplane_pb2 = interface("tensorflow.tsl.profiler.protobuf.xplane_pb2")

FUNCTION_ATTRIBUTE = "_omit_frequent_tracing_warning"
"""What is set of a ``tf.function``."""


def without_tracing_warning(function: Any) -> Any:
    """Return a ``tf.function`` that does not warn of frequent tracing.

    TensorFlow counts traces by the code of a function, which is the same for every model that is profiled in a process.
    """
    setattr(function, FUNCTION_ATTRIBUTE, True)
    return function


def function_of(graph: tf.Graph, name: str) -> Any:
    """Return the definition of a function that an operator of a graph calls."""
    function = attribute(graph, "_get_function")(name)
    return getattr(function, "function_def", None) or function.definition


def variable_of(tensor: tf.Tensor) -> Any:
    """Return what a graph knows of the variable that a tensor is the handle of: ``shape`` and ``dtype``; None for other tensors."""
    found = get_resource_handle_data(tensor).shape_and_type if tensor.dtype == tf.resource else ()
    return found[0] if found else None


def graph_with(definition: tf.compat.v1.GraphDef) -> tf.Graph:
    """Return a graph of these nodes, whose shapes are inferred; ``import_graph_def`` also places each of them on a device."""
    graph, options = tf.Graph(), c_api_util.ScopedTFImportGraphDefOptions()
    nodes = pywrap_tf_session.TF_NewBufferFromString(definition.SerializeToString())
    try:
        with attribute(graph, "_c_graph").get() as target:
            results = pywrap_tf_session.TF_GraphImportGraphDefWithResults(target, nodes, options.options)
    finally:
        pywrap_tf_session.TF_DeleteBuffer(nodes)
    c_api_util.ScopedTFImportGraphDefResults(results)
    attribute(graph, "_add_new_tf_operations")(compute_devices=False)
    return graph


def add_control_input(operator: tf.Operation, before: tf.Operation) -> None:
    """Let an operator wait for another one."""
    attribute(operator, "_add_control_input")(before)
