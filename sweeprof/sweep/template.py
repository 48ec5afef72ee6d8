"""A process that has imported a framework, has run nothing, and forks one child per trial.

Importing TensorFlow takes seconds, forking a process that has done so takes milliseconds. Forking is safe as long as the
parent has only imported: no thread pool and no device context exists yet (measured in PEERS.md).

    shard ──request, one line of JSON──▶ template ──fork──▶ worker ──▶ record
          ◀──ending, one line of JSON───          ◀──exit──

The template ends its child when the time limit passes, and when the shard goes away: whatever ends the shard closes the socket.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from sweeprof.errors import WorkerError
from sweeprof.profiling import residency
from sweeprof.results.files import is_full
from sweeprof.sweep.child import Child, answer, die_with, inherited_socket, messages
from sweeprof.sweep.hold import working
from sweeprof.sweep.worker import DISK_FULL, Request, redirect_output, run_trial
from sweeprof.tracebacks import described, formatted

PRELOAD_S = 600.0
"""An import that takes longer hangs."""
THREADS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "KMP_INIT_AT_FORK"),
)
"""Environment variables that joblib, and some of which Ray, sets for its workers."""
PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes that lose their parent become children of this one."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the process of a trial ended."""

    code: int
    """Exit code; negative: the signal that ended it."""
    timed_out: bool = False


class Template:
    """The shard's side.

    Raises:
        WorkerError: the template could not import what it should, or was killed.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._child = Child("sweeprof.sweep.template", preload, child_environment(environment), log)
        try:
            self.preload_s = float(self._child.receive(PRELOAD_S)["preload_s"])
        except BaseException:
            self._child.close()
            raise
        self.pid = self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._child.alive

    def run(self, request: Request) -> Ending:
        """Run the trial in a fresh child and wait for its end, without polling."""
        worker: int = self._child.ask(asdict(request))["worker"]
        try:
            return Ending(**self._child.receive())
        except WorkerError:
            with suppress(ProcessLookupError):  # what the trial had started, which its template can end no more
                os.killpg(worker, signal.SIGKILL)
            raise

    def close(self) -> None:
        """End the template and whatever it runs."""
        self._child.close()


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a template: without what a launcher may have set for threads, and with ``extra``.

    Threads are set by the backend in each worker; numpy's own pool is kept from existing before the fork.
    """
    inherited = {key: value for key, value in os.environ.items() if key not in THREADS}
    return {**inherited, "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}


def serve(connection: socket.socket, preload: Sequence[str]) -> None:
    """The template's side: import, then fork a child for every request until the socket closes."""
    began = time.monotonic()
    for module in preload:
        _imported(module)
    residency.remember()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    own = {process.pid for process in psutil.Process().children()}
    gc.collect()
    gc.freeze()  # what is never collected is never written to, so children go on sharing its memory
    answer(connection, {"preload_s": time.monotonic() - began})
    template = os.getpid()
    for message in messages(connection):
        request = Request(**message)
        child = os.fork()
        if child == 0:
            _be_worker(request, connection, template)
        with suppress(OSError):  # it may have done so itself, or have ended
            os.setpgid(child, child)
        with suppress(OSError):  # the shard is gone, as _wait will see
            answer(connection, {"worker": child})
        ending = _wait(child, request.timeout_s, connection)
        _end_strays(own)
        if ending is None:
            return
        answer(connection, asdict(ending))


def _imported(module: str) -> None:
    """Import a module; of an error the last line printed, which the shard reports, says where it was raised."""
    try:
        importlib.import_module(module)
    except Exception as error:  # of a user's dataset, which may raise anything
        print(formatted(error), f"cannot import {module}: {described(error)}", sep="\n", file=sys.stderr, flush=True)
        sys.exit(1)


def _be_worker(request: Request, connection: socket.socket, template: int) -> None:
    code = 1
    atexit._clear()  # what the template's imports registered is not this process's to do
    try:
        os.setpgid(0, 0)
        die_with(template)
        os.close(connection.fileno())  # or the shard would not notice the template's death
        work = working(Path(request.records).parent)
        if work is not None:  # else the sweep is being continued without us
            redirect_output(Path(request.log))
            run_trial(request)
            code = 0
    except OSError as error:
        code = DISK_FULL if is_full(error) else 1
        print(f"worker: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    except BaseException as error:
        print(f"worker: {described(error)}", file=sys.stderr, flush=True)
    finally:
        with suppress(BaseException):
            atexit._run_exitfuncs()  # what the trial did register: AutoGraph's files, for one, are removed so
        os._exit(code)  # never into the template's own clean-up


def _wait(child: int, timeout_s: float | None, connection: socket.socket) -> Ending | None:
    """How the child ended; None when the shard went away, and the child was ended for it."""
    handle = os.pidfd_open(child)
    try:
        waiter = select.poll()
        waiter.register(handle, select.POLLIN)
        waiter.register(connection, select.POLLIN | select.POLLHUP)
        ready = {descriptor for descriptor, _ in waiter.poll(None if timeout_s is None else timeout_s * 1000)}
    finally:
        os.close(handle)
    ended = handle in ready
    _kill_group(child)  # also what the trial itself may have started
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended and ready:
        return None
    return Ending(code, timed_out=not ended)


def _end_strays(own: Set[int]) -> None:
    """End what a trial started and moved out of its group; ``own`` are the template's children, which imports started."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        strays = [process for process in psutil.Process().children(recursive=True) if process.pid not in own]
        if not strays:
            return
        for process in strays:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.001)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(leader, signal.SIGKILL)  # not yet the leader of its own group


if __name__ == "__main__":
    serve(inherited_socket(), sys.argv[2:])
