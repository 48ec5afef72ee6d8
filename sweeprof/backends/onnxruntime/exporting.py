"""From a builder to an ONNX file: exported once, in a process of its own, and remembered.

A measured process is to have nothing in memory but the run-time, and a forked one may not run torch. So a model that a config
describes is exported by a child, which runs this file and gets the description as JSON. The file is kept under what it was made
from. A model in a caller's hands has no description, and is exported right here, where its framework is loaded already.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from filelock import FileLock

from sweeprof.backends import AnyArray, Build
from sweeprof.backends.call_signature import CallSignature, arrays, moved_last, signature_of
from sweeprof.backends.model_files import (
    LOCK_S,
    ChildFailure,
    ChildRequest,
    answer,
    described,
    key_of,
    run_child,
)
from sweeprof.backends.onnxruntime.files import Exported, OnnxFile
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.instantiate import instantiate
from sweeprof.paths import cache_folder

CHILD = "sweeprof.backends.onnxruntime.exporting"
QUANTIZER = "sweeprof.backends.onnxruntime.quantizing"
FLOATS = {"fp32": "float32", "fp16": "float16"}
"""Data types by the precisions that a model is exported in."""
EXPORTERS = ("torch", "onnx", "onnxscript", "onnx-ir", "keras", "sweeprof")
FORMAT = 2
"""The version of the exported files. If it changes, every model is exported again."""
QUANTIZED_FORMAT = 2
"""The same of quantized files."""
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
    precision: str | None = None
    """``fp32``, ``fp16`` or ``int8``; None: as the model is."""
    method: str | None = None
    """``dynamic`` or ``static`` for ``int8``."""
    samples: Inputs | None = None
    """One batch of samples, channels first as datasets have them, for the ranges of ``static``; None: there are none."""

    @contextmanager
    def exported(self, build: Build, inputs: Inputs, channel_axis: int | None) -> Iterator[Exported]:
        """The file of what ``build`` makes; within the context it exists.

        Raises:
            Unsupported: the model cannot be exported; the reason is the exporter's.
            TypeError: the builder made no model that can be.
            Exception: whatever the builder raised.
        """
        if self.precision == "int8":
            with (
                replace(self, precision="fp32").exported(build, inputs, channel_axis) as file,
                TemporaryDirectory(prefix="sweeprof-onnx-") as folder,
            ):
                yield self._quantized(file, channel_axis, Path(folder))
            return
        node = described(build)
        if node is None or node.get("_target_") == ONNX_FILE:
            with TemporaryDirectory(prefix="sweeprof-onnx-") as folder:
                yield self._live(build(), inputs, channel_axis, Path(folder))
            return
        cache = cache_folder("onnx", self.cache)
        with TemporaryDirectory(prefix="sweeprof-onnx-") if cache is None else nullcontext(cache) as kept:
            yield self._remembered(node, self._signature(inputs), channel_axis, Path(kept))

    def _signature(self, inputs: Inputs) -> CallSignature:
        signature = signature_of(inputs)
        return signature if self.precision is None else signature.in_floats(FLOATS[self.precision])

    def _quantized(self, file: Exported, axis: int | None, temporary: Path) -> Exported:
        """The quantized file; it is kept beside the exported one, of a user's file in ``temporary``."""
        arranged: list[AnyArray] = []
        names: list[str] = []
        if self.method == "static":
            if self.samples is None:
                raise Unsupported("precision_method=static takes its ranges from samples, and there are none")
            positional, named = arrays(self.samples)
            if file.channels == "last" and axis is not None:
                positional = [moved_last(array, axis) for array in positional]
            arranged, names = [*positional, *named.values()], list(named)
        content = [hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arranged]
        known = json.dumps([QUANTIZED_FORMAT, version("onnxruntime"), self.method, content, names])
        above = temporary if file.paths is None else Path(file.path).parent
        folder = above / f"int8-{hashlib.sha256(known.encode()).hexdigest()[:24]}"
        with FileLock(folder.with_suffix(".lock"), timeout=LOCK_S):
            try:
                return Exported.within(folder)
            except FileNotFoundError:
                pass
            folder.mkdir(exist_ok=True)
            kept = temporary / "samples.npz"
            if arranged:
                np.savez(kept, *arranged)
            request = {"file": asdict(file), "method": self.method, "names": names, "folder": str(folder)}
            failure = run_child(QUANTIZER, {**request, "samples": str(kept) if arranged else None}, {})
            if failure is not None:
                _raise_of_quantizing(failure)
            return Exported.within(folder)

    def _live(self, model: Any, inputs: Inputs, channel_axis: int | None, folder: Path) -> Exported:
        if isinstance(model, OnnxFile):
            if self.precision == "fp16":
                raise Unsupported("an ONNX file runs with the data types that it has; precision=int8 quantizes it")
            return model.known()
        signature = self._signature(inputs)
        keras = sys.modules.get("keras")
        if keras is not None and isinstance(model, keras.Layer):
            if self.precision == "fp16":
                raise Unsupported("a Keras model that is made already has the precision that it has")
            saved = str(folder / "model.keras")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Keras's own, about numpy
                model.save(saved)
            node = {"_target_": "keras.saving.load_model", "filepath": saved}
            return self._made(node, signature, channel_axis, folder)

        from sweeprof.backends.onnxruntime.torch_export import exported_module, is_module  # which imports torch

        if not is_module(model):
            raise TypeError(_not_a_model(model))

        if self.precision is not None:
            model = _converted(model, FLOATS[self.precision], is_own=False)

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
            precision = [] if self.precision is None else [self.precision]
            return folder / key_of(node, EXPORTERS, FORMAT, wanted.described(), axis, self.opset, self.seed, *precision)

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
            "dtype": None if self.precision is None else FLOATS[self.precision],
        }
        variables = {"KERAS_BACKEND": "torch"}
        if self.precision == "fp16":
            variables["KERAS_FLOATX"] = FLOATS[self.precision]
        failure = run_child(CHILD, request, variables)
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


def _raise_of_quantizing(failure: ChildFailure) -> None:
    if failure.kind == "MemoryError":
        raise MemoryError(failure.message)
    if failure.kind == "Unsupported":
        raise Unsupported(failure.message)
    raise Unsupported(f"ONNX Runtime cannot quantize the model: {failure.kind}: {failure.message}")


def _converted(model: Any, dtype: str, is_own: bool) -> Any:
    """Return a module with its floating-point weights in ``dtype``; a copy of one that is a caller's, where that differs."""
    import torch

    wanted = getattr(torch, dtype)
    weights = [*model.parameters(), *model.buffers()]
    if all(weight.dtype == wanted for weight in weights if weight.is_floating_point()):
        return model
    return (model if is_own else copy.deepcopy(model)).to(wanted)


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
        model = _built(request["node"], request["seed"], request["dtype"])
    except Exception as error:  # a builder may raise anything
        return ChildFailure.of("build", error)
    try:
        _exported(model, request).write_facts()
    except Exception as error:  # and so may the exporter
        kind, _, message = message_of(error).partition(": ")
        return ChildFailure("export", kind, message)
    return None


def _built(node: Mapping[str, object], seed: int, dtype: str | None) -> Any:
    import torch

    from sweeprof.backends.onnxruntime.torch_export import is_keras, is_module

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = instantiate(node)
    if is_module(model):
        return model if dtype is None else _converted(model, dtype, is_own=True)
    if not is_keras(model):
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
