"""The argument DIR of the subcommands: the folder of a sweep, `last`, or `NAME/last`."""

from __future__ import annotations

import argparse
from pathlib import Path

from sweeprof.cli.common import path
from sweeprof.errors import Damaged, Problem, UserError
from sweeprof.paths import user_path
from sweeprof.storage.folder import Folder, last_sweep


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the option for the folder of all sweeps."""
    parser.add_argument(
        "--output",
        type=path,
        default=Path("outputs"),
        metavar="PATH",
        help="the folder of all sweeps (default: outputs)",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the option that allows code of the user's own."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="also run code outside of sweeprof that the folder names, such as your own metrics; only for folders that you trust",
    )


def sweep_folder(given: str, output: Path) -> Folder:
    """Return the folder of a sweep; for ``last``, or ``NAME/last``, the newest below ``output``.

    Raises:
        UserError: it is not the folder of a sweep, it contains links, or its plan cannot be read.
    """
    folder = last_sweep(given, output.absolute(), "DIR") or Folder(user_path(given).absolute())
    if not folder.plan.is_file():
        raise UserError([Problem("DIR", given, "is not the folder of a sweep: it has no plan.json.")])
    folder.check_files()
    try:
        folder.read_plan()
    except Damaged as error:
        raise UserError([Problem("DIR", given, f"has a plan.json that cannot be read: {error}")]) from None
    return folder
