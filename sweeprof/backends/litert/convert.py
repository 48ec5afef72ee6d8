"""From a builder to a TFLite file, by TensorFlow's converter: converted once, by another process, and kept.

A file is made for one shape of inputs, so that every operator's is known.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar, Literal

from sweeprof.backends import AnyArray
from sweeprof.backends.call_signature import filled, from_json, signature_of, specs_in
from sweeprof.backends.litert.files import TfliteFile
from sweeprof.backends.model_files import (
    NO_SAMPLES,
    ChildFailure,
    ChildRequest,
    Converter,
    Maker,
    answer,
    batches_of,
    built,
    digest_of,
    stored_samples,
)
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.nested import named_leaves

Quantization = Literal["none", "dynamic", "float16", "int8"]
MAKER = Maker(
    "sweeprof.backends.litert.convert",
    "TensorFlow's converter cannot convert the model",
    {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
)


@dataclass(frozen=True, slots=True)
class LitertConverter(Converter[TfliteFile]):
    """Converts Keras models, or functions of tensors, to TFLite files."""

    NAME: ClassVar[str] = "litert"
    KIND: ClassVar[type[TfliteFile]] = TfliteFile
    PACKAGES: ClassVar[tuple[str, ...]] = ("tensorflow", "keras", "sweeprof")
    VERSION: ClassVar[int] = 3
    quantization: Quantization = "none"

    def given(self, model: object) -> TfliteFile | None:
        if not isinstance(model, TfliteFile):
            return None
        if self.quantization != "none":
            raise Unsupported("a .tflite file runs with the data types that it was converted to")
        return model.found()

    def of_caller(self, model: Any, inputs: Inputs, axis: int | None, folder: Path) -> TfliteFile:
        known, signature, samples = checked(model), signature_of(inputs, axis, is_nested=True), self._samples(axis)
        try:
            return converted(known, signature, self.quantization, samples, folder)
        except Exception as error:  # the converter may raise anything
            ChildFailure.of("convert", error).raise_as(MAKER.refusal)

    def of_node(self, node: Mapping[str, object], inputs: Inputs, axis: int | None, cache: Path) -> TfliteFile:
        signature, samples = signature_of(inputs, axis, is_nested=True), self._samples(axis)
        folder = self.entry(node, signature, axis, cache, digest_of(samples))
        return self.made(node, signature, axis, folder, samples)

    def request(self) -> dict[str, object]:
        return {"quantization": self.quantization}

    def maker(self, request: ChildRequest) -> Maker:
        return MAKER

    def _samples(self, axis: int | None) -> Mapping[str, AnyArray]:
        return self.ranges(axis) if self.quantization == "int8" else NO_SAMPLES


def checked(model: Any) -> Callable[..., object]:
    """Return the model.

    Raises:
        TypeError: it cannot be called.
    """
    if not callable(model):
        raise TypeError(f"the model's builder returned a {type(model).__name__}, not a Keras model or a TfliteFile")
    found: Callable[..., object] = model
    return found


def converted(
    model: Callable[..., object],
    signature: Inputs,
    quantization: Quantization,
    samples: Mapping[str, AnyArray],
    folder: Path,
) -> TfliteFile:
    """Write the file of a model. Imports TensorFlow.

    Args:
        model: a Keras layer, or any function of tensors.
        signature: of its call; input ``i`` of the file is ``input_<i>``.
        quantization: ``none``; ``dynamic``, weights of 8 bits; ``float16``, weights of 16; ``int8``, everything of 8, inputs and
            outputs too.
        samples: of each input, ``(n, *sample_shape)``, for the ranges of ``int8``.
        folder: of the file.

    Raises:
        Exception: whatever the converter raised.
    """
    import tensorflow as tf

    from sweeprof.backends.litert.private import with_constants

    leaves = specs_in((signature.args, dict(signature.kwargs)))
    specs = [tf.TensorSpec(leaf.shape, leaf.dtype, name=f"input_{i}") for i, leaf in enumerate(leaves)]
    names: list[str] = []
    traced = tf.function(_called(model, signature, names), input_signature=specs).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([with_constants(traced)])
    if quantization != "none":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantization == "int8":
        typed = {name: samples[name].astype(leaf.dtype) for name, leaf in zip(samples, leaves, strict=True)}
        size = leaves[0].shape[0]
        converter.representative_dataset = lambda: map(list, map(dict.values, batches_of(list(typed), typed, size)))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    file = TfliteFile(str(folder / TfliteFile.NAME), outputs=names)  # which the tracing has set
    with _without_advice():
        Path(file.path).write_bytes(converter.convert())
    return file


def _called(model: Callable[..., object], signature: Inputs, names: list[str]) -> Callable[..., object]:
    """Return a function of the tensors alone; when it is traced, it sets ``names`` to those of the outputs."""
    import keras

    from sweeprof.backends.keras.calls import as_called

    keywords = {"training": False} if isinstance(model, keras.Layer) else {}

    def call(*tensors: object) -> object:
        given = as_called(model, filled(signature, tensors))
        outputs = named_leaves(model(*given.args, **{**keywords, **given.kwargs}))
        names[:] = [name for name, output in outputs.items() if output is not None]
        return [outputs[name] for name in names]  # a mapping that leaves a graph would have its keys sorted

    return call


@contextmanager
def _without_advice() -> Iterator[None]:
    """The converter writes page-long dumps to the standard streams, also of models that it converts well."""
    with TemporaryFile() as sink, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = [os.dup(stream) for stream in (1, 2)]
        try:
            for stream in (1, 2):
                os.dup2(sink.fileno(), stream)
            yield
        finally:
            for stream, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, stream)
                os.close(copy)


def _built(request: ChildRequest) -> Callable[..., object]:
    return checked(built(request["node"], request["seed"]))


def _made(model: Callable[..., object], request: ChildRequest) -> TfliteFile:
    samples, signature = stored_samples(request["samples"]), from_json(request["signature"])
    return converted(model, signature, request["quantization"], samples, Path(request["folder"]))


if __name__ == "__main__":
    answer(_built, _made, partial(ChildFailure.of, "convert"))
