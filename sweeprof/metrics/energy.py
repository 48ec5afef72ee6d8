"""Energy and power, from the counters of the host."""

from __future__ import annotations

from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.passes.energy import Energy


@metric(name="energy/per_sample", unit="J", better="lower")
def per_sample(energy: Energy, batch_size: int) -> Estimate | Missing:
    """Energy of one step over the batch size, without what the idle machine takes in the same time."""
    joules = energy.joules_per_step / batch_size
    if joules <= 0:
        return Missing(f"the steps took {energy.watts:.3g} W and the idle machine {energy.idle_watts:.3g} W: no more")
    by_counter = {name: f"{value / energy.seconds:.3g} W" for name, value in energy.joules.items()}
    detail = {"steps": energy.steps, "seconds": energy.seconds, "idle_watts": energy.idle_watts, **by_counter}
    return Estimate(joules, "mean", detail=detail)


@metric(name="energy/power", unit="W", better="lower")
def power(energy: Energy) -> Estimate:
    """Mean power of the processors and the GPU during the steps, that of the idle machine included."""
    return Estimate(energy.watts, "mean", detail={"idle_watts": energy.idle_watts})
