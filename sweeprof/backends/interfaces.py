"""Private interfaces of frameworks, which any release may change or drop.

One that the installed release lacks makes only the figures unsupported that need it: the rest of the backend works.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import resolve_name
from typing import Any, NoReturn

from sweeprof.errors import Unsupported


def interface(name: str) -> Any:
    """Return a private interface of a framework.

    Args:
        name: ``module:attribute``, such as ``torch._C:_current_autograd_node``, or a module.

    Returns:
        what has that name; where the installed release lacks it, an object that raises :class:`Unsupported` however it is used.
    """
    try:
        return resolve_name(name)
    except (ImportError, AttributeError):
        return _Missing(_reason(name.partition(".")[0].partition(":")[0], name.replace(":", ".")))


def attribute(owner: object, name: str) -> Any:
    """Return a private attribute of a framework's object or class.

    Raises:
        Unsupported: the installed release of the framework lacks it.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        kind = owner if isinstance(owner, type) else type(owner)
        raise Unsupported(_reason(kind.__module__.partition(".")[0], f"{kind.__name__}.{name}")) from None


def _reason(package: str, name: str) -> str:
    version = getattr(import_module(package), "__version__", "")
    return f"{package} {version} has no {name}, a private interface that this needs"


class _Missing:
    """Stands for an interface that is not there, also as the second argument of ``isinstance``."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Unsupported(self._reason)

    __call__ = __getattr__ = __instancecheck__ = _refuse
