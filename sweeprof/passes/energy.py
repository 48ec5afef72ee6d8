"""Energy of a step, from the counters of the processor (RAPL, through the kernel's powercap) and of an NVIDIA GPU (NVML).

That of the idle machine is measured, too: a metric subtracts it.

Source: Linux, Documentation/power/powercap/powercap.rst.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sweeprof.backends import Backend
from sweeprof.errors import Unsupported
from sweeprof.measuring.nvml import CUDA_DEVICES, Gpu
from sweeprof.passes.memory import whole_step
from sweeprof.passes.registry import Pass, Session
from sweeprof.results.record import Stored

POWERCAP = "SWEEPROF_POWERCAP"
"""Environment variable: the folder of the kernel's powercap, where it is not ``/sys/class/powercap``, as in some containers."""
GPU_COUNTER = "GPU"
"""The first word of the name of a GPU's counter."""
RAPL_UPDATE_S, NVML_UPDATE_S = 0.001, 0.1
"""Seconds between updates of the counters."""
READINGS_S = 0.5
"""Seconds between readings while the steps run. A reading can take as long as a step, in which the device does nothing: that of
NVML's counter took 3.7 ms on an H200 in a virtual machine. A processor's counter takes a minute at least to start again from
zero, and NVML averages the utilization over at most a second."""
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
    no_processor: str | None = None
    """Why the processors of the host are not among the counters; None if they are."""
    utilization: float | None = None
    """Of the GPU during the steps, the share of the time in which a kernel was running; None: there is none, or it is unknown."""
    new_tokens: int | None = None
    """Of all sequences that a step returns for a prompt; None: nothing was generated."""

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


@dataclass(frozen=True, slots=True)
class Meters:
    """What is read while a model runs."""

    counters: list[Counter]
    no_processor: str | None = None
    """As of :class:`Energy`."""
    utilization: Callable[[], float] | None = None
    """Reads that of the GPU; None: the model runs on none."""


@contextmanager
def meters_of(device: str) -> Iterator[Meters]:
    """Within the context: the counters of this host's processors and of the GPU that ``device`` names, if it is one.

    Raises:
        Unsupported: what the model runs on has no counter, with the reason.
    """
    kind = device.partition(":")[0]
    if kind != "cpu" and kind not in CUDA_DEVICES:
        raise Unsupported(f"{device}: only the energy of CPUs and of NVIDIA GPUs is read")
    powercap = Path(os.environ.get(POWERCAP) or "/sys/class/powercap")
    if kind == "cpu":
        yield Meters(rapl_counters(powercap))
        return
    with closing(Gpu(device)) as gpu:
        found, reason = [Counter(f"{GPU_COUNTER} {gpu.token}", gpu.joules, NVML_UPDATE_S)], None
        try:
            found += rapl_counters(powercap)
        except Unsupported as error:
            reason = str(error)
        yield Meters(found, reason, gpu.utilization)


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


def measured(
    step: Callable[[], object],
    meters: Meters,
    least_s: float,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Energy:
    """Return the energy of repeated steps, between two halves of idle time that last as long together.

    Args:
        step: returns when its work is done.
        meters: what is read twice a second.
        least_s: the shortest duration, longer where a counter is updated seldom.
        now: a clock in seconds.
        sleep: waits for so many seconds.
    """
    counters, utilization = meters.counters, meters.utilization
    duration = max(least_s, UPDATES * max(counter.update_s for counter in counters))
    idle_seconds, idle_joules = 0.0, dict.fromkeys((counter.name for counter in counters), 0.0)

    def idle() -> None:
        nonlocal idle_seconds
        opened, begin = _read(counters), now()
        sleep(duration / 2)
        for name, joules in _read(counters).items():
            idle_joules[name] += joules - opened[name]
        idle_seconds += now() - begin

    idle()
    opened, begin = _read(counters), now()
    steps, values, ended = 0, opened, begin
    busy: list[float] = []
    while ended - begin < duration:
        step()
        steps += 1
        if now() - begin < min(duration, ended - begin + READINGS_S):
            continue
        values, ended = _read(counters), now()
        if utilization is not None:
            try:
                busy.append(utilization())
            except Unsupported:
                utilization = None
    idle()
    joules = {name: values[name] - opened[name] for name in values}
    mean_busy = statistics.fmean(busy) if busy else None
    return Energy(steps, ended - begin, joules, idle_seconds, idle_joules, meters.no_processor, mean_busy)


def _read(counters: Sequence[Counter]) -> dict[str, float]:
    return {counter.name: counter.joules() for counter in counters}


def run(session: Session, _: Backend) -> Energy:
    """Return the energy of steps that last as long as a round of timing, after as much warming up."""
    protocol = session.protocol
    with (
        meters_of(session.device_name()) as meters,  # before a model is loaded for nothing
        session.working() as (model, work),
        whole_step(session, model, work) as step,
    ):
        clock = model.clock()
        begin, steps = clock.now(), 0
        while steps < protocol.warmup_steps or clock.now() - begin < protocol.warmup_s:
            step()
            steps += 1
        found = measured(step, meters, protocol.min_s)
        model.check_compiled()
        if work.generation is None:
            return found
        with session.generation_step(model, work) as generation:
            return replace(found, new_tokens=generation.new_tokens * generation.sequences_per_prompt)


PASS = Pass(name="energy", order=127, run=run, read=Energy.from_dict, kind="once", is_exclusive=True)
