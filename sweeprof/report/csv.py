"""A comparison as CSV: exact values in base units, for a spreadsheet or pandas."""

from __future__ import annotations

import csv
import io

from sweeprof.report.cells import axis_text, value_of
from sweeprof.results.compare import Comparison, Row


def csv_text(comparison: Comparison) -> str:
    """One header line, then one line per combination in the order of the sweep.

    Columns: the axes, ``status``, ``reason``, the canonical metric names; with constraints ``qualifies`` and ``misses``, with a
    Pareto front ``pareto``. A cell is empty where there is no value.
    """
    metrics = [info.name for info in comparison.metrics]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    chosen = ["qualifies", "misses"] * bool(comparison.constraints) + ["pareto"] * bool(comparison.pareto)
    writer.writerow([*comparison.axes, "status", "reason", *metrics, *chosen])
    writer.writerows(_fields(comparison, row, metrics) for row in comparison.rows)
    return text.getvalue()


def _fields(comparison: Comparison, row: Row, metrics: list[str]) -> list[str]:
    axes = [axis_text(row.axes[axis]) if axis in row.axes else "" for axis in comparison.axes]
    values = [value_of(row, name) for name in metrics]
    figures = ["" if value is None else repr(value) for value in values]
    fits = [str(not row.misses).lower(), "; ".join(row.misses)] if comparison.constraints else []
    front = [str(row.on_front).lower()] if comparison.pareto else []
    return [*axes, row.status, row.reason or "", *figures, *fits, *front]
