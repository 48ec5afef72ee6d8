"""The pictures of one combination: what is drawn adds up, is where it should be, and can be looked at."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from support.nets import HOSTILE, hostile, lenet5, reused, untold
from support.seen import PEAKS, allocations, operators, timed
from sweeprof.errors import UserError
from sweeprof.report.html import Observed, details, pictures
from sweeprof.report.pictures import (
    Blocks,
    icicle,
    layer_points,
    macs_icicle,
    memory_over_time,
    notes,
    roofline,
    thinned_moments,
    time_by_depth,
    time_icicle,
    timed_channels,
    top_operators,
)
from sweeprof.report.stacked_layers import stacked
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Liveness, Training, Weights
from sweeprof.results.observations import Allocations, Moment, Operators

TREES = {"lenet5": lenet5(8), "reused": reused(), "untold": untold(), "hostile": hostile()}
WHOLE: Any = pytest.approx(100.0)


Picture = TypeVar("Picture", Blocks, dict[str, Any])


def drawn(picture: Picture | None) -> Picture:
    assert picture is not None
    return picture


def row(path: str, type: str, depth: int, seconds: float, parent: int | None = 0) -> LayerRow:
    return LayerRow(path, type, depth, 0, 0, 0, 0, 0, 0, parent=parent, forward_s=seconds, forward_self_s=seconds)


def two_layers() -> LayerTable:
    """Three quarters of the time in one, a quarter in the other, none elsewhere."""
    return LayerTable((row(ROOT, "Net", 0, 0.0, None), row("a", "Conv", 1, 3e-3), row("b", "Linear", 1, 1e-3)))


@pytest.mark.parametrize("table", TREES.values(), ids=list(TREES))
@pytest.mark.parametrize("channels", [("forward",), ("forward", "backward")])
def test_every_depth_is_whole_and_has_no_gap(table: LayerTable, channels: tuple[str, ...]) -> None:
    picture = drawn(time_by_depth(timed(table, backward=lambda r: 2e-3), channels))  # type: ignore[arg-type]
    for level in range(picture.levels):
        column = sorted((b for b in picture.blocks if b.level == level), key=lambda b: b.start)
        assert sum(block.size for block in column) == WHOLE
        assert column[0].start == 0
        for one, next_one in itertools.pairwise(column):
            assert one.start + one.size == pytest.approx(next_one.start)


@pytest.mark.parametrize("table", TREES.values(), ids=list(TREES))
def test_what_stands_in_a_block_fills_it(table: LayerTable) -> None:
    blocks = drawn(time_icicle(timed(table))).blocks
    for index, block in enumerate(blocks):
        within = [b for b in blocks if b.parent == index]
        assert block.kind != "parent" or sum(b.size for b in within) == pytest.approx(block.size)
        assert all(b.level == block.level + 1 and b.start >= block.start - 1e-9 for b in within)


def test_a_list_is_the_sum_of_what_it_holds_and_the_rest_of_a_parent_is_other() -> None:
    picture = drawn(time_by_depth(timed(reused())))
    # The model, block twice, four layers in each call of which one list holds two, and the head: each takes 1 ms.
    whole = sum(r.call >= 0 for r in reused().rows)
    sizes = {(b.level, b.label): b.size * whole / 100 for b in picture.blocks if b.kind != "carried"}
    assert sizes[0, "model"] == pytest.approx(whole)
    assert sizes[1, "block"] == pytest.approx(4)
    assert sizes[2, "steps"] == pytest.approx(2)
    assert sizes[3, "1"] == pytest.approx(1)
    assert sizes[1, "other"] == sizes[2, "other"] == pytest.approx(1)


def test_a_shallow_leaf_is_carried_to_the_deepest_level() -> None:
    picture = drawn(time_by_depth(timed(reused())))
    head = next(b for b in picture.blocks if b.label == "head" and b.kind == "leaf")
    carried = [b for b in picture.blocks if b.label == "head" and b.kind == "carried"]
    assert [b.level for b in carried] == [2, 3] == list(range(head.level + 1, picture.levels))
    assert {(b.start, b.size) for b in carried} == {(head.start, head.size)}


def test_a_parent_without_a_timed_child_is_a_leaf() -> None:
    rows = (
        row(ROOT, "Net", 0, 2e-3, None),
        dataclasses.replace(row("a", "Lin", 1, 0), forward_s=None, forward_self_s=None),
    )
    (block,) = drawn(time_by_depth(LayerTable(rows))).blocks
    assert (block.label, block.kind, block.size) == ("model", "leaf", WHOLE)


def test_a_time_below_zero_takes_no_room() -> None:
    """The probes' cost is subtracted, which may leave less than nothing of a layer that does nothing."""
    rows = (row(ROOT, "Net", 0, -1e-6, None), row("a", "Identity", 1, -1e-6), row("b", "Linear", 1, 1e-3))
    labels = {b.label: b.size for b in drawn(time_icicle(LayerTable(rows))).blocks}
    assert labels == {"model": WHOLE, "b": WHOLE}


def test_small_layers_are_drawn_together() -> None:
    layers = [row(f"l{place}", "Linear", 1, 1e-6) for place in range(1000)]
    picture = drawn(time_icicle(LayerTable((row(ROOT, "Net", 0, 0.0, None), *layers))))
    assert [b.label for b in picture.blocks] == ["model", "1000 smaller"]
    assert [b.size for b in picture.blocks] == [WHOLE, WHOLE]
    assert "less than 0.2% of the total are drawn together" in picture.caption
    assert drawn(time_icicle(two_layers())).caption == ""


def test_channels_are_summed_and_what_is_unknown_is_said() -> None:
    table = timed(two_layers(), lambda r: 1e-3, lambda r: 2e-3 if r.path == "a" else None)
    assert timed_channels(table) == ("forward", "backward")
    both = drawn(time_by_depth(table, ("forward", "backward")))
    assert {b.label: b.size for b in both.blocks if b.level == 1} == pytest.approx({"a": 60, "b": 20, "other": 20})
    assert "5.00 ms in total" in both.title
    assert "2 calls have no backward time: its inputs need no gradient" in both.caption
    assert timed_channels(two_layers()) == ("forward",)


def test_macs_of_an_icicle_add_up() -> None:
    picture = drawn(macs_icicle(lenet5(8)))
    leaves = [b for b in picture.blocks if b.kind != "parent"]
    assert sum(b.size for b in leaves) == WHOLE
    assert "3.33 MMAC in total" in picture.title
    conv = next(b for b in leaves if b.text.startswith("feature_extractor.3\n"))
    assert conv.size == pytest.approx(100 * 8 * 240_000 / (8 * 416_520))
    with pytest.raises(ValueError, match="not inclusive"):
        macs_icicle(lenet5().inclusive())
    assert macs_icicle(LayerTable((row(ROOT, "Net", 0, 1.0, None),))) is None


def test_one_type_has_one_colour_in_all_pictures() -> None:
    table = timed(lenet5(), lambda r: 5e-3 if r.type == "Tanh" else 1e-3)
    legends = [
        dict(drawn(picture).legend) for picture in (time_by_depth(table), time_icicle(table), macs_icicle(table))
    ]
    assert legends[0]["Conv2d"] == legends[1]["Conv2d"] == legends[2]["Conv2d"] != legends[0]["Tanh"]


@pytest.mark.parametrize("direction", ["vertical", "horizontal"])
def test_a_user_gets_the_figure_and_the_file(tmp_path: Path, direction: str) -> None:
    path = tmp_path / "stacked.png"
    figure, axes = stacked(two_layers(), channels="forward", direction=direction, path=path, figsize=(6, 4))
    assert tuple(figure.get_size_inches()) == (6, 4)
    assert axes.get_title(loc="left") == "Time by depth: forward, 4.00 ms in total"
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    # What the eye compares are areas: count them.
    areas = {}
    for block in drawn(time_by_depth(two_layers())).blocks:
        areas[block.label] = (pixels == list(bytes.fromhex(block.colour[1:]))).all(axis=1).sum()
    assert areas["a"] / areas["b"] == pytest.approx(3, rel=0.1)
    extent = axes.get_window_extent()
    assert areas["model"] == pytest.approx(extent.width * extent.height / 2, rel=0.1)
    assert areas["a"] + areas["b"] == pytest.approx(areas["model"], rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"channels": "forwrad"}, r"'forwrad' is not a channel\. Did you mean 'forward'"),
        ({"channels": ("forwards",)}, "channels: 'forwards' is not a channel. Did you mean 'forward'"),
        ({"direction": "vertikal"}, "direction: 'vertikal' is not a direction.*Did you mean 'vertical'"),
        ({"channels": ("backward",)}, "channels: .'backward'. were not measured"),
        ({"channels": ()}, "channels: .* were not measured"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        stacked(two_layers(), **arguments)  # type: ignore[arg-type]


def test_the_peak_is_marked_where_it_is() -> None:
    seen = allocations(3000)
    plot = drawn(memory_over_time(seen, estimate_bytes=2**20))
    line, peak, estimate = plot["data"]
    assert peak["x"] == pytest.approx([1.5])
    assert peak["y"] == [1500 / 1024]
    assert max(line["y"]) == 1500 / 1024
    assert line["y"][line["x"].index(peak["x"][0])] == peak["y"][0]
    layout = plot["layout"]
    (note,) = layout["annotations"]
    assert (note["x"], note["y"]) == (peak["x"][0], peak["y"][0])
    assert note["text"] == "peak 1.46 MiB in layer1"
    # Clear of the line of an estimate that is as high.
    assert (note["yanchor"], note["yshift"] > 0) == ("bottom", True)
    assert (estimate["y"], estimate["name"]) == ([1.0, 1.0], "estimate from shapes, 1.00 MiB")
    titles = [layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    assert titles == ["time within the steps (ms)", "allocated (MiB)"]
    assert "are left out" in plot["caption"]
    assert memory_over_time(dataclasses.replace(seen, timeline=())) is None


@given(st.lists(st.integers(-5, 50), min_size=1, max_size=300), st.integers(4, 60))
def test_thinning_keeps_the_extremes(levels: list[int], most: int) -> None:
    moments = [Moment(float(place), level, "a") for place, level in enumerate(levels)]
    kept = thinned_moments(moments, most)
    assert len(kept) <= max(most, 1)
    assert [kept[0], kept[-1]] == [moments[0], moments[-1]]
    assert kept == sorted(kept, key=lambda moment: moment.s)
    assert {min(levels), max(levels)} <= {moment.bytes for moment in kept}


def linear(call: int = 0) -> LayerRow:
    """``nn.Linear(4, 2)`` on 8 samples in 1 µs: 8·4·2 MACs, and 8·4 + 8·2 + 4·2 + 2 floats of 4 bytes."""
    weights = (10, 10, 40) if call == 0 else (0, 0, 0)
    seen: dict[str, Any] = {"input_bytes": 128, "output_bytes": 64, "forward_s": 1e-6, "forward_self_s": 1e-6}
    subtree = Weights(params=10, params_bytes=40)
    return LayerRow("fc", "Linear", 1, call, *weights, 0, 64, flops=144, parent=0, subtree=subtree, **seen)


def test_a_roofline_by_hand() -> None:
    table = LayerTable((row(ROOT, "Net", 0, 1e-6, None), linear(), linear(call=1)))
    first, second = layer_points(table)
    for point in (first, second):
        assert (point.flops, point.bytes, point.seconds) == (144, 128 + 64 + 40, 1e-6)
        assert point.intensity == pytest.approx(144 / 232)
        assert point.flops_per_s == pytest.approx(144e6)
    assert second.name == "fc #2"
    plot = drawn(roofline(table, PEAKS))
    roof, cloud = plot["data"]
    assert PEAKS.ridge == 6.0
    assert plot["title"].endswith("peaks measured at 60.0 GFLOP/s and 10.0 GB/s")
    # Below the ridge the roof is bytes per second times FLOPs per byte, above it the FLOPs per second.
    assert roof["x"][1] == 6.0
    assert roof["y"] == pytest.approx([10 * roof["x"][0], 60.0, 60.0])
    assert (cloud["name"], cloud["x"]) == ("layers, bound by memory", [144 / 232] * 2)
    assert cloud["y"] == pytest.approx([0.144, 0.144])
    assert "2% of the roof" in cloud["text"][0]
    assert "67% of the time" in plot["caption"]


def test_area_is_as_time_and_what_has_layers_within_is_no_point() -> None:
    table = timed(lenet5(8), lambda r: {"Conv2d": 9e-3, "Tanh": 1e-3}.get(r.type, 4e-3))
    points = layer_points(table)
    assert {p.name for p in points} & {"feature_extractor", ROOT} == set()
    plot = drawn(roofline(table, PEAKS))
    sizes = {
        label.partition(":")[0]: size
        for trace in plot["data"]
        if trace["mode"] == "markers"
        for label, size in zip(trace["text"], trace["marker"]["size"], strict=True)
    }
    assert sizes["feature_extractor.0"] / sizes["feature_extractor.1"] == pytest.approx(3)


def test_no_name_stands_on_another() -> None:
    points = layer_points(timed(lenet5(8)))
    (one, *_) = points
    alike = [dataclasses.replace(one, name=f"same{place}") for place in range(5)]
    assert len(notes(alike, (0.1, 100.0), PEAKS)) == 1
    apart = [dataclasses.replace(one, flops=one.flops * 10**place, name=f"n{place}") for place in range(3)]
    assert len(notes(apart, (0.1, 1e6), dataclasses.replace(PEAKS, flops_per_s=1e15))) == 3


def test_operators_are_summed_over_modules_and_shapes() -> None:
    bars = drawn(top_operators(operators(40)))
    assert bars["layout"]["yaxis"]["ticktext"] == ["aten::b", "aten::a"]
    assert [trace["name"] for trace in bars["data"]] == ["forward", "backward"]
    assert [trace["x"] for trace in bars["data"]] == [pytest.approx([80.0, 0.0]), pytest.approx([0.0, 60.0])]
    assert [end["text"] for end in bars["layout"]["annotations"]] == ["57.1%, 20 ×", "42.9%, 40 ×"]
    assert "140 ms in total" in bars["title"]
    cut = drawn(top_operators(operators(40), most=1))
    assert cut["layout"]["yaxis"]["ticktext"] == ["aten::b"]
    assert cut["caption"].startswith("1 further operators take 42.9%.")
    assert top_operators(Operators("inference", (), 1, 0.1)) is None


def test_on_an_accelerator_its_own_seconds_count() -> None:
    host = operators(4)
    rows = [dataclasses.replace(r, device_self_s=1e-3 if r.operator == "aten::a" else None) for r in host.rows]
    bars = drawn(top_operators(dataclasses.replace(host, rows=tuple(rows))))
    assert bars["layout"]["yaxis"]["ticktext"][0] == "aten::a"
    assert "on the accelerator" in bars["title"]


def everything(table: LayerTable | None = None) -> Observed:
    layers = timed(table or lenet5(8), backward=lambda r: 1e-3)
    return Observed(layers, operators(), allocations(), PEAKS, files=("trace.json.gz",))


@pytest.mark.parametrize("table", [hostile(), untold(), reused()], ids=["hostile", "untold", "reused"])
def test_odd_models_have_pictures(table: LayerTable) -> None:
    found = pictures(everything(table))
    assert {"icicle_time", "memory", "operators"} <= {figure["key"] for figure in found}
    for figure in found:
        assert json.loads(json.dumps(figure, allow_nan=False))["key"] == figure["key"]
        # The rest goes through textContent.
        assert "<script" not in json.dumps([figure["data"], figure["layout"]])


def test_only_what_was_seen_is_drawn() -> None:
    keys = "icicle_time icicle_macs roofline memory operators".split()
    assert [figure["key"] for figure in pictures(everything())] == keys
    assert [figure["key"] for figure in pictures(Observed(operators=operators()))] == ["operators"]
    assert pictures(Observed(layers=lenet5())) == []


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_estimate_is_of_the_same_mode(mode: str) -> None:
    layers = dataclasses.replace(lenet5(), liveness=Liveness(111, "a", 0))
    training = Training(0, 0, 0, 0, Liveness(222, "a", 0))
    seen: Allocations = dataclasses.replace(allocations(), mode=mode)  # type: ignore[arg-type]
    assert Observed(layers, None, seen, None, training).estimate_bytes == {"inference": 111, "training": 222}[mode]
    assert Observed(None, None, seen, None, None).estimate_bytes is None


def test_details_are_bounded_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = everything()
    found = details({"one": seen, "plain": Observed(layers=lenet5()), "two": seen}, {"one": {"layers.csv": "x/y.csv"}})
    assert [one["label"] for one in found["combinations"]] == ["one", "two"]
    one = found["combinations"][0]
    assert one["files"] == [{"href": "x/y.csv", "name": "layers.csv", "hint": "every layer, for a spreadsheet"}]
    titles = ["Operators", "Memory by layer", "Live tensors after the last step"]
    assert [table["title"] for table in one["tables"]] == titles
    assert all(len(table["rows"]) == 30 and "30 of 40 rows" in table["note"] for table in one["tables"])
    assert one["tables"][0]["rows"][0][:5] == ["layer0", "aten::b", "forward", ["1", 1.0], ["4.00 ms", 4e-3]]
    assert one["tables"][1]["rows"][0][:2] == ["layer39", ["39.0 KiB", 39 * 1024]]
    notes = [table["note"].split(" The first")[0] for table in one["tables"]]
    assert notes[1].endswith("the values at the peak add up to the peak.")
    assert len(json.dumps(one)) < 120_000
    monkeypatch.setattr("sweeprof.report.html.MOST_CHARACTERS", len(json.dumps(one)) + 10)
    assert details({"one": seen, "two": seen, "three": seen}, {})["left_out"] == ["two", "three"]


def test_names_are_inert_in_what_plotly_reads() -> None:
    (trace,) = icicle(drawn(time_icicle(timed(hostile()))))["data"]
    assert any("&lt;script&gt;" in label for label in trace["labels"])
    assert not any(HOSTILE in text for text in (*trace["labels"], *trace["text"]))


def test_a_report_does_not_import_matplotlib_and_stacked_bars_do_not_import_pyplot() -> None:
    code = (
        "import sys; from sweeprof.report import html, table, terminal; from sweeprof.report import stacked_layers as stacked;"
        "assert not {'matplotlib', 'plotly'} & set(sys.modules), 'heavy imports';"
        "stacked.canvas((4, 3)); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
