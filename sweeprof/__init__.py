"""sweeprof: declarative sweeps that profile machine-learning models.

The public names, which ``__init__.pyi`` lists, are imported on first use, so that ``import sweeprof`` stays instant and imports no
framework.

They are stable: a name that is renamed or removed works for at least one more minor release, with a ``DeprecationWarning``.
Those in ``_EXPERIMENTAL`` may change in every minor release. docs/stability.md describes both.
"""

from __future__ import annotations

import logging
import re
from importlib import import_module
from pathlib import Path
from pkgutil import get_data
from typing import Any

__version__ = "0.2.0"

# What the library logs is printed only if the program that uses it says so.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_IMPORTS = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)
_STUB = get_data(__name__, "__init__.pyi")  # also from a zip file
if _STUB is None:  # a loader that reads no other files, such as that of a tool for coverage
    _STUB = Path(__file__).with_name("__init__.pyi").read_bytes()
_MODULES = {name: module for module, name in _IMPORTS.findall(_STUB.decode())}
"""The module of each public name."""

_EXPERIMENTAL = {
    "Allocations",
    "GenerationConfig",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "GraphTensor",
    "Lines",
    "ProfiledFunction",
    "TensorDifference",
    "TensorRow",
    "live_tensors",
    "profile_lines",
    "tensor_difference",
}

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604  # these are names


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'sweeprof' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
