"""Looks up the private interfaces of a framework that a backend uses, each by name, so that a test can say which are gone."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable


def missing_interfaces(package: str, tested: str, names: Iterable[str]) -> list[str]:
    """Return a message for every interface that the installed version of a package lacks.

    Args:
        package: its name, such as ``keras``.
        tested: the versions that the backend was tested with.
        names: ``module:attribute``, such as ``keras.src.layers.layer:Node``.
    """
    version = importlib.import_module(package).__version__
    messages = []
    for name in names:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            messages.append(f"{name} is not in {package} {version} (tested with {tested}): {error}")
    return messages
