"""LayerTable: sums and plain data."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sweeprof.results.layers import ROOT, LayerRow, LayerTable

TABLE = LayerTable(
    (
        LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0, ((2, 3),), ((2, 5),)),
        LayerRow("a", "Linear", 1, 0, 20, 15, 80, 0, 30, ((2, 3),), ((2, 5),)),
        LayerRow("a", "Linear", 1, 1, 0, 0, 0, 0, 30, ((2, 3),), ((2, 5),)),
        LayerRow("b.bn", "BatchNorm", 2, -1, 10, 0, 20, 11, 0),
    ),
    {"aten.mv": 2},
    "real forward",
)

counts = st.integers(0, 10**15)
shapes = st.lists(st.lists(st.integers(0, 4096), max_size=4).map(tuple), max_size=2).map(tuple)
rows = st.builds(LayerRow, st.text(), st.text(), st.integers(0, 9), st.integers(-1, 9), *[counts] * 5, shapes, shapes)


def test_totals() -> None:
    assert (TABLE.params, TABLE.trainable, TABLE.params_bytes, TABLE.macs) == (30, 15, 100, 60)


def test_an_empty_table_counts_nothing() -> None:
    table = LayerTable(())
    assert (table.params, table.trainable, table.params_bytes, table.macs) == (0, 0, 0, 0)
    assert (table.uncovered, table.method) == ({}, "shapes")


def test_round_trip() -> None:
    assert LayerTable.from_dict(json.loads(json.dumps(TABLE.to_dict()))) == TABLE


@given(st.lists(rows, max_size=5).map(tuple), st.dictionaries(st.text(), counts), st.sampled_from(["shapes", "x"]))
def test_any_table_survives_json(rows: tuple[LayerRow, ...], uncovered: dict[str, int], method: str) -> None:
    table = LayerTable(rows, uncovered, method)
    read = LayerTable.from_dict(json.loads(json.dumps(table.to_dict())))
    assert read == table
    assert (read.params, read.macs) == (sum(r.params for r in rows), sum(r.macs or 0 for r in rows))
