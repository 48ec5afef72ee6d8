"""Slurm's commands: sbatch, squeue, sacct, scancel and scontrol, and the parsing of their output. Nothing else calls them."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sweeprof.config.units import parse_minutes, parse_size
from sweeprof.errors import SweeprofError, UserError
from sweeprof.storage.folder import DRIVER
from sweeprof.storage.jobs import Submission

MODULE = "sweeprof.run.slurm_task"
"""What a job runs."""
ANSWER_S = 60.0
"""Time limit of a command; the controller may be busy, and sbatch itself retries for a while."""
SKEW_S = 3600.0
"""How far this host's clock may be ahead of the cluster's."""
SQUEUE_FORMAT = "%j|%K|%F|%T|%r|%N"
SACCT_FORMAT = "JobName,JobID,State,NodeList"
LIVE = frozenset(
    "PENDING RUNNING CONFIGURING COMPLETING SUSPENDED REQUEUED REQUEUE_HOLD REQUEUE_FED RESIZING RESV_DEL_HOLD SIGNALING "
    "STAGE_OUT STOPPED SPECIAL_EXIT POWER_UP_NODE".split()
)
"""States of a task that Slurm has not finished with."""
UNKNOWN = "UNKNOWN"
"""The state of a task that Slurm no longer lists."""
VANISHED = "VANISHED"
"""The state of one that never began: a task that is cancelled while it waits leaves the queue at once."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of a task of an array."""

    job: str
    """``12_3``."""
    name: str
    """``RUNNING``, ``OUT_OF_MEMORY`` …"""
    reason: str = ""
    """Why a pending task waits."""
    node: str = ""

    @property
    def is_live(self) -> bool:
        """True if Slurm has not finished with it."""
        return self.name in LIVE


States = dict[tuple[str, int], TaskState]
"""By the name of the job and the number of the task."""


def states_in_squeue(text: str) -> States:
    """Parse the output of ``squeue --array --format=SQUEUE_FORMAT``."""
    states: States = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 6 or not fields[1].isdigit():
            continue
        job_name, number, job, state, reason, node = fields
        if state != "REVOKED":  # another cluster of the federation has it
            reason = "" if reason == "None" else reason
            states[job_name, int(number)] = TaskState(f"{job}_{number}", state, reason, node)
    return states


def states_in_sacct(text: str) -> States:
    """Parse the output of ``sacct --parsable2 --format=SACCT_FORMAT``; of a task that ran several times the last one counts.

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


def parsed_largest_array(text: str) -> int:
    """Parse the largest number of tasks of an array in ``scontrol show config``; Slurm's default if it is not there."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    # Numbers of tasks are below that size; 0 disables arrays.
    return max(1, int(match[1])) if match else 1001


def is_limit(message: str) -> bool:
    """True if sbatch refused for a temporary reason: a limit on the user's jobs, or a controller that does not answer."""
    temporary = r"submit limit|MaxSubmit|MaxJobCount|temporar|not responding|timed out|Unable to contact"
    return re.search(temporary, message, re.IGNORECASE) is not None


class SlurmError(SweeprofError):
    """Slurm refused, or did not answer."""


def is_installed() -> bool:
    """True if this host has the commands of Slurm."""
    return not _missing()


def _missing() -> list[str]:
    return [name for name in ("sbatch", "squeue", "scancel", "scontrol") if shutil.which(name) is None]


def check_installed() -> None:
    """Raise :class:`UserError` if this host does not have the commands of Slurm."""
    missing = _missing()
    if missing:
        raise UserError(
            f"cluster: 'slurm' needs {', '.join(missing)}, which this host does not have; "
            "start the sweep on a host from which jobs are submitted."
        )


def submit(command: Sequence[str]) -> str:
    """Run sbatch; returns the job's number.

    Raises:
        SlurmError: it was refused.
    """
    return _answer(command).strip().partition(";")[0]


def states(names: Collection[str]) -> States:
    """Return what Slurm's controller knows of the jobs of these names; it forgets jobs some time after their end (MinJobAge).

    Raises:
        SlurmError: it does not answer.
    """
    if not names:
        return {}
    # --all: also in partitions that are hidden, where a task would seem to have gone.
    options = ["--noheader", "--all", "--array", "--states=all", f"--format={SQUEUE_FORMAT}"]
    return states_in_squeue(_answer(["squeue", *options, f"--name={','.join(names)}"]))


def accounted(names: Collection[str], since: float) -> States:
    """Return the states of ended jobs of these names by Slurm's accounting; empty if the cluster has none.

    Jobs that it lists as running are left out: accounting may miss an end, and the controller knows the running jobs.

    Args:
        since: when the first of them was submitted, in seconds since the epoch.
    """
    start = datetime.fromtimestamp(since - SKEW_S).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    options = ["--noheader", "--parsable2", "--allocations", f"--starttime={start}", f"--format={SACCT_FORMAT}"]
    try:
        found = states_in_sacct(_answer(["sacct", *options, f"--name={','.join(names)}"]))
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
    """Return the largest number of tasks of an array."""
    try:
        return parsed_largest_array(_answer(["scontrol", "show", "config"]))
    except SlurmError:
        return parsed_largest_array("")


def environment() -> dict[str, str]:
    """Return this process's environment for Slurm's commands.

    Without the variables of a job that this process itself runs in, and without the user's options, which may hide tasks.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    own = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_")
    return {
        key: value for key, value in os.environ.items() if key in kept or not (key.startswith(own) or key == DRIVER)
    }


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
        message = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SlurmError(f"{command[0]}: {message}")
    return done.stdout


def script(
    submission: Submission, settings: Mapping[str, Any], folder: Path, python: str, inherited: Mapping[str, str]
) -> str:
    """Return a script that runs one task, whatever part of the environment sbatch passes on.

    Args:
        settings: ``cluster`` in the config.
        python: the interpreter, if the settings name none.
        inherited: environment variables that the task needs as they are here.
    """
    variables = {**inherited, **{str(key): str(value) for key, value in settings["environment"].items()}}
    command = [settings["python"] or python, "-m", MODULE, str(folder), submission.token]
    lines = [
        "#!/bin/bash",
        "# Made by sweeprof. Each task of the array measures one shard; trials that have a record are not run again.",
        *(f"export {key}={shlex.quote(value)}" for key, value in variables.items()),
        *map(str, settings["setup"]),
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def sbatch(submission: Submission, settings: Mapping[str, Any], script: Path, log: Path, cwd: Path) -> list[str]:
    """Return the command that submits; resources are given on the command line, where no environment variable overrides them.

    Args:
        log: the file of a task's output, with ``%a`` for its number.
    """
    parallel = f"%{settings['parallel']}" if settings["parallel"] else ""
    given = {
        "job-name": submission.name,
        "array": f"0-{len(submission.shards) - 1}{parallel}",
        "output": str(log.parent).replace("%", "%%") + f"/{log.name}",
        "open-mode": "append",  # keeps the output of a task from before it was requeued
        "chdir": str(cwd),
        "nodes": "1",
        "ntasks": "1",
        **_resource_options(submission.resources),
    }
    options = {**given, **{key: value for key, value in submission.resources["options"].items() if value is not None}}
    words = [
        f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items() if value is not False
    ]
    requeue = [] if {"requeue", "no-requeue"} & options.keys() else ["--requeue"]
    return ["sbatch", "--parsable", *words, *requeue, str(script)]


def _resource_options(resources: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {key: resources[key] for key in ("partition", "account", "qos", "constraint")}
    minutes, memory = parse_minutes(resources["time"]), parse_size(resources["memory"])
    options |= {
        "time": minutes,
        "mem": f"{math.ceil(memory / 2**20)}M" if memory else None,
        "cpus-per-task": resources["cpus"],
        "gres": f"gpu:{resources['gpus']}" if resources["gpus"] else None,
        "exclusive": True if resources["exclusive"] else None,
    }
    return {key: value for key, value in options.items() if value is not None}
