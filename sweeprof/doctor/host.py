"""The processors, the memory, their limits and what else runs."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from sweeprof.results import environment


@dataclass(frozen=True, slots=True)
class Advice:
    """An advice: what to change, and how."""

    text: str
    command: str
    """For a shell."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of the output of ``sweeprof doctor``."""

    section: str
    name: str
    value: str | None
    """None if it is not known."""
    reason: str | None = None
    """Why it is not known."""
    advice: Advice | None = None
    distorts: bool = False
    """Whether it makes small differences untrustworthy."""


def known(section: str, name: str, value: object | None, reason: str = "the system does not report it") -> Finding:
    """A finding without advice; ``reason`` counts where there is no value."""
    if value is None:
        return Finding(section, name, None, reason)
    said = {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    return Finding(section, name, said)


GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
"""Clocks that are read without a call into the kernel."""
LOOK_S = 0.5


def processor(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the processors and how their speed changes."""
    section = "Processor"
    yield known(section, "model", environment.cpu_model(root))
    yield known(section, "cores", psutil.cpu_count(logical=False))
    yield known(section, "logical processors", psutil.cpu_count())
    yield known(section, "usable by this process", len(os.sched_getaffinity(0)))
    yield _threads(root)
    yield _governor(root)
    yield _turbo(root)
    yield _smt(root)
    nodes = environment.numa_nodes(root)
    found = known(section, "memory nodes (NUMA)", nodes)
    if nodes and nodes > 1:
        advice = Advice("keep a measurement on one node", "numactl --cpunodebind=0 --membind=0 python -m sweeprof …")
        found = dataclasses.replace(found, advice=advice)
    yield found
    virtual = known(section, "virtual machine", environment.is_virtual(root))
    if environment.is_virtual(root):
        advice = Advice(
            "its host may lend the processors to others: interleave the samples", "protocol.interleave=samples"
        )
        virtual = dataclasses.replace(virtual, advice=advice)
    yield virtual


def usable_threads(root: Path = environment.ROOT) -> int:
    """Return how many threads can run at once without sharing a core: by cores, affinity and quota."""
    cores = min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
    quota = environment.cpu_quota(root)
    return max(1, min(cores, int(quota) if quota else cores))


def _threads(root: Path) -> Finding:
    most = usable_threads(root)
    text = "threads of a trial, times trials at once (jobs, shards), should be no more than the cores"
    return Finding(
        "Processor", "threads", f"at most {most}", advice=Advice(text, f"backend.threads={most} parallel_trials=1")
    )


def _governor(root: Path) -> Finding:
    found = known("Processor", "frequency governor", environment.governor(root))
    if found.value in (None, "performance"):
        return found
    advice = Advice("let processors keep one speed", "sudo cpupower frequency-set --governor performance")
    return dataclasses.replace(found, advice=advice, distorts=True)


def _turbo(root: Path) -> Finding:
    on = environment.turbo(root)
    found = known("Processor", "turbo", on)
    if not on:
        return found
    intel = (root / "sys/devices/system/cpu/intel_pstate/no_turbo").exists()
    value, file = ("1", "intel_pstate/no_turbo") if intel else ("0", "cpufreq/boost")
    command = f"echo {value} | sudo tee /sys/devices/system/cpu/{file}"
    return dataclasses.replace(
        found, advice=Advice("the speed depends on heat and on neighbours", command), distorts=True
    )


def _smt(root: Path) -> Finding:
    on = environment.smt(root)
    found = known("Processor", "two threads a core (SMT)", on)
    if not on:
        return found
    command = "echo off | sudo tee /sys/devices/system/cpu/smt/control"
    return dataclasses.replace(found, advice=Advice("what runs on a core's other half slows it down", command))


def limits(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the limits of the container, the memory and the disk."""
    section = "Limits"
    quota = environment.cpu_quota(root)
    yield dataclasses.replace(
        known(section, "CPU quota of the container", quota, "no limit"),
        advice=Advice(
            "a quota stops all threads in turns: give whole processors instead", "docker run --cpuset-cpus=0-1 …"
        )
        if quota
        else None,
        distorts=quota is not None,
    )
    yield known(section, "periods throttled so far", environment.throttled_periods(root))
    memory = environment.memory_limit(root)
    yield known(section, "memory limit of the container", _gib(memory) if memory else None, "no limit")
    yield known(section, "memory", _gib(psutil.virtual_memory().total))
    yield known(section, "memory available", _gib(psutil.virtual_memory().available))
    yield known(section, "disk free here", _gib(shutil.disk_usage(Path.cwd()).free))


def gpus(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the GPUs that a driver lists."""
    found = environment.gpus(root)
    for i, gpu in enumerate(found):
        yield known("GPUs", f"{i}", f"{gpu.model} ({gpu.uuid})")
    if not found:
        yield known("GPUs", "NVIDIA", None, "no driver lists any")


def interference(seconds: float = LOOK_S) -> Iterator[Finding]:
    """Yield the load by other processes, over ``seconds``."""
    section = "Load"
    yield known(section, "averages over 1, 5, 15 minutes", ", ".join(f"{value:.2f}" for value in os.getloadavg()))
    before = environment.look()
    time.sleep(seconds)
    seen = environment.between(before, environment.look(), os.getpid())
    disturbed = environment.warnings_of(seen)
    busy = Finding(section, "processors busy with other things", f"{seen['busy']:.2f} of {psutil.cpu_count()}")
    if disturbed:
        advice = Advice("close other programs", "ps -eo pid,pcpu,comm --sort=-pcpu | head")
        busy = dataclasses.replace(busy, advice=advice, distorts=True)
    yield busy
    for one in seen["top"]:
        yield known(section, f"process {one['pid']}", f"{one['name']} {one['busy']:.2f}")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
