"""The views of results: comparisons, differences, measurements, layers, operators and lines; any other object prints its fields.

Objects of packages above this one, such as a Profiler, have a method that returns their view.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from sweeprof.display import Displayed, Rows
from sweeprof.numbers import MISSING, ratio_number, rounded, text_unit
from sweeprof.report import layer_table as layer_cells
from sweeprof.report import lines as line_reports
from sweeprof.report import operators as operator_reports
from sweeprof.report.answer import answer
from sweeprof.report.columns import MODEL_AXIS, detail_text, named_text, rounds_text, value_text
from sweeprof.report.csv import measurements
from sweeprof.report.layer_formats import called_as, total_pairs, tree
from sweeprof.report.layer_table import TreeNode, nodes, place_text, remarks_on
from sweeprof.report.operators import sums_text, tensor_cells
from sweeprof.report.summary import footnotes, protocol_text
from sweeprof.report.table import ReportTable, TableRow
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
    as_text,
    cell_of,
    counted,
    fields_table,
    rows_table,
    table,
    value_line,
)
from sweeprof.results.comparison import Comparison, Row, compare_rows
from sweeprof.results.graph import Graph, GraphNode, GraphTensor, ModuleCost
from sweeprof.results.layers import LayerRow, LayerTable
from sweeprof.results.measurement import Measurement, Measurements, MetricInfo
from sweeprof.results.observations import (
    Allocations,
    FunctionLines,
    LayerMemory,
    Lines,
    OperatorRow,
    Operators,
    OperatorTotal,
    TensorRow,
)
from sweeprof.results.record import Warning
from sweeprof.results.verdicts import Difference, Differences
from sweeprof.text import one_line

if TYPE_CHECKING:
    import pandas

TOP = 20
"""Rows of operators that are shown."""
_BASELINE, _CANDIDATE = "baseline", "candidate"
_DECIDED = ("better", "worse")


@singledispatch
def text_of(thing: Displayed) -> str:
    """Return an object as text for a terminal."""
    return as_text(thing.__view__())


@singledispatch
def view_of(thing: Any) -> View:
    """Return the view of an object; of one without a view of its own, its fields."""
    if not dataclasses.is_dataclass(thing):
        return View(type(thing).__name__)
    warnings = getattr(thing, "warnings", ())
    return View(type(thing).__name__, (fields_table(thing, ("warnings",)), *warning_lines(warnings)))


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
    for kind, (noun, table_of) in _ROW_TABLES.items():
        if isinstance(first, kind):
            return View(counted(len(rows), noun), (table_of(rows),))
    return View(counted(len(rows), "row"), (rows_table(rows),))


# Measurements


@view_of.register
def _(measurement: Measurement) -> View:
    return View(measurement_line(measurement), tuple(warning_lines(measurement.warnings)))


def measurement_line(measurement: Measurement) -> str:
    """Return name and value with what is needed to judge it, e.g. ``compute/macs: 417 kMAC (416,520, exact)``."""
    if measurement.value is None:
        return f"{measurement.name}: {MISSING} ({measurement.reason})"
    facts = [] if isinstance(measurement.value, float) else [f"{measurement.value:,} {measurement.unit}".strip()]
    rounds = len(measurement.rounds)
    facts += [measurement.estimator + (f" of {counted(rounds, 'round')}" if rounds > 1 else "")]
    facts += [text for text in (detail_text(measurement),) if text]
    return f"{measurement.name}: {_with_unit(measurement)} ({', '.join(facts)})"


def _with_unit(measurement: Measurement) -> str:
    """Return the value with its interval, and with its unit also where reports have it in the header of the column."""
    text = value_text(measurement)
    unit = text_unit(measurement.name, measurement.unit)
    if unit in ("s", "B", "MAC", "FLOP", "FLOP/s", "B/s", "params", "ratio", "abs", "share", ""):
        return text
    return f"{text} ({one_line(unit)})" if unit.endswith("/s") else f"{text} {unit}"


@view_of.register
def _(measurements: Measurements) -> View:
    if not all(isinstance(one, Measurement) for one in measurements.values()):  # made by dataclasses.asdict
        return View(dict.__repr__(measurements))
    return View(counted(len(measurements), "metric"), (measurements_table(measurements),))


def measurements_table(measurements: Mapping[str, Measurement]) -> ViewTable:
    """Return a row per metric: its value with unit and interval, or the reason why there is none."""
    rows: list[Cells] = []
    for name, measurement in measurements.items():
        if measurement.value is None:
            rows.append([name, MISSING, one_line(measurement.reason or "no reason was given")])
            continue
        warned = "; ".join(f"{warning.code}: {warning.text}" for warning in measurement.warnings)
        about = "; ".join(text for text in (named_text(measurement), warned) if text)
        estimator = "" if measurement.estimator == "exact" else measurement.estimator
        note = ", ".join(text for text in (estimator, about) if text)
        rows.append([name, ViewCell(_with_unit(measurement), measurement.value, detail_text(measurement)), note])
    return table(["metric", "value", "note"], rows, ["value"])


@view_of.register
def _(difference: Difference) -> View:
    return View("", (_differences_table([difference], (_BASELINE, _CANDIDATE)),))


@view_of.register
def _(found: Differences) -> View:
    if not found:
        return View("There are no metrics to compare.")
    told = answer(comparison_of(found))
    parts: list[str | ViewTable] = [told.certainty] if told.finding and told.certainty else []
    notes = definition_lines([one.name for one in found], found.definitions) if found.has_notes else []
    titles = [
        role if name is None else f"{name} ({role})"
        for name, role in zip(found.names, (_BASELINE, _CANDIDATE), strict=True)
    ]
    return View(told.finding, (*parts, _differences_table(found, titles), *notes))


def definition_lines(names: Iterable[str], definitions: Mapping[str, str]) -> list[str]:
    """Return a line for each metric whose definition is known."""
    return [f"{name}: {definitions[name]}" for name in names if definitions.get(name)]


def comparison_of(found: Differences) -> Comparison:
    """Return the comparison of the two sides, as of a sweep with two combinations."""
    first, second = found.names
    names = (first or _BASELINE, second or _CANDIDATE)
    if names[0] == names[1]:
        names = (_BASELINE, _CANDIDATE)
    sides = dict(zip(names, (found.baseline, found.candidate), strict=True))
    infos = {}
    for difference in found:
        infos[difference.name] = MetricInfo(difference.name, difference.unit, difference.better, "")
    measurements = {
        side: {name: measured.get(name, _absent(side, info)) for name, info in infos.items()}
        for side, measured in sides.items()
    }
    rows = [Row(side, {MODEL_AXIS: side}, "ok", None, {}, names[0]) for side in sides]
    return Comparison(
        sweep_id="",
        name="",
        created="",
        command="",
        axes=(MODEL_AXIS,),
        metrics=tuple(infos.values()),
        baseline={MODEL_AXIS: names[0]},
        rows=compare_rows(rows, measurements, None),
    )


def _absent(side: str, info: MetricInfo) -> Measurement:
    return Measurement(info.name, info.unit, info.better, None, f"the {side} has no such metric")


def _differences_table(found: Sequence[Difference], titles: Sequence[str]) -> ViewTable:
    rows = []
    for one in found:
        unit = text_unit(one.name, one.unit)
        sides: Cells = []
        for value in (one.baseline, one.candidate):
            if value is None or not math.isfinite(value):
                sides.append(MISSING)
            else:
                sides.append(ViewCell(rounded(value, unit), value))
        ratio = ViewCell(MISSING if one.ratio is None else f"×{ratio_number(one.ratio)}", one.ratio)
        verdict = ViewCell(one.verdict or "", is_strong=one.verdict in _DECIDED)
        better = f"{one.better} is better" if one.better else ""
        rows.append([ViewCell(one.name, note=better), *sides, ratio, verdict, one.reason or ""])
    return table(["metric", *titles, "ratio", "verdict", "note"], rows, [*titles, "ratio"])


# Comparisons of a sweep


@text_of.register
def _(comparison: Comparison) -> str:
    # As on a terminal, as wide as this one; of very many rows the first.
    if len(comparison.rows) > MOST_ROWS:
        return as_text(view_of(comparison))
    return terminal_text(comparison, shutil.get_terminal_size((100, 24)).columns).rstrip("\n")


@view_of.register
def _(comparison: Comparison) -> View:
    told = answer(comparison)
    parts: list[str | ViewTable] = [told.rest, protocol_text(comparison)]
    for shown in report_tables(comparison):
        parts += [_report_table(shown), " · ".join(f"{name} {value}" for name, value in shown.captions)]
    for note in footnotes(comparison):
        advice = f" → {note.advice}" if note.advice else ""
        parts.append(f"{note.code} in {counted(note.rows, 'row')}: {note.text}{advice}")
    return View(told.finding, tuple(part for part in parts if part))


def _report_table(shown: ReportTable) -> ViewTable:
    headings = tuple(Heading(column.title, column.numeric, column.hint) for column in shown.columns)
    rows = tuple(_report_row(line, shown) for line in shown.lines[:MOST_ROWS])
    return ViewTable(headings, rows, shown.title, len(shown.lines))


def _report_row(line: TableRow, shown: ReportTable) -> ViewRow:
    found = []
    for column, entry in zip(shown.columns, line.entries, strict=True):
        if line.failure is not None and column.kind != "axis":
            break
        found.append(ViewCell(entry.text, entry.number, entry.note, entry.verdict in _DECIDED))
    if line.failure is not None:
        found.append(ViewCell(line.failure))
    return ViewRow(tuple(found))


def _combinations(rows: Sequence[Row]) -> ViewTable:
    found = [[row.combination_id, value_line("axes", row.axes), row.status, one_line(row.reason or "")] for row in rows]
    return table(["combination", "axes", "status", "reason"], found)


@view_of.register
def _(row: Row) -> View:
    axes = ", ".join(f"{name}={value_line(name, value)}" for name, value in row.axes.items())
    status = f"{row.status}: {row.reason}" if row.reason else row.status
    rounds = f", {rounds_text(row)}" if row.rounds_planned else ""
    measured = {name: cell.measurement for name, cell in row.cells.items()}
    parts = (measurements_table(measured),) if measured else ()
    return View(f"{axes or row.combination_id}: {status}{rounds}", (*parts, *warning_lines(row.warnings)))


# Layers


@text_of.register
def _(layers: LayerTable) -> str:
    return tree(layers, rows=("type", "name", "arguments"))


@view_of.register
def _(layers: LayerTable) -> View:
    shown, reason = layer_cells.with_figures(layers)
    figures = layer_cells.Figures(shown)
    columns = layer_cells.selected_columns(None, layer_cells.SHOWN, shown)
    drawn = _levels_that_fit(nodes(shown))
    headings = (
        Heading("layer"),
        *(Heading(layer_cells.column_title(name), layer_cells.is_numeric(name)) for name in columns),
    )
    rows = []
    for node in drawn:
        name = called_as(node, ("type", "name", "arguments"))
        values = []
        for column in columns:
            number = figures.number(node.row, column) if layer_cells.is_numeric(column) else None
            why = layer_cells.why_missing(shown, node.row, column) or ""
            values.append(ViewCell(figures.text(node.row, column), number, why))
        rows.append(ViewRow((ViewCell(name, note=one_line(node.row.path)), *values), node.depth))
    totals = " · ".join(f"{name} {value}" for name, value in total_pairs(figures, None))
    missing = [f"Not counted: {shown.uncounted}."] if shown.uncounted else []
    if shown.uncovered:
        names = ", ".join(f"{calls} × {name}" for name, calls in shown.uncovered.items())
        missing.append(f"Not counted, because there is no formula: {names}.")
    title = f"{one_line(drawn[0].row.type) or 'Layers'}: {counted(len(layers.rows), 'layer')}" if drawn else "no layers"
    found = ViewTable(headings, tuple(rows), total=len(layers.rows))
    parts: tuple[str | ViewTable, ...] = (
        found,
        totals,
        *missing,
        *remarks_on(shown, columns),
        *([reason] if reason else []),
    )
    return View(title, parts if drawn else ())


def _levels_that_fit(drawn: list[TreeNode]) -> list[TreeNode]:
    """Return the nodes up to the deepest level with which they are no more than a table shows."""
    depth = max((node.depth for node in drawn), default=0)
    shown = drawn
    while depth > 1 and len(shown) > MOST_ROWS:
        depth -= 1
        shown = [node for node in drawn if node.depth <= depth]
    return shown


def _layer_rows(rows: Sequence[LayerRow]) -> ViewTable:
    names = "path type call params macs flops act_bytes output_shapes".split()
    return table(names, [[cell_of(name, getattr(row, name)) for name in names] for row in rows], names[2:-1])


# Operators and lines


@view_of.register
def _(operators: Operators) -> View:
    title = (
        f"{counted(len(operators.rows), 'row')} of operators, one step of {operators.mode}: "
        f"{rounded(operators.step_s, 's')} (mean of {counted(operators.steps, 'traced step')})"
    )
    column = operator_reports.time_column(operators.rows)
    shown = dataclasses.replace(
        operators_table(operators.top(TOP, column)), total=len(operators.rows), title="by module and shapes"
    )
    reason = [f"No FLOPs: {operators.flops_reason}"] if operators.flops_reason else []
    totals = operators.totals("device_self_s" if column == "device_self_s" else "self_s")
    by_name = dataclasses.replace(_totals_table(totals[:TOP]), total=len(totals), title="by operator")
    return View(title, (by_name, _self_total(totals), shown, *reason))


def _totals_table(totals: Sequence[OperatorTotal]) -> ViewTable:
    """Return the columns of torch.profiler's ``key_averages().table()``."""
    has_device = any(total.device_self_s is not None for total in totals)
    names = ["operator", "self %", "self", "total %", "total", "average", "calls"]
    device_names = ["device self", "device total", "device average"] if has_device else []
    rows: list[Cells] = []
    for total in totals:
        average = None if total.device_total_s is None else total.device_total_s / total.calls
        device = (total.device_self_s, total.device_total_s, average)
        rows.append(
            [
                one_line(total.operator),
                _share_cell(total.self_share),
                ViewCell(rounded(total.self_s, "s"), total.self_s),
                _share_cell(total.total_share),
                ViewCell(rounded(total.total_s, "s"), total.total_s),
                ViewCell(rounded(total.average_s, "s"), total.average_s),
                *(
                    MISSING if seconds is None else ViewCell(rounded(seconds, "s"), seconds)
                    for seconds in device[: len(device_names)]
                ),
                ViewCell(operator_reports.calls_text(total.calls), total.calls),
            ]
        )
    headings = [*names[:-1], *device_names, names[-1]]
    return table(headings, rows, headings[1:])


def _share_cell(share: float | None) -> ViewCell:
    return ViewCell(MISSING) if share is None else ViewCell(f"{share:.1%}", share)


def _self_total(totals: Sequence[OperatorTotal]) -> str:
    """Return the own seconds of all operators of the step together."""
    host = totals[0].step_self_s if totals else 0.0
    return f"self time of all operators: {rounded(host, 's')}"


def operators_table(rows: Sequence[OperatorRow], whole: float | None = None) -> ViewTable:
    """Return a row per operator; with its share of ``whole``, the seconds of all operators, unless that is None."""
    names = [name for name in operator_reports.columns_of(rows) if name != "share" or whole is not None]
    column = operator_reports.time_column(rows)
    titles = [operator_reports.TITLES.get(name, name) for name in names]
    found = []
    for row in rows:
        share = (getattr(row, column) or 0.0) / whole if whole else None
        texts = operator_reports.cells_of(row, share)
        numbers = {
            "calls": row.calls,
            "device": row.device_self_s,
            "share": share,
            "self": row.self_s,
            "total": row.total_s,
            "flops": row.flops,
            "allocated": row.allocated_bytes,
        }
        found.append([ViewCell(texts[name] or MISSING, numbers.get(name)) for name in names])
    return table(titles, found, [title for title, name in zip(titles, names, strict=True) if name in numbers])


@view_of.register
def _(lines: Lines) -> View:
    parts: list[str | ViewTable] = [_function_table(function, lines) for function in lines.functions]
    if lines.memory_reason is not None:
        missing = "nothing about allocations" if lines.has_usage else "no memory"
        parts.append(f"There is {missing} by line: {lines.memory_reason}")
    memory = f", memory of {lines.device}" if line_reports.memory_columns(lines) else ""
    if memory and lines.span == "step":
        memory += " in one more"
    return View(f"Time by line over {line_reports.spans(lines)}{memory}", tuple(parts))


def listing(lines: Lines) -> str:
    """Return the times of all lines, then their memory, in full."""
    return f"{line_reports.time_report(lines)}\n{line_reports.memory_report(lines)}"


def _function_table(function: FunctionLines, lines: Lines) -> str | ViewTable:
    title = f"{function.name} ({function.file}:{function.first_line})"
    if not function.is_called:
        return f"{title}: it was not called."
    names = ["line", "hits", "time", "per hit", "share", *line_reports.memory_columns(lines), "source"]
    rows = []
    for line in function.lines:
        texts = line_reports.times_of(function, line)
        numbers = [line.number, line.hits, line.seconds, line.seconds / line.hits if line.hits else None, None]
        cells = [ViewCell(text, number if text else None) for text, number in zip(texts, numbers, strict=True)]
        sizes = line_reports.memory_of(lines, line)
        cells += [ViewCell("" if size is None else rounded(size, "B"), size) for size in sizes]
        rows.append([*cells, ViewCell(line.source, is_code=True)])
    return table(names, rows, names[:-1], title)


# Tables of the page


@view_of.register
def _(graph: Graph) -> View:
    operators = [node for node in graph.nodes if node.kind == "operator"]
    peak = graph.peak
    found = [f"MACs {rounded(graph.macs, 'MAC')}", f"FLOPs {rounded(graph.flops, 'FLOP')}"]
    if peak is not None:
        found.append(
            f"peak live {rounded(peak.live_bytes or 0, 'B')} at {one_line(peak.name)} in {one_line(peak.scope)}"
        )
    for cost in graph.formulas:
        counts = ", ".join(f"{cost_name} {value:,}" for cost_name, value in _known_costs(cost))
        found.append(f"by the formula of {one_line(cost.scope)}: {counts}")
    title = f"{counted(len(operators), 'operator')}, {counted(len(graph.edges), 'edge')}, traced by {graph.method}"
    return View(title, (_nodes_table(graph.nodes), " · ".join(found)))


def _known_costs(cost: ModuleCost) -> list[tuple[str, int]]:
    values = (("MACs", cost.macs), ("FLOPs", cost.flops), ("ops", cost.ops))
    return [(name, value) for name, value in values if value is not None]


def _nodes_table(nodes: Sequence[GraphNode]) -> ViewTable:
    is_timed = any(node.seconds is not None for node in nodes)
    names = ["node", "scope", "inputs", "weights", "outputs", "MACs", "active", "live", *(["time"] if is_timed else [])]
    rows: list[Cells] = []
    for node in nodes:
        weights = [f"{one_line(tensor.weight or '')} {_tensor_text(tensor)}" for tensor in node.weights]
        macs = MISSING if node.macs is None else ViewCell(rounded(node.macs, "MAC"), node.macs)
        live = ViewCell("" if node.live_bytes is None else rounded(node.live_bytes, "B"), node.live_bytes)
        row: Cells = [
            ViewCell(one_line(node.name), note=node.reason or ""),
            one_line(node.scope),
            ", ".join(map(_tensor_text, node.inputs)),
            ", ".join(weights),
            ", ".join(map(_tensor_text, node.outputs)),
            macs if node.kind == "operator" else "",
            str(len(node.active)) if node.kind == "operator" else "",
            live,
        ]
        if is_timed:
            seconds = MISSING if node.seconds is None else ViewCell(rounded(node.seconds, "s"), node.seconds)
            row.append(seconds if node.kind == "operator" else "")
        rows.append(row)
    return table(names, rows, ["MACs", "active", "live", "time"])


def _tensor_text(tensor: GraphTensor) -> str:
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return f"{tensor.dtype}[{shape}]"


@view_of.register
def _(allocations: Allocations) -> View:
    title = (
        f"Peak {rounded(allocations.peak_bytes, 'B')} at {allocations.peak_at}, "
        f"above what was alive before {counted(allocations.steps, 'step')} of {allocations.mode}"
    )
    parts: list[str | ViewTable] = []
    if allocations.allocated_per_step_bytes is not None:
        parts.append(f"Allocated in the last step: {rounded(allocations.allocated_per_step_bytes, 'B')}.")
    if allocations.device:
        parts.append(value_line("bytes", allocations.device))
    if allocations.by_layer:
        parts += [memory_table(allocations.by_layer, "by layer"), MEMORY_NOTE]
    if allocations.tensors:
        parts += [
            tensors_table(allocations.tensors, "tensors alive after the last step"),
            sums_text(allocations.tensors),
        ]
    return View(title, tuple(parts))


MEMORY_NOTE = (
    "“most alive” counts all memory while the module or a module in it ran. The other columns count what the module itself "
    "allocated; the values at the peak add up to the peak."
)


def memory_table(rows: Sequence[LayerMemory], title: str = "") -> ViewTable:
    """Return a row per module: bytes; :data:`MEMORY_NOTE` explains the columns."""
    found: list[Cells] = []
    for row in rows:
        sizes = (row.peak_bytes, row.at_peak_bytes, row.allocated_bytes, row.kept_bytes)
        found.append([place_text(row.path), *(ViewCell(rounded(size, "B"), size) for size in sizes)])
    names = ["module", "most alive", "at the peak", "allocated", "kept"]
    return table(names, found, names[1:], title)


def tensors_table(rows: Sequence[TensorRow], title: str = "") -> ViewTable:
    """Return a row per storage of tensors."""
    found: list[Cells] = []
    for row in rows:
        *texts, size = tensor_cells(row)
        found.append([*texts, ViewCell(size, row.bytes)])
    return table(["names", "kind", "shape", "dtype", "device", "bytes"], found, ["bytes"], title)


_ROW_TABLES: dict[type, tuple[str, Callable[[Sequence[Any]], ViewTable]]] = {
    OperatorRow: ("operator", operators_table),
    LayerRow: ("layer", _layer_rows),
    Row: ("row", _combinations),
}
"""The noun and the table of rows, by their type."""


def measurements_frame(comparison: Comparison) -> pandas.DataFrame:
    """Return the tidy table of the measurements as a data frame whose whole numbers stay whole where values are missing."""
    import pandas

    kinds = {"text": "object", "whole": "Int64", "number": "float64", "truth": "boolean"}
    table = measurements(comparison)
    frame = pandas.DataFrame(list(table.rows), columns=list(table.columns), dtype="object")
    return frame.astype({name: kinds[kind] for name, kind in table.columns.items()})
