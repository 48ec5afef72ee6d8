"""Live tensors as text."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sweeprof.numbers import scaled
from sweeprof.report.csv import csv_lines
from sweeprof.results.memory import TensorRow, bytes_by_kind
from sweeprof.text import one_line

COLUMNS = ("names", "kind", "shape", "dtype", "device", "bytes")


def to_csv(rows: Sequence[TensorRow]) -> str:
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
    parts = ", ".join(f"{kind} {scaled(size, 'B')}" for kind, size in found.items())
    return f"in total {scaled(sum(found.values()), 'B')}" + (f": {parts}" if parts else "")
