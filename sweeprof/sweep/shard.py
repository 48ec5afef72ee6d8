"""A shard: the trials that belong on one host, each leaving a record whatever happens.

What measures nothing of the device may run several at a time (``jobs``); what measures runs alone. A trial that has left a record
is not run again, so a shard that was interrupted is continued by running it once more.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from sweeprof.errors import Damaged, WorkerError
from sweeprof.results.environment import capture, oom_kills
from sweeprof.results.files import tail_lines
from sweeprof.results.record import Record, Status, outcome, stored_record
from sweeprof.sweep.amounts import parse_size
from sweeprof.sweep.child import NoAnswer, signal_name
from sweeprof.sweep.devices import Place, Places, places
from sweeprof.sweep.duel import Referee
from sweeprof.sweep.events import EventLog
from sweeprof.sweep.folder import Folder
from sweeprof.sweep.hold import alone, end_with_head, working
from sweeprof.sweep.isolation import Isolation, environment, preload
from sweeprof.sweep.lock import Holder, turns_of
from sweeprof.sweep.plan import MEASURING, Bout, Combination, Plan, Trial
from sweeprof.sweep.seats import Seats
from sweeprof.sweep.template import Ending
from sweeprof.sweep.worker import DISK_FULL, Request

FINE: tuple[Status, ...] = ("ok", "unsupported")


def run_shard(folder: Folder, index: int, wait_s: float = 0) -> bool:
    """Run every trial of shard ``index`` of the plan in ``folder`` that has left no record yet.

    Args:
        wait_s: how long to wait for another process that runs this shard, which may be one that is just ending.

    Returns:
        Whether it was this process's to run.
    """
    end_with_head(folder.path)
    work = working(folder.path)
    if work is None:  # the head is gone, and the sweep is being continued without us
        return False
    told = folder.events / f"shard-{index}.jsonl"
    with work, alone(told, wait_s) as is_alone:
        if is_alone:
            _measure(folder, index, told)
    return is_alone


def _measure(folder: Folder, index: int, told: Path) -> None:
    plan = folder.read_plan()
    todo = [bout for bout in plan.bouts(index) if not all(map(folder.is_done, bout))]
    with (
        EventLog(told) as events,
        Seats(plan.isolation, folder.logs) as seats,
        places(turns_of(plan), index) as room,
    ):
        shard = _Shard(plan, folder, seats, room, events)
        aside = [bout for bout in todo if bout[0].pass_name not in MEASURING]
        shard.run_aside(aside)
        for bout in todo[len(aside) :]:
            shard.run(bout)


@dataclass(slots=True)
class _Shard:
    plan: Plan
    folder: Folder
    seats: Seats
    places: Places
    events: EventLog
    environment: Mapping[str, Any] = field(default_factory=capture)
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Tells this run of the shard from those that went on with it later: only rounds of one run were run in turn."""
    _combinations: dict[str, Combination] = field(init=False)
    _hung: set[str] = field(init=False, default_factory=set)
    _is_ending: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._combinations = {c.id: c for c in self.plan.combinations}

    def run_aside(self, bouts: Sequence[Bout]) -> None:
        """Run trials that measure nothing of the device, ``jobs`` at a time."""
        if self.plan.jobs == 1:
            for bout in bouts:
                self.run(bout)
            return
        with ThreadPoolExecutor(self.plan.jobs) as pool:
            try:
                list(pool.map(self.run, bouts))  # raises what a trial raised
            except BaseException:
                self._is_ending = True  # or the pool would wait for what its threads run …
                self.places.give_up()  # … or wait for
                self.seats.close()
                raise

    def run(self, bout: Bout) -> None:
        """Run the trials of a bout, each leaving its record; nothing once the sweep is to stop."""
        if self._is_ending or self.folder.stopped() is not None:
            return
        able = [trial for trial in bout if not self._skipped(trial)]
        if not able:
            return
        for trial in able:
            self.events.tell("begin", trial)
        waits = _Waits(self.events, self.plan.sweep_id, able[0])
        with self.places.taken(list(map(self._blank, able)), waits.begin) as place:
            waits.end()
            if len(able) > 1:
                self._hold_duel(able, place)
            else:
                with self.seats.taken() as seat:
                    self._try(seat, place, *able)

    def _hold_duel(self, bout: Sequence[Trial], place: Place) -> None:
        """Run trials that take turns; every one anew, because pairs need both."""
        for trial in bout:
            if self.folder.is_done(trial):
                self.folder.set_aside(self.folder.record_path(trial))
        names = [trial.combination_id for trial in bout]
        seed = f"{self.plan.order_seed} {bout[0].round}"
        with ExitStack() as held:
            # Seats are given back in the opposite order: next time each goes to the same kind of template.
            seats = {t: held.enter_context(self.seats.taken()) for t in sorted(bout, key=self._template_key)}
            referee = held.enter_context(Referee(names, self.plan.limits["timeout_s"], seed, bout[0].round))
            referee.hold(
                {
                    t.combination_id: partial(self._try, referee.place(t.combination_id, seats[t]), place, t)
                    for t in bout
                }
            )

    def _template_key(self, trial: Trial) -> str:
        config = self._combinations[trial.combination_id].config
        return json.dumps([preload(config, trial.pass_name), environment(config, trial.pass_name)], sort_keys=True)

    def _skipped(self, trial: Trial) -> bool:
        """Whether the trial is not worth its time; it leaves a record that says so."""
        if trial.combination_id not in self._hung:
            return False
        self.events.tell("begin", trial)
        reason = "an earlier trial of this combination ran into limits.timeout_s"
        record = replace(self._blank(trial), status="skipped", reason=reason)
        record.write(self.folder.records)
        self._ended(trial, record)
        return True

    def _try(self, seat: Isolation, place: Place, trial: Trial) -> None:
        record = self._run(seat, place, self._blank(trial))
        if record.status == "timeout" and record.reason == _too_long(self.plan.limits["timeout_s"]):
            self._hung.add(trial.combination_id)
        self._ended(trial, record)

    def _ended(self, trial: Trial, record: Record) -> None:
        status, reason = outcome(record)
        log = self.folder.log_path(trial)
        known = {"log": str(log)} if status not in FINE and log.is_file() else {}
        self.events.tell("end", trial, status=status, reason=reason, **known)
        if self.plan.fail_fast and status not in FINE:
            self.folder.stop_because(f"fail_fast: {record.pass_name} {status}: {reason}")

    def _blank(self, trial: Trial) -> Record:
        """The record as it stands if the process leaves none."""
        combination = self._combinations[trial.combination_id]
        return Record(
            sweep_id=self.plan.sweep_id,
            combination_id=combination.id,
            pass_name=trial.pass_name,
            status="crashed",
            reason="ended without leaving a record",
            round=trial.round,
            attempt=self.folder.attempts(trial),
            axes=combination.axes,
            config=combination.config,
            command=combination.command,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            environment={**self.environment, "session": self.session},
        )

    def _run(self, seat: Isolation, place: Place, blank: Record) -> Record:
        """Run one trial; the record is the worker's own, or made here from the way it ended."""
        blank = place.noted(blank)
        log = self.folder.log_path(Trial(blank.combination_id, blank.pass_name, blank.round))
        path = self.folder.records / blank.file_name
        kills = oom_kills()
        asked = time.monotonic()
        limits = self.plan.limits
        memory = parse_size(limits["memory"])
        request = Request(
            blank.to_dict(),
            str(self.folder.records),
            str(log),
            limits["timeout_s"],
            memory,
            asked,
            family=os.getpid(),
            environment=place.environment,
        )
        try:
            ending = seat.run(request)
        except WorkerError as error:
            if self._is_ending:
                raise
            if path.exists():  # it was done before whatever happened
                return self._written(path, blank)
            status: Status = "timeout" if isinstance(error, NoAnswer) else "lost"
            record = replace(blank, status=status, reason=str(error), wall_s=time.monotonic() - asked)
            record.write(self.folder.records)
            return record
        if ending.code == DISK_FULL:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for the record of a trial", str(path))
        if path.exists():  # also of a process that was killed when it had written it
            _remove_if_empty(log)
            return self._written(path, blank)
        status, reason = _judged(ending, limits["timeout_s"], oom_kills() > kills, tail_lines(log, 1))
        record = replace(
            blank, status=status, reason=reason, wall_s=time.monotonic() - asked, traceback=tail_lines(log, 50)
        )
        record.write(self.folder.records)
        return record

    def _written(self, path: Path, blank: Record) -> Record:
        """The record that a trial's process wrote; one that is damaged is replaced by one that says so."""
        try:
            return stored_record(path)
        except Damaged as error:
            aside = self.folder.set_aside_damaged(path)
            reason = f"it left a damaged record, {aside.relative_to(self.folder.path)}: {error}"
            record = replace(blank, status="crashed", reason=reason)
            record.write(self.folder.records)
            return record


@dataclass(slots=True)
class _Waits:
    """Tells that a trial waits for its turn, and when it has it."""

    events: EventLog
    sweep_id: str
    trial: Trial
    waited: bool = False

    def begin(self, holders: Sequence[Holder]) -> None:
        """The trial is held up."""
        self.waited = True
        first = next((holder for holder in holders if holder.sweep_id != self.sweep_id), None)
        self.events.tell("waiting", self.trial, **{"for": None if first is None else str(first)})

    def end(self) -> None:
        """The trial has its turn."""
        if self.waited:
            self.events.tell("running", self.trial)


def _judged(ending: Ending, timeout_s: float | None, oom_kill: bool, output: str | None) -> tuple[Status, str]:
    """Status and reason of a process that left no record."""
    if ending.timed_out:
        return "timeout", _too_long(timeout_s)
    if ending.code == -signal.SIGKILL and oom_kill:
        return "oom", "the system ran out of memory and killed it"
    if "std::bad_alloc" in (output or ""):
        return "oom", "std::bad_alloc"
    said = f": {output}" if output and ending.code >= 0 else ""
    if ending.code < 0:
        return "crashed", f"killed by {signal_name(-ending.code)} (signal {-ending.code})"
    return "crashed", f"exited with code {ending.code} without leaving a record{said}"


def _too_long(timeout_s: float | None) -> str:
    return f"took longer than limits.timeout_s={timeout_s:g}" if timeout_s is not None else "took too long"


def _remove_if_empty(log: Path) -> None:
    if log.exists() and log.stat().st_size == 0:
        log.unlink()
