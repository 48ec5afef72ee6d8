"""What commands have in common: how they take their words, find a sweep's folder and say what is wrong."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from sweeprof.errors import Damaged, Problem, UserError
from sweeprof.sweep.folder import Folder, sweeps
from sweeprof.sweep.spelling import redacted


class Parser(argparse.ArgumentParser):
    """Words that are none of its own are a mistake like any other, and not what argparse exits with: 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


TRUST = (
    "also run code outside sweeprof that the folder names, such as your own metrics; only for folders that you trust"
)
"""What the option ``--trust`` of commands does."""


def sweep_folder(given: str, output: Path) -> Folder:
    """The folder of a sweep, or with ``last`` the newest below ``output``.

    Raises:
        UserError: it is none, it has links in it, or its plan cannot be read.
    """
    if given == "last":
        newest = next(sweeps(output.absolute()), None)
        if newest is None:
            raise UserError([Problem("DIR", given, f"finds no sweep below {output}.")])
        folder = newest
    else:
        folder = Folder(Path(given).absolute())
    if not folder.plan.is_file():
        raise UserError([Problem("DIR", given, "is no folder of a sweep: it has no plan.json.")])
    folder.check_links()
    try:
        folder.read_plan()
    except Damaged as error:
        said = f"has a plan.json that cannot be read: {error}"
        raise UserError([Problem("DIR", given, said)]) from None
    return folder


def told(error: UserError | OSError, given: str) -> int:
    """Print what went wrong, a line for each mistake; returns the exit code."""
    if isinstance(error, OSError):
        problems: tuple[object, ...] = (Problem("DIR", given, f"cannot be read or written: {error}"),)
    else:
        problems = error.problems or (error,)
    for problem in problems:
        print(f"error: {redacted(str(problem))}", file=sys.stderr)
    return 1
