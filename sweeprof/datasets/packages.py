"""Optional packages, which an extra of sweeprof installs."""

from __future__ import annotations

from importlib import import_module
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
