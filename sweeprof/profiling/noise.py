"""What makes the samples of one round less trustworthy, in warnings with their figures and what to do."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from sweeprof.results.record import Warning
from sweeprof.results.stats import spread

SPREAD_WARNING = 0.10
SPREAD_SEVERE = 0.25
"""IQR over median; the two levels at which torch.utils.benchmark warns."""
FIRST_SAMPLE_FACTOR = 1.5
"""A first sample this much above the median means that warming up was not over."""
DRIFT_WARNING = 0.10
"""Relative difference between the medians of the first and the second half of the samples."""
MIN_TICKS = 1000
"""Clock ticks a sample must last: a tick is then at most 0.1 % of it."""


def doubts(
    samples: Sequence[float], loops: int, unmet: Sequence[str], max_s: float, resolution: float
) -> Iterator[Warning]:
    """What makes the samples of one round less trustworthy.

    Args:
        samples: seconds per step.
        loops: steps per sample.
        unmet: conditions of the protocol that ``max_s`` cut short.
        max_s: the protocol's.
        resolution: of the clock, in seconds.
    """
    median = statistics.median(samples)
    noise = spread(samples)
    if unmet:
        yield Warning(
            "max_time",
            f"protocol.max_s={max_s:g} ended the round before {', '.join(unmet)}",
            "raise protocol.max_s",
        )
    if noise > SPREAD_WARNING:
        yield Warning(
            "spread_high" if noise <= SPREAD_SEVERE else "spread_severe",
            f"IQR is {noise:.0%} of the median over {len(samples)} samples",
            "close other programs, or measure more rounds in a sweep",
        )
    if len(samples) > 1 and samples[0] > FIRST_SAMPLE_FACTOR * median:
        yield Warning(
            "first_sample_slow",
            f"the first sample took {samples[0] / median:.1f} times the median",
            "raise protocol.warmup_s or protocol.warmup_steps",
        )
    half = len(samples) // 2
    if half >= 5 and median > 0:
        drift = statistics.median(samples[-half:]) / statistics.median(samples[:half]) - 1
        if abs(drift) > DRIFT_WARNING:
            yield Warning(
                "drift",
                f"the second half of the samples is {drift:+.0%} off the first",
                "wait until the machine is idle, or measure more rounds in a sweep",
            )
    if median * loops < MIN_TICKS * resolution:
        yield Warning(
            "timer_coarse",
            f"a sample lasts only {median * loops / resolution:.0f} ticks of the clock",
            "raise protocol.sample_s",
        )
