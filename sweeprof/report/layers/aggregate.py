"""Sums of a layer table by class name, and its largest rows."""

from __future__ import annotations

from collections.abc import Iterable

from sweeprof.display import Displayed
from sweeprof.errors import Problem, UserError
from sweeprof.numbers import MISSING, percent
from sweeprof.report.layers import cells
from sweeprof.report.layers.cells import Figures
from sweeprof.report.view import Cells, View, ViewCell
from sweeprof.report.view import table as view_table
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.measurement import Number
from sweeprof.text import one_line

SUMMARY = ("params", "macs", "flops", "act_bytes")
"""Columns of :func:`summary_lines`; the times come after them where the table has any."""

TypeSum = tuple[str, Number | None, float | None]
"""Class name, sum in base units, share of the table's total in 0..1; None where it cannot be had."""
TopRow = tuple[LayerRow, Number, float | None]
"""Row, its figure in base units, its share of the table's total; None for a rate."""


class TypeSums(Displayed, list[TypeSum]):
    """Sums of a figure by class name; printed, a table."""

    def __init__(self, sums: Iterable[TypeSum], column: str) -> None:
        super().__init__(sums)
        self.column = column

    def __view__(self) -> View:
        title = cells.title(self.column)
        rows: list[Cells] = [
            [one_line(name) or "outside any module", _figure_cell(value, self.column), _share_cell(share)]
            for name, value, share in self
        ]
        return View("", (view_table(["type", title, "share"], rows, [title, "share"]),))


class TopRows(Displayed, list[TopRow]):
    """The rows with the largest figures; printed, a table."""

    def __init__(self, rows: Iterable[TopRow], column: str) -> None:
        super().__init__(rows)
        self.column = column

    def __view__(self) -> View:
        title = cells.title(self.column)
        rows: list[Cells] = [
            [one_line(row.path), one_line(row.type), _figure_cell(value, self.column), _share_cell(share)]
            for row, value, share in self
        ]
        return View("", (view_table(["layer", "type", title, "share"], rows, [title, "share"]),))


def _figure_cell(value: Number | None, column: str) -> ViewCell:
    return ViewCell(cells.text_of(value, column), value)


def _share_cell(share: float | None) -> ViewCell:
    return ViewCell(percent(share), share)


def by_type(table: LayerTable, depth: int | None = None, top: int | None = None, column: str = "macs") -> TypeSums:
    """Sums by class name, the largest first, and among equals the one that comes first in the model.

    Args:
        table: the layers.
        depth: sums the figures that include what is within, over the rows of exactly this depth, as the profilers of this
            field do; a row within another row of that depth counts in both. -1 is the deepest level, as in DeepSpeed's profiler.
            None sums every row's own figures, so that the shares make 1.
        top: how many to return, the largest first; None returns all.
        column: a figure of :data:`sweeprof.report.layers.cells.FIGURES` that adds up; without a depth, ``forward_s`` and
            ``backward_s`` are own seconds.

    Raises:
        ValueError: a depth is given, and the table does not tell which call was made in which.
        UserError: the column does not exist, is no figure, or is a rate; the depth is below -1, or ``top`` below 0.
    """
    cells.figure(column)
    depth = level(table, depth)
    if top is not None and top < 0:
        raise UserError([Problem("top", top, "must be at least 0, or None for all.")])
    if column in cells.RATES:
        raise UserError([Problem("column", column, "is a rate: rates do not add up.")])
    if depth is None and table.is_inclusive:
        raise ValueError("these figures include one another; give a depth, or the table before inclusive()")
    figures = Figures(table if depth is None else table.inclusive())
    column = cells.own_seconds(column, figures.table)
    groups: dict[str, list[Number | None]] = {}
    for row in figures.table.rows:
        if depth is None or row.depth == depth:
            groups.setdefault(row.type, []).append(_counted(figures, row, column))
    whole = figures.total(column)
    found = [(name, value, _share(value, whole)) for name, values in groups.items() for value in (_sum(values),)]
    return TypeSums(sorted(found, key=lambda item: _order(item[1]))[:top], column)


def level(table: LayerTable, depth: int | None) -> int | None:
    """The depth that ``depth`` stands for in this table: -1 is the deepest level.

    Raises:
        UserError: it is below -1.
    """
    if depth is None or depth >= 0:
        return depth
    if depth < -1:
        raise UserError([Problem("depth", depth, "must be at least 0, -1 for the deepest level, or None.")])
    return max((row.depth for row in table.rows), default=0)


def top_layers(table: LayerTable, column: str = "macs", top: int = 3) -> TopRows:
    """The rows with the largest figures, the largest first: row, value in base units, share of the table's total.

    ``forward_s`` and ``backward_s`` include the calls within a row in any table. A rate has no share. Rows
    without that figure are left out, and so are weights that stand with an earlier call of the same module.

    Raises:
        UserError: the column does not exist or is no figure.
    """
    cells.figure(column)
    figures = Figures(table)
    whole = figures.total(column)
    known = [(row, value) for row in table.rows if (value := figures.number(row, column)) is not None]
    known.sort(key=lambda item: -item[1])
    is_rate = column in cells.RATES
    return TopRows([(row, value, None if is_rate else _share(value, whole)) for row, value in known[:top]], column)


def summary_lines(table: LayerTable, depth: int | None = 2, top: int | None = 3) -> list[str]:
    """One line per column, e.g. ``MACs: Conv2d 405.6 KMACs, Linear 10.92 KMACs, Tanh 0 MACs``.

    Arguments and errors are those of :func:`by_type`.
    """
    lines = []
    measured = [column for column in ("forward_s", "backward_s") if cells.timed(table, (column,))]
    for column in (*SUMMARY, *measured):
        title = cells.title(cells.own_seconds(column, table) if depth is None else column)
        sums = [
            f"{one_line(name) or 'outside any module'} {cells.text_of(value, column)}"
            for name, value, _ in by_type(table, depth, top, column)
        ]
        lines.append(f"{title}: {', '.join(sums) or MISSING}")
    return lines


def _counted(figures: Figures, row: LayerRow, column: str) -> Number | None:
    """Return the row's contribution to a sum: a module's weights count in its first call only; an uncalled module takes no time."""
    if row.call < 0 and cells.time_column(column) and getattr(row, column) is None:
        return 0
    value = figures.number(row, column)
    return 0 if value is None and getattr(row, column) is not None else value


def _sum(values: Iterable[Number | None]) -> Number | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _share(value: Number | None, whole: Number | None) -> float | None:
    return None if value is None or not whole else value / whole


def _order(value: Number | None) -> tuple[bool, Number]:
    return (value is None, -(value or 0))
