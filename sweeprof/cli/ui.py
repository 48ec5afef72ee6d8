"""``sweeprof ui [DIR]``: open a sweep in MLflow's interface, from a server on the sweep's own store."""

from __future__ import annotations

import argparse
import errno
import fcntl
import glob
import html
import os
import secrets
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
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from sweeprof.cli.common import add_output, print_error, sweep_folder
from sweeprof.credentials import redacted_address, redacted_message
from sweeprof.errors import Damaged, ExitCode, Problem, SweeprofError, UserError
from sweeprof.paths import cache_folder
from sweeprof.plan.plan import Plan
from sweeprof.processes import die_with, terminable
from sweeprof.run.tracker_process import read_tracking, stored_tracker
from sweeprof.storage import Folder, check_address, foreign, sweeps
from sweeprof.tracking import MLFLOW
from sweeprof.tracking.connection import LOCAL, PORT, ServerUnreachable, is_healthy, logins, same_address
from sweeprof.tracking.viewer import ARTIFACTS, NAME, TOKEN, pages_of, with_token

EPILOG = """\
Starts MLflow's interface on the store of the sweep, prints the addresses of the sweep's pages, opens the table in your browser if
there is a graphical session, and runs until Ctrl-C. Only who has the token in these addresses can use the server. If another
`sweeprof ui` of yours already shows the sweep on the port, it is used. For a sweep on a server, no other is started, and nothing is
opened unless MLFLOW_TRACKING_URI is its address.
"""
VARIABLE = "MLFLOW_TRACKING_URI"
"""By which the user names a store, with its password."""
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
        help="the folder of a sweep; last or NAME/last: the newest (default: the newest that was sent to MLflow)",
    )
    add_output(parser)
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"where to listen ({PORT}); 0: any free port"
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the addresses")


def run(options: argparse.Namespace) -> ExitCode:
    """Run the subcommand; return the exit code."""
    folder = sweep_folder(options.folder or "last", options.output)
    if options.folder is None and not _is_sent(folder):
        folder = _newest_sent(folder, options.output)
    store, named = _store(folder)
    try:
        with terminable():
            return _show(folder, store, named, options.port, not options.no_browser)
    except KeyboardInterrupt:
        return ExitCode.OK
    except (ServerEnded, ServerUnreachable) as error:
        print_error(error)
        return ExitCode.INCOMPLETE


def _is_sent(folder: Folder) -> bool:
    """True if a sweep was sent to MLflow, or it is not known whether it was."""
    try:
        return read_tracking(folder)["config"].get("_target_") == MLFLOW
    except Damaged:
        return True


def _newest_sent(newest: Folder, output: Path) -> Folder:
    """Return the newest sweep that was sent to MLflow, and say so, as ``newest`` was not; if none was, return ``newest``."""
    for folder in sweeps(output.absolute()):
        if _is_sent(folder):
            reason = f"the newest sweep, {newest.path}, was not sent to MLflow ({_how_to_send(newest)})"
            print(f"Showing {folder.path}: {reason}", file=sys.stderr)
            return sweep_folder(str(folder.path), output)
    return newest


def _store(folder: Folder) -> tuple[str, bool]:
    """Return the address of the server or database that has the sweep, and whether the user names it, not only the folder.

    A server that only the sweep's folder names does not get the user's login, and a database names no artifacts elsewhere.

    Raises:
        UserError: the sweep was not sent, or its address is not stored completely.
    """
    try:
        stored = read_tracking(folder)
    except Damaged as error:
        message = f"has a tracking.json that cannot be read: {error}; {_how_to_send(folder)}"
        raise UserError([Problem("DIR", str(folder.path), message)]) from None
    if stored["config"].get("_target_") != MLFLOW:
        raise UserError([Problem("DIR", str(folder.path), f"was not sent to MLflow; {_how_to_send(folder)}")])
    address = redacted_address(stored["config"].get("uri") or "", "")
    if _is_server(address):
        named = os.environ.get(VARIABLE)
        if named and same_address(named, address):  # with the password, which is not stored
            return named.rstrip("/"), True
        return address, check_address(folder, "DIR", address, [named], f"set {VARIABLE} to it")
    tracker = stored_tracker(folder, VARIABLE)
    uri = tracker.config["uri"]
    if uri is None:
        uri = f"{SQLITE}{folder.output / 'mlflow.db'}"
    elif uri.startswith(SQLITE):
        path, mark, query = uri.removeprefix(SQLITE).partition("?")
        uri = f"{SQLITE}{Path(path).absolute()}{mark}{query}"
    return uri, not tracker.confined


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _how_to_send(folder: Folder) -> str:
    return f"to send it: sweeprof sync {folder.path}"


def _show(folder: Folder, store: str, named: bool, port: int, browse: bool) -> ExitCode:
    plan = folder.read_plan()
    if _is_server(store):
        try:
            pages = pages_of(store, plan.name, plan.sweep_id, named)
        except ServerUnreachable as error:
            if named or not logins():
                raise
            reason = "your login was not sent, as only the sweep's folder names this server"
            raise ServerUnreachable(f"{error} ({reason}; to send it, set {VARIABLE}={store})") from None
        # A page that only the sweep's folder names is not opened unasked.
        return _print_pages(folder, pages, browse and named)
    place = folder.output
    if store.startswith(SQLITE):
        database = Path(store.removeprefix(SQLITE).partition("?")[0])
        if not database.is_file():
            raise UserError([Problem("DIR", store, f"does not exist; {_how_to_send(folder)}")])
        if named:
            place = database.parent
    running = _token_of(port)  # of a server that this user started, and not any program that listens there
    if running is not None:
        with suppress(ServerUnreachable):
            pages = _own_pages(port, running, plan)
            if pages:
                return _print_pages(folder, pages, browse)
    _check_store(store)
    port, token = _free_port(port), secrets.token_hex(32)
    print(f"Starting MLflow's interface for {folder.path}; this takes 10 to 45 s.", file=sys.stderr, flush=True)
    artifacts = place / "mlflow-artifacts"
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        _announced(port, token),
        _server(store, artifacts, not named, port, token, log) as server,
    ):
        code = _print_pages(folder, _own_pages(port, token, plan), browse)
        if code == ExitCode.OK:
            print("Ctrl-C ends the server.", flush=True)
            server.wait()
            raise _ended(f"ended with code {server.returncode}", log)
        return code


def _own_pages(port: int, token: str, plan: Plan) -> dict[str, str]:
    """Return the pages on a server of :func:`_server`, each with the token."""
    pages = pages_of(f"http://{token}@{LOCAL[0]}:{port}", plan.name, plan.sweep_id, login=False)
    return {name: with_token(page, token) for name, page in pages.items()}


def _private_folder() -> Path:
    """Return this user's folder for the tokens of running servers."""
    folder = cache_folder("ui") or Path(tempfile.gettempdir()) / f"sweeprof-ui-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if why := foreign(folder):
        raise UserError(f"{folder}, which has the tokens of running servers, {why}: remove it.")
    folder.chmod(0o700)
    return folder


def _token_file(port: int) -> Path:
    return _private_folder() / f"{socket.gethostname()}-{port}"  # several hosts may share a home


@contextmanager
def _announced(port: int, token: str) -> Iterator[None]:
    """Let later commands of this user find the token of the server on a port, while this process runs."""
    path = _token_file(port)
    path.unlink(missing_ok=True)  # of a process that was killed
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else knows the new file
        file.write(token)
        file.flush()
        try:
            yield
        finally:
            for left in (path, *path.parent.glob(f"{glob.escape(path.name)}-*.html")):
                left.unlink(missing_ok=True)


def _token_of(port: int) -> str | None:
    """Return the token of the server that another command of this user runs on a port; None if there is none."""
    with suppress(FileNotFoundError), _token_file(port).open(encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return None


def _print_pages(folder: Folder, pages: Mapping[str, str], browse: bool) -> ExitCode:
    """Print the pages; open the first if there is a graphical session: a browser in the terminal would take its place."""
    if not pages:
        print_error(f"MLflow does not have {folder.path}; {_how_to_send(folder)}")
        return ExitCode.INCOMPLETE
    for name, page in pages.items():
        print(f"{name:<11}{page}")
    sys.stdout.flush()
    if browse and (sys.platform == "darwin" or any(os.environ.get(name) for name in SESSION)):
        page = next(iter(pages.values()))
        if "?token=" in page:  # opened through a file, as all users can read the arguments of a command
            place = _token_file(urlsplit(page).port or 0)
            descriptor, name = tempfile.mkstemp(
                ".html", f"{place.name}-", place.parent
            )  # which only this user can read
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={html.escape(page)}">\n')
            page = Path(name).as_uri()
        webbrowser.open(page)
    return ExitCode.OK


def _check_store(store: str) -> None:
    """Raise a :class:`UserError` if MLflow cannot use the database; MLflow itself would try for 100 seconds."""
    shown = redacted_address(store, "")
    scheme, _, rest = store.partition("://")
    needed = {"mlflow": "mlflow"}
    if scheme in POSTGRESQL:
        needed["psycopg"] = "postgresql"
    for package, extra in needed.items():
        if find_spec(package) is None:
            message = f"needs {package}, which is not installed: pip install 'sweeprof[{extra}]'."
            raise UserError([Problem("DIR", shown, message)])
    if not entry_points(group="mlflow.app", name=NAME):
        raise UserError(
            "this installation of sweeprof is older than its code: install it again, as with pip install -e ."
        )
    if scheme in POSTGRESQL:
        import psycopg

        try:
            psycopg.connect(f"postgresql://{rest}", connect_timeout=CONNECT_S).close()
        except psycopg.Error as error:
            message = f"refuses the connection: {redacted_message(' '.join(str(error).split()))}"
            raise UserError([Problem("DIR", shown, message)]) from None


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
def _server(
    store: str, artifacts: Path, confined: bool, port: int, token: str, log: IO[str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run MLflow's server, for those who have the token, until the context is left, and wait until it answers.

    Args:
        confined: whether it shows only what is below ``artifacts``, whatever places the store names.

    Raises:
        ServerEnded: it did not start.
    """
    address = f"http://{LOCAL[0]}:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", LOCAL[0], "--port", str(port), "--app-name", NAME]
    # Several workers add 44 ms to every request.
    command += ["--workers", "1", "--uvicorn-opts", "--log-level warning", "--serve-artifacts"]
    command += ["--default-artifact-root", "mlflow-artifacts:/", "--artifacts-destination", str(artifacts)]
    own = {"MLFLOW_BACKEND_STORE_URI": store, TOKEN: token}
    if confined:
        own[ARTIFACTS] = str(artifacts)
    server = subprocess.Popen(
        command,
        # By the environment what is secret: every user can read the arguments of a command.
        env={**os.environ, **SERVER_ENVIRONMENT, **own},
        cwd=_private_folder(),  # from which it would import modules, and not from a folder of somebody else
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
    lines = redacted_message(log.read()).splitlines()[-LINES_KEPT:]
    return ServerEnded("\n".join([f"the server {how}", *lines]))
