"""Two layer tables row by row, and many of them in one page."""

from __future__ import annotations

import json

import pytest

from support.nets import lenet5, reused, untold
from support.timed_layers import timed_lenet5
from sweeprof.errors import UserError
from sweeprof.report.layer_formats import embedded
from sweeprof.report.layer_table import FigurePair, side_by_side
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable


def table(*paths: str, macs: int = 1) -> LayerTable:
    rows = [LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0)]
    rows += [LayerRow(path, "Linear", path.count(".") + 1, 0, 2, 2, 8, 0, macs, parent=0) for path in paths]
    return LayerTable(tuple(rows))


def test_the_figures_of_both() -> None:
    rows = {row.path: row for row in side_by_side(lenet5(1), lenet5(8), ("batch 1", "batch 8"))}
    conv = rows["feature_extractor.0"]
    assert conv.names == ("batch 1", "batch 8")
    assert conv.is_in_both
    assert conv.figures["macs"] == FigurePair(117_600, 8 * 117_600)
    assert (conv.figures["macs"].difference, conv.figures["macs"].ratio) == (7 * 117_600, 8.0)
    assert (conv.figures["params"].difference, conv.figures["params"].ratio) == (0, 1.0)
    assert (
        rows["feature_extractor.1"].figures["macs"].difference,
        rows["feature_extractor.1"].figures["macs"].ratio,
    ) == (
        0,
        None,
    )


def test_the_union_keeps_both_orders() -> None:
    found = [row.path for row in side_by_side(table("a", "c", "d"), table("0", "a", "b", "d", "e"))]
    assert found == [ROOT, "0", "a", "b", "c", "d", "e"]
    assert [row.path for row in side_by_side(table(), table("a", "b"))] == [ROOT, "a", "b"]
    assert [row.path for row in side_by_side(LayerTable(()), table("a"))] == [ROOT, "a"]


def test_a_row_of_one_table_has_no_difference() -> None:
    rows = {row.path: row for row in side_by_side(table("a", "b"), table("a", "x"))}
    assert rows["b"].right is None
    assert rows["b"].left is not None
    assert rows["b"].figures["macs"] == FigurePair(1, None)
    assert rows["x"].figures["macs"] == FigurePair(None, 1)
    assert rows["x"].figures["macs"].difference is None
    assert rows["x"].figures["macs"].ratio is None


def test_calls_of_one_module_are_matched_by_number() -> None:
    rows = side_by_side(reused(), reused().inclusive(), columns=("macs",))
    assert [(row.path, row.call) for row in rows] == [(row.path, row.call) for row in reused().rows]
    blocks = [row.figures["macs"] for row in rows if row.path == "block"]
    assert blocks == [FigurePair(0, 96), FigurePair(0, 96)]


def test_what_is_not_counted_is_not_zero() -> None:
    (root, *_) = side_by_side(untold(), lenet5(), columns=("flops", "macs"))
    assert root.figures == {"flops": FigurePair(None, 10), "macs": FigurePair(0, 0)}
    assert root.figures["flops"].difference is None


def test_an_unknown_column_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="'mac' is not a figure of layers"):
        side_by_side(lenet5(), lenet5(), columns=("mac",))


def test_every_row_is_embedded_with_its_inclusive_figures() -> None:
    data = json.loads(json.dumps(embedded({"one": lenet5(), "eight": lenet5(8), "untold": untold()})))
    assert [column["title"] for column in data["columns"]] == ["MACs", "FLOPs", "params", "activations"]
    one, eight, other = data["tables"]
    lists = [data["vectors"][place] for place in one["vectors"]]
    assert [data["strings"][int(place or 0)] for place in lists[0]][:3] == ["", "feature_extractor", "0"]
    assert lists[2][:3] == [0, 1, 2]
    assert lists[5][:3] == [416_520, 405_600, 117_600]
    assert one["totals"] == [416_520, 852_380, 61_706, 58_408]
    assert (one["note"], eight["label"]) == (None, "eight")
    assert other["note"].startswith("Values are each layer's own")
    # Labels, types, depths, calls and parameters of both batch sizes are one list each.
    assert [a == b for a, b in zip(one["vectors"], eight["vectors"], strict=True)] == [
        *[True] * 4,
        *[False] * 3,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("axes", "shown"),
    [
        ([("m", "torch", 1), ("m", "torch", 8), ("m", "jax", 1), ("n", "jax", 1)], (0, 2)),
        ([("m", "torch", 1), ("m", "torch", 8), ("n", "torch", 8)], (1, 2)),
        ([("m", "torch", 1), ("m", "torch", 8)], (0, 1)),
        ([("m", "torch", 1), ("n", "jax", 8)], (0, 1)),
        ([("m", "torch", 1)], (0, 0)),
    ],
    ids=["backends", "models", "batch sizes", "nothing alike", "one"],
)
def test_two_backends_or_else_two_models_are_shown_first(
    axes: list[tuple[str, str, int]], shown: tuple[int, int]
) -> None:
    named = {str(values): dict(zip(("model", "backend", "batch_size"), values, strict=True)) for values in axes}
    left, right, _ = embedded(dict.fromkeys(named, lenet5()), named)["first"]
    assert (left, right) == shown


def test_measured_times_are_shown_first_where_two_have_them() -> None:
    times = {"a": lenet5(), "b": timed_lenet5(), "c": timed_lenet5()}
    axes: dict[str, dict[str, object]] = {name: {"backend": name} for name in times}
    data = embedded(times, axes)
    left, right, column = data["first"]
    assert (left, right, data["columns"][column]["title"]) == (1, 2, "forward")
    left, right, column = embedded({"a": lenet5(), "b": timed_lenet5()}, axes)["first"]
    assert (left, right, data["columns"][column]["title"]) == (0, 1, "MACs")
