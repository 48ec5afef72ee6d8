"""A tidy table as a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import BinaryIO

from sweeprof.errors import UserError
from sweeprof.report.tidy import Kind, Tidy, Value, chunks

NEEDS = "Parquet files need pyarrow: pip install 'sweeprof[parquet]'"


def has_parquet() -> bool:
    """Whether pyarrow is installed."""
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
        for chunk in chunks(table):
            columns = zip(zip(*chunk, strict=True), table.columns.values(), strict=True)
            arrays = [pa.array(_column(values, kind), types[kind]) for values, kind in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _column(values: Sequence[Value], kind: Kind) -> Sequence[Value]:
    # A whole number in a column of floats may be beyond what a float holds exactly, which pyarrow takes for a mistake.
    return [None if value is None else float(value) for value in values] if kind == "number" else values
