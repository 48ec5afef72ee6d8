"""Missing results: records of trials whose process, shard or job was killed before they could write one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sweeprof.plan.plan import Combination, Plan, Trial, trial_groups
from sweeprof.results.record import Record, Status
from sweeprof.storage.events import EventLog, TrialKey
from sweeprof.storage.folder import Folder
from sweeprof.storage.jobs import ShardOutcome

KILLED = "the worker was killed"
RUNNING = "it is being measured"


def leave_record(
    folder: Folder,
    plan: Plan,
    trial: Trial,
    status: Status,
    reason: str,
    environment: Mapping[str, Any] | None = None,
) -> None:
    """Write the record of a trial whose whole shard was killed, and the event of its end: the rest can be run without it."""
    combination = plan.combination(trial.combination_id)
    shard = next(index for index, ids in enumerate(plan.shards) if combination.id in ids)
    folder.new_record(plan, combination, trial, status, reason, environment or {}).write(folder.records)
    with EventLog(folder.events / f"shard-{shard}.jsonl") as events:
        events.write("end", trial, status=status, reason=reason)


@dataclass(slots=True)
class MissingResults:
    """Why trials have no record."""

    plan: Plan
    outcomes: Mapping[int, ShardOutcome]
    """By shard, of those whose job ended early."""
    unfinished: Set[TrialKey]
    """Trials that began and have no event of their end."""
    missing: str
    """Why other trials have not begun."""
    running: bool
    """Whether the sweep is running, so that trials that have begun are not lost."""
    _shard_of: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._shard_of = {id: shard for shard, ids in enumerate(self.plan.shards) for id in ids}

    def placeholder_records(
        self,
        combination: Combination,
        records: Sequence[Record],
        damaged: Mapping[str, str] | None = None,
        is_needed: Callable[[Trial], bool] | None = None,
    ) -> list[Record]:
        """Return records for a combination's other trials; they are never written, so that the trials can still be run.

        Args:
            damaged: by file name, why the record of a trial cannot be read.
            is_needed: False for a trial that is not missing although it has no record; None: all are needed.
        """
        plan = self.plan
        if combination.unsupported is not None:
            reason = combination.unsupported
            return [Record(plan.sweep_id, combination.id, name, "unsupported", reason) for name in plan.passes]
        known = {(record.pass_name, record.round) for record in records}
        placeholders = []
        for (trial,) in trial_groups([combination], plan.passes, {}):
            if (trial.pass_name, trial.round) not in known and (is_needed is None or is_needed(trial)):
                status, reason = self._reason(trial, damaged or {})
                placeholders.append(Record(plan.sweep_id, combination.id, trial.pass_name, status, reason, trial.round))
        return placeholders

    def _reason(self, trial: Trial, damaged: Mapping[str, str]) -> tuple[Status, str]:
        name = f"{trial.pass_name}-r{trial.round}.json"
        if name in damaged:
            return "lost", f"its record is damaged: {damaged[name]}"
        outcome = self.outcomes.get(self._shard_of.get(trial.combination_id, -1))
        if (trial.combination_id, trial.pass_name, trial.round) not in self.unfinished:
            return "skipped", outcome.missing if outcome else self.missing
        if outcome:
            return outcome.status, outcome.reason
        return ("skipped", RUNNING) if self.running else ("lost", KILLED)
