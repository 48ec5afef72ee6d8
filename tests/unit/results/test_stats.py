"""Estimates and intervals against brute force, scipy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from sweeprof.results.statistics import (
    MOST_SEQUENTIAL_ROUNDS,
    is_hopeless,
    median_interval,
    percentile_needs,
    ratio_interval,
    repeated_confidence,
    rounds_interval,
    rounds_to_settle,
    spread,
)
from sweeprof.results.verdicts import MIN_ROUNDS, interval_verdict

positive = st.floats(1e-6, 1e6)


@pytest.mark.parametrize(("percentile", "needed"), [(50, 5), (90, 29), (95, 59), (99, 299), (99.9, 2995)])
def test_samples_a_percentile_needs(percentile: float, needed: int) -> None:
    """Computed by hand from (p/100)^n <= 0.05."""
    assert percentile_needs(percentile) == needed


def coverage(n: int, rank: int) -> float:
    """Probability that the median of a continuous distribution lies between the ``rank``-th smallest and largest of n."""
    return float(sum(math.comb(n, below) for below in range(rank, n - rank + 1)) / 2**n)


def test_median_interval_is_the_narrowest_that_covers() -> None:
    for n in range(6, 200):
        interval = median_interval(range(n, 0, -1))
        assert interval is not None
        low, high = interval
        assert low + high == n + 1
        assert coverage(n, int(low)) >= 0.95, n
        assert low + 1 > high - 1 or coverage(n, int(low) + 1) < 0.95, n
    assert [median_interval([1.0] * n) for n in range(6)] == [None] * 6


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([4.5, 4.75, 5.0, 5.25, 5.5]) == 0.1
    assert spread([1.0, 2.0, 3.0, 4.0]) == pytest.approx(1.5 / 2.5)
    assert spread([2.0, 2.0, 2.0]) == spread([0.0, 0.0, 0.0]) == 0.0


def test_rounds_interval_is_a_t_interval_of_logs() -> None:
    medians = [1.0, 1.2, 0.9, 1.1, 1.05]
    expected = scipy_stats.ttest_1samp(np.log(medians), 0).confidence_interval(0.95)
    assert rounds_interval(medians) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert rounds_interval([1.0]) is None


pairs = st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=2, max_size=12)


@given(pairs=pairs, confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_ratio_interval_agrees_with_scipy(pairs: list[tuple[float, float]], confidence: float) -> None:
    logs = np.log([candidate / base for candidate, base in pairs])
    if float(np.ptp(logs)) < 1e-6:  # scipy divides by the deviation
        return
    expected = scipy_stats.ttest_1samp(logs, 0).confidence_interval(confidence)
    if max(abs(float(expected.low)), abs(float(expected.high))) > 300:  # whose exponential overflows
        return
    low, high = ratio_interval([a for a, _ in pairs], [b for _, b in pairs], confidence)
    assert math.log(low) == pytest.approx(expected.low, rel=1e-6, abs=1e-9)
    assert math.log(high) == pytest.approx(expected.high, rel=1e-6, abs=1e-9)


def test_ratio_of_equal_rounds_is_exactly_one() -> None:
    assert ratio_interval([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == (1.0, 1.0)


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0]), ([], []), ([1.0, 2.0], [1.0, 2.0, 3.0])])
def test_unpaired_rounds_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=f"paired rounds needed: got {len(a)} and {len(b)}"):
        ratio_interval(a, b)


Noise = tuple[float, float, float]


def round_medians(random: np.random.Generator, drift: np.ndarray, between: float, within: float) -> np.ndarray:
    samples = np.exp(random.normal(drift + random.normal(0, between, len(drift)), within, (20, len(drift))))
    samples *= np.where(random.random(samples.shape) < 0.03, 1.5, 1.0)
    return np.asarray(np.median(samples, axis=0))


@pytest.mark.parametrize("rounds", [3, 5])
@pytest.mark.parametrize("noise", [(0.02, 0.05, 0.0), (0.01, 0.03, 0.05)])
def test_ratio_interval_covers_the_true_ratio(noise: Noise, rounds: int) -> None:
    """In large simulations 94 to 97 % cover it; 600 repeats leave three standard errors of 0.027 here."""
    random = np.random.default_rng([20, rounds])
    between, within, drifting = noise
    hits = 0
    for _ in range(600):
        drift = random.normal(0, drifting, rounds) if drifting else np.zeros(rounds)
        sides = [round_medians(random, drift, between, within) for _ in range(2)]
        low, high = ratio_interval(list(sides[0]), list(sides[1]))
        hits += low <= 1 <= high
    assert 0.92 <= hits / 600 <= 0.98


@pytest.mark.parametrize("most", [3, 10, MOST_SEQUENTIAL_ROUNDS])
def test_all_repeated_intervals_cover_the_true_ratio_with_95_percent(most: int) -> None:
    """The share of sequences of which any interval misses the mean; 40,000 sequences leave three standard errors of 0.0033."""
    values = np.random.default_rng(most).standard_normal((40_000, most))
    missed = np.zeros(len(values), dtype=bool)
    for rounds in range(MIN_ROUNDS, most + 1):
        seen = values[:, :rounds]
        t = scipy_stats.t.ppf((1 + repeated_confidence(most)) / 2, rounds - 1)
        missed |= abs(seen.mean(axis=1)) > t * seen.std(axis=1, ddof=1) / math.sqrt(rounds)
    assert missed.mean() == pytest.approx(0.05, abs=0.0035)


def test_a_number_of_rounds_between_two_levels_has_the_stricter_one() -> None:
    assert repeated_confidence(11) == repeated_confidence(12) > repeated_confidence(10)
    with pytest.raises(ValueError, match="at most 50 rounds"):
        repeated_confidence(51)


def decided(true_ratio: float, scatter: float, seed: int) -> tuple[str, int]:
    """The first verdict of at most twenty rounds whose log ratios scatter by so much, at a threshold of 5 %, and its round."""
    logs = math.log(true_ratio) + scatter * np.random.default_rng(seed).standard_normal(20)
    candidate, confidence = np.exp(logs), repeated_confidence(20)
    for rounds in range(MIN_ROUNDS, 21):
        interval = ratio_interval(candidate[:rounds].tolist(), [1.0] * rounds, confidence)
        verdict, _ = interval_verdict(interval, 0.05, "lower")
        needed = rounds_to_settle(candidate[:rounds].tolist(), [1.0] * rounds, 0.05, confidence=confidence)
        if verdict != "unclear" or is_hopeless(rounds, needed, 20):
            return verdict, rounds
    return "unclear", 20


@pytest.mark.parametrize("scatter", [0.005, 0.03])
def test_sequential_verdicts_of_400_pairs_are_right(scatter: float) -> None:
    """Equal sides are not called different, a difference of 10 % is found, and neither takes all rounds."""
    equal = [decided(1.0, scatter, seed) for seed in range(400)]
    slower = [decided(1.1, scatter, seed) for seed in range(400)]
    assert sum(verdict in ("better", "worse") for verdict, _ in equal) <= 0.05 * 400
    assert sum(verdict == "worse" for verdict, _ in slower) >= 0.95 * 400
    assert np.mean([rounds for _, rounds in equal + slower]) < 10


@pytest.mark.parametrize("true_ratio", [1.0501, 1.0499])
def test_at_the_threshold_repeated_tests_are_wrong_in_at_most_5_percent(true_ratio: float) -> None:
    """The worst case: each ratio is a little beyond the threshold, or within it; with plain 95 % intervals 10 % are wrong."""
    wrong = "same" if true_ratio > 1.05 else "worse"
    verdicts = [decided(true_ratio, 0.03, seed)[0] for seed in range(400)]
    assert verdicts.count(wrong) <= 0.05 * 400


def test_a_ratio_at_the_threshold_is_given_up() -> None:
    ended = [decided(1.05, 0.03, seed) for seed in range(100)]
    assert sum(verdict == "unclear" for verdict, _ in ended) >= 90
    assert np.mean([rounds for _, rounds in ended]) < 8
