"""Slurm's own commands: submit, ask, cancel. Nothing else talks to it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from datetime import datetime

from sweeprof.errors import SweeprofError, UserError
from sweeprof.sweep.cluster import words
from sweeprof.sweep.cluster.words import States
from sweeprof.sweep.hold import HEAD

ANSWER_S = 60.0
"""For a controller that is busy; sbatch itself tries again for a while."""
SKEW_S = 3600.0
"""How far this host's clock may be ahead of the cluster's."""


class SlurmError(SweeprofError):
    """Slurm refused, or did not answer."""


def is_installed() -> bool:
    """Whether this host has a Slurm to submit to."""
    return not _missing()


def _missing() -> list[str]:
    return [name for name in ("sbatch", "squeue", "scancel", "scontrol") if shutil.which(name) is None]


def check_installed() -> None:
    """Raise :class:`UserError` where this host has no Slurm to submit to."""
    missing = _missing()
    if missing:
        said = f"'slurm' needs {', '.join(missing)}, which this host has not; start the sweep where jobs are submitted."
        raise UserError(f"cluster: {said}")


def submit(command: Sequence[str]) -> str:
    """Run sbatch; returns the job's number.

    Raises:
        SlurmError: it was refused.
    """
    return _answer(command).strip().partition(";")[0]


def states(names: Collection[str]) -> States:
    """What Slurm's controller knows of the jobs of these names; it forgets those that ended (MinJobAge).

    Raises:
        SlurmError: it does not answer.
    """
    if not names:
        return {}
    # --all: also in partitions that are hidden, where a task would seem to have gone.
    asked = ["--noheader", "--all", "--array", "--states=all", f"--format={words.SQUEUE_FORMAT}"]
    return words.states_in_squeue(_answer(["squeue", *asked, f"--name={','.join(names)}"]))


def accounted(names: Collection[str], since: float) -> States:
    """What became of the jobs of these names by accounting; nothing where a cluster has none.

    What it holds for alive is left out: it was not told of every end, and of what lives the controller knows.

    Args:
        since: when the first of them was submitted, in seconds since the epoch.
    """
    start = datetime.fromtimestamp(since - SKEW_S).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    asked = ["--noheader", "--parsable2", "--allocations", f"--starttime={start}", f"--format={words.SACCT_FORMAT}"]
    try:
        found = words.states_in_sacct(_answer(["sacct", *asked, f"--name={','.join(names)}"]))
    except SlurmError:
        return {}
    return {key: state for key, state in found.items() if not state.is_live}


def cancel(jobs: Collection[str]) -> None:
    """Cancel jobs by their numbers.

    Raises:
        SlurmError: it does not answer.
    """
    if jobs:
        _answer(["scancel", *sorted(jobs)])


def largest_array() -> int:
    """How many tasks an array may have."""
    try:
        return words.largest_array(_answer(["scontrol", "show", "config"]))
    except SlurmError:
        return words.largest_array("")


def environment() -> dict[str, str]:
    """This process's environment for Slurm's commands.

    What a job that we run in says of itself is not the new job's, and what a user wants to see of the queue hides no task from us.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    own = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_")
    return {key: value for key, value in os.environ.items() if key in kept or not (key.startswith(own) or key == HEAD)}


def _answer(command: Sequence[str]) -> str:
    variables = {**environment(), "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]}: timed out after {ANSWER_S:g} s") from None
    except OSError as error:
        raise SlurmError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SlurmError(f"{command[0]}: {said}")
    return done.stdout
