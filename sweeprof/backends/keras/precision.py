"""Keras models in a precision: built under a data type policy, or quantized by Keras itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras

from sweeprof.backends import Build
from sweeprof.backends.model_files import described
from sweeprof.errors import Unsupported, UserError, choice_problem

PRECISIONS: dict[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "float32"}
"""Data type of weights, computation and floating-point inputs; with ``autocast`` of the computation alone."""


@dataclass(frozen=True, slots=True)
class KerasPrecision:
    """The precision of a Keras model.

    Raises:
        UserError: there is no such precision.
    """

    precision: str | None = None
    """One of :data:`PRECISIONS`; None: as the model is."""
    method: str | None = None
    """``autocast``: one of Keras's mixed policies, under which weights stay in 32 bits; anything else: weights are converted."""

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in PRECISIONS:
            raise UserError([choice_problem("backend.precision", self.precision, "precision", PRECISIONS)])

    @property
    def dtype(self) -> str | None:
        """The data type of weights and floating-point inputs; None leaves them unchanged."""
        if self.precision is None:
            return None
        return "float32" if self.method == "autocast" else PRECISIONS[self.precision]

    @property
    def policy(self) -> str | None:
        """The name of the data type policy that the model is built under; None: the one that is set."""
        if self.precision is None:
            return None
        dtype = PRECISIONS[self.precision]
        return f"mixed_{dtype}" if self.method == "autocast" and dtype != "float32" else dtype

    @property
    def peak_dtype(self) -> str | None:
        """The data type of most of the computation."""
        return None if self.precision is None else PRECISIONS[self.precision]

    def built(self, build: Build) -> Any:
        """Return the builder's model with its layers in this precision.

        Raises:
            TypeError: that cannot be called.
            Unsupported: the builder sets other data types itself, or the model has no layer that Keras quantizes.
        """
        with self._policy():
            model = build()
        if not callable(model):
            raise TypeError(f"the model's builder returned a {type(model).__name__}, which cannot be called")
        other = _other_dtype(model, self.dtype)
        if other is not None:
            raise Unsupported(f"the model's builder makes weights of {other}, and backend.precision={self.precision}")
        if self.precision == "int8":
            if described(build) is None:
                raise Unsupported(
                    "Keras quantizes a model in place: call quantize('int8') of your model, and profile that"
                )
            _quantize(model)
        return model

    @contextmanager
    def _policy(self) -> Iterator[None]:
        before = keras.config.dtype_policy()
        if self.policy is not None:
            keras.config.set_dtype_policy(self.policy)
        try:
            yield
        finally:
            keras.config.set_dtype_policy(before)


def _other_dtype(model: object, wanted: str | None) -> str | None:
    """A data type among the model's weights that is not the wanted one; of numbers that are no floats any is right."""
    weights = model.weights if wanted is not None and isinstance(model, keras.Layer) else ()
    return next((v.dtype for v in weights if "float" in v.dtype and v.dtype != wanted), None)


def _quantize(model: object) -> None:
    """Give the layers that Keras can quantize weights of 8 bits; a layer's inputs are quantized as they come.

    Raises:
        Unsupported: there is none, or the model has no weights before its first call.
    """
    if not isinstance(model, keras.Model):
        raise Unsupported(f"Keras quantizes a keras.Model, and the builder returned a {type(model).__name__}")
    if not model.built:
        raise Unsupported("Keras quantizes models that are built, and this one has no weights before its first call")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning for every layer that cannot be quantized
        model.quantize("int8")
    if all(getattr(layer, "quantization_mode", None) != "int8" for layer in model._flatten_layers()):
        raise Unsupported("the model has no layer that Keras quantizes, such as Dense, EinsumDense or Embedding")
