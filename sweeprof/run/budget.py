"""The budget of a sweep: when its trials must end, so that the reports are written within ``budget``.

On one machine the budget is that of the whole command. On a cluster it is node time: it is divided among the shards in proportion
to their planned work, and the time of each begins with its task.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeprof.config.units import parse_seconds
from sweeprof.errors import Damaged
from sweeprof.plan.plan import Plan, Trial, expected_seconds
from sweeprof.results.environment import process_age, text
from sweeprof.results.files import read_json, write_json
from sweeprof.results.validation import validated
from sweeprof.storage.folder import Folder

REPORTS_S = 1.5
"""Time that is kept for the end of a sweep …"""
REPORT_S = 0.05
"""… and for each combination: its reports and its run in the tracker."""
REPORTS_SHARE = 0.1
"""That is at most this share of the budget, so that most of a short one is for measuring, …"""
LEAST_REPORTS_S = 1.0
"""… but at least so long, …"""
LEAST_REPORT_S = 0.02
"""… with this for each combination."""


@dataclass(frozen=True, slots=True)
class _End:
    """The content of ``budget.json``."""

    ends: float
    """Seconds since the epoch, for shards that a launcher runs on other hosts."""
    monotonic: float
    """The same time by the monotonic clock of the driver's host, which nobody sets while the sweep runs."""
    boot: str | None
    """The boot of that host, since which its monotonic clock counts; None if unknown."""


def begin_budget(folder: Folder, plan: Plan) -> None:
    """Note when the trials of a sweep on this machine must end; the time since this process was started counts.

    What an earlier budget ended gets further rounds; with the first budget also what was given up before without one.
    """
    is_first = plan.budget is not None and not folder.budget.exists()
    folder.forget_decided(None if is_first else "budget")
    seconds = parse_seconds(plan.budget)
    if seconds is None or plan.cluster:
        folder.budget.unlink(missing_ok=True)
        return
    note_end(folder, seconds - process_age() - _reports_s(seconds, plan.size))


def note_end(folder: Folder, left_s: float) -> None:
    """Note that the trials of a sweep on this machine must end in ``left_s`` seconds."""
    write_json(folder.budget, _End(time.time() + left_s, time.monotonic() + left_s, _boot()))


def _boot() -> str | None:
    """Return the identifier of this host's current boot."""
    return text(Path("/proc/sys/kernel/random/boot_id"))


def trials_end(folder: Folder) -> float | None:
    """Return when the trials of a sweep on this machine must end, by this host's monotonic clock; None without a budget."""
    try:
        end = validated(_End, read_json(folder.budget))
    except (Damaged, OSError):
        return None
    boot = _boot()
    if boot is not None and boot == end.boot:
        return end.monotonic
    return time.monotonic() + end.ends - time.time()


def _reports_s(budget_s: float, combinations: int) -> float:
    """Return the time that is kept for the end of a sweep."""
    least = LEAST_REPORTS_S + LEAST_REPORT_S * combinations
    return min(REPORTS_S + REPORT_S * combinations, max(least, REPORTS_SHARE * budget_s))


@dataclass(slots=True)
class Budget:
    """The time that the trials of a shard have."""

    ends: float | None
    """By this host's monotonic clock; None: there is no limit."""
    _combinations: dict[str, float]
    """Expected seconds of a round, by combination, before any was measured."""
    _taken: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of the trials that have ended, by pass."""

    @classmethod
    def of(cls, folder: Folder, plan: Plan, shard: int) -> Budget:
        """Return the budget of a shard that begins now."""
        combinations = {c.id: c for c in plan.combinations}
        rounds = {id: expected_seconds(c, "timing") / c.config["protocol"]["rounds"] for id, c in combinations.items()}
        seconds = parse_seconds(plan.budget)
        if seconds is None:
            return cls(None, rounds)
        if plan.cluster:
            work = [
                sum(expected_seconds(combinations[id], name) for id in ids for name in plan.passes)
                for ids in plan.shards
            ]
            return cls(time.monotonic() + seconds * work[shard] / sum(work), rounds)
        ends = trials_end(folder)
        # None: the shard was started without its driver.
        return cls(time.monotonic() + seconds if ends is None else ends, rounds)

    def has_time_for(self, trials: Sequence[Trial]) -> bool:
        """True if a trial, or several that alternate, are expected to end in time."""
        if self.ends is None or not trials:
            return True
        # Of trials that alternate, each takes as long as all of them.
        return time.monotonic() + max(self._expected_s(trial) for trial in trials) <= self.ends

    def has_time_for_each(self, trials: Sequence[Trial]) -> bool:
        """True if trials that run one after the other are expected to end in time."""
        return self.ends is None or time.monotonic() + sum(map(self._expected_s, trials)) <= self.ends

    def _expected_s(self, trial: Trial) -> float:
        taken = self._taken.get(trial.pass_name)
        return statistics.fmean(taken) if taken else self._combinations[trial.combination_id]

    def take(self, trial: Trial, seconds: float) -> None:
        """Note how long a trial took."""
        self._taken.setdefault(trial.pass_name, []).append(seconds)
