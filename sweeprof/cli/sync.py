"""``sweeprof sync DIR [uri=…]``: send the records of a sweep to a tracking server again.

Existing runs are updated and nothing is duplicated, so it can be run any number of times; `unsent` sends every sweep that
was not sent.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from sweeprof.cli.common import add_output, add_trust, print_error, sweep_folder
from sweeprof.cluster.job_tracker import live_jobs
from sweeprof.config.schema import constraint_problems
from sweeprof.errors import Damaged, ExitCode, Problem, SweeprofError, UserError, key_problem
from sweeprof.paths import conf_folder, expanded_address
from sweeprof.processes import terminable
from sweeprof.results.record import Json
from sweeprof.run.comparison import comparison_of
from sweeprof.run.driver import ending_of, exit_code
from sweeprof.run.locks import has_driver, report_lock
from sweeprof.run.reports import write_reports
from sweeprof.run.tracker_process import (
    HIDDEN,
    StoredTracker,
    TrackerProcess,
    noted_ending,
    read_tracking,
    settings_of,
    shown_at,
    stored_tracker,
    unsent,
)
from sweeprof.storage import Folder
from sweeprof.tracking.connection import same_address


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = "Missing runs are created in MLflow, existing runs are updated, nothing is duplicated.\n"
    parser.add_argument(
        "folder",
        metavar="DIR",
        help="the folder of a sweep; last or NAME/last: the newest; unsent: all below --output that were not sent",
    )
    parser.add_argument(
        "settings",
        metavar="uri=…",
        nargs="*",
        help="another address, or the sweep's own address so that your login is sent there: http://…, sqlite:///…; "
        "with `unsent`: of the sweeps that have this address",
    )
    add_trust(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> ExitCode:
    """Run the subcommand; return the exit code."""
    asked = _asked(options.settings)
    try:
        with terminable():
            if options.folder == "unsent":
                return _send_all(options.output, asked, options.trust)
            return _send(sweep_folder(options.folder, options.output), asked, options.trust)
    except KeyboardInterrupt:
        print("interrupted before everything was sent; the same command sends the rest", file=sys.stderr)
        return ExitCode.INTERRUPTED


def _asked(settings: Sequence[str]) -> Json:
    """Return the settings of the tracker on the command line."""
    asked: Json = {}
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or key.removeprefix("tracking.") != "uri":
            raise UserError([key_problem(key, value or setting, ["uri"])])
        asked["uri"] = None if value in ("", "null") else expanded_address(value)
    problems = constraint_problems({"tracking": asked})
    if HIDDEN in str(asked.get("uri")):
        problems.append(Problem("uri", asked["uri"], f"has {HIDDEN} instead of the user and the password."))
    if problems:
        raise UserError(problems)
    return asked


def _send_all(output: Path, asked: Json, trust: bool) -> ExitCode:
    """Send every sweep that was not sent, each to its own address, also after one that failed; return the worst exit code."""
    found = [folder for folder in unsent(output) if not _is_at_work(folder)]
    if not found:
        print(f"there is no unsent sweep below {output}")
    completed = []
    if asked:
        for folder in found:
            # The sweep's own address, with or without the password that is not stored.
            with suppress(Damaged, OSError):
                stored = read_tracking(folder)["config"].get("uri")
                if stored is not None and same_address(stored, str(asked["uri"])):
                    completed.append(folder)
    if asked and found and not completed:
        message = "is not the address of an unsent sweep; to send to another address, name one DIR."
        raise UserError([Problem("uri", asked["uri"], message)])
    code = ExitCode.OK
    for folder in found:
        try:
            sent = _send(sweep_folder(str(folder.path), output), asked if folder in completed else {}, trust)
        except (UserError, OSError) as error:
            sent = print_error(error)
        code = max(code, sent)
    return code


def _tracker(folder: Folder, asked: Json, trust: bool) -> StoredTracker:
    """Return the tracker of the sweep, or that of the command line.

    Raises:
        UserError: what the folder names may not be used.
    """
    default: Json = yaml.safe_load((conf_folder() / "tracking" / "mlflow.yaml").read_text(encoding="utf-8"))
    default["parent_run"] = os.environ.get("MLFLOW_RUN_ID")  # in the file an interpolation, which only Hydra resolves
    if "uri" in asked:  # the user says where, whatever the folder says
        with suppress(Damaged):
            stored = read_tracking(folder)
            if stored["config"].get("_target_"):
                default = settings_of(folder, stored, trust)
        return StoredTracker({**default, **asked}, confined=False)
    found = stored_tracker(folder, "uri", trust=trust)
    if found.config["_target_"] is None:  # a sweep without tracking, or of a version that did not store it
        return StoredTracker(default, confined=True)
    problems = constraint_problems({"tracking": found.config})
    if problems:
        raise UserError(problems)
    return found


def _is_at_work(folder: Folder) -> bool:
    """True if jobs of a cluster measure the sweep, as far as this host can ask."""
    with suppress(SweeprofError, OSError, ValueError, KeyError, TypeError):
        return not has_driver(folder.path) and bool(live_jobs(folder))
    return False


def _send(folder: Folder, asked: Json, trust: bool) -> ExitCode:
    stored = _tracker(folder, asked, trust)
    if _is_at_work(folder):
        message = f"is being measured by jobs; send it with: sweeprof collect {shlex.quote(str(folder.path))}"
        raise UserError([Problem("DIR", str(folder.path), message)])
    if has_driver(folder.path):
        message = "is being measured; it is sent at its end."
        raise UserError([Problem("DIR", str(folder.path), message)])
    ending, missing = noted_ending(folder) or (None, "it was not measured")
    with report_lock(folder.path):
        comparison = comparison_of(folder, missing, trust=trust)
        write_reports(folder, comparison)
    if ending is None:
        ending = ending_of(exit_code(comparison, folder.read_plan().budget is not None))
    with TrackerProcess(stored, folder, trust) as tracker:
        links = tracker.close(ending)
        if tracker.trouble:
            print(f"{folder.path} was not sent: {tracker.trouble}", file=sys.stderr)
            return ExitCode.INCOMPLETE
    if links:
        elsewhere = None
        if asked:
            elsewhere = asked["uri"] or f"sqlite:///{folder.output / 'mlflow.db'}"
        name, value = shown_at(folder, links, elsewhere)
        print(f"{name:<11}{value}")
    return ExitCode.OK
