"""Slurm's commands: sbatch, squeue, sacct, scancel and scontrol, and the parsing of their output. Nothing else calls them.

The module is a :class:`sweeprof.cluster.scheduler.Scheduler`.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from sweeprof.cluster.scheduler import ClusterError, States, TaskState
from sweeprof.config.constraints import parse_minutes, parse_size
from sweeprof.errors import UserError
from sweeprof.storage import DRIVER, Jobs, Submission

title = "Slurm"
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
MEMORY_VARIABLES = ("SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU", "SBATCH_MEM_PER_NODE")
"""By which a user or a site sets the memory of jobs for sbatch."""
ANSWER_S = 60.0
"""Time limit of a command; the controller may be busy, and sbatch itself retries for a while."""
SKEW_S = 24 * 3600.0
"""How far this host's clock may be ahead of the cluster's, or may have been when it submitted."""
SQUEUE_FORMAT = "%j|%K|%F|%T|%r|%N"
SACCT_FORMAT = "JobName,JobID,State,NodeList"


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
        if len(fields) != 4 or not fields[2]:
            continue
        name, task, state, node = fields
        match = re.fullmatch(r"(\d+)_(?:(\d+)|\[([\d,\-]+)(?:%\d+)?\])", task)
        if match is None:
            continue
        if node == "None assigned":
            node = ""
        found = own if match[2] else shared
        for part in (match[2] or match[3]).split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found[name, number] = TaskState(f"{match[1]}_{number}", state.split()[0], "", node)
    return {**shared, **own}


def parsed_largest_array(text: str) -> int:
    """Parse the largest number of tasks of an array in ``scontrol show config``; Slurm's default if it is not there."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    # Numbers of tasks are below that size; 0 disables arrays.
    return max(1, int(match[1])) if match else 1001


def is_limit(message: str) -> bool:
    """True if sbatch refused for a temporary reason: a limit on the user's jobs, or a controller that does not answer."""
    temporary = r"submit limit|MaxSubmit|MaxJobCount|temporar|not responding|timed out|Unable to contact"
    return re.search(temporary, message, re.IGNORECASE) is not None


def is_installed() -> bool:
    """True if this host has the commands of Slurm."""
    return all(map(shutil.which, COMMANDS))


def check_installed() -> None:
    """Raise :class:`UserError` if this host does not have the commands of Slurm."""
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        raise UserError(
            f"cluster: 'slurm' needs {', '.join(missing)}, which this host does not have; "
            "start the sweep on a host from which jobs are submitted."
        )


def submit(submission: Submission, settings: Mapping[str, Any], jobs: Jobs) -> str:
    """Run sbatch; returns the job's number.

    Raises:
        ClusterError: it was refused.
    """
    log = jobs.logs / f"{submission.token}-%a.log"
    memory = requested_memory(submission.resources)
    command = sbatch(submission, settings, jobs.script(submission.token), log, Path.cwd(), memory)
    return _answer(command).strip().partition(";")[0]


def states(names: Collection[str]) -> States:
    """Return what Slurm's controller knows of the jobs of these names; it forgets jobs some time after their end (MinJobAge).

    Raises:
        ClusterError: it does not answer.
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
    start = datetime.fromtimestamp(min(since, time.time()) - SKEW_S).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    options = ["--noheader", "--parsable2", "--allocations", f"--starttime={start}", f"--format={SACCT_FORMAT}"]
    try:
        found = states_in_sacct(_answer(["sacct", *options, f"--name={','.join(names)}"]))
    except ClusterError:
        return {}
    return {key: state for key, state in found.items() if not state.is_live}


def cancel(arrays: Collection[str]) -> None:
    """Cancel jobs by their numbers.

    Raises:
        ClusterError: it does not answer.
    """
    if arrays:
        _answer(["scancel", *sorted(arrays)])


def is_id(array: str) -> bool:
    """Return whether a text is the number of a job."""
    return array.isdigit()


def cancel_command(arrays: Collection[str]) -> str:
    """Return the command by which the user cancels jobs."""
    return shlex.join(["scancel", *arrays])


def largest_array() -> int:
    """Return the largest number of tasks of an array."""
    try:
        return parsed_largest_array(_answer(["scontrol", "show", "config"]))
    except ClusterError:
        return parsed_largest_array("")


def environment() -> dict[str, str]:
    """Return this process's environment for Slurm's commands.

    Without the variables of a job that this process itself runs in, and without the user's options, which may hide tasks.
    """
    own = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", DRIVER)
    variables = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    for key in ("SLURM_CONF", "SLURM_CLUSTERS"):
        if key in os.environ:
            variables[key] = os.environ[key]
    return variables


def _answer(command: Sequence[str]) -> str:
    variables = {**environment(), "SLURM_TIME_FORMAT": "standard"}
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{command[0]}: timed out after {ANSWER_S:g} s") from None
    except OSError as error:
        raise ClusterError(f"{command[0]}: {error}") from None
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ClusterError(f"{command[0]}: {message}")
    return done.stdout


def requested_memory(resources: Mapping[str, Any]) -> int | None:
    """Return the bytes to request for a task; None for the partition's default.

    Without ``cluster.memory`` it is what the frameworks need, unless the partition's default is more or the user has set an option
    of sbatch for it.
    """
    if resources["memory"]:
        return parse_size(resources["memory"])
    options, needed = resources["options"], resources.get("needed_memory")
    is_set = any(key.startswith("mem") for key in options) or any(map(os.environ.get, MEMORY_VARIABLES))
    if not needed or is_set or options.get("exclusive"):
        return None
    try:
        partitions = _answer(["scontrol", "--oneliner", "show", "partition"])
        config = _answer(["scontrol", "show", "config"])
    except ClusterError:
        return None
    default = parsed_default_memory(partitions, config, resources["partition"], int(resources["cpus"]))
    return int(needed) if default is not None and default < needed else None


def parsed_default_memory(partitions: str, config: str, partition: str | None, cpus: int) -> int | None:
    """Return the bytes that a task gets in a partition, None for Slurm's default one, if it requests none; None: a whole node's.

    Args:
        partitions: the output of ``scontrol --oneliner show partition``.
        config: that of ``scontrol show config``, for a partition without a default of its own.
    """
    found: list[dict[str, str]] = []
    for line in partitions.splitlines():
        fields = dict(word.partition("=")[::2] for word in line.split())
        if fields.get("PartitionName") == partition or (partition is None and fields.get("Default") == "YES"):
            found.append(fields)
    found.append(dict(re.findall(r"^(DefMem\w+)\s*=\s*(\S+)", config, re.MULTILINE)))
    for fields in found:
        for key, count in (("DefMemPerCPU", cpus), ("DefMemPerNode", 1)):
            if fields.get(key, "").isdigit():
                return int(fields[key]) * count * 2**20
    return None


def sbatch(
    submission: Submission, settings: Mapping[str, Any], script: Path, log: Path, cwd: Path, memory: int | None
) -> list[str]:
    """Return the command that submits; resources are given on the command line, where no environment variable overrides them.

    Args:
        log: the file of a task's output, with ``%a`` for its number.
        memory: bytes; None: the partition's default.
    """
    resources = submission.resources
    options: dict[str, Any] = {
        "job-name": submission.name,
        "array": f"0-{len(submission.shards) - 1}",
        "output": str(log.parent).replace("%", "%%") + f"/{log.name}",
        "open-mode": "append",  # keeps the output of a task from before it was requeued
        "chdir": str(cwd),
        "nodes": "1",
        "ntasks": "1",
        "partition": resources["partition"],
        "time": parse_minutes(resources["time"]),
        "cpus-per-task": resources["cpus"],
    }
    if settings["parallel"]:
        options["array"] += f"%{settings['parallel']}"
    if resources["gpus"]:
        options["gres"] = f"gpu:{resources['gpus']}"
    if memory:
        options["mem"] = f"{math.ceil(memory / 2**20)}M"
    options |= {key: value for key, value in resources["options"].items() if value is not None}
    if options.keys().isdisjoint(("requeue", "no-requeue")):
        options["requeue"] = True
    words = []
    for key, value in options.items():
        if value is True:
            words.append(f"--{key}")
        elif value is not None and value is not False:
            words.append(f"--{key}={value}")
    return ["sbatch", "--parsable", *words, str(script)]
