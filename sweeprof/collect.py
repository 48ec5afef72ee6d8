"""``python -m sweeprof.collect DIR``: make the comparison of a sweep whose jobs were left to themselves (``wait=false``).

It may be run at any time and as often as one likes: while jobs run it shows what is measured so far, afterwards it says why
anything is missing, and sends the sweep to its tracker.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from sweeprof.errors import Problem, SweeprofError, UserError
from sweeprof.results.files import is_full
from sweeprof.sweep import head
from sweeprof.sweep.cluster.launch import follow
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.hold import heading
from sweeprof.sweep.plan import Plan
from sweeprof.sweep.queued import stored_tracker
from sweeprof.sweep.reading import TRUST, Parser, sweep_folder, told
from sweeprof.terminal import console, error_console, guard_output

PIPED_WIDTH = 120
EXIT_RUNNING = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    guard_output()
    parser = Parser(
        prog="python -m sweeprof.collect",
        description="Make the comparison of a sweep that runs, or ran, as jobs of a cluster, from the records in its folder.",
        epilog="Exit codes: 0 all measured, 1 a mistake in the command, 2 some combinations were not measured, 4 jobs still run.",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of a sweep, or `last` for the newest below --output")
    parser.add_argument(
        "--wait", action="store_true", help="wait until no job is left; Ctrl-C stops waiting, not the jobs"
    )
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--output", default="outputs", metavar="PATH", help="where sweeps are (default: outputs)")
    name = "DIR"
    try:
        given = parser.parse_args(arguments)
        name = given.folder
        return _collect(sweep_folder(given.folder, Path(given.output)), given.wait, given.trust)
    except (UserError, OSError) as error:
        if is_full(error):
            print(f"{name}: the disk is full", file=sys.stderr)
            return head.EXIT_SOME_FAILED
        return told(error, name)
    except SweeprofError as error:
        return told(UserError(str(error)), name)


def _collect(folder: Folder, wait: bool, trust: bool) -> int:
    out = console(PIPED_WIDTH)
    live = error_console()
    with heading(folder.path, beside_jobs=True, key="DIR"):
        plan = folder.read_plan()
        if not plan.cluster:
            raise UserError(
                [Problem("DIR", str(folder.path), "was not measured by jobs of a cluster; see resume=DIR.")]
            )

        def launch(folder: Folder, _plan: Plan, _shards: Sequence[int]) -> None:
            follow(folder.path, wait)

        tracker = stored_tracker(folder, "tracking.uri", trust=trust)
        outcome = head.go_on(folder, plan, tracker, launch, out, live, trust)
    return EXIT_RUNNING if outcome.running else outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
