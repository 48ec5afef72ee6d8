"""What is known of Hydra's launchers: how many jobs they run at once, and what they do to a job that a measurement would show.

Packages of theirs are never imported here; what is said of them was seen with the versions in ``constraints.txt``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeprof.errors import Damaged
from sweeprof.sweep.hold import read_head

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
SLURM = "hydra_plugins.sweeprof_plugins.slurm.SlurmLauncher"
"""Our own, which ``cluster=slurm`` chooses; submitit has one of the same class name."""
GPUS = "CUDA_VISIBLE_DEVICES"
RAY: dict[str, dict[str, Any]] = {
    # Ray's workers yield to everything else on the host, and are what the system ends first when memory is short.
    "init": {"_system_config": {"worker_niceness": 0, "worker_oom_score_adjustment": 0}, "include_dashboard": False},
    # A shard whose worker died is launched again by the head, which knows what killed it twice.
    "remote": {"max_retries": 0},
}
"""Options of Ray that hold unless others are given; only for a Ray that the launcher starts itself."""


def at_once(launcher: Mapping[str, Any]) -> int:
    """How many jobs a launcher of this config runs at once: what its options say, else one per processor."""
    processors = os.cpu_count() or 1
    package, _, kind = str(launcher.get("_target_", "")).rpartition(".")
    if kind == "BasicLauncher":
        return 1
    if kind == "JoblibLauncher":
        jobs = launcher.get("n_jobs") or processors
        return int(jobs) if jobs > 0 else max(1, processors + 1 + jobs)
    if kind == "RayLauncher":
        return int(launcher["ray"]["init"].get("num_cpus") or processors)
    if package.endswith("submitit_launcher") and kind == "SlurmLauncher":
        return min(processors, int(launcher.get("array_parallelism") or processors))
    return processors


def set_defaults(launcher: MutableMapping[str, Any]) -> None:
    """Set what a launcher would otherwise do to the disadvantage of a measurement, where nothing else is given."""
    if not str(launcher.get("_target_", "")).endswith(".RayLauncher"):
        return
    given = launcher["ray"]
    if given["init"].get("address") is not None:  # it is somebody's cluster, with options of its own
        return
    for part, options in RAY.items():
        for key, value in options.items():
            given[part].setdefault(key, value)


def uncover_gpus(folder: Path) -> None:
    """Undo that a launcher hides every GPU of the host from its jobs, as submitit does unless it is asked for some.

    GPUs that it names are those that the job is to use.
    """
    with suppress(OSError, Damaged):
        head = read_head(folder)
        if os.environ.get(GPUS) != "" or head["host"] != socket.gethostname() or head["gpus"] == "":
            return
        if head["gpus"] is None:
            del os.environ[GPUS]
        else:
            os.environ[GPUS] = head["gpus"]
