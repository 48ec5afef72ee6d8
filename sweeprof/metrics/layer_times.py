"""How the time of a step is spread over its layers, and how far to believe it."""

from __future__ import annotations

from collections.abc import Callable

from sweeprof.metrics.latency import NOT_TRAINED
from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.results.layer_times import LayerTimes, PhaseName, Seconds
from sweeprof.results.paths import OUTSIDE
from sweeprof.results.record import Warning

SCALED = "scaled median"
"""See :attr:`sweeprof.results.layer_times.LayerTimes.seconds`."""


@metric(name="layers/forward_covered", unit="ratio", better=None)
def forward_covered(layer_times: LayerTimes) -> Estimate | Missing:
    """What all calls of all layers took themselves, outside any layer included, over the forward without probes; 1 is right."""
    return _median(layer_times, layer_times.forward_covered, "forward")


@metric(name="layers/backward_covered", unit="ratio", better=None)
def backward_covered(layer_times: LayerTimes) -> Estimate | Missing:
    """The same of the backward."""
    if layer_times.backward is None:
        return NOT_TRAINED
    return _median(layer_times, layer_times.backward_covered, "backward")


@metric(name="layers/probe_overhead", unit="ratio", better="lower")
def probe_overhead(layer_times: LayerTimes) -> Estimate | Missing:
    """Time of a forward with the probes, their cost included, over one without; the cost is subtracted from the layers' times."""
    return _median(layer_times, layer_times.summary.forward.overhead, "forward")


@metric(name="layers/slowest_self_s", unit="s", better="lower")
def slowest_self(layer_times: LayerTimes) -> Estimate | Missing:
    """Forward time of the slowest call of a layer, without the calls within it."""
    return _slowest(layer_times, lambda seconds: seconds.forward_self, "forward")


@metric(name="layers/slowest_backward_self_s", unit="s", better="lower")
def slowest_backward_self(layer_times: LayerTimes) -> Estimate | Missing:
    """Backward time of the slowest call of a layer, without the calls within it."""
    if layer_times.backward is None:
        return NOT_TRAINED
    return _slowest(layer_times, lambda seconds: seconds.backward_self, "backward")


@metric(name="layers/outside_s", unit="s", better="lower")
def outside(layer_times: LayerTimes) -> Estimate:
    """Time of the forward outside any layer, such as that of the loss."""
    return _estimate(layer_times, layer_times.summary.forward.outside_s, SCALED, "forward")


def _median(times: LayerTimes, ratio: float | None, phase: PhaseName) -> Estimate | Missing:
    return Missing("no step was without probes") if ratio is None else _estimate(times, ratio, "median", phase)


def _estimate(times: LayerTimes, value: float, estimator: str, phase: PhaseName, **detail: str) -> Estimate:
    repeats = times.repeats - times.warmup
    warnings = times.warnings_of(phase)
    if times.unmet:
        cut = f"the layers were timed in {repeats} repeats: protocol.max_s ended them before {', '.join(times.unmet)}"
        warnings = (Warning("few_repeats", cut, "raise protocol.max_s"), *warnings)
    return Estimate(value, estimator, detail={**detail, "n": repeats}, warnings=warnings)


def _slowest(times: LayerTimes, own: Callable[[Seconds], float | None], phase: PhaseName) -> Estimate | Missing:
    found = [
        (seconds, call.path)
        for call, known in zip(times.calls, times.seconds, strict=True)
        if call.path != OUTSIDE and (seconds := own(known)) is not None
    ]
    if not found:
        return Missing("no gradient is computed in any layer")
    seconds, path = max(found)
    return _estimate(times, seconds, SCALED, phase, layer=path)
