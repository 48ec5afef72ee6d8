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
    """Whether it makes small differences untrustworthy, or measurements on the named device impossible."""


def known(section: str, name: str, value: object | None, reason: str = "the system does not report it") -> Finding:
    """A finding without advice; ``reason`` counts where there is no value."""
    if value is None:
        return Finding(section, name, None, reason)
    if isinstance(value, bool):
        return Finding(section, name, "yes" if value else "no")
    return Finding(section, name, str(value))


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
    most = usable_threads(root)
    text = "threads of a trial, times shards, should be no more than the cores"
    yield Finding(section, "threads", f"at most {most}", advice=Advice(text, f"backend.threads={most}"))
    governor = known(section, "frequency governor", environment.governor(root))
    if governor.value not in (None, "performance"):
        advice = Advice("let processors keep one speed", "sudo cpupower frequency-set --governor performance")
        governor = dataclasses.replace(governor, advice=advice, distorts=True)
    yield governor
    turbo = known(section, "turbo", environment.turbo(root))
    if turbo.value == "yes":
        value, file = "0", "cpufreq/boost"
        if (root / "sys/devices/system/cpu/intel_pstate/no_turbo").exists():
            value, file = "1", "intel_pstate/no_turbo"
        command = f"echo {value} | sudo tee /sys/devices/system/cpu/{file}"
        advice = Advice("the speed depends on heat and on neighbours", command)
        turbo = dataclasses.replace(turbo, advice=advice, distorts=True)
    yield turbo
    smt = known(section, "two threads a core (SMT)", environment.smt(root))
    if smt.value == "yes":
        command = "echo off | sudo tee /sys/devices/system/cpu/smt/control"
        smt = dataclasses.replace(smt, advice=Advice("what runs on a core's other half slows it down", command))
    yield smt
    nodes = environment.numa_nodes(root)
    numa = known(section, "memory nodes (NUMA)", nodes)
    if nodes and nodes > 1:
        advice = Advice("keep a measurement on one node", "numactl --cpunodebind=0 --membind=0 python -m sweeprof …")
        numa = dataclasses.replace(numa, advice=advice)
    yield numa
    virtual = known(section, "virtual machine", environment.is_virtual(root))
    if virtual.value == "yes":
        text = "its host may lend the processors to others: interleave the samples"
        virtual = dataclasses.replace(virtual, advice=Advice(text, "protocol.interleave=samples"))
    yield virtual


def usable_threads(root: Path = environment.ROOT) -> int:
    """Return how many threads can run at once without sharing a core: by cores, affinity and quota."""
    cores = min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))
    quota = environment.cpu_quota(root)
    return max(1, min(cores, int(quota) if quota else cores))


def limits(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the limits of the container, the memory and the disk."""
    section = "Limits"
    quota = environment.cpu_quota(root)
    cpu = known(section, "CPU quota of the container", quota, "no limit")
    if quota is not None:
        text = "a quota stops all threads in turns: give whole processors instead"
        cpu = dataclasses.replace(cpu, advice=Advice(text, "docker run --cpuset-cpus=0-1 …"), distorts=True)
    yield cpu
    yield known(section, "periods throttled so far", environment.throttled_periods(root))
    memory = environment.memory_limit(root)
    yield known(section, "memory limit of the container", _gib(memory) if memory else None, "no limit")
    yield known(section, "memory", _gib(psutil.virtual_memory().total))
    yield known(section, "memory available", _gib(psutil.virtual_memory().available))
    yield known(section, "disk free here", _gib(shutil.disk_usage(Path.cwd()).free))


def gpus(root: Path = environment.ROOT) -> Iterator[Finding]:
    """Yield the GPUs that a driver lists."""
    gpus = environment.gpus(root)
    for number, gpu in enumerate(gpus):
        yield known("GPUs", f"{number}", f"{gpu.model} ({gpu.uuid})")
    if not gpus:
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
    for process in seen["top"]:
        yield known(section, f"process {process['pid']}", f"{process['name']} {process['busy']:.2f}")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
