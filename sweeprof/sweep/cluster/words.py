"""What Slurm's commands print, as data. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SQUEUE_FORMAT = "%j|%K|%F|%T|%r|%N"
SACCT_FORMAT = "JobName,JobID,State,NodeList"
LIVE = frozenset(
    "PENDING RUNNING CONFIGURING COMPLETING SUSPENDED REQUEUED REQUEUE_HOLD REQUEUE_FED RESIZING RESV_DEL_HOLD SIGNALING "
    "STAGE_OUT STOPPED SPECIAL_EXIT POWER_UP_NODE".split()
)
"""States of a task that Slurm has not done with."""
UNKNOWN = "UNKNOWN"
"""Of a task that Slurm no longer knows."""
VANISHED = "VANISHED"
"""Of one that never began: a task that is cancelled while it waits leaves the queue at once, without accounting without a trace."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """What Slurm says of a task of an array."""

    job: str
    """``12_3``."""
    word: str
    """``RUNNING``, ``OUT_OF_MEMORY`` …"""
    reason: str = ""
    """Why a pending task waits."""
    node: str = ""

    @property
    def is_live(self) -> bool:
        """Whether Slurm has not done with it."""
        return self.word in LIVE


States = dict[tuple[str, int], TaskState]
"""By the name of the job and the number of the task."""


def states_in_squeue(text: str) -> States:
    """The states in ``squeue --array --format=SQUEUE_FORMAT``."""
    return {(name, number): state for name, number, state in _squeue_lines(text)}


def _squeue_lines(text: str) -> Iterator[tuple[str, int, TaskState]]:
    for line in text.splitlines():
        fields = line.strip().split("|")
        if (
            len(fields) == 6 and fields[1].isdigit() and fields[3] != "REVOKED"
        ):  # of a federation another cluster has it
            name, number, job, word, reason, node = fields
            yield name, int(number), TaskState(f"{job}_{number}", word, "" if reason == "None" else reason, node)


def states_in_sacct(text: str) -> States:
    """The states in ``sacct --parsable2 --format=SACCT_FORMAT``; of a task that ran several times the last one counts.

    Tasks that never began share a line, as ``12_[0-2,7%4]``, which may still name some that have a line of their own.
    """
    own: States = {}
    shared: States = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        match = re.fullmatch(r"(\d+)_(\d+|\[[\d,\-]+(?:%\d+)?\])", fields[1]) if len(fields) == 4 else None
        if match and fields[2]:
            node = "" if fields[3] == "None assigned" else fields[3]
            found = own if match[2].isdigit() else shared
            for number in _numbers(match[2]):
                found[fields[0], number] = TaskState(f"{match[1]}_{number}", fields[2].split()[0], "", node)
    return {**shared, **own}


def _numbers(text: str) -> Iterator[int]:
    for part in text.strip("[]").partition("%")[0].split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def largest_array(text: str) -> int:
    """How many tasks an array may have, from ``scontrol show config``; Slurm's default where it does not say."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    # Its numbers are below that size, and 0 switches arrays off.
    return max(1, int(match[1])) if match else 1001


def is_limit(said: str) -> bool:
    """Whether sbatch refused for what passes: the user has as many jobs as allowed, or the controller is away."""
    passing = r"submit limit|MaxSubmit|MaxJobCount|temporar|not responding|timed out|Unable to contact"
    return re.search(passing, said, re.IGNORECASE) is not None
