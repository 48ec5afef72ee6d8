"""``python -m sweeprof.report DIR``: every report of a sweep again, from its records alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from rich.text import Text

from sweeprof.errors import UserError, choice_problem
from sweeprof.report.parquet import NEEDS, has_parquet
from sweeprof.report.terminal import Report
from sweeprof.sweep.exports import FORMATS, Format, left_out, standing
from sweeprof.sweep.finish import comparison_of, write_reports
from sweeprof.sweep.hold import is_headed, reporting
from sweeprof.sweep.reading import TRUST, sweep_folder, told
from sweeprof.terminal import console, guard_output

PIPED_WIDTH = 120
"""Columns where the output is no terminal."""
HELP = f"""\
Always written:
  report.html                    the page, opens offline
  comparison.csv, .json, .md     the comparison: a spreadsheet, a program, a README
  pull_request.md                a comment for a pull request, the verdict first
  comparison.tex                 a document of the tables; a paper takes in comparison-tables.tex
  plots/*.png, *.svg             training step, latency, throughput, accuracy; the page saves its own charts as SVG
  tables/*.csv                   tidy tables: measurements, rounds, problems, samples
  layers/, operators/, memory/, pictures/  the files of each combination

Written with --format, and then again each time:
{chr(10).join(f"  {name:<29}  {text}" for name, text in FORMATS.items())}
  all                            all of these

docs/reports.md says what is in each. Exit codes: 0 made, 1 a mistake in the command, or the folder cannot be read or written.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    guard_output()
    given = _parser().parse_args(arguments)
    out = console(PIPED_WIDTH)
    try:
        formats = _formats(given.format)
        folder = sweep_folder(given.folder, Path(given.output))
        with reporting(folder.path):
            running = is_headed(folder.path)
            missing = "the sweep is running" if running else "it was not measured"
            comparison = comparison_of(folder, missing, running, trust=given.trust)
            report = write_reports(folder, comparison, formats)
    except (UserError, OSError) as error:
        return told(error, given.folder)
    out.print(Report(comparison, folder.path))
    out.print()
    out.print(Text.assemble((f"{'Report':<11}", "bold"), str(report)), soft_wrap=True)
    note = left_out(comparison, formats | standing(folder))
    if note is not None:
        out.print(Text.assemble((f"{'Not made':<11}", "bold"), note), soft_wrap=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweeprof.report",
        description="Make every report of a sweep again, from its records alone. Needs no framework; also while the sweep runs, "
        "then of what is there.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a sweep, or `last` for the newest below --output")
    parser.add_argument("--format", metavar="NAMES", default="", help=f"also write: {', '.join(FORMATS)}, all")
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--output", default="outputs", metavar="PATH", help="where sweeps are (default: outputs)")
    return parser


def _formats(given: str) -> set[Format]:
    """The formats of a command line, names with commas between them.

    Raises:
        UserError: one is unknown, or what it needs is not installed.
    """
    names = [name.strip() for name in given.split(",") if name.strip()]
    known = [*FORMATS, "all"]
    problems = [choice_problem("--format", name, "format", known) for name in names if name not in known]
    if problems:
        raise UserError(problems)
    formats = set(FORMATS) if "all" in names else {cast(Format, name) for name in names}
    if "parquet" in formats and not has_parquet():
        raise UserError(NEEDS)
    return formats


if __name__ == "__main__":
    sys.exit(main())
