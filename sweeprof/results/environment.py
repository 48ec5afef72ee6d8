"""What a measurement depends on beside the model: host, processor, memory, load, versions, the user's revision."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from sweeprof.results.record import Warning

PACKAGES = ("sweeprof", "torch", "tensorflow", "keras", "numpy", "hydra-core", "mlflow")
LOAD_WARNING = 0.25
"""Busy processors per processor, before a trial starts, above which a measurement is disturbed."""


def capture() -> dict[str, Any]:
    """The environment of this process as plain JSON data; what a system does not tell is None."""
    return {
        "host": socket.gethostname(),
        "user": _user(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": {
            "model": _cpu_model(),
            "architecture": platform.machine(),
            "logical": psutil.cpu_count(logical=True),
            "physical": psutil.cpu_count(logical=False),
            "available": len(os.sched_getaffinity(0)),
            "quota": _cpu_quota(),
            "governor": _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
        "load": load(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "git": _git(Path.cwd()),
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not tell."""
    match = re.search(r"^oom_kill (\d+)$", _text(Path("/proc/vmstat")) or "", re.MULTILINE)
    return int(match[1]) if match else 0


def busy_processors(seconds: float = 0.1) -> float:
    """How many processors are busy right now, by other processes: this one sleeps for ``seconds`` meanwhile."""
    return psutil.cpu_percent(seconds) / 100 * (psutil.cpu_count() or 1)


def load_warnings(busy: float) -> list[Warning]:
    """The warning that ``busy`` processors deserve, if any."""
    processors = psutil.cpu_count() or 1
    if busy <= LOAD_WARNING * processors:
        return []
    text = f"{busy:.1f} of {processors} processors were busy before the trial started"
    return [Warning("load_high", text, "close other programs")]


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _cpu_model() -> str | None:
    match = re.search(r"^model name\s*:\s*(.+)$", _text(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return match[1] if match else platform.processor() or None


def _cpu_quota() -> float | None:
    """Processors that the container may use (cgroup v2), None without a limit."""
    quota, _, period = (_text(Path("/sys/fs/cgroup/cpu.max")) or "max").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _gpus() -> list[str]:
    models = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(r"^Model:\s*(.+)$", _text(information) or "", re.MULTILINE)
        models.append(match[1] if match else information.parent.name)
    return models


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """Revision of the user's code in ``folder``; None where there is no repository or no git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"revision": found.removesuffix("-dirty"), "dirty": found.endswith("-dirty")}
