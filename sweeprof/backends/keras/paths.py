"""Where a layer is: dotted names of the layers around its call, the model's own name left out."""

from __future__ import annotations

from typing import Any

from sweeprof.results.paths import OUTSIDE, ROOT


class Paths:
    """Gives a path to every layer that is called; two layers of one name in one place have different ones."""

    def __init__(self) -> None:
        self._owner: dict[str, Any] = {}

    def below(self, parent: str, layer: Any) -> str:
        """The path of ``layer`` where a layer at ``parent`` calls or holds it: ``__root__`` outside any layer."""
        if parent == OUTSIDE:
            return ROOT
        name = layer.name.replace(".", "_")
        first = path = name if parent == ROOT else f"{parent}.{name}"
        number = 0
        while self._owner.setdefault(path, layer) is not layer:
            number += 1
            path = f"{first}_{number}"
        return path
