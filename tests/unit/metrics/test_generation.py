"""Metrics of a generation, from timings whose every figure can be told by heart."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from sweeprof.measuring.timing import InterleavedRun, Timing
from sweeprof.metrics import generation, latency
from sweeprof.metrics.metric import Estimate, Metric, Missing, builtin_metrics
from sweeprof.metrics.select import metric_set
from sweeprof.results.environment import Peaks
from sweeprof.results.observations import Generation, TokenTimes

TOKENS = ((4.0, 2.0, 1.0, 1.5), (6.0, 3.0, 0.5, 0.25), (5.0, 2.5, 2.0, 1.0))
"""To the first token, the first gap, and two further gaps."""
TIMES = TokenTimes(8, 4, TOKENS, 640)
GENERATED = Timing(100.0, 3, 1, (9.0, 10.0, 11.0), generation=TIMES)
INFERRED = Timing(4.0, 3, 1, (0.5, 0.25, 0.75))
COUNTS = Generation(2, 1000, 2000, 300, 600, 9, 500, 100)
PEAKS = Peaks(1000.0, 100.0, "float32", "cpu", 1)


def value(metric: Metric, *timings: Timing, **further: Any) -> Estimate | Missing:
    known = {"generation": COUNTS, "peaks": PEAKS, "batch_size": 2, **further}
    found: Estimate | Missing = metric({"timing": timings, **known})
    return found


def estimate(metric: Metric, *timings: Timing, **further: Any) -> Estimate:
    found = value(metric, *timings, **further)
    assert isinstance(found, Estimate), found
    return found


def number(metric: Metric, *timings: Timing, **further: Any) -> float:
    return estimate(metric, *timings, **further).value


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (generation.time_to_first_token, 5.0),
        (generation.first_gap, 2.5),
        (generation.time_per_token, statistics.median([1.25, 0.375, 1.5])),
        (generation.latency, 10.0),
        (generation.prefill_throughput, 2 * 8 / 5.0),
        (generation.decode_throughput, 2 * 3 / 4.5),  # three tokens of two sequences in 4.5, 3.75 and 5.5 s
        (generation.mfu_prefill, 2000 / 5.0 / 1000),
        (generation.mbu_decode, (500 + 100) / 1.25 / 100),
        (generation.macs_prefill, 1000),
        (generation.macs_decode, 150),
        (generation.kv_cache_bytes, 640),
    ],
)
def test_figures_by_hand(metric: Metric, expected: float) -> None:
    assert number(metric, GENERATED) == pytest.approx(expected)


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


def test_rounds_give_an_interval_and_pairs() -> None:
    def round_of(number: int, factor: float, turns: tuple[int, ...] = (0, 1, 2)) -> Timing:
        seconds = tuple(tuple(factor * s for s in tokens) for tokens in TOKENS)
        run = InterleavedRun("run", ("other",), turns)
        samples = tuple(factor * s for s in GENERATED.samples)
        return Timing(1.0, 0, 1, samples, round=number, interleaved_run=run, generation=TokenTimes(8, 4, seconds))

    one = replace(round_of(0, 2.0), baseline=round_of(0, 1.0))
    two = replace(round_of(1, 2.0), baseline=round_of(1, 1.0))
    found = estimate(generation.time_to_first_token, one, two)
    assert found.value == pytest.approx(10.0)
    assert found.paired == pytest.approx((10.0, 10.0))
    assert found.round_numbers == (0, 1)


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
    [
        (1, generation.first_gap, 2),
        (1, generation.decode_throughput, 2),
        (2, generation.time_per_token, 3),
        (2, generation.time_per_token_p90, 3),
        (2, generation.mbu_decode, 3),
    ],
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
