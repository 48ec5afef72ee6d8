"""The batch script of an array of tasks, and what sbatch is told beside it. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeprof.sweep.amounts import parse_minutes, parse_size
from sweeprof.sweep.cluster.jobs import Submission

MODULE = "sweeprof.sweep.cluster.task"


def script(
    submission: Submission, settings: Mapping[str, Any], folder: Path, python: str, inherited: Mapping[str, str]
) -> str:
    """A script that runs one task, whatever of the environment sbatch passes on.

    Args:
        settings: what is under ``cluster`` in the config.
        python: the interpreter, where the settings name none.
        inherited: environment variables that the task needs as they are here.
    """
    variables = {**inherited, **{str(key): str(value) for key, value in settings["environment"].items()}}
    command = [settings["python"] or python, "-m", MODULE, str(folder), submission.token]
    lines = [
        "#!/bin/bash",
        "# Made by sweeprof. Each task of the array measures one shard; what is measured already is not measured again.",
        *(f"export {key}={shlex.quote(value)}" for key, value in variables.items()),
        *map(str, settings["setup"]),
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def sbatch(submission: Submission, settings: Mapping[str, Any], script: Path, log: Path, cwd: Path) -> list[str]:
    """The command that submits: what is asked for stands on the command line, where no variable of the user's overrides it.

    Args:
        log: where a task's output goes, with ``%a`` for its number.
    """
    parallel = f"%{settings['parallel']}" if settings["parallel"] else ""
    given = {
        "job-name": submission.name,
        "array": f"0-{len(submission.shards) - 1}{parallel}",
        "output": str(log.parent).replace("%", "%%") + f"/{log.name}",
        "open-mode": "append",  # what a task printed before it was requeued is kept
        "chdir": str(cwd),
        "nodes": "1",
        "ntasks": "1",
        **_asked(submission.resources),
    }
    options = {**given, **{key: value for key, value in submission.resources["options"].items() if value is not None}}
    words = [
        f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items() if value is not False
    ]
    requeue = [] if {"requeue", "no-requeue"} & options.keys() else ["--requeue"]
    return ["sbatch", "--parsable", *words, *requeue, str(script)]


def _asked(resources: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {key: resources[key] for key in ("partition", "account", "qos", "constraint")}
    minutes, memory = parse_minutes(resources["time"]), parse_size(resources["memory"])
    found |= {
        "time": minutes,
        "mem": f"{math.ceil(memory / 2**20)}M" if memory else None,
        "cpus-per-task": resources["cpus"],
        "gres": f"gpu:{resources['gpus']}" if resources["gpus"] else None,
        "exclusive": True if resources["exclusive"] else None,
    }
    return {key: value for key, value in found.items() if value is not None}
