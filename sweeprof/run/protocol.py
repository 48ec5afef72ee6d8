"""The protocol of a sweep's processes: lines of JSON over a socket, a child process at its other end, the request to run a trial.

A socket closes with whatever ends either side, so neither process can outlive the other, or wait for it, unnoticed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import psutil

from sweeprof.errors import WorkerError
from sweeprof.results.files import tail_lines
from sweeprof.results.record import Json

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that made it ends."""
CLOSING_S = 10.0
"""How long a child may take to end after its socket has closed."""
DISK_FULL = 74
"""Exit code of a process that could not write its record."""


class Connection:
    """Messages in JSON, one per line, over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self._unread = connection, b""

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Send a message; raises ``OSError`` if the other side is gone, ``TimeoutError`` if it does not read."""
        self.socket.settimeout(timeout_s)
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message, None if the other side is gone; raises ``TimeoutError`` if it is not complete in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            try:
                self.socket.settimeout(None if deadline is None else max(0.0, deadline - time.monotonic()))
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                continue  # look once more without waiting: an answer that arrived while this process was stopped is not late
            except BlockingIOError:
                raise TimeoutError from None
            except OSError:
                data = b""
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield every message until the other side is gone."""
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """Close the socket, which the other side notices."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits for a message
        self.socket.close()


class NoAnswer(WorkerError):
    """A child process did not answer in time."""


class Child:
    """``python -m MODULE DESCRIPTOR ARGUMENTS…`` in a session of its own, so that Ctrl-C reaches only the driver."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        ours, theirs = socket.socketpair()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
            )
        theirs.close()
        self._connection, self._module, self._log = Connection(ours), module, log

    @property
    def alive(self) -> bool:
        """True if the process still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Send a message and return its answer.

        Raises:
            NoAnswer: the child did not answer in time.
            WorkerError: the child ended.
        """
        self.send(message, timeout_s)
        return self.receive(timeout_s)

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Send a message; raises like :meth:`ask`."""
        try:
            self._connection.send(message, timeout_s)
        except TimeoutError:
            raise self._no_answer(timeout_s) from None
        except OSError as error:
            raise WorkerError(f"{self._module} is gone: {error}") from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the next message of the child, which must be complete within ``timeout_s``; raises like :meth:`ask`."""
        try:
            message = self._connection.receive(timeout_s)
        except TimeoutError:
            raise self._no_answer(timeout_s) from None
        if message is None:
            raise WorkerError(self._ending())
        return message

    def _no_answer(self, timeout_s: float | None) -> NoAnswer:
        return NoAnswer(f"{self._module} did not answer within {timeout_s:g} s (see {self._log})")

    def _ending(self) -> str:
        """Return how the child ended, as far as it is known."""
        try:
            code = self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            return f"{self._module} closed its socket (see {self._log})"
        if code < 0:
            return f"its {self._module.rpartition('.')[2]} process was killed by {signal_name(-code)} (signal {-code})"
        return f"{self._module} ended with code {code}: {tail_lines(self._log, 1) or 'no output'} (see {self._log})"

    def kill(self) -> None:
        """Kill the child and all its descendants at once, also those that are stopped."""
        if not self.alive:
            return
        try:
            own = psutil.Process(self.pid)
            descendants = own.children(recursive=True)
            own.kill()  # first, so that it starts nothing more
        except psutil.NoSuchProcess:
            return
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_S)

    def close(self) -> None:
        """End the child and everything in its session's first process group."""
        if is_stopped(self.pid):  # it would not notice that the socket closes
            self.kill()
        self._connection.close()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def is_stopped(pid: int) -> bool:
    """True if a process is stopped, as by SIGSTOP; false if it has ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9; real-time signals have no names."""
    known = {member.value: member.name for member in signal.Signals}
    return known.get(number, "a real-time signal")


def inherited_connection() -> Connection:
    """On the child's side: return the connection whose descriptor is the first argument."""
    return Connection(socket.socket(fileno=int(sys.argv[1])))


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """On the child's side: get a signal when the process ``parent``, whose first thread made this one, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent had already exited
        os._exit(1)


@dataclass(frozen=True, slots=True)
class Interleaved:
    """How the process of a trial takes part in an interleaved run, see :mod:`sweeprof.run.interleave`."""

    address: str
    """The coordinator's socket."""
    id: str
    """Of the interleaved run."""
    partners: tuple[str, ...]
    """Ids of the other combinations."""
    processors: tuple[int, ...]
    """The only processors that the trial may use."""


@dataclass(frozen=True, slots=True)
class Request:
    """One trial, as it travels from the shard to the process that runs it."""

    blank: Json
    """The record without its outcome: ids, axes, config, command, environment."""
    records: str
    """The folder ``records/``."""
    log: str
    """The file for the output of the process."""
    timeout_s: float | None
    memory: int | None
    """Bytes the process may allocate above its start."""
    asked: float
    """``time.monotonic()`` when the shard asked for the process."""
    interleaved: Interleaved | None = None
    """None for a trial that runs alone."""
    family: int = 0
    """The shard's process id: its descendants belong to the sweep; 0: only this process does."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of this trial's process, beside those that its backend asks for."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How the process of a trial ended."""

    code: int
    """Exit code; negative: the signal that ended it."""
    timed_out: bool = False


class Isolation(Protocol):
    """Runs trials; a context that leaves no process behind."""

    def __enter__(self) -> Isolation: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, request: Request) -> ProcessExit:
        """Run the trial and wait for its end.

        Raises:
            WorkerError: no process for the trial could be started, or it did not answer.
        """
