"""How far shards are, and which task is the newest of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from sweeprof.sweep.cluster.jobs import Submission
from sweeprof.sweep.cluster.words import TaskState
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.plan import Plan, Trial


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
        """By which Slurm's answers are found."""
        return self.submission.name, self.number


@dataclass(slots=True)
class Progress:
    """What shards consist of, and what of it has a record."""

    folder: Folder
    plan: Plan
    _trials: dict[int, list[Trial]] = field(init=False, default_factory=dict)

    def trials(self, shard: int) -> list[Trial]:
        """Every trial of a shard."""
        if shard not in self._trials:
            self._trials[shard] = [trial for bout in self.plan.bouts(shard) for trial in bout]
        return self._trials[shard]

    def done(self, shard: int) -> int:
        """How many trials of a shard have a record."""
        return sum(map(self.folder.is_done, self.trials(shard)))

    def lacks(self, shard: int) -> bool:
        """Whether a trial of a shard has no record."""
        return not all(map(self.folder.is_done, self.trials(shard)))
