"""A function as one program of TensorFlow: a graph, or that graph compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sweeprof.errors import Unsupported


class Program:
    """Calls ``function`` as a ``tf.function``; what it raises while it is traced comes through as it was raised."""

    def __init__(self, function: Callable[..., Any], by_xla: bool) -> None:
        self._function = graph_of(function, jit_compile=by_xla)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _as_raised(self._function, args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> None:
        """Make the graph for such arguments, without running or compiling it; once made it is kept."""
        _as_raised(self._function.get_concrete_function, args, kwargs)


def graph_of(function: Callable[..., Any], **options: Any) -> Any:
    """A ``tf.function`` that does not warn of frequent tracing.

    TensorFlow counts traces by the code of a function, which is the same for every model that is profiled in a process.
    """
    found = tf.function(function, **options)
    found._omit_frequent_tracing_warning = True
    return found


def _as_raised(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call it; AutoGraph's version of an error, whose message is its own traceback, becomes the error itself again."""
    try:
        return function(*args, **kwargs)
    except tf.errors.InvalidArgumentError as error:
        if "unsupported operations" in str(error):
            raise Unsupported(f"XLA does not compile this model: {_sentence(str(error))}") from error
        raise
    except Exception as error:
        original = error.__context__ if hasattr(error, "ag_error_metadata") else None
        if original is None:
            raise
        raise original from None


def _sentence(message: str) -> str:
    """The one that says which operators."""
    return next(line for line in message.splitlines() if "unsupported operations" in line).strip()
