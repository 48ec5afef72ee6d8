"""Hydra's launchers: how many jobs they run at once, the options that a measurement needs, and relaunching shards that died.

The launchers' packages are never imported here; their behaviour was observed with the versions in ``constraints.txt``.
"""

from __future__ import annotations

import math
import os
import socket
from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sweeprof.errors import Damaged, SweeprofError
from sweeprof.plan.plan import Plan, Trial
from sweeprof.results.files import unwritable
from sweeprof.run.locks import read_driver, wait_until_idle
from sweeprof.run.search import is_complete
from sweeprof.storage.events import TrialKey, begun, events_of
from sweeprof.storage.folder import Folder
from sweeprof.storage.missing_results import leave_record

GPUS = "CUDA_VISIBLE_DEVICES"
RAY: dict[str, dict[str, Any]] = {
    # Ray's workers yield to everything else on the host, and are what the system ends first when memory is short.
    "init": {"_system_config": {"worker_niceness": 0, "worker_oom_score_adjustment": 0}, "include_dashboard": False},
    # A shard whose worker died is relaunched by the driver, which knows which trial killed it twice.
    "remote": {"max_retries": 0},
}
"""Defaults of Ray's options; only for a Ray that the launcher starts itself."""
STARTING_S = 600.0
"""How long a shard may take, beside its trials' limit, without a sign of life: for imports."""
MOST_FAILURES = 10
"""The sweep ends after so many failed launches."""


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
    """Launch the shards until all of them have ended; raises the launcher's error if relaunching does not help.

    A trial that was running when its shard died is run once more; if its shard dies again, it gets a record that says so. Some
    launchers end every job with the one that died: if it is unclear which trial caused it, shards are relaunched one by one.
    """
    if plan.cluster:  # its launcher follows each job by itself
        if not is_complete(plan, folder):  # of other sweeps it launches only shards that lack records
            launch(folder, plan, range(len(plan.shards)))
        return
    relaunches = _Relaunches(plan, folder, live)
    queue = [list(range(len(plan.shards)))]
    while queue:
        shards = queue.pop(0)
        relaunches.begin()
        try:
            launch(folder, plan, shards)
            relaunches.wait()
        except SweeprofError:  # relaunching would not change it
            raise
        except Exception as error:
            if unwritable(error, folder.path) or not relaunches.has_progress():
                raise
            queue += relaunches.remaining(shards, error)


@dataclass(slots=True)
class _Relaunches:
    plan: Plan
    folder: Folder
    live: Console
    suspects: set[TrialKey] = field(default_factory=set)
    """Trials that were running when a shard died."""
    failures: int = 0
    _before: tuple[int, Counter[TrialKey]] = (0, Counter())

    def begin(self) -> None:
        """Count records and begun trials before shards are launched."""
        self._before = self._records(), self._starts()

    def wait(self) -> None:
        """Wait until no shard runs: a launcher may return or raise before its jobs have ended.

        Raises:
            WorkerError: nothing happens any longer, but another process has the lock of what runs trials.
        """
        limit_s = self.plan.limits.timeout_s
        sizes = [len(group) for shard in range(len(self.plan.shards)) for group in self.plan.trial_groups(shard)]
        silent_s = math.inf if limit_s is None else max(sizes) * (limit_s + STARTING_S)
        wait_until_idle(self.folder.path, lambda: self._print("waiting for shards that still run"), silent_s)

    def has_progress(self) -> bool:
        """Wait until the launcher's last job has ended; true if a trial began or has a record, so that relaunching may help."""
        self.wait()
        self.failures += 1
        progress = self._unfinished() or self._records() > self._before[0]
        return bool(progress) and self.failures < MOST_FAILURES and self.folder.stopped() is None

    def remaining(self, shards: Sequence[int], error: Exception) -> list[list[int]]:
        """Return the incomplete shards to launch next, together or one by one."""
        unfinished = self._unfinished()
        twice = unfinished & self.suspects
        self.suspects |= unfinished
        is_certain = len(unfinished) == 1 or len(shards) == 1
        if is_certain:  # these trials would only kill their shards again
            for key in sorted(twice):
                reason = f"its shard died twice while it ran ({error_line(error)})"
                leave_record(self.folder, self.plan, Trial(*key), "lost", reason)
        left = [shard for shard in shards if self._is_incomplete(shard)]
        if not left:
            return []
        self._print(f"the launcher failed: {error_line(error)}; relaunching what is left")
        return [[shard] for shard in left] if twice and not is_certain else [left]

    def _records(self) -> int:
        return sum(1 for _ in self.folder.records.glob("*/*-r*.json"))

    def _is_incomplete(self, shard: int) -> bool:
        return not all(self.folder.is_done(trial) for group in self.plan.trial_groups(shard) for trial in group)

    def _starts(self) -> Counter[TrialKey]:
        """Return how often each trial began, including earlier runs of the sweep."""
        return Counter(event.key for event in events_of(self.folder.events) if event.kind == "begin")

    def _unfinished(self) -> set[TrialKey]:
        """Return the trials that began in this launch and have no record."""
        now, earlier = self._starts(), self._before[1]
        new = (key for key in begun(self.folder.events) if now[key] > earlier[key])
        return {key for key in new if not self.folder.is_done(Trial(*key))}

    def _print(self, message: str) -> None:
        self.live.print(Text(message, style="yellow"), soft_wrap=True)


def error_line(error: Exception) -> str:
    """Return an error in one line: those of Ray have many."""
    first = (str(error).strip().splitlines() or [""])[0]
    return first if isinstance(error, SweeprofError) else f"{type(error).__name__}: {first}"
