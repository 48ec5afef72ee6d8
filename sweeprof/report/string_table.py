"""Things that a page has once and speaks of by their position."""

from __future__ import annotations

from typing import Any


class StringTable:
    """Different things in the order they came, each with its position."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def place(self, thing: Any) -> int:
        """The position of a thing, a new one at the end."""
        return self._places.setdefault(thing, len(self._places))

    @property
    def values(self) -> list[Any]:
        """The things by their positions."""
        return list(self._places)
