"""A comparison as CSV with exact values in base units, and everything measured as tidy tables in CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import Any, BinaryIO, Literal

from sweeprof.errors import UserError
from sweeprof.report.columns import is_of_other_mode
from sweeprof.results.compared_rows import Comparison, Row, reason_of, value_of
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Record
from sweeprof.text import axis_number, axis_text, printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What a cell begins with that a spreadsheet may compute, after OWASP's "CSV Injection"."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_text(comparison: Comparison) -> str:
    """One header line, then one line per combination in the order of the sweep.

    Columns: the axes, ``status``, ``reason``, the canonical metric names but those of modes that no row has; with constraints
    ``qualifies`` and ``misses``, with a Pareto front ``pareto``. A cell is empty where there is no value. An axis with the name of
    another column is ``axis.NAME``.
    """
    measured = [row for row in comparison.rows if row.has_values]
    metrics = [info.name for info in comparison.metrics if not is_of_other_mode(measured, info.name)]
    others = ["status", "reason", *metrics]
    if comparison.constraints:
        others += ["qualifies", "misses"]
    if comparison.pareto:
        others.append("pareto")
    lines: list[list[object]] = [[*axis_columns(comparison.axes, others).values(), *others]]
    for row in comparison.rows:
        line: list[object] = [axis_text(row.axes[axis]) if axis in row.axes else "" for axis in comparison.axes]
        line += [row.status, row.reason or "", *(value_of(row, name) for name in metrics)]
        if comparison.constraints:
            line += [not row.misses, "; ".join(row.misses)]
        if comparison.pareto:
            line.append(row.on_front)
        lines.append(line)
    return csv_lines(lines)


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


# Everything measured as tidy tables: one observation per row, typed columns, the axes beside each; for pandas, R and databases.
# They are written as their rows are made: the samples of a sweep need not fit into memory.

ColumnKind = Literal["text", "whole", "number", "truth"]
ColumnValue = str | int | float | bool | None
CHUNK = 20_000
"""Rows that are in memory at once while a table is written."""

_MEASUREMENTS: dict[str, ColumnKind] = {
    "status": "text",
    "metric": "text",
    "unit": "text",
    "better": "text",
    "value": "number",
    "low": "number",
    "high": "number",
    "reason": "text",
    "estimator": "text",
    "rounds": "whole",
    "baseline": "text",
    "baseline_value": "number",
    "ratio": "number",
    "ratio_low": "number",
    "ratio_high": "number",
    "verdict": "text",
    "verdict_reason": "text",
    "used": "text",
    "rounds_needed": "whole",
    "detail": "text",
}
_ROUNDS: dict[str, ColumnKind] = {
    "metric": "text",
    "unit": "text",
    "round": "whole",
    "estimate": "number",
    "paired": "number",
}
_SAMPLES: dict[str, ColumnKind] = {
    "round": "whole",
    "phase": "text",
    "index": "whole",
    "seconds": "number",
    "loops": "whole",
}
_PROBLEMS: dict[str, ColumnKind] = {"kind": "text", "code": "text", "text": "text", "advice": "text"}
_OWN = {"combination", *_MEASUREMENTS, *_ROUNDS, *_SAMPLES, *_PROBLEMS}


@dataclass(frozen=True, slots=True)
class Tidy:
    """A table; its rows are made while they are read, and can be read once."""

    name: str
    columns: Mapping[str, ColumnKind]
    """In their order; ``number`` is a 64-bit float, ``whole`` a 64-bit integer; every column may lack values."""
    rows: Iterator[Sequence[ColumnValue]]


_Observations = Iterable[tuple[str | None, Mapping[str, Any], Iterable[Mapping[str, ColumnValue]]]]
"""For a combination its id, its axes, and rows of a table by column."""


def _tidy(name: str, comparison: Comparison, columns: dict[str, ColumnKind], observations: _Observations) -> Tidy:
    """Return a table with a column for each axis, typed by the axis's values, before its own columns."""
    combinations = [row.axes for row in comparison.rows] + [item.axes for item in comparison.excluded]
    kinds = {axis: _kind([axes.get(axis) for axes in combinations]) for axis in comparison.axes}
    names = axis_columns(kinds, _OWN)

    def rows() -> Iterator[list[ColumnValue]]:
        for combination, axes, found in observations:
            start: list[ColumnValue] = [combination]
            for axis, kind in kinds.items():
                value = axes.get(axis)
                start.append(axis_text(value) if value is not None and kind == "text" else value)
            for values in found:
                yield [*start, *map(values.get, columns)]

    of_axes = {names[axis]: kind for axis, kind in kinds.items()}
    return Tidy(name, {"combination": "text", **of_axes, **columns}, rows())


def _kind(values: Sequence[Any]) -> ColumnKind:
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return "truth"
    if not known or any(axis_number(value) is None for value in known):
        return "text"
    if all(isinstance(value, int) and abs(value) < 2**63 for value in known):
        return "whole"
    return "number"


def measurements(comparison: Comparison) -> Tidy:
    """A row per combination and metric: value with its 95 % interval or the reason why there is none, ratio and verdict."""
    found = ((row.combination_id, row.axes, _measured(row, comparison.metrics)) for row in comparison.rows)
    return _tidy("measurements", comparison, _MEASUREMENTS, found)


def _measured(row: Row, infos: Iterable[MetricInfo]) -> Iterator[dict[str, ColumnValue]]:
    for info in infos:
        value, cell = value_of(row, info.name), row.cells.get(info.name)
        found: dict[str, ColumnValue] = {"status": row.status, "metric": info.name, "unit": info.unit}
        found |= {"better": info.better, "value": value}
        if value is None:
            found["reason"] = reason_of(row, info.name)
        if cell is not None:
            own = cell.measurement
            if value is not None:
                found["low"], found["high"] = _ends(own.interval)
                found["estimator"] = own.estimator
            found["rounds"] = len(own.rounds) or None
            found["baseline"] = row.baseline_id
            found["baseline_value"] = _finite(cell.base)
            found["ratio"] = _finite(cell.ratio)
            found["ratio_low"], found["ratio_high"] = _ends(cell.ratio_interval)
            found |= {"verdict": cell.verdict, "verdict_reason": cell.verdict_reason, "used": cell.used}
            found["rounds_needed"] = cell.rounds_needed
            detail = {k: v for k, v in own.detail.items() if not (isinstance(v, float) and not math.isfinite(v))}
            if detail:
                found["detail"] = json.dumps(detail, ensure_ascii=False, default=str)
        yield found


def _ends(interval: tuple[float, float] | None) -> tuple[ColumnValue, ColumnValue]:
    return (None, None) if interval is None else (_finite(interval[0]), _finite(interval[1]))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def rounds(comparison: Comparison) -> Tidy:
    """A row per combination, metric and round: ``paired`` of interleaved runs."""
    found = ((row.combination_id, row.axes, _in_rounds(row, comparison.metrics)) for row in comparison.rows)
    return _tidy("rounds", comparison, _ROUNDS, found)


def _in_rounds(row: Row, infos: Iterable[MetricInfo]) -> Iterator[dict[str, ColumnValue]]:
    for info in infos:
        if info.name not in row.cells:
            continue
        own = row.cells[info.name].measurement
        paired = own.by_round("paired") if own.paired else {}
        for number, estimate in own.by_round().items():
            found: dict[str, ColumnValue] = {"metric": info.name, "unit": info.unit, "round": number}
            yield found | {"estimate": _finite(estimate), "paired": _finite(paired.get(number))}


def samples(comparison: Comparison, timings: Iterable[Record]) -> Tidy:
    """A row per raw sample, in seconds per step.

    Args:
        comparison: what the axes are taken from.
        timings: the records of the timing pass, of all rounds and combinations; read as the rows are.
    """
    axes = {row.combination_id: row.axes for row in comparison.rows}
    found = (
        (record.combination_id, axes[record.combination_id], _sampled(record.round, record.observations))
        for record in timings
        if record.combination_id in axes and record.observations is not None
    )
    return _tidy("samples", comparison, _SAMPLES, found)


def _sampled(round: int, timing: Mapping[str, Any]) -> Iterator[dict[str, ColumnValue]]:
    for index, seconds in enumerate(timing.get("samples", ())):
        yield {"round": round, "phase": "step", "index": index, "seconds": seconds, "loops": timing.get("loops")}
    for phase, found in {**timing.get("phases", {}), **timing.get("transfers", {})}.items():
        for index, seconds in enumerate(found):
            yield {"round": round, "phase": phase, "index": index, "seconds": seconds}


def problems(comparison: Comparison) -> Tidy:
    """A row per failure, warning, missed constraint and excluded combination, with what to do about it."""

    def found() -> Iterator[tuple[str | None, Mapping[str, Any], Iterable[Mapping[str, ColumnValue]]]]:
        for row in comparison.rows:
            yield row.combination_id, row.axes, _problems(row)
        for item in comparison.excluded:
            yield None, item.axes, [{"kind": "excluded", "text": item.reason}]

    return _tidy("problems", comparison, _PROBLEMS, found())


def _problems(row: Row) -> Iterator[dict[str, ColumnValue]]:
    if row.status != "ok":
        yield {"kind": "failure", "code": row.status, "text": row.reason or "no reason was given"}
    elif row.failures:
        yield {"kind": "failure", "code": "incomplete", "text": row.reason}
    for warning in dict.fromkeys(row.all_warnings):
        yield {"kind": "warning", "code": warning.code, "text": warning.text, "advice": warning.advice}
    for miss in row.misses:
        yield {"kind": "disqualified", "text": miss}


def csv_chunks(table: Tidy) -> Iterator[str]:
    """The table as CSV, piece by piece: numbers exact, nothing where there is no value."""
    yield csv_lines([table.columns])
    while chunk := list(islice(table.rows, CHUNK)):
        yield csv_lines(chunk)


NEEDS = "Parquet files need pyarrow: pip install 'sweeprof[parquet]'"


def has_parquet() -> bool:
    """True if pyarrow is installed."""
    return find_spec("pyarrow") is not None


def write_parquet(table: Tidy, file: BinaryIO) -> None:
    """Write the table into an open file, a row group per chunk: texts, int64, float64 and bool, all nullable.

    Raises:
        UserError: pyarrow is not installed.
    """
    if not has_parquet():
        raise UserError(NEEDS)
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    types = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64(), "truth": pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in table.columns.items()])
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while chunk := list(islice(table.rows, CHUNK)):
            columns = zip(zip(*chunk, strict=True), table.columns.values(), strict=True)
            arrays = [pa.array(_column(values, kind), types[kind]) for values, kind in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _column(values: Sequence[ColumnValue], kind: ColumnKind) -> Sequence[ColumnValue]:
    # A whole number in a column of floats may be beyond what a float holds exactly, which pyarrow takes for a mistake.
    if kind == "number":
        return [None if value is None else float(value) for value in values]
    if kind == "text":
        return [printable(value) if isinstance(value, str) else value for value in values]
    return values
