"""The tables of a comparison as plain data: one per model, candidates beside their baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeprof.numbers import MISSING, rounded, text_unit
from sweeprof.report.columns import (
    MODEL_AXIS,
    Column,
    axis_column,
    baseline_text,
    constant_value,
    is_throughput,
    metric_columns,
    metric_title,
    named_text,
    ratio_text,
    rounds_column,
    rounds_text,
    shown_metrics,
    value_text,
    verdict_note,
)
from sweeprof.results.comparison import Comparison, Row, Verdict, reason_of, value_of
from sweeprof.results.measurement import MetricInfo, Number
from sweeprof.results.record import Status
from sweeprof.text import axis_number, axis_text, one_line


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell of a table."""

    text: str
    number: Number | None = None
    """The sort key of the cell; None sorts last."""
    verdict: Verdict | None = None
    note: str = ""
    """Why there is no value, or what the value is of."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table; its entries stand in the order of the columns."""

    row: Row
    entries: tuple[TableCell, ...]
    starts_group: bool
    """True if a new baseline with its candidates begins here."""

    @property
    def status(self) -> Status:
        """The status of the row."""
        return self.row.status

    @property
    def failure(self) -> str | None:
        """Status and reason in one line; None for a row that has values."""
        if self.row.has_values:
            return None
        return f"{self.row.status}: {one_line(self.row.reason or 'no reason was given')}"


@dataclass(frozen=True, slots=True)
class ReportTable:
    """All rows of one model."""

    title: str
    captions: tuple[tuple[str, str], ...]
    """Name and value of what is the same in every row."""
    columns: tuple[Column, ...]
    lines: tuple[TableRow, ...]


def tables(comparison: Comparison) -> list[ReportTable]:
    """One table per model; a single one where no axis is the model, or where models are what is compared."""
    varying = [axis for axis in ordered_axes(comparison) if axis in comparison.varying_axes()]
    baseline, metrics = baseline_text(comparison), shown_metrics(comparison)
    return [
        _table(comparison, title, rows, varying, baseline, metrics) for title, rows in rows_by_table(comparison).items()
    ]


def whole_table(comparison: Comparison) -> ReportTable:
    """All rows in one table, with a column for the model where it varies."""
    varying = [axis for axis in ordered_axes(comparison) if axis in comparison.varying_axes()]
    rows = sorted_rows(comparison)
    return _table(comparison, "", rows, varying, baseline_text(comparison), shown_metrics(comparison))


def rows_by_table(comparison: Comparison) -> dict[str, list[Row]]:
    """The rows of every table in their order, by its title."""
    found: dict[str, list[Row]] = {}
    for row in sorted_rows(comparison):
        split = _is_split(comparison) and MODEL_AXIS in row.axes
        found.setdefault(axis_text(row.axes[MODEL_AXIS]) if split else one_line(comparison.name), []).append(row)
    return found


def _is_split(comparison: Comparison) -> bool:
    return MODEL_AXIS in comparison.axes and (MODEL_AXIS not in comparison.baseline or len(comparison.rows) == 1)


def ordered_axes(comparison: Comparison) -> list[str]:
    """The axes, but the baseline's last: rows sorted by them have every candidate beside its baseline."""
    return sorted(comparison.axes, key=lambda axis: axis in comparison.baseline)


def sorted_rows(comparison: Comparison) -> list[Row]:
    """All rows by the axes of :func:`ordered_axes`: numbers by size, anything else as the sweep lists it."""
    places = {axis: _places(comparison, axis) for axis in ordered_axes(comparison)}
    return sorted(
        comparison.rows, key=lambda row: [place[axis_text(row.axes.get(axis))] for axis, place in places.items()]
    )


def _places(comparison: Comparison, axis: str) -> dict[str, int]:
    """Place per value of an axis; the baseline's value comes first."""
    values = [row.axes.get(axis) for row in comparison.rows]
    numbers = sorted({n for value in values if (n := axis_number(value)) is not None})
    first = [comparison.baseline[axis]] if axis in comparison.baseline else []
    others = [value for value in values if axis_number(value) is None]
    return {text: place for place, text in enumerate(dict.fromkeys(axis_text(v) for v in (*first, *numbers, *others)))}


def _table(
    comparison: Comparison,
    title: str,
    rows: list[Row],
    varying: list[str],
    baseline: str,
    metrics: Sequence[MetricInfo],
) -> ReportTable:
    titled = {MODEL_AXIS} if title and _is_split(comparison) else set()
    shown = [axis for axis in varying if axis not in titled]
    fixed = [axis for axis in comparison.axes if axis not in {*varying, *titled} and axis in rows[0].axes]
    captions = [(one_line(axis), axis_text(rows[0].axes[axis])) for axis in fixed]
    columns = [axis_column(axis, rows) for axis in shown]
    if any(row.is_incomplete for row in rows):
        columns.append(rounds_column())
    for info in metrics:
        if (constant := constant_value(info, rows)) is not None:
            captions.append((metric_title(info, rows), rounded(constant, text_unit(info.name, info.unit))))
        else:
            columns += metric_columns(info, rows, baseline)
    return ReportTable(title, tuple(captions), tuple(columns), tuple(_lines(comparison, columns, rows)))


def _lines(comparison: Comparison, columns: Sequence[Column], rows: Sequence[Row]) -> list[TableRow]:
    lines: list[TableRow] = []
    seen: set[tuple[str, ...]] = set()
    group_axes = [axis for axis in comparison.axes if axis not in comparison.baseline]
    for row in rows:
        group = tuple(axis_text(row.axes.get(axis)) for axis in group_axes)
        lines.append(TableRow(row, tuple(_entry(row, column) for column in columns), group not in seen))
        seen.add(group)
    return lines


def _entry(row: Row, column: Column) -> TableCell:
    if column.kind == "axis":
        value = row.axes.get(column.key)
        return TableCell(_axis_entry(row, column.key) if column.key in row.axes else MISSING, axis_number(value))
    if column.kind == "rounds":
        return TableCell(rounds_text(row), row.rounds_complete, note=one_line(row.reason or ""))
    if value_of(row, column.key) is None:
        return TableCell(MISSING, note=reason_of(row, column.key))
    cell = row.cells[column.key]
    if column.kind == "value":
        text = value_text(cell.measurement, not is_throughput(column.key))
        return TableCell(text, cell.measurement.value, note=named_text(cell.measurement))
    if row.is_baseline:
        return TableCell("baseline", 1)
    return TableCell(ratio_text(cell), cell.ratio, cell.verdict, verdict_note(cell))


def _axis_entry(row: Row, axis: str) -> str:
    """The value of an axis, of a precision with the method unless weights are converted: ``int8 (torchao)``."""
    text, method = axis_text(row.axes[axis]), row.precision_method
    is_told = axis != "backend.precision" or method in (None, "convert") or "backend.precision_method" in row.axes
    return text if is_told else f"{text} ({one_line(str(method))})"
