"""``python -m sweeprof.sync DIR [uri=…]``: send the records of a sweep to a tracking server again.

What is there already is brought up to date and nothing is doubled, so it may be run as often as one likes; `unsent` sends all that
is still to be sent.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from sweeprof.configs import conf_folder
from sweeprof.errors import Problem, UserError, key_problem
from sweeprof.results.files import read_json
from sweeprof.results.record import Json
from sweeprof.sweep.check import rule_problems
from sweeprof.sweep.finish import comparison_of, write_reports
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.hold import is_headed, reporting
from sweeprof.sweep.queued import HIDDEN, unsent
from sweeprof.sweep.reading import sweep_folder, told
from sweeprof.sweep.tracker import TrackerProcess

EXIT_NOT_SENT = 2
MISSING = "it was not measured"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sweeprof.sync",
        description="Send the records of a sweep to MLflow again: what is missing there is made, the rest brought up to date, "
        "nothing is doubled.",
        epilog="Exit codes: 0 sent, 1 a mistake in the command, 2 the server was not reached or refused.",
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="the folder of a sweep, `last` for the newest below --output, or `unsent` for all there that were not sent",
    )
    parser.add_argument(
        "settings", metavar="uri=…", nargs="*", help="another address than the sweep had: http://…, sqlite:///…"
    )
    parser.add_argument("--output", default="outputs", metavar="PATH", help="where sweeps are (default: outputs)")
    given = parser.parse_args(arguments)
    try:
        everything = given.folder == "unsent"
        found = unsent(Path(given.output)) if everything else [sweep_folder(given.folder, Path(given.output))]
        configs = [_tracking(folder, given.settings) for folder in found]
        if any(is_headed(folder.path) for folder in found):
            raise UserError(
                [Problem("DIR", given.folder, "is being measured; its end sends it, or can be waited for.")]
            )
        if everything and not found:
            print(f"below {given.output} is no sweep that was not sent")
        return max((_sent(*pair) for pair in zip(found, configs, strict=True)), default=0)
    except (UserError, OSError) as error:
        return told(error, given.folder)


def _tracking(folder: Folder, settings: Sequence[str]) -> Json:
    """How to reach the tracker: as the sweep did, or as the command line says."""
    asked = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or key.removeprefix("tracking.") != "uri":
            raise UserError([key_problem(key, value or setting, ["uri"])])
        asked["uri"] = None if value in ("", "null") else value
    stored: Json = read_json(folder.tracking) if folder.tracking.is_file() else {"config": {}, "complete": True}
    config = {**stored["config"], **asked}
    if not config.get("_target_"):  # a sweep that was not tracked, or of before that was stored
        config = {**yaml.safe_load((conf_folder() / "tracking" / "mlflow.yaml").read_text(encoding="utf-8")), **asked}
    problems = rule_problems({"tracking": config})
    if HIDDEN in str(asked.get("uri")):
        problems.append(Problem("uri", asked["uri"], f"has {HIDDEN} where the user and the password belong."))
    if not stored["complete"] and "uri" not in asked:
        problems.append(
            Problem("uri", stored["config"].get("uri"), "had a password, which is not stored; give uri=… .")
        )
    if problems:
        raise UserError(problems)
    return config


def _sent(folder: Folder, config: Json) -> int:
    with reporting(folder.path):
        comparison = comparison_of(folder, MISSING)
        if not (folder.path / "report.html").is_file():
            write_reports(folder, comparison)
    with TrackerProcess(config, folder) as tracker:
        fine = all(row.status in ("ok", "unsupported") for row in comparison.rows)
        links = tracker.close("finished" if fine else "failed", MISSING, len(comparison.rows))
        if tracker.trouble:
            print(f"{folder.path} was not sent: {tracker.trouble}", file=sys.stderr)
            return EXIT_NOT_SENT
    if links and links.command:
        print(f"MLflow UI  {links.command}")
    if links:
        print(f"Compare    {links.comparison}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
