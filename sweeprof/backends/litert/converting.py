"""From a builder to a TFLite file: converted once, in a process of its own, and remembered.

A measured process is to have nothing in memory but the interpreter, and TensorFlow takes hundreds of megabytes. So a model that
a config describes is converted by a child, which runs this file and gets the description as JSON; the file is kept under what
it was made from. A model in a caller's hands has no description, and is converted right here, where TensorFlow is loaded
already.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock

from sweeprof.backends import AnyArray, Build
from sweeprof.backends.litert.files import TfliteFile, arrays, signature_of
from sweeprof.backends.model_files import (
    LOCK_S,
    ChildFailure,
    ChildRequest,
    answer,
    described,
    key_of,
    run_child,
)
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.instantiate import instantiate
from sweeprof.paths import cache_folder
from sweeprof.results.files import read_json, write_json

if TYPE_CHECKING:
    from sweeprof.backends.litert.convert import Quantization


CHILD = "sweeprof.backends.litert.converting"
TFLITE_FILE = f"{TfliteFile.__module__}.{TfliteFile.__qualname__}"
CONVERTERS = ("tensorflow", "keras", "sweeprof")
METHOD = "outputs as the model lists them, with their names"
"""Part of what a file is remembered under: earlier ones have the outputs of a mapping by their sorted keys."""


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
        with TemporaryDirectory(prefix="sweeprof-litert-") as temporary:
            if node is None or node.get("_target_") == TFLITE_FILE:
                yield self._live(build(), inputs, channel_axis, Path(temporary))
            else:
                yield self._remembered(node, inputs, channel_axis, Path(temporary))

    def _live(self, model: object, inputs: Inputs, axis: int | None, folder: Path) -> TfliteFile:
        if isinstance(model, TfliteFile):
            if self.quantization != "none":
                raise Unsupported("a .tflite file runs with the data types that it was converted to")
            return model.found()
        if not callable(model):
            raise TypeError(f"the model's builder returned a {type(model).__name__}, not a Keras model or a TfliteFile")
        from sweeprof.backends.litert.convert import converted, write  # which imports TensorFlow

        try:
            content, outputs = converted(model, signature_of(inputs, axis), self.quantization, self._arranged(axis))
        except Unsupported:
            raise
        except Exception as error:  # the converter may raise anything
            raise Unsupported(_refused(type(error).__name__, str(error).strip().partition("\n")[0])) from error
        write(content, folder / "model.tflite")
        return TfliteFile(str(folder / "model.tflite"), outputs=outputs)

    def _remembered(self, node: Mapping[str, object], inputs: Inputs, axis: int | None, temporary: Path) -> TfliteFile:
        folder = cache_folder("litert", self.cache) or temporary
        folder.mkdir(parents=True, exist_ok=True)
        signature, samples = signature_of(inputs, axis), self._arranged(axis)
        content = hashlib.sha256(b"".join(array.tobytes() for array in samples)).hexdigest() if samples else None
        file = folder / f"{key_of(node, CONVERTERS, METHOD, signature, self.quantization, content, self.seed)}.tflite"
        with FileLock(file.with_suffix(".lock"), timeout=LOCK_S):
            if not file.is_file():
                kept = temporary / "samples.npz" if samples else None
                if kept is not None:
                    np.savez(kept, *samples)
                request = {"node": dict(node), "signature": signature, "quantization": self.quantization}
                _run_child({**request, "samples": kept and str(kept), "file": str(file), "seed": self.seed})
        names = file.with_suffix(".json")
        return TfliteFile(str(file), outputs=tuple(read_json(names)["outputs"]) if names.is_file() else ())

    def _arranged(self, axis: int | None) -> list[AnyArray]:
        """The samples of each input as the model wants them; none if nothing takes its range from them."""
        if self.quantization != "int8" or self.samples is None:
            return []
        return [np.ascontiguousarray(array) for array in arrays(self.samples, axis)]


def _run_child(request: ChildRequest) -> None:
    quiet = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    failure = run_child(CHILD, request, quiet)
    if failure is None:
        return
    if failure.kind == "Unsupported":
        raise Unsupported(failure.message)
    if failure.stage == "convert" and failure.kind != "MemoryError":
        raise Unsupported(_refused(failure.kind, failure.message))
    failure.reraise()


def _refused(kind: str, message: str) -> str:
    return f"TensorFlow's converter cannot convert the model: {kind}: {message}"


def converted_file(request: ChildRequest) -> ChildFailure | None:
    """Build, convert, and say what failed."""
    seed = request["seed"]
    random.seed(seed)
    np.random.seed(seed)  # Keras draws its seeds from Python's generator
    try:
        model = instantiate(request["node"])
    except Exception as error:  # a builder may raise anything
        return ChildFailure.of("build", error)
    if not callable(model):
        message = f"the model's builder returned a {type(model).__name__}, not a Keras model or a TfliteFile"
        return ChildFailure.of("build", TypeError(message))
    # TensorFlow, which a builder that fails need not wait for.
    from sweeprof.backends.litert.convert import converted, write

    samples: list[AnyArray] = []
    if request["samples"] is not None:
        with np.load(request["samples"]) as stored:
            samples = [stored[f"arr_{index}"] for index in range(len(stored.files))]
    try:
        content, outputs = converted(model, request["signature"], request["quantization"], samples)
    except Exception as error:  # and so may the converter
        return ChildFailure.of("convert", error)
    file = Path(request["file"])
    write_json(file.with_suffix(".json"), {"outputs": list(outputs)})
    write(content, file)
    return None


if __name__ == "__main__":
    answer(converted_file)
