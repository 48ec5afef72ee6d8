"""The schedulers by the name that ``cluster.scheduler`` has for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeprof.cluster import slurm
from sweeprof.cluster.ray import Ray
from sweeprof.cluster.scheduler import Scheduler
from sweeprof.storage.jobs import Jobs


def scheduler_of(settings: Mapping[str, Any], jobs: Jobs) -> Scheduler:
    """Return the scheduler of a sweep.

    Args:
        settings: ``cluster`` in the config.
        jobs: the sweep's files about its tasks.
    """
    if settings["scheduler"] == "ray":
        return Ray(settings["address"], jobs)
    return slurm
