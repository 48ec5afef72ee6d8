"""A Python module running as a child process, spoken to in lines of JSON over a socket.

The socket closes with whatever ends either side, so neither can outlive or wait for the other unknowingly.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from sweeprof.errors import WorkerError
from sweeprof.results.files import tail_lines

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that made it ends."""
CLOSING_S = 10.0
"""How long a child may take to end after its socket has closed."""


class NoAnswer(WorkerError):
    """A child process did not answer in time."""


class Child:
    """``python -m MODULE DESCRIPTOR ARGUMENTS…`` in a session of its own, so that Ctrl-C reaches only the head."""

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
        self._socket, self._unread, self._module, self._log = ours, b"", module, log

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def ask(self, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """Send a message and wait for its answer.

        Raises:
            NoAnswer: the child did not answer in time.
            WorkerError: the child ended.
        """
        self.send(message, timeout_s)
        return self.receive(timeout_s)

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Send a message; raises like :meth:`ask`."""
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except TimeoutError:
            raise self._no_answer(timeout_s) from None
        except OSError as error:
            raise WorkerError(f"{self._module} is gone: {error}") from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message of the child, which must be complete within ``timeout_s``; raises like :meth:`ask`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            try:
                self._socket.settimeout(None if deadline is None else max(0.0, deadline - time.monotonic()))
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                continue  # look once more without waiting: an answer that arrived while this process was stopped is not late
            except BlockingIOError:
                raise self._no_answer(timeout_s) from None
            except OSError:
                data = b""
            if not data:
                raise WorkerError(self._obituary())
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _no_answer(self, timeout_s: float | None) -> NoAnswer:
        return NoAnswer(f"{self._module} did not answer within {timeout_s:g} s (see {self._log})")

    def _obituary(self) -> str:
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
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits for an answer
        self._socket.close()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP; false for one that has ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals have no names."""
    known = {member.value: member.name for member in signal.Signals}
    return known.get(number, "a real-time signal")


def messages(connection: socket.socket) -> Any:
    """On the child's side: every message until the socket closes."""
    with connection.makefile("rb") as stream:
        for line in stream:
            yield json.loads(line)


def answer(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """On the child's side: send a message."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def die_with(parent: int) -> None:
    """On the child's side: be killed when the process ``parent``, whose first thread made this one, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


def inherited_socket() -> socket.socket:
    """On the child's side: the socket whose descriptor is the first argument."""
    return socket.socket(fileno=int(sys.argv[1]))
