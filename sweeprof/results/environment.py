"""The environment of a measurement: host, processor, memory, load, versions, git revision; and interference by other processes."""

from __future__ import annotations

import getpass
import heapq
import math
import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

from sweeprof.results.record import Json, Stored, Warning

ROOT = Path("/")
UNLIMITED = 1 << 60
"""cgroup v1 writes such a large number if memory is not limited."""


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
    """Return the processor's model name."""
    match = re.search(r"^model name\s*:\s*(.+)$", text(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match[1] if match else None


def governor(root: Path = ROOT) -> str | None:
    """The frequency governor of the processors, several joined by commas."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return ",".join(sorted({text(file) or "" for file in files} - {""})) or None


def turbo(root: Path = ROOT) -> bool | None:
    """Return True if processors may exceed their base frequency; None if unknown."""
    folder = root / "sys/devices/system/cpu"
    off = text(folder / "intel_pstate/no_turbo")
    if off is not None:
        return off == "0"
    return _flag(folder / "cpufreq/boost")


def _flag(path: Path) -> bool | None:
    """Return True if a file of the system has a 1; None if it cannot be read."""
    flag = text(path)
    if flag is None:
        return None
    return flag == "1"


def smt(root: Path = ROOT) -> bool | None:
    """Return True if two logical processors share a core; None if unknown."""
    return _flag(root / "sys/devices/system/cpu/smt/active")


def numa_nodes(root: Path = ROOT) -> int | None:
    """Memory nodes."""
    return len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None


def clock_source(root: Path = ROOT) -> str | None:
    """Return the source of the system's clock."""
    return text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")


def is_virtual(root: Path = ROOT) -> bool:
    """True if this is a virtual machine, whose host may give its processors to others."""
    return re.search(r"^flags\s*:.*\bhypervisor\b", text(root / "proc/cpuinfo") or "", re.MULTILINE) is not None


def cpu_quota(root: Path = ROOT) -> float | None:
    """Processors that the control group may use, of both versions; None without a limit."""
    quotas = []
    for folder in _groups("cpu", root):
        limit = text(folder / "cpu.max")
        if limit is not None:
            quota, _, period = limit.partition(" ")
        else:
            quota, period = text(folder / "cpu.cfs_quota_us") or "-1", text(folder / "cpu.cfs_period_us") or ""
        if quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period or 100000))
    return min(quotas, default=None)


def usable_processors(root: Path = ROOT) -> int:
    """Return how many processors this process can keep busy: those that it may run on, if its control group allows as many."""
    available = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    if quota is None:
        return available
    return max(1, min(available, math.ceil(quota)))


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes that the control group may use, of both versions; None without a limit."""
    limits = []
    for folder in _groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            value = text(folder / name) or ""
            if value.isdigit() and int(value) < UNLIMITED:
                limits.append(int(value))
    return min(limits, default=None)


def throttled_periods(root: Path = ROOT) -> int | None:
    """Return in how many periods the control group's quota has throttled its processes."""
    seen = []
    for folder in _groups("cpu", root):
        match = re.search(r"^nr_throttled (\d+)$", text(folder / "cpu.stat") or "", re.MULTILINE)
        if match:
            seen.append(int(match[1]))
    return max(seen, default=None)


def overheated(root: Path = ROOT) -> int | None:
    """Return how often cores have slowed down because they were hot; None where the processor does not count."""
    counts = []
    for file in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        count = text(file) or ""
        if count.isdigit():
            counts.append(int(count))
    return sum(counts) if counts else None


def gpus(root: Path = ROOT) -> list[Gpu]:
    """The GPUs that NVIDIA's driver lists."""
    listed = []
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        lines = dict(re.findall(r"^([^:]+):\s*(.+)$", text(file) or "", re.MULTILINE))
        listed.append(Gpu(lines.get("GPU UUID", file.parent.name), lines.get("Model", "unknown")))
    return listed


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those above it, as mounted here, of either version."""
    mounts = root / "sys/fs/cgroup"
    for line in (text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mounts / controllers
        if not base.is_dir():
            base = mounts / controller
        for place in (Path(path), *Path(path).parents):
            folder = base / str(place).lstrip("/")
            if folder.is_dir():
                yield folder


PACKAGES = (
    *("sweeprof", "torch", "tensorflow", "keras", "jax", "onnxruntime", "ai-edge-litert", "openvino"),
    *("numpy", "hydra-core", "mlflow"),
)
"""Distributions whose versions a record has."""


def user_name() -> str | None:
    """Return the name of this process's user; None for one without a name, as in a container."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return None


def capture() -> Json:
    """Return the environment of this process as plain JSON data; unknown values are None."""
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "host": socket.gethostname(),
        "user": user_name(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": {
            "model": cpu_model() or platform.processor() or None,
            "architecture": platform.machine(),
            "logical": psutil.cpu_count(logical=True),
            "physical": psutil.cpu_count(logical=False),
            "available": len(os.sched_getaffinity(0)),
            "quota": cpu_quota(),
            "governor": governor(),
            "turbo": turbo(),
            "smt": smt(),
            "numa_nodes": numa_nodes(),
            "virtual": is_virtual(),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": memory_limit(),
        "gpus": [gpu.model for gpu in gpus()],
        "load": load(),
        "versions": versions,
        "git": _git(Path.cwd()),
        "scheduler": scheduler(),
    }


def host_columns(settings: Mapping[str, object]) -> dict[str, str | int]:
    """Return this host as columns of a table; a text says why a value is not known.

    Args:
        settings: of the framework, of which ``threads`` and ``inter-op threads`` are read.
    """
    columns = dict(_hardware())
    for column, name in (("host_threads", "threads"), ("host_interop_threads", "inter-op threads")):
        value = settings.get(name)
        columns[column] = value if isinstance(value, int) else "unknown: the framework does not tell"
    return columns


@cache  # for every profile of a process
def _hardware() -> Mapping[str, str | int]:
    unknown = "unknown: the system does not tell"
    return {
        "host_name": socket.gethostname(),
        "host_os": platform.system(),
        "host_os_release": platform.release(),
        "host_cpu": cpu_model() or platform.processor() or unknown,
        "host_architecture": platform.machine(),
        "host_physical_cores": psutil.cpu_count(logical=False) or unknown,
        "host_logical_cores": psutil.cpu_count(logical=True) or unknown,
        "host_memory_bytes": psutil.virtual_memory().total,
        "host_gpus": ", ".join(gpu.model for gpu in gpus()) or "none: NVIDIA's driver lists no GPU",
    }


def scheduler() -> Json | None:
    """Return the job of a cluster that this process runs in, its node and how often it was started again; None outside of any."""
    name = os.environ.get("SWEEPROF_SCHEDULER")
    if name is not None:
        return {
            "name": name,
            "cluster": None,
            "job": os.environ.get("SWEEPROF_JOB"),
            "node": os.environ.get("SWEEPROF_NODE"),
            "partition": None,
            "restarts": int(os.environ.get("SWEEPROF_RESTARTS") or 0),
        }
    id = os.environ.get("SLURM_JOB_ID")
    if id is None:
        return None
    array, number = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and number:
        id = f"{array}_{number}"
    return {
        "name": "slurm",
        "cluster": os.environ.get("SLURM_CLUSTER_NAME"),
        "job": id,
        "node": os.environ.get("SLURMD_NODENAME"),
        "partition": os.environ.get("SLURM_JOB_PARTITION"),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def oom_kills() -> int:
    """Return the number of processes that the kernel has killed for lack of memory since it started; 0 if unknown."""
    match = re.search(r"^oom_kill (\d+)$", text(Path("/proc/vmstat")) or "", re.MULTILINE)
    return int(match[1]) if match else 0


def process_age() -> float:
    """Return how many seconds ago this process was started."""
    stat = text(Path("/proc/self/stat"))
    if stat is None:  # as on macOS
        return time.time() - psutil.Process().create_time()
    # psutil would add the time of the boot, which is cut to a second. It is the 22nd field of proc(5); a bracket ends the second.
    fields = stat.rpartition(")")[2].split()
    started = int(fields[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / TICKS


def _git(folder: Path) -> Json | None:
    """Return the revision of the user's code in ``folder``; None without a repository or git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"revision": revision.removesuffix("-dirty"), "dirty": revision.endswith("-dirty")}


LOAD_WARNING = 0.25
"""Busy processors of others, per processor, above which a measurement is disturbed."""
SHORTEST_S = 0.2
"""The system counts in hundredths of a second, which is too coarse for shares of a shorter time."""
NAMED = 3
WORTH_NAMING = 0.05
"""Processors that a process must have kept busy to be named in a warning."""
LEAST_LISTED = 0.01
"""Processors that a process must have kept busy to be listed."""
MOST_PROCESSES = 1000
"""If there are more, single processes are not read, because it would delay a trial for too long."""
TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process and the processor seconds that it has taken."""

    parent: int
    seconds: float
    with_ended: float
    """Also those of its children that have ended."""


@dataclass(frozen=True, slots=True)
class Look:
    """The counters at one time."""

    time: float
    busy_s: float
    """Processor seconds of everyone since the start of the system."""
    own_s: float
    """Processor seconds of this process and its ended children."""
    processes: dict[int, Process] | None
    """By process id; None where there are too many."""
    load: float
    throttled: int | None
    overheated: int | None


def look(root: Path = ROOT) -> Look:
    """Return the counters as they are now."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # A guest's time is in the user's already.
    busy = sum(times) - idle - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    spent = os.times()
    return Look(
        time=time.monotonic(),
        busy_s=busy,
        own_s=sum(spent[:4]),
        processes=_processes(root),
        load=os.getloadavg()[0],
        throttled=throttled_periods(root),
        overheated=overheated(root),
    )


def between(before: Look, after: Look, family: int, root: Path = ROOT) -> Json:
    """Return what other processes than ``family`` and its descendants did between two looks, as plain data.

    ``seconds``; ``busy``: processors that others kept busy on average, None where the time was too short to tell; ``top``: those
    who did most; ``load``: the load average at both ends; ``throttled``, ``overheated``: by how much these counters grew.
    """
    seconds = after.time - before.time
    others = after.busy_s - before.busy_s
    top: list[Json] = []
    if before.processes is None or after.processes is None:
        others -= after.own_s - before.own_s
    else:
        members = _members(after.processes, family)
        others -= sum(after.processes[pid].with_ended for pid in members)
        others += sum(before.processes[pid].with_ended for pid in _members(before.processes, family))
        grown = {}
        for pid in after.processes.keys() - members:
            earlier = before.processes[pid].seconds if pid in before.processes else 0.0
            grown[pid] = (after.processes[pid].seconds - earlier) / max(seconds, SHORTEST_S)
        for pid in heapq.nlargest(NAMED, grown, key=grown.__getitem__):
            if grown[pid] >= LEAST_LISTED:
                name = text(root / "proc" / str(pid) / "comm") or "ended"
                top.append({"pid": pid, "name": name, "busy": round(grown[pid], 2)})
    busy: float | None = None
    if seconds < SHORTEST_S:
        top = []
    else:
        busy = round(max(0.0, others / seconds), 2)
    return {
        "seconds": round(seconds, 3),
        "busy": busy,
        "top": top,
        "load": [round(before.load, 2), round(after.load, 2)],
        "throttled": _growth(before.throttled, after.throttled),
        "overheated": _growth(before.overheated, after.overheated),
    }


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def warnings_of(activity: Json) -> list[Warning]:
    """Return the warnings about the result of :func:`between`."""
    warnings = []
    processors = psutil.cpu_count() or 1
    busy = activity["busy"]
    if busy is not None and busy > LOAD_WARNING * processors:
        text = f"other processes used {busy:.1f} of {processors} CPUs during the trial"
        top = [process for process in activity["top"] if process["busy"] >= WORTH_NAMING]
        if top:
            text += ": " + ", ".join(f"{process['name']} {process['busy']:.1f}" for process in top)
        warnings.append(Warning("load_high", text, "close other programs"))
    if activity["throttled"]:
        text = f"the container's CPU quota held the trial back in {activity['throttled']} periods"
        warnings.append(Warning("throttled", text, "raise the quota, or lower backend.threads below it"))
    if activity["overheated"]:
        text = f"cores slowed down {activity['overheated']} times because they were hot"
        warnings.append(Warning("throttled", text, "cool the machine, or switch turbo off"))
    return warnings


def governor_warnings(root: Path = ROOT) -> list[Warning]:
    """Return a warning if the frequency governor is known and not ``performance``."""
    name = governor(root)
    if name is None or name == "performance":
        return []
    text = f"the frequency governor is {name}: processors change their speed meanwhile"
    return [Warning("governor", text, "sudo cpupower frequency-set --governor performance")]


def _processes(root: Path) -> dict[int, Process] | None:
    folder = f"{root}/proc"
    pids = [name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208  # a tenth of what iterdir takes
    if len(pids) > MOST_PROCESSES:
        return None
    processes = {}
    for pid in pids:
        with suppress(OSError):  # it has ended
            descriptor = os.open(f"{folder}/{pid}/stat", os.O_RDONLY)
            try:
                fields = os.read(descriptor, 4096).rpartition(b")")[2].split()  # a name may hold spaces and brackets
            finally:
                os.close(descriptor)
            user, system, ended_user, ended_system = map(int, fields[11:15])
            with_ended = (user + system + ended_user + ended_system) / TICKS
            processes[int(pid)] = Process(int(fields[1]), (user + system) / TICKS, with_ended)
    return processes


def _members(processes: Mapping[int, Process], family: int) -> set[int]:
    """Return the process and all that descend from it, as far as they are known."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    members: set[int] = set()
    left = [family]
    while left:
        pid = left.pop()
        if pid not in members:
            members.add(pid)
            left += children.get(pid, ())
    return members & processes.keys()


@dataclass(frozen=True, slots=True)
class PeakSettings:
    """The settings of this process that the peaks of a machine depend on."""

    dtype: str
    device: str
    threads: int
    numerics: tuple[str, ...] = ()
    """Other settings that change how fast a product is, e.g. whether TF32 is allowed."""


@dataclass(frozen=True, slots=True)
class Peaks(Stored):
    """The best that short benchmarks reached, in the data type, on the device and with the threads of the combination.

    Raises:
        ValueError: a rate is not a finite number above zero.
        TypeError: a rate is not a number.
    """

    flops_per_s: float
    """A matrix product of two large square matrices, two FLOPs for each multiply-accumulate."""
    bytes_per_s: float
    """A copy between two arrays larger than the caches, bytes read and bytes written."""
    dtype: str
    device: str
    threads: int
    is_cached: bool = False
    """True if the figures were measured on this host before."""

    def __post_init__(self) -> None:
        for rate in (self.flops_per_s, self.bytes_per_s):
            if not math.isfinite(rate) or rate <= 0:
                raise ValueError(f"a peak is a finite rate above zero, not {rate!r}")

    @property
    def ridge(self) -> float:
        """FLOPs per byte above which a computation is limited by arithmetic."""
        return self.flops_per_s / self.bytes_per_s
