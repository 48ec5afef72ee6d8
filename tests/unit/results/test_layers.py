"""LayerTable: sums and plain data."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Weights

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


def weighed(path: str, depth: int, own: int, below: int, parent: int | None, call: int = 0) -> LayerRow:
    subtree = Weights(below, below, 4 * below, 0, 0, {"float32": below} if below else {})
    dtypes = {"float32": own} if own else {}
    return LayerRow(
        *(path, path, depth, call, own, own, 4 * own, 0, 10 * own), dtypes=dtypes, subtree=subtree, parent=parent
    )


NESTED = LayerTable(
    (
        weighed(ROOT, 0, 0, 6346, None),
        weighed("block", 1, 0, 6336, 0),
        weighed("block.a", 2, 6272, 6272, 1),
        weighed("block.b", 2, 64, 64, 1),
        weighed("head", 1, 10, 10, 0),
        weighed("head", 1, 0, 10, 0, call=1),
    )
)


@pytest.mark.parametrize(
    ("kept", "params"),
    [
        ({ROOT, "block", "block.a", "block.b", "head"}, 6346),
        ({"block"}, 0),
        ({"block", "block.b"}, 64),
        ({ROOT, "block"}, 0),
        ({ROOT, "block.a", "head"}, 6282),
        ({"block.a", "head"}, 6282),
        ({"head"}, 10),
        (set(), 0),
    ],
)
def test_the_totals_of_chosen_rows_are_the_same_with_and_without_what_is_within(kept: set[str], params: int) -> None:
    chosen = NESTED.where(lambda row: row.path in kept)
    assert (chosen.params, chosen.trainable, chosen.params_bytes) == (params, params, 4 * params)
    inclusive = chosen.inclusive()
    assert (inclusive.params, inclusive.trainable, inclusive.params_bytes) == (params, params, 4 * params)
    assert inclusive.macs == chosen.macs == 10 * params
    assert sum(sum(row.dtypes.values()) for row in inclusive._summed_weights) == params


def test_whole_modules_are_chosen_from_the_inclusive_table() -> None:
    blocks = NESTED.inclusive().where(lambda row: row.depth == 1)
    assert [row.params for row in blocks.rows] == [6336, 10, 10]
    assert (blocks.params, blocks.macs) == (6346, 63_460)
    assert NESTED.inclusive().where(lambda row: row.path == "block").params == 6336


def test_only_a_repeated_call_has_no_weights() -> None:
    again = NESTED.where(lambda row: row.call == 1)
    assert (again.params, again.inclusive().params) == (0, 0)
