"""Generation of text: times of the tokens, rates, the cache, and what prefill and decode steps compute and read.

The gaps are the times from each token to the next. The first one is apart, because a cache often grows or is filled in it.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter

from sweeprof.measuring.timing import Timing
from sweeprof.metrics.compute import counted
from sweeprof.metrics.latency import Rounds, described_samples, over_rounds, percentile_over_rounds, rate
from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.results.environment import Peaks
from sweeprof.results.observations import Generation, TokenTimes

NOT_GENERATED = Missing("mode=generation is needed: nothing was generated")


@metric(name="generation/time_to_first_token", unit="s", better="lower")
def time_to_first_token(timing: Rounds) -> Estimate | Missing:
    """Wall time from the beginning of a generation until the first token of every sequence is complete."""
    return _over_tokens(timing, 1) or over_rounds(timing, samples_of=first_tokens)


@metric(name="generation/time_per_token", unit="s", better="lower")
def time_per_token(timing: Rounds) -> Estimate | Missing:
    """Wall time from one token to the next, of all gaps but the first: per sample their median, and the median of the samples.

    What the detail has beside them is of the single gaps.
    """
    missing = _over_tokens(timing, 3)
    if missing is not None:
        return missing
    estimate = over_rounds(timing, samples_of=median_gaps)
    gaps = list(itertools.chain.from_iterable(map(later_gaps, timing)))
    return replace(estimate, detail={**estimate.detail, **described_samples(gaps), "mean": statistics.fmean(gaps)})


@metric(name="generation/time_per_token_p90", unit="s", better="lower")
def time_per_token_p90(timing: Rounds) -> Estimate | Missing:
    """90th percentile of the gaps after the first."""
    return _percentile(timing, 90)


@metric(name="generation/time_per_token_p95", unit="s", better="lower")
def time_per_token_p95(timing: Rounds) -> Estimate | Missing:
    """95th percentile of the gaps after the first."""
    return _percentile(timing, 95)


@metric(name="generation/time_per_token_p99", unit="s", better="lower")
def time_per_token_p99(timing: Rounds) -> Estimate | Missing:
    """99th percentile of the gaps after the first."""
    return _percentile(timing, 99)


@metric(name="generation/first_gap", unit="s", better="lower")
def first_gap(timing: Rounds) -> Estimate | Missing:
    """Wall time from the first token to the second."""
    return _over_tokens(timing, 2) or over_rounds(timing, samples_of=lambda timing: _means(timing, itemgetter(1)))


@metric(name="generation/latency", unit="s", better="lower")
def latency(timing: Rounds) -> Estimate | Missing:
    """Wall time of one whole generation of the batch."""
    return _over_tokens(timing, 1) or over_rounds(timing)


@metric(name="generation/prefill_throughput", unit="tokens/s", better="higher")
def prefill_throughput(timing: Rounds, batch_size: int) -> Estimate | Missing:
    """Tokens of the prompts of the batch over the time to the first token."""
    missing = _over_tokens(timing, 1)
    if missing is not None:
        return missing
    prompt = _tokens(timing[0]).prompt_tokens
    if prompt is None:
        return Missing("the prompt is not text: it has no tokens")
    tokens = batch_size * prompt
    return over_rounds(timing, lambda seconds: tokens / seconds, first_tokens)


@metric(name="generation/decode_throughput", unit="tokens/s", better="higher")
def decode_throughput(timing: Rounds, batch_size: int) -> Estimate | Missing:
    """New tokens of all returned sequences after their first ones, over the time from the first token to the last."""
    missing = _over_tokens(timing, 2)
    if missing is not None:
        return missing
    times = _tokens(timing[0])
    tokens = batch_size * times.sequences_per_prompt * (times.new_tokens - 1)

    def decoding(timing: Timing) -> Sequence[float]:
        return _means(timing, lambda gaps: sum(gaps[1:]))

    return over_rounds(timing, lambda seconds: tokens / seconds, decoding)


@metric(name="generation/kv_cache_bytes", unit="B", better="lower")
def kv_cache_bytes(timing: Rounds) -> Estimate | Missing:
    """Bytes of the keys and values that the cache holds, or reserves, at the end of a generation."""
    times = timing[0].generation
    if times is None:
        return NOT_GENERATED
    if times.cache_bytes is None:
        return Missing(times.cache_reason or "the cache could not be seen")
    return Estimate(times.cache_bytes, "exact")


@metric(name="compute/macs_prefill", unit="MAC", better="lower")
def macs_prefill(generation: Generation) -> Estimate | Missing:
    """Multiply-accumulates of reading the prompts of the whole batch, up to the first token."""
    return counted(generation.uncovered, generation.prefill_macs, "MACs")


@metric(name="compute/macs_decode", unit="MAC", better="lower")
def macs_decode(generation: Generation) -> Estimate | Missing:
    """Multiply-accumulates of one token at the middle of the output: of one decode step of the batch over its sequences."""
    estimate = counted(generation.uncovered, generation.decode_macs, "MACs", generation.sequences)
    if isinstance(estimate, Missing):
        return estimate
    return replace(estimate, detail={**estimate.detail, "cached tokens": generation.position})


@metric(name="rate/mfu_prefill", unit="ratio", better="higher")
def mfu_prefill(generation: Generation, timing: Rounds, peaks: Peaks) -> Estimate | Missing:
    """Model FLOPs utilisation of the prefill: its FLOPs over the time to the first token, over the machine's measured peak."""
    flops = counted(generation.uncovered, generation.prefill_flops, "FLOPs")
    return _over_tokens(timing, 1) or rate(flops, timing, first_tokens, peaks.flops_per_s)


@metric(name="rate/mbu_decode", unit="ratio", better="higher")
def mbu_decode(generation: Generation, timing: Rounds, peaks: Peaks) -> Estimate | Missing:
    """Memory bandwidth utilisation of decoding: weights and cache that a step reads over its time and the measured bandwidth."""
    if generation.weight_bytes is None or generation.cache_bytes is None:
        return Missing(generation.bytes_reason or "the bytes that a decode step reads are not known")
    needed = Estimate(generation.weight_bytes + generation.cache_bytes, "exact")
    found = _over_tokens(timing, 3) or rate(needed, timing, median_gaps, peaks.bytes_per_s)
    if isinstance(found, Missing):
        return found
    detail = {"weight bytes": generation.weight_bytes, "cache bytes": generation.cache_bytes}
    return replace(found, detail={**found.detail, **detail})


def first_tokens(timing: Timing) -> Sequence[float]:
    """Per sample, the seconds to the first token."""
    return _means(timing, itemgetter(0))


def median_gaps(timing: Timing) -> Sequence[float]:
    """Per sample, the median of the gaps after the first, in seconds."""
    medians = []
    for sample in timing.generated:
        gaps: list[float] = []
        for tokens in sample:
            gaps += tokens[2:]
        medians.append(statistics.median(gaps))
    return medians


def later_gaps(timing: Timing) -> list[float]:
    """All gaps after the first, in seconds."""
    gaps: list[float] = []
    for tokens in _tokens(timing).seconds:
        gaps += tokens[2:]
    return gaps


def _means(timing: Timing, seconds_of: Callable[[tuple[float, ...]], float]) -> Sequence[float]:
    """Return per sample the mean over its generations."""
    return [statistics.fmean(map(seconds_of, sample)) for sample in timing.generated]


def _tokens(timing: Timing) -> TokenTimes:
    assert timing.generation is not None
    return timing.generation


def _over_tokens(timing: Rounds, least: int) -> Missing | None:
    """Return why there are no times of tokens, or fewer than ``least`` of them; None if there are."""
    for round in timing:
        times = round.generation
        if times is None:
            return NOT_GENERATED
        if least == 1:
            continue
        if times.new_tokens < least:
            return Missing(f"generation.new_tokens={times.new_tokens}: this needs at least {least}")
        if any(len(tokens) != times.new_tokens for tokens in times.seconds):
            return Missing(
                f"{times.new_tokens} tokens were generated in {times.steps} steps: a step makes several tokens, or the generation "
                "ended early"
            )
    return None


def _percentile(timing: Rounds, percentile: int) -> Estimate | Missing:
    missing = _over_tokens(timing, 3)
    if missing is not None:
        return missing
    too_few = "gaps; raise protocol.min_samples or generation.new_tokens"
    return percentile_over_rounds(list(map(later_gaps, timing)), percentile, timing, too_few)
