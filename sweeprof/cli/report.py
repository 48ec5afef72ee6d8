"""``sweeprof report DIR``: write every report of a sweep again, from its records alone."""

from __future__ import annotations

import argparse
from typing import cast

from rich.text import Text

from sweeprof.cli.common import PIPED_WIDTH, add_output, add_sweep, add_trust, sweep_folder
from sweeprof.errors import ExitCode, UserError, choice_problem
from sweeprof.report.csv import NEEDS, has_parquet
from sweeprof.report.terminal import Report
from sweeprof.run.comparison import comparison_of
from sweeprof.run.locks import has_driver, report_lock
from sweeprof.run.reports import FORMATS, Format, left_out, standing, write_reports
from sweeprof.text import console

EPILOG = f"""\
Needs no framework. While the sweep runs, the reports are those of what is measured so far.

Always written:
  report.html                    the page, opens offline
  comparison.csv, .json, .md     the comparison: a spreadsheet, a program, a pull request or README
  comparison-tables.tex          the tables, for a paper
  tables/*.csv                   tidy tables: measurements, rounds, problems, samples
  layers/, operators/, memory/   the files of each combination

Written with --format, and from then on with every report:
{chr(10).join(f"  {name:<29}  {text}" for name, text in FORMATS.items())}
  all                            all of these

docs/reports.md describes each.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = EPILOG
    add_sweep(parser)
    parser.add_argument("--format", metavar="NAMES", default="", help=f"also write: {', '.join(FORMATS)}, all")
    add_trust(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Run the subcommand; return the exit code."""
    names = [name.strip() for name in options.format.split(",") if name.strip()]
    known = [*FORMATS, "all"]
    problems = [choice_problem("--format", name, "format", known) for name in names if name not in known]
    if problems:
        raise UserError(problems)
    formats = set(FORMATS) if "all" in names else {cast(Format, name) for name in names}
    if "parquet" in formats and not has_parquet():
        raise UserError(NEEDS)
    folder = sweep_folder(options.folder, options.output)
    with report_lock(folder.path):
        running = has_driver(folder.path)
        missing = "the sweep is running" if running else "it was not measured"
        comparison = comparison_of(folder, missing, running, trust=options.trust)
        report = write_reports(folder, comparison, formats)
    out = console(PIPED_WIDTH)
    out.print(Report(comparison, folder.path))
    out.print()
    out.print(Text.assemble((f"{'Report':<11}", "bold"), str(report)), soft_wrap=True)
    note = left_out(comparison, formats | standing(folder))
    if note is not None:
        out.print(Text.assemble((f"{'Not made':<11}", "bold"), note), soft_wrap=True)
    return ExitCode.OK
