"""``sweeprof ui [DIR]``: open a sweep in MLflow's interface, from a server on the sweep's own store."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from sweeprof.cli.common import print_error
from sweeprof.cli.folder import add_output, sweep_folder
from sweeprof.config.schema import constraint_problems
from sweeprof.errors import Damaged, ExitCode, Problem, SweeprofError, UserError
from sweeprof.paths import expanded_address
from sweeprof.plan.plan import Plan
from sweeprof.processes import die_with
from sweeprof.run.interrupts import terminable
from sweeprof.run.tracking_file import read_tracking, stored_tracker
from sweeprof.storage.folder import Folder
from sweeprof.tracking import MLFLOW
from sweeprof.tracking.credentials import logins, same_address, without_credentials
from sweeprof.tracking.pages import pages_of
from sweeprof.tracking.rest import LOCAL, PORT, ServerUnreachable, is_healthy

EPILOG = """\
Starts MLflow's interface on the store of the sweep, prints the addresses of the sweep's pages, opens the table in your browser if
there is a graphical session, and runs until Ctrl-C. If a server with the sweep already listens on the port, it is used. For a sweep
on a server, no other is started, and nothing is opened unless you give the address (--uri, or MLFLOW_TRACKING_URI).
"""
SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql", "postgresql+psycopg")
"""Schemes for which SQLAlchemy uses psycopg."""
CONNECT_S = 10
START_S = 180.0
"""A server needs ten seconds to start; on a busy machine several times as long."""
END_S = 15.0
SERVER_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""Without job runners a server takes 2 processes and 400 MB instead of 15 and 2.3 GB."""
LINES_KEPT = 20
SESSION = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
"""Environment variables of which a graphical session, or a user who has chosen a browser, has one."""


class ServerEnded(SweeprofError):
    """The server did not start, or ended by itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.epilog = EPILOG
    parser.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default="last",
        help="the folder of a sweep; last or NAME/last: the newest (default: last)",
    )
    add_output(parser)
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"where to listen ({PORT}); 0: any free port"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the addresses")
    parser.add_argument(
        "--uri", metavar="ADDRESS", help="use another store or server than the one that the sweep was sent to"
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Run the subcommand; return the exit code."""
    folder = sweep_folder(options.folder, options.output)
    store, login = _store(folder, options.uri)
    try:
        with terminable():
            return _show(folder, store, login, options.port, not options.no_browser)
    except KeyboardInterrupt:
        return ExitCode.OK
    except (ServerEnded, ServerUnreachable) as error:
        print_error(error)
        return ExitCode.INCOMPLETE


def _store(folder: Folder, uri: str | None) -> tuple[str, bool]:
    """Return the address of the server or database that has the sweep, and whether a server there may get the user's login.

    A server that only the sweep's folder names does not get it.

    Raises:
        UserError: the sweep was not sent, or its address is not stored completely.
    """
    if uri is not None:
        problems = constraint_problems({"tracking": {"uri": uri}})
        if problems:
            raise UserError(problems)
        return _absolute(expanded_address(uri), folder), True
    try:
        stored = read_tracking(folder)
    except Damaged as error:
        message = f"has a tracking.json that cannot be read: {error}; give --uri."
        raise UserError([Problem("DIR", str(folder.path), message)]) from None
    address: str = stored["config"].get("uri") or ""
    shown = without_credentials(address)
    if stored["config"].get("_target_") != MLFLOW:
        raise UserError([Problem("DIR", str(folder.path), f"was not sent to MLflow; {_how_to_send(folder)}")])
    if _is_server(address):  # its pages can be shown without the password, which is not stored
        return shown, same_address(address, os.environ.get("MLFLOW_TRACKING_URI") or "")
    if not stored["complete"]:
        message = "is the sweep's store, whose password is not stored; give the complete address."
        raise UserError([Problem("--uri", shown, message)])
    return _absolute(stored_tracker(folder, "--uri").config["uri"], folder), True


def _absolute(uri: str | None, folder: Folder) -> str:
    """Return the address with an absolute path; the default is the database below the folder of all sweeps."""
    if uri is None:
        return f"{SQLITE}{folder.output / 'mlflow.db'}"
    if not uri.startswith(SQLITE):
        return uri
    path, mark, query = uri.removeprefix(SQLITE).partition("?")
    return f"{SQLITE}{Path(path).absolute()}{mark}{query}"


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _how_to_send(folder: Folder) -> str:
    return f"to send it: sweeprof sync {folder.path}"


def _show(folder: Folder, store: str, login: bool, port: int, browse: bool) -> ExitCode:
    plan = folder.read_plan()
    if _is_server(store):
        # A page that only the sweep's folder names is not opened unasked.
        return _print_pages(folder, _pages(store, plan, login), browse and login)
    database = Path(store.removeprefix(SQLITE).partition("?")[0]) if store.startswith(SQLITE) else None
    if database and not database.is_file():
        raise UserError([Problem("--uri", store, f"does not exist; {_how_to_send(folder)}")])
    address = f"http://{LOCAL[0]}:{port}"
    with suppress(ServerUnreachable):  # another user's program may listen there: it gets no password
        pages = pages_of(address, plan.name, plan.sweep_id, login=False) if port and is_healthy(address) else {}
        if pages:
            return _print_pages(folder, pages, browse)
    _check_store(store)
    address = f"http://{LOCAL[0]}:{_free_port(port)}"
    artifacts = (database.parent if database else folder.output) / "mlflow-artifacts"
    with tempfile.TemporaryFile("w+", errors="replace") as log, _server(store, artifacts, address, log) as server:
        code = _print_pages(folder, pages_of(address, plan.name, plan.sweep_id, login=False), browse)
        if code == ExitCode.OK:
            print("Ctrl-C ends the server.", flush=True)
            server.wait()
            raise _ended(f"ended with code {server.returncode}", log)
        return code


def _pages(store: str, plan: Plan, login: bool) -> dict[str, str]:
    """Return the pages on a server; the error of one that did not get the login says how to send it."""
    try:
        return pages_of(store, plan.name, plan.sweep_id, login)
    except ServerUnreachable as error:
        if login or not logins():
            raise
        hint = f"your login was not sent, as only the sweep's folder names this server; to send it: --uri {store}"
        raise ServerUnreachable(f"{error} ({hint})") from None


def _print_pages(folder: Folder, pages: Mapping[str, str], browse: bool) -> ExitCode:
    """Print the pages; open the first if there is a graphical session: a browser in the terminal would take its place."""
    if not pages:
        print_error(f"MLflow does not have {folder.path}; {_how_to_send(folder)}")
        return ExitCode.INCOMPLETE
    for name, page in pages.items():
        print(f"{name:<11}{page}")
    sys.stdout.flush()
    if browse and (sys.platform == "darwin" or any(os.environ.get(name) for name in SESSION)):
        webbrowser.open(next(iter(pages.values())))
    return ExitCode.OK


def _check_store(store: str) -> None:
    """Raise a :class:`UserError` if MLflow cannot use the database; MLflow itself would try for 100 seconds."""
    shown = without_credentials(store)
    scheme, _, rest = store.partition("://")
    needed = {"mlflow": "mlflow", **({"psycopg": "postgresql"} if scheme in POSTGRESQL else {})}
    for package, extra in needed.items():
        if find_spec(package) is None:
            message = f"needs {package}, which is not installed: pip install 'sweeprof[{extra}]'."
            raise UserError([Problem("--uri", shown, message)])
    if scheme in POSTGRESQL:
        import psycopg

        try:
            psycopg.connect(f"postgresql://{rest}", connect_timeout=CONNECT_S).close()
        except psycopg.Error as error:
            message = f"refuses the connection: {without_credentials(' '.join(str(error).split()))}"
            raise UserError([Problem("--uri", shown, message)]) from None


def _free_port(port: int) -> int:
    """Return ``port``, or any free port for 0.

    Raises:
        UserError: it is taken, or not a port that this user may use.
    """
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind((LOCAL[0], port))
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        message = "is not a port that you may use: 1024 to 65535, or 0 for any free port."
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            message = f"is taken: another program listens there, on {LOCAL[0]}; choose another port."
        raise UserError([Problem("--port", port, message)]) from None


@contextmanager
def _server(store: str, artifacts: Path, address: str, log: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run MLflow's server until the context is left, and wait until it answers.

    Raises:
        ServerEnded: it did not start.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", LOCAL[0], "--port", address.rpartition(":")[2]]
    # Several workers add 44 ms to every request.
    command += ["--workers", "1", "--uvicorn-opts", "--log-level warning", "--serve-artifacts"]
    command += ["--default-artifact-root", "mlflow-artifacts:/", "--artifacts-destination", str(artifacts)]
    server = subprocess.Popen(
        command,
        # The store by the environment: it may have a password, and every user can read the arguments of a command.
        env={**os.environ, **SERVER_ENVIRONMENT, "MLFLOW_BACKEND_STORE_URI": store},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches this process alone, which ends the server
        preexec_fn=partial(die_with, os.getpid(), signal.SIGTERM),  # noqa: PLW1509  # this process has no threads yet
    )
    try:
        end = time.monotonic() + START_S
        while not is_healthy(address):
            if server.poll() is not None:
                raise _ended("did not start", log)
            if time.monotonic() > end:
                raise _ended(f"did not answer at {address} within {START_S:g} s", log)
            time.sleep(0.1)
        yield server
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(server.pid, number)
            with suppress(subprocess.TimeoutExpired):
                server.wait(END_S)


def _ended(how: str, log: IO[str]) -> ServerEnded:
    log.seek(0)
    lines = without_credentials(log.read()).splitlines()[-LINES_KEPT:]
    return ServerEnded("\n".join([f"the server {how}", *lines]))
