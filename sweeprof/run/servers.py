"""The server of a program (``backend.server``): a supervising process starts it, watches it, and ends it with all its descendants.

    shard ──settings──▶ supervisor ──fork──▶ server ◀──requests── program ◀──fork── worker
          ◀──ready─────

A shard has one server at a time, because a second one would disturb the times. It runs until a trial needs another one, or none.
The supervisor ends it when its socket closes, whatever ended the shard; the system ends it when the supervisor is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from http.client import HTTPException
from pathlib import Path

import psutil

from sweeprof.backends.command import free_port, last_lines, server_ending, with_host_values, words_of
from sweeprof.errors import CommandError, WorkerError
from sweeprof.paths import user_path
from sweeprof.processes import (
    PR_SET_CHILD_SUBREAPER,
    Child,
    Connection,
    child_environment,
    die_with,
    users_environment,
)
from sweeprof.results.files import validated
from sweeprof.results.observations import RunningServer
from sweeprof.results.record import Json
from sweeprof.run.trial_limits import LOG_S, excess_reason, shorten_log, used_bytes

START_S = 300.0
"""How long a server may take until it is ready, unless ``backend.server.timeout_s`` says otherwise."""
HEALTHY_S = 10.0
"""How long a server that was ready may take to be ready again, before another trial."""
ANSWER_S = 3.0
"""How long it may take to answer once."""
LOOK_S = 0.02
"""How often it is looked at while it starts and ends."""
ENDING_S = 5.0
"""How long a server may take to end by SIGTERM, before it is killed."""
MARK = "SWEEPROF_SERVER"
"""Environment variable of a server and what it starts: the file of its log."""
STRAYS_S = 0.5
"""How long its descendants may take to end after itself."""


class Servers:
    """The server of a shard.

    Args:
        log: the file for the output of the server that runs; of an earlier one it keeps nothing.
        memory: bytes that it may use (``limits.memory``) before and between trials; None: any number.
    """

    def __init__(self, log: Path, memory: int | None) -> None:
        self.log = log
        self.running: RunningServer | None = None
        self._memory = memory
        self._supervisor: Child | None = None
        self._settings: Json | None = None
        self._key = ""
        self._longest_start_s = 0.0
        self._failures: dict[str, CommandError] = {}
        """Servers that did not become ready, by key: the same would take as long for each further trial."""

    def expected_start_s(self, settings: Json | None) -> float:
        """Return how long a trial will wait for the server with these settings: as long as the longest start so far."""
        if settings is None or (self.running is not None and settings == self._settings):
            return 0.0
        return self._longest_start_s

    def switch_to(self, settings: Json | None, environment: Mapping[str, str]) -> None:
        """Start the server with these settings, unless it runs, and end another one before; None: no server.

        Raises:
            CommandError: it did not become ready, now or for an earlier trial.
        """
        key = json.dumps([settings, environment], sort_keys=True)
        if key == self._key and self._supervisor is not None and "reason" not in self._ask(settings, HEALTHY_S):
            return
        self.close()
        if settings is None:
            return
        if key in self._failures:
            raise self._failures[key]
        began = time.monotonic()
        self._key, self._settings = key, settings
        self._supervisor = Child(
            "sweeprof.run.servers:supervise",
            [str(self.log)],
            child_environment(environment),
            self.log.with_name(f"{self.log.stem}-supervisor.log"),
        )
        answer = self._ask(settings, float(settings.get("timeout_s") or START_S))
        if "reason" in answer:
            self.close()
            self._failures[key] = CommandError(answer["status"], answer["reason"])
            raise self._failures[key]
        self.running = validated(RunningServer, answer)
        self._longest_start_s = max(self._longest_start_s, time.monotonic() - began)

    def _ask(self, settings: Json | None, limit_s: float) -> Json:
        """Return the server once it is ready, or the status and the reason of a trial that needs it."""
        assert self._supervisor is not None
        try:
            request = {"settings": settings, "timeout_s": limit_s, "memory": self._memory}
            return self._supervisor.ask(request, limit_s + ANSWER_S + ENDING_S)
        except WorkerError as error:
            return {"status": "failed", "reason": f"the supervisor of the server: {error}"}

    def close(self) -> None:
        """End the server, if one runs."""
        if self._supervisor is not None:
            was_killed = not self._supervisor.alive
            self._supervisor.close()
            if was_killed:  # then what the server had started is left
                for process in psutil.process_iter():
                    with suppress(psutil.Error):
                        if process.environ().get(MARK) == str(self.log):
                            process.kill()
        self._supervisor = self.running = None


# ---- In the supervisor ----


def supervise(connection: Connection, log: str) -> None:
    """Start a server, tell whenever asked when it is ready, and end it when the socket closes."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # of a scheduler, which sends them to every process
        signal.signal(number, lambda *_: None)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    server: _Server | None = None
    request = connection.receive()
    try:
        while request is not None:
            try:
                server = server or _Server(request["settings"], Path(log))
                server.wait_until_ready(connection, request["timeout_s"], request["memory"])
                connection.send(asdict(server.running))
            except CommandError as error:
                connection.send({"status": error.status, "reason": str(error)})
            while not connection.has_message():
                shorten_log(Path(log))
                select.select([connection.socket], [], [], LOG_S)
            request = connection.receive()
    finally:
        if server is not None:
            server.end()


class _Server:
    """The process of a server.

    Raises:
        CommandError: it could not be started.
    """

    def __init__(self, settings: Json, log: Path) -> None:
        port = free_port()
        settings = with_host_values(settings, port)
        words = words_of(settings["command"], False)
        ((self._kind, self._value),) = settings["ready"].items()
        self._log, self._was_ready = log, False
        if self._kind != "log" and self._trouble() is None:
            another = f"something answers at {self._kind}={self._value} before the server is started"
            raise CommandError("failed", f"{another}: end it, or use {{port}}, which stands for a free one")
        own = {name: str(value) for name, value in (settings.get("env") or {}).items()}
        log.write_bytes(b"")
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    words,
                    env=users_environment({**own, MARK: str(log)}),
                    cwd=user_path(settings["cwd"]) if settings.get("cwd") else None,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    preexec_fn=partial(die_with, os.getpid()),  # noqa: PLW1509  # this process has one thread
                )
        except OSError as error:
            raise CommandError("failed", f"the server {words[0]} could not be started: {error.strerror}") from None
        self.running = RunningServer(words[0], self._process.pid, port, str(log))

    def wait_until_ready(self, connection: Connection, limit_s: float, memory: int | None) -> None:
        """Wait until the server is ready, or the shard is gone.

        Raises:
            CommandError: it has ended, took too long, or used more than ``memory`` bytes.
        """
        deadline = time.monotonic() + limit_s
        while not connection.has_message():
            # It stays a zombie, so that its process id and its exit code remain known.
            if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                raise CommandError("failed", server_ending(self.running))
            used = 0 if memory is None else used_bytes([self._process.pid])
            if memory is not None and used > memory:
                raise CommandError("oom", excess_reason(used, memory, f"the server {self.running.name}"))
            trouble = self._trouble()
            if trouble is None:
                self._was_ready = True
                return
            if time.monotonic() > deadline:
                reason = f"the server {self.running.name} was not ready after {limit_s:g} s, {trouble}"
                raise CommandError("timeout", f"{reason}{last_lines([self._log])}")
            shorten_log(self._log)
            time.sleep(LOOK_S)

    def _trouble(self) -> str | None:
        """Return why it is not ready; None if it is."""
        if self._kind == "log" and self._was_ready:
            return None  # whether or not its log still has the line
        if self._kind == "log":
            text = self._log.read_bytes().decode(errors="replace")
            return None if re.search(self._value, text, re.M) else f"its log has no {self._value!r}"
        try:
            if self._kind == "port":
                socket.create_connection(("localhost", int(self._value)), ANSWER_S).close()
            else:
                # Not through the proxy of the environment.
                opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                opener.open(self._value, timeout=ANSWER_S).close()
        except (OSError, HTTPException) as error:
            return f"{self._kind}={self._value}: {getattr(error, 'reason', None) or error}"
        return None

    def end(self) -> None:
        """End the server with all its descendants: those that lose their parent become children of this process."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        deadline = time.monotonic() + ENDING_S
        while True:
            try:
                ended, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if ended == self._process.pid:
                deadline = min(deadline, time.monotonic() + STRAYS_S)
            elif ended == 0:
                if time.monotonic() > deadline:
                    for child in psutil.Process().children():
                        with suppress(psutil.NoSuchProcess):
                            child.kill()
                time.sleep(LOOK_S)
