"""A layer table as lines of texts, for formats that are tables and no more."""

from __future__ import annotations

from collections.abc import Sequence

from sweeprof.report.cells import one_line
from sweeprof.report.layers import cells
from sweeprof.report.layers.figures import Figures
from sweeprof.report.layers.nesting import nodes
from sweeprof.results.layers import OUTSIDE, ROOT, LayerTable


def flat(table: LayerTable, columns: Sequence[str], inclusive: bool) -> list[list[str]]:
    """A header, one line per row in the order of the tree, and the totals; path and type come first.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    figures = Figures(table.inclusive() if inclusive else table)
    chosen = cells.known(columns)
    lines = [["path", "type", *(cells.title(column) for column in chosen)]]
    for node in nodes(figures.table):
        row = node.row
        name = {ROOT: "(model)", OUTSIDE: "(outside any module)"}.get(row.path, one_line(row.path))
        place = f"{name} {cells.call_text(row, node.holds_calls)}".rstrip()
        lines.append([place, one_line(row.type), *(figures.text(row, column) for column in chosen)])
    return [*lines, ["total", "", *(figures.total_text(column) for column in chosen)]]
