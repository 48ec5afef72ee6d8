"""``sweeprof prune NAME --keep N``: remove old sweeps of a name, never one that is still needed."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sweeprof.cli.common import add_output, print_error
from sweeprof.cluster.job_tracker import may_be_at_work
from sweeprof.errors import ExitCode, Problem, UserError, choice_problem
from sweeprof.numbers import rounded
from sweeprof.results.files import read_json
from sweeprof.run.locks import all_locks
from sweeprof.run.reports import SweepLocations, tagged
from sweeprof.run.tracker_process import is_unsent, sending_command
from sweeprof.storage import Folder, sweeps

GOING = ".going-"
"""Prefix of the name of a folder that is being deleted: hidden, so that it is not taken for a sweep."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result for one folder; without ``kept`` and ``error`` it is removed, or would be."""

    path: Path
    kept: str | None = None
    """Why it is kept."""
    freed: int = 0
    """Bytes of its files."""
    error: str | None = None
    """Why it could not be removed."""


def prune_sweeps(output: Path, name: str, newest: int, dry_run: bool = False) -> Iterator[Pruned]:
    """Remove the sweeps of a name that need not be kept, one after the other, the newest first.

    Args:
        output: the folder of all sweeps.
        name: of the sweeps.
        newest: how many of the newest are kept.
        dry_run: remove nothing, only return what would be removed.

    Raises:
        UserError: a tag cannot be read, so that the sweep that it names is unknown; nothing was removed.
    """
    place = SweepLocations(output)
    tagged(place)  # before anything is removed
    for left in sorted((output / name).glob(f"{GOING}*")):  # of an earlier run that was interrupted
        yield _delete(left, dry_run)
    for number, folder in enumerate(list(sweeps(output, name)), 1):
        kept: str | None = "the newest" if newest == 1 else f"one of the newest {newest}"
        if number > newest:  # tags are read again each time, as deleting may take long
            kept = _reason_to_keep(folder, tagged(place))
        if kept:
            yield Pruned(folder.path, kept)
        else:
            yield _remove(folder.path, dry_run)


def _reason_to_keep(folder: Folder, tags: Mapping[str, Sequence[str]]) -> str | None:
    """Return why a sweep is kept however old it is."""
    if folder.path.is_symlink():
        return "a link to a folder elsewhere"
    sweep_id = ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        sweep_id = str(read_json(folder.plan)["sweep_id"])
    names = tags.get(str(folder.path.resolve())) or tags.get(sweep_id)
    if names:
        return ", ".join(names)
    if may_be_at_work(folder):
        return "jobs of it may still run"
    if is_unsent(folder):
        return f"not sent to its tracker: {sending_command(folder)}"
    return None


def _remove(path: Path, dry_run: bool) -> Pruned:
    """Remove a sweep, unless another process uses its folder."""
    going = path if dry_run else path.with_name(GOING + path.name)
    try:
        with all_locks(path) as use:
            if use:
                return Pruned(path, use)
            if not dry_run:
                path.rename(going)
    except FileNotFoundError:  # another run was faster
        return Pruned(path)
    except (OSError, UserError) as error:
        return Pruned(path, error=str(error))
    # The locks are released first: NFS removes no folder with a file that a process, even this one, has open.
    return replace(_delete(going, dry_run), path=path)


def _delete(path: Path, dry_run: bool) -> Pruned:
    try:
        size = 0
        for file in path.rglob("*"):
            with suppress(FileNotFoundError):  # another run removes it, too
                if file.is_symlink() or not file.is_dir():
                    size += file.lstat().st_size
        while not dry_run and path.exists():
            with suppress(FileNotFoundError):
                shutil.rmtree(path)
    except FileNotFoundError:  # another run was faster, which counts the bytes
        return Pruned(path)
    except OSError as error:
        return Pruned(path, error=str(error))
    return Pruned(path, freed=size)


EPILOG = """\
Always kept: tagged sweeps; sweeps that are being measured, sent or reported, or whose jobs may still run; sweeps that were not sent
to their tracker yet (sweeprof sync unsent). Sweeps whose removal was interrupted earlier are removed first.

Only folders below OUTPUT/NAME are removed. MLflow keeps its runs, with their artifacts, and the experiment "NAME history":
the trend includes removed sweeps.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = EPILOG
    parser.add_argument("name", metavar="NAME", help="the name of the sweeps: a folder below --output")
    parser.add_argument("--keep", metavar="N", required=True, help="keep the newest N")
    add_output(parser)
    parser.add_argument("--dry-run", action="store_true", help="print what would be removed, and remove nothing")


def run(options: argparse.Namespace) -> ExitCode:
    """Run the subcommand; return the exit code."""
    newest = int(options.keep) if options.keep.isdecimal() else 0
    if newest < 1:
        message = "must be an integer ≥ 1: the newest sweep is what `last` means."
        raise UserError([Problem("--keep", options.keep, message)])
    names = {folder.path.parent.name for folder in sweeps(options.output)}
    if not names:
        raise UserError([Problem("--output", str(options.output), "has no sweeps.")])
    if options.name not in names:
        raise UserError([choice_problem("NAME", options.name, "name of sweeps", names)])
    results = []
    # Printed one by one: it may take long, and what was removed before an interruption is known.
    for result in prune_sweeps(options.output, options.name, newest, options.dry_run):
        _print(result, options.dry_run)
        results.append(result)
    freed = rounded(sum(result.freed for result in results), "B")
    kept = sum(result.kept is not None for result in results)
    failed = sum(result.error is not None for result in results)
    gone = len(results) - kept - failed
    if options.dry_run:
        print(f"{gone} would be removed, {freed} to be freed; {kept} kept")
    else:
        print(f"{gone} removed, {freed} freed; {kept} kept")
    return ExitCode.INCOMPLETE if failed else ExitCode.OK


def _print(result: Pruned, dry_run: bool) -> None:
    if result.error:
        print_error(f"{result.path} could not be removed: {result.error}")
    elif result.kept:
        print(f"kept     {result.path}  {result.kept}")
    else:
        done = "would go" if dry_run else "removed "
        begun = "  begun by an earlier run" if result.path.name.startswith(GOING) else ""
        print(f"{done} {result.path}  {rounded(result.freed, 'B')}{begun}")
    sys.stdout.flush()
