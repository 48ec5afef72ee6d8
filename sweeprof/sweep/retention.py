"""Which sweeps of a name go and which stay, and how one goes: renamed first, so that what is half deleted is no sweep any more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from sweeprof.results.files import read_json
from sweeprof.sweep.cluster.launch import may_be_at_work
from sweeprof.sweep.folder import Folder, created_at, sweeps
from sweeprof.sweep.hold import claimed
from sweeprof.sweep.queued import is_unsent, sending_command
from sweeprof.sweep.references import Place, tagged

GOING = ".going-"
"""Before the name of a folder that is being deleted: hidden, and no stamp, so that nothing takes it for a sweep."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Which sweeps are young enough to stay, whatever else is known of them."""

    keep: int
    """The newest so many."""
    days: float | None = None
    """And those begun in the last so many days."""

    def why(self, number: int, folder: Folder, now: datetime) -> str | None:
        """Why the sweep stays, which has ``number - 1`` newer ones; None where it may go."""
        if number <= self.keep:
            return f"one of the newest {self.keep}" if self.keep > 1 else "the newest"
        created = created_at(folder.path)
        if self.days is not None and created is not None and created >= now - timedelta(days=self.days):
            return f"begun in the last {self.days:g} days"
        return None


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a folder, or would."""

    path: Path
    kept: str | None = None
    """Why it stays."""
    freed: int = 0
    """Bytes of its files."""
    trouble: str | None = None
    """Why it could not be removed."""


def fates(output: Path, name: str, rule: Rule, now: datetime, dry_run: bool = False) -> Iterator[Fate]:
    """Remove the sweeps of a name that need not stay, one after the other, the newest first.

    Args:
        now: with its time zone.
        dry_run: remove nothing, say what would be.

    Raises:
        UserError: a tag cannot be read, so that nobody knows what it stands for; nothing was removed.
    """
    place = Place(output)
    tagged(place)  # before anything goes
    for left in sorted((output / name).glob(f"{GOING}*")):  # of a run that was ended amid its work
        yield _removed(left, dry_run)
    for number, folder in enumerate(list(sweeps(output, name)), 1):
        # Tags are read anew each time, as deleting may take long.
        kept = rule.why(number, folder, now) or _needed(folder, tagged(place))
        yield Fate(folder.path, kept) if kept else _alone(folder.path, dry_run)


def _needed(folder: Folder, tags: Mapping[str, Sequence[str]]) -> str | None:
    """Why a sweep stays however old it is."""
    if folder.path.is_symlink():
        return "a link to a folder elsewhere"
    names = tags.get(str(folder.path.resolve())) or tags.get(_id_of(folder))
    if names:
        return ", ".join(names)
    if may_be_at_work(folder):
        return "jobs of it may still run"
    return f"not sent to its tracker: {sending_command(folder)}" if is_unsent(folder) else None


def _id_of(folder: Folder) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(read_json(folder.plan)["sweep_id"])
    return ""


def _alone(path: Path, dry_run: bool) -> Fate:
    """Remove a sweep that nobody else is in the folder of."""
    going = path if dry_run else path.with_name(GOING + path.name)
    try:
        with claimed(path) as going_on:
            if going_on:
                return Fate(path, going_on)
            if not dry_run:
                path.rename(going)
    except FileNotFoundError:  # another run was faster
        return Fate(path)
    except OSError as error:
        return Fate(path, trouble=str(error))
    # Its locks are given back: NFS removes no folder with a file that somebody, be it this process, has open.
    return replace(_removed(going, dry_run), path=path)


def _removed(path: Path, dry_run: bool) -> Fate:
    try:
        size = _size(path)
        if not dry_run:
            _delete(path)
    except FileNotFoundError:  # another run was faster, to which the bytes count
        return Fate(path)
    except OSError as error:
        return Fate(path, trouble=str(error))
    return Fate(path, freed=size)


def _size(path: Path) -> int:
    size = 0
    for file in path.rglob("*"):
        with suppress(FileNotFoundError):  # somebody else removes it, too
            size += 0 if file.is_dir() and not file.is_symlink() else file.lstat().st_size
    return size


def _delete(path: Path) -> None:
    while path.exists():
        with suppress(FileNotFoundError):  # likewise
            shutil.rmtree(path)
