"""Time of a forward. Every figure comes from samples that lasted until the device was done."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from sweeprof.metrics.metric import Estimate, metric
from sweeprof.profiling.timing import Timing
from sweeprof.results.stats import median_interval, percentile_needs, rounds_interval, spread

Rounds = tuple[Timing, ...]
"""One timing per round, each from a fresh process."""

PERCENTILES = (90, 95, 99)


@metric(name="latency/forward", unit="s", better="lower")
def forward(timing: Rounds) -> Estimate:
    """Wall time of one synchronised forward of the whole batch: the median of the samples, over rounds their geometric mean."""
    return _over_rounds(timing, lambda seconds: seconds)


@metric(name="latency/per_sample", unit="s", better="lower")
def per_sample(timing: Rounds, batch_size: int) -> Estimate:
    """Wall time of one forward over the batch size."""
    return _over_rounds(timing, lambda seconds: seconds / batch_size)


@metric(name="throughput/samples_per_s", unit="samples/s", better="higher")
def throughput(timing: Rounds, batch_size: int) -> Estimate:
    """Batch size over the wall time of one forward."""
    return _over_rounds(timing, lambda seconds: batch_size / seconds)


@metric(name="latency/first_step", unit="s", better="lower")
def first_step(timing: Rounds) -> Estimate:
    """Wall time of the very first forward of a process: tracing, allocation and lazy initialisation included."""
    firsts = tuple(round.first_step_s for round in timing)
    return Estimate(
        statistics.geometric_mean(firsts),
        _estimator(firsts, "single"),
        rounds_interval(firsts),
        rounds=firsts,
        round_numbers=_numbers(timing),
    )


def _over_rounds(timing: Rounds, convert: Callable[[float], float]) -> Estimate:
    """The estimate of ``convert(seconds)``; ``convert`` must be monotonic, so that it may be applied to medians and bounds."""
    medians = tuple(convert(round.median_s) for round in timing)
    samples = [convert(sample) for round in timing for sample in round.samples]
    interval = rounds_interval(medians) if len(medians) > 1 else median_interval(samples)
    warnings = tuple(warning for round in timing for warning in round.warnings)
    return Estimate(
        statistics.geometric_mean(medians),
        _estimator(medians, "median"),
        interval,
        _detail(samples),
        medians,
        warnings,
        _numbers(timing),
    )


def _numbers(timing: Rounds) -> tuple[int, ...]:
    return tuple(round.round for round in timing)


def _estimator(rounds: tuple[float, ...], within: str) -> str:
    return within if len(rounds) == 1 else f"geometric mean of {len(rounds)} rounds"


def _detail(samples: list[float]) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "n": len(samples),
        "min": min(samples),
        "max": max(samples),
        "spread": spread(samples),
    }
    for percentile in PERCENTILES:
        needed = percentile_needs(percentile)
        supported = len(samples) >= needed
        detail[f"p{percentile}"] = _percentile(samples, percentile) if supported else f"n<{needed}"
    return detail


def _percentile(samples: list[float], percentile: int) -> float:
    return statistics.quantiles(samples, n=100, method="inclusive")[percentile - 1]
