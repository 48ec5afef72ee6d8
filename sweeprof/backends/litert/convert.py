"""A Keras model as a TFLite file, by TensorFlow's converter: for one shape of inputs, so that every operator's is known.

Imports TensorFlow, which a measured process must not have in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from sweeprof.backends import AnyArray
from sweeprof.backends.keras.calls import as_called
from sweeprof.backends.litert.files import leaves
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.nested import named_leaves

Quantization = Literal["none", "dynamic", "float16", "int8"]


def converted(
    model: Callable[..., object], signature: Mapping[str, Any], quantization: Quantization, samples: Sequence[AnyArray]
) -> tuple[bytes, tuple[str, ...]]:
    """The file's content, and the names of its outputs.

    Args:
        model: a Keras layer, or any function of tensors.
        signature: as :func:`~sweeprof.backends.litert.files.signature_of` gives it; input ``i`` of the file is ``input_<i>``.
        quantization: ``none``; ``dynamic``, weights of 8 bits; ``float16``, weights of 16; ``int8``, everything of 8, inputs and
            outputs too.
        samples: of each input, ``(n, *sample_shape)``, for the ranges of ``int8``.

    Raises:
        Unsupported: ``int8`` without samples.
        Exception: whatever the converter raised.
    """
    specs = [
        tf.TensorSpec(leaf["shape"], leaf["dtype"], name=f"input_{index}")
        for index, leaf in enumerate(leaves((signature["args"], signature["kwargs"])))
    ]
    names: list[str] = []
    traced = tf.function(_called(model, signature, names), input_signature=specs).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([convert_variables_to_constants_v2(traced)])
    _quantize(converter, quantization, specs, samples)
    with _without_advice():
        content: bytes = converter.convert()
    return content, tuple(names)


def _called(model: Callable[..., object], signature: Mapping[str, Any], names: list[str]) -> Callable[..., object]:
    """Return a function of the tensors alone; when it is traced, it sets ``names`` to those of the outputs."""
    keywords = {"training": False} if isinstance(model, keras.Layer) else {}

    def call(*tensors: object) -> object:
        waiting = iter(tensors)
        args, named = (_packed(signature[part], waiting) for part in ("args", "kwargs"))
        given = as_called(model, Inputs(tuple(args), named))
        outputs = named_leaves(model(*given.args, **{**keywords, **given.kwargs}))
        names[:] = [name for name, output in outputs.items() if output is not None]
        return [outputs[name] for name in names]  # a mapping that leaves a graph would have its keys sorted

    return call


def _packed(tree: Any, tensors: Iterator[tf.Tensor]) -> Any:
    """The tree with a tensor for each description of one."""
    if isinstance(tree, Mapping):
        described = "shape" in tree and "dtype" in tree
        return next(tensors) if described else {key: _packed(value, tensors) for key, value in tree.items()}
    return [_packed(branch, tensors) for branch in tree]


def _quantize(
    converter: tf.lite.TFLiteConverter,
    quantization: Quantization,
    specs: list[tf.TensorSpec],
    samples: Sequence[AnyArray],
) -> None:
    if quantization == "none":
        return
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantization == "int8":
        if not samples:
            raise Unsupported("int8 takes its ranges from samples, and there are none")
        converter.representative_dataset = lambda: _batches(samples, specs)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8


def _batches(samples: Sequence[AnyArray], specs: Sequence[tf.TensorSpec]) -> Iterator[list[AnyArray]]:
    """All samples in the batches that the file takes, the last one filled up from the first ones."""
    size, number = int(specs[0].shape[0]), len(samples[0])
    for begin in range(0, number, size):
        chosen = np.arange(begin, begin + size) % number
        yield [array[chosen].astype(spec.dtype.as_numpy_dtype) for array, spec in zip(samples, specs, strict=True)]


@contextmanager
def _without_advice() -> Iterator[None]:
    """The converter writes page-long dumps to the standard streams, also of models that it converts well."""
    import warnings

    with tempfile.TemporaryFile() as sink, warnings.catch_warnings():
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


def write(content: bytes, path: Path) -> None:
    """Write a file that is never seen half-written."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:
        part.write(content)
    Path(part.name).replace(path)
