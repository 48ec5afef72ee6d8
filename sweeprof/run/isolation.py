"""Isolation of trials: in a forked child (default), in a new interpreter, or none; and a pool of them for several threads."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Self

from sweeprof.errors import WorkerError
from sweeprof.plan.process_environment import environment, preload
from sweeprof.results.environment import usable_processors
from sweeprof.results.record import Json, PassName
from sweeprof.run.fork_server import ForkServer
from sweeprof.run.request import Isolation, ProcessExit, Request
from sweeprof.run.worker import run_trial

LOOK_S = 5.0
"""How often fork servers that import are looked at: one may have been stopped."""


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
        """Run the trial; the fork server is then closed, or kept under a name: its imports are not a part of the trial."""
        self._running = (
            server  # before the flag is read: a thread that leaves the context sets the flag, then reads this
        )
        try:
            if self._is_closed:
                raise WorkerError("the sweep is ending")
            if keep_as is not None:
                server.wait_until_ready()
                request = replace(request, asked=time.monotonic())
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


class StartedServers:
    """Fork servers that import in the background, until a trial needs them; safe to be used by several threads."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._lock = logs, threading.Lock()
        self._planned: dict[str, tuple[Json, PassName]] = {}
        self._waiting: dict[str, ForkServer] = {}

    def start(self, trials: Iterable[tuple[Json, PassName]]) -> None:
        """Start the fork server of each config and pass, as many at once as there are processors; the others follow."""
        with self._lock:
            for config, pass_name in trials:
                self._planned.setdefault(server_key(config, pass_name), (config, pass_name))
        self.importing()

    def new(self, config: Json, pass_name: PassName, more: Mapping[str, str] | None = None) -> ForkServer:
        """Return a further fork server, with environment variables beside those of the backend."""
        return self._made(config, pass_name, more or {}, ())

    def _made(
        self, config: Json, pass_name: PassName, more: Mapping[str, str], further: Sequence[Sequence[str]]
    ) -> ForkServer:
        log = self._logs / f"fork-server-{config['backend']['framework']}.log"
        return ForkServer(preload(config, pass_name), {**environment(config, pass_name), **more}, log, further)

    def take(self, key: str) -> ForkServer | None:
        """Return a started fork server for the caller to keep; None if there is none left."""
        with self._lock:
            self._planned.pop(key, None)
            return self._waiting.pop(key, None)

    def is_ready(self, key: str) -> bool:
        """False while the fork server with this key is planned or imports."""
        with self._lock:
            server = self._waiting.get(key)
            return key not in self._planned and (server is None or server.is_ready)

    def importing(self) -> list[ForkServer]:
        """Return the fork servers that import, after starting those that there are processors for now."""
        with self._lock:
            importing = [server for server in self._waiting.values() if not server.is_ready]
            while self._planned and _running(importing) < usable_processors():
                importing += self._start_next()
            return importing

    def _start_next(self) -> list[ForkServer]:
        """Start the fork server that is planned next; those that import the same modules and more are forked from it."""
        first = next(iter(self._planned))
        key = next((other for other in self._planned if self._more_modules(other, first)), first)
        further = {other: more for other in self._planned if (more := self._more_modules(key, other))}
        server = self._made(*self._planned.pop(key), {}, list(further.values()))
        started = dict(zip((key, *further), (server, *server.further), strict=True))
        for other in further:
            del self._planned[other]
        self._waiting |= started
        return list(started.values())

    def _more_modules(self, key: str, other: str) -> list[str]:
        """Return what the other fork server imports beside what the first does; none if it cannot be forked from that one."""
        few, many = preload(*self._planned[key]), preload(*self._planned[other])
        if environment(*self._planned[key]) != environment(*self._planned[other]) or not set(few) < set(many):
            return []
        return [module for module in many if module not in few]

    def close(self) -> None:
        """End every fork server that no trial has taken."""
        with self._lock:
            self._planned.clear()
            while self._waiting:
                self._waiting.popitem()[1].close()


def _running(importing: Sequence[ForkServer]) -> int:
    """Return how many of the fork servers do not wait for another one."""
    return sum(not server.waits for server in importing)


def server_key(config: Json, pass_name: PassName, more: Mapping[str, str] | None = None) -> str:
    """Return the text that is equal for trials that can be forked from one fork server."""
    variables = {**environment(config, pass_name), **(more or {})}
    return json.dumps([preload(config, pass_name), variables], sort_keys=True)


class Fork(_Served):
    """A child per trial, forked from a fork server per framework.

    Args:
        logs: the folder for the output of fork servers.
        started: fork servers that were started before.
    """

    def __init__(self, logs: Path, started: StartedServers | None = None) -> None:
        super().__init__(logs)
        self._started = started or StartedServers(logs)

    def run(self, request: Request) -> ProcessExit:
        config, pass_name = request.blank["config"], request.blank["pass"]
        key = server_key(config, pass_name, request.environment)
        server = self._idle.pop(key, None) or self._started.take(key)
        if server is not None and not server.alive:  # killed while it was idle, not by a trial
            server.close()
            server = None
        if server is None:
            server = self._started.new(config, pass_name, request.environment)
        return self._run_in(server, request, keep_as=key)


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


def isolation(name: str, logs: Path, started: StartedServers | None = None) -> Isolation:
    """Return the isolation that the config key ``isolation`` names."""
    match name:
        case "spawn":
            return Spawn(logs)
        case "inline":
            return Inline()
        case _:
            return Fork(logs, started)


class WorkerPool:
    """Slots in which one trial at a time runs; a context that leaves no process behind, safe to be used by several threads.

    Args:
        kind: the value of the config key ``isolation``.
        logs: the folder for the output of fork servers.
    """

    def __init__(self, kind: str, logs: Path) -> None:
        self._kind, self._logs = kind, logs
        self._started = StartedServers(logs)
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

    def start(self, trials: Iterable[tuple[Json, PassName]]) -> None:
        """Start in the background what trials with these configs and passes will be forked from."""
        if self._kind not in ("spawn", "inline"):
            self._started.start(trials)

    @property
    def is_importing(self) -> bool:
        """True while something that was started still imports."""
        return bool(self._started.importing())

    @property
    def has_idle_processor(self) -> bool:
        """True if fewer fork servers import than there are processors."""
        return _running(self._started.importing()) < usable_processors()

    def wait_for_import(self) -> None:
        """Wait until one more of the imports has ended, or for a few seconds."""
        wait([server.fileno() for server in self._started.importing()], LOOK_S)

    def is_ready(self, config: Json, pass_name: PassName) -> bool:
        """True if a trial with this config and pass would not wait for an import that was started."""
        return self._started.is_ready(server_key(config, pass_name))

    def close(self) -> None:
        """End every process, also those of trials that run; no further slot can be taken."""
        with self._lock:
            self._is_closed = True
            self._all.close()
            self._started.close()

    @contextmanager
    def slot(self) -> Iterator[Isolation]:
        """Take a free slot: the one that was used last, as its fork servers are warm.

        Raises:
            WorkerError: the pool is closed.
        """
        with self._lock:
            if self._is_closed:
                raise WorkerError("the sweep is ending")
            slot = (
                self._free.pop()
                if self._free
                else self._all.enter_context(isolation(self._kind, self._logs, self._started))
            )
        try:
            yield slot
        finally:
            with self._lock:
                self._free.append(slot)
