"""A comparison as CSV: exact values in base units, for a spreadsheet or pandas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable
from functools import lru_cache

from sweeprof.results.comparison import Comparison, Row, value_of
from sweeprof.text import axis_text, printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What a cell begins with that a spreadsheet may compute, after OWASP's "CSV Injection"."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_text(comparison: Comparison) -> str:
    """One header line, then one line per combination in the order of the sweep.

    Columns: the axes, ``status``, ``reason``, the canonical metric names; with constraints ``qualifies`` and ``misses``, with a
    Pareto front ``pareto``. A cell is empty where there is no value. An axis with the name of another column is ``axis.NAME``.
    """
    metrics = [info.name for info in comparison.metrics]
    others = ["status", "reason", *metrics]
    if comparison.constraints:
        others += ["qualifies", "misses"]
    if comparison.pareto:
        others.append("pareto")
    head = [*axis_columns(comparison.axes, others).values(), *others]
    return csv_lines([head, *(_fields(comparison, row, metrics) for row in comparison.rows)])


def axis_columns(axes: Iterable[str], others: Collection[str]) -> dict[str, str]:
    """Return a column for each axis, with a name that neither another axis nor one of the ``others`` has."""
    names = list(axes)
    columns: dict[str, str] = {}
    for axis in names:
        column = axis
        while column in others or (column != axis and column in names):
            column = f"axis.{column}"
        columns[axis] = column
    return columns


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """The rows as CSV: numbers exact, truth as ``true`` and ``false``, nothing for None.

    Spreadsheets compute texts that look like formulas: these begin with an apostrophe, which a spreadsheet takes for "text".
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_field(value) for value in row] for row in rows)
    return text.getvalue()


def _field(value: object) -> object:
    kind = type(value)
    if kind is float or kind is int:  # first, as most of a million samples are numbers
        return value
    if kind is bool:
        return "true" if value else "false"
    if value is None:
        return ""
    return value if isinstance(value, int | float) else _text(str(value))  # of NumPy, too


@lru_cache(maxsize=10_000)  # a name stands in every row of a combination's samples
def _text(text: str) -> str:
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def _fields(comparison: Comparison, row: Row, metrics: list[str]) -> list[str]:
    axes = [axis_text(row.axes[axis]) if axis in row.axes else "" for axis in comparison.axes]
    values = [value_of(row, name) for name in metrics]
    figures = ["" if value is None else repr(value) for value in values]
    fits = [str(not row.misses).lower(), "; ".join(row.misses)] if comparison.constraints else []
    front = [str(row.on_front).lower()] if comparison.pareto else []
    return [*axes, row.status, row.reason or "", *figures, *fits, *front]
