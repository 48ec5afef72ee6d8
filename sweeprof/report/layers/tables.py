"""A layer table as lines of texts, for formats that are tables and no more."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Sequence
from typing import Any

from sweeprof.errors import UserError
from sweeprof.report.csv import csv_lines
from sweeprof.report.latex import escaped
from sweeprof.report.layers import cells
from sweeprof.report.layers.cells import Figures, missing_lines, nodes, remarks_on
from sweeprof.report.markdown import escaped as markdown_escaped
from sweeprof.results import layers
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import FRAME_COLUMNS, LayerTable
from sweeprof.results.layers import TIMES as PHASE_TIMES
from sweeprof.text import one_line


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


def to_csv(table: LayerTable, inclusive: bool = False) -> str:
    """One header line, then one line per row, in the columns of ``LayerTable.to_frame``.

    Shapes and data types are JSON, bytes and counts whole numbers, times seconds, shares 0..1. A cell is empty where there is
    no value; ``time_reason`` says why where a time is missing.

    Raises:
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    return csv_lines([FRAME_COLUMNS, *(row.values() for row in records(table, inclusive))])


def records(table: LayerTable, inclusive: bool = False) -> list[dict[str, object]]:
    """One dictionary per row, in the columns of ``LayerTable.to_frame``; shapes and data types as JSON text."""
    found = layers.records(table.inclusive() if inclusive else table)
    return [{name: _plain(value) for name, value in record.items()} for record in found]


def _plain(value: object) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=dict)


def to_markdown(table: LayerTable, columns: str | Sequence[str] | None = None, inclusive: bool = False) -> str:
    """One line per row, then the totals, and below the table what is to be known of the times where it has any.

    Path and type come first; ``columns`` are those of the tree.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    table = table.inclusive() if inclusive else table
    chosen = cells.selected_columns(columns, cells.SHOWN, table)
    lines = flat(table, chosen)
    marks = [":--", ":--", *("--:" if cells.is_numeric(column) else ":--" for column in chosen)]
    body = [[markdown_escaped(text) for text in line] for line in lines]
    body[-1] = [f"**{text}**" if text else "" for text in body[-1]]
    drawn = [f"| {' | '.join(line)} |" for line in (body[0], marks, *body[1:])]
    notes = [markdown_escaped(note) for note in remarks_on(table, chosen)]
    return "\n".join([*drawn, *([""] if notes else []), *notes]) + "\n"


_WHOLE = "depth call params trainable frozen pruned groups macs flops ops buffers".split()
_NUMBERS = (
    *PHASE_TIMES,
    *"act_bytes params_bytes buffers_bytes params_share macs_share forward_share flops_per_s".split(),
)


def to_parquet(table: LayerTable, inclusive: bool = False) -> bytes:
    """The file's content, in the columns of ``LayerTable.to_frame``: counts are nullable int64, bytes, times and shares float64.

    Shapes and data types are JSON text.

    Raises:
        UserError: pyarrow is not installed.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    # Asked beforehand: pandas' own complaint names other packages, which would not do.
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet files need pyarrow: pip install pyarrow")
    import pandas

    frame = pandas.DataFrame(records(table, inclusive), columns=FRAME_COLUMNS)
    # A column without any value has no type of its own.
    kinds = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_NUMBERS, "float64")}
    frame = frame.astype({name: kinds.get(name, "string") for name in FRAME_COLUMNS})
    content = io.BytesIO()
    frame.to_parquet(content, engine="pyarrow", index=False)
    return content.getvalue()


COLUMNS = ("output_shapes", "params", "params_share", "macs", "macs_share")
TIMES = ("forward_s", "forward_share", "backward_s")


def to_latex(
    table: LayerTable,
    columns: str | Sequence[str] | None = None,
    inclusive: bool = False,
    standalone: bool = False,
) -> str:
    r"""A ``tabular`` with the rules of the package booktabs, totals last; below it, which times are missing and why.

    ``\input`` it in a document that has ``\usepackage{booktabs}``; with ``standalone`` it is such a document itself.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    table = table.inclusive() if inclusive else table
    chosen = cells.selected_columns(columns, COLUMNS, table, TIMES)
    header, *rows, total = (" & ".join(map(escaped, line)) + r" \\" for line in flat(table, chosen))
    align = "".join("r" if cells.is_numeric(column) else "l" for column in chosen)
    lines = [rf"\begin{{tabular}}{{ll{align}}}", r"\toprule", header, r"\midrule", *rows, r"\midrule", total]
    notes = [rf"\par\noindent\footnotesize {escaped(note)}" for note in missing_lines(table, chosen)]
    text = "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes, ""])
    return _document(text) if standalone else text


def _document(body: str) -> str:
    head = [r"\documentclass{article}", r"\usepackage{booktabs}", r"\begin{document}", r"\noindent"]
    return "\n".join([*head, body + r"\end{document}", ""])
