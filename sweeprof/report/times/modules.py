"""The modules of a layer table with what all calls of each took together, each module once, in the order of the module tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sweeprof.report.layers import cells
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import LayerRow, LayerTable


@dataclass(frozen=True, slots=True)
class ModuleTimes:
    """One module; seconds include the modules within it."""

    calls: tuple[LayerRow, ...]
    """Its rows; one for a module that is never called."""
    depth: int
    """How many modules are around it."""
    forward: float | None
    backward: float | None
    reason: str | None
    """Why one of them is None."""
    children: tuple[ModuleTimes, ...]

    @property
    def row(self) -> LayerRow:
        """Its first call, where its parameters stand."""
        return self.calls[0]

    @property
    def label(self) -> str:
        """The module's name in its parent, e.g. ``0`` in a list; empty for the model."""
        return "" if self.row.path in (ROOT, OUTSIDE) else self.row.name


def modules(table: LayerTable) -> list[ModuleTimes]:
    """The outermost modules, each with those within it: the model, and what runs outside any module where there is such."""
    rows: dict[str, list[LayerRow]] = defaultdict(list)
    for row in table.rows:
        rows[row.path].append(row)
    children: dict[str | None, list[str]] = defaultdict(list)
    for path in rows:
        children[_owner(path, rows)].append(path)

    def made(path: str, depth: int) -> ModuleTimes:
        calls = rows[path]
        forward, backward = (_sum(getattr(row, name) for row in calls) for name in ("forward_s", "backward_s"))
        missing = "forward_s" if forward is None else "backward_s"
        reason = cells.why_missing(table, calls[0], missing) if None in (forward, backward) else None
        within = tuple(made(child, depth + 1) for child in children[path])
        return ModuleTimes(tuple(calls), depth, forward, backward, reason, within)

    return [made(path, 0) for path in children[None]]


def _owner(path: str, known: Iterable[str]) -> str | None:
    """The nearest module around it."""
    if path in (ROOT, OUTSIDE):
        return None
    around = path
    while "." in around:
        around = around.rpartition(".")[0]
        if around in known:
            return around
    return ROOT if ROOT in known else None


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values: a call without a backward adds nothing to it."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None
