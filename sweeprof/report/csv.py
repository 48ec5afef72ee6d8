"""A comparison as CSV: exact values in base units, for a spreadsheet or pandas."""

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
from typing import Any, BinaryIO, Literal, cast

from sweeprof.errors import UserError
from sweeprof.results.comparison import Comparison, Row, reason_of, value_of
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Record
from sweeprof.text import axis_number, axis_text, printable

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


# Everything measured as tidy tables: one observation per row, typed columns, the axes beside each; for pandas, R and databases.


ColumnKind = Literal["text", "whole", "number", "truth"]
ColumnValue = str | int | float | bool | None
CHUNK = 20_000
"""Rows that are in memory at once while a table is written."""


def _columns(kinds: str) -> dict[str, ColumnKind]:
    """``text a b | whole c``: names in their order behind their kind."""
    groups = [group.split() for group in kinds.split("|")]
    return {name: cast(ColumnKind, kind) for kind, *names in groups for name in names}


_MEASUREMENTS = _columns(
    "text status metric unit better | number value low high | text reason estimator | whole rounds | "
    "text baseline | number baseline_value ratio ratio_low ratio_high | text verdict verdict_reason used | "
    "whole rounds_needed | text detail"
)
_ROUNDS = _columns("text metric unit | whole round | number estimate paired")
_SAMPLES = _columns("whole round | text phase | whole index | number seconds | whole loops")
_PROBLEMS = _columns("text kind code text advice")
_OWN = {"combination", *_MEASUREMENTS, *_ROUNDS, *_SAMPLES, *_PROBLEMS}


@dataclass(frozen=True, slots=True)
class Tidy:
    """A table; its rows are made while they are read, and can be read once."""

    name: str
    columns: Mapping[str, ColumnKind]
    """In their order; ``number`` is a 64-bit float, ``whole`` a 64-bit integer; every column may lack values."""
    rows: Iterator[Sequence[ColumnValue]]


class _Axes:
    """The columns of the axes, typed by their values; one that has the name of another column is called ``axis.NAME``."""

    def __init__(self, comparison: Comparison) -> None:
        combinations = [row.axes for row in comparison.rows] + [item.axes for item in comparison.excluded]
        self._kinds = {axis: _kind([axes.get(axis) for axes in combinations]) for axis in comparison.axes}
        names = axis_columns(self._kinds, _OWN)
        self.columns = {names[axis]: kind for axis, kind in self._kinds.items()}

    def of(self, axes: Mapping[str, Any]) -> list[ColumnValue]:
        """The values of one combination."""
        return [_typed(axes.get(axis), kind) for axis, kind in self._kinds.items()]


def measurements(comparison: Comparison) -> Tidy:
    """A row per combination and metric: value with its 95 % interval or the reason why there is none, ratio and verdict."""
    axes = _Axes(comparison)
    rows = (
        [row.combination_id, *own, row.status, *_measured(row, info)]
        for row in comparison.rows
        for own in [axes.of(row.axes)]
        for info in comparison.metrics
    )
    return Tidy("measurements", {"combination": "text", **axes.columns, **_MEASUREMENTS}, rows)


def rounds(comparison: Comparison) -> Tidy:
    """A row per combination, metric and round: ``paired`` of interleaved runs."""
    axes = _Axes(comparison)
    rows = (
        [row.combination_id, *own, *one]
        for row in comparison.rows
        for own in [axes.of(row.axes)]
        for info in comparison.metrics
        for one in _in_rounds(row, info)
    )
    return Tidy("rounds", {"combination": "text", **axes.columns, **_ROUNDS}, rows)


def samples(comparison: Comparison, timings: Iterable[Record]) -> Tidy:
    """A row per raw sample, in seconds per step.

    Args:
        comparison: what the axes are taken from.
        timings: the records of the timing pass, of all rounds and combinations; read as the rows are.
    """
    axes = _Axes(comparison)
    known = {row.combination_id: row.axes for row in comparison.rows}
    rows = (
        [record.combination_id, *own, record.round, *sample]
        for record in timings
        if record.combination_id in known and record.observations is not None
        for own in [axes.of(known[record.combination_id])]
        for sample in _sampled(record.observations)
    )
    return Tidy("samples", {"combination": "text", **axes.columns, **_SAMPLES}, rows)


def problems(comparison: Comparison) -> Tidy:
    """A row per failure, warning, missed constraint and excluded combination, with what to do about it."""
    axes = _Axes(comparison)
    found = (
        [row.combination_id, *own, *problem]
        for row in comparison.rows
        for own in [axes.of(row.axes)]
        for problem in _problems(row)
    )
    excluded = ([None, *axes.of(item.axes), "excluded", None, item.reason, None] for item in comparison.excluded)
    rows = (row for part in (found, excluded) for row in part)
    return Tidy("problems", {"combination": "text", **axes.columns, **_PROBLEMS}, rows)


def csv_chunks(table: Tidy) -> Iterator[str]:
    """The table as CSV, piece by piece: numbers exact, nothing where there is no value."""
    yield csv_lines([table.columns])
    while chunk := list(islice(table.rows, CHUNK)):
        yield csv_lines(chunk)


def _kind(values: Sequence[Any]) -> ColumnKind:
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, bool) for value in known):
        return "truth"
    if not known or any(axis_number(value) is None for value in known):
        return "text"
    return "whole" if all(isinstance(value, int) and abs(value) < 2**63 for value in known) else "number"


def _typed(value: Any, kind: ColumnKind) -> ColumnValue:
    if value is None or kind != "text":
        return value  # type: ignore[no-any-return]  # of its kind, as _kind has seen
    return axis_text(value)


def _measured(row: Row, info: MetricInfo) -> list[ColumnValue]:
    value, cell = value_of(row, info.name), row.cells.get(info.name)
    described: list[ColumnValue] = [info.name, info.unit, info.better, value]
    if cell is None:
        return [*described, None, None, reason_of(row, info.name), *[None] * (len(_MEASUREMENTS) - 8)]
    own = cell.measurement
    return [
        *described,
        *_ends(own.interval if value is not None else None),
        None if value is not None else reason_of(row, info.name),
        own.estimator if value is not None else None,
        len(own.rounds) or None,
        row.baseline_id,
        _finite(cell.base),
        _finite(cell.ratio),
        *_ends(cell.ratio_interval),
        cell.verdict,
        cell.verdict_reason,
        cell.used,
        cell.rounds_needed,
        _json(own.detail),
    ]


def _in_rounds(row: Row, info: MetricInfo) -> Iterator[list[ColumnValue]]:
    cell = row.cells.get(info.name)
    if cell is None:
        return
    own = cell.measurement
    paired = own.by_round("paired") if own.paired else {}
    for number, estimate in own.by_round().items():
        yield [info.name, info.unit, number, _finite(estimate), _finite(paired.get(number))]


def _sampled(timing: Mapping[str, Any]) -> Iterator[list[ColumnValue]]:
    """Phase, number, seconds and steps of every sample that was taken in a round."""
    series = {
        "step": (timing.get("samples", ()), timing.get("loops")),
        **{name: (found, None) for part in ("phases", "transfers") for name, found in timing.get(part, {}).items()},
    }
    for phase, (seconds, loops) in series.items():
        for index, one in enumerate(seconds):
            yield [phase, index, one, loops]


def _problems(row: Row) -> Iterator[list[ColumnValue]]:
    if row.status != "ok":
        yield ["failure", row.status, row.reason or "no reason was given", None]
    elif row.failures:
        yield ["failure", "incomplete", row.reason, None]
    of_cells = (warning for cell in row.cells.values() for warning in cell.measurement.warnings)
    for warning in dict.fromkeys((*row.warnings, *of_cells)):
        yield ["warning", warning.code, warning.text, warning.advice]
    for miss in row.misses:
        yield ["disqualified", None, miss, None]


def _ends(interval: tuple[float, float] | None) -> tuple[ColumnValue, ColumnValue]:
    return (None, None) if interval is None else (_finite(interval[0]), _finite(interval[1]))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _json(detail: Mapping[str, Any]) -> str | None:
    known = {k: v for k, v in detail.items() if not (isinstance(v, float) and not math.isfinite(v))}
    return json.dumps(known, ensure_ascii=False, default=str) if known else None


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
