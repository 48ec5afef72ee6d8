"""Times by module, in the three forms of the package nnprofiler: a summary like ``repr(model)``, timings, a pool of costs.

A module has what all its calls took together, and is there once, in the order of the module tree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sweeprof.errors import UserError
from sweeprof.numbers import MISSING, scaled
from sweeprof.report.layers import cells
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.record import Json
from sweeprof.text import one_line


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


_COLLECTIONS = {"ModuleList": "list", "ModuleDict": "dict"}
_INDENT = 4


def timings(table: LayerTable) -> dict[str, Json]:
    """Seconds by path: ``{"conv1": {"forward": 0.0012, "backward": 0.0025, "reason": None, "calls": […]}}``.

    They include the modules within; a module called several times has the sum, and under ``calls`` each call by itself. Every
    module is there: a time that cannot be had is None, and ``reason`` says why.
    """
    found: dict[str, Json] = {}
    waiting = modules(table)[::-1]
    while waiting:
        module = waiting.pop()
        calls = [
            _timing(row.forward_s, row.backward_s, cells.why_missing(table, row, "backward_s")) for row in module.calls
        ]
        found[module.row.path] = {**_timing(module.forward, module.backward, module.reason), "calls": calls}
        waiting += module.children[::-1]
    return found


def _timing(forward: float | None, backward: float | None, reason: str | None) -> dict[str, object]:
    return {"forward": forward, "backward": backward, "reason": reason}


def timepool(table: LayerTable) -> dict[str, Json]:
    """Milliseconds as a nested dictionary: ``{"MyNet": {"forward_cost": 1.2, …, "children": {"MyNet.linear1": {…}}}}``.

    Every module has ``forward_cost`` and ``backward_cost`` with the modules within it, None where a further key ``reason`` says
    why; ``deepth``, how many modules are around it; ``collect_flag``, ``list`` or ``dict`` for a collection that is never called
    itself and costs what it holds, else ``none``; ``children``. Several calls of a module are summed.

    Raises:
        UserError: the table has no row of the model itself.
    """
    root = _root(table)
    name = one_line(root.row.type)
    return {name: _pool(root, name)}


def _root(table: LayerTable) -> ModuleTimes:
    root = next((module for module in modules(table) if module.row.path == ROOT), None)
    if root is None:
        raise UserError("the layers have no row of the model itself, which holds all others")
    return root


def _pool(module: ModuleTimes, root: str) -> dict[str, object]:
    return {
        "forward_cost": _milliseconds(module.forward),
        "backward_cost": _milliseconds(module.backward),
        **({"reason": module.reason} if module.reason else {}),
        "deepth": module.depth,
        "collect_flag": _collection(module),
        "children": {f"{root}.{one_line(child.row.path)}": _pool(child, root) for child in module.children},
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _collection(module: ModuleTimes) -> str:
    """By the class, and where that is a subclass, by what it holds: a list numbers its modules."""
    row = module.row
    if row.call >= 0 or not module.children:
        return _COLLECTIONS.get(row.type, "none")
    numbered = all(child.label.isdecimal() for child in module.children)
    return _COLLECTIONS.get(row.type, "list" if numbered else "dict")


def namespace_tree(pool: Mapping[str, object]) -> str:
    """A nested dictionary as text: a line per key, those within indented by 4, ``key`` padded to 30 and ``---> value``."""
    return "\n".join(_namespace(pool, 0))


def _namespace(pool: Mapping[str, object], indent: int) -> list[str]:
    lines: list[str] = []
    for key, value in pool.items():
        if isinstance(value, Mapping):
            lines += [" " * indent + key, *_namespace(value, indent + _INDENT)]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else value
            lines.append(f"{' ' * indent}{key:30s} ---> {shown}")
    return lines


def layerwise_summary(table: LayerTable, precision: int = 6) -> str:
    """The module tree like ``repr(model)``, every module with its shapes, parameters and times in milliseconds.

    ``(0): Linear([16, 10] -> [16, 5], 55 params, Forward Time: 0.012345ms | Backward Time: 0.023456ms)``. Figures include the
    modules within; of a module called several times they are the sum, of its shapes the first call's.
    """
    shown, reason = cells.with_figures(table)
    lines = [line for module in modules(shown) for line in _summary(module, precision)]
    return "\n".join([*lines, *([reason] if reason else [])])


def _summary(module: ModuleTimes, precision: int) -> list[str]:
    indent = "  " * module.depth
    label = f"({one_line(module.label)}): " if module.label else ""
    opening = f"{indent}{label}{one_line(module.row.type) or 'outside any module'}("
    message = ", ".join([*_described(module.calls), _times(module, precision)])
    if not module.children:
        return [f"{opening}{message})"]
    inner = [line for child in module.children for line in _summary(child, precision)]
    return [opening, f"{indent}  {message}", *inner, f"{indent})"]


def _described(calls: tuple[LayerRow, ...]) -> list[str]:
    row = calls[0]
    shapes = [cells.shape_text(row.input_shapes), cells.shape_text(row.output_shapes)]
    message = [] if shapes == [MISSING, MISSING] else [" -> ".join(shapes)]
    message += [f"{scaled(row.params, 'params')} params"] if row.params else []
    return [*message, *([f"{len(calls)} calls"] if len(calls) > 1 else [])]


def _times(module: ModuleTimes, precision: int) -> str:
    def text(seconds: float | None) -> str:
        return MISSING if seconds is None else f"{1e3 * seconds:.{precision}f}ms"

    why = f" ({module.reason})" if module.reason else ""
    return f"Forward Time: {text(module.forward)} | Backward Time: {text(module.backward)}{why}"
