"""Isolation of trials: each in a child that is forked from a process with its imports (default), or in this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType

from sweeprof.plan.process_environment import environment, preload
from sweeprof.results.environment import usable_processors
from sweeprof.results.record import Json, PassName
from sweeprof.run.fork_server import ForkServer
from sweeprof.run.request import ProcessExit, Request
from sweeprof.run.worker import run_trial

LOOK_S = 5.0
"""How often fork servers that import are looked at: one may have been stopped."""


class WorkerPool:
    """Runs trials, each in a child of the fork server with its imports; a context that leaves no process behind.

    Interleaved trials call it from several threads, and get a fork server each.

    Args:
        kind: the value of the config key ``isolation``; ``inline``: trials run in this process.
        logs: the folder for the output of fork servers.
    """

    def __init__(self, kind: str, logs: Path) -> None:
        self._is_inline, self._logs = kind == "inline", logs
        self._lock = threading.Lock()
        self._planned: dict[str, tuple[Json, PassName]] = {}
        """Config and pass of fork servers that are to be started, by their key."""
        self._free: dict[str, list[ForkServer]] = {}
        """Fork servers that run no trial, by their key; some still import."""

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for servers in self._free.values():
            for server in servers:
                server.close()

    def start(self, trials: Iterable[tuple[Json, PassName]]) -> None:
        """Start the fork server of each config and pass, as many at once as there are processors; the others follow."""
        if self._is_inline:
            return
        for config, pass_name in trials:
            self._planned.setdefault(_key(config, pass_name, {}), (config, pass_name))
        self._importing()

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
        wait([server.fileno() for server in self._importing()], LOOK_S)

    def is_ready(self, config: Json, pass_name: PassName) -> bool:
        """True if a trial with this config and pass would not wait for an import that was started."""
        key = _key(config, pass_name, {})
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
        return ForkServer(preload(config, pass_name), {**environment(config, pass_name), **more}, log)

    def _importing(self) -> list[ForkServer]:
        """Return the fork servers that import, after starting those that there are processors for now."""
        importing = [server for servers in self._free.values() for server in servers if not server.is_ready]
        while self._planned and len(importing) < usable_processors():
            key = next(iter(self._planned))
            server = self._started(*self._planned.pop(key), {})
            self._free.setdefault(key, []).append(server)
            importing.append(server)
        return importing


def _key(config: Json, pass_name: PassName, more: Mapping[str, str]) -> str:
    """Return the text that is equal for trials that can be forked from one fork server."""
    return json.dumps([preload(config, pass_name), {**environment(config, pass_name), **more}], sort_keys=True)
