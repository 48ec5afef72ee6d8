"""A sweep's shards as tasks of a cluster: launched by a driver, and followed by it or by a later command."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from sweeprof.cluster.job_tracker import JobTracker
from sweeprof.cluster.lookup import scheduler_of
from sweeprof.cluster.scheduler import ClusterError
from sweeprof.errors import SweeprofError
from sweeprof.plan.plan import Plan
from sweeprof.storage.addresses import check_address
from sweeprof.storage.folder import Folder
from sweeprof.storage.jobs import Jobs

log = logging.getLogger(__name__)


class Detached(SweeprofError):
    """The jobs are running and are not waited for."""


def launch(path: Path | str) -> None:
    """Submit every incomplete shard of a sweep that no task is to measure; follow all tasks until they end.

    Raises:
        ClusterError: the scheduler refused.
        UserError: this host lacks what submits to it.
    """
    tracker = job_tracker(Folder(Path(path)), trust=True)  # the user starts or resumes the sweep
    tracker.scheduler.check_installed()
    try:
        tracker.update()
        tracker.submit(tracker.unattended())
        tracker.follow()
    except KeyboardInterrupt:
        try:
            tracker.cancel()
        except ClusterError as error:
            log.warning(
                "running jobs continue, cancel them with: %s (%s)",
                tracker.scheduler.cancel_command(tracker.numbers()),
                error,
            )
        raise


def follow(path: Path | str, wait: bool, trust: bool = False) -> None:
    """Follow the tasks of a sweep without submitting any; raises like :func:`launch` and :func:`job_tracker`.

    Raises:
        Detached: tasks are left; unless ``wait``, after one query.
    """
    folder = Folder(Path(path))
    if not _need_scheduler(folder):
        return
    tracker = job_tracker(folder, trust=trust)
    tracker.scheduler.check_installed()
    try:
        if wait:
            tracker.follow(submits=False)
        else:
            tracker.settle()
    except KeyboardInterrupt:
        pass  # the jobs continue
    if tracker.live:
        tracker.write_queue()
        raise Detached(tracker.jobs.queue())


def job_tracker(folder: Folder, named: Sequence[str | None] = (), trust: bool = False) -> JobTracker:
    """Return the tracker of a sweep's jobs.

    Args:
        named: addresses of Ray that the user's command line or config names; ``RAY_ADDRESS`` counts as well.
        trust: whether the folder may name any address.

    Raises:
        UserError: the folder names an address that may not be used.
    """
    plan = folder.read_plan()
    _check_ray(folder, plan, named, trust)
    return JobTracker(folder, plan)


def _check_ray(folder: Folder, plan: Plan, named: Sequence[str | None], trust: bool) -> None:
    """Check the address of Ray, whose client runs code that the server sends.

    Slurm's commands need no check: a folder names no server to them.
    """
    settings = plan.cluster["settings"]
    if settings["scheduler"] != "ray":
        return
    own = os.environ.get("RAY_ADDRESS")
    # Without an address Ray would also join the cluster that any user has started on this host.
    address = settings["address"] or own or "auto"
    check_address(folder, "cluster.address", str(address), [*named, own], f"set RAY_ADDRESS={address}", trust)


def live_jobs(folder: Folder, named: Sequence[str | None] = (), trust: bool = False) -> list[str]:
    """Return the jobs of a sweep that its scheduler has not finished with; for the arguments see :func:`job_tracker`.

    Raises:
        ClusterError: it does not answer.
        UserError: this host cannot ask it, or may not, and not every task has written its end.
    """
    if not _need_scheduler(folder):
        return []
    tracker = job_tracker(folder, named, trust)
    tracker.scheduler.check_installed()
    tracker.update()
    return tracker.numbers()


def may_be_at_work(folder: Folder) -> bool:
    """True if jobs of a sweep may still run or wait; without an answer every job that has not written its end counts."""
    try:
        return bool(live_jobs(folder))
    except (SweeprofError, OSError, ValueError, KeyError, TypeError):  # or its plan cannot be read
        return _has_unfinished(Jobs(folder.path))


def _need_scheduler(folder: Folder) -> bool:
    """True if the scheduler has to be queried for a sweep's jobs: on a host without it, only if tasks have not written an end."""
    jobs = Jobs(folder.path)
    if not jobs.all():
        return False
    return _has_unfinished(jobs) or scheduler_of(folder.read_plan().cluster["settings"], jobs).is_installed()


def _has_unfinished(jobs: Jobs) -> bool:
    """True if the newest task of any shard has not written its end."""
    newest = {}
    for submission in jobs.all():
        if not submission.revoked:
            newest.update({shard: (submission.token, number) for number, shard in enumerate(submission.shards)})
    notes = (jobs.note(*task) for task in newest.values())
    return any(note is None or note.ended is None for note in notes)
