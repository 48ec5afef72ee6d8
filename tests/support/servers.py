"""Real servers in processes of their own, on free ports of this machine: MLflow's tracking server, and PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sweeprof.tracking.connection import ENVIRONMENT

POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
"""Where the programs of PostgreSQL are; None where it is not installed."""
STARTING_S = 120.0
"""MLflow's server needs 7 to 18 seconds on a quiet machine."""


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def isolated(home: Path) -> dict[str, str]:
    """The environment of a process that knows nothing of the developer's MLflow, and asks nobody."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    return {**kept, **ENVIRONMENT, "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config")}


class Server:
    """A process that listens, which can be killed and started again on the same port."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path, user: str | None = None) -> None:
        self._command, self._environment, self._user = command, dict(environment), user
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, answers: Callable[[], bool]) -> None:
        """Start it, and wait until it answers."""
        as_user = {"user": self._user, "group": self._user, "extra_groups": []} if self._user else {}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user,  # type: ignore[call-overload]
            )
        end = time.monotonic() + STARTING_S
        while not answers():
            if time.monotonic() > end or self._process.poll() is not None:
                self.end(signal.SIGKILL)
                raise AssertionError(f"{self._command[0]} did not start: {self.log.read_text(errors='replace')}")
            time.sleep(0.1)

    def end(self, how: signal.Signals) -> None:
        """Send a signal to the process and all that it started, and wait for its end."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, how)
            self._process.wait(timeout=20)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        finally:
            if how != signal.SIGKILL:
                self.end(signal.SIGKILL)
            else:
                self._process.wait()
                self._process = None


class MlflowServer(Server):
    """A lean tracking server, one worker, no background jobs: answering within ``with``, or from ``up``.

    A database and a folder of artifacts below ``folder`` unless others are given.
    """

    def __init__(
        self,
        folder: Path,
        backend_uri: str | None = None,
        artifacts: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        store = backend_uri or f"sqlite:///{folder / 'server.db'}"
        options = {
            "--backend-store-uri": store,
            "--artifacts-destination": artifacts or str(folder / "artifacts"),
            "--host": "127.0.0.1",
            "--port": str(port),
            "--workers": "1",
        }
        command = [sys.executable, "-m", "mlflow", "server", *(word for pair in options.items() for word in pair)]
        variables = {**isolated(folder / "home"), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **(env or {})}
        super().__init__(command, variables, folder / "server.log")

    def up(self) -> None:
        """Start it, also again after its end."""
        self.start(lambda: _answers(f"{self.url}/health"))

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGTERM)


class Postgres(Server):
    """A database server with one user and a password."""

    USER, PASSWORD = "sweeper", "pg-s3cret"

    def __init__(self, data: Path, log: Path) -> None:
        assert POSTGRES is not None
        self._port, self._data = free_port(), data
        user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
        password = data / "password"
        password.write_text(self.PASSWORD, encoding="utf-8")
        if user:
            shutil.chown(data, user, user)
            shutil.chown(password, user, user)
        made = [POSTGRES / "initdb", "-D", data / "db", "-U", self.USER, "--pwfile", password, "-A", "scram-sha-256"]
        identity = {"user": user, "group": user, "extra_groups": []} if user else {}
        subprocess.run(
            [*map(str, made), "--no-sync"],
            cwd=data,
            check=True,
            capture_output=True,
            **identity,  # type: ignore[call-overload]
        )
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(data), "fsync": "off"}
        command = [str(POSTGRES / "postgres"), "-D", str(data / "db"), "-p", str(self._port)]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        super().__init__(command, {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}, log, user)

    def up(self) -> None:
        """Start it, also again after its end."""
        self.start(self._ready)

    def down(self) -> None:
        """End it as an administrator does: its clients lose their connections."""
        self.end(signal.SIGINT)

    def uri(self, database: str = "postgres") -> str:
        """The address of a database, password included."""
        return f"postgresql://{self.USER}:{self.PASSWORD}@127.0.0.1:{self._port}/{database}"

    def create(self, database: str) -> str:
        """Make an empty database; returns its address."""
        import psycopg

        with psycopg.connect(self.uri(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.uri(database)

    def _ready(self) -> bool:
        assert POSTGRES is not None
        asked = [str(POSTGRES / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(asked, check=False).returncode == 0


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """An empty PostgreSQL that answers, with its log in ``folder``; its data are where its own user may read."""
    folder.mkdir(parents=True, exist_ok=True)
    data = Path(tempfile.mkdtemp(prefix="sweeprof-pg-", dir="/tmp"))  # a socket's path has at most 107 characters
    server = None
    try:
        server = Postgres(data, data / "log")
        server.up()
        yield server
    finally:
        if server is not None:
            server.end(signal.SIGINT)
        if (data / "log").exists():
            shutil.copyfile(data / "log", folder / "postgres.log")
        shutil.rmtree(data, ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except OSError:
        return False
    return True
