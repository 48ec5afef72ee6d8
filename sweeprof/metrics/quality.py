"""Whether a model answers rightly, and whether two backends run the same model."""

from __future__ import annotations

import numpy as np

from sweeprof.metrics.metric import Missing, Result, metric
from sweeprof.profiling.quality import Quality


@metric(name="quality/accuracy", unit="ratio", better="higher")
def accuracy(quality: Quality) -> Result:
    """Share of the test split whose most likely class is the true one, over all samples."""
    if quality.targets is None:
        return Missing("the dataset has no labels")
    if quality.predictions is None:
        return Missing("the outputs are not one row of class scores per sample")
    hits = sum(p == t for p, t in zip(quality.predictions, quality.targets, strict=True))
    return hits / len(quality.targets)


@metric(name="quality/agreement", unit="abs", better="lower")
def agreement(quality: Quality, baseline_quality: Quality) -> Result:
    """Largest absolute difference of the outputs to the baseline's on the same inputs."""
    own, base = quality.outputs, baseline_quality.outputs
    if own.shape != base.shape:
        return Missing(f"outputs {own.shape} cannot be compared with the baseline's {base.shape}")
    difference = float(np.abs(own.astype(np.float64) - base.astype(np.float64)).max())
    return difference if np.isfinite(difference) else Missing("outputs are not finite")
