"""Two layer tables row by row: what differs, by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeprof.display import Displayed
from sweeprof.numbers import MISSING, ratio_number
from sweeprof.report.layers import cells
from sweeprof.report.layers.cells import Figures
from sweeprof.report.view import View, ViewCell, table
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import TIMES, LayerRow, LayerTable
from sweeprof.results.measurement import Number
from sweeprof.text import listed, one_line

COLUMNS = ("params", "macs", "flops", "act_bytes")


@dataclass(frozen=True, slots=True)
class FigurePair:
    """One figure of a row in both tables, in base units; None where it cannot be had."""

    left: Number | None
    right: Number | None

    @property
    def difference(self) -> Number | None:
        """Right minus left."""
        return None if self.left is None or self.right is None else self.right - self.left

    @property
    def ratio(self) -> float | None:
        """Right over left; None where left is zero."""
        return None if self.left is None or self.right is None or not self.left else self.right / self.left


@dataclass(frozen=True, slots=True)
class SideRow:
    """One call of a module in either table or in both."""

    path: str
    call: int
    names: tuple[str, str]
    """The names of the tables."""
    left: LayerRow | None
    """None where only the other table has the row."""
    right: LayerRow | None
    figures: dict[str, FigurePair]
    """By column; a row that one table lacks has no figure there."""

    @property
    def is_in_both(self) -> bool:
        return self.left is not None and self.right is not None


class SideRows(Displayed, list[SideRow]):
    """The rows of two tables; printed, both values of every figure, with the ratio where they differ."""

    def __view__(self) -> View:
        if not self:
            return View("no layers")
        left, right = self[0].names
        differing = [name for name in self[0].figures if any(_differs(row, name) for row in self)]
        equal = [cells.title(name) for name in self[0].figures if name not in differing]
        headings = ["layer", "call"]
        for column in differing:
            title = cells.title(column)
            headings += [f"{title} {left}", f"{title} {right}", f"{title} ratio"]
        rows = []
        for row in self:
            found = [ViewCell("(model)" if row.path == ROOT else one_line(row.path)), ViewCell(str(row.call))]
            absent = "" if row.is_in_both else f"only {right if row.left is None else left} has this layer"
            for column in differing:
                pair = row.figures[column]
                found += [ViewCell(cells.text_of(value, column), value, absent) for value in (pair.left, pair.right)]
                found.append(_ratio_cell(pair))
            rows.append(found)
        count = sum(any(_differs(row, name) for name in differing) for row in self)
        lines = [f"Equal in every layer: {', '.join(equal)}."] if equal else []
        return View(f"{count} of {len(self)} layers differ", (table(headings, rows, headings[1:]), *lines))


def _ratio_cell(pair: FigurePair) -> ViewCell:
    if pair.left == pair.right or pair.left is None or pair.right is None:
        return ViewCell("")
    if pair.ratio is None:
        return ViewCell(MISSING, note="no ratio, because the first value is zero")
    return ViewCell(f"×{ratio_number(pair.ratio)}", pair.ratio)


def _differs(row: SideRow, column: str) -> bool:
    return row.figures[column].left != row.figures[column].right


def side_by_side(
    left: LayerTable,
    right: LayerTable,
    names: tuple[str, str] = ("left", "right"),
    columns: str | Sequence[str] | None = None,
) -> SideRows:
    """Every row of either table, matched by path and call, in the order of the left one.

    A row that only the right table has comes after the one it follows there. The figures are those of the tables as they are;
    give ``inclusive()`` tables for figures that include the rows within; ``forward_s`` and ``backward_s`` always do. By default
    the columns are :data:`COLUMNS` and the times that either table has.

    Raises:
        UserError: a column does not exist or is no figure.
    """
    either = [*COLUMNS, *cells.timed(left, TIMES), *cells.timed(right, TIMES)]
    chosen = [cells.figure(column) for column in (dict.fromkeys(either) if columns is None else listed(columns))]
    lefts = {(row.path, row.call): row for row in left.rows}
    rights = {(row.path, row.call): row for row in right.rows}
    of_left, of_right = Figures(left), Figures(right)
    found = []
    for key in _merged(list(lefts), list(rights)):
        one, other = lefts.get(key), rights.get(key)
        figures = {
            column: FigurePair(
                None if one is None else of_left.number(one, column),
                None if other is None else of_right.number(other, column),
            )
            for column in chosen
        }
        found.append(SideRow(*key, names, one, other, figures))
    return SideRows(found)


def _merged(lefts: list[tuple[str, int]], rights: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The union in the order of the first; what only the second has follows its predecessor there."""
    here = set(lefts)
    after: dict[tuple[str, int] | None, list[tuple[str, int]]] = {}
    previous: tuple[str, int] | None = None
    for key in rights:
        if key in here:
            previous = key
        else:
            after.setdefault(previous, []).append(key)
    merged = after.get(None, [])
    for key in lefts:
        merged += [key, *after.get(key, [])]
    return merged
