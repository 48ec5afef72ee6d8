"""What a step achieves, against figures that can be told by heart."""

from __future__ import annotations

from typing import Any

import pytest

from sweeprof.measuring.timing import Timing
from sweeprof.metrics import latency
from sweeprof.metrics.latency import NOT_TRAINED, forwards_per_s, ops_to_flops, times_realtime
from sweeprof.metrics.metric import Estimate, Metric, Missing
from sweeprof.metrics.select import select
from sweeprof.results.environment import Peaks
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Training

PEAKS = Peaks(1000.0, 100.0, "float32", "cpu", 1)
STEP = Training(40, 80, 70, 160, None)
INFERRED = Timing(4.0, 3, 1, (0.25, 0.5, 1.0))
TRAINED = Timing(
    4.0, 3, 1, (2.0, 1.5, 3.0), phases={"forward": (0.5,) * 3, "backward": (1.0,) * 3, "update": (0.5,) * 3}
)


def layers(flops: int | None = 100, **uncovered: int) -> LayerTable:
    return LayerTable((LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 50, flops=flops),), uncovered)


def value(metric: Metric, *timings: Timing, **further: Any) -> Estimate | Missing:
    known = {"layers": layers(), "training": STEP, "peaks": PEAKS, **further}
    found: Estimate | Missing = metric({"timing": timings, **known})
    return found


def number(metric: Metric, *timings: Timing, **further: Any) -> float:
    found = value(metric, *timings, **further)
    assert isinstance(found, Estimate), found
    return found.value


def test_of_a_forward() -> None:
    assert number(latency.flops_per_s, INFERRED) == pytest.approx(200.0)
    assert number(latency.mfu, INFERRED) == pytest.approx(0.2)
    assert number(latency.flops_per_s, TRAINED) == pytest.approx(200.0)


def test_of_a_training_step() -> None:
    assert number(latency.backward_flops_per_s, TRAINED) == pytest.approx(160.0)
    assert number(latency.flops_per_s_train, TRAINED) == pytest.approx((80 + 160) / 2.0)
    assert number(latency.mfu_train, TRAINED) == pytest.approx(0.12)
    for metric in (latency.backward_flops_per_s, latency.flops_per_s_train, latency.mfu_train):
        assert value(metric, INFERRED) == NOT_TRAINED


def test_a_rate_has_its_rounds_so_that_it_can_be_compared() -> None:
    timings = [Timing(1.0, 0, 1, (seconds,) * 3, round=round) for round, seconds in ((1, 0.25), (3, 1.0))]
    found = value(latency.flops_per_s, *timings)
    assert isinstance(found, Estimate)
    assert found.value == pytest.approx(200.0)
    assert (found.rounds, found.round_numbers) == ((400.0, 100.0), (1, 3))
    assert found.interval is not None


@pytest.mark.parametrize("metric", [latency.flops_per_s, latency.mfu])
def test_what_was_not_counted_is_said(metric: Metric) -> None:
    found = value(metric, INFERRED, layers=layers(**{"aten::odd": 2}))
    assert isinstance(found, Estimate)
    assert [(w.code, w.text) for w in found.warnings] == [("count_incomplete", "no formula for aten::odd ×2")]


@pytest.mark.parametrize("metric", [latency.backward_flops_per_s, latency.flops_per_s_train, latency.mfu_train])
def test_an_estimated_backward_is_said(metric: Metric) -> None:
    found = value(metric, TRAINED, training=Training(40, 80, 70, 160, None, "why"))
    assert isinstance(found, Estimate)
    assert [(w.code, w.text) for w in found.warnings] == [("backward_estimated", "why")]


def test_without_operations_there_is_no_rate() -> None:
    assert value(latency.mfu, INFERRED, layers=layers(None)) == Missing("this backend does not count FLOPs")
    assert value(latency.mfu, INFERRED, layers=layers(0)) == Missing("it has no floating-point operations")


@pytest.mark.parametrize(
    ("metric", "passes"),
    [
        ("rate/flops_per_s", {"analysis", "timing"}),
        ("rate/flops_per_s_train", {"training", "timing"}),
        ("rate/backward_flops_per_s", {"training", "timing"}),
        ("rate/mfu", {"analysis", "timing", "peaks"}),
        ("rate/mfu_train", {"training", "timing", "peaks"}),
        ("rate/realtime_factor", {"timing"}),
    ],
)
def test_no_rate_asks_for_more_than_it_needs(metric: str, passes: set[str]) -> None:
    (found,) = select([metric])
    assert found.metric.passes == passes


def test_real_time_as_moduleprofiler_has_it() -> None:
    """Its realtime_factor(2 ms, 16000, 512), the inverse, and ops_to_flops(100, 16000, 512)."""
    assert times_realtime(0.002, 16000, 512) == pytest.approx(16.0, rel=1e-15)
    assert 1 / times_realtime(0.002, 16000, 512) == pytest.approx(0.0625, rel=1e-15)
    assert ops_to_flops(100, 16000, 512) == 3125
    assert forwards_per_s(16000, 512) == 31.25


def test_frames_that_overlap() -> None:
    assert forwards_per_s(16000, 160, 400) == (16000 - 400) / 160 + 1 == 98.5
    assert forwards_per_s(10, 5, 10) == 1.0


@pytest.mark.parametrize(("rate", "hop", "frame"), [(16000, 0, None), (16000, 512, 0), (100, 512, None), (100, 5, 101)])
def test_frames_that_cannot_be(rate: float, hop: float, frame: float | None) -> None:
    with pytest.raises(ValueError, match="no frames of"):
        forwards_per_s(rate, hop, frame)


def test_the_metric_of_real_time_has_options() -> None:
    timing = Timing(1.0, 0, 1, (0.002,) * 6)
    assert number(latency.realtime_factor, timing) == pytest.approx(16.0)
    options = {"sampling_rate": 8000, "hop": 80, "frame": 200}
    found = latency.realtime_factor({"timing": (timing,)}, **options)
    assert found.value == pytest.approx(1 / (0.002 * ((8000 - 200) / 80 + 1)))
