"""The begin and end of every trial, a line of JSON each, in a file per shard.

Appended, not replaced: a power loss or a full disk may cut the last line, which readers then pass over.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NotRequired, TypedDict

from sweeprof.errors import Damaged
from sweeprof.results.files import read_bytes
from sweeprof.results.record import PassName, Status
from sweeprof.results.validation import validated
from sweeprof.sweep.plan import Trial

TrialKey = tuple[str, PassName, int]
"""Combination id, pass and round."""


class EventLog:
    """Appends events to a file; a context, safe to be used by several threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")
        self._lock = threading.Lock()
        self._file = path.open("ab", buffering=0)
        if not whole:
            self._append(b"\n")

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def tell(self, kind: str, trial: Trial, **more: Any) -> None:
        """Append an event of a trial.

        Raises:
            OSError: it could not be written whole.
        """
        event = {
            "event": kind,
            "time": time.time(),
            "combination_id": trial.combination_id,
            "pass": trial.pass_name,
            "round": trial.round,
            **more,
        }
        self._append(json.dumps(event).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        with self._lock:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, "the disk took a part of an event", self._file.name)


Event = TypedDict(
    "Event",
    {
        "event": str,
        "time": float,
        "combination_id": str,
        "pass": PassName,
        "round": int,
        "status": NotRequired[Status],
        "reason": NotRequired[str | None],
        "for": NotRequired[str | None],
        "log": NotRequired[str | None],
    },
)
"""A line of an event log."""


def parsed(line: bytes) -> Event | None:
    """The event of a line; None for a line that was cut or holds something else."""
    try:
        event = validated(Event, json.loads(line))
    except (ValueError, RecursionError):
        return None
    needed = {"begin": "time", "running": "time", "waiting": "for", "end": "status"}.get(event["event"])
    return event if needed in event else None


def events_of(folder: Path, shard: int | None = None, damaged: list[str] | None = None) -> Iterator[Event]:
    """Every event in the files of ``events/``, shard by shard, or those of one shard.

    Args:
        damaged: gets a line for each file of which something could not be read.
    """
    for path in sorted(folder.glob(f"shard-{'*' if shard is None else shard}.jsonl")):
        unread = 0
        try:
            lines = read_bytes(path).splitlines(keepends=True)
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


def begun(
    folder: Path, shard: int | None = None, since: float = 0.0, damaged: list[str] | None = None
) -> set[TrialKey]:
    """The trials, of all shards or of one, that had their turn and of which no end was told since.

    Args:
        since: seconds since the epoch; what was told earlier is passed over, as by an earlier task of the shard.
        damaged: as in :func:`events_of`.
    """
    found: set[TrialKey] = set()
    for event in events_of(folder, shard, damaged):
        if event["time"] < since:
            continue
        key = (event["combination_id"], event["pass"], event["round"])
        if event["event"] in ("begin", "running"):
            found.add(key)
        else:  # it has ended, or waits for its turn
            found.discard(key)
    return found
