"""A shard: the trials that belong on one host; each writes a record, even if it fails.

Passes that do not measure the device may run several at a time (``parallel_trials``); passes that measure run alone. A trial that
has a record is not run again, so a shard that was interrupted is resumed by running it once more.
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
from functools import partial
from pathlib import Path
from typing import Any

from sweeprof.config.units import parse_size
from sweeprof.errors import Damaged, WorkerError
from sweeprof.passes.registry import exclusive_passes, pass_named
from sweeprof.plan.plan import Combination, Plan, Trial, TrialGroup
from sweeprof.plan.process_environment import environment, preload
from sweeprof.processes import NoAnswer, signal_name
from sweeprof.results.environment import capture, oom_kills
from sweeprof.results.files import tail_lines
from sweeprof.results.record import FINE, Record, Status, outcome, stored_record
from sweeprof.run.devices import HostSlot, HostSlots, host_slots
from sweeprof.run.interleave import Coordinator
from sweeprof.run.isolation import WorkerPool
from sweeprof.run.locks import Holder, end_with_driver, exclusive_lock, host_lock, work_lock
from sweeprof.run.prepare_data import prepare_data
from sweeprof.run.request import DISK_FULL, Isolation, ProcessExit, Request
from sweeprof.run.sequential import SequentialRounds
from sweeprof.storage.events import EventLog
from sweeprof.storage.folder import Folder


def run_shard(folder: Folder, index: int, wait_s: float = 0) -> bool:
    """Run every trial of shard ``index`` of the plan in ``folder`` that has no record yet.

    Args:
        wait_s: how long to wait for another process that runs this shard, which may be about to end.

    Returns:
        False if another process runs this shard, or the sweep was resumed by another driver.
    """
    end_with_driver(folder.path)
    work = work_lock(folder.path)
    if work is None:
        return False
    path = folder.events / f"shard-{index}.jsonl"
    with work, exclusive_lock(path, wait_s) as is_alone:
        if is_alone:
            _run_trials(folder, index, path)
    return is_alone


def _run_trials(folder: Folder, index: int, path: Path) -> None:
    plan = folder.read_plan()
    todo = [group for group in plan.trial_groups(index) if not all(map(folder.is_done, group))]
    measured = {trial.combination_id for group in todo for trial in group}
    prepare_data([c.config for c in plan.combinations if c.id in measured], folder.logs)
    with (
        EventLog(path) as events,
        WorkerPool(plan.isolation, folder.logs) as pool,
        host_slots(host_lock(plan), index) as slots,
    ):
        shard = _Shard(plan, folder, pool, slots, events, SequentialRounds(plan, folder, plan.shards[index]))
        shard.run_in_parallel([group for group in todo if group[0].pass_name not in exclusive_passes()])
        rounds = 0
        for group in todo:
            if group[0].pass_name not in exclusive_passes():
                continue
            if group[0].round > rounds:
                rounds = group[0].round
                shard.stop_decided(rounds)
            shard.run(group)


@dataclass(slots=True)
class _Shard:
    plan: Plan
    folder: Folder
    pool: WorkerPool
    slots: HostSlots
    events: EventLog
    _sequential: SequentialRounds
    environment: Mapping[str, Any] = field(default_factory=capture)
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Distinguishes this run of the shard from later ones that resume it: only rounds of the same run were interleaved."""
    _combinations: dict[str, Combination] = field(init=False)
    _timed_out: set[str] = field(init=False, default_factory=set)
    """Combinations of which a trial reached its time limit."""
    _is_ending: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._combinations = {c.id: c for c in self.plan.combinations}

    def run_in_parallel(self, groups: Sequence[TrialGroup]) -> None:
        """Run trials that do not measure the device, ``parallel_trials`` at a time."""
        if self.plan.parallel_trials == 1:
            for group in groups:
                self.run(group)
            return
        with ThreadPoolExecutor(self.plan.parallel_trials) as threads:
            try:
                list(threads.map(self.run, groups))  # raises what a trial raised
            except BaseException:
                self._is_ending = True  # or the executor would wait for the trials that its threads run …
                self.slots.stop_waiting()  # … or wait for
                self.pool.close()
                raise

    def run(self, group: TrialGroup) -> None:
        """Run the trials of a group, each leaving its record; does nothing once the sweep is to stop."""
        if self._is_ending or self.folder.stopped() is not None:
            return
        trials = [trial for trial in group if not self.folder.is_decided(trial) and not self._is_skipped(trial)]
        if not trials:
            return
        for trial in trials:
            self.events.write("begin", trial)
        is_waiting = False

        def on_wait(holders: Sequence[Holder]) -> None:
            nonlocal is_waiting
            is_waiting = True
            others = [holder for holder in holders if holder.sweep_id != self.plan.sweep_id]
            self.events.write("waiting", trials[0], waits_for=str(others[0]) if others else None)

        with self.slots.taken([self._blank(trial) for trial in trials], on_wait) as host:
            if is_waiting:
                self.events.write("running", trials[0])
            if len(trials) > 1:
                self._run_interleaved(trials, host)
            else:
                with self.pool.slot() as slot:
                    self._run_trial(slot, host, trials[0])

    def stop_decided(self, rounds: int) -> None:
        """Stop measuring combinations whose comparisons the first ``rounds`` rounds have decided (``protocol.decide``)."""
        for id in self._sequential.note_decided(rounds):
            most = int(self._combinations[id].config["protocol"]["rounds"])
            for name in self.plan.passes:
                if pass_named(name).kind == "rounds":
                    for number in range(rounds, most):
                        self.events.write("decided", Trial(id, name, number))

    def _run_interleaved(self, trials: Sequence[Trial], host: HostSlot) -> None:
        """Run interleaved trials; all of them, also those that have a record, because pairs need both."""
        for trial in trials:
            if self.folder.is_done(trial):
                self.folder.set_aside(self.folder.record_path(trial))
        names = [trial.combination_id for trial in trials]
        seed = f"{self.plan.order_seed} {trials[0].round}"
        with ExitStack() as held:
            # Slots are given back in the opposite order: next time each trial gets one with the same kind of fork server.
            slots = {trial: held.enter_context(self.pool.slot()) for trial in sorted(trials, key=self._fork_server_key)}
            coordinator = held.enter_context(
                Coordinator(names, self.plan.limits.timeout_s, seed, trials[0].round),
            )
            calls = {}
            for trial in trials:
                isolation = coordinator.isolation(trial.combination_id, slots[trial])
                calls[trial.combination_id] = partial(self._run_trial, isolation, host, trial)
            coordinator.run(calls)

    def _fork_server_key(self, trial: Trial) -> str:
        config = self._combinations[trial.combination_id].config
        return json.dumps([preload(config, trial.pass_name), environment(config, trial.pass_name)], sort_keys=True)

    def _is_skipped(self, trial: Trial) -> bool:
        """True if an earlier trial of the combination reached its time limit; the record says so."""
        if trial.combination_id not in self._timed_out:
            return False
        self.events.write("begin", trial)
        reason = "an earlier trial of this combination ran into limits.timeout_s"
        self._end(trial, self._keep(replace(self._blank(trial), status="skipped", reason=reason)))
        return True

    def _run_trial(self, slot: Isolation, host: HostSlot, trial: Trial) -> None:
        record = self._record(slot, host.noted(self._blank(trial)), host)
        self._end(trial, record)

    def _end(self, trial: Trial, record: Record) -> None:
        """Write the event of a trial's end, and stop the sweep if it failed and ``fail_fast`` is set."""
        status, reason = outcome(record)
        log = self.folder.log_path(trial)
        shown = str(log) if status not in FINE and log.is_file() else None
        self.events.write("end", trial, status=status, reason=reason, log=shown)
        if self.plan.fail_fast and status not in FINE:
            self.folder.stop_because(f"fail_fast: {record.pass_name} {status}: {reason}")

    def _blank(self, trial: Trial) -> Record:
        """Return the record as it stands if the process leaves none."""
        combination = self._combinations[trial.combination_id]
        environment = {**self.environment, "session": self.session}
        return self.folder.new_record(
            self.plan, combination, trial, "crashed", "ended without leaving a record", environment
        )

    def _record(self, slot: Isolation, blank: Record, host: HostSlot) -> Record:
        """Run one trial and return its record: the worker's own, or one made here from the way its process ended."""
        log = self.folder.log_path(Trial(blank.combination_id, blank.pass_name, blank.round))
        path = self.folder.records / blank.file_name
        limits, kills, asked = self.plan.limits, oom_kills(), time.monotonic()
        request = Request(
            blank.to_dict(),
            str(self.folder.records),
            str(log),
            limits.timeout_s,
            parse_size(limits.memory),
            asked,
            family=os.getpid(),
            environment=host.environment,
        )
        try:
            end = slot.run(request)
        except WorkerError as error:
            if self._is_ending:
                raise
            if path.exists():  # it was complete before whatever happened
                return self._written(path, blank)
            status: Status = "timeout" if isinstance(error, NoAnswer) else "lost"
            return self._keep(replace(blank, status=status, reason=str(error), wall_s=time.monotonic() - asked))
        if end.code == DISK_FULL:
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} for the record of a trial", str(path))
        if path.exists():  # also of a process that was killed after it had written it
            if log.exists() and log.stat().st_size == 0:
                log.unlink()
            return self._written(path, blank)
        if end.timed_out:
            self._timed_out.add(blank.combination_id)
        status, reason = _failure(end, limits.timeout_s, oom_kills() > kills, tail_lines(log, 1))
        wall_s, trace = time.monotonic() - asked, tail_lines(log, 50)
        return self._keep(replace(blank, status=status, reason=reason, wall_s=wall_s, traceback=trace))

    def _keep(self, record: Record) -> Record:
        record.write(self.folder.records)
        return record

    def _written(self, path: Path, blank: Record) -> Record:
        """Return the record that a trial's process wrote; a damaged one is replaced by one that says so."""
        try:
            return stored_record(path)
        except Damaged as error:
            aside = self.folder.set_aside_damaged(path)
            reason = f"it left a damaged record, {aside.relative_to(self.folder.path)}: {error}"
            return self._keep(replace(blank, status="crashed", reason=reason))


def _failure(end: ProcessExit, timeout_s: float | None, oom_kill: bool, output: str | None) -> tuple[Status, str]:
    """Return status and reason of a process that left no record; ``output`` is its last line."""
    if end.timed_out:
        return (
            "timeout",
            f"took longer than limits.timeout_s={timeout_s:g}" if timeout_s is not None else "took too long",
        )
    if end.code == -signal.SIGKILL and oom_kill:
        return "oom", "the system ran out of memory and killed it"
    if "std::bad_alloc" in (output or ""):
        return "oom", "std::bad_alloc"
    if end.code < 0:
        return "crashed", f"killed by {signal_name(-end.code)} (signal {-end.code})"
    last_line = f": {output}" if output else ""
    return "crashed", f"exited with code {end.code} without leaving a record{last_line}"
