"""Hydra's launchers: how many jobs they run at once, the options that a measurement needs, and waiting for shards.

The launchers' packages are never imported here; their behaviour was observed with the versions in ``constraints.txt``.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sweeprof.errors import Damaged, SweeprofError
from sweeprof.plan.plan import Plan
from sweeprof.results.files import unwritable
from sweeprof.run.locks import read_driver, wait_until_idle
from sweeprof.run.search import is_complete
from sweeprof.storage import Folder

GPUS = "CUDA_VISIBLE_DEVICES"
RAY: dict[str, dict[str, Any]] = {
    # Ray's workers yield to everything else on the host, and are what the system ends first when memory is short.
    "init": {"_system_config": {"worker_niceness": 0, "worker_oom_score_adjustment": 0}, "include_dashboard": False},
    # A shard whose worker died ends the sweep: Ray would run it again beside those that still run.
    "remote": {"max_retries": 0},
}
"""Defaults of Ray's options; only for a Ray that the launcher starts itself."""
STARTING_S = 600.0
"""How long a shard may take, beside its trials' limit, without a sign of life: for imports."""


def set_defaults(launcher: MutableMapping[str, Any]) -> None:
    """Set options without which a launcher would disturb the measurement, unless the config sets them."""
    if not str(launcher.get("_target_", "")).endswith(".RayLauncher"):
        return
    given = launcher["ray"]
    if given["init"].get("address") not in (None, "local"):  # an existing cluster, which has its own options
        return
    given["init"]["address"] = "local"  # by itself Ray joins a cluster that runs on this host, and then refuses options
    for part, options in RAY.items():
        for key, value in options.items():
            given[part].setdefault(key, value)


def restore_gpus(folder: Path) -> None:
    """Restore ``CUDA_VISIBLE_DEVICES`` if a launcher hides every GPU from its jobs, as submitit does unless GPUs are requested.

    If it names some GPUs, the job is to use these.
    """
    with suppress(OSError, Damaged):
        driver = read_driver(folder)
        if os.environ.get(GPUS) != "" or driver.host != socket.gethostname() or driver.gpus == "":
            return
        if driver.gpus is None:
            del os.environ[GPUS]
        else:
            os.environ[GPUS] = driver.gpus


Launch = Callable[[Folder, Plan, Sequence[int]], None]
"""Runs shards of the plan in the folder through a Hydra launcher; raises a SweeprofError if they continue without the driver."""


def launch_shards(plan: Plan, folder: Folder, launch: Launch, live: Console) -> None:
    """Launch the shards and wait until all of them have ended, also if the launcher has returned or failed before.

    Raises:
        WorkerError: nothing happens any longer, but another process has the lock of what runs trials.
        Exception: the launcher's, as when one of its jobs died; ``resume`` measures what is missing then.
    """
    if plan.cluster:  # its launcher follows each job by itself
        if not is_complete(plan, folder):  # of other sweeps it launches only shards that lack records
            launch(folder, plan, range(len(plan.shards)))
        return
    try:
        launch(folder, plan, range(len(plan.shards)))
    except SweeprofError:
        raise
    except Exception as error:
        if not unwritable(error, folder.path):
            _wait_for_shards(plan, folder, live)
        raise
    _wait_for_shards(plan, folder, live)


def _wait_for_shards(plan: Plan, folder: Folder, live: Console) -> None:
    limit_s = plan.limits.timeout_s
    silent_s = math.inf
    if limit_s is not None:
        groups = chain.from_iterable(map(plan.trial_groups, range(len(plan.shards))))
        silent_s = max(map(len, groups)) * (limit_s + STARTING_S)
    wait_until_idle(
        folder.path, lambda: live.print(Text("waiting for shards that still run", style="yellow")), silent_s
    )


def error_line(error: Exception) -> str:
    """Return an error in one line: those of Ray have many."""
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, SweeprofError) else f"{type(error).__name__}: {first}"
