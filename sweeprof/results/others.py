"""What else ran on the host while something was measured, from two looks of about a millisecond, and none in between."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sweeprof.results.record import Warning
from sweeprof.results.system import ROOT, governor, overheated, text, throttled_periods

LOAD_WARNING = 0.25
"""Busy processors of others, per processor, above which a measurement is disturbed."""
SHORTEST_S = 0.2
"""The system counts in hundredths of a second: of less than this it cannot tell a share."""
NAMED = 3
WORTH_NAMING = 0.05
"""Processors that a process must have kept busy to be named in a warning."""
MOST_PROCESSES = 1000
"""Of more, single processes are not looked at: it would take longer than a trial may be kept waiting."""
TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process and the processor seconds that it has taken."""

    parent: int
    seconds: float
    with_ended: float
    """Also those of its children that have ended."""


@dataclass(frozen=True, slots=True)
class Look:
    """The counters of a moment."""

    time: float
    busy_s: float
    """Processor seconds of everyone since the start of the system."""
    own_s: float
    """Those of this process and its ended children."""
    processes: dict[int, Process] | None
    """By process id; None where there are too many."""
    load: float
    throttled: int | None
    overheated: int | None


def look(root: Path = ROOT) -> Look:
    """The counters as they are now."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # A guest's time is in the user's already.
    busy = sum(times) - idle - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    own = os.times()
    return Look(
        time=time.monotonic(),
        busy_s=busy,
        own_s=sum(own[:4]),
        processes=_processes(root),
        load=os.getloadavg()[0],
        throttled=throttled_periods(root),
        overheated=overheated(root),
    )


def between(before: Look, after: Look, family: int, root: Path = ROOT) -> dict[str, Any]:
    """What ran beside process ``family`` and what it started, from one look to the other, as plain data.

    ``seconds``; ``busy``: processors that others kept busy on average, None where the time was too short to tell; ``top``: those
    who did most; ``load``: the load average at both ends; ``throttled``, ``overheated``: by how much these counters grew.
    """
    seconds = after.time - before.time
    known = seconds >= SHORTEST_S
    busy = (after.busy_s - before.busy_s - _family_seconds(before, after, family)) / seconds if known else None
    return {
        "seconds": round(seconds, 3),
        "busy": None if busy is None else round(max(0.0, busy), 2),
        "top": list(_top(before, after, family, root)) if known else [],
        "load": [round(before.load, 2), round(after.load, 2)],
        "throttled": _growth(before.throttled, after.throttled),
        "overheated": _growth(before.overheated, after.overheated),
    }


def warnings_of(seen: dict[str, Any]) -> list[Warning]:
    """What :func:`between` gives reason to warn of."""
    found = []
    processors = psutil.cpu_count() or 1
    if seen["busy"] is not None and seen["busy"] > LOAD_WARNING * processors:
        names = ", ".join(f"{one['name']} {one['busy']:.1f}" for one in seen["top"] if one["busy"] >= WORTH_NAMING)
        said = f"others kept {seen['busy']:.1f} of {processors} processors busy during the trial"
        found.append(Warning("load_high", f"{said}: {names}" if names else said, "close other programs"))
    if seen["throttled"]:
        said = f"the container's CPU quota held the trial back in {seen['throttled']} periods"
        found.append(Warning("throttled", said, "raise the quota, or lower backend.threads below it"))
    if seen["overheated"]:
        said = f"cores slowed down {seen['overheated']} times because they were hot"
        found.append(Warning("throttled", said, "cool the machine, or switch turbo off"))
    return found


def governor_warnings(root: Path = ROOT) -> list[Warning]:
    """The warning that the frequency governor deserves, if any; one that the system does not tell deserves none."""
    found = governor(root)
    if found is None or found == "performance":
        return []
    said = f"the frequency governor is {found}: processors change their speed meanwhile"
    return [Warning("governor", said, "sudo cpupower frequency-set --governor performance")]


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _processes(root: Path) -> dict[int, Process] | None:
    folder = f"{root}/proc"
    pids = [name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208  # a tenth of what iterdir takes
    if len(pids) > MOST_PROCESSES:
        return None
    return {int(pid): found for pid in pids if (found := _process(f"{folder}/{pid}/stat")) is not None}


def _process(path: str) -> Process | None:
    """A process from its ``stat``; None where it has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fields = os.read(descriptor, 4096).rpartition(b")")[2].split()  # a name may hold spaces and brackets
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)
    user, system, ended_user, ended_system = map(int, fields[11:15])
    return Process(int(fields[1]), (user + system) / TICKS, (user + system + ended_user + ended_system) / TICKS)


def _members(processes: dict[int, Process], family: int) -> set[int]:
    """The process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    members, left = set[int](), [family]
    while left:
        members.add(pid := left.pop())
        left += [child for child in children.get(pid, ()) if child not in members]
    return members


def _family_seconds(before: Look, after: Look, family: int) -> float:
    if before.processes is None or after.processes is None:
        return after.own_s - before.own_s
    ends = (before.processes, after.processes)
    early, late = (sum(p[pid].with_ended for pid in _members(p, family) & p.keys()) for p in ends)
    return late - early


def _top(before: Look, after: Look, family: int, root: Path) -> Iterator[dict[str, Any]]:
    if before.processes is None or after.processes is None:
        return
    seconds = after.time - before.time
    others = after.processes.keys() - _members(after.processes, family)
    grown = {
        pid: after.processes[pid].seconds - (before.processes[pid].seconds if pid in before.processes else 0.0)
        for pid in others
    }
    for pid in sorted(grown, key=lambda pid: grown[pid], reverse=True)[:NAMED]:
        if grown[pid] >= 0.01 * seconds:
            name = text(root / "proc" / str(pid) / "comm") or "ended"
            yield {"pid": pid, "name": name, "busy": round(grown[pid] / seconds, 2)}
