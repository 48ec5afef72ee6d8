"""MLflow's server as a process: waited for until it answers, ended with its own children whatever ends this one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock

from sweeprof.errors import SweeprofError
from sweeprof.tracking.asking import is_healthy
from sweeprof.tracking.credentials import without_credentials
from sweeprof.tracking.serving import Serving

START_S = 180.0
"""It takes ten seconds; on a busy machine, with a database to be made on a slow disk, several times as long."""
END_S = 15.0
_PR_SET_PDEATHSIG = 1
_LINES_KEPT = 20


class ServerEnded(SweeprofError):
    """The server did not start, or ended unasked."""


class Server:
    """A server's process."""

    def __init__(self, serving: Serving) -> None:
        self.out: TextIO | None = None
        """Takes what it prints, without passwords; None: the last of it is kept for errors."""
        self._said = deque[str](maxlen=_LINES_KEPT)
        self._process = subprocess.Popen(
            serving.command(),
            env=serving.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the server in order
            preexec_fn=_ending_with(os.getpid()),  # noqa: PLW1509  # the commands that start servers have no threads yet
        )
        self._reader = threading.Thread(target=self._read, name="sweeprof-server", daemon=True)
        self._reader.start()

    def wait_until_ready(self, address: str) -> None:
        """Wait until it answers at ``address``; raises :class:`ServerEnded` where it does not."""
        end = time.monotonic() + START_S
        while not is_healthy(address):
            if self._process.poll() is not None:
                raise self._ended("did not start")
            if time.monotonic() > end:
                raise self._ended(f"did not answer at {address} within {START_S:g} s")
            time.sleep(0.1)

    def wait(self) -> None:
        """Wait for its end, which nobody asked for.

        Raises:
            ServerEnded: always.
        """
        self._process.wait()
        raise self._ended(f"ended with code {self._process.returncode}")

    def end(self) -> None:
        """End it, and whatever it has started."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join(END_S)

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                text = without_credentials(line)
                if self.out is None:
                    self._said.append(text)
                else:
                    self.out.write(text)
                    self.out.flush()

    def _ended(self, how: str) -> ServerEnded:
        self._reader.join(1)
        return ServerEnded("\n".join([f"the server {how}", *(() if self.out else map(str.rstrip, self._said))]))


@contextmanager
def running_server(serving: Serving, database: Path | None, out: TextIO | None = None) -> Iterator[Server]:
    """A server that answers, until the context is left.

    Args:
        serving: what it serves.
        database: the file of its store, where that is one.
        out: takes what it prints from then on; None: only errors tell of it.

    Raises:
        ServerEnded: it did not start.
    """
    server: Server | None = None
    try:
        with _making(database):
            server = Server(serving)
            server.wait_until_ready(serving.own_address)
        server.out = out
        yield server
    finally:
        if server is not None:
            server.end()


def _making(database: Path | None) -> AbstractContextManager[object]:
    """Be the one that makes the database: the first sweep, or another server, may be about to (MLFLOW.md 3)."""
    if database is None or database.exists():
        return nullcontext()
    database.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{database}.lock", timeout=START_S)


def _ending_with(parent: int) -> Any:
    """What a child does before it becomes the server: ask to be ended when ``parent`` is, by whatever signal."""
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was quicker
            os._exit(1)

    return ask
