"""Events: the begin and end of every trial, a line of JSON each, in a file per shard.

Lines are appended, files never replaced: a power loss or a full disk may cut the last line, which readers skip.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from sweeprof.errors import Damaged
from sweeprof.plan.plan import Combination, Plan, Trial, trial_groups
from sweeprof.results.files import open_regular, read_bytes, validated
from sweeprof.results.record import Json, PassName, Record, Status, check_pass_name
from sweeprof.storage.folder import Folder
from sweeprof.storage.jobs import ShardOutcome

TrialKey = tuple[str, PassName, int]
"""Combination id, pass and round."""
EventKind = Literal["begin", "waiting", "running", "end", "decided"]
"""``waiting`` for the host lock, ``running`` once a trial that waited has it; ``decided``: the trial is not needed, as the rounds
before it decided the combination's comparisons, or these were given up."""


@dataclass(frozen=True, slots=True)
class Event:
    """A line of an event log."""

    kind: EventKind
    time: float
    """Seconds since the epoch by a clock that nobody sets while a log is open: differences within a log are durations."""
    combination_id: str
    pass_name: PassName
    round: int
    status: Status | None = None
    """Of an end."""
    reason: str | None = None
    """Of an end."""
    waits_for: str | None = None
    """Of waiting: the sweep that holds the host lock; None if it is this one."""
    step_s: float | None = None
    """Of an end of a trial that timed steps: their median in seconds."""
    log: str | None = None
    """Of an end that needs attention: the path of the trial's log."""

    @property
    def key(self) -> TrialKey:
        """The trial."""
        return self.combination_id, self.pass_name, self.round


_STORED_NAMES = {"kind": "event", "pass_name": "pass", "waits_for": "for"}
"""Names of fields in the files, where they differ."""


def parsed(line: bytes) -> Event | None:
    """Return the event of a line; None for a line that was cut or holds something else."""
    try:
        stored = validated(Json, json.loads(line))
        fields = {**stored, **{name: stored[key] for name, key in _STORED_NAMES.items() if key in stored}}
        event = validated(Event, fields)
        check_pass_name(event.pass_name)
    except (ValueError, RecursionError):
        return None
    if event.kind == "end" and event.status is None:
        return None
    if event.kind == "waiting" and "for" not in stored:
        return None
    return event


class EventLog:
    """Appends events to a file; a context, safe to be used by several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._epoch = time.time() - time.monotonic()
        self._file = open_regular(path, "a+b")
        size = os.fstat(self._file.fileno()).st_size
        if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
            self._append(b"\n")

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(
        self,
        kind: EventKind,
        trial: Trial,
        *,
        status: Status | None = None,
        reason: str | None = None,
        waits_for: str | None = None,
        log: str | None = None,
        step_s: float | None = None,
    ) -> None:
        """Append an event of a trial, see :class:`Event`.

        Raises:
            OSError: it could not be written completely.
        """
        line: Json = {
            "event": kind,
            "time": self._epoch + time.monotonic(),
            "combination_id": trial.combination_id,
            "pass": trial.pass_name,
            "round": trial.round,
        }
        if kind == "waiting":
            line["for"] = waits_for
        for name, value in (("status", status), ("reason", reason), ("log", log), ("step_s", step_s)):
            if value is not None:
                line[name] = value
        self._append(json.dumps(line).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        with self._lock:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "an event was written only in part", self._file.name)


def events_of(
    folder: Path, shard: int | None = None, start: int = 0, damaged: list[str] | None = None
) -> Iterator[Event]:
    """Yield every event in the files of ``events/``, shard by shard, or those of one shard.

    Args:
        start: the byte of each file from which it is read.
        damaged: gets a line for each file of which something could not be read.
    """
    for path in sorted(folder.glob(f"shard-{'*' if shard is None else shard}.jsonl")):
        unread = 0
        try:
            lines = read_bytes(path)[start:].splitlines(keepends=True)
        except (Damaged, OSError) as error:
            lines = []
            if damaged is not None:
                damaged.append(f"events/{path.name}: {error}")
        for line in lines:
            event = parsed(line)
            if event is not None:
                yield event
            elif line.endswith(b"\n") and line.strip():  # the last line may be half written
                unread += 1
        if unread and damaged is not None:
            damaged.append(f"events/{path.name}: {unread} line{'s' * (unread > 1)} cannot be read")


def begun(folder: Path, shard: int | None = None, start: int = 0, damaged: list[str] | None = None) -> set[TrialKey]:
    """Return the trials, of all shards or of one, that began to run and of which no end was written since.

    Args:
        start: the size of the shard's file when its task began: what is before it is of earlier tasks.
        damaged: as in :func:`events_of`.
    """
    trials: set[TrialKey] = set()
    for event in events_of(folder, shard, start, damaged):
        if event.kind in ("begin", "running"):
            trials.add(event.key)
        else:  # it has ended, or waits for the host lock
            trials.discard(event.key)
    return trials


# Missing results: records of trials whose process, shard or job was killed before they could write one.


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
