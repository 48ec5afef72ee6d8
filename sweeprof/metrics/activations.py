"""Memory that activations take, by shapes: without scratch space of kernels, and without parameters where not said."""

from __future__ import annotations

from sweeprof.metrics.metric import Estimate, Missing, Result, metric
from sweeprof.results.layers import LayerRow, LayerTable, Training

_UNKNOWN = Missing("this backend does not follow activations")


@metric(name="memory/act_sum_bytes", unit="B", better="lower")
def act_sum(layers: LayerTable) -> Result:
    """Bytes of everything that calls without calls inside return in one forward."""
    return _UNKNOWN if layers.act_bytes is None else layers.act_bytes


@metric(name="memory/act_peak_layer_bytes", unit="B", better="lower")
def act_peak_layer(layers: LayerTable) -> Result:
    """Largest sum of input and output bytes over the calls without calls inside."""
    rows = [row for row in layers.rows if row.act_bytes and row.input_bytes is not None]
    if not rows:
        return _UNKNOWN
    largest = max(rows, key=_both)
    return Estimate(_both(largest), "exact", detail={"layer": largest.path})


@metric(name="memory/act_peak_live_bytes", unit="B", better="lower")
def act_peak_live(layers: LayerTable) -> Result:
    """Largest sum of the activations alive at once in one forward, each storage once, without inputs and parameters."""
    live = layers.liveness
    return _UNKNOWN if live is None else Estimate(live.peak_bytes, "exact", detail={"layer": live.peak_at})


@metric(name="memory/footprint_est_bytes", unit="B", better="lower")
def footprint(layers: LayerTable) -> Result:
    """Parameters, buffers and the peak of live activations of one forward."""
    live = layers.liveness
    if live is None:
        return _UNKNOWN
    value = layers.params_bytes + layers.buffers_bytes + live.peak_bytes
    return Estimate(value, "estimated", detail={"layer": live.peak_at})


@metric(name="memory/act_peak_live_bytes_train", unit="B", better="lower")
def act_peak_live_train(training: Training) -> Result:
    """Largest sum of activations and gradients alive at once in one training step, each storage once."""
    live = training.liveness
    if live is None:
        return Missing(training.estimated or _UNKNOWN.reason)
    return Estimate(live.peak_bytes, "exact", detail={"layer": live.peak_at})


@metric(name="memory/footprint_est_bytes_train", unit="B", better="lower")
def footprint_train(layers: LayerTable, training: Training, optimizer_states: int = 0) -> Result:
    """Parameters, buffers, the peak of activations and gradients, and an optimizer's states of the parameters' size.

    ``optimizer_states`` is 0 for plain SGD, 1 with momentum, 2 for Adam.
    """
    live = training.liveness
    if live is None:
        return Missing(training.estimated or _UNKNOWN.reason)
    value = (1 + optimizer_states) * layers.params_bytes + layers.buffers_bytes + live.peak_bytes
    return Estimate(value, "estimated", detail={"layer": live.peak_at})


def _both(row: LayerRow) -> float:
    return (row.input_bytes or 0) + (row.output_bytes or 0)
