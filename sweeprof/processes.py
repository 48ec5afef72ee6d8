"""Child processes that answer messages: lines of JSON over a socket, which closes when either side ends.

Therefore each process notices the end of the other.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

from sweeprof.errors import WorkerError
from sweeprof.results.files import tail_lines

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that made it ends."""
CLOSING_S = 10.0
"""How long a child may take to end after its socket has closed."""
UNWRITTEN = 120
"""Python's exit code of a process whose last output could not be written."""
THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "KMP_INIT_AT_FORK"),
)
"""Environment variables that joblib, and some of which Ray, sets for its workers."""


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

    def has_message(self) -> bool:
        """True if something was sent, or the other side is gone."""
        if b"\n" in self._unread:
            return True
        waiter = select.poll()
        waiter.register(self.socket, select.POLLIN | select.POLLHUP)
        return bool(waiter.poll(0))

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
    """``python -m MODULE DESCRIPTOR ARGUMENTS…`` in a separate session, so that Ctrl-C reaches only the driver."""

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

    def fileno(self) -> int:
        """Return the descriptor of the connection, to be waited for."""
        return self._connection.socket.fileno()

    def has_message(self) -> bool:
        """True if :meth:`receive` would not wait: something was sent, or the child is gone."""
        return self._connection.has_message()

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
            name = self._module.rpartition(".")[2].removesuffix("_process").replace("_", " ")
            return f"its {name} process was killed by {signal_name(-code)} (signal {-code})"
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
        """End the child and everything in its process group, such as what a module has started while it was imported."""
        if is_stopped(self.pid):  # it would not notice that the socket closes
            self.kill()
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_S)
        with suppress(ProcessLookupError):
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


def end_process(code: int = 0) -> NoReturn:
    """End this process as the end of its program would, but without freeing its objects, which takes MLflow's libraries a second.

    Threads are waited for, what was registered with ``atexit`` is called, and output is written, as :mod:`multiprocessing` does it.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):  # nobody reads it any longer, or it is closed
            continue
        except OSError as error:
            code = code or UNWRITTEN
            with suppress(OSError):
                os.write(2, f"error: the output could not be written: {error.strerror}\n".encode())
    os._exit(code)


def inherited_connection() -> Connection:
    """On the child's side: return the connection whose descriptor is the first argument."""
    return Connection(socket.socket(fileno=int(sys.argv[1])))


def die_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """On the child's side: get a signal when the process ``parent``, whose first thread made this one, ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent had already exited
        os._exit(1)


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for a fork server: without what a launcher may have set for threads, and with ``extra``.

    Threads are set by the backend in each worker; numpy's own pool is kept from existing before the fork.
    """
    inherited = {key: value for key, value in os.environ.items() if key not in THREADS}
    return {**inherited, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}
