"""What a scheduler offers to the job tracker: submit tasks, list them, cancel them. Slurm and Ray implement it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sweeprof.errors import SweeprofError
from sweeprof.storage import Jobs, Submission

MODULE = "sweeprof.run.cluster_task"
"""What a task runs."""
LIVE = frozenset(
    "PENDING RUNNING CONFIGURING COMPLETING SUSPENDED REQUEUED REQUEUE_HOLD REQUEUE_FED RESIZING RESV_DEL_HOLD SIGNALING "
    "STAGE_OUT STOPPED SPECIAL_EXIT POWER_UP_NODE".split()
)
"""States of a task that its scheduler has not finished with, in Slurm's words."""
UNKNOWN = "UNKNOWN"
"""The state of a task that the scheduler no longer lists."""
VANISHED = "VANISHED"
"""The state of one that never began: a task that is cancelled while it waits leaves the queue at once."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of a task of an array."""

    job: str
    """``12_3``: its array and its number."""
    name: str
    """``RUNNING``, ``OUT_OF_MEMORY`` …"""
    reason: str = ""
    """Why a pending task waits."""
    node: str = ""

    @property
    def is_live(self) -> bool:
        """True if the scheduler has not finished with it."""
        return self.name in LIVE

    @property
    def array(self) -> str:
        """The array that it is a task of."""
        return self.job.rpartition("_")[0]


States = dict[tuple[str, int], TaskState]
"""By the name of the array and the number of the task."""


class ClusterError(SweeprofError):
    """The scheduler refused, or did not answer."""


class Scheduler(Protocol):
    """A scheduler of tasks. The methods with a body are those of one that has neither accounting nor limits."""

    title: str
    """Its name in messages."""

    def is_installed(self) -> bool:
        """Return whether this host has what submits to it."""

    def check_installed(self) -> None:
        """Raise :class:`sweeprof.errors.UserError` if this host lacks what submits to it."""

    def submit(self, submission: Submission, settings: Mapping[str, Any], jobs: Jobs) -> str:
        """Submit the tasks of an array, each of which runs the script that ``jobs`` has for the submission.

        Returns the scheduler's id of the array.

        Raises:
            ClusterError: it was refused.
        """

    def states(self, names: Collection[str]) -> States:
        """Return the states of the tasks of the arrays of these names, as far as it lists them.

        Raises:
            ClusterError: it does not answer.
        """

    def accounted(self, names: Collection[str], since: float) -> States:
        """Return the states of ended tasks of these arrays by its accounting; empty if there is none.

        Args:
            since: when the first of them was submitted, in seconds since the epoch.
        """
        return {}

    def cancel(self, arrays: Collection[str]) -> None:
        """Cancel arrays by their ids.

        Raises:
            ClusterError: it does not answer.
        """

    def is_id(self, array: str) -> bool:
        """Return whether a text is an id of an array, and not the name of one whose id is not known yet."""
        return True

    def cancel_command(self, arrays: Collection[str]) -> str:
        """Return the command by which the user cancels arrays."""

    def largest_array(self) -> int:
        """Return the largest number of tasks of an array."""
        return 2**31

    def is_limit(self, message: str) -> bool:
        """Return whether a submission was refused for a temporary reason."""
        return False


def script(
    submission: Submission, settings: Mapping[str, Any], folder: Path, python: str, inherited: Mapping[str, str]
) -> str:
    """Return a script that runs one task, whatever part of the environment the scheduler passes on.

    Args:
        settings: ``cluster`` in the config.
        python: the interpreter.
        inherited: environment variables that the task needs as they are here.
    """
    lines = [
        "#!/bin/bash",
        "# Made by sweeprof. Each task of the array measures one shard; trials that have a record are not run again.",
    ]
    for key, value in inherited.items():
        lines.append(f"export {key}={shlex.quote(value)}")
    lines += map(str, settings["setup"])
    command = [python, "-m", MODULE, str(folder), submission.token]  # a task reads its number from its environment
    lines.append(f"exec {shlex.join(command)}")
    return "\n".join(lines) + "\n"
