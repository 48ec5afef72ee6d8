"""Shards as detached actors of a Ray cluster: they outlive the driver, and run where their resources and labels fit.

A child process (:mod:`sweeprof.cluster.ray_process`) is connected to Ray: Ray changes signal handlers, prints to stdout, and ends
a process that loses the cluster.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sweeprof.cluster.scheduler import ClusterError, Scheduler, States, TaskState
from sweeprof.config.constraints import parse_size
from sweeprof.errors import UserError, WorkerError
from sweeprof.processes import NO_WORKING_DIRECTORY, Child
from sweeprof.results.record import Json
from sweeprof.storage import Jobs, Submission

ANSWER_S = 60.0


class Ray(Scheduler):
    """The scheduler of a sweep on Ray.

    Args:
        address: of the cluster; None: ``RAY_ADDRESS``, or the cluster that runs on this host.
        jobs: the sweep's files about its tasks.
    """

    title = "Ray"

    def __init__(self, address: str | None, jobs: Jobs) -> None:
        self._address, self._jobs = address, jobs
        self._child: Child | None = None

    def is_installed(self) -> bool:
        """True if the package is installed."""
        return find_spec("ray") is not None

    def check_installed(self) -> None:
        """Raise :class:`UserError` if the package is not installed."""
        if not self.is_installed():
            raise UserError("cluster: 'ray' needs the package ray: pip install 'sweeprof[ray]'.")

    def submit(self, submission: Submission, settings: Mapping[str, Any], jobs: Jobs) -> str:
        """Create an actor for each task; returns the name that their names begin with."""
        self._ask(
            {
                "submit": submission.name,
                "options": actor_options(submission.resources),
                "script": str(jobs.script(submission.token)),
                "logs": [str(jobs.log(submission.token, number)) for number in range(len(submission.shards))],
                "cwd": str(Path.cwd()),
            }
        )
        return submission.name

    def states(self, names: Collection[str]) -> States:
        """Return the states of the tasks that Ray lists, and of those whose end it has described to this process."""
        submissions = {one.name: one for one in self._jobs.all() if one.name in names}
        options = {name: actor_options(submission.resources) for name, submission in submissions.items()}
        found: States = {}
        for actor, (state, reason) in self._ask({"states": options})["states"].items():
            name, _, number = actor.rpartition("_")
            note = self._jobs.note(submissions[name].token, int(number))
            found[name, int(number)] = TaskState(actor, state, reason)
            if state == "PENDING" and note is not None:
                found[name, int(number)] = TaskState(actor, "RUNNING" if note.ended is None else "COMPLETING")
        return found

    def cancel(self, arrays: Collection[str]) -> None:
        """Kill the actors of these arrays."""
        self._ask({"cancel": list(arrays)})

    def cancel_command(self, arrays: Collection[str]) -> str:
        """Return a command that ends tasks after the trial that they run; Ray has no command for actors."""
        return f"echo cancelled > {shlex.quote(str(self._jobs.path.parent / 'stop'))}"

    def _ask(self, message: Json) -> Json:
        try:
            if self._child is None or not self._child.alive:
                log = self._jobs.logs / "ray.log"
                self._child = Child(
                    "sweeprof.cluster.ray_process:serve",
                    [self._address or ""],
                    {**os.environ, **NO_WORKING_DIRECTORY},
                    log,
                )
            answer = self._child.ask(message, ANSWER_S)
        except WorkerError as error:
            self._child = None
            raise ClusterError(f"Ray: {error}") from None
        if "error" in answer:
            raise ClusterError(f"Ray: {answer['error']}")
        return answer


def actor_options(resources: Mapping[str, Any]) -> Json:
    """Return the options of a task's actor for the resources of its shard."""
    options: Json = {"num_cpus": resources["cpus"]}
    kind, _, count = str(resources["gpus"] or 0).rpartition(":")
    if int(count):
        options["num_gpus"] = int(count)
    if kind:
        options["accelerator_type"] = kind
    if resources["memory"]:
        options["memory"] = int(parse_size(resources["memory"]) or 0)
    return options | {key: value for key, value in resources["options"].items() if value is not None}
