"""What is derived of the rows of a layer table: totals of seconds, shares, achieved FLOP/s, and its frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sweeprof.results.layers import FRAME_COLUMNS, LayerRow, LayerTable, Weights
from sweeprof.results.paths import above

if TYPE_CHECKING:
    import pandas

_DERIVED = ("params_share", "macs_share", "forward_share", "flops_per_s")
_NUMBERS = (
    "depth call params trainable frozen macs flops ops forward_s forward_self_s backward_s backward_self_s".split()
)


def records(table: LayerTable) -> list[dict[str, Any]]:
    """One dictionary per row, in :data:`sweeprof.results.layers.FRAME_COLUMNS`."""
    macs = None if table.uncounted is not None else table.macs
    params, forward = table.params, total_seconds(table, forward_column(table))
    return [
        {
            **{name: getattr(row, name) for name in FRAME_COLUMNS if name not in _DERIVED},
            "params_share": row.params / params if params else None,
            "macs_share": _over(row.macs, macs),
            "forward_share": _over(getattr(row, forward_column(table)), forward),
            "flops_per_s": flops_per_s(table, row),
        }
        for row in table.rows
    ]


def frame(table: LayerTable) -> pandas.DataFrame:
    """The records as a frame; a column with unknown values holds objects, so that they stay None and do not turn into NaN."""
    import pandas

    lines = records(table)
    unknown = {name: object for name in FRAME_COLUMNS if any(line[name] is None for line in lines)}
    made = pandas.DataFrame(lines, columns=FRAME_COLUMNS, dtype=object)
    return made.astype({n: unknown.get(n, type(lines[0][n])) for n in (*_NUMBERS, *_DERIVED) if lines})


def forward_column(table: LayerTable) -> str:
    """The seconds that go with the table's FLOPs: of a call with the calls within it, or its own."""
    return "forward_s" if table.is_inclusive else "forward_self_s"


def flops_per_s(table: LayerTable, row: LayerRow) -> float | None:
    """FLOPs of a row over its seconds of the forward; None where either is not known or it took no time that could be told."""
    return _over(row.flops, getattr(row, forward_column(table)))


def total_flops_per_s(table: LayerTable) -> float | None:
    """The same of the whole table."""
    return _over(table.flops, total_seconds(table, forward_column(table)))


def total_seconds(table: LayerTable, column: str) -> float | None:
    """Sum of own seconds, or of the inclusive ones of the outermost calls; of what is known, None where nothing is."""
    rows = table.rows if column.endswith("_self_s") else _outermost(table.rows)
    known = [value for row in rows if (value := getattr(row, column)) is not None]
    return sum(known) if known else None


def without(rows: Sequence[LayerRow], dropped: Sequence[int]) -> list[LayerRow]:
    """The rows, their inclusive seconds without those of the rows at the positions ``dropped``."""
    gone = [(0.0, 0.0)] * len(rows)
    lists = [index for index, row in enumerate(rows) if row.call < 0]
    for index in dropped:
        row = rows[index]
        if row.call < 0 or row.forward_self_s is None:
            continue
        for around in [
            *_callers(rows, index),
            *(place for place in lists if row.path.startswith(f"{rows[place].path}.")),
        ]:
            forward, backward = gone[around]
            gone[around] = forward + row.forward_self_s, backward + (row.backward_self_s or 0.0)
    return [
        dataclasses.replace(row, forward_s=_less(row.forward_s, forward), backward_s=_less(row.backward_s, backward))
        for row, (forward, backward) in zip(rows, gone, strict=True)
    ]


def without_weights(rows: Sequence[LayerRow], dropped: Sequence[int]) -> list[LayerRow]:
    """The rows, the weights of their subtrees without those that the rows at the positions ``dropped`` hold themselves."""
    gone: dict[str, list[LayerRow]] = {}
    for row in (rows[index] for index in dropped):
        if row.params or row.buffers:
            for path in (row.path, *above(row.path)):
                gone.setdefault(path, []).append(row)
    return [
        row
        if row.subtree is None
        else dataclasses.replace(row, subtree=_less_weights(row.subtree, gone.get(row.path, ())))
        for row in rows
    ]


def _less_weights(subtree: Weights, gone: Sequence[LayerRow]) -> Weights:
    dtypes = dict(subtree.dtypes)
    for row in gone:
        for dtype, count in row.dtypes.items():
            dtypes[dtype] = dtypes.get(dtype, 0) - count
    return Weights(
        params=subtree.params - sum(row.params for row in gone),
        trainable=subtree.trainable - sum(row.trainable for row in gone),
        params_bytes=subtree.params_bytes - sum(row.params_bytes for row in gone),
        buffers=subtree.buffers - sum(row.buffers for row in gone),
        buffers_bytes=subtree.buffers_bytes - sum(row.buffers_bytes for row in gone),
        dtypes={dtype: count for dtype, count in dtypes.items() if count},
    )


def _callers(rows: Sequence[LayerRow], index: int) -> Iterator[int]:
    while (parent := rows[index].parent) is not None:
        yield parent
        index = parent


def _outermost(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """Calls that neither were made within another one of the table nor belong to a module that was."""
    called = {row.path for row in rows if row.call >= 0}
    return [row for row in rows if row.call >= 0 and row.parent is None and called.isdisjoint(above(row.path))]


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None or whole <= 0 else part / whole


def _less(value: float | None, gone: float) -> float | None:
    # Sums of fractions are not exact: what is left of nothing may come out below it.
    return value if value is None or not gone else max(0.0, value - gone)
