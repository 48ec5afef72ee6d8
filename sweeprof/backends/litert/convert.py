"""From a builder to a TFLite file, by TensorFlow's converter: converted once, by another process, and kept.

A measured process has nothing in memory but the interpreter: TensorFlow takes hundreds of megabytes. So a model that a config
describes is converted by a child, which runs this file and gets the description as JSON; the file is kept under what it was made
from. A model in a caller's hands has no description, and is converted in its process, where TensorFlow is loaded already.

A file is made for one shape of inputs, so that every operator's is known.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from sweeprof.backends import AnyArray, Build
from sweeprof.backends.litert.files import TfliteFile, arrays
from sweeprof.backends.model_files import (
    ChildFailure,
    ChildRequest,
    Maker,
    answer,
    batches_of,
    built,
    described,
    digest_of,
    key_of,
    made_once,
    stored_arrays,
    temporary_folder,
)
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.nested import named_leaves
from sweeprof.paths import cache_folder

Quantization = Literal["none", "dynamic", "float16", "int8"]
TFLITE_FILE = f"{TfliteFile.__module__}.{TfliteFile.__qualname__}"
CONVERTERS = ("tensorflow", "keras", "sweeprof")
FORMAT = 2
"""The version of the converted files. If it changes, every model is converted again."""
MAKER = Maker(
    "sweeprof.backends.litert.convert",
    "TensorFlow's converter cannot convert the model",
    {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""},
)


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts models to files."""

    quantization: Quantization
    samples: Inputs | None
    """One batch of samples, channels first as datasets have them, for the ranges of ``int8``; None: there are none."""
    seed: int
    cache: str | None
    """The folder of the files; None: that of the user."""

    @contextmanager
    def converted(self, build: Build, inputs: Inputs, channel_axis: int | None) -> Iterator[TfliteFile]:
        """The file of what ``build`` makes, for such inputs; within the context it exists.

        Raises:
            Unsupported: the model cannot be converted; the reason is the converter's.
            TypeError: the builder made no model.
            Exception: whatever the builder raised.
        """
        node = described(build)
        with temporary_folder("sweeprof-litert-") as temporary:
            if node is None or node.get("_target_") == TFLITE_FILE:
                yield self._live(build(), inputs, channel_axis, temporary)
            else:
                yield self._kept(node, inputs, channel_axis, temporary)

    def _live(self, model: object, inputs: Inputs, axis: int | None, folder: Path) -> TfliteFile:
        if isinstance(model, TfliteFile):
            if self.quantization != "none":
                raise Unsupported("a .tflite file runs with the data types that it was converted to")
            return model.found()
        known = checked(model)
        try:
            return converted(known, signature_of(inputs, axis), self.quantization, self._arranged(axis), folder)
        except Unsupported:
            raise
        except Exception as error:  # the converter may raise anything
            first_line = str(error).strip().partition("\n")[0]
            raise Unsupported(f"{MAKER.refusal}: {type(error).__name__}: {first_line}") from error

    def _kept(self, node: Mapping[str, object], inputs: Inputs, axis: int | None, temporary: Path) -> TfliteFile:
        signature, samples = signature_of(inputs, axis), self._arranged(axis)
        content = digest_of(samples) if samples else None
        key = key_of(node, CONVERTERS, FORMAT, signature, self.quantization, content, self.seed)
        folder = (cache_folder("litert", self.cache) or temporary) / key

        request = {"node": dict(node), "signature": signature, "quantization": self.quantization, "seed": self.seed}
        return made_once(TfliteFile, folder, MAKER, request, samples)

    def _arranged(self, axis: int | None) -> list[AnyArray]:
        """The samples of each input as the model wants them; none if nothing takes its range from them."""
        return [] if self.quantization != "int8" or self.samples is None else arrays(self.samples, axis)


def signature_of(inputs: Inputs, channel_axis: int | None) -> dict[str, Any]:
    """``{"args": […], "kwargs": {…}}``, each tensor a ``{"shape": […], "dtype": "…"}``, with its channels last.

    Raises:
        Unsupported: a step is more than calling the model, or an argument is no tensor.
    """
    if inputs.forward is not None:
        raise Unsupported("a converted model is called and nothing else; inputs.forward is not possible")
    specified = inputs.map(lambda leaf: _leaf(leaf, channel_axis))
    return {"args": list(specified.args), "kwargs": dict(specified.kwargs)}


def _leaf(leaf: Any, channel_axis: int | None) -> dict[str, object]:
    if not isinstance(leaf, TensorSpec) and not hasattr(leaf, "__array__"):
        raise Unsupported(f"a {type(leaf).__name__} among the arguments cannot be converted")
    shape = list(leaf.shape)
    if channel_axis is not None and len(shape) > channel_axis:
        shape.append(shape.pop(channel_axis))
    return {"shape": shape, "dtype": str(leaf.dtype).rpartition(".")[2]}


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
    signature: Mapping[str, Any],
    quantization: Quantization,
    samples: Sequence[AnyArray],
    folder: Path,
) -> TfliteFile:
    """Write the file of a model. Imports TensorFlow.

    Args:
        model: a Keras layer, or any function of tensors.
        signature: as :func:`signature_of` gives it; input ``i`` of the file is ``input_<i>``.
        quantization: ``none``; ``dynamic``, weights of 8 bits; ``float16``, weights of 16; ``int8``, everything of 8, inputs and
            outputs too.
        samples: of each input, ``(n, *sample_shape)``, for the ranges of ``int8``.
        folder: of the file.

    Raises:
        Unsupported: ``int8`` without samples.
        Exception: whatever the converter raised.
    """
    import tensorflow as tf

    from sweeprof.backends.litert.private import with_constants

    leaves: list[Any] = []
    _with_tensors(signature, leaves.append)
    specs = [tf.TensorSpec(leaf["shape"], leaf["dtype"], name=f"input_{i}") for i, leaf in enumerate(leaves)]
    names: list[str] = []
    traced = tf.function(_called(model, signature, names), input_signature=specs).get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([with_constants(traced)])
    if quantization != "none":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantization == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantization == "int8":
        if not samples:
            raise Unsupported("int8 takes its ranges from samples, and there are none")
        typed = [array.astype(leaf["dtype"]) for array, leaf in zip(samples, leaves, strict=True)]
        converter.representative_dataset = lambda: batches_of(typed, leaves[0]["shape"][0])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    file = TfliteFile(str(folder / TfliteFile.NAME), outputs=names)  # which the tracing has set
    with _without_advice():
        Path(file.path).write_bytes(converter.convert())
    return file


def _called(model: Callable[..., object], signature: Mapping[str, Any], names: list[str]) -> Callable[..., object]:
    """Return a function of the tensors alone; when it is traced, it sets ``names`` to those of the outputs."""
    import keras

    from sweeprof.backends.keras.calls import as_called

    keywords = {"training": False} if isinstance(model, keras.Layer) else {}

    def call(*tensors: object) -> object:
        waiting = iter(tensors)
        arguments = _with_tensors(signature, lambda _: next(waiting))
        given = as_called(model, Inputs(tuple(arguments["args"]), arguments["kwargs"]))
        outputs = named_leaves(model(*given.args, **{**keywords, **given.kwargs}))
        names[:] = [name for name, output in outputs.items() if output is not None]
        return [outputs[name] for name in names]  # a mapping that leaves a graph would have its keys sorted

    return call


def _with_tensors(tree: Any, tensor_of: Callable[[Mapping[str, Any]], object]) -> Any:
    """The tree with a tensor for each description of one."""
    if isinstance(tree, Mapping):
        if set(tree) == {"shape", "dtype"}:
            return tensor_of(tree)
        return {key: _with_tensors(value, tensor_of) for key, value in tree.items()}
    return [_with_tensors(branch, tensor_of) for branch in tree]


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


def converted_file(request: ChildRequest) -> ChildFailure | None:
    """Build, convert, and say what failed."""
    try:
        model = checked(built(request["node"], request["seed"]))
    except Exception as error:  # a builder may raise anything
        return ChildFailure.of("build", error)
    samples, folder = stored_arrays(request["samples"]), Path(request["folder"])
    try:
        converted(model, request["signature"], request["quantization"], samples, folder).write_facts()
    except Exception as error:  # and so may the converter
        return ChildFailure.of("convert", error)
    return None


if __name__ == "__main__":
    answer(converted_file)
