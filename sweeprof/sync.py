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
from sweeprof.errors import Problem, SweeprofError, UserError, key_problem
from sweeprof.results.files import read_json
from sweeprof.results.record import Json
from sweeprof.sweep.check import rule_problems
from sweeprof.sweep.cluster.launch import live_jobs
from sweeprof.sweep.finish import comparison_of, write_reports
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.hold import is_headed, reporting
from sweeprof.sweep.interrupts import terminable
from sweeprof.sweep.queued import HIDDEN, noted_ending, reachable, sending_command, unsent, viewing_command
from sweeprof.sweep.reading import Parser, sweep_folder, told
from sweeprof.sweep.spelling import redacted
from sweeprof.sweep.tracker import TrackerProcess

EXIT_NOT_SENT, EXIT_INTERRUPTED = 2, 130
MISSING = "it was not measured"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
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
        help="another address than the sweep had: http://…, sqlite:///…; with `unsent`: the whole address of those whose password "
        "is not stored",
    )
    parser.add_argument("--output", default="outputs", metavar="PATH", help="where sweeps are (default: outputs)")
    name = "DIR"
    try:
        given = parser.parse_intermixed_args(arguments)  # DIR and uri=… also with --output between them
        name, output = given.folder, Path(given.output)
        asked = _asked(given.settings)
        with terminable():
            if given.folder == "unsent":
                return _send_all(output, asked)
            return _send(sweep_folder(given.folder, output), asked)
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


def _send_all(output: Path, asked: Json) -> int:
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
            sent = _send(sweep_folder(str(folder.path), output), asked if folder in completed else {})
        except (UserError, OSError) as error:
            sent = told(error, str(folder.path))
        code = max(code, sent)
    return code


def _is_completed(folder: Folder, uri: str) -> bool:
    """Whether ``uri`` is the sweep's own address, together with the password that is not stored."""
    stored = read_json(folder.tracking)
    return not stored["complete"] and bool(stored["config"].get("uri") == redacted(uri))


def _config(folder: Folder, asked: Json) -> Json:
    """How to reach the tracker: as the sweep did, or as the command line says."""
    stored: Json = read_json(folder.tracking) if folder.tracking.is_file() else {"config": {}, "complete": True}
    known = reachable(stored)
    config = {**(known or stored["config"]), **asked}
    if not config.get("_target_"):  # a sweep that was not tracked, or of before that was stored
        config = {**yaml.safe_load((conf_folder() / "tracking" / "mlflow.yaml").read_text(encoding="utf-8")), **asked}
    if known is None and "uri" not in asked:
        said = f"had a password, which is not stored; send it with: {sending_command(folder)}"
        raise UserError([Problem("uri", config.get("uri"), said)])
    problems = rule_problems({"tracking": config})
    if problems:
        raise UserError(problems)
    return config


def _is_at_work(folder: Folder) -> bool:
    """Whether jobs of a cluster measure the sweep, as far as this host can ask; without a head nobody would send the rest."""
    with suppress(SweeprofError, OSError, ValueError, KeyError, TypeError):
        return not is_headed(folder.path) and bool(live_jobs(folder))
    return False


def _send(folder: Folder, asked: Json) -> int:
    config = _config(folder, asked)
    if _is_at_work(folder):
        said = f"is being measured by jobs; send it with: python -m sweeprof.collect {shlex.quote(str(folder.path))}"
        raise UserError([Problem("DIR", str(folder.path), said)])
    if is_headed(folder.path):
        said = "is being measured; its end sends it, or can be waited for."
        raise UserError([Problem("DIR", str(folder.path), said)])
    ending, missing = noted_ending(folder) or (None, MISSING)
    with reporting(folder.path):
        comparison = comparison_of(folder, missing)
        if not (folder.path / "report.html").is_file():
            write_reports(folder, comparison)
    if ending is None:
        fine = all(row.status in ("ok", "unsupported") for row in comparison.rows)
        ending = "finished" if fine else "failed"
    with TrackerProcess(config, folder) as tracker:
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
