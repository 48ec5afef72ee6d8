"""A duel: several trials at the same time, each in a process of its own, of which one at a time does anything.

    referee ──turn 3──▶ player ──met──▶ referee ──turn 3──▶ next player …

A player is started when the one before it has loaded, warmed up and found its loops; then all take single samples in turn, and in
the end each does what is left, one after the other. The socket closes with whatever ends either side: the others go on without a
player that is gone, and players whose referee is gone end and leave no record.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from sweeprof.profiling.turns import State
from sweeprof.sweep.isolation import Isolation
from sweeprof.sweep.player import Line
from sweeprof.sweep.template import PRELOAD_S, Ending
from sweeprof.sweep.worker import Request

KILLED_S = 10.0
"""How long a killed process may take until it is gone."""


@dataclass(slots=True)
class _Known:
    """A player, as the referee knows it."""

    line: Line
    pid: int
    left_s: float | None
    """Seconds that it may still work; None: any."""
    sample_s: float = 0.0
    timed_out: bool = False

    def hear(self) -> dict[str, Any] | None:
        """What it says when its work is done; None when it is gone, or was ended because its time was over."""
        began = time.monotonic()
        try:
            return self.line.hear(self.left_s)
        except TimeoutError:
            self.timed_out = True
            self.end()
            with suppress(TimeoutError):
                self.line.hear(KILLED_S)
            return None
        finally:
            if self.left_s is not None:
                self.left_s = max(0.001, self.left_s - (time.monotonic() - began))

    def end(self) -> None:
        """Kill its process, which is not this one."""
        if self.pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Referee:
    """The shard's side; a context.

    Args:
        names: of the players, in the order in which they are started.
        timeout_s: how long each may work, its waiting not counted.
        seed: of the order within the turns.
        round: whose duel it is; with every round all move on to the next processors.
    """

    def __init__(self, names: Sequence[str], timeout_s: float | None, seed: str, round: int = 0) -> None:
        self._names, self._timeout_s = tuple(names), timeout_s
        self._id = f"d{uuid.uuid4().hex[:12]}"
        self._shuffler = random.Random(seed)
        self._first_processor = round
        self._known: dict[str, _Known] = {}
        self._there: list[_Known] = []
        """Those that are ready and not gone."""
        self._is_interrupted = False

    def __enter__(self) -> Referee:
        self._folder = TemporaryDirectory(prefix="sweeprof-")  # a socket's path is short, a sweep's may be long
        self._address = str(Path(self._folder.name) / "duel")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.listen(2 * len(self._names))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        """Let nobody in any more."""
        self._listener.close()
        self._folder.cleanup()

    def place(self, name: str, inner: Isolation) -> Isolation:
        """Where the trial of a player is to run, instead of ``inner``."""
        return _Seated(inner, self, name)

    def hold(self, trials: Mapping[str, Callable[[], object]]) -> None:
        """Hold the duel; each trial, by its player's name, is called in a thread and returns when its process has ended."""
        with ThreadPoolExecutor(len(self._names)) as pool:
            running = []
            try:
                for name in self._names:
                    running.append(pool.submit(self._tried, name, trials[name]))
                    self._admit(name)
                self._close()  # early, so that hardly anything that kills this process leaves the folder behind
                self._take_turns()
                for player in self._there:
                    player.line.tell({"end": True})
                    player.hear()
            except BaseException:
                self._is_interrupted = True
                for player in self._known.values():
                    player.end()
                raise
            finally:
                self._close()  # also a player that has not been heard of yet now learns that nobody is here
                for player in self._known.values():
                    player.line.close()
        for trial in running:
            trial.result()  # raises what the trial raised

    def asked(self, name: str, request: Request) -> Request:
        """The request for a player, with where to find this referee."""
        partners = [other for other in self._names if other != name]
        # The referee limits each player's own work; this is all that one may have to wait for, and what ends a process that
        # hangs before it has said who it is.
        waits_s = None if self._timeout_s is None else len(self._names) * (self._timeout_s + PRELOAD_S)
        threads = int(request.blank["config"]["backend"].get("threads") or 1)
        duel = {
            "address": self._address,
            "id": self._id,
            "partners": partners,
            "processors": self._processors(threads),
        }
        return replace(request, timeout_s=waits_s, duel=duel)

    def _processors(self, threads: int) -> list[int]:
        """As many of those that this process may use as there are threads."""
        available = sorted(os.sched_getaffinity(0))
        first = self._first_processor % len(available)
        return (available[first:] + available[:first])[:threads]

    def judged(self, name: str, ending: Ending) -> Ending:
        """How a player ended."""
        if self._is_interrupted:
            raise RuntimeError("the duel was interrupted")  # no outcome of the trial, which is to leave no record
        player = self._known.get(name)
        return replace(ending, timed_out=ending.timed_out or (player is not None and player.timed_out))

    def _tried(self, name: str, trial: Callable[[], object]) -> None:
        try:
            trial()
        finally:  # in case its process never came to say who it is
            with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self._address)
                Line(connection).tell({"name": name, "pid": None})

    def _admit(self, name: str) -> None:
        """Wait until a player is ready, or gone."""
        while True:
            line = Line(self._listener.accept()[0])
            hello = line.hear() or {}
            if hello.get("name") == name:
                break
            line.close()  # the end of another one, whose own line has told it
        if hello["pid"] is None:
            line.close()
            return
        is_here = hello["pid"] == os.getpid()  # isolation=inline, where no limit applies
        player = self._known[name] = _Known(line, hello["pid"], None if is_here else self._timeout_s)
        ready = player.hear()
        if ready is not None:
            player.sample_s = ready["sample_s"]
            self._there.append(player)

    def _take_turns(self) -> None:
        """Until all have what the protocol asks for, or one has all that it allows."""
        sample_s = max((player.sample_s for player in self._there), default=0.0)
        turn, states = 0, list[State]()
        while self._there and "spent" not in states and ("going" in states or not turn):
            states = []
            for player in self._order(turn):
                player.line.tell({"turn": turn, "sample_s": sample_s})
                said = player.hear()
                if said is None:
                    self._there.remove(player)
                else:
                    states.append(said["state"])
            turn += 1

    def _order(self, turn: int) -> list[_Known]:
        """In each pair of turns the second goes the other way round, so that a steady drift favours nobody."""
        if turn % 2:
            self._there.reverse()
        else:
            self._shuffler.shuffle(self._there)
        return list(self._there)


@dataclass(frozen=True, slots=True)
class _Seated:
    """Runs the trial of a player where ``inner`` does."""

    inner: Isolation
    referee: Referee
    name: str

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *_: object) -> None:
        """``inner`` belongs to another."""

    def run(self, request: Request) -> Ending:
        return self.referee.judged(self.name, self.inner.run(self.referee.asked(self.name, request)))
