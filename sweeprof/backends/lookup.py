"""Finds the backend of a caller's model by the packages of its classes; imports nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from os import PathLike

from sweeprof.backends import Backend
from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.paths import SAVED_MODEL, kind_of_model, user_path


@dataclass(frozen=True, slots=True)
class BackendHome:
    """One of sweeprof's own backends: where it is, and what it needs."""

    module: str
    kind: str
    """Name of its class."""
    framework: str
    """Name of the model's builder that it runs first."""
    packages: tuple[str, ...] = ()
    """The packages that it needs, as they are imported, its framework first."""
    extra: str = ""
    """The extra of sweeprof that installs the package."""


def _home(name: str, framework: str = "", packages: tuple[str, ...] = ()) -> BackendHome:
    adapter = f"sweeprof.backends.{name}.adapter"
    return BackendHome(adapter, f"{name.capitalize()}Backend", framework or name, packages or (name,), name)


HOMES = {
    "torch": _home("torch"),
    "keras": _home("tensorflow"),
    "tensorflow": _home("tensorflow"),
    "onnxruntime": _home("onnxruntime", framework="onnx"),
    "jax": _home("jax", packages=("jax", "keras")),
    "litert": _home("litert", packages=("ai_edge_litert",)),
    "openvino": _home("openvino"),
    "fake": BackendHome("sweeprof.backends.fake", "FakeBackend", "fake"),
}
"""By the name that a caller gives."""
TARGETS = tuple(dict.fromkeys(f"{home.module}.{home.kind}" for home in HOMES.values()))
"""The dotted names of sweeprof's own backends."""
_PACKAGES = {
    **{name: name for name in ("torch", "keras", "tensorflow")},
    **{f"sweeprof.backends.{name}": name for name in ("onnxruntime", "litert", "openvino", "fake")},
}


FILES = {
    ".onnx": "sweeprof.backends.onnxruntime.files.OnnxFile",
    ".xml": "sweeprof.backends.openvino.convert.OpenvinoFile",
    ".tflite": "sweeprof.backends.litert.model.TfliteFile",
    ".keras": "sweeprof.model_sources.file.keras_model",
    ".h5": "sweeprof.model_sources.file.keras_model",
    ".hdf5": "sweeprof.model_sources.file.keras_model",
    SAVED_MODEL: "sweeprof.model_sources.file.keras_model",
    ".pt2": "sweeprof.model_sources.file.torch_module",
}
"""The function or class that makes a model of the path of a file, by its kind (:func:`sweeprof.paths.kind_of_model`)."""


def backend_named(name: str) -> Backend:
    """The backend of that name with its default settings.

    Raises:
        UserError: there is none, or a package that it needs is not installed.
    """
    if name not in HOMES:
        raise UserError([choice_problem("backend", name, "backend", HOMES)])
    home = HOMES[name]
    missing = missing_package(home.packages)
    if missing is not None:
        raise UserError(
            [Problem("backend", name, f"needs the package {missing}: pip install 'sweeprof[{home.extra}]'.")]
        )
    made: Backend = getattr(import_module(home.module), home.kind)()
    return made


def missing_package(names: Iterable[str]) -> str | None:
    """Return the first of these packages that is not installed; None if all are."""
    return next((name for name in names if find_spec(name) is None), None)


def backend_of(model: object) -> Backend:
    """The backend of the framework that ``model`` comes from.

    Raises:
        UserError: it comes from none that sweeprof knows, or is no model, such as an optimizer.
    """
    for kind in type(model).__mro__:
        for package, name in _PACKAGES.items():
            if kind.__module__ == package or kind.__module__.startswith(f"{package}."):
                if package == "torch" and not isinstance(model, sys.modules["torch"].nn.Module):
                    continue
                if package in ("keras", "tensorflow") and not callable(model):
                    continue
                return backend_named("jax" if package == "keras" and _runs_on_jax() else name)
    allowed = f"is not a model of a framework that sweeprof knows ({', '.join(HOMES)}); say which backend runs it."
    raise UserError([Problem("model", type(model).__name__, allowed)])


def model_in(path: str | PathLike[str]) -> object:
    """Return the model in a file.

    Raises:
        UserError: there is no such file, or its suffix is unknown.
    """
    place, kind = user_path(path), kind_of_model(path)
    if place.is_dir() and kind not in FILES:
        raise UserError([Problem("model", str(path), "is a folder without a saved_model.pb: no SavedModel.")])
    if kind not in FILES:
        raise UserError([Problem("model", str(path), f"is not a model, nor a file of one: {', '.join(FILES)}.")])
    if not place.exists():
        raise UserError([Problem("model", str(path), "is not a file.")])
    module, _, name = FILES[kind].rpartition(".")
    found: object = getattr(import_module(module), name)(str(place))
    return found


def is_function(model: object) -> bool:
    """True for what can be called and is neither a class nor a model of a framework that sweeprof knows."""
    if isinstance(model, type) or not callable(model):
        return False
    try:
        backend_of(model)
    except UserError:
        return True
    return False


def as_model(function: object) -> object:
    """Return a PyTorch module that calls the function."""
    return import_module("sweeprof.backends.torch.model").module_of(function)


def _runs_on_jax() -> bool:
    """True if Keras is imported, as for a Keras model, and runs on JAX in this process."""
    return bool(sys.modules["keras"].config.backend() == "jax")
