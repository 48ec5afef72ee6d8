"""What it means for a shard that its task ended before everything was measured. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sweeprof.results.record import Status
from sweeprof.sweep.cluster.jobs import HELD, Note
from sweeprof.sweep.cluster.words import UNKNOWN, VANISHED, TaskState

EXCEEDED = re.compile(r"exceeded (?:job |step )?memory limit", re.IGNORECASE)
"""What Slurm writes into the output of a task that it ends itself for its memory."""
KILLED = re.compile(r"oom[-_ ]?kill|out[ -]of[ -]memory handler", re.IGNORECASE)
"""What it writes where the system killed a process of the task: perhaps a trial, long before the task's end."""
WORDS = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "DEADLINE": "reached its deadline",
    "OUT_OF_MEMORY": "ran out of memory",
    "NODE_FAIL": "lost its node",
    "BOOT_FAIL": "got a node that did not start",
    "PREEMPTED": "was preempted",
    "FAILED": "failed",
    "COMPLETED": "ended",
    UNKNOWN: "is not known to Slurm any more",
    VANISHED: "was cancelled while it waited",
}
INNOCENT = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "COMPLETED", UNKNOWN)
"""Endings of which what was measured is not the cause."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Of a task whose shard lacks something."""

    missing: str
    """Why what had not begun was not measured."""
    status: Status
    """Of what was being measured."""
    reason: str
    blamed: bool
    """Whether what was being measured caused it, so that it is not tried again before the rest."""
    again: bool
    """Whether a further task may measure the rest."""

    def told(self) -> dict[str, Any]:
        """As it is written down."""
        return {"missing": self.missing, "status": self.status, "reason": self.reason}


def ending(state: TaskState, note: Note | None, output: str, progressed: bool) -> Ending:
    """Judge the end of a task.

    Args:
        note: what it said of itself; None where it never began.
        output: the last lines that it, and Slurm, printed.
        progressed: whether it has left any record.
    """
    word = "OUT_OF_MEMORY" if _is_memory(state.word, output) else state.word
    node = note.node if note else state.node
    job = f"job {state.job}" + (f" on {node}" if node else "")
    what = WORDS.get(word, f"ended as {word}")
    if word == "FAILED":
        said = note.error if note and note.error and note.ended else _last_line(output)
        what = f"failed: {said}" if said else what
    missing = f"its {job} {what} before it was measured"
    reason = f"{job} {what} while it was measured"
    if word == "OUT_OF_MEMORY":
        return Ending(missing, "oom", reason, True, True)
    if word in ("TIMEOUT", "DEADLINE"):
        return Ending(missing, "timeout", reason, not progressed, True)
    if word == "FAILED":
        began = note is not None and note.ended is None  # what fails by itself says so; else something ended it
        is_held = note is not None and note.ended is not None and note.error == HELD
        return Ending(missing, "lost", reason, began, began or is_held)
    return Ending(missing, "lost", reason, False, word in INNOCENT)


def refused(said: str) -> Ending:
    """Of a shard that no task was submitted for, since Slurm refused."""
    why = f"its shard was not submitted: {said}"
    return Ending(why, "lost", f"it began and was ended, and {why}", False, False)


def _is_memory(word: str, output: str) -> bool:
    """Whether the output says that memory ran out, where the state does not."""
    return bool(
        (word in ("FAILED", "CANCELLED") and EXCEEDED.search(output)) or (word == "FAILED" and KILLED.search(output))
    )


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""
