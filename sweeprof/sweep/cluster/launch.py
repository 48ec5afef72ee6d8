"""A sweep's shards as tasks of Slurm: launched by the head, found again by a later one, or left to themselves."""

from __future__ import annotations

import logging
from pathlib import Path

from sweeprof.errors import SweeprofError
from sweeprof.sweep.cluster import slurm
from sweeprof.sweep.cluster.fleet import Fleet
from sweeprof.sweep.cluster.jobs import Jobs
from sweeprof.sweep.cluster.slurm import SlurmError
from sweeprof.sweep.folder import Folder

log = logging.getLogger(__name__)


class Detached(SweeprofError):
    """Jobs run, and are not waited for."""


def launch(path: Path | str, wait: bool) -> None:
    """Submit every shard of a sweep that lacks something and that no task is to measure; follow all of them to their ends.

    Raises:
        Detached: unless ``wait``, once everything is submitted.
        SlurmError: Slurm refused.
        UserError: this host has no Slurm.
    """
    slurm.check_installed()
    fleet = fleet_of(Folder(Path(path)))
    try:
        fleet.look()
        fleet.submit(fleet.unattended())
        if not wait:
            raise Detached(fleet.jobs.queue())
        fleet.follow()
    except KeyboardInterrupt:
        try:
            fleet.cancel()
        except SlurmError as error:
            log.warning("jobs that run go on, end them with scancel %s: %s", " ".join(fleet.numbers()), error)
        raise


def follow(path: Path | str, wait: bool) -> None:
    """Follow the tasks of a sweep without submitting any; raises like :func:`launch`."""
    folder = Folder(Path(path))
    if not _need_slurm(folder):
        return
    slurm.check_installed()
    fleet = fleet_of(folder)
    try:
        if wait:
            fleet.follow(submits=False)
        else:
            fleet.settle()
    except KeyboardInterrupt:
        pass  # who only looks on ends nothing
    if fleet.live:
        fleet.tell()
        raise Detached(fleet.jobs.queue())


def fleet_of(folder: Folder) -> Fleet:
    """The tasks of a sweep."""
    return Fleet(folder, folder.read_plan())


def live_jobs(folder: Folder) -> list[str]:
    """The jobs of a sweep that Slurm has not done with.

    Raises:
        SlurmError: it does not answer.
        UserError: this host has no Slurm to ask, and not every task has told its end.
    """
    if not _need_slurm(folder):
        return []
    slurm.check_installed()
    fleet = fleet_of(folder)
    fleet.look()
    return fleet.numbers()


def may_be_at_work(folder: Folder) -> bool:
    """Whether jobs of a sweep may still run or wait; where Slurm does not answer, all that have not told their end."""
    try:
        return bool(live_jobs(folder))
    except (SweeprofError, OSError, ValueError, KeyError, TypeError):  # or its plan cannot be read
        return _are_untold(Jobs(folder.path))


def _need_slurm(folder: Folder) -> bool:
    """Whether Slurm has to be asked what became of a sweep's jobs: on a host without it, only if tasks have not told their end."""
    jobs = Jobs(folder.path)
    return bool(jobs.all()) and (slurm.is_installed() or _are_untold(jobs))


def _are_untold(jobs: Jobs) -> bool:
    """Whether the newest task of any shard has not told its end."""
    newest = {shard: (one.token, n) for one in jobs.all() if not one.revoked for n, shard in enumerate(one.shards)}
    notes = (jobs.note(*task) for task in newest.values())
    return any(note is None or note.ended is None for note in notes)
