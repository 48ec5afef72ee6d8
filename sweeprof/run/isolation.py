"""Isolation of trials: in a forked child (default), in a new interpreter, or none; and a pool of them for several threads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from sweeprof.errors import WorkerError
from sweeprof.plan.process_environment import environment, preload
from sweeprof.run.fork_server import ForkServer
from sweeprof.run.request import Isolation, ProcessExit, Request
from sweeprof.run.worker import run_trial


class _Served:
    """Runs one trial at a time, which another thread may end by leaving the context."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._idle: dict[str, ForkServer] = {}
        self._running: ForkServer | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        for server in (*self._idle.values(), self._running):
            if server is not None:
                server.close()

    def _run_in(self, server: ForkServer, request: Request, keep_as: str | None = None) -> ProcessExit:
        """Run the trial; the fork server is then closed, or kept under a name."""
        self._running = (
            server  # before the flag is read: a thread that leaves the context sets the flag, then reads this
        )
        try:
            if self._is_closed:
                raise WorkerError("the sweep is ending")
            end = server.run(request)
        except BaseException:
            server.close()
            raise
        else:
            if keep_as is None:
                server.close()
            else:
                self._idle[keep_as] = server
            return end
        finally:
            self._running = None


class Fork(_Served):
    """A child per trial, forked from a fork server per framework."""

    def run(self, request: Request) -> ProcessExit:
        config = request.blank["config"]
        modules = preload(config, request.blank["pass"])
        variables = {**environment(config, request.blank["pass"]), **request.environment}
        key = json.dumps([modules, variables], sort_keys=True)
        server = self._idle.pop(key, None)
        if server is not None and not server.alive:  # killed while it was idle, not by a trial
            server.close()
            server = None
        if server is None:
            log = self._logs / f"fork-server-{config['backend']['framework']}.log"
            server = ForkServer(modules, variables, log)
        # The import is not a part of this trial.
        return self._run_in(server, replace(request, asked=time.monotonic()), keep_as=key)


class Spawn(_Served):
    """A new interpreter per trial, which has imported nothing: slower by the framework's import, but it shares nothing."""

    def run(self, request: Request) -> ProcessExit:
        variables = {**environment(request.blank["config"], request.blank["pass"]), **request.environment}
        return self._run_in(ForkServer([], variables, self._logs / "fork-server-spawn.log"), request)


class Inline:
    """No isolation: the trial runs in this process."""

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        """No process is left behind."""

    def run(self, request: Request) -> ProcessExit:
        run_trial(replace(request, memory=None))  # a limit would stay with this process
        return ProcessExit(0)


def isolation(name: str, logs: Path) -> Isolation:
    """Return the isolation that the config key ``isolation`` names."""
    match name:
        case "spawn":
            return Spawn(logs)
        case "inline":
            return Inline()
        case _:
            return Fork(logs)


class WorkerPool:
    """Slots in which one trial at a time runs; a context that leaves no process behind, safe to be used by several threads.

    Args:
        kind: the value of the config key ``isolation``.
        logs: the folder for the output of fork servers.
    """

    def __init__(self, kind: str, logs: Path) -> None:
        self._kind, self._logs = kind, logs
        self._free: list[Isolation] = []
        self._all = ExitStack()
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process, also those of trials that run; no further slot can be taken."""
        with self._lock:
            self._is_closed = True
            self._all.close()

    @contextmanager
    def slot(self) -> Iterator[Isolation]:
        """Take a free slot: the one that was used last, as its fork servers are warm.

        Raises:
            WorkerError: the pool is closed.
        """
        with self._lock:
            if self._is_closed:
                raise WorkerError("the sweep is ending")
            slot = self._free.pop() if self._free else self._all.enter_context(isolation(self._kind, self._logs))
        try:
            yield slot
        finally:
            with self._lock:
                self._free.append(slot)
