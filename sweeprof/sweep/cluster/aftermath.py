"""What is made of tasks that have ended before their shards were done: a record for what they were at, a reason for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sweeprof.sweep.blame import leave_record
from sweeprof.sweep.cluster.endings import Ending, ending
from sweeprof.sweep.cluster.jobs import Jobs, Note
from sweeprof.sweep.cluster.progress import Progress, Task
from sweeprof.sweep.cluster.words import UNKNOWN, VANISHED
from sweeprof.sweep.events import begun

MOST_IDLE = 3
"""Times that a shard is submitted again without having come forward."""
TAIL = 4000
"""Characters of a task's output that are looked at."""


@dataclass(slots=True)
class Aftermath:
    """Settles ended tasks; it remembers which shards do not come forward, however often they are tried."""

    jobs: Jobs
    progress: Progress
    _idle: Counter[int] = field(init=False, default_factory=Counter)

    def settle(self, ended: Mapping[int, Task]) -> list[int]:
        """Write down what ended tasks, by their shards, have left undone and why; returns the shards worth a further task."""
        lacking = {shard: task for shard, task in ended.items() if self.progress.lacks(shard)}
        endings = self.jobs.endings()
        again = []
        for shard, task in lacking.items():
            note = self.jobs.note(task.submission.token, task.number)
            progressed = self.progress.done(shard) > task.done
            judged = ending(task.state, note, self._output(task), progressed)
            if shard not in endings or task.state.word not in (UNKNOWN, VANISHED):  # who saw it end knows better
                endings[shard] = judged.told()
            blamed = self._blame(shard, task, note, judged) if judged.blamed and note else 0
            self._idle[shard] = 0 if progressed or blamed else self._idle[shard] + 1
            if judged.again and self._is_worth_it(shard):
                again.append(shard)
        if ended:
            self.jobs.write_endings(endings)
        return again

    def _is_worth_it(self, shard: int) -> bool:
        stopped = self.progress.folder.stopped() is not None
        return self._idle[shard] < MOST_IDLE and not stopped and self.progress.lacks(shard)

    def _blame(self, shard: int, task: Task, note: Note, judged: Ending) -> int:
        """Leave a record of what was being measured; returns of how many trials."""
        folder, plan = self.progress.folder, self.progress.plan
        unfinished = begun(folder.events, shard, note.began)  # both by the clock of the task's node
        place = {"name": "slurm", "job": task.state.job, "node": note.node}
        trials = [
            trial
            for trial in self.progress.trials(shard)
            if (trial.combination_id, trial.pass_name, trial.round) in unfinished
        ]
        for trial in trials:
            if not folder.is_done(trial):
                leave_record(folder, plan, trial, judged.status, judged.reason, {"scheduler": place})
        return len(trials)

    def _output(self, task: Task) -> str:
        try:
            return self.jobs.log(task.submission.token, task.number).read_text(errors="replace")[-TAIL:]
        except OSError:
            return ""
