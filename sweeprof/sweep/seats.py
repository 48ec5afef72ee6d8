"""Seats: as many isolations as trials run at once, kept from trial to trial because their templates are dear to start."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from sweeprof.errors import WorkerError
from sweeprof.sweep.isolation import Isolation, isolation


class Seats:
    """A context that leaves no process behind; safe to be used by several threads.

    Args:
        kind: what the config key ``isolation`` names.
        logs: where the templates' output goes.
    """

    def __init__(self, kind: str, logs: Path) -> None:
        self._kind, self._logs = kind, logs
        self._free: list[Isolation] = []
        self._all = ExitStack()
        self._lock = threading.Lock()
        self._is_closed = False

    def __enter__(self) -> Seats:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process, also those of trials that run; no seat is had any more."""
        with self._lock:
            self._is_closed = True
            self._all.close()

    @contextmanager
    def taken(self) -> Iterator[Isolation]:
        """A seat that nobody else has; the one that was used last, for its templates are warm.

        Raises:
            WorkerError: the seats are closed.
        """
        with self._lock:
            if self._is_closed:
                raise WorkerError("the sweep ends")
            seat = self._free.pop() if self._free else self._all.enter_context(isolation(self._kind, self._logs))
        try:
            yield seat
        finally:
            with self._lock:
                self._free.append(seat)
