"""``python -m sweeprof.sync DIR [uri=…]``: send the records of a sweep to a tracking server again.

What is there already is brought up to date and nothing is doubled, so it may be run as often as one likes; `unsent` sends all that
is still to be sent.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from sweeprof.configs import conf_folder
from sweeprof.errors import Damaged, Problem, SweeprofError, UserError, key_problem
from sweeprof.results.record import Json
from sweeprof.sweep.check import rule_problems
from sweeprof.sweep.cluster.launch import live_jobs
from sweeprof.sweep.finish import comparison_of, write_reports
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.hold import is_headed, reporting
from sweeprof.sweep.interrupts import terminable
from sweeprof.sweep.queued import (
    HIDDEN,
    StoredTracker,
    noted_ending,
    read_tracking,
    settings_of,
    stored_tracker,
    unsent,
    viewing_command,
)
from sweeprof.sweep.reading import TRUST, Parser, sweep_folder, told
from sweeprof.sweep.tracker import TrackerProcess
from sweeprof.terminal import guard_output
from sweeprof.tracking.credentials import same_address

EXIT_NOT_SENT, EXIT_INTERRUPTED = 2, 130
MISSING = "it was not measured"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    guard_output()
    parser = Parser(
        prog="python -m sweeprof.sync",
        description="Send the records of a sweep to MLflow again: what is missing there is made, the rest brought up to date, "
        "nothing is doubled.",
        epilog="Exit codes: 0 sent, 1 a mistake in the command, 2 the server was not reached or refused, 130 interrupted.",
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="the folder of a sweep, `last` for the newest below --output, or `unsent` for all there that were not sent",
    )
    parser.add_argument(
        "settings",
        metavar="uri=…",
        nargs="*",
        help="another address than the sweep had, or the same, by which your login is sent there: http://…, sqlite:///…; "
        "with `unsent`: of the sweeps that have this address",
    )
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--output", default="outputs", metavar="PATH", help="where sweeps are (default: outputs)")
    name = "DIR"
    try:
        given = parser.parse_intermixed_args(arguments)  # DIR and uri=… also with --output between them
        name, output = given.folder, Path(given.output)
        asked = _asked(given.settings)
        with terminable():
            if given.folder == "unsent":
                return _send_all(output, asked, given.trust)
            return _send(sweep_folder(given.folder, output), asked, given.trust)
    except KeyboardInterrupt:
        print("interrupted before everything was sent; the same command sends the rest", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (UserError, OSError) as error:
        return told(error, name)


def _asked(settings: Sequence[str]) -> Json:
    """What the command line says of the tracker."""
    asked: Json = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or key.removeprefix("tracking.") != "uri":
            raise UserError([key_problem(key, value or setting, ["uri"])])
        asked["uri"] = None if value in ("", "null") else value
    problems = rule_problems({"tracking": asked})
    if HIDDEN in str(asked.get("uri")):
        problems.append(Problem("uri", asked["uri"], f"has {HIDDEN} where the user and the password belong."))
    if problems:
        raise UserError(problems)
    return asked


def _send_all(output: Path, asked: Json, trust: bool) -> int:
    """Send every sweep that waits, each to its own place, whatever becomes of the others; returns the worst exit code."""
    found = [folder for folder in unsent(output) if not _is_at_work(folder)]
    if not found:
        print(f"below {output} is no sweep that was not sent")
    completed = [folder for folder in found if asked and _is_completed(folder, str(asked["uri"]))]
    if asked and found and not completed:
        said = "completes the address of no sweep that waits; another address is given with one DIR."
        raise UserError([Problem("uri", asked["uri"], said)])
    code = 0
    for folder in found:
        try:
            sent = _send(sweep_folder(str(folder.path), output), asked if folder in completed else {}, trust)
        except (UserError, OSError) as error:
            sent = told(error, str(folder.path))
        code = max(code, sent)
    return code


def _is_completed(folder: Folder, uri: str) -> bool:
    """Whether ``uri`` is the sweep's own address, with or without the password that is not stored."""
    try:
        stored = read_tracking(folder)["config"].get("uri")
    except (Damaged, OSError):
        return False
    return stored is not None and same_address(stored, uri)


def _tracker(folder: Folder, asked: Json, trust: bool) -> StoredTracker:
    """How to reach the tracker: as the sweep did, or as the command line says.

    Raises:
        UserError: what the folder names may not be used.
    """
    default: Json = yaml.safe_load((conf_folder() / "tracking" / "mlflow.yaml").read_text(encoding="utf-8"))
    if "uri" in asked:  # the user says where, whatever the folder says
        with suppress(Damaged):
            stored = read_tracking(folder)
            if stored["config"].get("_target_"):
                default = settings_of(folder, stored, trust)
        return StoredTracker({**default, **asked}, confined=False)
    found = stored_tracker(folder, "uri", trust=trust)
    if found.config["_target_"] is None:  # a sweep that was not tracked, or of before that was stored
        return StoredTracker(default, confined=True)
    problems = rule_problems({"tracking": found.config})
    if problems:
        raise UserError(problems)
    return found


def _is_at_work(folder: Folder) -> bool:
    """Whether jobs of a cluster measure the sweep, as far as this host can ask; without a head nobody would send the rest."""
    with suppress(SweeprofError, OSError, ValueError, KeyError, TypeError):
        return not is_headed(folder.path) and bool(live_jobs(folder))
    return False


def _send(folder: Folder, asked: Json, trust: bool) -> int:
    stored = _tracker(folder, asked, trust)
    if _is_at_work(folder):
        said = f"is being measured by jobs; send it with: python -m sweeprof.collect {shlex.quote(str(folder.path))}"
        raise UserError([Problem("DIR", str(folder.path), said)])
    if is_headed(folder.path):
        said = "is being measured; its end sends it, or can be waited for."
        raise UserError([Problem("DIR", str(folder.path), said)])
    ending, missing = noted_ending(folder) or (None, MISSING)
    with reporting(folder.path):
        comparison = comparison_of(folder, missing, trust=trust)
        if not (folder.path / "report.html").is_file():
            write_reports(folder, comparison)
    if ending is None:
        fine = all(row.status in ("ok", "unsupported") for row in comparison.rows)
        ending = "finished" if fine else "failed"
    with TrackerProcess(stored, folder, trust) as tracker:
        links = tracker.close(ending, missing)
        if tracker.trouble:
            print(f"{folder.path} was not sent: {tracker.trouble}", file=sys.stderr)
            return EXIT_NOT_SENT
    if links and links.needs_viewer:
        elsewhere = (asked["uri"] or f"sqlite:///{folder.path.parents[1] / 'mlflow.db'}") if asked else None
        print(f"MLflow UI  {viewing_command(folder, elsewhere)}")
    if links:
        print(f"Compare    {links.comparison}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
