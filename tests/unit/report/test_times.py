"""Views on layer times: those of the seeds, and the time columns of every table."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from typing import Any

import pandas
import pytest
import torch
from torch import nn

from support.nets import lenet5, reused
from support.timed_layers import LEAVES, NO_GRADIENT, MyNet, cells_of, partly, timed_lenet5, with_times
from sweeprof.errors import UserError
from sweeprof.profiling.layers import Layers
from sweeprof.profiling.profiler import Profiler
from sweeprof.report.layer_formats import embedded, to_html, tree
from sweeprof.report.layer_table import by_type, side_by_side, summary_lines, top_layers
from sweeprof.results.layer_times import ROOT, CallTime, LayerTimes, Mode, PhaseTimes
from sweeprof.results.record import Protocol

approx: Any = pytest.approx


class TestColumns:
    def test_the_tree_shows_them_scaled(self) -> None:
        text = tree(timed_lenet5())
        assert cells_of(text, "layer")[-4:] == ["forward", "forward %", "FLOP/s", "backward"]
        assert cells_of(text, "LeNet5")[-4:] == ["105 ms", "100 %", "8.12 MFLOP/s", "210 ms"]
        # The first convolution is the third of fourteen calls, 3 of 105 ms, and does 239,904 FLOPs.
        conv = next(row for row in lenet5().rows if row.path == "feature_extractor.0")
        assert conv.flops == 239_904
        assert cells_of(text, "│ ├─Conv2d (0)")[-4:] == ["3.00 ms", "2.9 %", "80 MFLOP/s", "6.00 ms"]
        assert cells_of(text, "forward ") == ["forward", "105 ms"]
        assert "Times are medians over 3 steps of training, scaled by one factor so that they add up." in text
        assert "The forward takes 105 ms without probes; the calls cover 100 %." in text
        assert "Probes made it take 1.50 times as long" in text

    def test_the_annotated_tree_is_that_of_seed_002(self) -> None:
        text = tree(timed_lenet5(), style="repr", columns=None)
        assert text.splitlines()[1].endswith(
            "57.04 KiB activations, 105 ms forward, 100 % forward, 8.12 MFLOP/s, 210 ms backward"
        )
        assert "(0): Conv2d(156 params, 0.253 % params, 117.6 KMACs, 28.234 % MACs, 239.9 KFLOPs" in text

    def test_a_table_without_times_has_no_such_columns(self) -> None:
        for text in (
            tree(lenet5()),
            tree(lenet5(), style="repr"),
            to_html(lenet5()),
            Layers.of(lenet5()).to_markdown(),
        ):
            assert "forward" not in text
            assert "FLOP/s" not in text
        assert [column["title"] for column in embedded({"a": lenet5()})["columns"]] == [
            "MACs",
            "FLOPs",
            "params",
            "activations",
        ]
        assert len(summary_lines(lenet5())) == 4
        assert set(side_by_side(lenet5(), lenet5())[0].figures) == {"params", "macs", "flops", "act_bytes"}

    def test_inference_has_no_backward_columns(self) -> None:
        text = tree(with_times(lenet5(), training=False))
        assert "backward" not in text
        asked = tree(with_times(lenet5(), training=False), columns=("backward_s",))
        assert (
            "No backward time of the model, feature_extractor, feature_extractor.0 and 11 more: the backward was not"
            in asked
        )
        assert "No forward time of the model, block, block.steps.0 and 3 more: no times were measured." in tree(
            reused(), columns=("forward_s",)
        )

    def test_a_missing_time_says_why(self) -> None:
        note = f"No backward time of block.frozen, head: {NO_GRADIENT}."
        assert note in tree(partly())
        assert note in tree(partly(), style="repr")
        assert note in partly().to_markdown()
        assert "– forward" not in tree(partly(), style="repr")  # a layer that is never called says so
        assert r"\par\noindent\footnotesize No backward time of block.frozen, head" in partly().to_latex()
        html = partly().to_html()
        assert html.count(f'title="{NO_GRADIENT}">–</td>') == 3  # calls
        assert (
            html.count('title="it was not called as a Python module in the steps that were timed">–</td>') == 4
        )  # columns of times

    def test_html_sorts_by_exact_seconds(self) -> None:
        html = timed_lenet5().to_html(inclusive=True)
        headers = re.findall(r'class="sort">([^<]*)</button>', html)
        assert headers[-6:] == ["forward", "forward self", "forward %", "FLOP/s", "backward", "backward self"]
        row = next(row for row in timed_lenet5().rows if row.path == "feature_extractor.0")
        assert f'data-value="{row.forward_s}">3.00 ms</td>' in html
        assert "The forward takes 105 ms without probes" in html
        own = re.findall(r'class="sort">([^<]*)</button>', timed_lenet5().to_html())
        assert own[-4:] == ["forward self", "forward %", "FLOP/s", "backward self"]

    def test_own_figures_go_with_own_seconds(self) -> None:
        lines = timed_lenet5().to_markdown().splitlines()
        assert lines[0].endswith("| forward self | forward % | FLOP/s | backward self |")
        assert lines[2].startswith("| (model) |")
        assert lines[2].endswith("| 1.00 ms | 1 % | 10 KFLOP/s | 2.00 ms |")
        assert (
            timed_lenet5()
            .to_markdown(inclusive=True)
            .splitlines()[0]
            .endswith("| forward | forward % | FLOP/s | backward |")
        )
        assert r"& forward self & forward \% & backward self \\" in timed_lenet5().to_latex()

    def test_latex_knows_micro(self) -> None:
        only = Layers.of(reused().where(lambda row: row.path == ROOT).with_times(_tiny()))
        assert r"1.50 $\mu$s" in only.to_latex()

    def test_csv_and_parquet_have_seconds(self) -> None:
        rows = list(csv.DictReader(io.StringIO(partly().to_csv(inclusive=True))))
        root, head = rows[0], next(row for row in rows if row["path"] == "head")
        assert float(root["forward_s"]) == approx(55e-3)
        assert float(root["forward_share"]) == 1
        assert float(root["flops_per_s"]) == approx((reused().flops or 0) / 55e-3)
        assert (head["backward_s"], head["time_reason"]) == ("", NO_GRADIENT)
        pytest.importorskip("pyarrow")
        frame = pandas.read_parquet(io.BytesIO(partly().to_parquet()))
        empty = pandas.read_parquet(io.BytesIO(Layers.of(reused()).to_parquet()))
        assert (frame.dtypes == empty.dtypes).all()
        assert frame["forward_s"].dtype == "float64"
        assert frame["forward_self_s"].sum() == approx(55e-3)


def _tiny() -> LayerTimes:
    return LayerTimes("inference", (CallTime(ROOT, "Net", 0, None, (1.5e-6,)),), 0, PhaseTimes((1.5e-6,), (1.5e-6,)))


class TestSums:
    def test_every_depth_has_latency_the_innermost_too(self) -> None:
        innermost = max(row.depth for row in reused().rows)
        found = by_type(partly(), depth=innermost, column="forward_s")
        assert found == [("Linear", approx((3 + 4 + 7 + 8) * 1e-3), approx(22 / 55))]
        assert by_type(partly(), depth=1, column="forward_s")[0] == ("Block", approx(44e-3), approx(44 / 55))
        assert by_type(partly(), depth=2, column="forward_s") == [
            ("ModuleList", approx(22e-3), approx(22 / 55)),
            ("Linear", approx(14e-3), approx(14 / 55)),
        ]

    def test_without_a_depth_own_seconds_make_one(self) -> None:
        found = by_type(timed_lenet5(), column="forward_s")
        assert sum(share or 0 for _, _, share in found) == approx(1)
        assert found == by_type(timed_lenet5(), column="forward_self_s")

    def test_lines(self) -> None:
        lines = summary_lines(timed_lenet5(), depth=2)
        assert lines[4:] == [
            "forward: Tanh 34.0 ms, Linear 26.0 ms, Conv2d 18.0 ms",
            "backward: Tanh 68.0 ms, Linear 52.0 ms, Conv2d 36.0 ms",
        ]
        assert summary_lines(partly(), depth=3)[5] == "backward: Linear 44.0 ms"
        assert summary_lines(partly(), depth=None)[4].startswith("forward self: Linear 46.0 ms")

    def test_rates_do_not_add_up_but_can_be_ranked(self) -> None:
        with pytest.raises(UserError, match="'flops_per_s' is a rate"):
            by_type(timed_lenet5(), column="flops_per_s")
        ((row, value, share),) = top_layers(timed_lenet5(), "flops_per_s", 1)
        assert (row.path, value, share) == ("feature_extractor.3", approx((2 * 240_000 + 1_600) / 6e-3), None)

    def test_the_slowest(self) -> None:
        found = timed_lenet5().top("forward_self_s", 2)
        assert [(row.path, value) for row, value, _ in found] == [
            ("classifier.2", approx(14e-3)),
            ("classifier.1", approx(13e-3)),
        ]


class TestTogether:
    def test_side_by_side_compares_seconds(self) -> None:
        assert list(side_by_side(timed_lenet5(), lenet5())[0].figures)[4:] == ["forward_self_s", "backward_self_s"]
        root = side_by_side(timed_lenet5().inclusive(), lenet5().inclusive())[0].figures
        assert list(root)[4:] == ["forward_s", "forward_self_s", "backward_s", "backward_self_s"]
        assert (root["forward_s"].left, root["forward_s"].right) == (approx(105e-3), None)
        both = side_by_side(timed_lenet5(), timed_lenet5(), columns=("forward_s", "flops_per_s"))
        assert {pair.ratio for row in both for pair in row.figures.values()} <= {1.0, None}

    def test_a_page_holds_seconds_and_reasons(self) -> None:
        data = json.loads(json.dumps(embedded({"timed": partly(), "plain": reused()}), allow_nan=False))
        assert [column["title"] for column in data["columns"]][4:] == [
            *("forward", "forward self", "FLOP/s"),
            *("backward", "backward self"),
        ]
        assert [column["isTime"] for column in data["columns"]] == [False] * 4 + [True] * 5
        timed, plain = data["tables"]
        forward = data["vectors"][timed["vectors"][9]]
        assert forward[0] == 0.055  # rounded: 0.055 is what a page needs, and not 0.05500000000000001
        assert [line.split()[0] for line in timed["timing"]] == ["Times", "The", "The"]
        assert (plain["reasons"], plain["timing"]) == (None, [])
        assert set(data["vectors"][plain["vectors"][9]]) == {None}
        reasons = {data["strings"][place] for place in data["vectors"][timed["reasons"]] if place is not None}
        assert reasons == {NO_GRADIENT, "it was not called as a Python module in the steps that were timed"}


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_real_times_go_through_every_view(mode: Mode) -> None:
    protocol = Protocol(min_s=0.0, min_samples=4, warmup_s=0.0)
    profiler = Profiler(MyNet(), inputs=torch.rand(16, 10), mode=mode, protocol=protocol)
    assert profiler.layers.timing is None
    times = profiler.seen("layer_times")
    layers = profiler.layers
    assert isinstance(times, LayerTimes)
    assert layers.timing is not None
    assert layers.timing.repeats == times.repeats - times.warmup
    assert layers.timing.unplaced == ()
    assert all(row.forward_s is not None and row.forward_s > 0 for row in layers.rows)
    assert all((row.backward_s is not None) == (mode == "training") for row in layers.rows)
    root = next(row for row in layers.rows if row.path == ROOT)
    assert sum(row.forward_self_s or 0 for row in layers.rows) == approx(root.forward_s)
    assert set(LEAVES) < set(layers.timings())
    assert layers.timepool()["MyNet"]["forward_cost"] == approx(1e3 * (root.forward_s or 0))
    for text in (
        layers.tree(),
        layers.summary(),
        layers.to_markdown(),
        layers.to_latex(),
        layers.to_html(inclusive=True),
    ):
        assert "forward" in text
    assert len(times.to_frame(aggr=False)) == times.repeats * len(times.calls)


class SlowAtFirst(nn.Module):
    """Sleeps 50 ms in its first ten calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls <= 10:
            time.sleep(0.05)
        return x + 1


def test_slow_first_steps_of_a_real_model_do_not_move_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five repeats, each a step without probes and one with them."""
    monkeypatch.setattr("sweeprof.measuring.layer_timing.MOST_ATTEMPTS", 1)  # more where a busy machine disturbs
    protocol = Protocol(warmup_steps=5, warmup_s=0.0, min_samples=5, min_s=0.0)
    times = Profiler(nn.Sequential(SlowAtFirst()), inputs=torch.ones(2), protocol=protocol).seen("layer_times")
    assert isinstance(times, LayerTimes)
    assert (times.repeats, times.warmup) == (10, 5)
    frame = times.to_frame(aggr=False)
    raw = frame[frame["path"] == "0"]
    counted, everything = (
        [line["forward_mean_s"] for line in of.to_frame().to_dict("records") if line["path"] == "0"]
        for of in (times, times.with_warmup(0))
    )
    assert raw["warmup"].tolist() == [True] * 5 + [False] * 5
    assert min(raw[raw["warmup"]]["forward_s"]) > 0.045
    assert counted == [approx(raw[~raw["warmup"]]["forward_s"].mean())]
    assert counted[0] < everything[0] / 2
