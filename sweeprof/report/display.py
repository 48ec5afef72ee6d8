"""The views of results: comparisons, differences, measurements, layers, operators and lines; any other object prints its fields.

Objects of packages above this one, such as a Profiler, have a method that returns their view.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from sweeprof.display import Displayed, Rows
from sweeprof.numbers import MISSING, ratio_number, rounded, text_unit
from sweeprof.report import layer_table as layer_cells
from sweeprof.report import operators as operator_reports
from sweeprof.report.answer import answer
from sweeprof.report.columns import MODEL_AXIS, detail_text, named_text, rounds_text, value_text
from sweeprof.report.csv import measurements
from sweeprof.report.fitting import as_text, fitted, terminal_width
from sweeprof.report.layer_formats import called_as, total_pairs, tree
from sweeprof.report.layer_table import nodes, place_text, remarks_on, uncounted_lines
from sweeprof.report.operators import sums_text, tensor_cells
from sweeprof.report.summary import conditions, footnotes, protocol_text
from sweeprof.report.table import tables as report_tables
from sweeprof.report.terminal import text as terminal_text
from sweeprof.report.view import (
    MOST_ROWS,
    Cells,
    Heading,
    View,
    ViewCell,
    ViewRow,
    ViewTable,
    counted,
    fields_table,
    first_few,
    quantity_cell,
    rows_table,
    table,
    value_line,
)
from sweeprof.results.compared_rows import Comparison, Row, compare_rows
from sweeprof.results.differences import Difference, Differences
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.measurement import Measurement, Measurements, MetricInfo
from sweeprof.results.observations import (
    FunctionLines,
    LayerMemory,
    Lines,
    OperatorRow,
    Operators,
    OperatorTotal,
    TensorRow,
)
from sweeprof.results.record import Warning
from sweeprof.text import one_line

if TYPE_CHECKING:
    import pandas

TOP = 20
"""Rows of operators that are shown."""
_MOST_HIDDEN = 3
"""Names of metrics that do not apply, of which only some are given."""
_BASELINE, _CANDIDATE = "baseline", "candidate"
_DECIDED = ("better", "worse")


@singledispatch
def text_of(thing: Displayed, width: int | None) -> str:
    """Return an object as text in lines of at most ``width`` characters; None: as wide as the terminal."""
    return as_text(fitted(thing.__view__(), width or terminal_width()))


@singledispatch
def view_of(thing: Any) -> View:
    """Return the view of an object; of one without a view of its own, its fields, then a table for each field of rows."""
    if not dataclasses.is_dataclass(thing):
        return View(type(thing).__name__)
    names = ["warnings"]
    parts: list[str | ViewTable] = []
    for field in dataclasses.fields(thing):
        rows = getattr(thing, field.name)
        if isinstance(rows, Rows) and rows and dataclasses.is_dataclass(rows[0]):
            names.append(field.name)
            parts.append(dataclasses.replace(_table_of(rows), title=field.name))
    return View(
        type(thing).__name__,
        (fields_table(thing, names), *parts, *warning_lines(getattr(thing, "warnings", ()))),
    )


def warning_lines(warnings: Iterable[Warning]) -> list[str]:
    """Return a line for each warning, with its advice."""
    return [f"{warning.code}: {warning.text} → {warning.advice}" for warning in warnings]


@view_of.register
def _(rows: Rows) -> View:  # type: ignore[type-arg]
    if not rows:
        return View("no rows")
    first = rows[0]
    if not dataclasses.is_dataclass(first):  # dataclasses.asdict makes rows of dictionaries
        return View(tuple.__repr__(rows))
    if isinstance(first, OperatorTotal):
        return View(counted(len(rows), "operator"), (_totals_table(rows), _self_total(rows)))
    if isinstance(first, TensorRow):
        return View(f"{counted(len(rows), 'tensor')}, {sums_text(rows)}", (tensors_table(rows),))
    nouns: dict[type, str] = {OperatorRow: "operator", LayerRow: "layer"}
    return View(counted(len(rows), nouns.get(type(first), "row")), (_table_of(rows),))


def _table_of(rows: Sequence[Any]) -> ViewTable:
    """Return rows of one type as a table; of a type without a table of its own, with a column for each field."""
    kind = type(rows[0])
    if kind is OperatorRow:
        return operators_table(rows)
    if kind is LayerMemory:
        return memory_table(rows)
    if kind is TensorRow:
        return tensors_table(rows)
    columns: dict[type, list[str]] = {
        LayerRow: ["path", "type", "call", "params", "macs", "flops", "act_bytes", "output_shapes"],
        Row: ["combination_id", "axes", "status", "reason"],
    }
    return rows_table(rows, columns.get(kind, ()))


# Measurements


@view_of.register
def _(measurement: Measurement) -> View:
    return View(measurement_line(measurement), tuple(warning_lines(measurement.warnings)))


def measurement_line(measurement: Measurement) -> str:
    """Return name and value with what is needed to judge it, e.g. ``compute/macs: 417 kMAC (416,520, exact)``."""
    if measurement.value is None:
        return f"{measurement.name}: {MISSING} ({measurement.reason})"
    facts = []
    if not isinstance(measurement.value, float):
        facts.append(f"{measurement.value:,} {measurement.unit}".strip())
    rounds = len(measurement.rounds)
    facts.append(f"{measurement.estimator} of {rounds} rounds" if rounds > 1 else measurement.estimator)
    detail = detail_text(measurement)
    if detail:
        facts.append(detail)
    return f"{measurement.name}: {_with_unit(measurement)} ({', '.join(facts)})"


def _with_unit(measurement: Measurement) -> str:
    """Return the value with its interval, and with its unit also where reports have it in the header of the column."""
    text = value_text(measurement)
    unit = text_unit(measurement.name, measurement.unit)
    if unit in ("s", "B", "MAC", "FLOP", "op", "FLOP/s", "B/s", "params", "ratio", "abs", "share", ""):
        return text
    number, per_second, interval = text.partition("/s")
    if per_second:
        return f"{number.rstrip()} {one_line(unit)}{interval}"
    return f"{text} {one_line(unit)}"


@view_of.register
def _(measurements: Measurements) -> View:
    if not all(isinstance(one, Measurement) for one in measurements.values()):  # made by dataclasses.asdict
        return View(dict.__repr__(measurements))
    return View(counted(len(measurements), "metric"), measurement_parts(measurements))


def measurement_parts(
    measurements: Mapping[str, Measurement], is_applicable: Callable[[str], bool] | None = None
) -> tuple[str | ViewTable, ...]:
    """Return a row per metric, its value with unit and interval; then warnings, and the reasons why others have no value.

    Args:
        measurements: by name.
        is_applicable: returns for a reason whether the metric could have had a value here. Where it could not, no reason is given.
            None: all could.
    """
    rows: list[Cells] = []
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    warned: defaultdict[Warning, list[str]] = defaultdict(list)
    for name, measurement in measurements.items():
        if measurement.value is None:
            reasons[measurement.reason or "no reason was given"].append(name)
            continue
        for warning in measurement.warnings:
            warned[warning].append(name)
        estimator = "" if measurement.estimator == "exact" else measurement.estimator
        note = ", ".join(filter(None, (estimator, named_text(measurement))))
        rows.append([name, ViewCell(_with_unit(measurement), measurement.value, detail_text(measurement)), note])
    parts: list[str | ViewTable] = [table(["metric", "value", "note"], rows, ["value"])] if rows else []
    for warning, names in warned.items():
        parts.append(f"{warning.code} in {', '.join(names)}: {warning.text} → {warning.advice}")
    hidden: list[str] = []
    for reason, names in reasons.items():
        if rows and is_applicable is not None and not is_applicable(reason):
            hidden += names
        else:
            parts.append(f"No {', '.join(names)}: {one_line(reason)}")
    if hidden:
        names_shown = first_few(hidden, _MOST_HIDDEN)
        parts.append(f"Not of this mode, backend or device: {names_shown}; to_frame() lists all, with the reasons.")
    return tuple(parts)


@view_of.register
def _(difference: Difference) -> View:
    return View("", (_differences_table([difference], (_BASELINE, _CANDIDATE)),))


@view_of.register
def _(found: Differences) -> View:
    if not found:
        return View("There are no metrics to compare.")
    words = answer(comparison_of(found))
    # A list that a caller has changed may have metrics whose measurements are not known.
    is_complete = all(one.name in found.baseline or one.name in found.candidate for one in found)
    sentence = words.finding if is_complete else ""
    parts: list[str | ViewTable] = [_differences_table(found, _side_names(found))]
    if sentence and words.certainty:
        parts.insert(0, words.certainty)
    if found.has_notes:
        parts += definition_lines([one.name for one in found], found.definitions)
    return View(sentence, tuple(parts))


def definition_lines(names: Iterable[str], definitions: Mapping[str, str]) -> list[str]:
    """Return a line for each metric whose definition is known."""
    return [f"{name}: {definitions[name]}" for name in names if definitions.get(name)]


def _side_names(found: Differences) -> tuple[str, str]:
    """Return the names of baseline and candidate; these words where a user gave no names, or the same twice."""
    first, second = found.names
    names = (first or _BASELINE, second or _CANDIDATE)
    return (_BASELINE, _CANDIDATE) if names[0] == names[1] else names


def comparison_of(found: Differences) -> Comparison:
    """Return the comparison of the two sides, as of a sweep with two combinations."""
    names = _side_names(found)
    infos = [MetricInfo(one.name, one.unit, one.better, "") for one in found]
    measurements: dict[str, dict[str, Measurement]] = {}
    rows = []
    for side, measured in zip(names, (found.baseline, found.candidate), strict=True):
        measurements[side] = {}
        for info in infos:
            absent = Measurement(info.name, info.unit, info.better, None, f"the {side} has no such metric")
            measurements[side][info.name] = measured.get(info.name, absent)
        rows.append(Row(side, {MODEL_AXIS: side}, "ok", None, {}, names[0]))
    return Comparison(
        sweep_id="",
        name="",
        created="",
        command="",
        axes=(MODEL_AXIS,),
        metrics=tuple(infos),
        baseline={MODEL_AXIS: names[0]},
        rows=compare_rows(rows, measurements, None),
    )


def _differences_table(found: Sequence[Difference], titles: Sequence[str]) -> ViewTable:
    rows = []
    for one in found:
        unit = text_unit(one.name, one.unit)
        cells: Cells = [ViewCell(one.name, note=f"{one.better} is better" if one.better else "")]
        for value in (one.baseline, one.candidate):
            cells.append(quantity_cell(value, unit))
        cells.append(MISSING if one.ratio is None else ViewCell(f"×{ratio_number(one.ratio)}", one.ratio))
        cells += [ViewCell(one.verdict or "", is_strong=one.verdict in _DECIDED), one.reason or ""]
        rows.append(cells)
    return table(["metric", *titles, "ratio", "verdict", "note"], rows, [*titles, "ratio"])


# Comparisons of a sweep


@text_of.register
def _(comparison: Comparison, width: int | None) -> str:
    width = width or terminal_width()
    if len(comparison.rows) > MOST_ROWS:  # of very many rows the first
        return as_text(fitted(view_of(comparison), width))
    return terminal_text(comparison, width).rstrip("\n")


@view_of.register
def _(comparison: Comparison) -> View:
    words = answer(comparison)
    parts: list[str | ViewTable] = [words.rest, conditions(comparison), protocol_text(comparison)]
    if words.best is not None:
        parts.append(table(words.best.head, words.best.lines))
    for shown in report_tables(comparison):
        headings = [Heading(column.title, column.numeric, column.hint) for column in shown.columns]
        if all(column.kind == "axis" for column in shown.columns):
            headings.append(Heading("result"))  # nothing was measured: a place for the reasons
        rows = []
        for line in shown.lines[:MOST_ROWS]:
            cells = []
            for column, entry in zip(shown.columns, line.entries, strict=True):
                if line.failure is None or column.kind == "axis":
                    cells.append(ViewCell(entry.text, entry.number, entry.note, entry.verdict in _DECIDED))
            if line.failure is not None:
                cells.append(ViewCell(line.failure))
            rows.append(ViewRow(tuple(cells)))
        parts.append(ViewTable(tuple(headings), tuple(rows), shown.title, len(shown.lines)))
        parts.append(" · ".join(f"{name} {value}" for name, value in shown.captions))
    for note in footnotes(comparison):
        advice = f" → {note.advice}" if note.advice else ""
        parts.append(f"{note.code} in {counted(note.rows, 'row')}: {note.text}{advice}")
    return View(words.finding, tuple(filter(None, parts)))


@view_of.register
def _(row: Row) -> View:
    axes = ", ".join(f"{name}={value_line(name, value)}" for name, value in row.axes.items())
    title = f"{axes or row.combination_id}: {row.status}"
    if row.reason:
        title += f": {row.reason}"
    if row.rounds_planned:
        title += f", {rounds_text(row)}"
    measured = {name: cell.measurement for name, cell in row.cells.items()}
    return View(title, (*measurement_parts(measured), *warning_lines(row.warnings)))


# Layers


@text_of.register
def _(layers: LayerTable, width: int | None) -> str:
    return tree(layers, rows=("type", "name", "arguments"), width=width or terminal_width())


@view_of.register
def _(layers: LayerTable) -> View:
    shown, reason = layer_cells.with_figures(layers)
    figures = layer_cells.Figures(shown)
    columns = layer_cells.selected_columns(None, layer_cells.SHOWN, shown)
    drawn = nodes(shown)
    if not drawn:
        return View("no layers")
    # Of very many layers, down to the deepest level that fits.
    depth = max(node.depth for node in drawn)
    while depth > 1 and len(drawn) > MOST_ROWS:
        depth -= 1
        drawn = [node for node in drawn if node.depth <= depth]
    headings = [Heading("layer")]
    headings += [Heading(layer_cells.column_title(column), layer_cells.is_numeric(column)) for column in columns]
    rows = []
    for node in drawn:
        cells = [ViewCell(called_as(node, ("type", "name", "arguments")), note=one_line(node.row.path))]
        for column in columns:
            number = figures.number(node.row, column) if layer_cells.is_numeric(column) else None
            why = layer_cells.why_missing(shown, node.row, column) or ""
            cells.append(ViewCell(figures.text(node.row, column), number, why))
        rows.append(ViewRow(tuple(cells), node.depth))
    parts: list[str | ViewTable] = [ViewTable(tuple(headings), tuple(rows), total=len(layers.rows))]
    parts.append(" · ".join(f"{name} {value}" for name, value in total_pairs(figures, None)))
    parts += [*uncounted_lines(shown), *remarks_on(shown, columns)]
    if reason:
        parts.append(reason)
    return View(f"{one_line(drawn[0].row.type) or 'Layers'}: {counted(len(layers.rows), 'layer')}", tuple(parts))


# Operators and lines


@view_of.register
def _(operators: Operators) -> View:
    title = (
        f"{counted(len(operators.rows), 'row')} of operators, one step of {operators.mode}: "
        f"{rounded(operators.step_s, 's')} (mean of {counted(operators.steps, 'traced step')})"
    )
    column = operator_reports.time_column(operators.rows)
    shown = operators_table(operators.top(TOP, column))
    totals = operators.totals("device_self_s" if column == "device_self_s" else "self_s")
    by_name = dataclasses.replace(_totals_table(totals[:TOP]), total=len(totals), title="by operator")
    by_row = dataclasses.replace(shown, total=len(operators.rows), title="by module and shapes")
    parts: list[str | ViewTable] = [by_name, _self_total(totals), by_row]
    if operators.flops_reason:
        parts.append(f"No FLOPs: {operators.flops_reason}")
    return View(title, tuple(parts))


def _totals_table(totals: Sequence[OperatorTotal]) -> ViewTable:
    """Return the columns of torch.profiler's ``key_averages().table()``."""
    has_device = any(total.device_self_s is not None for total in totals)
    headings = ["operator", "self %", "self", "total %", "total", "average"]
    if has_device:
        headings += ["device self", "device total", "device average"]
    headings.append("calls")
    rows: list[Cells] = []
    for total in totals:
        cells: Cells = [one_line(total.operator)]
        cells += [quantity_cell(total.self_share, "share"), quantity_cell(total.self_s, "s")]
        cells += [quantity_cell(total.total_share, "share"), quantity_cell(total.total_s, "s")]
        cells.append(quantity_cell(total.average_s, "s"))
        if has_device:
            average = None if total.device_total_s is None else total.device_total_s / total.calls
            cells += [quantity_cell(seconds, "s") for seconds in (total.device_self_s, total.device_total_s, average)]
        rows.append([*cells, ViewCell(operator_reports.calls_text(total.calls), total.calls)])
    return table(headings, rows, headings[1:])


def _self_total(totals: Sequence[OperatorTotal]) -> str:
    """Return the own seconds of all operators of the step together."""
    host = totals[0].step_self_s if totals else 0.0
    return f"self time of all operators: {rounded(host, 's')}"


def operators_table(rows: Sequence[OperatorRow], whole: float | None = None) -> ViewTable:
    """Return a row per operator; with its share of ``whole``, the seconds of all operators, unless that is None."""
    column = operator_reports.time_column(rows)
    names = list(operator_reports.ON_DEVICE if column == "device_self_s" else operator_reports.ON_HOST)
    if whole is None:
        names.remove("share")
    titles = {name: operator_reports.TITLES.get(name, name) for name in names}
    found = []
    for row in rows:
        share = (getattr(row, column) or 0.0) / whole if whole else None
        shapes = " ".join("×".join(map(str, shape)) for shape in row.input_shapes)
        cells = {
            "path": ViewCell(one_line(row.path) or MISSING),
            "operator": ViewCell(one_line(row.operator)),
            "phase": ViewCell(row.phase),
            "calls": ViewCell(operator_reports.calls_text(row.calls), row.calls),
            "device": quantity_cell(row.device_self_s, "s"),
            "share": quantity_cell(share, "share"),
            "self": quantity_cell(row.self_s, "s"),
            "total": quantity_cell(row.total_s, "s"),
            "flops": quantity_cell(row.flops, "FLOP"),
            "allocated": quantity_cell(row.allocated_bytes, "B"),
            "shapes": ViewCell(shapes or MISSING),
        }
        found.append([cells[name] for name in names])
    texts_only = ("path", "operator", "phase", "shapes")
    return table([*titles.values()], found, [title for name, title in titles.items() if name not in texts_only])


@view_of.register
def _(lines: Lines) -> View:
    parts: list[str | ViewTable] = []
    for function in lines.functions:
        title = f"{function.name} ({function.file}:{function.first_line})"
        parts.append(_lines_table(function, lines, title) if function.is_called else f"{title}: it was not called.")
    if lines.memory_reason is not None:
        missing = "nothing about allocations" if lines.has_usage else "no memory"
        parts.append(f"There is {missing} by line: {lines.memory_reason}")
    title = f"Time by line over {operator_reports.spans(lines)}"
    if operator_reports.memory_columns(lines):
        title += f", memory of {lines.device}"
        if lines.span == "step":
            title += " in one more"
    return View(title, tuple(parts))


def listing(lines: Lines) -> str:
    """Return the times of all lines, then their memory, in full."""
    return f"{operator_reports.time_report(lines)}\n{operator_reports.memory_report(lines)}"


def _lines_table(function: FunctionLines, lines: Lines, title: str) -> ViewTable:
    names = ["line", "hits", "time", "per hit", "share", *operator_reports.memory_columns(lines), "source"]
    rows = []
    for line in function.lines:
        texts = operator_reports.times_of(function, line)
        per_hit = line.seconds / line.hits if line.hits else None
        numbers = (line.number, line.hits, line.seconds, per_hit, None)
        cells = []
        for text, number in zip(texts, numbers, strict=True):
            cells.append(ViewCell(text, number if text else None))
        cells += [quantity_cell(size, "B", "") for size in operator_reports.memory_of(lines, line)]
        rows.append([*cells, ViewCell(line.source, is_code=True)])
    return table(names, rows, names[:-1], title)


# Tables of the page


MEMORY_NOTE = (
    "“most alive” counts all memory while the module or a module in it ran. The other columns count what the module itself "
    "allocated; the values at the peak add up to the peak."
)


def memory_table(rows: Sequence[LayerMemory]) -> ViewTable:
    """Return a row per module: bytes; :data:`MEMORY_NOTE` explains the columns."""
    found: list[Cells] = []
    for row in rows:
        sizes = (row.peak_bytes, row.at_peak_bytes, row.allocated_bytes, row.kept_bytes)
        found.append([place_text(row.path), *(quantity_cell(size, "B") for size in sizes)])
    names = ["module", "most alive", "at the peak", "allocated", "kept"]
    return table(names, found, names[1:])


def tensors_table(rows: Sequence[TensorRow]) -> ViewTable:
    """Return a row per storage of tensors."""
    found: list[Cells] = []
    for row in rows:
        *texts, size = tensor_cells(row)
        found.append([*texts, ViewCell(size, row.bytes)])
    return table(["names", "kind", "shape", "dtype", "device", "bytes"], found, ["bytes"])


def measurements_frame(comparison: Comparison) -> pandas.DataFrame:
    """Return the tidy table of the measurements as a data frame whose whole numbers stay whole where values are missing."""
    import pandas

    kinds = {"text": "object", "whole": "Int64", "number": "float64", "truth": "boolean"}
    table = measurements(comparison)
    frame = pandas.DataFrame(list(table.rows), columns=list(table.columns), dtype="object")
    return frame.astype({name: kinds[kind] for name, kind in table.columns.items()})
