"""Ways to run the same Keras model: operator by operator, as a graph, compiled by XLA, in another precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import keras
import tensorflow as tf

from sweeprof.backends import Build
from sweeprof.errors import Unsupported, UserError, choice_problem


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


ExecutionMode = Literal["eager", "function", "xla"]
"""``eager``: operator by operator; ``function``: traced once per shape, as serving does; ``xla``: that, compiled by XLA."""
TensorflowPrecision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: dict[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Data type of weights, computation and floating-point inputs."""


@dataclass(frozen=True, slots=True)
class TensorflowVariant:
    """The mode, precision and layout in which a model runs.

    Raises:
        UserError: there is no such mode or precision.
    """

    mode: ExecutionMode = "function"
    precision: str | None = None
    """One of :data:`PRECISIONS`; None: as the model is."""

    def __post_init__(self) -> None:
        problems = []
        if self.mode not in get_args(ExecutionMode):
            problems.append(choice_problem("backend.mode", self.mode, "mode", get_args(ExecutionMode)))
        if self.precision is not None and self.precision not in PRECISIONS:
            problems.append(choice_problem("backend.precision", self.precision, "precision", PRECISIONS))
        if problems:
            raise UserError(problems)

    @property
    def dtype(self) -> str | None:
        """The data type of weights and floating-point inputs; None leaves them unchanged."""
        return None if self.precision is None else PRECISIONS[self.precision]

    def built(self, build: Build) -> Any:
        """Return the builder's model with its layers in this precision.

        Raises:
            TypeError: that cannot be called.
            Unsupported: the builder sets other data types itself.
        """
        with _dtype_policy(self.dtype):
            model = build()
        if not callable(model):
            raise TypeError(f"the model's builder returned a {type(model).__name__}, which cannot be called")
        other = _other_dtype(model, self.dtype)
        if other is not None:
            raise Unsupported(f"the model's builder makes weights of {other}, and backend.precision={self.precision}")
        return model

    def runs(self, function: Callable[..., Any]) -> Program | Callable[..., Any]:
        """``function`` as this variant runs it."""
        return function if self.mode == "eager" else Program(function, by_xla=self.mode == "xla")


AS_IT_IS = TensorflowVariant()


def _other_dtype(model: Any, wanted: str | None) -> str | None:
    """A data type among the model's weights that is not the wanted one; of numbers that are no floats any is right."""
    weights = model.weights if wanted is not None and isinstance(model, keras.Layer) else ()
    return next((v.dtype for v in weights if "float" in v.dtype and v.dtype != wanted), None)


@contextmanager
def _dtype_policy(dtype: str | None) -> Iterator[None]:
    before = keras.config.dtype_policy()
    if dtype is not None:
        keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
