"""Shards as pods of an indexed Job of Kubernetes, whose manifest is written for the user to apply.

The driver and the pods share a volume. Their files there tell the driver how far the tasks are, so that it needs no access to the
cluster; Kubernetes starts a pod again that fails or whose node is lost.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from sweeprof.cluster.scheduler import ClusterError, Scheduler, States, TaskState
from sweeprof.config.units import parse_size
from sweeprof.results.files import write_atomically
from sweeprof.results.record import Json
from sweeprof.storage.jobs import Jobs, Submission

LABEL = "app.kubernetes.io/name"
RETRIES = 3
"""How often a pod of one task may fail."""
KEPT_S = 7 * 24 * 3600
"""How long Kubernetes keeps the Job after its end."""


class Kubernetes(Scheduler):
    """The scheduler of a sweep on Kubernetes.

    Args:
        jobs: the sweep's files about its tasks.
    """

    title = "Kubernetes"

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def is_installed(self) -> bool:
        """Return True: nothing is needed to write a manifest."""
        return True

    def check_installed(self) -> None:
        """Do nothing: nothing is needed to write a manifest."""

    def submit(self, submission: Submission, settings: Mapping[str, Any], jobs: Jobs) -> str:
        """Write the manifest of a Job; returns its name.

        Raises:
            ClusterError: the sweep's folder is not on the shared volume.
        """
        mount = Path(str(submission.resources["options"]["mount"]))
        if not jobs.path.is_relative_to(mount):
            raise ClusterError(
                f"Kubernetes: {jobs.path.parent} is not below {mount}, where pods mount the volume (cluster.options.mount); "
                f"choose output={mount} or the path at which this host has the volume"
            )
        write_atomically(self._path(submission), yaml.safe_dump(manifest(submission, jobs), sort_keys=False))
        return name_of(submission)

    def states(self, names: Collection[str]) -> States:
        """Return the states of tasks by their own notes."""
        found: States = {}
        for submission in self._jobs.all():
            if submission.name not in names:
                continue
            for number in range(len(submission.shards)):
                note = self._jobs.note(submission.token, number)
                job = f"{name_of(submission)}_{number}"
                if note is not None and note.ended is None:
                    found[submission.name, number] = TaskState(job, "RUNNING", "", note.node)
                elif note is None and not submission.revoked:
                    command = f"kubectl apply -f {self._path(submission)}"
                    found[submission.name, number] = TaskState(job, "PENDING", command)
        return found

    def _path(self, submission: Submission) -> Path:
        return self._jobs.path / f"{submission.token}.yaml"

    def cancel(self, arrays: Collection[str]) -> None:
        """Stop running tasks after the trial that they run; waiting ones have been revoked."""
        if arrays:
            write_atomically(
                self._jobs.path.parent / "stop", f"a driver that was interrupted; {self.cancel_command(arrays)}"
            )

    def is_id(self, array: str) -> bool:
        """Return whether a text is the name of a Job."""
        return array.startswith("sweeprof-")

    def cancel_command(self, arrays: Collection[str]) -> str:
        """Return the command by which the user deletes Jobs."""
        return shlex.join(["kubectl", "delete", "job", *arrays])

    def largest_array(self) -> int:
        """Return the largest number of completions of an indexed Job."""
        return 100_000


def name_of(submission: Submission) -> str:
    """Return the name of a Job: at most 63 small letters, digits and hyphens."""
    return f"sweeprof-{submission.token}"


def manifest(submission: Submission, jobs: Jobs) -> Json:
    """Return the manifest of an indexed Job, each pod of which runs the script that tasks of Slurm run."""
    options, name = submission.resources["options"], name_of(submission)
    log = f"{jobs.logs}/{submission.token}"
    start = (
        f"export SWEEPROF_JOB={name}_$JOB_COMPLETION_INDEX; "
        f"exec bash {shlex.quote(str(jobs.script(submission.token)))} >>{shlex.quote(log)}-$JOB_COMPLETION_INDEX.log 2>&1"
    )
    container: Json = {
        "name": "task",
        "image": options["image"],
        "command": ["bash", "-c", start],
        "env": [
            {"name": "SWEEPROF_SCHEDULER", "value": "kubernetes"},
            {"name": "SWEEPROF_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "resources": container_resources(submission.resources),
        "volumeMounts": [{"name": "sweeps", "mountPath": str(options["mount"])}],
    }
    alone = {"labelSelector": {"matchLabels": {LABEL: "sweeprof"}}, "topologyKey": "kubernetes.io/hostname"}
    pod: Json = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "sweeps", "persistentVolumeClaim": {"claimName": options["claim"]}}],
    }
    if not options.get("share_nodes"):  # two pods on a node would disturb each other, and have no lock in common
        pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}}
    if options.get("node_selector"):
        pod["nodeSelector"] = {str(key): str(value) for key, value in options["node_selector"].items()}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {LABEL: "sweeprof"}},
        "spec": {
            "completionMode": "Indexed",
            "completions": len(submission.shards),
            "parallelism": len(submission.shards),
            "backoffLimitPerIndex": RETRIES,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": {LABEL: "sweeprof"}}, "spec": pod},
        },
    }


def container_resources(resources: Mapping[str, Any]) -> Json:
    """Return the requests and limits of a task's container.

    There is no limit on processors: it would be a quota, which stops all threads in turns.
    """
    memory = parse_size(resources["memory"])
    requests: Json = {"cpu": str(resources["cpus"])}
    limits: Json = {}
    if memory or resources.get("needed_memory"):
        requests["memory"] = f"{math.ceil((memory or resources['needed_memory']) / 2**20)}Mi"
    if memory:
        limits["memory"] = requests["memory"]
    if resources["gpus"]:
        limits["nvidia.com/gpu"] = str(resources["gpus"])
    return {"requests": requests, **({"limits": limits} if limits else {})}
