"""Paths of modules: dotted names, and two that stand for themselves."""

from __future__ import annotations

ROOT = "__root__"
"""The model itself."""
OUTSIDE = "__outside__"
"""What runs outside any module."""


def is_below(path: str, other: str) -> bool:
    """Whether a module is inside another one."""
    return path.startswith(f"{other}.") or (other == ROOT and path not in (ROOT, OUTSIDE))


def above(path: str) -> list[str]:
    """The modules that one is inside of, outermost first: ``__root__``, ``a`` and ``a.b`` for ``a.b.c``."""
    if path in (ROOT, OUTSIDE):
        return []
    parts = path.split(".")
    return [ROOT, *(".".join(parts[:end]) for end in range(1, len(parts)))]
