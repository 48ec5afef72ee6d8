"""A layer table as lines of texts, for formats that are tables and no more."""

from __future__ import annotations

from collections.abc import Sequence

from sweeprof.report.cells import one_line
from sweeprof.report.layers import cells
from sweeprof.report.layers.figures import Figures
from sweeprof.report.layers.nesting import nodes
from sweeprof.results.layers import OUTSIDE, ROOT, LayerTable


def flat(table: LayerTable, columns: Sequence[str]) -> list[list[str]]:
    """A header, one line per row in the order of the tree, and the totals; path and type come first."""
    figures = Figures(table)
    lines = [["path", "type", *(cells.title(column) for column in columns)]]
    for node in nodes(table):
        row = node.row
        name = {ROOT: "(model)", OUTSIDE: "(outside any module)"}.get(row.path, one_line(row.path))
        place = f"{name} {cells.call_text(row, node.holds_calls)}".rstrip()
        lines.append([place, one_line(row.type), *(figures.text(row, column) for column in columns)])
    return [*lines, ["total", "", *(figures.total_text(column) for column in columns)]]
