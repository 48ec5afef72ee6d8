"""The nesting of a layer table's rows: the order and the depth of every tree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.text import one_line


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One row in its place."""

    row: LayerRow
    parent: int | None
    """Position of the node that this one is drawn in, among the nodes; None for the outermost."""
    depth: int
    """How many nodes are around this one; differs from the row's where a module is called by another than its owner."""
    label: str
    """The path as seen from the parent: the last part of it, or all of it where another module owns the row."""
    is_last: bool
    """True if no sibling follows."""
    has_children: bool
    holds_calls: bool
    """True if a layer within it was called."""


def nodes(table: LayerTable) -> list[TreeNode]:
    """Every row, each before the rows within it. Calls stand in the call they were made in.

    A module that is never called itself, such as a list, stands around the calls of what it holds. Where the table does not
    tell which call was made in which, the paths do.
    """
    rows = table.rows
    parents = _parents(rows)
    children: dict[int | None, list[int]] = defaultdict(list)
    for index, parent in enumerate(parents):
        children[parent].append(index)
    holding: set[int] = set()
    for index, row in enumerate(rows):
        around = parents[index] if row.call >= 0 else None
        while around is not None and around not in holding:
            holding.add(around)
            around = parents[around]
    found: list[TreeNode] = []
    stack: list[tuple[int, int | None, int]] = [(index, None, 0) for index in reversed(children[None])]
    while stack:
        index, place, depth = stack.pop()
        siblings = children[parents[index]]
        label = _label(rows[index], None if place is None else found[place].row)
        is_last = index == siblings[-1]
        found.append(TreeNode(rows[index], place, depth, label, is_last, bool(children[index]), index in holding))
        own = len(found) - 1
        stack += [(child, own, depth + 1) for child in reversed(children[index])]
    return found


def place_text(path: str) -> str:
    """The path of a module as a reader knows it."""
    return {ROOT: "the model", OUTSIDE: "no module"}.get(path, one_line(path))


def _parents(rows: Sequence[LayerRow]) -> list[int | None]:
    tells = any(row.parent is not None for row in rows)
    # Rows that tell nothing may stand before the one that owns them; among calls that would be a mistake.
    first = {} if tells else {row.path: index for index, row in reversed(list(enumerate(rows)))}
    latest = dict(first)
    parents: list[int | None] = []
    for index, row in enumerate(rows):
        # What is never called stands once, with the first call of its owner.
        around = None if row.path in (ROOT, OUTSIDE) else _around(row.path, first if row.call < 0 else latest)
        first.setdefault(row.path, index)
        latest[row.path] = index
        if around is None or row.parent is None or row.call < 0:
            parents.append(around)
        else:
            parents.append(_list_between(rows, parents, around, row.parent))
    return parents


def _list_between(rows: Sequence[LayerRow], parents: list[int | None], around: int, caller: int) -> int:
    """The list of modules between a call and its caller, where there is one in this call of the caller; else the caller."""
    outer: int | None = around
    while outer is not None and rows[outer].call < 0:
        outer = parents[outer]
    return around if outer == caller else caller


def _around(path: str, known: dict[str, int]) -> int | None:
    """The row of the nearest path above; the root is above all."""
    while "." in path:
        path = path.rpartition(".")[0]
        if path in known:
            return known[path]
    return known.get(ROOT)


def _label(row: LayerRow, parent: LayerRow | None) -> str:
    if row.path in (ROOT, OUTSIDE):
        return "" if row.path == ROOT else "outside any module"
    prefix = "" if parent is None or parent.path == ROOT else f"{parent.path}."
    return one_line(row.path.removeprefix(prefix))
