"""Speed of the data loader, without a model."""

from __future__ import annotations

from statistics import median

from sweeprof.metrics.metric import Estimate, metric
from sweeprof.passes.loading import Loading


@metric(name="loading/samples_per_s", unit="samples/s", better="higher")
def samples_per_s(loading: Loading) -> Estimate:
    """Samples that the data loader delivers per second, over passes with their starts."""
    detail = {"samples": loading.samples, "batches": loading.batches, "passes": len(loading.first_batch_s)}
    return Estimate(loading.samples / loading.seconds, "mean", detail=detail)


@metric(name="loading/first_batch", unit="s", better="lower")
def first_batch(loading: Loading) -> Estimate:
    """Time from the beginning of a pass over the data to its first batch; the median over passes, imports not included."""
    detail = {"warm_up": loading.warm_up_s, "passes": len(loading.first_batch_s)}
    return Estimate(median(loading.first_batch_s), "median", detail=detail)
