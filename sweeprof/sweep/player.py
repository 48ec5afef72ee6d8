"""A trial's side of a duel (:mod:`sweeprof.sweep.duel`): it works when the referee says so, and blocks in a read otherwise."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sweeprof.profiling.quiet import become_quiet
from sweeprof.profiling.turns import Duel, State


class Line:
    """Messages in JSON over a socket, one at a time: each side speaks when it has been spoken to."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._unread = connection, b""

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message; if the other side is gone nothing happens, and the next :meth:`hear` tells."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message, None when the other side is gone; raises ``TimeoutError``."""
        self._socket.settimeout(timeout_s)
        while b"\n" not in self._unread:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Let the other side know that this one is gone."""
        self._socket.close()


class Player:
    """The turns of a duel, see :class:`sweeprof.profiling.turns.Turns`."""

    def __init__(self, line: Line, duel: Duel) -> None:
        self.duel = duel
        self.waited_s = 0.0
        """Seconds in which others worked."""
        self._line = line
        self._told: Mapping[str, Any] = {}

    def ready(self, sample_s: float) -> float:
        self._say({"sample_s": sample_s})
        return float(self._told.get("sample_s", sample_s))

    def take(self) -> int | None:
        turn: int | None = self._told.get("turn")
        return turn

    def leave(self, state: State) -> None:
        self._say({"state": state})

    def _say(self, message: Mapping[str, Any]) -> None:
        """Hand over to the others, and wait until it is this one's turn again."""
        become_quiet()
        began = time.monotonic()
        self._line.tell(message)
        told = self._line.hear()
        if told is None:
            raise SystemExit("the shard is gone")  # that is no outcome of this trial, which is to leave no record
        self._told = told
        self.waited_s += time.monotonic() - began


@contextmanager
def joined(duel: Mapping[str, Any] | None, name: str) -> Iterator[Player | None]:
    """The duel that the trial called ``name`` is to take part in; None for one that is alone."""
    if duel is None:
        yield None
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(duel["address"])
        line = Line(connection)
        line.tell({"name": name, "pid": os.getpid()})
        with _kept_on(duel["processors"]):
            yield Player(line, Duel(duel["id"], tuple(duel["partners"]), processors=tuple(duel["processors"])))


@contextmanager
def _kept_on(processors: Collection[int]) -> Iterator[None]:
    """Let this thread, and those that it starts, run on the given processors alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
