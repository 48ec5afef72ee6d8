"""A sweep's shards as tasks of Slurm: launched by a driver, and followed by it, by a later driver, or not at all."""

from __future__ import annotations

import logging
from pathlib import Path

from sweeprof.errors import SweeprofError
from sweeprof.slurm import commands
from sweeprof.slurm.commands import SlurmError
from sweeprof.slurm.job_tracker import JobTracker
from sweeprof.storage.folder import Folder
from sweeprof.storage.jobs import Jobs

log = logging.getLogger(__name__)


class Detached(SweeprofError):
    """The jobs are running and are not waited for."""


def launch(path: Path | str, wait: bool) -> None:
    """Submit every incomplete shard of a sweep that no task is to measure; follow all tasks until they end.

    Raises:
        Detached: unless ``wait``, once everything is submitted.
        SlurmError: Slurm refused.
        UserError: this host has no Slurm.
    """
    commands.check_installed()
    tracker = job_tracker(Folder(Path(path)))
    try:
        tracker.update()
        tracker.submit(tracker.unattended())
        if not wait:
            raise Detached(tracker.jobs.queue())
        tracker.follow()
    except KeyboardInterrupt:
        try:
            tracker.cancel()
        except SlurmError as error:
            log.warning("running jobs continue, cancel them with scancel %s: %s", " ".join(tracker.numbers()), error)
        raise


def follow(path: Path | str, wait: bool) -> None:
    """Follow the tasks of a sweep without submitting any; raises like :func:`launch`."""
    folder = Folder(Path(path))
    if not _need_slurm(folder):
        return
    commands.check_installed()
    tracker = job_tracker(folder)
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
    """Return the jobs of a sweep that Slurm has not finished with.

    Raises:
        SlurmError: it does not answer.
        UserError: this host has no Slurm to ask, and not every task has written its end.
    """
    if not _need_slurm(folder):
        return []
    commands.check_installed()
    tracker = job_tracker(folder)
    tracker.update()
    return tracker.numbers()


def may_be_at_work(folder: Folder) -> bool:
    """True if jobs of a sweep may still run or wait; if Slurm does not answer, every job that has not written its end counts."""
    try:
        return bool(live_jobs(folder))
    except (SweeprofError, OSError, ValueError, KeyError, TypeError):  # or its plan cannot be read
        return _has_unfinished(Jobs(folder.path))


def _need_slurm(folder: Folder) -> bool:
    """True if Slurm has to be queried for a sweep's jobs: on a host without it, only if tasks have not written their end."""
    jobs = Jobs(folder.path)
    return bool(jobs.all()) and (commands.is_installed() or _has_unfinished(jobs))


def _has_unfinished(jobs: Jobs) -> bool:
    """True if the newest task of any shard has not written its end."""
    newest = {}
    for submission in jobs.all():
        if not submission.revoked:
            newest.update({shard: (submission.token, number) for number, shard in enumerate(submission.shards)})
    notes = (jobs.note(*task) for task in newest.values())
    return any(note is None or note.ended is None for note in notes)
