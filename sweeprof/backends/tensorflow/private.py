"""Every private interface of TensorFlow that sweeprof uses. Tested with TensorFlow 2.21.0.

A test looks up each of them and reports those that another version of TensorFlow lacks.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.impl.api import autograph_artifact
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import record
from tensorflow.python.framework import c_api_util
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
from tensorflow.python.ops.handle_data_util import get_resource_handle_data
from tensorflow.tsl.profiler.protobuf import xplane_pb2

FUNCTION_ATTRIBUTE = "_omit_frequent_tracing_warning"
"""What is set of a ``tf.function``."""

__all__ = ["autograph_artifact", "function_def_to_graph_def", "record", "xplane_pb2"]


def without_tracing_warning(function: Any) -> Any:
    """Return a ``tf.function`` that does not warn of frequent tracing.

    TensorFlow counts traces by the code of a function, which is the same for every model that is profiled in a process.
    """
    setattr(function, FUNCTION_ATTRIBUTE, True)
    return function


def function_of(graph: tf.Graph, name: str) -> Any:
    """Return the definition of a function that an operator of a graph calls."""
    function = graph._get_function(name)
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
        with graph._c_graph.get() as target:
            results = pywrap_tf_session.TF_GraphImportGraphDefWithResults(target, nodes, options.options)
    finally:
        pywrap_tf_session.TF_DeleteBuffer(nodes)
    c_api_util.ScopedTFImportGraphDefResults(results)
    graph._add_new_tf_operations(compute_devices=False)
    return graph


def add_control_input(operator: tf.Operation, before: tf.Operation) -> None:
    """Let an operator wait for another one."""
    operator._add_control_input(before)
