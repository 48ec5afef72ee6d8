"""What Linux tells of a host's processors, limits and GPUs: readers of ``/proc`` and ``/sys``.

Every reader takes the root of the file system, so that it can be tested on a tree of files; what a system does not tell is None.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60
"""cgroup v1 writes a number of this kind where there is no limit on memory."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """An NVIDIA GPU as its driver lists it, in the order of the bus."""

    uuid: str
    model: str


def text(path: Path) -> str | None:
    """The stripped content of a file; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def cpu_model(root: Path = ROOT) -> str | None:
    """What the processor calls itself."""
    match = re.search(r"^model name\s*:\s*(.+)$", text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match[1] if match else None


def governor(root: Path = ROOT) -> str | None:
    """The frequency governor of the processors, several joined by commas."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = sorted({value for file in files if (value := text(file))})
    return ",".join(found) or None


def turbo(root: Path = ROOT) -> bool | None:
    """Whether processors may run faster than they can keep up."""
    folder = root / "sys/devices/system/cpu"
    off = text(folder / "intel_pstate/no_turbo")
    if off is not None:
        return off == "0"
    boost = text(folder / "cpufreq/boost")
    return None if boost is None else boost == "1"


def smt(root: Path = ROOT) -> bool | None:
    """Whether two logical processors share a core."""
    active = text(root / "sys/devices/system/cpu/smt/active")
    return None if active is None else active == "1"


def numa_nodes(root: Path = ROOT) -> int | None:
    """Memory nodes."""
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None


def clock_source(root: Path = ROOT) -> str | None:
    """Where the system's clock comes from."""
    return text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")


def is_virtual(root: Path = ROOT) -> bool:
    """Whether this is a virtual machine, whose host may lend its processors to others."""
    return re.search(r"^flags\s*:.*\bhypervisor\b", text(root / "proc/cpuinfo") or "", re.MULTILINE) is not None


def cpu_quota(root: Path = ROOT) -> float | None:
    """Processors that the control group may use, of both versions; None without a limit."""
    found = []
    for folder in _groups("cpu", root):
        limit = text(folder / "cpu.max")
        if limit is not None:
            quota, _, period = limit.partition(" ")
        else:
            quota, period = text(folder / "cpu.cfs_quota_us") or "-1", text(folder / "cpu.cfs_period_us") or "100000"
        if quota not in ("max", "-1"):
            found.append(int(quota) / int(period or 100000))
    return min(found, default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes that the control group may use, of both versions; None without a limit."""
    values = [
        text(folder / name) for folder in _groups("memory", root) for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min((int(v) for v in values if v and v.isdigit() and int(v) < UNLIMITED), default=None)


def throttled_periods(root: Path = ROOT) -> int | None:
    """How many periods the control group's quota has held its processes back."""
    seen = []
    for folder in _groups("cpu", root):
        match = re.search(r"^nr_throttled (\d+)$", text(folder / "cpu.stat") or "", re.MULTILINE)
        if match:
            seen.append(int(match[1]))
    return max(seen, default=None)


def overheated(root: Path = ROOT) -> int | None:
    """How often cores have slowed down because they were hot; None where the processor does not count."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    counts = [int(value) for file in files if (value := text(file)) and value.isdigit()]
    return sum(counts) if counts else None


def gpus(root: Path = ROOT) -> list[Gpu]:
    """The GPUs that NVIDIA's driver lists."""
    found = []
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        lines = dict(re.findall(r"^([^:]+):\s*(.+)$", text(file) or "", re.MULTILINE))
        found.append(Gpu(lines.get("GPU UUID", file.parent.name), lines.get("Model", "unknown")))
    return found


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's control group and of those above it, as mounted here, of either version."""
    mounts = root / "sys/fs/cgroup"
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mounts / controllers if controllers else mounts
        base = base if base.is_dir() else mounts / controller
        place = Path(path)
        for part in (place, *place.parents):
            folder = base / str(part).lstrip("/")
            if folder.is_dir():
                yield folder
