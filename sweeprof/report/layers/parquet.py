"""A layer table as a Parquet file."""

from __future__ import annotations

import importlib.util
import io

from sweeprof.errors import UserError
from sweeprof.report.layers.csv import records
from sweeprof.results.layers import FRAME_COLUMNS, TIMES, LayerTable

_WHOLE = "depth call params trainable frozen macs flops ops buffers".split()
_NUMBERS = (*TIMES, *"act_bytes params_bytes buffers_bytes params_share macs_share forward_share flops_per_s".split())


def to_parquet(table: LayerTable, inclusive: bool = False) -> bytes:
    """The file's content, in the columns of ``LayerTable.to_frame``: counts are nullable int64, bytes, times and shares float64.

    Shapes and data types are JSON text.

    Raises:
        UserError: pyarrow is not installed.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    # Asked beforehand: pandas' own complaint names other packages, which would not do.
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet files need pyarrow: pip install pyarrow")
    import pandas

    frame = pandas.DataFrame(records(table, inclusive), columns=FRAME_COLUMNS)
    # A column without any value has no type of its own.
    kinds = {**dict.fromkeys(_WHOLE, "Int64"), **dict.fromkeys(_NUMBERS, "float64")}
    frame = frame.astype({name: kinds.get(name, "string") for name in FRAME_COLUMNS})
    content = io.BytesIO()
    frame.to_parquet(content, engine="pyarrow", index=False)
    return content.getvalue()
