"""Patching of Keras: some functions of Keras are replaced while a symbolic trace runs, in its thread only.

Layers and operations that are called on symbolic tensors are the trace's to answer. They leave no nodes behind, so that the
caller's model stays as it was. What Keras would hand to its backend on the way goes to ``keras.ops``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
from keras import KerasTensor
from keras.src import backend
from keras.src.activations.activations import Mish
from keras.src.layers import layer as layers_of_keras
from keras.src.layers.rnn.dropout_rnn_cell import DropoutRNNCell
from keras.src.ops.operation import Operation

from sweeprof.backends.keras.symbolic_trace import SymbolicTrace

KerasFunction = Callable[..., Any]


@contextmanager
def patching(trace: SymbolicTrace) -> Iterator[None]:
    """Within it ``trace`` sees the calls of layers and operations on symbolic tensors; afterwards Keras is as it was."""
    with ExitStack() as stack:
        for owner, name, instead in _changes(trace):
            stack.enter_context(replaced(owner, name, instead))
        if (
            keras.config.is_traceback_filtering_enabled()
        ):  # it wraps every call, to explain errors that nobody sees here
            stack.callback(keras.config.enable_traceback_filtering)
            keras.config.disable_traceback_filtering()
        yield


def _changes(trace: SymbolicTrace) -> Iterator[tuple[Any, str, Any]]:
    """Class or module, name, and what is there instead."""

    def seen(owner: Any, name: str, instead: KerasFunction) -> tuple[Any, str, KerasFunction]:
        before = getattr(owner, name)

        def function(*args: Any, **kwargs: Any) -> Any:
            return instead(*args, **kwargs) if trace.sees() else before(*args, **kwargs)

        return owner, name, function

    def build(layer: Any, call_spec: Any) -> None:
        with trace.paused():  # a model may call its layers on symbolic tensors to build them
            before(layer, call_spec)

    def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
        return trace.layer_on_values(call, layer, args, kwargs)

    before, call = keras.Layer._maybe_build, keras.Layer.__call__
    yield seen(keras.Layer, "__call__", called)
    yield seen(keras.Layer, "_maybe_build", build)
    yield seen(Operation, "symbolic_call", lambda operation, *args, **kwargs: trace.operation(operation, args, kwargs))
    yield seen(keras.Layer, "symbolic_call", lambda layer, *args, **kwargs: trace.layer(layer, args, kwargs))
    yield seen(keras.Layer, "add_loss", _nothing)
    yield seen(layers_of_keras, "Node", _nothing)
    yield seen(DropoutRNNCell, "get_dropout_mask", _nothing)
    yield seen(DropoutRNNCell, "get_recurrent_dropout_mask", _nothing)
    yield backend, "convert_to_tensor", _or_cast(backend.convert_to_tensor)
    yield backend, "cast", _or_cast(backend.cast)
    yield Mish, "static_call", staticmethod(_or(Mish(), Mish.static_call))
    for name in "add sub mul truediv floordiv mod pow matmul".split():
        method = f"__{name}__"
        yield backend.Variable, method, _left_to_tensor(getattr(backend.Variable, method))


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _or(instead: KerasFunction, before: KerasFunction) -> KerasFunction:
    """``instead`` for symbolic tensors."""

    def function(value: Any, *args: Any, **kwargs: Any) -> Any:
        return (instead if isinstance(value, KerasTensor) else before)(value, *args, **kwargs)

    return function


def _or_cast(before: KerasFunction) -> KerasFunction:
    def cast(value: Any, dtype: Any = None, **_: Any) -> Any:
        return value if dtype is None else keras.ops.cast(value, dtype)

    return _or(cast, before)


def _left_to_tensor(before: KerasFunction) -> KerasFunction:
    """``variable * tensor`` is the symbolic tensor's to answer."""

    def operator(variable: Any, other: Any) -> Any:
        return NotImplemented if isinstance(other, KerasTensor) else before(variable, other)

    return operator


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within it an attribute of a class or module is another one."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


_ABSENT = object()
