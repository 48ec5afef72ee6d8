"""Multiply-accumulates (MACs): one multiplication and one addition in a matrix product, convolution or attention.

Biases, norms, activations and pooling are no MACs; a MAC is not a FLOP.
"""

from __future__ import annotations

from sweeprof.metrics.metric import Estimate, metric
from sweeprof.profiling.layers import LayerTable
from sweeprof.results.measurement import Number
from sweeprof.results.record import Warning


@metric(name="compute/macs", unit="MAC", better="lower")
def macs(layers: LayerTable) -> Estimate:
    """Multiply-accumulates of one forward of the whole batch."""
    return _counted(layers, layers.macs)


@metric(name="compute/macs_per_sample", unit="MAC", better="lower")
def macs_per_sample(layers: LayerTable, batch_size: int) -> Estimate:
    """Multiply-accumulates of one forward over the batch size."""
    whole, rest = divmod(layers.macs, batch_size)
    return _counted(layers, layers.macs / batch_size if rest else whole)


def _counted(layers: LayerTable, value: Number) -> Estimate:
    if not layers.uncovered:
        return Estimate(value, "exact")
    names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(layers.uncovered.items()))
    return Estimate(
        value,
        "lower bound",
        warnings=(Warning("count_incomplete", f"no formula for {names}", "read the count as a lower bound"),),
    )
