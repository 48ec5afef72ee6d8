"""Ways to run the same Keras model: operator by operator, as a graph, compiled by XLA, in another precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import keras

from sweeprof.backends import Build
from sweeprof.backends.tensorflow.programs import Program
from sweeprof.errors import Unsupported, UserError, choice_problem

Mode = Literal["eager", "function", "xla"]
"""``eager``: operator by operator; ``function``: traced once per shape, as serving does; ``xla``: that, compiled by XLA."""
Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: dict[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Data type of weights, computation and floating-point inputs."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How a model is run.

    Raises:
        UserError: there is no such mode or precision.
    """

    mode: Mode = "function"
    precision: str | None = None
    """One of :data:`PRECISIONS`; None: as the model is."""

    def __post_init__(self) -> None:
        problems = []
        if self.mode not in get_args(Mode):
            problems.append(choice_problem("backend.mode", self.mode, "mode", get_args(Mode)))
        if self.precision is not None and self.precision not in PRECISIONS:
            problems.append(choice_problem("backend.precision", self.precision, "precision", PRECISIONS))
        if problems:
            raise UserError(problems)

    @property
    def dtype(self) -> str | None:
        """Of weights and floating-point inputs; None: as they are."""
        return None if self.precision is None else PRECISIONS[self.precision]

    def built(self, build: Build) -> Any:
        """What the builder makes, its layers in this precision.

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


AS_IT_IS = Variant()


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
