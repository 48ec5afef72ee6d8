"""The record of a trial whose whole shard was ended while it ran: nobody else is left to write it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sweeprof.results.record import Record, Status
from sweeprof.sweep.events import EventLog
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.plan import Plan, Trial


def leave_record(
    folder: Folder,
    plan: Plan,
    trial: Trial,
    status: Status,
    reason: str,
    environment: Mapping[str, Any] | None = None,
) -> None:
    """Write the record, so that the rest of the shard can be run without the trial, and tell of its end."""
    combination = plan.combination(trial.combination_id)
    shard = next(place for place, ids in enumerate(plan.shards) if combination.id in ids)
    Record(
        sweep_id=plan.sweep_id,
        combination_id=combination.id,
        pass_name=trial.pass_name,
        status=status,
        reason=reason,
        round=trial.round,
        attempt=folder.attempts(trial),
        axes=combination.axes,
        config=combination.config,
        command=combination.command,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=dict(environment or {}),
    ).write(folder.records)
    with EventLog(folder.events / f"shard-{shard}.jsonl") as events:
        events.tell("end", trial, status=status, reason=reason)
