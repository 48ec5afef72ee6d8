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

from sweeprof.results import system

PACKAGES = ("sweeprof", "torch", "tensorflow", "keras", "numpy", "hydra-core", "mlflow")


def capture() -> dict[str, Any]:
    """The environment of this process as plain JSON data; what a system does not tell is None."""
    return {
        "host": socket.gethostname(),
        "user": _user(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": {
            "model": system.cpu_model() or platform.processor() or None,
            "architecture": platform.machine(),
            "logical": psutil.cpu_count(logical=True),
            "physical": psutil.cpu_count(logical=False),
            "available": len(os.sched_getaffinity(0)),
            "quota": system.cpu_quota(),
            "governor": system.governor(),
            "turbo": system.turbo(),
            "smt": system.smt(),
            "numa_nodes": system.numa_nodes(),
            "virtual": system.is_virtual(),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "memory_limit_bytes": system.memory_limit(),
        "gpus": [gpu.model for gpu in system.gpus()],
        "load": load(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "git": _git(Path.cwd()),
        "scheduler": scheduler(),
    }


def scheduler() -> dict[str, Any] | None:
    """The job of a cluster that this process runs in, its node and how often it was started again; None outside of any."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    array, number = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return {
        "name": "slurm",
        "cluster": os.environ.get("SLURM_CLUSTER_NAME"),
        "job": f"{array}_{number}" if array and number else job,
        "node": os.environ.get("SLURMD_NODENAME"),
        "partition": os.environ.get("SLURM_JOB_PARTITION"),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
    }


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not tell."""
    match = re.search(r"^oom_kill (\d+)$", system.text(Path("/proc/vmstat")) or "", re.MULTILINE)
    return int(match[1]) if match else 0


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        return None


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
