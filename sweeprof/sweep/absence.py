"""What stands in a comparison for trials that left no record. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sweeprof.results.record import Record, Status
from sweeprof.sweep.events import TrialKey
from sweeprof.sweep.plan import Combination, Plan, Trial, bouts

BEGUN = "it began and left no record: the process that ran it was ended"
RUNNING = "it is being measured"


@dataclass(slots=True)
class Absence:
    """Why there is nothing."""

    plan: Plan
    endings: Mapping[int, Mapping[str, Any]]
    """By shard, of those whose job ended early: ``missing``, ``status`` and ``reason``."""
    unfinished: Set[TrialKey]
    """Trials that began and of which no end was told."""
    missing: str
    """Why other trials have not begun."""
    running: bool
    """Whether the sweep goes on, so that what has begun is not lost."""
    _shard_of: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._shard_of = {id: shard for shard, ids in enumerate(self.plan.shards) for id in ids}

    def stand_ins(
        self, combination: Combination, found: Sequence[Record], damaged: Mapping[str, str] | None = None
    ) -> list[Record]:
        """Records of a combination's other trials; they are never written, so that the trials can still be run.

        Args:
            damaged: by file name, why the record of a trial cannot be read.
        """
        plan = self.plan
        if combination.unsupported is not None:
            reason = combination.unsupported
            return [Record(plan.sweep_id, combination.id, p, "unsupported", reason) for p in plan.passes]
        there = {(r.pass_name, r.round) for r in found}
        return [
            Record(plan.sweep_id, combination.id, trial.pass_name, *self._why(trial, damaged or {}), trial.round)
            for (trial,) in bouts([combination], plan.passes, 0, {})
            if (trial.pass_name, trial.round) not in there
        ]

    def _why(self, trial: Trial, damaged: Mapping[str, str]) -> tuple[Status, str]:
        name = f"{trial.pass_name}-r{trial.round}.json"
        if name in damaged:
            return "lost", f"its record is damaged: {damaged[name]}"
        ending = self.endings.get(self._shard_of.get(trial.combination_id, -1))
        if (trial.combination_id, trial.pass_name, trial.round) not in self.unfinished:
            return "skipped", ending["missing"] if ending else self.missing
        if ending:
            return ending["status"], ending["reason"]
        return ("skipped", RUNNING) if self.running else ("lost", BEGUN)
