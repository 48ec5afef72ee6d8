"""The memory that a step takes (of the process, of the framework's allocator, of an accelerator), and its energy."""

from __future__ import annotations

from sweeprof.metrics.metric import Estimate, Missing, metric
from sweeprof.passes.energy import GPU_COUNTER, Energy
from sweeprof.passes.memory import Memory
from sweeprof.results.measurement import NO_PROCESSOR
from sweeprof.results.observations import Allocations, bytes_by_kind

ON_HOST = Missing("the model runs on the host")


@metric(name="memory/added_bytes", unit="B", better="lower")
def added(memory: Memory) -> Estimate | Missing:
    """Memory that the model, one batch and its steps add, where it runs, to a process that has imported and used the framework.

    The peak while stepping: on the host without programs and libraries, and without freed memory that the C library keeps; on an
    accelerator of what the framework's allocator has given away.
    """
    if memory.added_bytes is None:
        return Missing(f"memory: {memory.not_added or 'it was not measured'}")
    total = memory.rss_peak_bytes if memory.device == "cpu" else memory.device_process_bytes
    detail = {"total": total or f"{memory.device}: {memory.device_reason}"}
    return Estimate(memory.added_bytes, "high-water mark", detail=detail)


@metric(name="memory/process_peak_bytes", unit="B", better="lower")
def process_peak(memory: Memory) -> Estimate | Missing:
    """Most memory that the process holds where the model runs: its resident set, or on an accelerator what the driver gave it.

    The framework is included, and an accelerator's context.
    """
    if memory.device == "cpu":
        return rss_peak.function(memory)  # type: ignore[no-any-return]
    if memory.device_process_bytes is None:
        return Missing(f"memory: that of the process on {memory.device} is not known: {memory.device_reason}")
    return Estimate(memory.device_process_bytes, "high-water mark", detail={"host": memory.rss_peak_bytes})


@metric(name="memory/rss_peak_bytes", unit="B", better="lower")
def rss_peak(memory: Memory) -> Estimate:
    """Peak resident set of a process that only loads the model and steps it, the framework included."""
    detail = {"baseline": memory.rss_baseline_bytes, "loaded": memory.rss_loaded_bytes}
    return Estimate(memory.rss_peak_bytes, "high-water mark", detail=detail)


@metric(name="memory/rss_step_bytes", unit="B", better="lower")
def rss_step(memory: Memory) -> Estimate:
    """Peak resident set while stepping, above that of the process with the model and one batch loaded."""
    return Estimate(memory.rss_stepping_bytes - memory.rss_loaded_bytes, "high-water mark")


@metric(name="memory/alloc_peak_bytes", unit="B", better="lower")
def alloc_peak(allocations: Allocations) -> Estimate:
    """Most that the framework's allocator had given away at once in the first steps, above the loaded model and one batch.

    Activations and scratch space of kernels, and with mode=training gradients and optimizer state too, from torch.profiler's
    events; what mathematics libraries keep for themselves is not in it.
    """
    detail = {"layer": allocations.peak_at, "steps": allocations.steps}
    return Estimate(allocations.peak_bytes, "exact", detail=detail)


@metric(name="memory/allocated_per_step_bytes", unit="B", better="lower")
def allocated_per_step(allocations: Allocations) -> int | Missing:
    """Sum of all allocations in one step after the first, whether they are released or not."""
    size = allocations.allocated_per_step_bytes
    return Missing("allocations: the record does not tell") if size is None else size


@metric(name="memory/tensors_bytes", unit="B", better="lower")
def tensors(allocations: Allocations) -> Estimate:
    """Bytes of all tensors alive after a step, each storage once: model, inputs, gradients, optimizer and what the steps made.

    What belongs to none of these and was there before the first step, the caller's own and sweeprof's copies, is not in it.
    """
    by_kind = bytes_by_kind(allocations.tensors)
    return Estimate(sum(by_kind.values()), "exact", detail=dict(by_kind.items()))


@metric(name="memory/cuda_allocated_pre_bytes", unit="B", better="lower")
def cuda_allocated_pre(allocations: Allocations) -> Estimate | Missing:
    """Device memory that was allocated before the first step: the model and one batch."""
    return _of_device(allocations, "allocated_pre_bytes")


@metric(name="memory/cuda_allocated_peak_bytes", unit="B", better="lower")
def cuda_allocated_peak(allocations: Allocations) -> Estimate | Missing:
    """Most device memory that was allocated at once in the first steps, including the model."""
    return _of_device(allocations, "allocated_peak_bytes")


@metric(name="memory/cuda_allocated_post_bytes", unit="B", better="lower")
def cuda_allocated_post(allocations: Allocations) -> Estimate | Missing:
    """Device memory that is allocated after the first steps."""
    return _of_device(allocations, "allocated_post_bytes")


@metric(name="memory/cuda_reserved_peak_bytes", unit="B", better="lower")
def cuda_reserved_peak(allocations: Allocations) -> Estimate | Missing:
    """Most device memory that the allocator reserved at once in the first steps, in use or cached."""
    return _of_device(allocations, "reserved_peak_bytes")


@metric(name="memory/cuda_process_peak_bytes", unit="B", better="lower")
def cuda_process_peak(allocations: Allocations) -> Estimate | Missing:
    """Most device memory of this process after any of the first steps, as the driver sees it, its context included."""
    return _of_device(allocations, "process_peak_bytes")


@metric(name="memory/cuda_device_peak_bytes", unit="B", better="lower")
def cuda_device_peak(allocations: Allocations) -> Estimate | Missing:
    """Most device memory that all processes together used after any of the first steps."""
    return _of_device(allocations, "device_peak_bytes")


def _of_device(allocations: Allocations, name: str) -> Estimate | Missing:
    if not allocations.device:
        return ON_HOST
    if name not in allocations.device:
        return Missing("the driver does not tell: nvidia-ml-py is not installed, or it sees no process in a container")
    return Estimate(allocations.device[name], "high-water mark")


# Energy and power, from the counters of the host.


@metric(name="energy/per_sample", unit="J", better="lower")
def per_sample(energy: Energy, batch_size: int) -> Estimate | Missing:
    """Energy of one step over the batch size, without what the idle machine takes in the same time."""
    return _beyond_idle(energy, batch_size)


@metric(name="energy/per_step", unit="J", better="lower")
def per_step(energy: Energy) -> Estimate | Missing:
    """Energy of one forward, training step or generation of the whole batch, without what the idle machine takes."""
    return _beyond_idle(energy, 1)


@metric(name="energy/per_token", unit="J", better="lower")
def per_token(energy: Energy, batch_size: int) -> Estimate | Missing:
    """Energy of one generation over its new tokens, those of all returned sequences, without what the idle machine takes."""
    if energy.new_tokens is None:
        return Missing("mode=generation is needed: nothing was generated")
    return _beyond_idle(energy, batch_size * energy.new_tokens)


@metric(name="energy/power", unit="W", better="lower")
def power(energy: Energy) -> Estimate:
    """Mean power of the processors and the GPU during the steps, that of the idle machine included."""
    by_counter = {name: joules / energy.seconds for name, joules in energy.joules.items()}
    return Estimate(energy.watts, "mean", detail={"idle": energy.idle_watts, **by_counter, **_not_included(energy)})


@metric(name="energy/utilization", unit="ratio", better="higher")
def utilization(energy: Energy) -> Estimate | Missing:
    """Share of the time in which the GPU ran a kernel, as its driver samples it; the mean during the steps."""
    if not any(name.startswith(GPU_COUNTER) for name in energy.joules):
        return ON_HOST
    if energy.utilization is None:
        return Missing("energy: NVML does not tell the utilization")
    return Estimate(energy.utilization, "mean")


def _beyond_idle(energy: Energy, parts: int) -> Estimate | Missing:
    """Return the energy of one of so many equal parts of a step."""
    joules = energy.joules_per_step / parts
    if joules <= 0:
        return Missing(f"the steps took {energy.watts:.3g} W and the idle machine {energy.idle_watts:.3g} W: no more")
    detail: dict[str, object] = {"steps": energy.steps}
    for name, total in energy.joules.items():
        idle = energy.idle_joules[name] / energy.idle_seconds * energy.seconds
        detail[name] = (total - idle) / energy.steps / parts
    return Estimate(joules, "mean", detail={**detail, **_not_included(energy)})


def _not_included(energy: Energy) -> dict[str, object]:
    return {} if energy.no_processor is None else {NO_PROCESSOR: energy.no_processor}
