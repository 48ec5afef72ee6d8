"""An interleaved run: several trials at the same time, each in its own process, of which only one works at a time.

    coordinator ──turn 3──▶ participant ──state──▶ coordinator ──turn 3──▶ next participant …

A participant is started when the one before it has loaded, warmed up and chosen its number of loops; then all alternate after each
sample, and at the end each finishes in turn. A socket closes when either side ends: the others continue without a participant
that has ended, and participants whose coordinator has ended leave no record.

The config key is ``protocol.interleave``.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sweeprof.measuring.timing import InterleavedRun, State, become_quiet
from sweeprof.processes import Connection
from sweeprof.results.observations import RunningServer
from sweeprof.results.record import Json


@dataclass(frozen=True, slots=True)
class Interleaved:
    """How the process of a trial takes part in an interleaved run, see :mod:`sweeprof.run.interleave`."""

    address: str
    """The coordinator's socket."""
    id: str
    """Of the interleaved run."""
    partners: tuple[str, ...]
    """Ids of the other combinations."""
    processors: tuple[int, ...]
    """The only processors that the trial may use."""


@dataclass(frozen=True, slots=True)
class Request:
    """One trial, as it travels from the shard to the process that runs it."""

    blank: Json
    """The record without its outcome: ids, axes, config, command, environment."""
    records: str
    """The folder ``records/``."""
    log: str
    """The file for the output of the process."""
    timeout_s: float | None
    memory: int | None
    """Bytes that the process and its descendants may use above its start."""
    asked: float
    """``time.monotonic()`` when the shard asked for the process."""
    interleaved: Interleaved | None = None
    """None for a trial that runs alone."""
    family: int = 0
    """The shard's process id: its descendants belong to the sweep; 0: only this process does."""
    server: RunningServer | None = None
    """The server that the program of the trial needs."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of this trial's process, in addition to those that its backend sets."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How the process of a trial ended."""

    code: int
    """Exit code; negative: the signal that ended it."""
    timed_out: bool = False
    used_bytes: int | None = None
    """Memory of its processes, if it was ended because that was above ``limits.memory``."""


KILLED_S = 10.0
"""How long a killed process may take until it is gone."""
LOOK_S = 0.05
"""How often it is checked whether the process of a trial has ended before it has connected."""
STARTING_S = 600.0
"""Limit for the start of a process, including the imports of its fork server."""


@dataclass(slots=True)
class _Peer:
    """A participant, as the coordinator knows it."""

    connection: Connection
    pid: int
    left_s: float | None
    """Seconds that it may still work; None: no limit."""
    sample_s: float = 0.0
    timed_out: bool = False

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; if the participant is gone, the next :meth:`receive` returns None."""
        with suppress(OSError):
            self.connection.send(message)

    def receive(self) -> dict[str, Any] | None:
        """Return its message when it has done its work; None if it is gone, or was killed because its time was over."""
        began = time.monotonic()
        try:
            return self.connection.receive(self.left_s)
        except TimeoutError:
            self.timed_out = True
            self.kill()
            with suppress(TimeoutError):
                self.connection.receive(KILLED_S)
            return None
        finally:
            if self.left_s is not None:
                self.left_s = max(0.001, self.left_s - (time.monotonic() - began))

    def kill(self) -> None:
        """Kill its process, unless that is this one."""
        if self.pid != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class Coordinator:
    """The shard's side; a context.

    Args:
        names: of the participants, in the order in which they are started.
        timeout_s: how long each may work, its waiting not counted.
        round: the round that is timed: it decides the order within turns, and with every round all move on to the next
            processors.
    """

    def __init__(self, names: Sequence[str], timeout_s: float | None, round: int = 0) -> None:
        self._names, self._timeout_s = tuple(names), timeout_s
        self._id = f"d{uuid.uuid4().hex[:12]}"
        self._shuffler = random.Random(round)
        self._first_processor = round
        self._peers: dict[str, _Peer] = {}
        self._ready: list[_Peer] = []
        """Those that are ready and not gone."""
        self._is_interrupted = False

    def __enter__(self) -> Coordinator:
        # An abstract address, see unix(7): without a file, no trial can remove it, and nothing is left if this process is killed.
        self._address = f"\0sweeprof-{uuid.uuid4().hex}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._address)
        self._listener.settimeout(LOOK_S)
        self._listener.listen(2 * len(self._names))
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def run(self, trials: Mapping[str, Callable[[], object]]) -> None:
        """Run the trials; each, by its participant's name, is called in a thread and returns when its process has ended."""
        with ThreadPoolExecutor(len(self._names)) as pool:
            running = []
            try:
                for name in self._names:
                    running.append(pool.submit(trials[name]))
                    self._admit(name, running[-1])
                self._take_turns()
                for peer in self._ready:
                    peer.send({"end": True})
                    peer.receive()
            except BaseException:
                self._is_interrupted = True
                for peer in self._peers.values():
                    peer.kill()
                raise
            finally:
                self._listener.close()  # a participant that has not connected yet now learns that no coordinator is here
                for peer in self._peers.values():
                    peer.connection.close()
        for trial in running:
            trial.result()  # raises what the trial raised

    def _admit(self, name: str, trial: Future[object]) -> None:
        """Wait until a participant is ready, or its trial has ended."""
        hello: dict[str, Any] = {}
        while hello.get("name") != name:
            has_ended = trial.done()  # before the last look: what has connected and then ended is admitted
            try:
                accepted = self._listener.accept()[0]
            except TimeoutError:
                if has_ended:
                    return
                continue
            connection = Connection(accepted)
            # Any user of the host may connect to an abstract address.
            size = struct.calcsize("3i")
            _, user, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            if user in (0, os.geteuid()):
                hello = connection.receive() or {}
            if hello.get("name") != name:
                connection.close()
        is_here = hello["pid"] == os.getpid()  # isolation=inline, where no limit applies
        peer = self._peers[name] = _Peer(connection, hello["pid"], None if is_here else self._timeout_s)
        ready = peer.receive()
        if ready is not None:
            peer.sample_s = ready["sample_s"]
            self._ready.append(peer)

    def _take_turns(self) -> None:
        """Alternate until all participants have the samples that the protocol requires, or one has the maximum."""
        sample_s = max((peer.sample_s for peer in self._ready), default=0.0)
        turn, states = 0, list[State]()
        while self._ready and "spent" not in states and ("going" in states or not turn):
            states = []
            # In each pair of turns the second has the opposite order, so that a steady drift favours none.
            if turn % 2:
                self._ready.reverse()
            else:
                self._shuffler.shuffle(self._ready)
            for peer in list(self._ready):
                peer.send({"turn": turn, "sample_s": sample_s})
                answer = peer.receive()
                if answer is None:
                    self._ready.remove(peer)
                else:
                    states.append(answer["state"])
            turn += 1

    def run_participant(self, name: str, run: Callable[[Request], ProcessExit], request: Request) -> ProcessExit:
        """Run the trial of a participant by ``run``; returns how its process ended."""
        partners = tuple(other for other in self._names if other != name)
        # The coordinator limits each participant's own work; this is the longest that one may have to wait, and what ends a
        # process that hangs before it has connected.
        waits_s = None if self._timeout_s is None else len(self._names) * (self._timeout_s + STARTING_S)
        threads = int(request.blank["config"]["backend"].get("threads") or 1)
        available = sorted(os.sched_getaffinity(0))
        first = self._first_processor % len(available)
        processors = (available[first:] + available[:first])[:threads]
        interleaved = Interleaved(self._address, self._id, partners, tuple(processors))
        end = run(replace(request, timeout_s=waits_s, interleaved=interleaved))
        if self._is_interrupted:
            raise RuntimeError("the interleaved run was interrupted")  # the trial has no outcome, and leaves no record
        peer = self._peers.get(name)
        return replace(end, timed_out=end.timed_out or (peer is not None and peer.timed_out))


class InterleavedParticipant:
    """The worker's side: the turns of a trial, see :class:`sweeprof.measuring.timing.Turns`."""

    def __init__(self, connection: Connection, interleaved_run: InterleavedRun) -> None:
        self.interleaved_run = interleaved_run
        self.waited_s = 0.0
        """Seconds during which others worked."""
        self._connection = connection
        self._turn: Mapping[str, Any] = {}

    def ready(self, sample_s: float) -> float:
        self._wait({"sample_s": sample_s})
        return float(self._turn.get("sample_s", sample_s))

    def take(self) -> int | None:
        turn: int | None = self._turn.get("turn")
        return turn

    def leave(self, state: State) -> None:
        self._wait({"state": state})

    def _wait(self, message: Mapping[str, Any]) -> None:
        """Let the other participants work, and wait for the next turn."""
        become_quiet()
        began = time.monotonic()
        with suppress(OSError):  # the shard is gone, as the answer will show
            self._connection.send(message)
        turn = self._connection.receive()
        if turn is None:
            # The trial has no outcome, and leaves no record.
            raise SystemExit("its connection to the shard is gone: one of them has closed it")
        self._turn = turn
        self.waited_s += time.monotonic() - began


@contextmanager
def joined(interleaved: Interleaved | None, name: str) -> Iterator[InterleavedParticipant | None]:
    """Join the interleaved run as the trial called ``name``; yields None for a trial that runs alone."""
    if interleaved is None:
        yield None
        return
    unix = socket.socket(socket.AF_UNIX)
    try:
        unix.connect(interleaved.address)
        connection = Connection(unix)
        with suppress(OSError):  # the shard is gone, as the first turn will show
            connection.send({"name": name, "pid": os.getpid()})
        before = os.sched_getaffinity(0)
        # This thread, and those that it starts, run only on these processors.
        os.sched_setaffinity(0, interleaved.processors)
        try:
            run = InterleavedRun(interleaved.id, interleaved.partners, processors=interleaved.processors)
            yield InterleavedParticipant(connection, run)
        finally:
            os.sched_setaffinity(0, before)
    finally:
        with suppress(OSError):  # the model has closed all descriptors
            unix.close()
