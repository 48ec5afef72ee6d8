"""Accuracy of a model, and agreement of the outputs of two backends."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sweeprof.metrics.metric import Missing, Result, metric
from sweeprof.passes.quality import NumberSums, Quality, incomparable, pairs_of_outputs

NO_LABELS = "the dataset has no labels"
MOST_NATS = 700
"""e to the power of more is no floating-point number."""


@metric(name="quality/accuracy", unit="ratio", better="higher")
def accuracy(quality: Quality) -> Result:
    """Share of the test split whose most likely class is the true one, over all samples."""
    return _top(quality, 1)


@metric(name="quality/error", unit="ratio", better="lower")
def error(quality: Quality) -> Result:
    """Share of the test split whose most likely class is not the true one, over all samples."""
    share = _top(quality, 1)
    return share if isinstance(share, Missing) else 1 - share


@metric(name="quality/top5", unit="ratio", better="higher")
def top5(quality: Quality) -> Result:
    """Share of the test split whose true class is among the five most likely, over all samples."""
    return _top(quality, 5)


@metric(name="quality/topk", unit="ratio", better="higher")
def topk(quality: Quality, k: int = 1) -> Result:
    """Share of the test split whose true class is among the k most likely, over all samples."""
    return _top(quality, k)


@metric(name="quality/loss", unit="nat", better="lower")
def loss(quality: Quality) -> Result:
    """Cross-entropy of the outputs taken as logits: its mean over all samples, tokens or pixels of the test split."""
    return _loss(quality)


def _loss(quality: Quality) -> Missing | float:
    counts = _rank_counts(quality)
    if isinstance(counts, Missing):
        return counts
    rows = sum(counts.values())
    return Missing("outputs are not finite") if quality.loss_sum is None or not rows else quality.loss_sum / rows


@metric(name="quality/perplexity", unit="ratio", better="lower")
def perplexity(quality: Quality) -> Result:
    """E to the power of the mean cross-entropy per token."""
    nats = _loss(quality)
    if isinstance(nats, Missing):
        return nats
    return math.exp(nats) if nats < MOST_NATS else Missing(f"the loss of {nats:.0f} nats is too large for a power of e")


@metric(name="quality/miou", unit="ratio", better="higher")
def miou(quality: Quality) -> Result:
    """Intersection over union of predicted and true pixels or tokens, its mean over the classes that occur in either."""
    if quality.confusion is None:
        counts = _rank_counts(quality)
        return counts if isinstance(counts, Missing) else Missing("the targets are not one class per pixel or token")
    right, predicted, true = (np.array(counts, np.float64) for counts in quality.confusion)
    union = predicted + true - right
    return float((right[union > 0] / union[union > 0]).mean()) if union.any() else Missing("there are no samples")


@metric(name="quality/mse", unit="abs", better="lower")
def mse(quality: Quality) -> Result:
    """Mean squared error of outputs that are numbers."""
    return _mean_error(quality, lambda sums: sums.squared_errors)


@metric(name="quality/mae", unit="abs", better="lower")
def mae(quality: Quality) -> Result:
    """Mean absolute error of outputs that are numbers."""
    return _mean_error(quality, lambda sums: sums.absolute_errors)


@metric(name="quality/r2", unit="ratio", better="higher")
def r2(quality: Quality) -> Result:
    """1 - (squared errors) / (squared deviations of the targets from their mean); the mean over several outputs."""
    sums = _numbers(quality)
    if isinstance(sums, Missing):
        return sums
    squares, means = np.array(sums.squared_targets), np.array(sums.targets) / sums.samples
    deviations = squares - sums.samples * means**2
    if (deviations <= 1e-12 * squares).any():
        return Missing("an output has the same target for every sample")
    return float((1 - np.array(sums.squared_errors) / deviations).mean())


def _mean_error(quality: Quality, errors: Callable[[NumberSums], Sequence[float]]) -> Result:
    sums = _numbers(quality)
    return sums if isinstance(sums, Missing) else float(np.sum(errors(sums)) / sums.samples / len(errors(sums)))


def _numbers(quality: Quality) -> NumberSums | Missing:
    if quality.numbers is None:
        return Missing("the targets are not numbers of the outputs' shape" if quality.is_labelled else NO_LABELS)
    finite = all(map(math.isfinite, quality.numbers.squared_errors))
    return quality.numbers if finite else Missing("outputs or targets are not finite")


def _top(quality: Quality, k: int) -> Missing | float:
    counts = _rank_counts(quality)
    if isinstance(counts, Missing):
        return counts
    rows = sum(counts.values())
    hits = sum(count for rank, count in counts.items() if rank < k)
    return hits / rows if rows else Missing("there are no samples")


def _rank_counts(quality: Quality) -> Mapping[int, int] | Missing:
    """Return how many samples, tokens or pixels have each rank of the true class."""
    if quality.ranks is not None:
        return Counter(quality.ranks)
    if quality.rank_counts is not None:
        return {int(rank): count for rank, count in quality.rank_counts.items()}
    return Missing(_why_not_classes(quality))


def _why_not_classes(quality: Quality) -> str:
    if not quality.is_labelled:
        return NO_LABELS
    if quality.unknown_class is not None:
        return quality.unknown_class
    if quality.predictions is None and (quality.numbers is None or quality.outputs.ndim < 2):
        return "the outputs are not one row of class scores per sample"
    see = "" if quality.numbers is None else "; of numbers there are quality/mse, quality/mae and quality/r2"
    return f"the targets are not one class per sample, token or pixel{see}"


@metric(name="quality/agreement", unit="abs", better="lower")
def agreement(quality: Quality, baseline_quality: Quality) -> Result:
    """Largest absolute difference of the outputs to the baseline's on the same inputs."""
    problem = incomparable(quality, baseline_quality)
    if problem is not None:
        return Missing(f"outputs cannot be compared: {problem}")
    largest = 0.0
    for _, own, base in pairs_of_outputs(quality, baseline_quality):
        if not np.isfinite(own).all() or not np.isfinite(base).all():
            return Missing("outputs are not finite")
        largest = max(largest, float(np.abs(own.astype(np.float64) - base.astype(np.float64)).max(initial=0)))
    return largest
