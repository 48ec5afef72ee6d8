"""Accuracy of a model, and agreement of the outputs of two backends."""

from __future__ import annotations

import numpy as np

from sweeprof.metrics.metric import Missing, Result, metric
from sweeprof.passes.quality import Quality


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
    """Cross-entropy of the outputs taken as logits: its mean over all samples of the test split."""
    ranks = _ranks(quality)
    if isinstance(ranks, Missing):
        return ranks
    return Missing("outputs are not finite") if quality.loss_sum is None or not ranks else quality.loss_sum / len(ranks)


def _top(quality: Quality, k: int) -> Missing | float:
    ranks = _ranks(quality)
    if isinstance(ranks, Missing):
        return ranks
    return sum(rank < k for rank in ranks) / len(ranks) if ranks else Missing("there are no samples")


def _ranks(quality: Quality) -> tuple[int, ...] | Missing:
    if quality.targets is None:
        return Missing("the dataset has no labels")
    if quality.predictions is None:
        return Missing("the outputs are not one row of class scores per sample")
    return Missing("the targets are not one class per sample") if quality.ranks is None else quality.ranks


@metric(name="quality/agreement", unit="abs", better="lower")
def agreement(quality: Quality, baseline_quality: Quality) -> Result:
    """Largest absolute difference of the outputs to the baseline's on the same inputs."""
    outputs, base = quality.outputs, baseline_quality.outputs
    if outputs.shape != base.shape:
        return Missing(f"outputs {outputs.shape} cannot be compared with the baseline's {base.shape}")
    difference = float(np.abs(outputs.astype(np.float64) - base.astype(np.float64)).max())
    return difference if np.isfinite(difference) else Missing("outputs are not finite")
