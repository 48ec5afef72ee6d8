"""The tasks of one sweep on Slurm: submitted, followed, submitted again for what is left, cancelled."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sweeprof.sweep.cluster import slurm
from sweeprof.sweep.cluster.aftermath import Aftermath
from sweeprof.sweep.cluster.endings import refused
from sweeprof.sweep.cluster.jobs import Jobs, Submission
from sweeprof.sweep.cluster.progress import Progress, Task
from sweeprof.sweep.cluster.script import sbatch, script
from sweeprof.sweep.cluster.slurm import SlurmError
from sweeprof.sweep.cluster.words import UNKNOWN, VANISHED, TaskState, is_limit
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.plan import Plan

CANCEL_S = 60.0
"""How long cancelled tasks are waited for."""
INHERITED = ("PYTHONPATH",)
"""Environment variables without which a task may not find what this process imports."""


@dataclass(slots=True)
class Fleet:
    """Every shard's newest task.

    Args:
        folder: of the sweep.
        plan: with its settings for the cluster.
    """

    folder: Folder
    plan: Plan
    jobs: Jobs = field(init=False)
    _tasks: dict[int, Task] = field(init=False, default_factory=dict)
    _refused: list[int] = field(init=False, default_factory=list)
    _places: int = field(init=False, default=0)
    """How many tasks Slurm had at the last look."""
    _trouble: str = field(init=False, default="")
    _progress: Progress = field(init=False)
    _aftermath: Aftermath = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.folder.path)
        self._progress = Progress(self.folder, self.plan)
        self._aftermath = Aftermath(self.jobs, self._progress)
        for submission in self.jobs.all():
            if not submission.revoked:
                for number, shard in enumerate(submission.shards):
                    if shard < len(self.plan.shards):
                        unseen = TaskState(f"{submission.job or submission.name}_{number}", "PENDING")
                        self._tasks[shard] = Task(submission, number, unseen, 0)

    @property
    def live(self) -> dict[int, Task]:
        """The tasks that Slurm has not done with, by shard."""
        return {shard: task for shard, task in self._tasks.items() if task.state.is_live}

    def look(self) -> list[int]:
        """Ask Slurm; returns the shards whose tasks have ended since.

        Raises:
            SlurmError: it does not answer.
        """
        live = self.live
        names = {task.submission.name for task in live.values()}
        if not names:
            return []
        since = min(task.submission.submitted for task in live.values())
        found = slurm.states(names)
        if any(task.key not in found for task in live.values()):
            found = {**slurm.accounted(names, since), **found}
        for task in live.values():
            task.state = found.get(task.key) or self._forgotten(task)
        return [shard for shard, task in live.items() if not task.state.is_live]

    def _forgotten(self, task: Task) -> TaskState:
        """What became of a task that Slurm says nothing of: by its own note, if that tells."""
        note = self.jobs.note(task.submission.token, task.number)
        if note is None:
            return replace(task.state, word=VANISHED)
        word = UNKNOWN if note.ended is None else "FAILED" if note.error else "COMPLETED"
        return replace(task.state, word=word, job=note.job, node=note.node)

    def unattended(self) -> list[int]:
        """Shards that lack something and that no task is to measure."""
        live = self.live
        return [shard for shard in range(len(self.plan.shards)) if shard not in live and self._progress.lacks(shard)]

    def submit(self, shards: Sequence[int]) -> None:
        """Submit shards, alike ones as tasks of one array as far as Slurm lets.

        What it refuses for now is tried again later; of what it refuses for good is written down why.

        Raises:
            SlurmError: it refused, and no task is left to be followed.
        """
        if not shards:
            return
        self._forsake(shards)
        given = set(shards)
        endings = {shard: told for shard, told in self.jobs.endings().items() if shard not in given}
        self._refused = [shard for shard in self._refused if shard not in given]
        refusals: list[SlurmError] = []
        for some in self._arrays(shards):
            try:
                self._submit(some)
            except SlurmError as error:
                refusals.append(error)
                endings.update(dict.fromkeys(some, refused(str(error)).told()))
                self._refused += some if is_limit(str(error)) else ()
                self._trouble = str(error)
        self.jobs.write_endings(endings)
        if refusals and not self.live:
            raise refusals[0]
        self.tell()

    def _forsake(self, shards: Sequence[int]) -> None:
        """Revoke earlier submissions of shards that Slurm has not heard of: an sbatch whose head was killed may still be trying."""
        known = {task.submission.token for task in self.live.values()}
        earlier = {task.submission.token: task.submission for s in shards if (task := self._tasks.get(s)) is not None}
        for submission in earlier.values():
            if submission.job is None and submission.token not in known:
                self.jobs.revoke(submission)

    def _arrays(self, shards: Sequence[int]) -> Iterator[list[int]]:
        alike: dict[str, list[int]] = {}
        for shard in shards:
            alike.setdefault(json.dumps(self.plan.cluster["resources"][shard], sort_keys=True), []).append(shard)
        most = slurm.largest_array()
        for group in alike.values():
            yield from (group[start : start + most] for start in range(0, len(group), most))

    def _submit(self, shards: Sequence[int]) -> None:
        settings = self.plan.cluster["settings"]
        new = self.jobs.new(self.plan.name.replace(" ", "_"), shards, self.plan.cluster["resources"][shards[0]])
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        # Before Slurm is asked: a task may begin before this process has read the answer, or this process may not live to.
        self.jobs.keep(new, script(new, settings, self.folder.path, sys.executable, inherited))
        log = self.jobs.logs / f"{new.token}-%a.log"
        self._attend(new)  # so that what sbatch was told of is cancelled, too, where the user interrupts it
        try:
            job = slurm.submit(sbatch(new, settings, self.jobs.script(new.token), log, Path.cwd()))
        except SlurmError:
            self.jobs.revoke(new)  # it may have been heard
            for shard in shards:
                del self._tasks[shard]
            raise
        new = replace(new, job=job)
        self.jobs.keep(new)
        self._attend(new)

    def _attend(self, new: Submission) -> None:
        for number, shard in enumerate(new.shards):
            state, known = TaskState(f"{new.job or new.name}_{number}", "PENDING"), self._tasks.get(shard)
            done = known.done if known and known.submission.token == new.token else self._progress.done(shard)
            self._tasks[shard] = Task(new, number, state, done)

    def follow(self, submits: bool = True) -> None:
        """Return when no task is left and, if it ``submits``, none would bring a shard forward.

        Raises:
            SlurmError: Slurm refused what was left to submit.
        """
        while True:
            again, refused = self.settle(), self._refused
            if self.folder.stopped() is not None:
                refused.clear()
            ended = len(self.live) < self._places
            if submits and (again or (refused and (ended or not self.live))):
                self.submit([*again, *(shard for shard in refused if shard not in again)])
            self._places = len(self.live)
            self.tell()
            if not self.live and not self._refused:
                return
            time.sleep(self.plan.cluster["settings"]["poll_s"])

    def settle(self) -> list[int]:
        """Ask Slurm and write down what ended tasks have left undone; returns the shards that are worth a further task."""
        try:
            ended = self.look()
            self._trouble = ""
        except SlurmError as error:  # a controller that is being restarted: jobs go on
            self._trouble = str(error)
            return []
        return self._aftermath.settle({shard: self._tasks[shard] for shard in ended})

    def cancel(self) -> None:
        """Cancel every task and wait for their ends.

        Raises:
            SlurmError: it does not answer; tasks that run go on, those that wait end as they begin.
        """
        for submission in {task.submission.token: task.submission for task in self.live.values()}.values():
            self.jobs.revoke(submission)  # also where Slurm does not answer
        deadline = time.monotonic() + CANCEL_S
        with suppress(SlurmError):  # it only tells the numbers of jobs whose submission was interrupted
            self.look()
        slurm.cancel(self.numbers())
        while self.live and time.monotonic() < deadline:
            time.sleep(min(1.0, self.plan.cluster["settings"]["poll_s"]))
            self.look()
        self.tell()

    def numbers(self) -> list[str]:
        """Slurm's numbers of the jobs whose tasks it has not done with, as far as they are known."""
        found = {task.state.job.partition("_")[0] for task in self.live.values()}
        return sorted(filter(str.isdigit, found), key=int)

    def tell(self) -> None:
        """Write down, for people, what is running and what waits."""
        live = self.live
        words = Counter(task.state.word.lower() for task in live.values())
        parts = [f"{count} {word}" for word, count in sorted(words.items(), reverse=True)]
        waits = Counter(
            task.state.reason for task in live.values() if task.state.word == "PENDING" and task.state.reason
        )
        why = f" ({waits.most_common(1)[0][0]})" if waits else ""
        refused = f", {len(self._refused)} not taken yet" if self._refused else ""
        trouble = f"; {self._trouble}" if self._trouble else ""
        numbers = self.numbers()
        job = f"job{'s' * (len(numbers) > 1)} {', '.join(numbers)}: " if numbers else ""
        self.jobs.tell_queue(
            f"Slurm {job}{', '.join(parts) or 'no tasks'}{why}{refused}{trouble}" if live or trouble else ""
        )
