"""Energy of a step, from the counters of the processor (RAPL, through the kernel's powercap) and of an NVIDIA GPU (NVML).

That of the idle machine is measured, too: a metric subtracts it.

Sources: Linux, Documentation/power/powercap/powercap.rst; NVML, nvmlDeviceGetTotalEnergyConsumption.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sweeprof.backends import Backend
from sweeprof.errors import Unsupported
from sweeprof.passes.memory import whole_step
from sweeprof.passes.registry import Pass, Session
from sweeprof.results.record import Stored

POWERCAP = "SWEEPROF_POWERCAP"
"""Environment variable: the folder of the kernel's powercap, where it is not ``/sys/class/powercap``, as in some containers."""
RAPL_UPDATE_S, NVML_UPDATE_S = 0.001, 0.1
"""Seconds between updates of the counters."""
UPDATES = 100
"""Updates that a measurement lasts at least: its ends are then known to within 1%."""


class Counter:
    """A counter that grows, and starts again from zero at its largest value."""

    def __init__(self, name: str, read: Callable[[], float], update_s: float, range_j: float | None = None) -> None:
        """Args:
        name: e.g. ``package-0``.
        read: returns what the counter shows, in joules.
        update_s: seconds between updates.
        range_j: joules at which it starts again from zero; None: it never does.
        """
        self.name, self.update_s = name, update_s
        self._read, self._range = read, range_j
        self._last, self._total = read(), 0.0

    def joules(self) -> float:
        """Return the joules since the counter was opened; to be called at least once while it counts to its largest value."""
        now = self._read()
        grown = now - self._last
        if grown < 0:
            if self._range is None:
                raise Unsupported(f"the energy counter {self.name} went backwards, and does not tell its range")
            grown += self._range
        self._last = now
        self._total += grown
        return self._total


@dataclass(frozen=True, slots=True)
class Energy(Stored):
    """Energy of repeated steps, and of the idle machine before and after them with the same model loaded."""

    steps: int
    seconds: float
    """Of the steps together."""
    joules: Mapping[str, float]
    """Of the steps together, by the name of the counter."""
    idle_seconds: float
    idle_joules: Mapping[str, float]

    @property
    def idle_watts(self) -> float:
        return sum(self.idle_joules.values()) / self.idle_seconds

    @property
    def watts(self) -> float:
        """Mean power during the steps, that of the idle machine included."""
        return sum(self.joules.values()) / self.seconds

    @property
    def joules_per_step(self) -> float:
        """Joules per step beyond those of the idle machine."""
        return (self.watts - self.idle_watts) * self.seconds / self.steps


def counters(device: str) -> list[Counter]:
    """Return the counters of this host's processors, and of the GPU that ``device`` names.

    Raises:
        Unsupported: the host does not provide one of them, with the reason.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise Unsupported(f"{device}: only the energy of CPUs and of NVIDIA GPUs is read")
    processors = rapl_counters(Path(os.environ.get(POWERCAP) or "/sys/class/powercap"))
    return processors if kind == "cpu" else [*processors, gpu_counter(device)]


def rapl_counters(powercap: Path) -> list[Counter]:
    """Return a counter for each processor package, and for each memory that is counted apart from its package.

    Raises:
        Unsupported: there are none, or they cannot be read.
    """
    zones = sorted(zone for zone in powercap.glob("intel-rapl:*") if (zone / "energy_uj").exists())
    names = {zone.name: (zone / "name").read_text(encoding="utf-8").strip() for zone in zones}
    found = []
    for zone in zones:
        package, name = names.get(zone.name.rpartition(":")[0]), names[zone.name]
        if name.startswith("package") or (name == "dram" and package is not None):
            found.append(_rapl_counter(zone, name if package is None else f"{package} {name}"))
    if not found:
        raise Unsupported(
            f"this host provides no energy counters of its processors (RAPL): there are no packages in {powercap}. "
            "Virtual machines seldom have them"
        )
    return found


def _rapl_counter(zone: Path, name: str) -> Counter:
    file = zone / "energy_uj"

    def read() -> float:
        return int(file.read_text(encoding="ascii")) / 1e6

    try:
        largest = int((zone / "max_energy_range_uj").read_text(encoding="ascii")) / 1e6
        return Counter(name, read, RAPL_UPDATE_S, largest)
    except PermissionError:
        raise Unsupported(f"the energy counter cannot be read: {file} needs root, or 'sudo chmod o+r {file}'") from None


def gpu_counter(device: str, library: Any = None) -> Counter:
    """Return the counter of an NVIDIA GPU.

    Args:
        device: as torch calls it: ``cuda`` or ``cuda:1``.
        library: NVML's; None: that of the package ``nvidia-ml-py``.

    Raises:
        Unsupported: the package or the driver is missing, or the GPU has no such counter.
    """
    try:
        nvml = library or import_module("pynvml")
    except ImportError:
        raise Unsupported("the energy of the GPU comes from NVML: pip install nvidia-ml-py") from None
    number = int(device.partition(":")[2] or 0)
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    token = visible[number] if number < len(visible) else str(number)
    try:
        nvml.nvmlInit()
        is_number = token.isdigit()
        handle = nvml.nvmlDeviceGetHandleByIndex(int(token)) if is_number else nvml.nvmlDeviceGetHandleByUUID(token)
        return Counter(f"GPU {token}", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3, NVML_UPDATE_S)
    except nvml.NVMLError as error:
        raise Unsupported(f"the GPU does not provide its energy: NVML: {error}") from None


def measured(
    step: Callable[[], object],
    meters: Sequence[Counter],
    least_s: float,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Energy:
    """Return the energy of repeated steps, between two halves of idle time that last as long together.

    Args:
        step: returns when its work is done.
        meters: the counters to read.
        least_s: the shortest duration, longer where a counter is updated seldom.
        now: a clock in seconds.
        sleep: waits for so many seconds.
    """
    duration = max(least_s, UPDATES * max(meter.update_s for meter in meters))
    idle_seconds, idle_joules = 0.0, dict.fromkeys((meter.name for meter in meters), 0.0)

    def idle() -> None:
        nonlocal idle_seconds
        begin, opened = now(), _read(meters)
        sleep(duration / 2)
        for name, joules in _read(meters).items():
            idle_joules[name] += joules - opened[name]
        idle_seconds += now() - begin

    idle()
    begin, opened, steps = now(), _read(meters), 0
    while True:
        step()
        steps += 1
        values, ended = _read(meters), now()  # after each step, so that a counter starts again once at most in between
        if ended - begin >= duration:
            break
    idle()
    joules = {name: values[name] - opened[name] for name in values}
    return Energy(steps, ended - begin, joules, idle_seconds, idle_joules)


def _read(meters: Sequence[Counter]) -> dict[str, float]:
    return {meter.name: meter.joules() for meter in meters}


def run(session: Session, _: Backend) -> Energy:
    """Return the energy of steps that last as long as a round of timing, after as much warming up."""
    meters = counters(session.device_name())  # before a model is loaded for nothing
    protocol = session.protocol
    with session.working() as (model, work), whole_step(session, model, work) as step:
        clock = model.clock()
        begin, steps = clock.now(), 0
        while steps < protocol.warmup_steps or clock.now() - begin < protocol.warmup_s:
            step()
            steps += 1
        return measured(step, meters, protocol.min_s)


PASS = Pass(name="energy", order=127, run=run, read=Energy.from_dict, kind="once", is_exclusive=True)
