"""Tables in MLflow's own format, apart from any MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.layered import layer_table, operator_table
from support.samples import build, comparison
from sweeprof.report.layer_formats import to_csv
from sweeprof.report.operators import operators_csv
from sweeprof.tracking import runs
from sweeprof.tracking.runs import MOST_ROWS, combinations, layers, operators, tag_of


def test_a_layer_is_a_row_with_rounded_figures_in_fixed_units() -> None:
    made = layers(to_csv(layer_table(batch=8)))
    assert made["columns"] == [
        *("layer", "forward_self_ms", "forward_ms", "macs_m", "params_k", "act_mib"),
        *("type", "output_shapes"),
    ]
    assert made["data"] == [
        ["(model)", 0.0, 8.0, 0.0, 0.0, "–", "Net", "[]"],
        ["conv", 0.8, 0.8, 0.9408, 0.156, 0.0, "Conv2d", "[[8, 6, 28, 28]]"],
        ["conv #2", 1.876, 1.876, 1.882, 0.0, 0.003906, "Conv2d", "[[8, 6, 28, 28]]"],
        ["head|`x`", 0.4, 0.4, 0.08064, 10.08, "–", "Linear", "[]"],
    ]


def test_columns_without_any_value_are_left_out() -> None:
    made = layers(to_csv(layer_table(timed=False)))
    assert made["columns"][:3] == ["layer", "macs_m", "params_k"]


def test_operators_are_summed_over_their_layers_and_the_slowest_comes_first() -> None:
    made = operators(operators_csv(operator_table()))
    assert made["columns"] == ["operator", "self_ms", "flops_m", "allocated_mib", "calls"]
    assert made["data"] == [
        ["aten::add (forward)", 0.9, "–", "–", 1.0],
        ["aten::conv2d (forward)", 0.5, 0.72, 0.007812, 3.0],
    ]


def test_the_comparison_has_a_row_per_combination_with_ratios_and_reasons() -> None:
    of = comparison()
    made = combinations(of)
    assert made["columns"][:5] == ["model", "backend", "device", "batch_size", "latency/forward_ms"]
    rows = [dict(zip(made["columns"], row, strict=True)) for row in made["data"]]
    assert len(rows) == 18
    crashed = next(row for row in rows if row["status"] == "crashed")
    assert crashed["latency/forward_ms"] == "–"
    assert crashed["reason"] == "timing: killed by SIGKILL (signal 9)"
    assert {row["combination"] for row in rows} == {row.combination_id for row in of.rows}
    assert rows[0]["batch_size"] == 1
    slower = next(row for row in rows if row["backend"] == "tensorflow" and row["status"] == "ok")
    assert slower["latency/forward vs baseline"].startswith("×1.90")


def test_an_axis_that_is_called_like_another_column_is_in_the_table() -> None:
    odd = build([{"status": "a"}, {"status": "b"}], {"m": ("s", "lower")}, [{"m": 1.0}, {"m": 2.0}])
    made = combinations(odd)
    rows = [dict(zip(made["columns"], row, strict=True)) for row in made["data"]]
    assert [(row["axis.status"], row["status"]) for row in rows] == [("a", "ok"), ("b", "ok")]


def test_a_table_that_is_too_long_says_where_the_rest_is() -> None:
    points = [{"batch_size": n} for n in range(MOST_ROWS + 3)]
    made = combinations(build(points, {"latency/forward": ("s", "lower")}, [{"latency/forward": 0.001}] * len(points)))
    assert len(made["data"]) == MOST_ROWS + 1
    assert made["data"][-1][0] == "… 3 more rows in comparison.csv"
    assert {len(row) for row in made["data"]} == {len(made["columns"])}


def test_a_table_of_another_version_has_the_columns_that_it_has() -> None:
    made = layers("path,call,type,macs\n__root__,0,Net,1000\n")
    assert made == {"columns": ["layer", "macs_m", "type"], "data": [["(model)", 0.001, "Net"]]}
    with pytest.raises(KeyError):
        layers("something,else\n1,2\n")


def test_the_tag_names_the_tables_that_there_are(tmp_path: Path) -> None:
    assert tag_of(tmp_path) == {}
    (tmp_path / "tables").mkdir()
    for path in (runs.OPERATORS, runs.LAYERS):
        (tmp_path / path).write_text("{}")
    assert json.loads(tag_of(tmp_path)[runs.TAG]) == [
        {"path": "tables/layers.json", "type": "table"},
        {"path": "tables/operators.json", "type": "table"},
    ]
