"""LayerTable: what a model is made of, one row per call site of a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ROOT = "__root__"
"""Path of the model itself."""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One call of one module. Counts are the module's own: what its children do is in their rows."""

    path: str
    """Dotted path below the root, e.g. ``stage1.conv2``."""
    type: str
    """Class name."""
    depth: int
    """0 for the root."""
    call: int
    """0 for the first call of this module, 1 for the second …; -1 for a module that was never called."""
    params: int
    """Own parameters; a tensor shared by several modules, or a module called twice, counts once, where it comes first."""
    trainable: int
    params_bytes: int
    buffers: int
    """Elements of own persistent state that no optimizer sees (BatchNorm's moving statistics)."""
    macs: int
    """Multiply-accumulates of this call, for the whole batch."""
    input_shapes: tuple[tuple[int, ...], ...] = ()
    output_shapes: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Every row, and how complete the counts are."""

    rows: tuple[LayerRow, ...]
    uncovered: dict[str, int] = field(default_factory=dict)
    """Calls per operator for which no formula is known, so that its MACs are missing from ``macs``."""
    method: str = "shapes"
    """How the counts were made: ``shapes`` (nothing was allocated) or ``real forward``."""

    @property
    def params(self) -> int:
        return sum(row.params for row in self.rows)

    @property
    def trainable(self) -> int:
        return sum(row.trainable for row in self.rows)

    @property
    def params_bytes(self) -> int:
        return sum(row.params_bytes for row in self.rows)

    @property
    def macs(self) -> int:
        return sum(row.macs for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LayerTable:
        """The table that :meth:`to_dict` wrote."""
        rows = tuple(
            LayerRow(
                **{**row, "input_shapes": _shapes(row["input_shapes"]), "output_shapes": _shapes(row["output_shapes"])}
            )
            for row in data["rows"]
        )
        return cls(rows, dict(data["uncovered"]), data["method"])


def _shapes(data: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in data)
