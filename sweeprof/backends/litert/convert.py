"""From a builder to a TFLite file, by TensorFlow's converter: converted once, by another process, and kept.

A file is made for one shape of inputs, so that every operator's is known.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar, Literal

from sweeprof.backends import filled, shapes_of, signature_of, specs_in
from sweeprof.backends.litert.model import TfliteFile
from sweeprof.backends.model_files import Converter, Samples, batches_of
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.nested import named_leaves

Quantization = Literal["none", "dynamic", "float16", "int8"]
VARIABLES = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True)
class LitertConverter(Converter[TfliteFile]):
    """Converts Keras models, or functions of tensors, to TFLite files."""

    NAME: ClassVar[str] = "litert"
    KIND: ClassVar[type[TfliteFile]] = TfliteFile
    PACKAGES: ClassVar[tuple[str, ...]] = ("tensorflow", "keras", "sweeprof")
    ACCEPTED: ClassVar[str] = "a Keras model or a TfliteFile"
    VERSION: ClassVar[int] = 5
    ANY_BATCH: ClassVar[bool] = False
    quantization: Quantization = "none"
    """``none``; ``dynamic``, weights of 8 bits; ``float16``, weights of 16; ``int8``, everything of 8, inputs and outputs too."""

    def refusal(self) -> str:
        return "TensorFlow's converter cannot convert the model"

    def variables(self) -> Mapping[str, str]:
        return VARIABLES

    def takes_samples(self) -> bool:
        return self.quantization == "int8"

    def signature(self, inputs: Inputs, axis: int | None) -> Inputs:
        return signature_of(inputs, axis, is_nested=True)

    def given(self, model: object) -> TfliteFile | None:
        if not isinstance(model, TfliteFile):
            return None
        if self.quantization != "none":
            raise Unsupported("a .tflite file runs with the data types that it was converted to")
        return model.found()

    def accepts(self, model: Any) -> bool:
        return callable(model)

    def convert(self, model: Any, signature: Inputs, axis: int | None, samples: Samples, folder: Path) -> TfliteFile:
        """Write the file of a Keras layer, or of any function of tensors; input ``i`` of the file is ``input_<i>``."""
        import tensorflow as tf

        from sweeprof.backends.keras.private import with_constants

        leaves = specs_in((signature.args, dict(signature.kwargs)))
        specs = [tf.TensorSpec(leaf.shape, leaf.dtype, name=f"input_{i}") for i, leaf in enumerate(leaves)]
        names: list[str] = []
        traced = tf.function(_called(model, signature, names), input_signature=specs).get_concrete_function()
        converter = tf.lite.TFLiteConverter.from_concrete_functions([with_constants(traced)])
        if self.quantization != "none":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if self.quantization == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if self.quantization == "int8":
            typed = {name: samples[name].astype(leaf.dtype) for name, leaf in zip(samples, leaves, strict=True)}
            size = leaves[0].shape[0]
            converter.representative_dataset = lambda: map(list, map(dict.values, batches_of(list(typed), typed, size)))
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            converter.inference_input_type = converter.inference_output_type = tf.int8
        positional, named = shapes_of(signature)
        given = [*map(str, range(len(positional))), *named]
        file = TfliteFile(str(folder / TfliteFile.NAME), inputs=given, outputs=names)  # which the tracing has set
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
    """Within the context, the converter's long dumps do not reach the standard streams; it makes them of every model."""
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
