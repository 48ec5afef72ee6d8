"""Live tensors as text: for a terminal, as Markdown, as CSV."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.cells import cell_len

from sweeprof.numbers import scaled
from sweeprof.report.csv import csv_lines
from sweeprof.report.markdown import escaped
from sweeprof.results.memory import TensorRow, bytes_by_kind
from sweeprof.text import one_line

COLUMNS = ("names", "kind", "shape", "dtype", "device", "bytes")
_RIGHT = {"bytes"}


def to_csv(rows: Sequence[TensorRow]) -> str:
    """One header line, then one line per storage; names and shape are JSON, bytes exact."""
    lines = [[json.dumps(r.names), r.kind, json.dumps(r.shape), r.dtype, r.device, r.bytes] for r in rows]
    return csv_lines([COLUMNS, *lines])


def to_text(rows: Sequence[TensorRow], top: int | None = None) -> str:
    """A table with aligned columns, and the sum by kind below it.

    Args:
        top: so many of the first rows; how many are left out is said.
    """
    cells = [COLUMNS, *(tensor_cells(row) for row in rows[:top])]
    widths = [max(cell_len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = ["  ".join(map(_padded, line, widths, COLUMNS)).rstrip() for line in cells]
    return "\n".join([*lines, *_left_out(rows, top), sums_text(rows)]) + "\n"


def to_markdown(rows: Sequence[TensorRow], top: int | None = None) -> str:
    """A GitHub table, and the sum by kind below it; see :func:`to_text`."""
    marks = ["--:" if name in _RIGHT else ":--" for name in COLUMNS]
    body = [[escaped(cell) for cell in tensor_cells(row)] for row in rows[:top]]
    table = "\n".join(f"| {' | '.join(line)} |" for line in (COLUMNS, marks, *body))
    return "\n\n".join([table, *_left_out(rows, top), sums_text(rows)]) + "\n"


def tensor_cells(row: TensorRow) -> tuple[str, ...]:
    """Return the texts of :data:`COLUMNS`."""
    names = one_line(" = ".join(row.names)) or "–"
    shape = "×".join(map(str, row.shape)) or ("scalar" if row.dtype else "")  # several share a row without a type
    return names, row.kind, shape, row.dtype, row.device, scaled(row.bytes, "B")


def _padded(cell: str, width: int, column: str) -> str:
    blank = " " * (width - cell_len(cell))
    return blank + cell if column in _RIGHT else cell + blank


def _left_out(rows: Sequence[TensorRow], top: int | None) -> list[str]:
    count = 0 if top is None else len(rows) - top
    return [f"and {count} more"] if count > 0 else []


def sums_text(rows: Sequence[TensorRow]) -> str:
    """Return the bytes in total and by kind."""
    found = bytes_by_kind(rows)
    parts = ", ".join(f"{kind} {scaled(size, 'B')}" for kind, size in found.items())
    return f"in total {scaled(sum(found.values()), 'B')}" + (f": {parts}" if parts else "")
