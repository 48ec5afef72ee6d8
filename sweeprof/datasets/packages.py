"""Optional packages, which an extra of sweeprof installs."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from sweeprof.errors import Problem, UserError


def package(name: str, extra: str, key: str = "dataset") -> ModuleType:
    """Return an imported package.

    Raises:
        UserError: it is not installed; names the config key that needs it, and the extra of sweeprof that installs it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        problem = Problem(key, extra, f"needs the package {error.name}: pip install 'sweeprof[{extra}]'.")
        raise UserError([problem]) from None


def import_torchvision(key: str = "dataset") -> ModuleType:
    """Return torchvision; where its compiled operators do not fit this torch, without them: images do not need them."""
    try:
        return package("torchvision", "torchvision", key)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
        return package("torchvision", "torchvision", key)


def import_transformers() -> ModuleType:
    """Return transformers, which imports torchvision where it is installed."""
    transformers = package("transformers", "transformers")
    if find_spec("torch") is not None and find_spec("torchvision") is not None:
        import_torchvision()
    return transformers
