"""From a builder to a file in OpenVINO's format (``.xml`` with its ``.bin``): converted once by another process, and remembered.

A measured process has nothing in memory but the run-time. A model that a config describes is converted by a child, which gets
the description as JSON. Files with fewer bits are made from the file in 32 bits, and are kept beside it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from sweeprof.backends import AnyArray, Build
from sweeprof.backends.call_signature import CallSignature, arrays, moved_last, signature_of
from sweeprof.backends.model_files import FACTS, Maker, described, digest_of, key_of, made_once, temporary_folder
from sweeprof.backends.openvino.files import Converted, ModelFile, OpenvinoFile, not_a_model
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.paths import cache_folder

CHILD = "sweeprof.backends.openvino.convert"
CONVERTERS = ("torch", "tensorflow", "keras", "openvino", "sweeprof")
FORMAT = 1
"""The version of the converted files. If it changes, every model is converted again."""
REFUSED = "refused.txt"
"""The file that replaces a graph for any batch size if there is one for a single size only: the reason."""
OPENVINO_FILE = f"{OpenvinoFile.__module__}.{OpenvinoFile.__qualname__}"
Storage = Literal["fp32", "fp16", "int8"]


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts models to files."""

    storage: Storage
    """Of the weights; ``int8`` also quantizes activations."""
    samples: Inputs | None
    """One batch of samples, channels first as datasets have them, for the ranges of ``int8``; None: there are none."""
    seed: int
    cache: str | None
    """The folder of the files; None: that of the user."""

    @contextmanager
    def converted(self, build: Build, inputs: Inputs, channel_axis: int | None) -> Iterator[Converted]:
        """The file of what ``build`` makes; within the context it exists.

        Raises:
            Unsupported: the model cannot be converted; the reason is the converter's.
            TypeError: the builder made no model that can be.
            Exception: whatever the builder raised.
        """
        with temporary_folder("sweeprof-openvino-") as temporary:
            file = self._plain(build, inputs, temporary)
            yield file if self.storage == "fp32" else self._compressed(file, channel_axis, temporary)

    def _plain(self, build: Build, inputs: Inputs, temporary: Path) -> Converted:
        signature, node = signature_of(inputs), described(build)
        # A file is described without a framework.
        model = build() if node is None or str(node["_target_"]).startswith("sweeprof.backends.") else None
        if isinstance(model, ModelFile):
            path = Path(model.path).expanduser().absolute()
            if not path.is_file():
                raise FileNotFoundError(f"there is no file {model.path}")
            if path.suffix == ".xml":
                return Converted(str(path), channels=model.channels)
        if node is None:
            return _of_caller(model, signature, temporary, self.seed)
        folder = cache_folder("openvino", self.cache) or temporary
        key = (CONVERTERS, FORMAT, self.seed)
        varying = signature.varying()
        folder_for_any = folder / key_of(node, *key, varying.described())
        if not (folder_for_any / REFUSED).exists():
            try:
                found = _converted(node, varying, folder_for_any, self.seed)
                if found.batch in (None, signature.batch):
                    return found
            except Unsupported as error:
                if varying == signature:
                    raise
                (folder_for_any / REFUSED).write_text(str(error), encoding="utf-8")
        return _converted(node, signature, folder / key_of(node, *key, signature.described()), self.seed)

    def _compressed(self, file: Converted, axis: int | None, temporary: Path) -> Converted:
        """The file with fewer bits; it is kept beside the other one, a user's in ``temporary``."""
        given: list[AnyArray] = []
        names: list[str] = []
        if self.storage == "int8":
            if find_spec("nncf") is None:
                raise Unsupported("precision=int8 needs NNCF: pip install 'sweeprof[nncf]'")
            if self.samples is None:
                raise Unsupported("precision_method=static takes its ranges from samples, and there are none")
            positional, named = arrays(self.samples)
            if file.channels == "last" and axis is not None:
                positional = [moved_last(array, axis) for array in positional]
            given, names = [*positional, *named.values()], list(named)
        nncf = version("nncf") if self.storage == "int8" else None
        known = json.dumps([FORMAT, version("openvino"), nncf, digest_of(given), names])
        above = Path(file.path).parent if (Path(file.path).parent / FACTS).exists() else temporary
        folder = above / f"{self.storage}-{hashlib.sha256(known.encode()).hexdigest()[:24]}"
        verb = "quantize" if self.storage == "int8" else "compress"
        request = {"stage": verb, "file": asdict(file), "storage": self.storage, "names": names}
        return made_once(Converted, folder, _maker(verb), request, given)


def _of_caller(model: Any, signature: CallSignature, folder: Path, seed: int) -> Converted:
    """Return the file of a model in a caller's hands, which has no description; a module is converted in this process."""
    keras, torch = sys.modules.get("keras"), sys.modules.get("torch")
    if isinstance(model, ModelFile):
        node = {"_target_": OPENVINO_FILE, "path": model.path, "channels": model.channels}
    elif keras is not None and isinstance(model, keras.Layer):
        model.save(folder / "model.keras")
        node = {"_target_": "keras.saving.load_model", "filepath": str(folder / "model.keras")}
    elif torch is not None and isinstance(model, torch.nn.Module):
        from sweeprof.backends.openvino.convert import converted, reason

        try:
            return converted(copy.deepcopy(model).cpu(), signature, folder)
        except Exception as error:  # the tracer may raise anything
            raise Unsupported(f"OpenVINO cannot convert the model: {type(error).__name__}: {reason(error)}") from error
    else:
        raise TypeError(not_a_model(model))
    return _converted(node, signature, folder / "converted", seed)


def _converted(node: Mapping[str, object], signature: CallSignature, folder: Path, seed: int) -> Converted:
    request = {"stage": "convert", "node": dict(node), "signature": signature.described(), "seed": seed}
    return made_once(Converted, folder, _maker("convert"), request)


def _maker(verb: str) -> Maker:
    """Return what makes a file in a process of its own."""
    variables = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    return Maker(CHILD, f"OpenVINO cannot {verb} the model", variables)
