"""``python -m sweeprof.ui [DIR]``: MLflow's pages of a sweep, from a server on the sweep's own store."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sweeprof.errors import Damaged, Problem, UserError
from sweeprof.server import EXIT_ENDED, EXIT_OK
from sweeprof.sweep.check import rule_problems
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.interrupts import terminable
from sweeprof.sweep.plan import Plan
from sweeprof.sweep.queued import read_tracking, stored_tracker
from sweeprof.sweep.reading import Parser, sweep_folder, told
from sweeprof.terminal import guard_output
from sweeprof.tracking import MLFLOW
from sweeprof.tracking.asking import NoAnswer, is_healthy
from sweeprof.tracking.credentials import logins, same_address, without_credentials
from sweeprof.tracking.pages import pages_of
from sweeprof.tracking.server_process import ServerEnded, running_server
from sweeprof.tracking.server_settings import (
    artifacts_of,
    database_file,
    free_port,
    mistakes_of,
    obstacles_of,
    store_of,
)
from sweeprof.tracking.serving import LOCAL, PORT, Serving

EPILOG = """\
A sweep that was sent to a server has its pages there: they are printed, and that is all. Where a server that has the sweep
listens at the port already, it is used.

Exit codes: 0 printed, or ended by Ctrl-C, SIGTERM or SIGHUP; 1 a mistake in the command, 2 the server did not answer, did not
start, ended by itself, or does not have the sweep.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    guard_output()
    folder = "last"
    try:
        given = _parser().parse_args(arguments)
        folder = given.folder
        found = sweep_folder(given.folder, Path(given.output))
        store, login = _store(found, given.uri)
        with terminable():
            return _show(found, store, login, given.port)
    except KeyboardInterrupt:
        return EXIT_OK
    except (UserError, OSError) as error:
        return told(error, folder)
    except (ServerEnded, NoAnswer) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ENDED


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m sweeprof.ui",
        description="Start MLflow's interface on the store of a sweep, print where it compares the sweep, and stay until Ctrl-C.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default="last",
        help="the folder of a sweep (last: the newest below --output)",
    )
    parser.add_argument("--output", default="outputs", metavar="PATH", help="where sweeps are (outputs)")
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"where to listen ({PORT}); 0: any that is free"
    )
    parser.add_argument("--uri", metavar="ADDRESS", help="another store or server than the sweep was sent to")
    return parser


def _store(folder: Folder, asked: str | None) -> tuple[str, bool]:
    """Address of the server or database that the sweep was sent to, or of the one that is asked for.

    And whether it may be told the login of the environment: not a server that only the sweep's folder names.

    Raises:
        UserError: it was sent to none, or the address is not known whole.
    """
    if asked is not None:
        problems = rule_problems({"tracking": {"uri": asked}})
        if problems:
            raise UserError(problems)
        return _absolute(asked, folder), True
    try:
        stored = read_tracking(folder)
    except Damaged as error:
        said = f"has a tracking.json that cannot be read: {error}; give --uri."
        raise UserError([Problem("DIR", str(folder.path), said)]) from None
    uri: str = stored["config"].get("uri") or ""
    if stored["config"].get("_target_") != MLFLOW:
        raise UserError([Problem("DIR", str(folder.path), f"was not sent to MLflow; {_sending(folder)}")])
    if not stored["complete"] and not _is_server(uri):  # the pages of a server can be shown without
        shown = without_credentials(uri)
        raise UserError([Problem("--uri", shown, "is the sweep's store, whose password is not kept; give it whole.")])
    if _is_server(uri) and _is_given(uri):
        return without_credentials(uri), True
    # What stands for a user and a password that are not kept is neither: pages can be shown without, if the server does.
    if _is_server(uri):
        return without_credentials(uri), False
    found = stored_tracker(folder, "--uri")
    return _absolute(found.config["uri"], folder), True


def _absolute(uri: str | None, folder: Folder) -> str:
    return uri if uri and _is_server(uri) else store_of(uri, folder.path.parents[1])


def _is_server(uri: str | None) -> bool:
    return str(uri).startswith(("http://", "https://"))


def _sending(folder: Folder) -> str:
    return f"to send it: python -m sweeprof.sync {folder.path}"


def _show(folder: Folder, store: str, login: bool, port: int) -> int:
    plan = folder.read_plan()
    if _is_server(store):
        return _printed(folder, store, _pages(store, plan, login))
    output = folder.path.parents[1]
    database = database_file(store)
    if database and not database.is_file():
        raise UserError([Problem("--uri", store, f"is not there; {_sending(folder)}")])
    serving = Serving(store, artifacts_of(None, store, output), port=port or free_port(LOCAL[0]))
    if pages := _pages_at(serving.address, plan):
        return _printed(folder, serving.address, pages)
    problems = [*mistakes_of(serving, "--uri")] or [*obstacles_of(serving, "--uri")]
    if problems:
        raise UserError(problems)
    with running_server(serving, database) as server:
        code = _printed(folder, serving.address, pages_of(serving.address, plan.name, plan.sweep_id, login=False))
        if code == EXIT_OK:
            print("Ctrl-C ends the server.", flush=True)
            server.wait()
        return code


def _pages(store: str, plan: Plan, login: bool) -> dict[str, str]:
    """The pages on a server; what it answers where it was not told the login says how to have it told."""
    try:
        return pages_of(store, plan.name, plan.sweep_id, login)
    except NoAnswer as error:
        if login or not logins():
            raise
        given = f"it was not told your login, as only the sweep's folder names it; to do so: --uri {without_credentials(store)}"
        raise NoAnswer(f"{error} ({given})") from None


def _is_given(uri: str) -> bool:
    return same_address(uri, os.environ.get("MLFLOW_TRACKING_URI") or "")


def _pages_at(address: str, plan: Plan) -> dict[str, str]:
    """The pages on a server that has the sweep already; none with whatever else is there, which is told as a taken port."""
    with suppress(NoAnswer):  # another user's program may listen there: it is told no password
        return pages_of(address, plan.name, plan.sweep_id, login=False) if is_healthy(address) else {}
    return {}


def _printed(folder: Folder, address: str, pages: Mapping[str, str]) -> int:
    if not pages:
        print(f"error: MLflow does not have {folder.path}; {_sending(folder)}", file=sys.stderr)
        return EXIT_ENDED
    print(f"{'MLflow':<14}{without_credentials(address)}")
    for name, page in pages.items():
        print(f"{name:<14}{page}")
    sys.stdout.flush()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
