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
from typing import Any

from sweeprof.results.record import PassName
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


def parsed(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for a line that was cut."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and event.keys() >= {"event", "combination_id", "pass", "round"} else None


def events_of(folder: Path, shard: int | None = None) -> Iterator[dict[str, Any]]:
    """Every event in the files of ``events/``, shard by shard, or those of one shard."""
    for path in sorted(folder.glob(f"shard-{'*' if shard is None else shard}.jsonl")):
        with path.open("rb") as file:
            for line in file:
                event = parsed(line)
                if event is not None:
                    yield event


def begun(folder: Path, shard: int | None = None, since: float = 0.0) -> set[TrialKey]:
    """The trials, of all shards or of one, that had their turn and of which no end was told since.

    Args:
        since: seconds since the epoch; what was told earlier is passed over, as by an earlier task of the shard.
    """
    found: set[TrialKey] = set()
    for event in events_of(folder, shard):
        if event.get("time", since) < since:
            continue
        key = (event["combination_id"], event["pass"], event["round"])
        if event["event"] in ("begin", "running"):
            found.add(key)
        else:  # it has ended, or waits for its turn
            found.discard(key)
    return found
