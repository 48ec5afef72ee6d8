"""Layer tables in HTML: one as a self-contained page, and many in one page.

Combinations of one model share nearly all values: a page with many tables has each list of values once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeprof.report.layers import cells
from sweeprof.report.layers.cells import Figures, TreeNode, nodes, timing_lines
from sweeprof.report.pages import StringTable, render
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.measurement import Number
from sweeprof.text import one_line

COLUMNS = (
    "input_shapes output_shapes params params_share trainable macs macs_share flops ops act_bytes params_bytes buffers dtypes"
).split()
TIMES = "forward_s forward_self_s forward_share flops_per_s backward_s backward_self_s".split()


def to_html(
    table: LayerTable, columns: str | Sequence[str] | None = None, inclusive: bool = False, title: str = "Layers"
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


def _cell(figures: Figures, row: LayerRow, column: str) -> dict[str, object]:
    numeric = cells.is_numeric(column)
    return {
        "text": figures.text(row, column),
        "numeric": numeric,
        "value": figures.number(row, column) if numeric else None,
        "reason": cells.why_missing(figures.table, row, column),
    }


EMBEDDED_COLUMNS = ("macs", "flops", "params", "act_bytes")
EMBEDDED_TIMES = ("forward_s", "forward_self_s", "flops_per_s", "backward_s", "backward_self_s")
"""Shown where any of the tables has them."""


_NO_AXES: Mapping[str, Mapping[str, object]] = {}
_SIDES = ("backend", "model")
"""Axes whose values are compared first."""


def embedded(tables: Mapping[str, LayerTable], axes: Mapping[str, Mapping[str, object]] = _NO_AXES) -> dict[str, Any]:
    """Return the data that ``templates/layers.js`` reads.

    ``tables`` has for each combination its label, its totals, a note or null, and positions in ``vectors``: the label, type,
    depth, call and output shape of every node in the order of the tree, then the figures of ``columns``. Labels, types and
    shapes are positions in ``strings``. A vector is a list of numbers, null where there is none. ``reasons`` is the position
    of a vector with the string that says why a row lacks times, or null; ``timing`` the lines that are to be said of the times.
    ``first`` has the positions of the left and the right table and of the column that are shown at first.

    Args:
        tables: by the name of the combination.
        axes: of each combination, by the same names.
    """
    columns = _columns(tables.values())
    strings, vectors = StringTable(), StringTable()
    found = []
    for label, table in tables.items():
        shown, reason = cells.with_figures(table)
        figures, drawn = Figures(shown), nodes(shown)
        lists: list[list[Number | None]] = [
            [strings.place(node.label) for node in drawn],
            [strings.place(one_line(node.row.type)) for node in drawn],
            [node.depth for node in drawn],
            [node.row.call for node in drawn],
            [strings.place(cells.shape_text(node.row.output_shapes)) for node in drawn],
            *([_short(figures.number(node.row, column)) for node in drawn] for column in columns),
        ]
        found.append(
            {
                "label": one_line(label),
                "vectors": [vectors.place(tuple(values)) for values in lists],
                "totals": [_short(figures.total(column)) for column in columns],
                "note": reason,
                "reasons": vectors.place(tuple(_reasons(table, drawn, strings))) if table.timing else None,
                "timing": timing_lines(table),
            }
        )
    named = [
        {
            "title": cells.title(column),
            "unit": cells.FIGURES[column][1].replace("MACs", "MAC").replace("FLOPs", "FLOP"),
            "isTime": cells.time_column(column) is not None,
        }
        for column in columns
    ]
    first = _first(found, [axes.get(label, {}) for label in tables], [bool(column["isTime"]) for column in named])
    return {"columns": named, "strings": strings.values, "vectors": vectors.values, "tables": found, "first": first}


def _first(
    tables: Sequence[Mapping[str, Any]], axes: Sequence[Mapping[str, object]], are_times: Sequence[bool]
) -> tuple[int, int, int]:
    """Left, right and column: a measured time if two have one; of those that have it two backends, or else two models."""
    by_time = sorted(range(len(are_times)), key=lambda column: not are_times[column])
    known = {c: [at for at, table in enumerate(tables) if table["totals"][c] is not None] for c in by_time}
    column = next((c for c in by_time if len(known[c]) >= min(2, len(tables))), 0)
    places = list(dict.fromkeys([*known[column], *range(len(tables))]))
    for axis in _SIDES:
        rest: dict[str, int] = {}
        for place in known[column]:
            if axis in axes[place]:
                same = json.dumps({**axes[place], axis: None}, sort_keys=True, default=str)
                if same in rest:
                    return rest[same], place, column
                rest[same] = place
    return places[0], places[1] if len(places) > 1 else places[0], column


def _columns(tables: Iterable[LayerTable]) -> list[str]:
    measured = {column for table in tables for column in EMBEDDED_TIMES if cells.timed(table, (column,))}
    return [*EMBEDDED_COLUMNS, *(column for column in EMBEDDED_TIMES if column in measured)]


def _reasons(table: LayerTable, drawn: Sequence[TreeNode], strings: StringTable) -> list[Number | None]:
    reasons = [cells.why_missing(table, node.row, "backward_s") for node in drawn]
    return [None if reason is None else strings.place(reason) for reason in reasons]


def _short(value: Number | None) -> Number | None:
    """Measured values to six significant digits, more than any clock is good for; sixteen would make the page larger."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
