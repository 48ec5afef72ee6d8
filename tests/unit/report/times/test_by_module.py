"""The views of the package nnprofiler: summary, timings and pool of costs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from support.nets import reused
from support.timed_layers import LEAVES, NO_GRADIENT, mynet, partly, with_times
from sweeprof.errors import UserError
from sweeprof.profiling.layers import Layers
from sweeprof.results.layer_times import ROOT

approx: Any = pytest.approx


def test_the_model() -> None:
    assert (mynet().params, mynet().macs) == (707, 10_304)


def test_every_leaf_has_its_row_and_the_collections_have_no_cost_of_their_own() -> None:
    rows = {row.path: row for row in mynet().rows}
    assert [row.path for row in mynet().rows if row.type == "Linear"] == LEAVES
    assert set(rows) - set(LEAVES) == {ROOT, "linear3", "linear4", "linear5"}
    assert rows["linear3"].forward_self_s == rows["linear5"].forward_self_s == 0
    assert rows["linear4"].forward_self_s == approx(6e-3)  # the sixth call
    assert rows[ROOT].forward_self_s == approx(1e-3)


def test_the_pool() -> None:
    pool = mynet().timepool()
    root = pool["MyNet"]
    assert list(pool) == ["MyNet"]
    assert set(root) == {"forward_cost", "backward_cost", "deepth", "collect_flag", "children"}
    assert root["forward_cost"] == approx(66)  # 1 + 2 + … + 11 ms
    assert root["backward_cost"] == approx(132)
    assert list(root["children"]) == [f"MyNet.linear{number}" for number in range(1, 6)]
    flags = {key: (child["deepth"], child["collect_flag"]) for key, child in root["children"].items()}
    assert flags == {
        "MyNet.linear1": (1, "none"),
        "MyNet.linear2": (1, "none"),
        "MyNet.linear3": (1, "list"),
        "MyNet.linear4": (1, "none"),
        "MyNet.linear5": (1, "dict"),
    }
    held = root["children"]["MyNet.linear3"]
    assert list(held["children"]) == ["MyNet.linear3.0", "MyNet.linear3.1"]
    assert held["children"]["MyNet.linear3.0"] == {
        "forward_cost": approx(4),
        "backward_cost": approx(8),
        "deepth": 2,
        "collect_flag": "none",
        "children": {},
    }
    assert held["forward_cost"] == approx(4 + 5)
    assert root["children"]["MyNet.linear4"]["forward_cost"] == approx(6 + 7 + 8 + 9)


def test_a_collection_of_another_class_is_told_by_what_it_holds() -> None:
    rows = [dataclasses.replace(row, type={"linear3": "Heads"}.get(row.path, row.type)) for row in mynet().rows]
    table = Layers.of(dataclasses.replace(mynet(), rows=tuple(rows)))
    assert table.timepool()["MyNet"]["children"]["MyNet.linear3"]["collect_flag"] == "list"


def test_a_pool_needs_the_model() -> None:
    with pytest.raises(UserError, match="no row of the model itself"):
        Layers.of(mynet().where(lambda row: row.path != ROOT)).timepool()


def test_timings_drop_no_layer() -> None:
    found = partly().timings()
    assert set(found) == {row.path for row in reused().rows}
    head = found["head"]
    assert head["forward"] == approx(10e-3)
    assert (head["backward"], head["reason"]) == (None, NO_GRADIENT)
    assert found["block.unused"]["forward"] is None
    assert "was not called" in found["block.unused"]["reason"]
    assert {name: one["reason"] for name, one in with_times(reused(), training=False).timings().items()} == {
        **dict.fromkeys(found, "the backward was not measured"),
        "block.unused": "it was not called as a Python module in the steps that were timed",
    }


def test_a_reused_layer_has_the_sum_and_every_call() -> None:
    found = mynet().timings()["linear1"]
    assert len(found["calls"]) == 1
    twice = partly().timings()["block.steps.0"]
    assert [call["forward"] for call in twice["calls"]] == approx([3e-3, 7e-3])
    assert twice["forward"] == approx(10e-3)
    assert twice["backward"] == approx(20e-3)


def test_the_summary_has_containers_and_the_root() -> None:
    lines = mynet().layerwise_summary(precision=3).splitlines()
    assert lines[:3] == [
        "MyNet(",
        "  [16, 10] -> [16, 10], 707 params, Forward Time: 66.000ms | Backward Time: 132.000ms",
        "  (linear1): Linear([16, 10] -> [16, 4], 44 params, Forward Time: 2.000ms | Backward Time: 4.000ms)",
    ]
    assert lines[4:6] == [
        "  (linear3): ModuleList(",
        "    12 params, Forward Time: 9.000ms | Backward Time: 18.000ms",
    ]
    assert sum("Forward Time: " in line for line in lines) == len(mynet().rows)
    assert "Forward Time: 66.000000ms" in mynet().layerwise_summary()
    assert mynet().layerwise_summary().count("(") == mynet().layerwise_summary().count(")")


def test_the_summary_says_why_a_time_is_missing() -> None:
    text = partly().layerwise_summary()
    assert (
        f"(head): Linear([2, 4] -> [2, 2], 8 params, Forward Time: 10.000000ms | Backward Time: – ({NO_GRADIENT}))"
        in text
    )
    assert "20 params, 2 calls, Forward Time: 10.000000ms | Backward Time: 20.000000ms" in text
    assert "Forward Time: – | Backward Time: – (it was not called" in text


def test_the_namespace_tree() -> None:
    assert mynet().namespace_tree({"a": {"b": 1.5, "longer": {"c": None}}, "d": "x"}) == (
        "a\n"
        "    b                              ---> 1.5\n"
        "    longer\n"
        "        c                              ---> None\n"
        "d                              ---> x"
    )
    lines = mynet().namespace_tree().splitlines()
    assert lines[:2] == ["MyNet", "    forward_cost                   ---> 66"]
    assert "        MyNet.linear1" in lines
