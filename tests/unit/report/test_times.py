"""Times of layers in every view of a layer table: columns, sums, summaries, and those of the package nnprofiler."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from support.nets import lenet5, reused, untold
from support.timed_layers import LEAVES, NO_GRADIENT, cells_of, mynet, partly, timed_lenet5, with_times
from sweeprof.errors import UserError
from sweeprof.profiling.layers import Layers
from sweeprof.report.layer_formats import embedded, tree
from sweeprof.report.layer_table import by_type, side_by_side, timing_lines, top_layers
from sweeprof.results.layer_times import ROOT, Mode, PhaseSummary, TimingSummary
from sweeprof.results.layers import LayerRow, LayerTable

approx: Any = pytest.approx
NOT_CALLED = "it was not called as a Python module in the steps that were timed"

# Columns; golden/layers has all formats of a table with times, such as the exact seconds by which a page sorts


def test_the_tree_shows_them_scaled() -> None:
    text = tree(timed_lenet5())
    assert cells_of(text, "layer")[1:5] == ["forward", "forward %", "backward", "params"]
    # 1 + 2 + … + 14 ms. The first convolution is the third of fourteen calls, and does 239,904 FLOPs.
    assert cells_of(text, "LeNet5")[1:5] == ["105 ms", "100%", "210 ms", "61.7 k"]
    assert cells_of(text, "│ ├─Conv2d (0)")[1:5] == ["3.00 ms", "2.86%", "6.00 ms", "156"]
    assert "The forward takes 105 ms without probes; the calls cover 100%." in text
    assert "Probes made it take 1.50 times as long" in text


def test_a_time_that_was_not_measured_says_why() -> None:
    inference = with_times(lenet5(), training=False)
    assert "backward" not in tree(inference)
    asked = "No backward time of the model, feature_extractor, feature_extractor.0 and 11 more: the backward was not"
    assert asked in tree(inference, columns=("backward_s",))
    never = "No forward time of the model, block, block.steps.0 and 3 more: no times were measured."
    assert never in tree(reused(), columns=("forward_s",))


# Sums


def test_every_depth_has_latency() -> None:
    steps = (3 + 4 + 7 + 8) * 1e-3
    assert by_type(partly(), depth=3, column="forward_s") == [("Linear", approx(steps), approx(22 / 55))]
    assert by_type(partly(), depth=2, column="forward_s") == [
        ("ModuleList", approx(steps), approx(22 / 55)),
        ("Linear", approx(14e-3), approx(14 / 55)),
    ]


def test_rates_do_not_add_up_but_can_be_ranked() -> None:
    with pytest.raises(UserError, match="'flops_per_s' is a rate"):
        by_type(timed_lenet5(), column="flops_per_s")
    ((row, value, share),) = top_layers(timed_lenet5(), "flops_per_s", 1)
    assert (row.path, value, share) == ("feature_extractor.3", approx((2 * 240_000 + 1_600) / 6e-3), None)
    slowest = [(row.path, value) for row, value, _ in timed_lenet5().top("forward_self_s", 2)]
    assert slowest == [("classifier.2", approx(14e-3)), ("classifier.1", approx(13e-3))]


def test_side_by_side_compares_seconds() -> None:
    assert list(side_by_side(partly(), untold())[0].figures)[4:] == ["forward_self_s", "backward_self_s"]
    root = side_by_side(timed_lenet5(), lenet5())[0].figures
    assert list(root)[4:] == ["forward_s", "forward_self_s", "backward_s", "backward_self_s"]
    assert (root["forward_s"].left, root["forward_s"].right) == (approx(105e-3), None)
    both = side_by_side(timed_lenet5(), timed_lenet5(), columns=("forward_s", "flops_per_s"))
    assert {pair.ratio for row in both for pair in row.figures.values()} <= {1.0, None}


def test_a_page_holds_seconds_and_reasons() -> None:
    data = json.loads(json.dumps(embedded({"timed": partly(), "plain": reused()}), allow_nan=False))
    titles = ["forward", "backward", "MACs", "FLOPs", "params", "activations"]
    assert [column["title"] for column in data["columns"]] == titles
    assert [column["isTime"] for column in data["columns"]] == [True] * 2 + [False] * 4
    timed, plain = data["tables"]
    assert timed["totals"][0] == 0.055  # rounded: 0.055 is what a page needs, and not 0.05500000000000001
    assert [line.split()[0] for line in timed["remarks"]] == ["Times", "The", "The", "No"]
    assert timed["remarks"][-1].endswith(f"{NO_GRADIENT}.")
    assert (plain["step_s"], plain["remarks"]) == (None, [])
    assert set(data["vectors"][plain["vectors"][5]]) == {None}
    forwards = embedded({"one": with_times(reused(), training=False)})
    assert [column["title"] for column in forwards["columns"]][:2] == ["time", "MACs"]


# The summary, and what is said beside the times


def test_totals_sums_and_the_tree() -> None:
    text = timed_lenet5().summary()
    totals = {name: cells_of(text, name)[1] for name in ("forward MACs", "forward time", "backward time")}
    assert list(totals.values()) == ["417 kMAC", "105 ms", "210 ms"]
    # 2 · 852,380 FLOPs in 210 ms, 3 · 852,380 in 315 ms.
    assert cells_of(text, "backward FLOP/s")[1].startswith("8.12 MFLOP/s, if it does twice")
    assert cells_of(text, "both FLOP/s")[1].startswith("8.12 MFLOP/s")
    assert re.findall(r"^depth (\d):$", text, re.MULTILINE) == ["0", "1", "2"]
    assert "  forward: Tanh 34.0 ms, Linear 26.0 ms, Conv2d 18.0 ms" in text
    assert text.count("Times are medians") == 1


def test_depth_top_and_detail() -> None:
    text = timed_lenet5().summary(depth=1, top=1, detailed=False)
    assert re.findall(r"^depth (\d):$", text, re.MULTILINE) == ["0", "1"]
    assert "LeNet5(" not in text
    assert text.count("Times are medians") == 1
    assert "Linear" not in timed_lenet5().summary(depth=2, top=1).split("depth 2:")[1].split("forward:")[0]


def test_modules_can_be_left_out() -> None:
    text = Layers.of(timed_lenet5().where(lambda row: row.type != "Conv2d")).summary()
    assert "Conv2d" not in text
    assert cells_of(text, "forward MACs")[1] == "10.9 kMAC"
    assert cells_of(text, "forward time")[1] == "87.0 ms"  # 105 less 3, 6 and 9
    assert cells_of(Layers.of(lenet5()).summary(), "forward time")[1] == "– (not measured)"
    assert "does not tell which call" in Layers.of(untold()).summary()


FORWARD = PhaseSummary(2e-3, 0.98, 1.05, 1e-4)


def said(mode: Mode, repeats: int, backward: PhaseSummary | None = None) -> list[str]:
    timing = TimingSummary(mode, repeats, FORWARD, backward)
    return timing_lines(dataclasses.replace(LayerTable(timed_lenet5().rows), timing=timing))


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_one_step_has_no_median(mode: Mode) -> None:
    assert said(mode, 1)[0] == f"Times are those of one step of {mode}."
    assert said(mode, 3)[0] == f"Times are medians over 3 steps of {mode}, scaled by one factor so that they add up."


def test_what_lies_outside_is_named_where_a_step_has_a_loss() -> None:
    covered = "the calls cover 98.0%, 100 µs of it outside any module"
    assert f"{covered}. Probes" in said("inference", 3)[1]
    forward, backward = said("training", 3, FORWARD)[1:]
    assert f"{covered}: the loss and whatever else runs there. Probes" in forward
    assert forward.replace("forward", "backward") == backward


def test_a_phase_whose_calls_do_not_add_up_to_it_is_marked() -> None:
    doubt = "the times of the calls add up to 80 % of the backward without probes"
    forward, backward = said("training", 3, dataclasses.replace(FORWARD, doubt=doubt))[1:]
    assert "Warning" not in forward
    assert backward.endswith(f"Warning: {doubt}.")


# As the package nnprofiler has them, of its own example


def test_every_leaf_has_its_row_and_the_collections_have_no_cost_of_their_own() -> None:
    assert (mynet().params, mynet().macs) == (707, 10_304)
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
    assert (root["forward_cost"], root["backward_cost"]) == (approx(66), approx(132))  # 1 + 2 + … + 11 ms
    found = {name: (child["deepth"], child["collect_flag"]) for name, child in root["children"].items()}
    flags = ("none", "none", "list", "none", "dict")
    assert found == {f"MyNet.linear{number}": (1, flag) for number, flag in enumerate(flags, 1)}
    held = root["children"]["MyNet.linear3"]
    assert list(held["children"]) == ["MyNet.linear3.0", "MyNet.linear3.1"]
    leaf = {"forward_cost": approx(4), "backward_cost": approx(8), "deepth": 2, "collect_flag": "none", "children": {}}
    assert held["children"]["MyNet.linear3.0"] == leaf
    assert held["forward_cost"] == approx(4 + 5)
    assert root["children"]["MyNet.linear4"]["forward_cost"] == approx(6 + 7 + 8 + 9)


def test_a_collection_of_another_class_is_told_by_what_it_holds() -> None:
    rows = [dataclasses.replace(row, type={"linear3": "Heads"}.get(row.path, row.type)) for row in mynet().rows]
    table = Layers.of(dataclasses.replace(mynet(), rows=tuple(rows)))
    assert table.timepool()["MyNet"]["children"]["MyNet.linear3"]["collect_flag"] == "list"
    with pytest.raises(UserError, match="no row of the model itself"):
        Layers.of(mynet().where(lambda row: row.path != ROOT)).timepool()


def test_timings_drop_no_layer() -> None:
    found = partly().timings()
    assert set(found) == {row.path for row in reused().rows}
    head = found["head"]
    assert (head["forward"], head["backward"], head["reason"]) == (approx(10e-3), None, NO_GRADIENT)
    assert (found["block.unused"]["forward"], found["block.unused"]["reason"]) == (None, NOT_CALLED)
    inference = with_times(reused(), training=False).timings()
    reasons = {**dict.fromkeys(found, "the backward was not measured"), "block.unused": NOT_CALLED}
    assert {name: one["reason"] for name, one in inference.items()} == reasons


def test_a_reused_layer_has_the_sum_and_every_call() -> None:
    assert len(mynet().timings()["linear1"]["calls"]) == 1
    twice = partly().timings()["block.steps.0"]
    assert [call["forward"] for call in twice["calls"]] == approx([3e-3, 7e-3])
    assert (twice["forward"], twice["backward"]) == (approx(10e-3), approx(20e-3))
    rows = [LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 0, forward_s=6.0)]
    rows += [
        LayerRow("a", "A", call + 1, call, 0, 0, 0, 0, 0, parent=call, forward_s=5.0 - 2 * call) for call in (0, 1)
    ]
    assert Layers(tuple(rows)).timings()["a"]["forward"] == 5.0  # the second call is within the first


def test_the_summary_has_containers_and_the_root() -> None:
    lines = mynet().layerwise_summary(precision=3).splitlines()
    assert lines[:3] == [
        "MyNet(",
        "  [16, 10] -> [16, 10], 707 params, Forward Time: 66.000ms | Backward Time: 132.000ms",
        "  (linear1): Linear([16, 10] -> [16, 4], 44 params, Forward Time: 2.000ms | Backward Time: 4.000ms)",
    ]
    held = ["  (linear3): ModuleList(", "    12 params, Forward Time: 9.000ms | Backward Time: 18.000ms"]
    assert lines[4:6] == held
    assert sum("Forward Time: " in line for line in lines) == len(mynet().rows)
    assert "Forward Time: 66.000000ms" in mynet().layerwise_summary()
    assert mynet().layerwise_summary().count("(") == mynet().layerwise_summary().count(")")


def test_the_summary_says_why_a_time_is_missing() -> None:
    text = partly().layerwise_summary()
    head = "(head): Linear([2, 4] -> [2, 2], 8 params, Forward Time: 10.000000ms | Backward Time: "
    assert f"{head}– ({NO_GRADIENT}))" in text
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
