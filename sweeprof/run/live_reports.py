"""The reports of a sweep that still runs, written between its trials: what has been measured so far, and what is missing.

Nothing is measured on the host meanwhile, and writing takes at most a small share of the time of the sweep. The first reports are
written when each value of each axis has a result, or more than half of the combinations have one; none are when the sweep is
about to end.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from sweeprof.passes.registry import pass_named
from sweeprof.plan.plan import Combination, Plan, Trial
from sweeprof.results.compare import Comparison
from sweeprof.results.files import unwritable
from sweeprof.run.comparison import comparison_of
from sweeprof.run.locks import report_lock
from sweeprof.run.reports import write_reports
from sweeprof.storage.folder import Folder

SHARE = 0.02
"""Maximum share of the time that writing takes, and that sending takes."""
FIRST = 2.5
"""The first time may take so many times the share: of a sweep of a minute there is then something to read after a quarter of it."""
EVERY_S = 10.0
"""Reports are written no more often than that, though those of a small sweep would take less than the share."""
ENDS_SOON_S = 10.0
"""In the last seconds of a sweep nothing is written that the final reports replace at once."""
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

    def __init__(self, folder: Folder, plan: Plan, ids: Sequence[str], left: int) -> None:
        """Take the ids of the combinations that are measured here, and the number of their trials that are left."""
        self._folder = folder
        measured = [c for c in plan.combinations if c.id in set(ids)]
        count = plan.size
        self._writing, self._sending = _Budget(0.3 + 0.01 * count), _Budget(1.0 + 0.1 * count)
        self._axes = {c.id: _values(c) for c in measured}
        # A search may never choose some of the values.
        values = {value for own in self._axes.values() for value in own}
        self._missing = values if plan.search is None else set()
        """Values of axes without a result."""
        timed = [name for name in plan.passes if pass_named(name).kind == "rounds"]
        self._first_pass = next(iter(timed or plan.passes), "")
        self._without_result = set(self._axes)
        for id in self._axes:
            if folder.is_done(Trial(id, self._first_pass)):
                self._note_result(id)
        self._began = time.monotonic()
        self._last_written = -math.inf
        self._ended, self._left = 0, left
        self._has_news = len(self._without_result) < len(self._axes)

    def take(self, trial: Trial) -> None:
        """Note that a trial has ended."""
        self._has_news = True
        self._ended += 1
        self._left -= 1
        if trial.pass_name == self._first_pass:
            self._note_result(trial.combination_id)

    def _note_result(self, id: str) -> None:
        self._without_result.discard(id)
        self._missing -= self._axes[id]
        if 2 * len(self._without_result) < len(self._axes):
            self._missing.clear()

    @property
    def is_due(self) -> bool:
        """True if there is something to write, time for it, and it will not be replaced at once."""
        now = time.monotonic()
        if not self._has_news or self._missing or now - self._last_written < EVERY_S or not self._writing.allows_more():
            return False
        trial_s = (now - self._began) / max(1, self._ended)
        return self._left * trial_s >= ENDS_SOON_S

    def write(self) -> None:
        """Write the reports, and send them if that is due, too; errors are logged, the sweep goes on.

        Raises:
            OSError: nothing can be written into the folder, as on a full disk.
        """
        self._has_news, self._last_written = False, time.monotonic()
        try:
            with self._writing.spent(), report_lock(self._folder.path, LOCK_S):
                comparison = comparison_of(self._folder, NOT_BEGUN, running=True, trust=True)
                write_reports(self._folder, comparison, is_final=False)
            if _receivers and self._sending.allows_more():
                with self._sending.spent():
                    for send in _receivers:
                        send(comparison)
        except Exception as error:  # a metric of the user's may raise, and the reports are written again in the end
            if isinstance(error, OSError) and unwritable(error, self._folder.path):
                raise
            log.warning("the reports of the running sweep were not written: %s: %s", type(error).__name__, error)


class ClusterReports:
    """Writes the reports while the driver waits for the jobs of a cluster; a context."""

    def __init__(self, folder: Folder, plan: Plan) -> None:
        self._folder = folder
        self._trials = [trial for trial in plan.trials() if not folder.is_done(trial)]
        self._reports = LiveReports(folder, plan, [id for shard in plan.shards for id in shard], len(self._trials))
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
        left = self._trials
        while not self._stop.wait(WAKE_S):
            ended = {trial for trial in left if self._folder.is_done(trial)}
            left = [trial for trial in left if trial not in ended]
            for trial in ended:
                self._reports.take(trial)
            if self._reports.is_due:
                try:
                    self._reports.write()
                except OSError as error:  # the jobs, which measure elsewhere, go on
                    log.warning("the reports of the running sweep were not written: %s", error)


class _Budget:
    """Time that may be spent: :data:`SHARE` of the time since the start, the first time :data:`FIRST` times as much.

    Args:
        first_s: the expected duration of the first time.
    """

    def __init__(self, first_s: float) -> None:
        self._began = time.monotonic()
        self._spent_s, self._last_s = 0.0, first_s

    def allows_more(self) -> bool:
        """True if the next time would stay within the budget, if it takes as long as the last."""
        share = SHARE if self._spent_s else FIRST * SHARE
        return self._spent_s + self._last_s <= share * (time.monotonic() - self._began)

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Measure the time that is spent in the context."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._last_s = time.monotonic() - began
            self._spent_s += self._last_s


def _values(combination: Combination) -> set[tuple[str, str]]:
    """Return the axis values of a combination."""
    return {(axis, repr(value)) for axis, value in combination.axes.items()}
