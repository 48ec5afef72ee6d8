"""From a builder to an ONNX file: exported once, in a process of its own, and remembered.

A measured process is to have nothing in memory but the run-time, and a forked one may not run torch. So a model that a config
describes is exported by a child, which runs this file and gets the description as JSON. The file is kept under what it was made
from. A model in a caller's hands has no description, and is exported right here, where its framework is loaded already.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from filelock import FileLock

from sweeprof.backends import Build
from sweeprof.backends.model_files import (
    LOCK_S,
    ChildFailure,
    ChildRequest,
    answer,
    described,
    key_of,
    run_child,
)
from sweeprof.backends.onnxruntime.files import CallSignature, Exported, OnnxFile, signature_of
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.instantiate import instantiate
from sweeprof.paths import cache_folder

CHILD = "sweeprof.backends.onnxruntime.exporting"
EXPORTERS = ("torch", "onnx", "onnxscript", "onnx-ir", "keras", "sweeprof")
FORMAT = 2
"""The version of the exported files. If it changes, every model is exported again."""
REFUSED = "refused.txt"
"""The file that replaces a graph for any batch size if the exporter supports only a single size: its message."""
ONNX_FILE = f"{OnnxFile.__module__}.{OnnxFile.__qualname__}"
NO_MEMORY = "can't allocate memory"
"""What torch's allocator says, in a plain RuntimeError."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """Exports models to files."""

    opset: int
    seed: int
    cache: str | None
    """The folder of the files; None: that of the user."""

    @contextmanager
    def exported(self, build: Build, inputs: Inputs, channel_axis: int | None) -> Iterator[Exported]:
        """The file of what ``build`` makes; within the context it exists.

        Raises:
            Unsupported: the model cannot be exported; the reason is the exporter's.
            TypeError: the builder made no model that can be.
            Exception: whatever the builder raised.
        """
        node = described(build)
        if node is None or node.get("_target_") == ONNX_FILE:
            with TemporaryDirectory(prefix="sweeprof-onnx-") as folder:
                yield self._live(build(), inputs, channel_axis, Path(folder))
            return
        cache = cache_folder("onnx", self.cache)
        with TemporaryDirectory(prefix="sweeprof-onnx-") if cache is None else nullcontext(cache) as kept:
            yield self._remembered(node, signature_of(inputs), channel_axis, Path(kept))

    def _live(self, model: Any, inputs: Inputs, channel_axis: int | None, folder: Path) -> Exported:
        if isinstance(model, OnnxFile):
            return model.known()
        signature = signature_of(inputs)
        keras = sys.modules.get("keras")
        if keras is not None and isinstance(model, keras.Layer):
            saved = str(folder / "model.keras")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras's own, about numpy
                model.save(saved)
            node = {"_target_": "keras.saving.load_model", "filepath": saved}
            return self._made(node, signature, channel_axis, folder)

        from sweeprof.backends.onnxruntime.torch_export import exported_module, is_module  # which imports torch

        if not is_module(model):
            raise TypeError(_not_a_model(model))

        def made(wanted: CallSignature) -> Exported:
            try:
                return exported_module(model, wanted, folder, self.opset)
            except MemoryError:
                raise
            except Exception as error:  # the exporter may raise anything
                raise Unsupported(f"torch.onnx cannot export the model: {message_of(error)}") from error

        return _first_fitting(made, signature)[0]

    def _remembered(
        self, node: Mapping[str, object], signature: CallSignature, axis: int | None, folder: Path
    ) -> Exported:
        """The file in the cache, made where it is not there; for one batch size alone where the graph takes no other.

        That the exporter refused to make one for any is remembered once that for the single one is there.
        """

        def entry(wanted: CallSignature) -> Path:
            return folder / key_of(node, EXPORTERS, FORMAT, wanted.described(), axis, self.opset, self.seed)

        def cached(wanted: CallSignature) -> Exported:
            return self._cached(entry(wanted), node, wanted, axis)

        note = entry(signature.varying()) / REFUSED
        if note.exists():
            return cached(signature)
        found, refusal = _first_fitting(cached, signature)
        if refusal is not None:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(str(refusal))
        return found

    def _cached(self, entry: Path, node: Mapping[str, object], signature: CallSignature, axis: int | None) -> Exported:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(entry.with_suffix(".lock"), timeout=LOCK_S):
            try:
                return Exported.within(entry)
            except FileNotFoundError:
                return self._made(node, signature, axis, entry)

    def _made(self, node: Mapping[str, object], signature: CallSignature, axis: int | None, folder: Path) -> Exported:
        folder.mkdir(parents=True, exist_ok=True)
        request = {
            "node": dict(node),
            "signature": signature.described(),
            "channel_axis": axis,
            "folder": str(folder),
            "opset": self.opset,
            "seed": self.seed,
        }
        failure = run_child(CHILD, request, {"KERAS_BACKEND": "torch"})
        if failure is not None:
            _raise(failure)
        return Exported.within(folder)


def _first_fitting(
    make: Callable[[CallSignature], Exported], signature: CallSignature
) -> tuple[Exported, Unsupported | None]:
    """The file for any batch size, or for the signature's alone where there is no other; and what spoke against the former.

    Which axes are a batch's is a guess: the state of a recurrent network has it on its second, and the exporter refuses then.

    Raises:
        Unsupported: there is neither.
    """
    varying, refusal = signature.varying(), None
    try:
        found = make(varying)
        if found.batch in (None, signature.batch):
            return found, None
    except Unsupported as error:
        if varying == signature:
            raise
        refusal = error
    return make(signature), refusal


def _raise(failure: ChildFailure) -> None:
    if failure.kind == "MemoryError" or NO_MEMORY in failure.message:
        raise MemoryError(failure.message)
    if failure.stage == "export":
        raise Unsupported(f"torch.onnx cannot export the model: {failure.kind}: {failure.message}")
    failure.reraise()


def message_of(error: BaseException) -> str:
    """The first line of what an error says, or of what it was raised from: the exporter's own introduces a page of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}"[:300] if lines else type(error).__name__


def _not_a_model(model: object) -> str:
    return f"the model's builder returned a {type(model).__name__}, not a torch or Keras model or an OnnxFile"


def exported(request: ChildRequest) -> ChildFailure | None:
    """Build, export, and say what failed."""
    try:
        model = _built(request["node"], request["seed"])
    except Exception as error:  # a builder may raise anything
        return ChildFailure.of("build", error)
    try:
        _exported(model, request).write_facts()
    except Exception as error:  # and so may the exporter
        kind, _, message = message_of(error).partition(": ")
        return ChildFailure("export", kind, message)
    return None


def _built(node: Mapping[str, object], seed: int) -> Any:
    import torch

    from sweeprof.backends.onnxruntime.torch_export import is_keras, is_module

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = instantiate(node)
    if not is_module(model) and not is_keras(model):
        raise TypeError(_not_a_model(model))
    return model


def _exported(model: Any, request: ChildRequest) -> Exported:
    from sweeprof.backends.onnxruntime.torch_export import exported_keras, exported_module, is_keras

    given = request["signature"]
    signature, folder = CallSignature(tuple(given["args"]), given["kwargs"]), Path(request["folder"])
    if is_keras(model):
        return exported_keras(model, signature, request["channel_axis"], folder, request["opset"])
    return exported_module(model, signature, folder, request["opset"])


if __name__ == "__main__":
    answer(exported)
