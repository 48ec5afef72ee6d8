"""NVIDIA GPUs as their management library (NVML) shows them: energy, memory of processes, and the state that times depend on.

No other file uses NVML, which the package nvidia-ml-py brings (the extra ``cuda``).

Source: NVML API Reference Guide, https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sweeprof.errors import Unsupported
from sweeprof.results.record import Json, Stored, Warning

CUDA_DEVICES = ("cuda", "gpu")
"""Kinds of devices that are NVIDIA's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState(Stored):
    """The state of a GPU, on which measured times depend. That of a slice (MIG) is the state of its whole GPU with the processes of
    the slice. A field is None where NVML gives no value.
    """

    driver: str | None = None
    power_limit_w: float | None = None
    power_w: float | None = None
    celsius: int | None = None
    sm_mhz: int | None = None
    most_sm_mhz: int | None = None
    memory_mhz: int | None = None
    held_back_by: tuple[str, ...] | None = None
    """What holds the clocks down now."""
    hot_s: float | None = None
    """Seconds, since the driver was loaded, for which heat has held the clocks down."""
    limited_s: float | None = None
    """The same of the limit of power."""
    processes: Mapping[int, int | None] | None = None
    """Bytes of each process that computes on it, by its id; None: unknown."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a field is None, by its name."""
    reason: str | None = None
    """Why nothing is known."""


class Gpu:
    """A GPU, or a slice of one (MIG); to be closed.

    Args:
        name: as the frameworks of this process call it (``cuda``, ``cuda:1``), or its UUID.

    Raises:
        Unsupported: it is not NVIDIA's, NVML is not installed, or NVML has no such GPU.
    """

    def __init__(self, name: str) -> None:
        kind = name.partition(":")[0]
        if kind not in CUDA_DEVICES and not name.startswith(("GPU-", "MIG-")):
            raise Unsupported(f"{name}: only the driver of NVIDIA GPUs is read")
        try:
            self._nvml: Any = import_module("pynvml")
        except ImportError:
            raise Unsupported("the package nvidia-ml-py is not installed: pip install 'sweeprof[cuda]'") from None
        self.token = _token_of(name) if kind in CUDA_DEVICES else name
        """Its UUID, or its number in the order of the bus."""
        self.is_slice = self.token.startswith("MIG-")
        with self._errors():
            self._nvml.nvmlInit()
            if self.token.isdigit():
                self._handle = self._nvml.nvmlDeviceGetHandleByIndex(int(self.token))
            else:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self.token)
            self._whole = self._handle
            if self.is_slice:
                self._whole = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)

    def close(self) -> None:
        """Release NVML."""
        with self._errors():
            self._nvml.nvmlShutdown()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise :class:`Unsupported` in place of NVML's errors; an old library may also lack a function."""
        try:
            yield
        except (self._nvml.NVMLError, AttributeError) as error:
            raise Unsupported(f"NVML: {error}") from None

    def processes(self) -> dict[int, int | None]:
        """Return the bytes of each process that computes on it, contexts and libraries included, by its id; None: unknown.

        Raises:
            Unsupported: NVML does not tell.
        """
        with self._errors():
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return {process.pid: process.usedGpuMemory for process in running}

    def own_bytes(self) -> int:
        """Return the bytes of this process, which computes on the GPU.

        Raises:
            Unsupported: NVML does not tell.
        """
        running = self.processes()
        if os.getpid() in running:
            size = running[os.getpid()]
        elif len(running) == 1:  # in a container process ids are others: the only one that computes is this process
            (size,) = running.values()
        else:
            raise Unsupported(f"NVML: this process is not one of the {len(running)} that compute on the GPU")
        if size is None:
            raise Unsupported("NVML: the driver does not tell the memory of processes")
        return size

    def joules(self) -> float:
        """Return what the counter of energy shows.

        Raises:
            Unsupported: it has none.
        """
        if self.is_slice:
            raise Unsupported("a slice of a GPU (MIG) has no counter of its own")
        with self._errors():
            millijoules: int = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        return millijoules / 1e3

    def utilization(self) -> float:
        """Return the share of the last part of a second in which a kernel was running.

        Raises:
            Unsupported: NVML does not tell, as of a slice.
        """
        with self._errors():
            percent: int = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        return percent / 100

    def state(self) -> GpuState:
        """Return what times depend on."""
        nvml, whole = self._nvml, self._whole
        readings: dict[str, Callable[[], object]] = {
            "driver": lambda: str(nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(whole) / 1e3,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(whole) / 1e3,
            "celsius": lambda: nvml.nvmlDeviceGetTemperature(whole, nvml.NVML_TEMPERATURE_GPU),
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM),
            "most_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(whole, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_MEM),
            "held_back_by": lambda: _reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(whole)),
            "hot_s": lambda: (
                nvml.nvmlDeviceGetViolationStatus(whole, nvml.NVML_PERF_POLICY_THERMAL).violationTime / 1e9
            ),
            "limited_s": lambda: (
                nvml.nvmlDeviceGetViolationStatus(whole, nvml.NVML_PERF_POLICY_POWER).violationTime / 1e9
            ),
            "processes": self.processes,
        }
        values: dict[str, Any] = {}
        reasons: dict[str, str] = {}
        for name, read in readings.items():
            try:
                with self._errors():
                    values[name] = read()
            except Unsupported as error:
                reasons[name] = str(error)
        return GpuState(**values, reasons=reasons)


REASONS = {
    0x04: "the limit of power",
    0x08: "a hardware slowdown",
    0x20: "heat",
    0x40: "heat",
    0x80: "the power supply",
}
"""Bits of NVML's reasons for lower clocks, without those of an idle GPU and of clocks that somebody has set."""
HELD_BACK = 0.02
"""Share of a trial for which something held the clocks down that is worth a warning."""
SLOWER = 0.9
"""Share of the highest clock below which a clock that changes is worth a warning."""


def _reasons(bits: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for bit, text in REASONS.items() if bits & bit))


def state_of(name: str) -> GpuState:
    """Return :meth:`Gpu.state`, or the reason why there is none."""
    try:
        with closing(Gpu(name)) as gpu:
            return gpu.state()
    except Unsupported as error:
        return GpuState(reason=str(error))


def others_of(before: GpuState, after: GpuState, own: Collection[int]) -> list[Json]:
    """Return the processes ``{pid, bytes}`` but those of the sweep that computed on the GPU when a trial began or ended.

    Args:
        before: the state of the GPU when the trial began.
        after: when it ended.
        own: ids of this process and of the sweep's others. In a container NVML knows processes by other ids: what computes only
            at the end is then taken for this process.
    """
    first, last = dict(before.processes or {}), dict(after.processes or {})
    if os.getpid() not in last:
        own = last.keys() - first.keys()
    return [{"pid": pid, "bytes": size} for pid, size in {**first, **last}.items() if pid not in own]


def trial_warnings(before: GpuState, after: GpuState, others: Sequence[Json], seconds: float) -> list[Warning]:
    """Return what speaks against the times of a trial.

    Args:
        before: the state of the GPU when the trial began.
        after: when it ended.
        others: processes as of :func:`others_of`.
        seconds: that the trial took.
    """
    warnings = []
    reasons = list(after.held_back_by or ())
    for first, last, reason in (
        (before.hot_s, after.hot_s, "heat"),
        (before.limited_s, after.limited_s, "the limit of power"),
    ):
        if first is not None and last is not None and last - first > HELD_BACK * seconds:
            reasons.append(reason)
    if reasons:
        text = f"the GPU's clock was held down by {' and '.join(dict.fromkeys(reasons))}"
        if after.celsius is not None:
            text += f", at {after.celsius} °C"
        advice = "cool the GPU, or measure at a clock that it can keep: sudo nvidia-smi --lock-gpu-clocks=MHZ"
        warnings.append(Warning("gpu_throttled", text, advice))
    clock, most = after.sm_mhz, after.most_sm_mhz
    if not reasons and clock is not None and most is not None and before.sm_mhz != clock < SLOWER * most:
        text = f"the GPU's clock changed from {before.sm_mhz} to {clock} MHz, and can be {most}"
        warnings.append(Warning("gpu_clocks", text, f"fix it: sudo nvidia-smi --lock-gpu-clocks={clock}"))
    if others:
        pids = ", ".join(str(process["pid"]) for process in others)
        text = f"other processes computed on the same GPU: {pids}"
        warnings.append(Warning("gpu_shared", text, "end them, or use another GPU"))
    return warnings


def _token_of(device: str) -> str:
    """Return the entry of ``CUDA_VISIBLE_DEVICES`` that ``cuda:NUMBER`` is, or its number where the variable is not set."""
    number = int(device.partition(":")[2] or 0)
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return visible[number] if number < len(visible) else str(number)
