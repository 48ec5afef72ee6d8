"""The reports of a sweep that still runs, written between its trials: what has been measured so far, and what is missing.

Nothing is measured on the host meanwhile, and writing and sending take at most a small share of the time of the sweep.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from sweeprof.results.comparison import Comparison
from sweeprof.results.files import unwritable
from sweeprof.run.comparison import comparison_of
from sweeprof.run.locks import report_lock
from sweeprof.run.reports import write_reports
from sweeprof.storage.folder import Folder

SHARE = 0.02
"""Maximum share of the time that writing and sending take, after the first time."""
EVERY_S = 10.0
"""Reports are written no more often than that, and not before."""
LOCK_S = 2.0
"""How long the reports of a running sweep wait for another process that writes some; then they are written without the lock."""
WAKE_S = 5.0
"""How often the driver of a cluster's sweep looks for new records."""
NOT_BEGUN = "the sweep is running"

Send = Callable[[Comparison], object]
"""Called with what has been measured, after the reports were written."""

log = logging.getLogger(__name__)
_receivers: list[Send] = []


@contextmanager
def sent_to(send: Send) -> Iterator[None]:
    """Call ``send`` with what the shards of this process write; a launcher of Hydra is between the driver and its shards."""
    _receivers.append(send)
    try:
        yield
    finally:
        _receivers.remove(send)


class LiveReports:
    """Writes the reports of a sweep that runs, whenever they are due."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._due = time.monotonic() + EVERY_S

    @property
    def is_due(self) -> bool:
        """True if there is time to write reports."""
        return time.monotonic() >= self._due

    def write(self) -> None:
        """Write the reports, and send them; errors are logged, the sweep goes on.

        Raises:
            OSError: nothing can be written into the folder, as on a full disk.
        """
        began = time.monotonic()
        try:
            with report_lock(self._folder.path, LOCK_S):
                comparison = comparison_of(self._folder, NOT_BEGUN, running=True, trust=True)
                write_reports(self._folder, comparison, is_final=False)
            for send in _receivers:
                send(comparison)
        except Exception as error:  # a metric of the user's may raise, and the reports are written again in the end
            if isinstance(error, OSError) and unwritable(error, self._folder.path):
                raise
            log.warning("the reports of the running sweep were not written: %s: %s", type(error).__name__, error)
        now = time.monotonic()
        self._due = now + max(EVERY_S, (now - began) / SHARE)


class ClusterReports:
    """Writes the reports while the driver waits for the jobs of a cluster; a context."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._reports = folder, LiveReports(folder)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sweeprof-reports", daemon=True)

    def __enter__(self) -> ClusterReports:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        reported = 0
        while not self._stop.wait(WAKE_S):
            if not self._reports.is_due:
                continue
            records = sum(1 for _ in self._folder.records.glob("*/*-r*.json"))
            if records == reported:
                continue
            reported = records
            try:
                self._reports.write()
            except OSError as error:  # the jobs, which measure elsewhere, go on
                log.warning("the reports of the running sweep were not written: %s", error)
