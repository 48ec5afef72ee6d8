"""Estimates, intervals and what a sample size supports: pure functions over numbers.

Medians, because timing samples are skewed; a t interval on log ratios paired by round, because samples within one
process say nothing about the differences between processes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

CONFIDENCE = 0.95
MOST_ROUNDS = 1000
"""The largest number of rounds that is worth a recommendation."""


SEQUENTIAL_LEVELS = {
    3: 0.0500, 4: 0.0305, 5: 0.0228, 6: 0.0187, 7: 0.0161, 8: 0.0143, 9: 0.0130, 10: 0.0120, 12: 0.0106, 15: 0.0091, 20: 0.0077,
    25: 0.0068, 30: 0.0063, 40: 0.0055, 50: 0.0050,
}  # fmt: skip
"""Nominal level of each t test, by the largest number of rounds, of tests after every round from the third on.

With this level at every test, the probability that any of them rejects a true hypothesis is 5%. It is the constant boundary of
Pocock, "Group sequential methods in the design and analysis of clinical trials", Biometrika 64 (1977), for t tests. The levels are
the 5 % quantiles of the smallest p-value in 1.5 million simulated sequences of normal values, rounded down."""
MOST_SEQUENTIAL_ROUNDS = max(SEQUENTIAL_LEVELS)


def repeated_confidence(most_rounds: int) -> float:
    """Return the confidence of each interval of a sequence, of which all contain the true value with :data:`CONFIDENCE`.

    There is an interval after each round from the third to the last possible one. A number of rounds without a level of its own has
    that of the next larger number. Source: repeated confidence intervals in C. Jennison and B. W. Turnbull, "Group Sequential
    Methods" (2000), chapter 9.

    Raises:
        ValueError: there are more rounds than :data:`MOST_SEQUENTIAL_ROUNDS`.
    """
    for rounds, level in SEQUENTIAL_LEVELS.items():
        if rounds >= most_rounds:
            return 1 - level
    raise ValueError(f"at most {MOST_SEQUENTIAL_ROUNDS} rounds can be tested one after the other: got {most_rounds}")


GIVE_UP = 3
"""A comparison that would need more than this many times the largest number of rounds is given up …"""
GIVE_UP_FROM = 5
"""… from so many rounds on: before, the spread is too uncertain."""


def is_hopeless(rounds: int, needed: int | None, most_rounds: int) -> bool:
    """Return whether a comparison that is unclear should stay so, because it would need far more rounds than it may have.

    Ending early without a verdict makes no false verdict more likely, and misses few differences: of 10%, with log ratios that
    scatter by 3 %, 98 instead of 100 % are found in at most 20 rounds; a ratio at the threshold takes 7 instead of 20. Source:
    stochastic curtailment in C. Jennison and B. W. Turnbull, "Group Sequential Methods" (2000), chapter 10.

    Args:
        needed: the result of :func:`rounds_to_settle`.
    """
    return rounds >= GIVE_UP_FROM and (needed is None or needed > GIVE_UP * most_rounds)


def percentile_needs(percentile: float) -> int:
    """Samples needed before the largest one lies above the percentile with :data:`CONFIDENCE`.

    The smallest n with ``(p/100)^n <= 0.05``: 5 for p50, 29 for p90, 59 for p95, 299 for p99.
    """
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(percentile / 100))


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """Distribution-free 95 % interval of the median from order statistics; None for fewer than six samples.

    Source: H. A. David and H. N. Nagaraja, "Order Statistics", 3rd ed., section 7.1.
    """
    ordered = sorted(samples)
    n = len(ordered)
    from scipy.special import bdtr

    # [x_(r), x_(n+1-r)] misses the median with probability 2 P(B < r), B ~ Binomial(n, 1/2): take the largest r allowed.
    below = bdtr(np.arange(n), n, 0.5)
    rank = int(np.searchsorted(below, (1 - CONFIDENCE) / 2, side="right"))
    if not rank:
        return None
    return ordered[rank - 1], ordered[n - rank]


def spread(samples: Sequence[float]) -> float:
    """Interquartile range over the median: the relative spread that torch.utils.benchmark warns about at 0.1 and 0.25."""
    low, middle, high = np.percentile(np.asarray(samples, dtype=float), [25, 50, 75])
    return float((high - low) / middle) if middle else 0.0


def rounds_interval(medians: Sequence[float]) -> tuple[float, float] | None:
    """95 % t interval of the geometric mean of per-round medians; None for fewer than two rounds."""
    if len(medians) < 2:
        return None
    return _log_t_interval(np.log(np.asarray(medians, dtype=float)), CONFIDENCE)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % t interval of the arithmetic mean, for values that may be zero or negative; None for fewer than two."""
    if len(values) < 2:
        return None
    array = np.asarray(values, dtype=float)
    half = _t_quantile(len(array) - 1, CONFIDENCE) * float(array.std(ddof=1)) / math.sqrt(len(array))
    center = float(array.mean())
    return center - half, center + half


def mean_over_rounds(values: Sequence[float]) -> tuple[str, float, tuple[float, float] | None]:
    """Return the name, the value and the 95 % t interval of the mean of one value per round.

    It is the geometric mean, or the arithmetic one if a value is not positive; there is no interval for fewer than two rounds.
    """
    if min(values) > 0:
        return "geometric mean", statistics.geometric_mean(values), rounds_interval(values)
    return "mean", statistics.fmean(values), mean_interval(values)


def ratio_interval(
    candidate: Sequence[float], baseline: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """T interval of ``candidate / baseline`` on log ratios paired by round.

    Raises:
        ValueError: the two differ in length, or have fewer than two rounds.
        OverflowError: the interval is beyond all numbers.
    """
    if len(candidate) != len(baseline) or len(candidate) < 2:
        raise ValueError(f"paired rounds needed: got {len(candidate)} and {len(baseline)}")
    logs = np.log(np.asarray(candidate, dtype=float)) - np.log(np.asarray(baseline, dtype=float))
    return _log_t_interval(logs, confidence)


def unpaired_interval(
    candidate: Sequence[float], baseline: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Welch's t interval of ``candidate / baseline`` on logarithms, for rounds that were not run together.

    Raises:
        ValueError: either has fewer than two rounds.
    """
    if min(len(candidate), len(baseline)) < 2:
        raise ValueError(f"at least two rounds needed on each side: got {len(candidate)} and {len(baseline)}")
    new, old = np.log(np.asarray(candidate, dtype=float)), np.log(np.asarray(baseline, dtype=float))
    half = _welch_half(float(new.var(ddof=1)), len(new), float(old.var(ddof=1)), len(old), confidence)
    center = float(new.mean() - old.mean())
    return math.exp(center - half), math.exp(center + half)


def rounds_to_settle(
    candidate: Sequence[float],
    baseline: Sequence[float],
    threshold: float,
    paired: bool = True,
    confidence: float = CONFIDENCE,
) -> int | None:
    """About how many rounds, on each side, have an interval that does not cross the threshold, should centre and spread stay.

    None where that takes more than :data:`MOST_ROUNDS`.
    """
    new, old = np.log(np.asarray(candidate, dtype=float)), np.log(np.asarray(baseline, dtype=float))
    center = float(new.mean() - old.mean())
    margin = min(abs(center - math.log(1 - threshold)), abs(center - math.log(1 + threshold)))
    spreads = [float(new.var(ddof=1)), float(old.var(ddof=1))]
    if paired:
        spreads = [float((new - old).var(ddof=1))]
    # The half-width falls with every round.
    low, high = 2, MOST_ROUNDS
    if _half(spreads, high, confidence) >= margin:
        return None
    while low < high:
        middle = (low + high) // 2
        if _half(spreads, middle, confidence) < margin:
            high = middle
        else:
            low = middle + 1
    return low


def _half(variances: Sequence[float], rounds: int, confidence: float) -> float:
    """Return half the width of the interval of the logarithm, of so many rounds."""
    if len(variances) == 2:
        return _welch_half(variances[0], rounds, variances[1], rounds, confidence)
    return _t_quantile(rounds - 1, confidence) * math.sqrt(variances[0] / rounds)


def _welch_half(new: float, new_n: int, old: float, old_n: int, confidence: float) -> float:
    """Half the width of Welch's interval of a difference of means; degrees of freedom after Satterthwaite."""
    a, b = new / new_n, old / old_n
    if a + b == 0:
        return 0.0
    freedom = (a + b) ** 2 / (a**2 / (new_n - 1) + b**2 / (old_n - 1))
    return _t_quantile(freedom, confidence) * math.sqrt(a + b)


def _t_quantile(freedom: float, confidence: float) -> float:
    """Student's t that a two-sided interval of this confidence extends by."""
    # Importing it takes a third of the time in which a fork server starts, whose trials do not need it.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _log_t_interval(logs: np.ndarray, confidence: float) -> tuple[float, float]:
    n = len(logs)
    half = _t_quantile(n - 1, confidence) * float(logs.std(ddof=1)) / math.sqrt(n)
    center = float(logs.mean())
    return math.exp(center - half), math.exp(center + half)
