"""The fork server, which has imported a framework, has run nothing, and forks one child per trial; and the pool of fork servers.

Importing TensorFlow takes seconds, forking a process that has done so takes milliseconds. Forking is safe as long as the
parent has only imported: no thread pool and no device context exists yet. (multiprocessing's ``forkserver`` does the same; it
offers no time limit, no process group per child, and no end with its parent.)

    shard ──request, one line of JSON──▶ fork server ──fork──▶ worker ──▶ record
          ◀──exit, one line of JSON─────             ◀──exit──

The fork server ends its child when the time limit passes, and when the shard goes away: whatever ends the shard closes the socket.
A fork server that does not answer, as one that was stopped, is killed by the shard, which starts another for the next trial.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil

from sweeprof.errors import WorkerError, described, formatted
from sweeprof.measuring import timing
from sweeprof.plan.plan import environment, preload
from sweeprof.processes import (
    PR_SET_CHILD_SUBREAPER,
    Child,
    Connection,
    NoAnswer,
    ProcessLost,
    child_environment,
    die_with,
    holds_in_child,
    is_stopped,
    kill_tree,
)
from sweeprof.results.environment import look, usable_processors
from sweeprof.results.files import validated
from sweeprof.results.record import Json, PassName, Record
from sweeprof.run.interleave import ProcessExit, Request
from sweeprof.run.locks import work_lock
from sweeprof.run.trial_limits import wait_for_trial
from sweeprof.run.worker import redirect_output, run_trial
from sweeprof.targets import instantiate

PRELOAD_S = 600.0
"""An import that takes longer is considered to hang."""
GRACE_S = 30.0
"""How long a fork server may take to fork a child, and to answer when a trial's time limit has passed."""
STOPPED_S = 4.0
"""How often it is checked whether a fork server or its trial was stopped; one that is stopped twice in a row is replaced."""
EXITING_S = 10.0
"""How long what a trial has registered for the end of its process may take, after its record is written."""
F_SETSIG = 10
"""fcntl(2): the signal that is sent when a descriptor becomes ready, instead of SIGIO; Python has no name for it."""


class ForkServer:
    """A fork server, used by its shard. It imports in the background, and its first trial waits for that.

    Args:
        preload: the modules that it imports.
        environment: environment variables beside those of this process.
        log: the file for its output.

    Raises:
        WorkerError: its process could not be started.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._process = Child("sweeprof.run.fork_server:serve", preload, child_environment(environment), log)
        self._deadline = time.monotonic() + PRELOAD_S
        self._preload_s: float | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when it is ready."""
        return self._process.fileno()

    @property
    def is_ready(self) -> bool:
        """True if nobody should wait for it: it has imported everything, has failed, was stopped, or takes too long."""
        if self._preload_s is not None or self._process.has_message():
            return True
        return time.monotonic() >= self._deadline or is_stopped(self.pid)

    def wait_until_ready(self) -> float:
        """Return how many seconds its imports took, once it has ended them.

        Raises:
            NoAnswer: it did not answer in time; it has been killed.
            WorkerError: it could not import what it should, or was killed.
        """
        if self._preload_s is None:
            try:
                ready = self._received(max(0.0, self._deadline - time.monotonic()), [self.pid])
            except BaseException as error:
                if isinstance(error, NoAnswer | ProcessLost):
                    self._process.kill()
                self._process.close()
                raise
            self._preload_s = float(ready["preload_s"])
        return self._preload_s

    @property
    def alive(self) -> bool:
        """True if its process runs and was not stopped."""
        return self._process.alive and not is_stopped(self.pid)

    def run(self, request: Request) -> ProcessExit:
        """Run the trial in a fresh child and wait for its end; raises like :meth:`wait_until_ready`, which comes first."""
        self.wait_until_ready()
        # The fork server ends a trial at its limit. One that says nothing for GRACE_S more does not work any longer.
        limit_s = None if request.timeout_s is None else request.timeout_s + GRACE_S
        try:
            self._process.send(asdict(request), GRACE_S)
            worker: int = self._received(GRACE_S, [self.pid])["worker"]
            try:
                return ProcessExit(**self._received(limit_s, [self.pid, worker]))
            except WorkerError:
                # What the trial had started, which its fork server can no longer end.
                with suppress(ProcessLookupError):
                    os.killpg(worker, signal.SIGKILL)
                raise
        except (NoAnswer, ProcessLost):
            self._process.kill()
            raise

    def _received(self, limit_s: float | None, watched: Sequence[int]) -> dict[str, Any]:
        """Return the next message of the fork server.

        Raises:
            NoAnswer: nothing came within ``limit_s``, or the process of the trial, one of ``watched``, stays stopped.
            ProcessLost: the fork server was killed, or stays stopped.
        """
        end = math.inf if limit_s is None else time.monotonic() + limit_s
        stopped = set[int]()
        while True:
            left_s = max(0.0, end - time.monotonic())
            try:
                return self._process.receive(min(left_s, STOPPED_S))
            except NoAnswer:
                if time.monotonic() >= end:
                    raise NoAnswer(f"the fork server did not answer within {limit_s:.4g} s; it was replaced") from None
            # Twice in a row: where all processes were stopped and continue, this one may be the first that does.
            before, stopped = stopped, set(filter(is_stopped, watched))
            ending = f"was stopped (SIGSTOP) for more than {STOPPED_S:g} s; it was replaced"
            if self.pid in before & stopped:
                raise ProcessLost(f"the fork server {ending}")
            if before & stopped:
                raise NoAnswer(f"the process of the trial {ending}")

    def close(self) -> None:
        """End the fork server and whatever it runs."""
        self._process.close()


def serve(connection: Connection, *preload: str) -> None:
    """Run as the fork server: import, then fork a child for every request until the socket closes; ends this process."""
    began = time.monotonic()
    gc.disable()  # imports set off full collections, which take a fifth of their time and free little
    # An import may take minutes, in which nothing reads the socket.
    _send_when_closed(connection, signal.SIGKILL)
    for target in preload:
        _import(target)
        if _uses_gpu():
            print(f"{target} uses the GPU when it is imported: each trial imports it, and not this process", flush=True)
            os.set_inheritable(connection.socket.fileno(), True)
            os.execv(sys.executable, [argument for argument in sys.orig_argv if argument != target])
    # What every trial does first is done once: what Python, Hydra and sweeprof then keep in memory, the children share.
    instantiate({"_target_": "builtins.dict"})
    Record.from_dict(Record("sweep", "combination", "timing", "ok").to_dict())
    look()
    timing.remember()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    own = _children()
    # What is never collected is never written to, so children go on sharing its memory. Nothing is collected before either:
    # children would make their objects where others were freed, and copy each of these pages.
    gc.freeze()
    # From now on messages arrive, too. A fork server that was stopped continues when its shard ends, and then ends.
    _send_when_closed(connection, signal.SIGCONT)
    connection.send({"preload_s": time.monotonic() - began})
    server = os.getpid()
    for message in connection.messages():
        request = validated(Request, message)
        child = os.fork()
        if child == 0:
            _run_worker(request, connection, server)
        with suppress(OSError):  # it may have done so itself, or have ended
            os.setpgid(child, child)
        with suppress(OSError):  # the shard is gone, as wait_for_trial will see
            connection.send({"worker": child})
        end = wait_for_trial(child, request, connection)
        _end_strays(own)
        if end is None:
            break
        connection.send(asdict(end))
    # The shard waits for its end, and what frameworks free when an interpreter ends takes half a second.
    os._exit(0)


def _import(target: str) -> None:
    """Import a module, and call its function if the target is ``module:function``.

    Of an error the last line printed, which the shard reports, says where it was raised.
    """
    module, _, function = target.partition(":")
    try:
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    except Exception as error:  # of a user's dataset, which may raise any exception
        print(formatted(error), f"cannot import {module}: {described(error)}", sep="\n", file=sys.stderr, flush=True)
        sys.exit(1)


def _uses_gpu() -> bool:
    """True if an import has set CUDA up in this process: in a child that is forked afterwards it does not work.

    True, too, of a child that raises, crashes or hangs when it is asked.
    """
    torch: Any = sys.modules.get("torch")
    private: Any = sys.modules.get("sweeprof.backends.torch.private")
    if private is None or not torch.backends.cuda.is_built():
        return False
    return not holds_in_child(lambda: not private.is_in_bad_fork() or torch.cuda.device_count() == 0, GRACE_S)


def _send_when_closed(connection: Connection, number: signal.Signals) -> None:
    """Have the system send this process a signal when the other side of the connection closes, or sends something."""
    descriptor = connection.socket.fileno()
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, F_SETSIG, number)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    waiter = select.poll()
    waiter.register(descriptor, 0)
    if waiter.poll(0):  # it had closed before
        os.kill(os.getpid(), number)


def _run_worker(request: Request, connection: Connection, server: int) -> None:
    """Run the trial in the forked child, and end it."""
    code = 1
    gc.enable()
    atexit._clear()  # exit functions that the fork server's imports registered are left to the fork server
    try:
        os.setpgid(0, 0)
        if request.blank["config"]["backend"].get("framework") == "command":
            signal.signal(signal.SIGTERM, _end_with_programs)
            die_with(server, signal.SIGTERM)
        else:
            die_with(server)
        os.close(connection.socket.fileno())  # or the shard would not notice the fork server's death
        work = work_lock(Path(request.records).parent)
        if work is not None:  # else another driver has resumed the sweep
            redirect_output(Path(request.log))
            run_trial(request)
            code = 0
    except BaseException as error:
        print(f"worker: {described(error)}", file=sys.stderr, flush=True)
    finally:
        with suppress(BaseException):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
            signal.setitimer(signal.ITIMER_REAL, EXITING_S)
            atexit._run_exitfuncs()  # what the trial registered, as to remove the files of AutoGraph
        os._exit(code)  # without the fork server's own clean-up


def _end_with_programs(*_: object) -> None:
    """End the programs that this process has started, then this process; SIGKILL would leave the programs running."""
    for process in psutil.Process().children():
        kill_tree(process.pid)
    os._exit(1)


def _end_strays(own: Set[int]) -> None:
    """End what a trial started and moved out of its group; ``own`` are the fork server's children, which imports started."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        strays = _children() - own
        if not strays:
            return
        for pid in strays:  # whose children then become children of this process
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _children() -> set[int]:
    """Return the process ids of this process's children."""
    listed = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    if listed.exists():  # it takes a hundredth of the time; not every kernel has it
        return set(map(int, listed.read_text(encoding="ascii").split()))
    return {process.pid for process in psutil.Process().children()}


# ---- Isolation of trials: each in a child that is forked from a process with its imports (default), or in this process ----


LOOK_S = 5.0
"""How often fork servers that import are looked at: one may have been stopped."""


ForkedFrom = tuple[Json, PassName, Mapping[str, str]]
"""What decides from which fork server a trial is forked: its config, its pass, and environment variables of its own."""


class WorkerPool:
    """Runs trials, each in a child of the fork server with its imports; a context that leaves no process behind.

    Interleaved trials call it from several threads, and get a fork server each.

    Args:
        kind: the value of the config key ``isolation``; ``inline``: trials run in this process.
        logs: the folder for the output of fork servers.
        variables: environment variables of all fork servers.
    """

    def __init__(self, kind: str, logs: Path, variables: Mapping[str, str] | None = None) -> None:
        self._is_inline, self._logs, self._variables = kind == "inline", logs, variables or {}
        self._lock = threading.Lock()
        self._planned: dict[str, ForkedFrom] = {}
        """What fork servers that are to be started are for, by their key."""
        self._free: dict[str, list[ForkServer]] = {}
        """Fork servers that run no trial, by their key; some still import."""

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for servers in self._free.values():
            for server in servers:
                server.close()

    def start(self, trials: Iterable[ForkedFrom]) -> None:
        """Start the fork server of each of these trials, as many at once as there are processors; the others follow."""
        if self._is_inline:
            return
        for trial in trials:
            self._planned.setdefault(_key(*trial), trial)
        self._importing()

    def _importing(self) -> list[ForkServer]:
        """Return the fork servers that import, after starting those that there are processors for now."""
        importing = [server for servers in self._free.values() for server in servers if not server.is_ready]
        while self._planned and len(importing) < usable_processors():
            key = next(iter(self._planned))
            server = self._started(*self._planned.pop(key))
            self._free.setdefault(key, []).append(server)
            importing.append(server)
        return importing

    @property
    def is_importing(self) -> bool:
        """True while something that was started still imports."""
        return bool(self._importing())

    @property
    def has_idle_processor(self) -> bool:
        """True if fewer fork servers import than there are processors."""
        return len(self._importing()) < usable_processors()

    def wait_for_import(self) -> None:
        """Wait until one more of the imports has ended, or for a few seconds."""
        wait(list(map(ForkServer.fileno, self._importing())), LOOK_S)

    def is_ready(self, trial: ForkedFrom) -> bool:
        """True if the trial would not wait for an import that was started."""
        key = _key(*trial)
        return key not in self._planned and all(server.is_ready for server in self._free.get(key, ()))

    def run(self, request: Request) -> ProcessExit:
        """Run the trial and wait for its end.

        Raises:
            WorkerError: no process for the trial could be started, or it did not answer.
        """
        if self._is_inline:
            run_trial(replace(request, memory=None))  # a limit would stay with this process
            return ProcessExit(0)
        config, pass_name = request.blank["config"], request.blank["pass"]
        key = _key(config, pass_name, request.environment)
        server = self._take(key) or self._started(config, pass_name, request.environment)
        try:
            server.wait_until_ready()  # its imports are not a part of the trial
            end = server.run(replace(request, asked=time.monotonic()))
        except BaseException:
            server.close()
            raise
        with self._lock:
            self._free.setdefault(key, []).append(server)
        return end

    def _take(self, key: str) -> ForkServer | None:
        """Return the free fork server that was used last; None if all were killed while they were idle, or there is none."""
        with self._lock:
            self._planned.pop(key, None)
            servers = self._free.get(key, [])
            while servers:
                server = servers.pop()
                if server.alive:
                    return server
                server.close()
        return None

    def _started(self, config: Json, pass_name: PassName, more: Mapping[str, str]) -> ForkServer:
        """Return a new fork server, with environment variables beside those of the backend."""
        log = self._logs / f"fork-server-{config['backend']['framework']}.log"
        variables = {**self._variables, **environment(config, pass_name), **more}
        return ForkServer(preload(config, pass_name), variables, log)


def _key(config: Json, pass_name: PassName, more: Mapping[str, str]) -> str:
    """Return the text that is equal for trials that can be forked from one fork server."""
    return json.dumps([preload(config, pass_name), {**environment(config, pass_name), **more}], sort_keys=True)
