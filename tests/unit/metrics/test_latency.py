"""The time of a step, of its phases and of a generation, and their rates, from timings whose every figure can be told by heart."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sweeprof.measuring.inputs import Workload
from sweeprof.measuring.timing import InterleavedRun, Timing
from sweeprof.metrics import generation, latency
from sweeprof.metrics.latency import NOT_TRAINED, forwards_per_s, ops_to_flops, over_rounds, times_realtime
from sweeprof.metrics.metric import Estimate, Metric, Missing, builtin_metrics
from sweeprof.metrics.select import metric_set, select
from sweeprof.passes.quality import Quality
from sweeprof.results.environment import Peaks
from sweeprof.results.layer_times import ROOT
from sweeprof.results.layers import LayerRow, LayerTable, Training
from sweeprof.results.observations import Generation, TokenTimes
from sweeprof.results.record import Warning

FORWARD, BACKWARD, UPDATE = (1.0, 3.0, 2.0), (4.0, 6.0, 5.0), (0.5, 0.25, 0.25)
WHOLE = tuple(map(sum, zip(FORWARD, BACKWARD, UPDATE, strict=True)))
WORK = Workload("tokens", 24)
TRAINED = Timing(
    *(100.0, 3, 1, WHOLE),
    phases={"forward": FORWARD, "backward": BACKWARD, "update": UPDATE},
    compiles=True,
    workload=WORK,
)
INFERRED = Timing(4.0, 3, 1, (0.5, 0.25, 0.75), workload=WORK)
PEAKS = Peaks(1000.0, 100.0, "float32", "cpu", 1)
STEP = Training(40, 80, 70, 160, None)
SHORT_STEP = Timing(
    4.0, 3, 1, (2.0, 1.5, 3.0), phases={"forward": (0.5,) * 3, "backward": (1.0,) * 3, "update": (0.5,) * 3}
)
MOVED = Timing(4.0, 3, 1, (0.5, 0.25, 0.75), transfers={"h2d": (0.125, 0.0625, 0.125), "d2h": (2.0, 1.0, 1.0)})
ON_DEVICE = Timing(4.0, 3, 1, (0.5, 0.25, 0.75), device_s=(0.125, 0.0625, 0.25))
TRACED = Timing(4.0, 3, 1, (0.5,), compiles=True, trace_s=1.5)
IN_PART = Timing(1.0, 3, 1, (3.0,), phases={"forward": (1.0,), "backward": (2.0,)}, compiles=True)


TOKENS = ((4.0, 2.0, 1.0, 1.5), (6.0, 3.0, 0.5, 0.25), (5.0, 2.5, 2.0, 1.0))
"""To the first token, the first gap, and two further gaps."""
TIMES = TokenTimes(8, 4, TOKENS, 640)
GENERATED = Timing(100.0, 3, 1, (9.0, 10.0, 11.0), generation=TIMES)
COUNTS = Generation(2, 1000, 2000, 300, 600, 9, 500, 100)


def layers(flops: int | None = 100, **uncovered: int) -> LayerTable:
    return LayerTable((LayerRow(ROOT, "Net", 0, 0, 0, 0, 0, 0, 50, flops=flops),), uncovered)


def value(metric: Metric, *timings: Timing, **further: Any) -> Estimate | Missing:
    known = {"layers": layers(), "training": STEP, "peaks": PEAKS, "generation": COUNTS, "batch_size": 2, **further}
    found: Estimate | Missing = metric({"timing": timings, **known})
    return found


def estimate(metric: Metric, *timings: Timing, **further: Any) -> Estimate:
    found = value(metric, *timings, **further)
    assert isinstance(found, Estimate), found
    return found


def number(metric: Metric, *timings: Timing, **further: Any) -> float:
    return estimate(metric, *timings, **further).value


@pytest.mark.parametrize(
    ("timing", "metric", "seconds"),
    [
        (INFERRED, latency.forward, 0.5),
        (INFERRED, latency.first_step, 4.0),
        (INFERRED, latency.throughput, 8.0),
        (TRAINED, latency.forward, 2.0),
        (TRAINED, latency.per_sample, 0.5),
        (TRAINED, latency.backward, 5.0),
        (TRAINED, latency.update, 0.25),
        (TRAINED, latency.iteration, 7.25),
        (TRAINED, latency.throughput, 4 / 7.25),
        (TRAINED, latency.compile, 100.0 - 7.25),
        (TRACED, latency.trace, 1.5),
        (TRACED, latency.compile, 4.0 - 1.5 - 0.5),  # tracing is no part of compiling
        (IN_PART, latency.backward, 2.0),
        (MOVED, latency.h2d, 0.125),
        (MOVED, latency.d2h, 1.0),
        (MOVED, latency.total, 0.125 + 0.5 + 1.0),
        (ON_DEVICE, latency.device, 0.125),
        (ON_DEVICE, latency.device_share, 0.25),
        (INFERRED, latency.flops_per_s, 200.0),
        (INFERRED, latency.mfu, 0.2),
        (SHORT_STEP, latency.flops_per_s, 200.0),
        (SHORT_STEP, latency.backward_flops_per_s, 160.0),
        (SHORT_STEP, latency.flops_per_s_train, (80 + 160) / 2.0),
        (SHORT_STEP, latency.mfu_train, 0.12),
        (GENERATED, generation.time_to_first_token, 5.0),
        (GENERATED, generation.first_gap, 2.5),
        (GENERATED, generation.time_per_token, statistics.median([1.25, 0.375, 1.5])),
        (GENERATED, generation.latency, 10.0),
        (GENERATED, generation.prefill_throughput, 4 * 8 / 5.0),
        (GENERATED, generation.decode_throughput, 4 * 3 / 4.5),  # three tokens of each sequence in 4.5, 3.75 and 5.5 s
        (GENERATED, generation.mfu_prefill, 2000 / 5.0 / 1000),
        (GENERATED, generation.mbu_decode, (500 + 100) / 1.25 / 100),
        (GENERATED, generation.macs_prefill, 1000),
        (GENERATED, generation.macs_decode, 150),
        (GENERATED, generation.kv_cache_bytes, 640),
    ],
)
def test_figures_by_hand(timing: Timing, metric: Metric, seconds: float) -> None:
    assert number(metric, timing, batch_size=4) == pytest.approx(seconds)


NO_TRACE = Missing("this backend does not trace a step apart from running it")
ON_HOST = Missing("the model runs on the host: nothing is transferred")
ONE_PROGRAM = Missing("the step is one program, and what its update adds is less than its time varies")


@pytest.mark.parametrize(
    ("metric", "timings", "reason"),
    [
        (latency.backward, [INFERRED], NOT_TRAINED),
        (latency.update, [INFERRED], NOT_TRAINED),
        (latency.backward_flops_per_s, [INFERRED], NOT_TRAINED),
        (latency.compile, [INFERRED], Missing("this backend does not compile")),
        (latency.compile, [replace(TRACED, first_step_s=0.5)], Missing("a first step took no longer than later ones")),
        (latency.trace, [INFERRED], NO_TRACE),
        (latency.trace, [TRACED, INFERRED], NO_TRACE),
        (latency.update, [IN_PART], ONE_PROGRAM),
        (latency.update, [TRAINED, IN_PART], ONE_PROGRAM),
        (latency.h2d, [INFERRED], ON_HOST),
        (latency.total, [INFERRED], ON_HOST),
        (latency.device, [ON_DEVICE, replace(INFERRED, device_reason="it waits")], Missing("it waits")),
        (latency.device_share, [INFERRED], Missing("an earlier version of sweeprof has not measured it")),
    ],
)
def test_reasons(metric: Metric, timings: list[Timing], reason: Missing) -> None:
    assert value(metric, *timings) == reason


@pytest.mark.parametrize("metric", [latency.h2d, latency.d2h, latency.total])
def test_nothing_is_told_of_the_transfers_of_training(metric: Metric) -> None:
    found = value(metric, TRAINED)
    assert isinstance(found, Missing)
    assert found.reason.startswith("mode=training")


@pytest.mark.parametrize(
    ("flops", "reason"), [(None, "this backend does not count FLOPs"), (0, "it has no floating-point operations")]
)
def test_without_operations_there_is_no_rate(flops: int | None, reason: str) -> None:
    assert value(latency.mfu, INFERRED, layers=layers(flops)) == Missing(reason)


def test_evaluating() -> None:
    quality = Quality.of(np.eye(2, dtype=np.float32), None)
    assert isinstance(latency.evaluate({"quality": quality}), Missing)


def test_warnings_come_along() -> None:
    warned = Timing(1.0, 0, 1, (1.0,), warnings=(Warning("drift", "text", "advice"),))
    assert isinstance(value(latency.iteration, warned), Missing)
    assert [warning.code for warning in estimate(latency.forward, warned).warnings] == ["drift"]


def test_the_detail_is_that_of_the_samples() -> None:
    samples = tuple(float(i) for i in range(1, 41))
    detail = over_rounds((Timing(1.0, 0, 1, samples),), lambda seconds: seconds).detail
    assert (detail["n"], detail["mean"], detail["min"], detail["max"]) == (40, 20.5, 1.0, 40.0)
    assert detail["std"] == pytest.approx(np.std(samples, ddof=1))
    assert detail["p90"] == pytest.approx(np.percentile(samples, 90))
    assert over_rounds((Timing(1.0, 0, 1, (1.0,)),), lambda seconds: seconds).detail["std"] == "n<2"


@pytest.mark.parametrize(("metric", "percentile"), [(latency.p90, 90), (latency.p95, 95), (latency.p99, 99)])
def test_percentiles_are_those_of_single_steps(metric: Metric, percentile: int) -> None:
    """Of a training step they are those of the whole step; over rounds the geometric mean, as of medians."""
    random = np.random.default_rng(0)
    rounds = [Timing(1.0, 3, 1, tuple(random.lognormal(size=300)), round=number) for number in range(3)]
    expected = [float(np.percentile(round.samples, percentile)) for round in rounds]
    found = estimate(metric, *rounds)
    assert found.value == pytest.approx(statistics.geometric_mean(expected))
    assert found.rounds == pytest.approx(expected)
    trained = Timing(1.0, 3, 1, rounds[0].samples, phases={"forward": (1.0,) * 300})
    assert number(metric, trained) == pytest.approx(expected[0])


def test_samples_of_several_steps_have_no_percentile_of_a_step() -> None:
    averaged = Timing(1.0, 3, 56, (1.0,) * 300)
    reason = "a sample is the mean of 56 steps; protocol.sample_s=0 times every step by itself"
    assert value(latency.p99, averaged) == Missing(reason)
    few = Timing(1.0, 3, 1, (1.0,) * 298)
    assert value(latency.p99, few) == Missing("n<299: a round has 298 samples; raise protocol.min_samples")
    assert number(latency.p95, few) == 1


def test_the_detail_says_how_many_steps_a_sample_averages() -> None:
    samples = (1.0, 2.0, 3.0)
    moved = Timing(1.0, 3, 56, samples, transfers={"h2d": samples, "d2h": samples})
    for metric in (latency.forward, latency.throughput):
        assert estimate(metric, moved, batch_size=2).detail["steps per sample"] == 56
        assert "steps per sample" not in estimate(metric, INFERRED, batch_size=2).detail
    assert "steps per sample" not in estimate(latency.h2d, moved).detail


def test_the_mean_of_a_rate_is_all_the_work_over_all_the_time() -> None:
    """pytorch-benchmark averaged the rates of single batches, which is more."""
    found = estimate(latency.throughput, Timing(1.0, 0, 1, (1.0, 3.0)), batch_size=1)
    assert found.detail["mean"] == 2 / (1.0 + 3.0)


def test_the_set_of_times_has_a_value_for_every_model() -> None:
    names = [s.metric.info.name for s in select(metric_set("latency"))]
    names.remove("latency/device")  # of a model on an accelerator
    for name in names:
        metric = builtin_metrics()[name]
        for timing in (INFERRED, TRAINED):
            assert isinstance(metric({"timing": (timing,), "batch_size": 1}), Estimate), name


def interleaved(
    samples: tuple[float, ...], turns: tuple[int, ...], baseline: Timing | None = None, **more: Any
) -> Timing:
    return Timing(1.0, 0, 1, samples, interleaved_run=InterleavedRun("d", ("cx",), turns), baseline=baseline, **more)


def test_an_interleaved_run_gives_the_median_of_the_pairs_times_the_baselines_median() -> None:
    """Pairs are of one turn, whatever else was taken; the ratio of the medians (0.5) is another one."""
    base = interleaved((2.0, 4.0, 8.0), (0, 1, 2))
    own = interleaved((3.0, 2.0, 8.0, 1.0), (0, 1, 2, 3), base)  # 3/2, 2/4, 8/8
    found = estimate(latency.forward, own)
    assert found.paired == (4.0 * 1.0,)
    assert found.rounds == (2.5,)
    rate = estimate(latency.throughput, own, batch_size=8)
    assert rate.paired == (8 / 4.0,)


def test_pairs_of_a_phase_are_the_phases() -> None:
    base = interleaved((9.0, 9.0), (0, 1), phases={"forward": (4.0, 8.0)})
    own = interleaved((9.0, 9.0), (0, 1), base, phases={"forward": (1.0, 2.0)})
    assert estimate(latency.forward, own).paired == (6.0 * 0.25,)


def test_a_round_without_a_pair_keeps_its_own_median() -> None:
    base, alone = interleaved((2.0,), (0,)), interleaved((7.0,), (0,))
    paired, unpaired = interleaved((3.0,), (0,), base), interleaved((5.0,), (1,), base)
    assert estimate(latency.forward, paired, unpaired, alone).paired == (3.0, 5.0, 7.0)
    assert estimate(latency.forward, alone).paired == ()


# What a step achieves, against figures that can be told by heart


@pytest.mark.parametrize("metric", [latency.flops_per_s, latency.mfu])
def test_what_was_not_counted_is_said(metric: Metric) -> None:
    found = estimate(metric, INFERRED, layers=layers(**{"aten::odd": 2}))
    assert [(w.code, w.text) for w in found.warnings] == [("count_incomplete", "no formula for aten::odd ×2")]


@pytest.mark.parametrize("metric", [latency.backward_flops_per_s, latency.flops_per_s_train, latency.mfu_train])
def test_an_estimated_backward_is_said(metric: Metric) -> None:
    found = estimate(metric, SHORT_STEP, training=Training(40, 80, 70, 160, None, "why"))
    assert [(w.code, w.text) for w in found.warnings] == [("backward_estimated", "why")]


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


# Generations


def test_the_rate_counts_all_sequences_that_are_returned() -> None:
    of_three = replace(GENERATED, generation=replace(TIMES, sequences_per_prompt=3))
    assert number(generation.decode_throughput, of_three) == pytest.approx(2 * 3 * 3 / 4.5)


def test_an_incomplete_count_is_a_lower_bound() -> None:
    uncovered = replace(COUNTS, uncovered={"mine": 1})
    assert estimate(generation.macs_decode, GENERATED, generation=uncovered).estimator == "lower bound"


def test_the_detail_is_that_of_all_gaps_after_the_first() -> None:
    found = estimate(generation.time_per_token, GENERATED)
    gaps = [1.0, 1.5, 0.5, 0.25, 2.0, 1.0]
    assert (found.detail["n"], found.detail["min"], found.detail["max"]) == (6, 0.25, 2.0)
    assert found.detail["mean"] == pytest.approx(statistics.mean(gaps))
    assert found.detail["std"] == pytest.approx(statistics.stdev(gaps))
    assert (found.detail["p90"], found.detail["p99"]) == ("n<29", "n<299")


def test_percentiles_need_enough_gaps() -> None:
    gaps = [float(n) for n in range(1, 101)]
    timing = Timing(1.0, 0, 1, (1.0,), generation=TokenTimes(8, 102, ((9.0, 77.0, *gaps),)))
    assert number(generation.time_per_token_p90, timing) == pytest.approx(90.1)
    assert number(generation.time_per_token_p95, timing) == pytest.approx(95.05)
    found = value(generation.time_per_token_p99, timing)
    assert isinstance(found, Missing)
    assert found.reason.startswith("n<299: a round has 100 gaps;")
    assert estimate(generation.time_per_token, timing).detail["p90"] == pytest.approx(90.1)


def test_a_sample_of_several_generations() -> None:
    timing = Timing(1.0, 0, 2, (8.0,), generation=TokenTimes(8, 4, TOKENS[:2]))
    assert number(generation.time_to_first_token, timing) == pytest.approx(5.0)
    assert number(generation.time_per_token, timing) == pytest.approx(statistics.median([1.0, 1.5, 0.5, 0.25]))
    assert number(generation.decode_throughput, timing) == pytest.approx(2 * 3 / 4.125)


def test_pairs_of_generations_are_of_the_same_times() -> None:
    base = interleaved(GENERATED.samples, (0, 1, 2), generation=TIMES)
    twice = replace(TIMES, seconds=tuple(tuple(2 * s for s in tokens) for tokens in TOKENS))
    own = interleaved(GENERATED.samples, (0, 1, 2), base, generation=twice)
    assert estimate(generation.time_to_first_token, own).paired == pytest.approx((10.0,))


@pytest.mark.parametrize("name", [n for n in metric_set("generation") if str(n).startswith("generation/")])
def test_another_mode_has_none(name: str) -> None:
    assert value(builtin_metrics()[name], INFERRED) == generation.NOT_GENERATED


@pytest.mark.parametrize(
    "metric",
    [latency.forward, latency.per_sample, latency.iteration, latency.backward, latency.flops_per_s, latency.realtime_factor],
)  # fmt: skip
def test_a_generation_is_no_forward_and_no_training_step(metric: Metric) -> None:
    assert value(metric, GENERATED, layers=None) == latency.GENERATED


def test_a_prompt_that_is_not_text_has_no_tokens() -> None:
    timing = Timing(1.0, 0, 1, (9.0,), generation=TokenTimes(None, 4, TOKENS[:1]))
    assert value(generation.prefill_throughput, timing) == Missing("the prompt is not text: it has no tokens")
    assert number(generation.time_to_first_token, timing) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("new_tokens", "metric", "least"),
    [(1, generation.first_gap, 2), (2, generation.time_per_token, 3), (2, generation.mbu_decode, 3)],
)
def test_too_few_tokens(new_tokens: int, metric: Metric, least: int) -> None:
    timing = Timing(1.0, 0, 1, (9.0,), generation=TokenTimes(8, new_tokens, (TOKENS[0][:new_tokens],)))
    assert value(metric, timing) == Missing(f"generation.new_tokens={new_tokens}: this needs at least {least}")
    assert number(generation.time_to_first_token, timing) == pytest.approx(4.0)


def test_steps_that_make_several_tokens() -> None:
    timing = Timing(1.0, 0, 1, (9.0,), generation=TokenTimes(8, 7, TOKENS[:1]))
    found = value(generation.time_per_token, timing)
    assert isinstance(found, Missing)
    assert found.reason.startswith("7 tokens were generated in 4 steps")
    assert number(generation.latency, timing) == pytest.approx(9.0)


def test_a_cache_and_bytes_that_are_not_known() -> None:
    timing = Timing(1.0, 0, 1, (9.0,), generation=TokenTimes(8, 4, TOKENS[:1], None, "there is no cache"))
    assert value(generation.kv_cache_bytes, timing) == Missing("there is no cache")
    experts = Generation(2, 1000, 2000, 300, 600, 9, None, 100, "a mixture of experts")
    assert value(generation.mbu_decode, GENERATED, generation=experts) == Missing("a mixture of experts")
