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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweeprof.errors import WorkerError
from sweeprof.results.files import tail_lines

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that made it ends."""
CLOSING_S = 10.0
"""How long a child may take to end after its socket has closed."""


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
            WorkerError: the child ended, or did not answer in time.
        """
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise WorkerError(f"{self._module} is gone: {error}") from error
        return self.receive(timeout_s)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message of the child; raises like :meth:`ask`."""
        while b"\n" not in self._unread:
            try:
                self._socket.settimeout(timeout_s)
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                raise WorkerError(f"{self._module} did not answer within {timeout_s:g} s (see {self._log})") from None
            except OSError:
                data = b""
            if not data:
                raise WorkerError(self._obituary())
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _obituary(self) -> str:
        try:
            code = self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            return f"{self._module} closed its socket (see {self._log})"
        if code < 0:
            return f"its {self._module.rpartition('.')[2]} process was killed by {signal_name(-code)} (signal {-code})"
        return f"{self._module} ended with code {code}: {tail_lines(self._log, 1) or 'no output'} (see {self._log})"

    def close(self) -> None:
        """End the child and everything in its session's first process group."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # also wakes a thread that waits for an answer
        self._socket.close()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


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
