"""``sweeprof collect DIR``: make the comparison of a sweep on a cluster whose driver has ended before its jobs.

It can be run at any time and any number of times: while jobs run, it shows what is measured so far; afterwards it gives the reason
of each missing result, and sends the sweep to its tracker.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sweeprof.cli.common import PIPED_WIDTH, add_output, add_sweep, add_trust, print_error, sweep_folder
from sweeprof.cluster.job_tracker import follow
from sweeprof.errors import ExitCode, Problem, UserError
from sweeprof.plan.plan import Plan
from sweeprof.results.files import is_full
from sweeprof.run import driver
from sweeprof.run.locks import driver_lock
from sweeprof.run.tracker_process import stored_tracker
from sweeprof.storage import Folder
from sweeprof.text import console, error_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_sweep(parser)
    parser.add_argument(
        "--wait", action="store_true", help="wait until no job is left; Ctrl-C stops waiting, not the jobs"
    )
    add_trust(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Run the subcommand; return the exit code."""

    def launch(folder: Folder, _plan: Plan, _shards: Sequence[int]) -> None:
        follow(folder.path, options.wait, options.trust)

    try:
        folder = sweep_folder(options.folder, options.output)
        with driver_lock(folder.path, allow_jobs=True, key="DIR"):
            plan = folder.read_plan()
            if not plan.cluster:
                message = "was not measured by jobs of a cluster; see resume=DIR."
                raise UserError([Problem("DIR", str(folder.path), message)])
            tracker = stored_tracker(folder, "tracking.uri", trust=options.trust)
            out, live = console(PIPED_WIDTH), error_console()
            return driver.measure_missing(folder, plan, tracker, launch, out, live, options.trust)
    except OSError as error:
        if not is_full(error):
            raise
        print_error(f"{options.folder}: the disk is full")
        return ExitCode.INCOMPLETE
