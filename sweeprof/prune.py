"""``python -m sweeprof.prune NAME --keep N``: remove old sweeps of a name, never one that is still needed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.report.units import scaled
from sweeprof.sweep.folder import sweeps
from sweeprof.sweep.reading import Parser, told
from sweeprof.sweep.retention import GOING, Fate, Rule, fates
from sweeprof.terminal import guard_output

EXIT_LEFT, EXIT_INTERRUPTED = 2, 130
HELP = """\
Kept however old: a tagged sweep; one that is being measured, sent or reported, or whose jobs may still run; one that was not sent
to its tracker yet (python -m sweeprof.sync unsent). What an earlier run had begun to remove when it was ended is removed first.

Only folders below OUTPUT/NAME are removed. MLflow keeps its runs, with their artifacts, and the experiment "NAME history":
the trend goes back further than the folders do.

Exit codes: 0 done, 1 a mistake in the command: nothing was removed, 2 something could not be removed: the next run tries again.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    guard_output()
    name = "NAME"
    try:
        given = _parser().parse_args(arguments)
        output, name = Path(given.output), given.name
        rule = _rule(given.keep, given.days)
        _check_name(name, output)
        # Told as they happen: it may take long, and what was removed before an interruption is known.
        done = [_say(fate, given.dry_run) for fate in fates(output, name, rule, datetime.now(UTC), given.dry_run)]
    except (UserError, OSError) as error:
        return told(error, name)
    except KeyboardInterrupt:  # what was begun is removed first by the next run
        return EXIT_INTERRUPTED
    gone = [fate for fate in done if fate.kept is None and fate.trouble is None]
    said = "would be removed" if given.dry_run else "removed"
    freed = f"{scaled(sum(fate.freed for fate in gone), 'B')} {'to be freed' if given.dry_run else 'freed'}"
    print(f"{len(gone)} {said}, {freed}; {sum(fate.kept is not None for fate in done)} kept")
    return EXIT_LEFT if any(fate.trouble for fate in done) else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m sweeprof.prune",
        description="Remove old sweeps of a name from the folder of all sweeps.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="whose sweeps: the folder below --output")
    parser.add_argument("--keep", metavar="N", required=True, help="the newest N stay")
    parser.add_argument("--days", metavar="D", help="and so do those begun in the last D days")
    parser.add_argument("--output", default="outputs", metavar="DIR", help="the folder of all sweeps (outputs)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    return parser


def _rule(keep: str, days: str | None) -> Rule:
    problems: list[Problem] = []
    newest = _number(
        "--keep", keep, int, 1, "is no whole number from 1 on: the newest sweep is what `last` means.", problems
    )
    lasting = None if days is None else _number("--days", days, float, 0, "is no number of days up to 36500.", problems)
    if problems:
        raise UserError(problems)
    return Rule(int(newest), lasting)


def _number(
    key: str, text: str, kind: Callable[[str], float], least: float, allowed: str, problems: list[Problem]
) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not least <= value <= (36500 if kind is float else float("inf")):  # not NaN either
        problems.append(Problem(key, text, allowed))
    return value


def _check_name(name: str, output: Path) -> None:
    names = {folder.path.parent.name for folder in sweeps(output)}
    if not names:
        raise UserError([Problem("--output", str(output), "has no sweeps.")])
    if name not in names:
        raise UserError([choice_problem("NAME", name, "name of sweeps", names)])


def _say(fate: Fate, dry_run: bool) -> Fate:
    if fate.trouble:
        print(f"error: {fate.path} could not be removed: {fate.trouble}", file=sys.stderr)
    elif fate.kept:
        print(f"kept     {fate.path}  {fate.kept}")
    else:
        begun = "  begun by an earlier run" if fate.path.name.startswith(GOING) else ""
        print(f"{'would go' if dry_run else 'removed '} {fate.path}  {scaled(fate.freed, 'B')}{begun}")
    sys.stdout.flush()
    return fate


if __name__ == "__main__":
    sys.exit(main())
