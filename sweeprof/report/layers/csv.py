"""A layer table as CSV: exact values in base units."""

from __future__ import annotations

import json
from typing import Any

from sweeprof.report.csv import csv_lines
from sweeprof.results import layer_columns
from sweeprof.results.layers import FRAME_COLUMNS, LayerTable


def to_csv(table: LayerTable, inclusive: bool = False) -> str:
    """One header line, then one line per row, in the columns of ``LayerTable.to_frame``.

    Shapes and data types are JSON, bytes and counts whole numbers, times seconds, shares 0..1. A cell is empty where there is
    no value; ``time_reason`` says why where a time is missing.

    Raises:
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    return csv_lines([FRAME_COLUMNS, *(row.values() for row in records(table, inclusive))])


def records(table: LayerTable, inclusive: bool = False) -> list[dict[str, Any]]:
    """One dictionary per row, in the columns of ``LayerTable.to_frame``; shapes and data types as JSON text."""
    found = layer_columns.records(table.inclusive() if inclusive else table)
    return [{name: _plain(value) for name, value in record.items()} for record in found]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, default=dict)
