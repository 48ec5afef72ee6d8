"""The job tracker: the tasks of one sweep on a cluster, submitted, followed, resubmitted for what is left, cancelled."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from sweeprof.cluster import slurm
from sweeprof.cluster.ray import Ray
from sweeprof.cluster.scheduler import UNKNOWN, VANISHED, ClusterError, Scheduler, TaskState, script
from sweeprof.config.constraints import parse_size
from sweeprof.errors import SweeprofError
from sweeprof.plan.plan import Plan, Trial
from sweeprof.results.record import Status
from sweeprof.storage import HELD, Folder, Jobs, Note, ShardOutcome, Submission, begun, check_address, leave_record


def scheduler_of(settings: Mapping[str, Any], jobs: Jobs) -> Scheduler:
    """Return the scheduler of a sweep.

    Args:
        settings: ``cluster`` in the config.
        jobs: the sweep's files about its tasks.
    """
    if settings["scheduler"] == "ray":
        return Ray(settings["address"], jobs)
    return slurm


EXCEEDED = re.compile(r"exceeded (?:job |step )?memory limit", re.IGNORECASE)
"""What Slurm writes into the output of a task that it ends itself for its memory."""
KILLED = re.compile(r"oom[-_ ]?kill|out[ -]of[ -]memory handler", re.IGNORECASE)
"""What it writes if the system killed a process of the task: perhaps a trial, long before the task's end."""
DESCRIPTIONS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "DEADLINE": "reached its deadline",
    "OUT_OF_MEMORY": "ran out of memory",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "got a node that did not start",
    "PREEMPTED": "was preempted",
    "FAILED": "failed",
    "COMPLETED": "ended",
    UNKNOWN: "is no longer known to the scheduler",
    VANISHED: "was cancelled while it waited",
}
EXTERNAL = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "COMPLETED", UNKNOWN)
"""States of tasks that ended for a reason outside of the measurement."""
MOST_IDLE = 3
"""Times that a shard without progress is resubmitted."""
MOST_ALIKE = 3
"""Tasks that may fail one after the other for the same cause, while nothing is measured; then the sweep is stopped."""
TAIL = 4000
"""Characters of a task's output that are searched."""
CANCEL_S = 60.0
"""How long cancelled tasks are waited for."""
INHERITED = ("PYTHONPATH",)
"""Environment variables without which a task may not find the modules that this process imports."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Why a task ended while its shard was incomplete, and what follows."""

    shard: ShardOutcome
    caused_by_trial: bool
    """Whether the trial that was running caused it, so that it is recorded as failed and not run again before the rest."""
    resubmit: bool
    """Whether a further task may measure the rest."""
    cause: str = ""
    """Why it ended, without its number and node; empty if the reason is outside of the sweep and its settings."""


def job_outcome(state: TaskState, note: Note | None, output: str, progressed: bool) -> JobOutcome:
    """Return the outcome of a task that has ended.

    Args:
        note: its own note; None if it never began.
        output: the last lines that it, and Slurm, printed.
        progressed: whether it has left any record.
    """
    name = state.name
    if (name in ("FAILED", "CANCELLED") and EXCEEDED.search(output)) or (name == "FAILED" and KILLED.search(output)):
        name = "OUT_OF_MEMORY"
    node = note.node if note else state.node
    job = f"job {state.job}"
    if node:
        job += f" on {node}"
    description = DESCRIPTIONS.get(name, f"ended as {name}")
    if name == "FAILED":
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        if note and note.error and note.ended:
            description = f"failed: {note.error}"
        elif lines:
            description = f"failed: {lines[-1]}"
    missing = f"its {job} {description} before it was measured"
    reason = f"{job} {description} while it was measured"
    if name == "OUT_OF_MEMORY":
        return JobOutcome(ShardOutcome(missing, "oom", reason), True, True, description)
    if name in ("TIMEOUT", "DEADLINE"):
        return JobOutcome(ShardOutcome(missing, "timeout", reason), not progressed, True, description)
    lost = ShardOutcome(missing, "lost", reason)
    if name != "FAILED":
        return JobOutcome(lost, False, name in EXTERNAL)
    if note is not None and note.ended is None:  # killed: a task that fails by itself writes so
        return JobOutcome(lost, True, True)
    if note is not None and note.error == HELD:
        return JobOutcome(lost, False, True)
    return JobOutcome(lost, False, False, description)


@dataclass(slots=True)
class Task:
    """The newest task of a shard."""

    submission: Submission
    number: int
    state: TaskState
    done: int
    """Trials of its shard that had a record when it was submitted, or was first seen."""

    @property
    def key(self) -> tuple[str, int]:
        """Name of the job and number of the task, as in the scheduler's answers."""
        return self.submission.name, self.number


@dataclass(slots=True)
class _Failures:
    """Tasks that failed one after the other for the same cause while no task of the sweep measured anything."""

    cause: str = ""
    count: int = 0
    measured: int = -1
    """Trials that the tasks of the sweep had measured at the first of them."""
    last: Task | None = None
    status: Status = "lost"

    def add(self, cause: str, task: Task, status: Status, measured: int) -> None:
        """Count the failure of a task."""
        if (cause, measured) != (self.cause, self.measured):
            self.cause, self.count, self.measured = cause, 0, measured
        self.count += 1
        self.last, self.status = task, status

    def message(self) -> str:
        """Return what failed, and the key that removes the cause."""
        assert self.last is not None
        advice = "check cluster.setup"
        if self.status == "oom":
            resources = self.last.submission.resources
            memory = parse_size(resources.get("memory")) or resources.get("needed_memory") or 2**30
            advice = f"request more memory, such as cluster.memory={math.ceil(2 * memory / 2**30)}GiB"
        elif self.status == "timeout":
            advice = "request more time, such as cluster.time=2h, or plan shorter tasks, such as cluster.minutes=2"
        last = f"the last one is job {self.last.state.job}"
        return f"{self.count} tasks in a row {self.cause} before they measured anything ({last}); {advice}, and resume"


class JobTracker:
    """Submits and follows the newest task of every shard.

    Args:
        folder: of the sweep.
        plan: with its settings for the cluster.
    """

    def __init__(self, folder: Folder, plan: Plan) -> None:
        self.folder, self.plan = folder, plan
        self.jobs = Jobs(folder.path)
        self.scheduler = scheduler_of(plan.cluster["settings"], self.jobs)
        self._tasks: dict[int, Task] = {}
        self._trials: dict[int, list[Trial]] = {}
        self._refused: list[int] = []
        self._live_before = 0
        """How many tasks the scheduler had at the last query."""
        self._trouble = ""
        self._idle = Counter[int]()
        """By shard, how many of its last tasks made no progress."""
        self._failures = _Failures()
        self._lost = 0
        """Records that were left for trials whose task ended."""
        for submission in self.jobs.all():
            if not submission.revoked:
                for number, shard in enumerate(submission.shards):
                    if shard < len(plan.shards):
                        unseen = TaskState(f"{submission.job or submission.name}_{number}", "PENDING")
                        self._tasks[shard] = Task(submission, number, unseen, 0)

    @property
    def live(self) -> dict[int, Task]:
        """Tasks that the scheduler has not finished with, by shard."""
        return {shard: task for shard, task in self._tasks.items() if task.state.is_live}

    def update(self) -> list[int]:
        """Query the scheduler; returns the shards whose tasks have ended since.

        Raises:
            ClusterError: it does not answer.
        """
        live = self.live
        names = {task.submission.name for task in live.values()}
        if not names:
            return []
        found = self.scheduler.states(names)
        if any(task.key not in found for task in live.values()):
            since = min(task.submission.submitted for task in live.values())
            found = {**self.scheduler.accounted(names, since), **found}
        for task in live.values():
            task.state = found.get(task.key) or self._forgotten(task)
        return [shard for shard, task in live.items() if not task.state.is_live]

    def _forgotten(self, task: Task) -> TaskState:
        """Return the state of a task that the scheduler does not list, by its own note."""
        note = self.jobs.note(task.submission.token, task.number)
        if note is None:
            has_begun = self.jobs.log(task.submission.token, task.number).exists()
            return replace(task.state, name="FAILED" if has_begun else VANISHED)
        name = UNKNOWN
        if note.ended is not None:
            name = "FAILED" if note.error else "COMPLETED"
        return replace(task.state, name=name, job=note.job, node=note.node)

    def unattended(self) -> list[int]:
        """Return the incomplete shards that no task is to measure."""
        live = self.live
        return [shard for shard in range(len(self.plan.shards)) if shard not in live and self._is_incomplete(shard)]

    def _trials_of(self, shard: int) -> list[Trial]:
        if shard not in self._trials:
            self._trials[shard] = list(chain.from_iterable(self.plan.trial_groups(shard)))
        return self._trials[shard]

    def _done(self, shard: int) -> int:
        """Return how many trials of a shard have a record."""
        return sum(map(self.folder.is_done, self._trials_of(shard)))

    def _is_incomplete(self, shard: int) -> bool:
        return not all(map(self.folder.is_done, self._trials_of(shard)))

    def submit(self, shards: Sequence[int]) -> None:
        """Submit shards, those with the same resources as tasks of one array if the scheduler allows it.

        A shard that it refuses because of a limit is submitted again later; for any other refusal the reason is stored.

        Raises:
            ClusterError: it refused, and no task is left to be followed.
        """
        if not shards:
            return
        # Earlier submissions that the scheduler does not list are revoked: sbatch may run on after its driver was killed.
        known = {task.submission.token for task in self.live.values()}
        earlier = {self._tasks[shard].submission.token: self._tasks[shard] for shard in shards if shard in self._tasks}
        for token, task in earlier.items():
            if task.submission.job is None and token not in known:
                self.jobs.revoke(task.submission)
        submitted = set(shards)
        outcomes = {shard: outcome for shard, outcome in self.jobs.outcomes().items() if shard not in submitted}
        self._refused = [shard for shard in self._refused if shard not in submitted]
        refusals: list[ClusterError] = []
        for array in self._arrays(shards):
            try:
                self._submit(array)
            except ClusterError as error:
                refusals.append(error)
                missing = f"its shard was not submitted: {error}"
                outcome = ShardOutcome(missing, "lost", f"the worker was killed, and {missing}")
                outcomes.update(dict.fromkeys(array, outcome))
                if self.scheduler.is_limit(str(error)):
                    self._refused += array
                self._trouble = str(error)
        self.jobs.write_outcomes(outcomes)
        if refusals and not self.live:
            raise refusals[0]
        self.write_queue()

    def _arrays(self, shards: Sequence[int]) -> Iterator[list[int]]:
        """Yield the shards of each array: those with the same resources, as many as the scheduler allows."""
        alike: dict[str, list[int]] = {}
        for shard in shards:
            alike.setdefault(json.dumps(self.plan.cluster["resources"][shard], sort_keys=True), []).append(shard)
        most = self.scheduler.largest_array()
        for group in alike.values():
            for start in range(0, len(group), most):
                yield group[start : start + most]

    def _submit(self, shards: Sequence[int]) -> None:
        settings = self.plan.cluster["settings"]
        new = self.jobs.new(self.plan.name.replace(" ", "_"), shards, self.plan.cluster["resources"][shards[0]])
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        # Before sbatch runs: a task may begin before this process has read the answer, or this process may be killed.
        self.jobs.keep(new, script(new, settings, self.folder.path, sys.executable, inherited))
        # Known before it is submitted, so that it is cancelled if the user interrupts the submission.
        for number, shard in enumerate(shards):
            self._tasks[shard] = Task(new, number, TaskState(f"{new.name}_{number}", "PENDING"), self._done(shard))
        try:
            job = self.scheduler.submit(new, settings, self.jobs)
        except ClusterError:
            self.jobs.revoke(new)  # the scheduler may have accepted it
            for shard in shards:
                del self._tasks[shard]
            raise
        new = replace(new, job=job)
        self.jobs.keep(new)
        for shard in shards:
            task = self._tasks[shard]
            task.submission, task.state = new, TaskState(f"{job}_{task.number}", "PENDING")

    def follow(self, submits: bool = True) -> None:
        """Return when no task is left and, if it ``submits``, a further task would make no progress.

        Raises:
            ClusterError: it refused what was left to submit, or task after task failed for the same cause.
        """
        while True:
            resubmitted, refused = self.settle(), self._refused
            if submits and self._failures.count >= MOST_ALIKE:
                self._stop()
            if self.folder.stopped() is not None:
                refused.clear()
            has_ended = len(self.live) < self._live_before
            if submits and (resubmitted or (refused and (has_ended or not self.live))):
                self.submit([*resubmitted, *(shard for shard in refused if shard not in resubmitted)])
            self._live_before = len(self.live)
            self.write_queue()
            if not self.live and not self._refused:
                return
            time.sleep(self.plan.cluster["settings"]["poll_s"])

    def settle(self) -> list[int]:
        """Query the scheduler and store why ended tasks left shards incomplete; returns the shards to resubmit."""
        try:
            ended = self.update()
            self._trouble = ""
        except ClusterError as error:  # a controller that is being restarted: jobs continue
            self._trouble = str(error)
            return []
        outcomes = self.jobs.outcomes()
        resubmit = []
        for shard in ended:
            task = self._tasks[shard]
            note = self.jobs.note(task.submission.token, task.number)
            has_finished = note is not None and note.ended is not None and note.error is None
            if not self._is_incomplete(shard) or (self.plan.search is not None and has_finished):
                continue  # a search may measure less than was planned
            progressed = self._done(shard) > task.done
            output = ""
            with suppress(OSError):
                output = self.jobs.log(task.submission.token, task.number).read_text(errors="replace")[-TAIL:]
            outcome = job_outcome(task.state, note, output, progressed)
            if shard not in outcomes or task.state.name not in (UNKNOWN, VANISHED):  # an earlier outcome knows more
                outcomes[shard] = outcome.shard
            recorded = 0
            if outcome.caused_by_trial and note is not None:
                recorded = self._record_lost(shard, task, note, outcome.shard)
            self._idle[shard] += 1
            if progressed or recorded:
                self._idle[shard] = 0
            is_stuck = self._idle[shard] >= MOST_IDLE or self.folder.stopped() is not None
            if outcome.resubmit and not is_stuck and self._is_incomplete(shard):
                resubmit.append(shard)
            self._lost += recorded
            if outcome.cause:
                measured = sum(map(self._done, range(len(self.plan.shards)))) - self._lost
                self._failures.add(outcome.cause, task, outcome.shard.status, measured)
        if ended:
            self.jobs.write_outcomes(outcomes)
        return resubmit

    def _stop(self) -> None:
        """Cancel every task, and store for all incomplete shards why the sweep is stopped.

        Raises:
            ClusterError: always, with the key that removes the cause.
        """
        message = self._failures.message()
        outcomes = self.jobs.outcomes()
        for shard in range(len(self.plan.shards)):
            if self._is_incomplete(shard) and (shard in self.live or shard not in outcomes):
                missing = f"the sweep was stopped, because {message}"
                outcomes[shard] = ShardOutcome(missing, "lost", missing)
        with suppress(ClusterError):  # revoked tasks measure nothing
            self.cancel()
        self.jobs.write_outcomes(outcomes)
        raise ClusterError(message)

    def _record_lost(self, shard: int, task: Task, note: Note, outcome: ShardOutcome) -> int:
        """Leave records of the trials that were running; returns their number."""
        unfinished = begun(self.folder.events, shard, note.events)
        environment = {"scheduler": {"name": self.scheduler.title.lower(), "job": task.state.job, "node": note.node}}
        count = 0
        for trial in self._trials_of(shard):
            if (trial.combination_id, trial.pass_name, trial.round) in unfinished:
                count += 1
                if not self.folder.is_done(trial):
                    leave_record(self.folder, self.plan, trial, outcome.status, outcome.reason, environment)
        return count

    def cancel(self) -> None:
        """Cancel every task and wait for their ends.

        Raises:
            ClusterError: it does not answer; running tasks continue, waiting ones end as soon as they begin.
        """
        submissions = {task.submission.token: task.submission for task in self.live.values()}
        for submission in submissions.values():
            self.jobs.revoke(submission)  # also if the scheduler does not answer
        deadline = time.monotonic() + CANCEL_S
        with suppress(ClusterError):  # only for the numbers of jobs whose submission was interrupted
            self.update()
        self.scheduler.cancel(self.numbers())
        while self.live and time.monotonic() < deadline:
            time.sleep(min(1.0, self.plan.cluster["settings"]["poll_s"]))
            self.update()
        self.write_queue()

    def numbers(self) -> list[str]:
        """Return the ids of the arrays that the scheduler has not finished with, as far as they are known."""
        found = {task.state.array for task in self.live.values()}
        return sorted(filter(self.scheduler.is_id, found), key=lambda array: (len(array), array))

    def write_queue(self) -> None:
        """Write a line for people: what is running and what waits."""
        live = self.live
        if not live and not self._trouble:
            self.jobs.write_queue("")
            return
        line = self.scheduler.title
        numbers = self.numbers()
        if numbers:
            line += f" job{'s' * (len(numbers) > 1)} {', '.join(numbers)}:"
        counts = Counter(task.state.name.lower() for task in live.values())
        states = [f"{count} {name}" for name, count in sorted(counts.items(), reverse=True)]
        line += f" {', '.join(states) or 'no tasks'}"
        pending = Counter(task.state.reason for task in live.values() if task.state.name == "PENDING")
        del pending[""]
        if pending:
            line += f" ({pending.most_common(1)[0][0]})"
        if self._refused:
            line += f", {len(self._refused)} not accepted yet"
        if self._trouble:
            line += f"; {self._trouble}"
        self.jobs.write_queue(line)


# ---- A sweep's shards as tasks of a cluster: launched by a driver, and followed by it or by a later command ----


log = logging.getLogger(__name__)


class Detached(SweeprofError):
    """The jobs are running and are not waited for."""


def launch(path: Path | str) -> None:
    """Submit every incomplete shard of a sweep that no task is to measure; follow all tasks until they end.

    Raises:
        ClusterError: the scheduler refused.
        UserError: this host lacks what submits to it.
    """
    tracker = job_tracker(Folder(Path(path)), trust=True)  # the user starts or resumes the sweep
    tracker.scheduler.check_installed()
    try:
        tracker.update()
        tracker.submit(tracker.unattended())
        tracker.follow()
    except KeyboardInterrupt:
        try:
            tracker.cancel()
        except ClusterError as error:
            command = tracker.scheduler.cancel_command(tracker.numbers())
            log.warning("running jobs continue, cancel them with: %s (%s)", command, error)
        raise


def follow(path: Path | str, wait: bool, trust: bool = False) -> None:
    """Follow the tasks of a sweep without submitting any; raises like :func:`launch` and :func:`job_tracker`.

    Raises:
        Detached: tasks are left; unless ``wait``, after one query.
    """
    folder = Folder(Path(path))
    if not _need_scheduler(folder):
        return
    tracker = job_tracker(folder, trust=trust)
    tracker.scheduler.check_installed()
    try:
        if wait:
            tracker.follow(submits=False)
        else:
            tracker.settle()
    except KeyboardInterrupt:
        pass  # the jobs continue
    if tracker.live:
        tracker.write_queue()
        raise Detached(tracker.jobs.queue())


def job_tracker(folder: Folder, named: Sequence[str | None] = (), trust: bool = False) -> JobTracker:
    """Return the tracker of a sweep's jobs.

    The address of Ray is checked, because its client runs code that the server sends; a folder names no server to Slurm's commands.

    Args:
        named: addresses of Ray that the user's command line or config names; ``RAY_ADDRESS`` counts as well.
        trust: whether the folder may name any address.

    Raises:
        UserError: the folder names an address that may not be used.
    """
    plan = folder.read_plan()
    settings = plan.cluster["settings"]
    if settings["scheduler"] == "ray":
        own = os.environ.get("RAY_ADDRESS")
        # Without an address Ray would also join the cluster that any user has started on this host.
        address = str(settings["address"] or own or "auto")
        check_address(folder, "cluster.address", address, [*named, own], f"set RAY_ADDRESS={address}", trust)
    return JobTracker(folder, plan)


def live_jobs(folder: Folder, named: Sequence[str | None] = (), trust: bool = False) -> list[str]:
    """Return the jobs of a sweep that its scheduler has not finished with; for the arguments see :func:`job_tracker`.

    Raises:
        ClusterError: it does not answer.
        UserError: this host cannot ask it, or may not, and not every task has written its end.
    """
    if not _need_scheduler(folder):
        return []
    tracker = job_tracker(folder, named, trust)
    tracker.scheduler.check_installed()
    tracker.update()
    return tracker.numbers()


def may_be_at_work(folder: Folder) -> bool:
    """True if jobs of a sweep may still run or wait; without an answer every job that has not written its end counts."""
    try:
        return bool(live_jobs(folder))
    except (SweeprofError, OSError, ValueError, KeyError, TypeError):  # or its plan cannot be read
        return _has_unfinished(Jobs(folder.path))


def _need_scheduler(folder: Folder) -> bool:
    """True if the scheduler has to be queried for a sweep's jobs: on a host without it, only if tasks have not written an end."""
    jobs = Jobs(folder.path)
    if not jobs.all():
        return False
    return _has_unfinished(jobs) or scheduler_of(folder.read_plan().cluster["settings"], jobs).is_installed()


def _has_unfinished(jobs: Jobs) -> bool:
    """True if the newest task of any shard has not written its end."""
    newest = {}
    for submission in jobs.all():
        if not submission.revoked:
            for number, shard in enumerate(submission.shards):
                newest[shard] = submission.token, number
    notes = [jobs.note(token, number) for token, number in newest.values()]
    return any(note is None or note.ended is None for note in notes)
