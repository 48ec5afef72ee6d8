"""A layer table as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeprof.report.cells import one_line
from sweeprof.report.layers import cells
from sweeprof.report.layers.figures import Figures
from sweeprof.report.layers.nesting import nodes
from sweeprof.report.pages import render
from sweeprof.report.times.notes import timing_lines
from sweeprof.results.layers import LayerRow, LayerTable

COLUMNS = (
    "input_shapes output_shapes params params_share trainable macs macs_share flops ops act_bytes params_bytes buffers dtypes"
).split()
TIMES = "forward_s forward_self_s forward_share flops_per_s backward_s backward_self_s".split()


def to_html(
    table: LayerTable, columns: Sequence[str] | None = None, inclusive: bool = False, title: str = "Layers"
) -> str:
    """The module tree as a page: a click on a header sorts, one on a row's arrow collapses what is within.

    Args:
        table: the layers.
        columns: of :mod:`sweeprof.report.layers.cells`; by default the usual ones and the times where the table has any.
        inclusive: whether figures include the rows within; else they are each row's own.
        title: headline of the page, e.g. the name of the model.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    figures = Figures(table.inclusive() if inclusive else table)
    chosen = cells.selected_columns(columns, COLUMNS, figures.table, TIMES)
    rows = [
        {
            "node": node,
            "path": one_line(node.row.path),
            "type": one_line(node.row.type),
            "mark": cells.call_text(node.row, node.holds_calls),
            "cells": [_cell(figures, node.row, column) for column in chosen],
        }
        for node in nodes(figures.table)
    ]
    return render(
        "layer_table.html.j2",
        title=one_line(title),
        table=figures.table,
        columns=[(cells.title(column), cells.is_numeric(column)) for column in chosen],
        rows=rows,
        totals=[figures.total_text(column) for column in chosen],
        timing=timing_lines(figures.table),
        peak=cells.text_of(table.liveness.peak_bytes, "act_bytes") if table.liveness else "",
    )


def _cell(figures: Figures, row: LayerRow, column: str) -> dict[str, Any]:
    numeric = cells.is_numeric(column)
    return {
        "text": figures.text(row, column),
        "numeric": numeric,
        "value": figures.number(row, column) if numeric else None,
        "reason": cells.why_missing(figures.table, row, column),
    }
