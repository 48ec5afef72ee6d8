"""The tracker of a sweep: what its folder says of it (``tracking.json``), and the process that writes to it.

There is one writer, outside the measured time, whose failures do not affect the measurement.

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
import shlex
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any, NotRequired, TextIO, TypedDict, cast

from sweeprof.credentials import redacted_address, redacted_message, remember
from sweeprof.errors import Damaged, Problem, SweeprofError, UserError, WorkerError
from sweeprof.plan.plan import Plan
from sweeprof.processes import (
    NO_WORKING_DIRECTORY,
    Child,
    Connection,
    NoAnswer,
    collect_again,
    die_with,
)
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.files import damaged, read_json, validated, write_json
from sweeprof.results.record import Json, Record
from sweeprof.run.locks import has_driver, host_lock, sending_lock
from sweeprof.storage import Folder, check_address, foreign, sweeps
from sweeprof.targets import instantiate
from sweeprof.text import log_as_a_program, stored
from sweeprof.tracking import KNOWN, Links, SweepInfo, SweepOutcome, Tracker
from sweeprof.tracking.connection import LOGIN, knows_login, logins, same_address, without_logins

HIDDEN = "***"
"""Stands for the user and password of an address, which are not stored."""
_NOTHING_YET: Json = {"sent": None, "trouble": None, "ending": None, "missing": None}


def keep_config(folder: Folder, tracking: Json) -> None:
    """Store the config of the tracker before there is anything to send.

    Nothing secret is stored; ``complete`` says that this left nothing out.
    """
    if folder.tracking.exists() and not tracking.get("_target_"):  # tracking=none, once, does not forget the tracker
        with suppress(Damaged):
            write_json(folder.tracking, {**read_tracking(folder), **_NOTHING_YET})
            return
    config = dict(tracking)
    for key, value in tracking.items():
        if isinstance(value, str):
            config[key] = redacted_address(value)
    write_json(folder.tracking, {"config": config, "complete": config == tracking, **_NOTHING_YET})


class StoredTracking(TypedDict):
    """``tracking.json``."""

    config: Json
    complete: bool
    sent: NotRequired[str | None]
    trouble: NotRequired[str | None]
    ending: NotRequired[SweepOutcome | None]
    missing: NotRequired[str | None]


def read_tracking(folder: Folder) -> StoredTracking:
    """Return the content of ``tracking.json``; that of a sweep without a tracker if there is no such file.

    Raises:
        Damaged: the file holds something else.
        OSError: it cannot be read.
    """
    if not folder.tracking.exists():
        return {"config": {"_target_": None}, "complete": True}
    stored = validated(StoredTracking, read_json(folder.tracking))
    config = stored["config"]
    for key, kind in (("_target_", str), ("uri", str)):
        if not isinstance(config.get(key), kind | None):
            raise damaged(config[key], "text or null", ["config", key])
    return stored


@dataclass(frozen=True, slots=True)
class StoredTracker:
    """The tracker that a sweep's folder names, as far as the folder is trusted."""

    config: Json
    confined: bool
    """Whether only the folder names this address: it gets no logins, and names no other place for artifacts."""


def stored_tracker(folder: Folder, key: str, given: Sequence[str] = (), trust: bool = False) -> StoredTracker:
    """Return the tracker of ``tracking.json``.

    A folder may come from anybody. So it can only name a tracker of :data:`sweeprof.tracking.KNOWN`, and an address that
    :func:`sweeprof.storage.check_address` allows.

    Args:
        key: by which the user would give the address, as ``uri`` or ``tracking.uri``.
        given: addresses that the user gave on the command line or in the config; ``MLFLOW_TRACKING_URI`` counts as well.
        trust: whether the folder may name any tracker and any address.

    Raises:
        UserError: the folder names something else, or something that may only be used with the user's permission.
    """
    try:
        stored = read_tracking(folder)
    except Damaged as error:
        message = f"has a tracking.json that cannot be read: {error}; remove it, or give {key}=…."
        raise UserError([Problem("DIR", str(folder.path), message)]) from None
    address = stored["config"].get("uri")
    if not stored["config"].get("_target_"):
        return StoredTracker({"_target_": None}, confined=False)
    config = settings_of(folder, stored, trust)
    mine = (*given, os.environ.get("MLFLOW_TRACKING_URI") or "")
    for one in mine:
        if address is not None and one and same_address(one, address):
            return StoredTracker({**config, "uri": one}, confined=False)
    known = reachable(stored) if trust else None
    if known is not None:
        return StoredTracker({**config, "uri": known.get("uri")}, confined=False)
    if not stored["complete"]:
        message = (
            f"had a password, which is not stored; set MLFLOW_TRACKING_URI, or send it with: {sending_command(folder)}"
        )
        raise UserError([Problem(key, address, message)])
    database = address or f"sqlite:///{folder.output / 'mlflow.db'}"
    if not (_is_beside(folder, database) and foreign(folder.output) is None):
        how = "set MLFLOW_TRACKING_URI" if key == "MLFLOW_TRACKING_URI" else f"give {key}=…, or set MLFLOW_TRACKING_URI"
        check_address(folder, key, database, mine, how)
    if address is not None and not _is_beside(folder, address):
        _check_logins(folder, key, address)
    return StoredTracker(config, confined=True)


def _check_logins(folder: Folder, key: str, address: str) -> None:
    """Raise :class:`UserError` for an address that only the folder names, if it is a database or the user's login would be sent."""
    if _is_foreign_database(folder, address):
        message = (
            f"is a database that only the sweep's folder names; if it is yours, give {key}={shlex.quote(address)}."
        )
        raise UserError([Problem(key, address, message)])
    known_logins = logins()
    if known_logins:
        message = (
            f"is an address that only the sweep's folder names; your login ({', '.join(known_logins)}) is sent there if you give "
            f"{key}={shlex.quote(address)}, or MLFLOW_TRACKING_URI."
        )
        raise UserError([Problem(key, address, message)])


def settings_of(folder: Folder, stored: StoredTracking, trust: bool) -> Json:
    """Return the config of the tracker with its settings checked; raises :class:`UserError` for a tracker of somebody's own."""
    target = stored["config"]["_target_"]
    if target not in KNOWN:
        if trust:
            return stored["config"]
        advice = "add --trust (resume: trust=true) if you trust its author."
        message = f"is sent by {target!r}, which is code outside sweeprof: {advice}"
        raise UserError([Problem("DIR", str(folder.path), message)])
    try:
        settings = validated(KNOWN[target], stored["config"])
    except Damaged as error:
        message = f"has a tracking.json that cannot be read: {error}."
        raise UserError([Problem("DIR", str(folder.path), message)]) from None
    return {"_target_": target, **asdict(settings)}


def _is_beside(folder: Folder, address: str) -> bool:
    """True if ``address`` is a database file below the folder of all sweeps, where the default one is."""
    if not address.startswith("sqlite:///") or "?" in address:
        return False
    output = folder.output.resolve()
    is_root = output == output.parent  # below which everything is
    return not is_root and Path(address.removeprefix("sqlite:///")).resolve().is_relative_to(output)


def _is_foreign_database(folder: Folder, address: str | None) -> bool:
    """True if ``address`` is a database elsewhere, which later commands use only if the user names it."""
    return address is not None and not address.startswith(("http://", "https://")) and not _is_beside(folder, address)


def reachable(stored: StoredTracking) -> Json | None:
    """Return the config of the tracker in ``tracking.json``; None if it lacks a password that is not in the environment."""
    config: Json = dict(stored["config"])
    if stored["complete"]:
        return config
    address = redacted_address(str(config.get("uri")), "")
    return {**config, "uri": address} if knows_login(address) else None


def note_ending(folder: Folder, ending: SweepOutcome, missing: str) -> None:
    """Store how measuring ended and why records are missing, for a later process that sends the folder."""
    with suppress(OSError, ValueError):  # without the note, it is judged by the records
        write_json(folder.tracking, {**read_tracking(folder), "ending": ending, "missing": missing})


def noted_ending(folder: Folder) -> tuple[SweepOutcome, str] | None:
    """Return what :func:`note_ending` stored last; None if the driver was killed before."""
    with suppress(OSError, Damaged):
        stored = read_tracking(folder)
        ending = stored.get("ending")
        if ending:
            return ending, stored.get("missing") or ""
    return None


def note_sent(folder: Folder, trouble: str | None) -> None:
    """Store that everything in the folder was sent, or why not; a sweep that was sent before stays sent."""
    with suppress(OSError, ValueError):  # without the note it is sent once more, which changes nothing
        stored = read_tracking(folder)
        stored["trouble"] = trouble
        if not trouble:
            stored["sent"] = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(folder.tracking, stored)


def unsent(output: Path) -> list[Folder]:
    """Return the sweeps below ``output`` that were not sent to their tracker, the oldest first, without those being measured."""
    return [folder for folder in reversed(list(sweeps(output))) if is_unsent(folder) and not has_driver(folder.path)]


def is_unsent(folder: Folder) -> bool:
    """True if the sweep has a tracker and was not sent."""
    try:
        stored = read_tracking(folder)
        return bool(stored["config"].get("_target_")) and stored["sent"] is None
    except (OSError, ValueError, KeyError):  # being made, or damaged: nothing is known of it
        return False


def sending_command(folder: Folder) -> str:
    """Return the command that sends the sweep; :data:`HIDDEN` is what the user has to fill in."""
    words = ["sweeprof", "sync", str(folder.path)]
    address = _address_to_name(folder)
    if address is not None:
        words.append(f"uri={address}")
    return shlex.join(words)


def _address_to_name(folder: Folder) -> str | None:
    """Return the tracker's address if later commands use it only where the user names it, or completes its login."""
    with suppress(OSError, ValueError, KeyError):
        stored = read_tracking(folder)
        if not stored["complete"] or _is_foreign_database(folder, stored["config"]["uri"]):
            return str(stored["config"]["uri"])
    return None


def shown_at(folder: Folder, links: Links, uri: str | None = None) -> tuple[str, str]:
    """Return how to open the sweep in its tracker, with a label: an address, or the command if no server shows it yet."""
    return ("MLflow UI", viewing_command(folder, uri)) if links.needs_viewer else ("Compare", links.comparison)


def viewing_command(folder: Folder, uri: str | None = None) -> str:
    """Return the command that opens MLflow on the sweep; :data:`HIDDEN` is what the user has to fill in.

    Args:
        uri: of the database that has the sweep, where it is not the one that the folder names.
    """
    if uri is not None:
        return shlex.join(["mlflow", "server", "--backend-store-uri", redacted_address(uri)])
    command = shlex.join(["sweeprof", "ui", str(folder.path)])
    address = _address_to_name(folder)
    return command if address is None else f"MLFLOW_TRACKING_URI={shlex.quote(address)} {command}"


# ---- The process ----


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

    def __exit__(self, *_: object) -> None:
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
        self._child = Child("sweeprof.run.tracker_process:serve", [str(os.getpid())], variables, log)

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
    message = f"{type(error).__name__}: {error}"
    status = getattr(error, "get_http_status_code", lambda: None)()
    if status == HTTPStatus.UNAUTHORIZED or "error code 401" in str(error):
        message += f" - {LOGIN}"
    return redacted_message(message)


def serve(connection: Connection, parent: str) -> None:
    """Send what a sweep's driver asks for; ends with its process ``parent``."""
    log_as_a_program()
    die_with(int(parent))
    sys.stdout, sys.stderr = cast("TextIO", _Discreet(sys.stdout)), cast("TextIO", _Discreet(sys.stderr))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    tracker: Tracker | None = None
    reported = -math.inf

    def report_progress() -> None:
        nonlocal reported
        now = time.monotonic()
        if now - reported >= PROGRESS_S:
            reported = now
            connection.send({"progress": True})

    def do(message: Mapping[str, Any]) -> None:
        nonlocal tracker
        answer: dict[str, Any] = {}
        try:
            if tracker is None:
                tracker = _made(message)
                tracker.on_progress = report_progress
            links = _done(tracker, message, Folder(Path(message["folder"])))
            answer["links"] = dataclasses.asdict(links) if links else None
        except Exception as error:  # errors of a tracker are reported, and end nothing
            answer["trouble"] = stored(trouble_of(error))
        connection.send(answer)

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
    with ExitStack() as lock:
        gc.disable()
        try:
            if config["_target_"] in KNOWN:
                with suppress(SweeprofError, OSError):
                    folder = Folder(Path(message["folder"]))
                    plan = folder.read_plan()
                    if folder.foreign() is not None and not message["trust"]:  # which names no place for lock files
                        plan = dataclasses.replace(plan, limits=dataclasses.replace(plan.limits, locks=None))
                    lock.enter_context(host_lock(plan).taken(False))
                import_module(config["_target_"].rpartition(".")[0]).import_library()
        finally:
            collect_again()
        if _is_server(config):
            lock.close()
        do(message)


def _is_server(config: Mapping[str, Any]) -> bool:
    return str(config.get("uri")).startswith(("http://", "https://"))


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

        confine_artifacts(None if _is_server(config) else Path(config["output"]))
    module, _, name = target.rpartition(".")
    # Not by Hydra, which would fill in what the text of a setting names, such as ${oc.env:PASSWORD}.
    arguments = {key: value for key, value in config.items() if key != "_target_"}
    known: Tracker = getattr(import_module(module), name)(**arguments)
    return known


def _done(tracker: Tracker, message: Mapping[str, Any], folder: Folder) -> Links | None:
    if "open" in message:
        info = message["open"]
        with sending_lock(folder.path, OTHERS_OPEN_S):
            return tracker.open(SweepInfo(**{**info, "axes": tuple(info["axes"])}))
    with sending_lock(folder.path, OTHERS_CLOSE_S):
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
