"""The tables of a comparison as plain data: one per model, candidates beside their baselines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeprof.numbers import MISSING, rounded, text_unit
from sweeprof.report.columns import (
    MODEL_AXIS,
    UNCLEAR,
    Column,
    axis_title,
    baseline_text,
    constant_value,
    is_throughput,
    metric_columns,
    metric_title,
    named_text,
    ratio_text,
    rounds_text,
    shown_metrics,
    value_text,
    verdict_note,
)
from sweeprof.results.compared_rows import Comparison, Row, reason_of, value_of
from sweeprof.results.constraints import uncertain_selection
from sweeprof.results.differences import Verdict
from sweeprof.results.measurement import Number
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
    """Name and value of the metrics that are the same in every row, here and in the other tables."""
    columns: tuple[Column, ...]
    lines: tuple[TableRow, ...]


def tables(comparison: Comparison) -> list[ReportTable]:
    """Return one table per model, all with the same columns; a single one if no axis is the model, or if models are compared."""
    found: defaultdict[str, list[Row]] = defaultdict(list)
    is_split = _is_split(comparison)
    for row in sorted_rows(comparison):
        has_own = is_split and row.axes.get(MODEL_AXIS, "none") != "none"  # a program has no model
        found[axis_text(row.axes[MODEL_AXIS]) if has_own else one_line(comparison.name)].append(row)
    return _tables(comparison, found)


def whole_table(comparison: Comparison) -> ReportTable:
    """All rows in one table, with a column for the model where it varies."""
    return _tables(comparison, {"": sorted_rows(comparison)})[0]


def _is_split(comparison: Comparison) -> bool:
    """True if each model has a table: of several rows, that are not compared with those of another model."""
    if MODEL_AXIS not in comparison.axes or len(comparison.rows) == 1:
        return MODEL_AXIS in comparison.axes
    models = {axis_text(row.axes.get(MODEL_AXIS)) for row in comparison.rows}
    return MODEL_AXIS not in comparison.baseline and (len(models) == 1 or len(models) < len(comparison.rows))


def ordered_axes(comparison: Comparison) -> list[str]:
    """The axes, but the baseline's last: rows sorted by them have every candidate beside its baseline."""
    return sorted(comparison.axes, key=lambda axis: axis in comparison.baseline)


def sorted_rows(comparison: Comparison) -> list[Row]:
    """All rows by the axes of :func:`ordered_axes`: numbers by size, anything else as the sweep lists it."""
    places = {}
    for axis in ordered_axes(comparison):
        values = [row.axes.get(axis) for row in comparison.rows]
        numbers = [number for number in map(axis_number, values) if number is not None]
        others = [value for value in values if axis_number(value) is None]
        ordered = [*sorted(numbers), *others]
        if axis in comparison.baseline:
            ordered.insert(0, comparison.baseline[axis])
        texts = dict.fromkeys(map(axis_text, ordered))
        places[axis] = {text: place for place, text in enumerate(texts)}

    def key(row: Row) -> list[int]:
        return [place[axis_text(row.axes.get(axis))] for axis, place in places.items()]

    return sorted(comparison.rows, key=key)


def _tables(comparison: Comparison, rows_by_title: Mapping[str, Sequence[Row]]) -> list[ReportTable]:
    """Return a table for each title; axes that do not vary are in :func:`~sweeprof.report.summary.conditions`."""
    baseline = baseline_text(comparison)
    varying = comparison.varying_axes()
    titled = MODEL_AXIS if len(rows_by_title) > 1 else None
    axes = [axis for axis in ordered_axes(comparison) if axis in varying and axis != titled]
    columns = []
    for axis in axes:
        numeric = all(axis_number(row.axes[axis]) is not None for row in comparison.rows if axis in row.axes)
        columns.append(Column(axis, "axis", axis_title(axis, comparison.axes), numeric))
    if any(row.is_incomplete for row in comparison.rows):
        hint = "How many of the planned rounds were measured; the values are those of these rounds."
        columns.append(Column("rounds", "rounds", "measured", False, hint))
    if comparison.constraints:
        columns.append(Column("fulfils", "fulfils", "fulfils", False, one_line(" and ".join(comparison.constraints))))
    constant = []
    """Metrics that have one exact value in each table, which its caption tells."""
    for info in shown_metrics(comparison):
        known = [rows for rows in rows_by_title.values() if any(row.has_values for row in rows)]
        if all(constant_value(info, rows) is not None for rows in known):
            constant.append(info)
        else:
            columns += metric_columns(info, comparison.rows, baseline)
    uncertain = uncertain_selection(comparison)
    group_axes = [axis for axis in comparison.axes if axis not in comparison.baseline]
    found = []
    for title, rows in rows_by_title.items():
        captions = []
        for info in constant:
            value = constant_value(info, rows)
            if value is not None:  # it is None where no row has a result
                captions.append((metric_title(info, comparison.rows), rounded(value, text_unit(info.name, info.unit))))
        lines = []
        seen: set[tuple[str, ...]] = set()
        for row in rows:
            group = tuple(axis_text(row.axes.get(axis)) for axis in group_axes)
            is_uncertain = row.combination_id in uncertain
            entries = tuple(_entry(row, column, is_uncertain) for column in columns)
            lines.append(TableRow(row, entries, group not in seen))
            seen.add(group)
        found.append(ReportTable(title, tuple(captions), tuple(columns), tuple(lines)))
    return found


def _entry(row: Row, column: Column, is_uncertain: bool) -> TableCell:  # noqa: PLR0911  # one for each kind of cell
    """Return a cell; ``is_uncertain``: whether the row fulfils the constraints is not certain."""
    if column.kind == "axis":
        if column.key not in row.axes:
            return TableCell(MISSING)
        text = axis_text(row.axes[column.key])
        # A precision comes with its method unless weights are converted: ``int8 (torchao)``.
        is_complete = column.key != "backend.precision" or "backend.precision_method" in row.axes
        if not is_complete and row.precision_method not in (None, "convert"):
            text += f" ({one_line(str(row.precision_method))})"
        return TableCell(text, axis_number(row.axes[column.key]))
    if column.kind == "rounds":
        return TableCell(rounds_text(row), row.rounds_complete, note=one_line(row.reason or ""))
    if column.kind == "fulfils":
        mark = "✗" if row.misses else "✓"
        return TableCell(f"{mark} {UNCLEAR}" if is_uncertain else mark, note=one_line("; ".join(row.misses)))
    if value_of(row, column.key) is None:
        return TableCell(MISSING, note=reason_of(row, column.key))
    cell = row.cells[column.key]
    if column.kind == "value":
        text = value_text(cell.measurement, not is_throughput(column.key))
        if "layer" in cell.measurement.detail:
            text = f"{one_line(str(cell.measurement.detail['layer']))} {text}"
        return TableCell(text, cell.measurement.value, note=named_text(cell.measurement))
    if row.is_baseline:
        return TableCell("baseline", 1)
    return TableCell(ratio_text(cell), cell.ratio, cell.verdict, verdict_note(cell))
