"""A tidy table as a Parquet file."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, BinaryIO

from sweeprof.errors import UserError
from sweeprof.report.tidy import Kind, Tidy, Value, chunks

NEEDS = "Parquet files need pyarrow: pip install 'sweeprof[parquet]'"


def has_parquet() -> bool:
    """Whether pyarrow is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def write_parquet(table: Tidy, file: BinaryIO) -> None:
    """Write the table into an open file, a row group per chunk: texts, int64, float64 and bool, all nullable.

    Raises:
        UserError: pyarrow is not installed.
    """
    if not has_parquet():
        raise UserError(NEEDS)
    import pyarrow as pa
    from pyarrow import parquet

    kinds: dict[Kind, Any] = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64(), "truth": pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in table.columns.items()])
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for chunk in chunks(table):
            columns = [
                _column(values, field.type) for values, field in zip(zip(*chunk, strict=True), schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _column(values: Sequence[Value], type: Any) -> Any:
    import pyarrow as pa

    # A whole number in a column of floats may be beyond what a float holds exactly, which pyarrow takes for a mistake.
    given = [None if value is None else float(value) for value in values] if type == pa.float64() else values
    return pa.array(given, type)
