"""Operators and live tensors as text: CSV with exact values, and the cells of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sweeprof.numbers import rounded, scaled, significant
from sweeprof.report.csv import csv_lines
from sweeprof.results.observations import FRAME_COLUMNS, OperatorRow, Operators, TensorRow, bytes_by_kind
from sweeprof.text import one_line

_ON_HOST = "path operator phase calls self share total flops allocated shapes".split()
_ON_DEVICE = "path operator phase calls device share self total flops allocated shapes".split()
TITLES = {
    "path": "module",
    "device": "accelerator time",
    "self": "self time",
    "total": "total time",
    "flops": "FLOPs",
    "shapes": "input shapes",
}
"""Titles of columns in tables to read; others are their names."""


def operators_csv(operators: Operators) -> str:
    """One header line, then one line per row, in the columns of ``Operators.to_frame``.

    Seconds and bytes are of one step, shapes JSON. A cell is empty where there is no value.
    """
    lines: list[list[object]] = [[*FRAME_COLUMNS]]
    for row in operators.rows:
        values = [getattr(row, name) for name in FRAME_COLUMNS]
        lines.append([json.dumps(value) if isinstance(value, tuple) else value for value in values])
    return csv_lines(lines)


def time_column(rows: Sequence[OperatorRow]) -> str:
    """Return the column of own seconds: on the accelerator where there is one."""
    return "device_self_s" if any(row.device_self_s is not None for row in rows) else "self_s"


def columns_of(rows: Sequence[OperatorRow]) -> list[str]:
    """Return the columns of rows."""
    return _ON_DEVICE if time_column(rows) == "device_self_s" else _ON_HOST


def cells_of(row: OperatorRow, share: float | None) -> dict[str, str]:
    """Return the texts of a row by column; empty where there is no value."""
    texts = {
        "path": one_line(row.path),
        "operator": one_line(row.operator),
        "phase": row.phase,
        "calls": calls_text(row.calls),
        "device": _text(row.device_self_s, "s"),
        "share": "",
        "self": rounded(row.self_s, "s"),
        "total": rounded(row.total_s, "s"),
        "flops": _text(row.flops, "FLOP"),
        "allocated": _text(row.allocated_bytes, "B"),
        "shapes": " ".join("×".join(map(str, shape)) for shape in row.input_shapes),
    }
    if share is not None:
        texts["share"] = f"{share:.1%}"
    return texts


def _text(value: float | None, unit: str) -> str:
    return "" if value is None else rounded(value, unit)


def calls_text(calls: float) -> str:
    """Return a mean number of calls; one that is whole without decimals."""
    return significant(calls) if calls % 1 else str(int(calls))


# Live tensors

COLUMNS = ("names", "kind", "shape", "dtype", "device", "bytes")


def tensors_csv(rows: Sequence[TensorRow]) -> str:
    """One header line, then one line per storage; names and shape are JSON, bytes exact."""
    lines = [[json.dumps(r.names), r.kind, json.dumps(r.shape), r.dtype, r.device, r.bytes] for r in rows]
    return csv_lines([COLUMNS, *lines])


def tensor_cells(row: TensorRow) -> tuple[str, ...]:
    """Return the texts of :data:`COLUMNS`."""
    names = one_line(" = ".join(row.names)) or "–"
    shape = "×".join(map(str, row.shape)) or ("scalar" if row.dtype else "")  # several share a row without a type
    return names, row.kind, shape, row.dtype, row.device, scaled(row.bytes, "B")


def sums_text(rows: Sequence[TensorRow]) -> str:
    """Return the bytes in total and by kind."""
    found = bytes_by_kind(rows)
    text = f"in total {scaled(sum(found.values()), 'B')}"
    parts = ", ".join(f"{kind} {scaled(size, 'B')}" for kind, size in found.items())
    return f"{text}: {parts}" if parts else text
