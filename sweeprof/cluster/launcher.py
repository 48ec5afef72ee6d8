"""A sweep's shards as tasks of a cluster: launched by a driver, and followed by it, by a later driver, or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

from sweeprof.cluster.job_tracker import JobTracker
from sweeprof.cluster.lookup import scheduler_of
from sweeprof.cluster.scheduler import ClusterError
from sweeprof.errors import SweeprofError
from sweeprof.storage.folder import Folder
from sweeprof.storage.jobs import Jobs

log = logging.getLogger(__name__)


class Detached(SweeprofError):
    """The jobs are running and are not waited for."""


def launch(path: Path | str, wait: bool) -> None:
    """Submit every incomplete shard of a sweep that no task is to measure; follow all tasks until they end.

    Raises:
        Detached: unless ``wait``, once everything is submitted.
        ClusterError: the scheduler refused.
        UserError: this host lacks what submits to it.
    """
    tracker = job_tracker(Folder(Path(path)))
    tracker.scheduler.check_installed()
    try:
        tracker.update()
        tracker.submit(tracker.unattended())
        if not wait:
            tracker.update()
            tracker.write_queue()
            raise Detached(tracker.jobs.queue())
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


def follow(path: Path | str, wait: bool) -> None:
    """Follow the tasks of a sweep without submitting any; raises like :func:`launch`."""
    folder = Folder(Path(path))
    if not _need_scheduler(folder):
        return
    tracker = job_tracker(folder)
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


def job_tracker(folder: Folder) -> JobTracker:
    """Return the tracker of a sweep's jobs."""
    return JobTracker(folder, folder.read_plan())


def live_jobs(folder: Folder) -> list[str]:
    """Return the jobs of a sweep that its scheduler has not finished with.

    Raises:
        ClusterError: it does not answer.
        UserError: this host cannot ask it, and not every task has written its end.
    """
    if not _need_scheduler(folder):
        return []
    tracker = job_tracker(folder)
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
