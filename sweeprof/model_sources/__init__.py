"""Model sources: collections and files of models that a config names, such as ``model=timm model.name=resnet18``.

A source is one module here (or anywhere) and one file ``conf/model/NAME.yaml``. The module has functions that build a model for a
framework, and a function that describes what a model takes (:class:`sweeprof.datasets.auto.ModelInputs`), from which
``dataset=auto`` generates samples. Where names can be listed it has a function that lists them, for ``model.name='resnet*'``. The
YAML file passes the settings of the source to these functions; ``docs/models.md`` has an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from sweeprof.datasets import packages
from sweeprof.errors import Problem, UserError, choice_problem, key_problem


def package(name: str, extra: str) -> ModuleType:
    """Return an imported package; raises :class:`UserError` if it is not installed."""
    return packages.package(name, extra, "model")


def known_name(key: str, name: str, known: Iterable[str], noun: str) -> str:
    """Return a name that is one of those known; raises :class:`UserError` with the closest one."""
    names = list(known)
    if name not in names:
        raise UserError([choice_problem(key, name, noun, names)])
    return name


def size(sizes: Mapping[str, Any], name: str, default: int) -> int:
    """Return the size that ``inputs.NAME`` gives, or the default of the model."""
    value = sizes.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError([Problem(f"inputs.{name}", value, "is not a size: a whole number above 0.")])
    return value


def check_sizes(sizes: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise :class:`UserError` for every key under ``inputs`` that the model does not have."""
    keys = [f"inputs.{name}" for name in known]
    problems = [key_problem(f"inputs.{name}", sizes[name], keys) for name in sizes if f"inputs.{name}" not in keys]
    if problems:
        raise UserError(problems)
