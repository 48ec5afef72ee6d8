"""``python -m sweeprof.report DIR``: every report of a sweep again, from its records alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sweeprof.errors import UserError
from sweeprof.report.terminal import Report
from sweeprof.sweep.finish import comparison_of, write_reports
from sweeprof.sweep.hold import is_headed, reporting
from sweeprof.sweep.reading import sweep_folder, told

PIPED_WIDTH = 120
"""Columns where the output is no terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sweeprof.report",
        description="Make every report of a sweep again, from its records alone: comparison.{json,csv,md}, report.html, plots and "
        "the files of each combination. Needs no framework; also while the sweep runs, then of what is there.",
        epilog="Exit codes: 0 made, 1 a mistake in the command, or the folder cannot be read or written.",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a sweep, or `last` for the newest below --output")
    parser.add_argument("--output", default="outputs", metavar="PATH", help="where sweeps are (default: outputs)")
    given = parser.parse_args(arguments)
    out = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    try:
        folder = sweep_folder(given.folder, Path(given.output))
        with reporting(folder.path):
            running = is_headed(folder.path)
            missing = "the sweep is running" if running else "it was not measured"
            comparison = comparison_of(folder, missing, running)
            report = write_reports(folder, comparison)
    except (UserError, OSError) as error:
        return told(error, given.folder)
    out.print(Report(comparison))
    out.print()
    out.print(Text.assemble((f"{'Report':<11}", "bold"), str(report)), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
