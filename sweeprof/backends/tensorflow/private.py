"""Every private interface of TensorFlow that sweeprof uses. Tested with TensorFlow 2.21.0.

:data:`INTERFACES` names them; a test looks up each of them and reports those that another version of TensorFlow lacks.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.impl.api import autograph_artifact
from tensorflow.python.eager import record
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
from tensorflow.python.ops.handle_data_util import copy_handle_data
from tensorflow.tsl.profiler.protobuf import xplane_pb2

TESTED = "2.21.0"
INTERFACES = (
    "tensorflow.python.autograph.impl.api:autograph_artifact",
    "tensorflow.python.eager.record:record_operation",
    "tensorflow.python.eager.record:should_record_backprop",
    "tensorflow.python.eager.record:stop_recording",
    "tensorflow.python.framework.function_def_to_graph:function_def_to_graph_def",
    "tensorflow.python.ops.handle_data_util:copy_handle_data",
    "tensorflow.tsl.profiler.protobuf.xplane_pb2:XSpace.FromString",
    "tensorflow:Graph._get_function",
    "tensorflow:Operation._add_control_input",
)
FUNCTION_ATTRIBUTE = "_omit_frequent_tracing_warning"
"""What is set of a ``tf.function``."""

__all__ = ["autograph_artifact", "copy_handle_data", "function_def_to_graph_def", "record", "xplane_pb2"]


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


def add_control_input(operator: tf.Operation, before: tf.Operation) -> None:
    """Let an operator wait for another one."""
    operator._add_control_input(before)
