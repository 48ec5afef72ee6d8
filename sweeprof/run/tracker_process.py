"""The tracker's process: one writer, outside the measured time, whose failures do not affect the measurement.

A tracker's library is heavy and global (MLflow: 170 MB and threads), and a server may be slow or hang. In a process of its own
it has a time limit, and its environment can be set before it is imported. Opening begins while the shards import frameworks; what
keeps a processor busy ends before anything is measured, and what waits for a server goes on at a low priority. Most is sent when
everything is measured, and sending ends at a limit whatever the server does: what was not sent is in the folder, for
``sweeprof sync``.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

from sweeprof.credentials import redacted_message, remember
from sweeprof.errors import SweeprofError, UserError, WorkerError
from sweeprof.measuring.instantiate import instantiate
from sweeprof.plan.plan import Plan
from sweeprof.processes import (
    NO_WORKING_DIRECTORY,
    Child,
    Connection,
    NoAnswer,
    collect_again,
    die_with,
    end_process,
    inherited_connection,
)
from sweeprof.results.comparison import Comparison
from sweeprof.results.record import Record
from sweeprof.run.locks import HostLock, host_lock, sending_lock
from sweeprof.run.tracking_file import StoredTracker, note_sent
from sweeprof.storage.folder import Folder
from sweeprof.text import log_as_a_program, stored
from sweeprof.tracking import KNOWN, Links, SweepInfo, SweepOutcome, Tracker
from sweeprof.tracking.connection import LOGIN, without_logins

OPEN_S = 120.0
"""For making a schema on a slow disk."""
IDLE_S = 120.0
"""How long a tracker that sends may make no progress; its own time limits are shorter."""
PROGRESS_S = 1.0
"""How often progress is reported."""
OPENING_NICE = 10
MEMORY = 8 << 30
"""Bytes that the process may allocate: a broken server may send a response that never ends."""
SHOWN_S = 30.0
"""How long sending what a running sweep has measured may take; meanwhile it measures nothing."""
OTHERS_OPEN_S, OTHERS_CLOSE_S = 5.0, 100.0
"""For another process that sends the same sweep; each less than the limit above."""

log = logging.getLogger(__name__)


class TrackerProcess:
    """The driver's side; a context. It does not raise if the tracker fails: :attr:`trouble` has the reason.

    Args:
        trust: whether code outside sweeprof may run: a tracker or a metric that the config, the plan or the folder names.
    """

    def __init__(self, tracker: StoredTracker, folder: Folder, trust: bool = False) -> None:
        self._trust, self._confined = trust, tracker.confined
        self.trouble: str | None = None
        """Why the sweep is not, or not completely, in the tracker."""
        self._config, self._folder = {**tracker.config, "output": str(folder.output)}, folder
        self._child: Child | None = None
        self._opening: threading.Thread | None = None
        self._is_closing = False
        self._links: Links | None = None

    def __enter__(self) -> TrackerProcess:
        if self._config.get("_target_"):
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closing = True
        if self._child:
            self._child.close()
        if self._opening:
            self._opening.join()

    def open(self, plan: Plan, on_trouble: Callable[[str], object] = lambda _: None) -> None:
        """Begin to create the sweep's run in the tracker; measuring does not wait for it.

        Args:
            on_trouble: is called with what went wrong, from another thread.
        """
        if self._child is None:
            return
        sweep = SweepInfo(plan.sweep_id, plan.name, plan.command, plan.created, tuple(plan.axes), plan.size)

        def wait() -> None:
            self._links = self._ask({"open": dataclasses.asdict(sweep)}, OPEN_S)
            if self.trouble and not self._is_closing:
                on_trouble(self.trouble)

        self._opening = threading.Thread(target=wait, name="sweeprof-opening", daemon=True)
        self._opening.start()

    def opened(self, wait_s: float) -> Links | None:
        """Return the sweep's addresses; None without a tracker, after a failure, or if opening takes longer than ``wait_s``."""
        if self._opening:
            self._opening.join(wait_s)
        return self._links

    def close(self, ending: SweepOutcome, limit_s: float = math.inf) -> Links | None:
        """Send the folder, whose reports are written, also if opening failed or its process is gone; the result is stored there.

        Args:
            limit_s: after which, or after :data:`IDLE_S` without progress, the process is killed.
        """
        if self._child is None:
            return None
        end = time.monotonic() + limit_s
        self._is_closing = True
        if self._opening:
            self._opening.join(min(limit_s, OPEN_S))
            if self._opening.is_alive():
                self._child.kill()
                self._opening.join()
        if not self._child.alive:
            self._child.close()
            self._start()
        links = self._ask({"close": ending}, max(0.0, end - time.monotonic()), limit_s)
        note_sent(self._folder, self.trouble)
        return links or self._links

    def show(self, comparison: Comparison) -> None:
        """Send the state of a running sweep, with the combinations that have values; nothing if the tracker is not open."""
        child = self._child
        is_open = self._links is not None and self.trouble is None
        if child is None or not is_open:
            return
        ids = [row.combination_id for row in comparison.rows if row.has_values]
        try:
            self._ask({"show": ids}, SHOWN_S)
        except BaseException:  # an interrupt; the answer must not be taken for that of the next request
            child.kill()
            raise
        if self.trouble:
            log.warning("tracking: %s; everything is sent after the last measurement", self.trouble)

    def _start(self) -> None:
        module = None
        if self._trust or self._config["_target_"] in KNOWN:
            with suppress(ImportError):  # which the process will say
                module = import_module(self._config["_target_"].rpartition(".")[0])
        inherited = without_logins(os.environ) if self._confined else os.environ
        variables = {**getattr(module, "ENVIRONMENT", {}), **inherited}
        if not self._trust:  # which runs no code of the user's own
            variables |= NO_WORKING_DIRECTORY
        log = self._folder.logs / "tracker.log"
        self._child = Child("sweeprof.run.tracker_process", [str(os.getpid())], variables, log)

    def _ask(self, message: Mapping[str, Any], left_s: float, limit_s: float | None = None) -> Links | None:
        """Send a request; the process is killed if it does not answer within ``left_s`` of ``limit_s``, or makes no progress."""
        if self._child is None:
            return None
        asked = {
            **message,
            "config": self._config,
            "folder": str(self._folder.path),
            "trust": self._trust,
            "confined": self._confined,
        }
        end = time.monotonic() + left_s
        try:
            self._child.send(asked, min(IDLE_S, left_s))
            answered: dict[str, Any] = {"progress": True}
            while "progress" in answered:
                answered = self._child.receive(max(0.0, min(IDLE_S, end - time.monotonic())))
        except NoAnswer:
            self._child.kill()
            if time.monotonic() < end:
                self.trouble = f"the tracker made no progress for {IDLE_S:g} s"
            elif limit_s is None:
                self.trouble = f"the tracker did not answer within {left_s:g} s"
            else:
                self.trouble = f"the tracker did not finish within {limit_s:g} s"
            return None
        except WorkerError as error:
            self.trouble = str(error)
            return None
        self.trouble = answered.get("trouble")
        links = answered.get("links")
        return Links(**links) if links else None


class _Discreet:
    """A stream that removes passwords: libraries log addresses."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(redacted_message(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def trouble_of(error: Exception) -> str:
    """Return the error of a tracker, and what to do about it, without passwords."""
    status = getattr(error, "get_http_status_code", lambda: None)()
    refused = status == HTTPStatus.UNAUTHORIZED or "error code 401" in str(error)
    return redacted_message(f"{type(error).__name__}: {error}{f' - {LOGIN}' if refused else ''}")


def _serve() -> None:
    die_with(int(sys.argv[2]))
    sys.stdout, sys.stderr = cast("TextIO", _Discreet(sys.stdout)), cast("TextIO", _Discreet(sys.stderr))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    connection = inherited_connection()
    tracker: Tracker | None = None
    progress = _Progress(connection)

    def do(message: Mapping[str, Any]) -> None:
        nonlocal tracker
        text: dict[str, Any] = {}
        try:
            if tracker is None:
                tracker = _made(message)
                tracker.on_progress = progress.report
            links = _done(tracker, message, Folder(Path(message["folder"])))
            text["links"] = dataclasses.asdict(links) if links else None
        except Exception as error:  # errors of a tracker are reported, and end nothing
            text["trouble"] = stored(trouble_of(error))
        connection.send(text)

    for message in connection.messages():
        if "open" not in message:
            do(message)
            continue
        # The priority is that of a thread, for a process may not raise its own again.
        opening = threading.Thread(target=_open, args=(message, do))
        opening.start()
        opening.join()


def _open(message: Mapping[str, Any], do: Callable[[Mapping[str, Any]], object]) -> None:
    """Open the tracker at a low priority; what keeps a processor busy is done while nothing is measured here."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), OPENING_NICE)
    config = message["config"]
    is_server = str(config.get("uri")).startswith(("http://", "https://"))
    with ExitStack() as lock:
        gc.disable()
        try:
            if config["_target_"] in KNOWN:
                with suppress(SweeprofError, OSError):
                    lock.enter_context(_host_lock(Folder(Path(message["folder"])), message["trust"]).taken(False))
                import_module(config["_target_"].rpartition(".")[0]).import_library()
        finally:
            collect_again()
        if is_server:
            lock.close()
        do(message)


def _host_lock(folder: Folder, trust: bool) -> HostLock:
    """Return the lock of this host for a sweep; a folder of somebody else names no place for lock files."""
    plan = folder.read_plan()
    if folder.foreign() is not None and not trust:
        plan = dataclasses.replace(plan, limits=dataclasses.replace(plan.limits, locks=None))
    return host_lock(plan)


class _Progress:
    """Reports to the driver, from time to time, that something was sent."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._told = connection, -math.inf

    def report(self) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_S:
            self._told = now
            self._connection.send({"progress": True})


def _made(message: Mapping[str, Any]) -> Tracker:
    """Return the tracker of a config; one that is not sweeprof's only with ``trust``."""
    config: Mapping[str, Any] = message["config"]
    target = config["_target_"]
    remember(*(value for value in config.values() if isinstance(value, str)))
    if target not in KNOWN:
        if not message["trust"]:
            raise UserError(f"{target!r} is not a tracker of sweeprof")
        made: Tracker = instantiate(config)
        return made
    if message["confined"]:
        from sweeprof.tracking.connection import confine_artifacts

        is_server = str(config.get("uri")).startswith(("http://", "https://"))
        confine_artifacts(None if is_server else Path(config["output"]))
    module, _, name = target.rpartition(".")
    # Not by Hydra, which would fill in what the text of a setting names, such as ${oc.env:PASSWORD}.
    arguments = {key: value for key, value in config.items() if key != "_target_"}
    known: Tracker = getattr(import_module(module), name)(**arguments)
    return known


def _done(tracker: Tracker, message: Mapping[str, Any], folder: Folder) -> Links | None:
    with sending_lock(folder.path, OTHERS_OPEN_S if "open" in message else OTHERS_CLOSE_S):
        if "open" in message:
            info = message["open"]
            return tracker.open(SweepInfo(**{**info, "axes": tuple(info["axes"])}))
        comparison = Comparison.read(folder.path)  # of the reports that were just written
        if "show" in message:
            tracker.show(comparison, list(_outcomes(folder, message["show"])), folder.path, message["show"])
            return None
        return tracker.close(comparison, list(_outcomes(folder)), folder.path, message["close"])


def _outcomes(folder: Folder, only: Collection[str] | None = None) -> Iterator[Record]:
    """Yield the records, of all combinations or some, without observations: of ten thousand combinations these are gigabytes."""
    for combination in folder.read_plan().combinations:
        if only is not None and combination.id not in only:
            continue
        for record in folder.records_of(combination.id):
            yield dataclasses.replace(
                record, config=combination.config, observations=None, environment={}, traceback=None
            )


if __name__ == "__main__":
    log_as_a_program()
    _serve()
    end_process()
