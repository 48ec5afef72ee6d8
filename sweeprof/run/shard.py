"""A shard: the trials that belong on one host; each writes a record, even if it fails.

Passes that do not measure the device may run while frameworks are imported; passes that measure run alone. A trial that has a
record is not run again, so a shard that was interrupted is resumed by running it once more. Before the first of them, their
samples are decoded.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from sweeprof.config.constraints import parse_size
from sweeprof.datasets.source import run_name
from sweeprof.errors import CommandError, Damaged, WorkerError
from sweeprof.passes.registry import exclusive_passes, pass_named
from sweeprof.paths import WEIGHTS, cache_folder
from sweeprof.plan.plan import Plan, Trial, TrialGroup
from sweeprof.processes import Child, NoAnswer, ProcessLost, cause_of_exit, child_environment, killed_by
from sweeprof.results.environment import capture, oom_kills
from sweeprof.results.files import check_room, tail_lines, write_bytes
from sweeprof.results.record import FINE, Json, Record, Status, outcome, stored_record
from sweeprof.run.fork_server import ForkedFrom, WorkerPool
from sweeprof.run.interleave import Coordinator, ProcessExit, Request
from sweeprof.run.locks import Holder, HostSlot, HostSlots, OnWait, host_lock, locked, work_lock
from sweeprof.run.reports import LiveReports, prepare_reports
from sweeprof.run.search import Outcomes, Search, begun, measured_plan
from sweeprof.run.servers import Servers
from sweeprof.run.stopping import Budget, SequentialRounds
from sweeprof.run.trial_limits import KEPT_OF_LOG, excess_reason
from sweeprof.storage import EventLog, Folder
from sweeprof.targets import instantiate

DECODING_S = 3600.0
"""How long a split may take to be decoded before the trials; of one that takes longer, each trial decodes within its own limit."""
WEIGHTS_S = 10.0
"""How long a shard waits for others that remove what killed ones have left."""
log = logging.getLogger(__name__)


def prepare_data(configs: Sequence[Json], logs: Path) -> None:
    """Decode what is not yet in this host's cache; errors are left to the trials, which decode again and report them.

    Args:
        configs: of the combinations that will be measured.
        logs: folder for the log.
    """
    wanted: dict[str, Json] = {}
    for config in configs:
        if config["dataset"].get("prepare"):
            splits = ["test"]
            if config["backend"].get("precision") == "int8":  # which is calibrated on the training split
                splits.append("train")
            for split in splits:
                question = {"dataset": config["dataset"], "split": split}
                wanted[json.dumps(question, sort_keys=True, default=str)] = question
    run_name()  # so that all trials have it
    if not wanted:
        return
    output = logs / "data.log"
    child: Child | None = None
    try:
        for question in wanted.values():
            if child is None:
                child = Child("sweeprof.run.shard:prepared", [], child_environment({}), output, answers=True)
            try:
                child.ask(question, DECODING_S)
            except WorkerError as error:
                target = question["dataset"].get("_target_")
                log.warning("decoding the %s split of %s before its trials: %s", question["split"], target, error)
                child.kill()
                child.close()
                child = None  # the next dataset has a new process
    finally:
        if child is not None:
            child.close()
        with suppress(FileNotFoundError):  # another shard of the sweep was faster
            if not output.stat().st_size:
                output.unlink()


def prepared(question: Json) -> Json:
    """Decode a split in the child process."""
    with suppress(Exception):  # of the user's code, which the trials report
        instantiate(question["dataset"]).prepare(question["split"])
    return {}


@contextmanager
def shared_weights() -> Iterator[dict[str, str]]:
    """Yield the environment variable by which trials share the weights of large models, in a folder that is removed afterwards.

    What killed shards of this host have left is removed first. Without a home, or where the cache cannot be written, nothing is
    shared.
    """
    chosen = cache_folder("weights")
    if chosen is None:
        yield {}
        return
    above = chosen / socket.gethostname()
    folder = above / secrets.token_hex(6)
    environment: dict[str, str] = {}
    with ExitStack() as held:
        with suppress(OSError):
            above.mkdir(parents=True, exist_ok=True, mode=0o700)
            with locked(above / "lock", WEIGHTS_S) as other:  # so that nobody sees a folder without its owner's lock
                if other is None:
                    for left in above.glob("*/lock"):
                        with suppress(OSError), locked(left) as owner:
                            if owner is None:
                                shutil.rmtree(left.parent)
                    folder.mkdir(mode=0o700)
                    held.callback(shutil.rmtree, folder, ignore_errors=True)
                    held.enter_context(locked(folder / "lock"))
                    environment[WEIGHTS] = str(folder)
        yield environment


# ---- The trials of a shard ----


KILLED_TOGETHER_S = 0.3
"""How long a shard waits before it notes that the processes of a trial were killed: a launcher that ends its jobs kills their
processes one after the other, and this one may be next."""
SHARING_TRIALS = 3
"""Fewer trials of a shard would not get back the time that writing the weights takes."""
Run = Callable[[Request], ProcessExit]
"""Runs a trial and waits for its end; raises :class:`WorkerError` as :meth:`WorkerPool.run` does."""


def run_shard(folder: Folder, index: int, wait_s: float = 0) -> bool:
    """Run every trial of shard ``index`` of the plan in ``folder`` that has no record yet.

    Args:
        wait_s: how long to wait for another process that runs this shard, which may be about to end.

    Returns:
        False if another process runs this shard, or the sweep was resumed by another driver.
    """
    work = work_lock(folder.path)
    if work is None:
        return False
    path = folder.events / f"shard-{index}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    # A launcher that retries a job may start it twice, and a job that a cluster gave up may still run on a node without contact.
    with work, locked(path, wait_s) as other:
        if other is None:
            _run_trials(folder, index, path)
    return other is None


def _run_trials(folder: Folder, index: int, path: Path) -> None:
    plan = folder.read_plan()
    sharing: AbstractContextManager[dict[str, str]] = nullcontext({})
    if plan.search is not None or sum(map(len, _unfinished(plan, folder, index))) >= SHARING_TRIALS:
        sharing = shared_weights()
    with (
        sharing as shared,
        EventLog(path) as events,
        WorkerPool(plan.isolation, folder.logs, shared) as pool,
        HostSlots(host_lock(plan), index) as slots,
        closing(Servers(folder.logs / f"server-{index}.log", parse_size(plan.limits.memory))) as servers,
    ):
        shard = _Shard(plan, folder, index, pool, slots, events, servers)
        todo = shard.run_during_imports(_unfinished(plan, folder, index))
        if plan.search is not None:
            shard.search()
            plan = measured_plan(plan, folder)
            shard.ids, shard.sequential = plan.shards[index], SequentialRounds(plan, folder, plan.shards[index])
            todo = _unfinished(plan, folder, index)
        rounds = 0
        for group in todo:
            if group[0].round > rounds:
                rounds = group[0].round
                for id in shard.sequential.note_decided(rounds):  # which have failed, or whose comparisons are decided
                    shard.write_decided(id, rounds)
            shard.run(group)
            shard.report()


def _unfinished(plan: Plan, folder: Folder, index: int) -> list[TrialGroup]:
    return [group for group in plan.trial_groups(index) if not all(map(folder.is_done, group))]


class _Shard:
    def __init__(
        self,
        plan: Plan,
        folder: Folder,
        index: int,
        pool: WorkerPool,
        slots: HostSlots,
        events: EventLog,
        servers: Servers,
    ) -> None:
        self.plan, self.folder, self.pool, self.slots, self.events = plan, folder, pool, slots, events
        self.servers = servers
        self.ids = plan.shards[index]
        """Of the combinations that it measures."""
        self.reports = LiveReports(folder)
        self.sequential, self.budget = SequentialRounds(plan, folder, self.ids), Budget(folder, plan, index)
        # The session distinguishes this run of the shard from later ones that resume it: only rounds of one run were interleaved.
        self._environment = {**capture(), "session": uuid.uuid4().hex[:12]}
        self._combinations = {c.id: c for c in plan.combinations}
        self._timed_out: set[tuple[str, bool]] = set()
        """Combinations of which a trial reached its time limit, and whether its pass is exclusive."""
        self._lost: set[Trial] = set()
        """Trials whose fork server was killed or stopped, perhaps by another trial; each is run once more."""

    def run_during_imports(self, groups: Sequence[TrialGroup]) -> list[TrialGroup]:
        """Import what the trials need, and meanwhile run trials that do not measure the device; returns the remaining groups.

        A search runs none of them. Where a processor has nothing else to do, what the reports need is loaded, too.
        Nothing is measured on this host until it returns.
        """
        remaining = list(groups)
        if not remaining:
            return remaining
        trials = list(chain.from_iterable(groups))
        on_host = {id for id, c in self._combinations.items() if str(c.config["device"]["type"]) == "cpu"}
        with self.slots.shared(self._on_wait(trials[0])):
            self.pool.start(forked for group in groups for forked in self._forked_from(group))
            measured = {trial.combination_id for trial in trials}
            prepare_data([c.config for c in self.plan.combinations if c.id in measured], self.folder.logs)
            aside = []
            for group in groups:
                is_aside = group[0].pass_name not in exclusive_passes() and self.plan.search is None
                if is_aside and all(trial.combination_id in on_host for trial in group):
                    aside.append(group)
            is_prepared = bool(self.plan.cluster)  # there the driver writes the reports
            while self.pool.is_importing:
                ready = next((group for group in aside if self.pool.is_ready(self._forked_from(group)[0])), None)
                if ready is not None:
                    aside.remove(ready)
                    remaining.remove(ready)
                    self._run_in(ready, HostSlot())
                elif not is_prepared and self.pool.has_idle_processor:
                    prepare_reports()
                    is_prepared = True
                else:
                    self.pool.wait_for_import()
        return remaining

    def search(self) -> None:
        """Measure once each combination that a search chooses, as long as there is time and nothing stops the sweep."""
        outcomes = Outcomes(self.plan, self.folder)
        search = Search(self.plan, outcomes, begun(self.folder))
        while self.folder.stopped() is None:
            with self.slots.shared():  # a sampler may need a processor for a second
                id = search.next()
            if id is None:
                return
            trials = [trial for trial in outcomes.first_trials(id) if not self.folder.is_done(trial)]
            if trials and not self.budget.has_time_for_each(trials, self._start_s(trials[0])):
                return
            for trial in trials:
                self._run_in((trial,))
                path = self.folder.record_path(trial)
                # Once more where its process was killed: every later choice of a search depends on its outcome.
                if path.exists() and self._written(path, self._blank(trial)).status in ("crashed", "lost"):
                    self.folder.set_aside(path)
                    self._run_in((trial,))
                self.report()

    def _forked_from(self, group: TrialGroup) -> list[ForkedFrom]:
        """Return what decides from which fork server each trial of a group is forked; on a GPU, the shard's own decides, too."""
        configs = [self._combinations[trial.combination_id].config for trial in group]
        environment = self.slots.environment_on(str(config["device"]["type"]) for config in configs)
        return [(config, trial.pass_name, environment) for config, trial in zip(configs, group, strict=True)]

    def report(self) -> None:
        """Write the reports of what has been measured, if they are due; the driver does so for the jobs of a cluster."""
        if self.reports.is_due and not self.plan.cluster and self.folder.stopped() is None:
            with self.slots.shared():
                self.reports.write()

    def run(self, group: TrialGroup) -> None:
        """Run the trials of a group, each leaving its record; does nothing once the sweep is to stop, or its budget is used up."""
        if self._has_time_for(group):
            self._run_in(group)

    def _run_in(self, group: TrialGroup, host: HostSlot | None = None) -> None:
        """Run the trials of a group; ``host``: the slot that the caller has taken for them."""
        if self.folder.stopped() is not None:
            return
        self.folder.check_exists()
        trials = [trial for trial in group if not self.folder.is_decided(trial) and not self._is_skipped(trial)]
        if not trials:
            return
        for trial in trials:
            self.events.write("begin", trial)
        waits: list[Holder] = []

        def on_wait(holders: Sequence[Holder]) -> None:
            waits.extend(holders)
            self._on_wait(trials[0])(holders)

        blanks = [self._blank(trial) for trial in trials]
        with self.slots.taken(blanks, on_wait) if host is None else nullcontext(host) as taken:
            if waits:
                self.events.write("running", trials[0])
            try:
                self.servers.switch_to(self._server_of(trials[0]), taken.environment)
            except CommandError as error:
                for blank, trial in zip(blanks, trials, strict=True):
                    self._end(trial, self._keep(replace(blank, status=error.status, reason=str(error))))
                return
            if len(trials) > 1:
                self._run_interleaved(trials, taken)
            else:
                self._run_trial(self.pool.run, taken, trials[0])
            # One after the other, also if they were interleaved: a trial that kills the fork servers of the others is then alone.
            for trial in trials:
                if trial in self._lost:
                    self._run_trial(self.pool.run, taken, trial)
                    self._lost.discard(trial)

    def _server_of(self, trial: Trial) -> Json | None:
        """Return the settings of the server that a trial needs, all trials of a group the same."""
        backend = self._combinations[trial.combination_id].config["backend"]
        return backend.get("server") if backend.get("framework") == "command" else None

    def _start_s(self, trial: Trial) -> float:
        """Return how long the start of a trial's server is expected to take."""
        return self.servers.expected_start_s(self._server_of(trial))

    def _on_wait(self, trial: Trial) -> OnWait:
        """Return what notes that a trial waits for other sweeps."""

        def note(holders: Sequence[Holder]) -> None:
            others = [str(holder) for holder in holders if holder.sweep_id != self.plan.sweep_id]
            self.events.write("waiting", trial, waits_for=next(iter(others), None))

        return note

    def write_decided(self, id: str, rounds: int) -> None:
        """Write the events of the trials that a combination does not need after its first ``rounds`` rounds."""
        most = int(self._combinations[id].config["protocol"]["rounds"])
        for name in self.plan.passes:
            if pass_named(name).kind == "rounds":
                for number in range(rounds, most):
                    self.events.write("decided", Trial(id, name, number))

    def _has_time_for(self, group: TrialGroup) -> bool:
        """False if the budget of the sweep is used up before a group of trials would end.

        Where further rounds would begin, the combinations then keep the rounds that they have; else the sweep is stopped.
        """
        trials = [trial for trial in group if not self.folder.is_done(trial)]
        if self.folder.stopped() is not None or self.budget.has_time_for(trials, self._start_s(group[0])):
            return True
        if trials[0].round == 0:
            self.folder.stop_because(f"budget={self.plan.budget}, which is used up")
            return False
        for id in self.ids:
            if self.folder.rounds_that_decided(id) is None and self._combinations[id].unsupported is None:
                records = self.folder.records_of(id, trials[0].pass_name)
                rounds = max((record.round + 1 for record in records), default=0)
                self.folder.note_decided(id, rounds, "budget")
                self.write_decided(id, rounds)
        return False

    def _run_interleaved(self, trials: Sequence[Trial], host: HostSlot) -> None:
        """Run interleaved trials; all of them, also those that have a record, because pairs need both."""
        for trial in trials:
            if self.folder.is_done(trial):
                self.folder.set_aside(self.folder.record_path(trial))
        names = [trial.combination_id for trial in trials]
        with Coordinator(names, self.plan.limits.timeout_s, trials[0].round) as coordinator:
            calls = {}
            for trial in trials:
                run = partial(coordinator.run_participant, trial.combination_id, self.pool.run)
                calls[trial.combination_id] = partial(self._run_trial, run, host, trial)
            coordinator.run(calls)

    def _is_skipped(self, trial: Trial) -> bool:
        """True if an earlier trial of the combination reached its time limit; the record says so.

        A model that is too slow to be measured is counted all the same.
        """
        is_too_slow = (trial.combination_id, False) in self._timed_out
        if trial.pass_name in exclusive_passes():
            is_too_slow = is_too_slow or (trial.combination_id, True) in self._timed_out
        if not is_too_slow:
            return False
        self.events.write("begin", trial)
        reason = "an earlier trial of this combination ran into limits.timeout_s"
        self._end(trial, self._keep(replace(self._blank(trial), status="skipped", reason=reason)))
        return True

    def _run_trial(self, run: Run, host: HostSlot, trial: Trial) -> None:
        record = self._record(run, host.noted(self._blank(trial)), host)
        if record is not None:
            self._end(trial, record)

    def _end(self, trial: Trial, record: Record) -> None:
        """Write the event of a trial's end, and stop the sweep if it failed and ``fail_fast`` is set."""
        if self._server_of(trial) is not None:
            with suppress(FileNotFoundError):
                content = self.servers.log.read_bytes()[-KEPT_OF_LOG:]
                write_bytes(self.folder.path / "artifacts" / trial.combination_id / "server.txt", content)
        status, reason = outcome(record)
        log: str | None = None
        if status not in FINE and self.folder.log_path(trial).is_file():
            log = str(self.folder.log_path(trial))
        step_s: float | None = None
        if record.pass_name == "timing" and record.status == "ok":
            step_s = float(statistics.median((record.observations or {})["samples"]))
        self.events.write("end", trial, status=status, reason=reason, log=log, step_s=step_s)
        self.budget.take(trial, record.wall_s)
        if self.plan.fail_fast and status not in FINE:
            self.folder.stop_because(f"fail_fast: {record.pass_name} {status}: {reason}")

    def _blank(self, trial: Trial) -> Record:
        """Return the record as it stands if the process leaves none."""
        combination, reason = self._combinations[trial.combination_id], "ended without leaving a record"
        return self.folder.new_record(self.plan, combination, trial, "crashed", reason, self._environment)

    def _record(self, run: Run, blank: Record, host: HostSlot) -> Record | None:
        """Run one trial and return its record: the worker's own, or one made here from the way its process ended.

        None if its fork server was killed or stopped for the first time: the trial is run once more.

        Raises:
            OSError: nothing more can be written into the folder.
        """
        trial = Trial(blank.combination_id, blank.pass_name, blank.round)
        log = self.folder.log_path(trial)
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
            server=self.servers.running,
            environment=host.environment,
        )
        try:
            end = run(request)
        except WorkerError as error:
            self.folder.repair(blank.combination_id)
            if path.exists():  # it was complete before whatever happened
                return self._written(path, blank)
            self.folder.check_exists()
            time.sleep(KILLED_TOGETHER_S)
            if isinstance(error, ProcessLost) and trial not in self._lost:
                self._lost.add(trial)
                return None
            status: Status = "timeout" if isinstance(error, NoAnswer) else "lost"
            return self._keep(replace(blank, status=status, reason=str(error), wall_s=time.monotonic() - asked))
        changes = self.folder.repair(blank.combination_id)
        if path.exists():  # also of a process that was killed after it had written it
            if log.exists() and log.stat().st_size == 0:
                log.unlink()
            return self._written(path, blank)
        self.folder.check_exists()
        check_room(self.folder.path)  # the process may have been unable to write its record
        if end.code == -signal.SIGKILL and not end.timed_out:
            time.sleep(KILLED_TOGETHER_S)
        if end.timed_out:
            self._timed_out.add((blank.combination_id, blank.pass_name in exclusive_passes()))
        status, reason = _failure(end, request, oom_kills() > kills)
        if changes:
            reason += f"; it changed the folder of the sweep: {'; '.join(changes)}"
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


def _failure(end: ProcessExit, request: Request, oom_kill: bool) -> tuple[Status, str]:
    """Return status and reason of a process that left no record; ``oom_kill``: the system has ended a process for its memory."""
    if end.used_bytes is not None and request.memory is not None:
        whose = "its processes" if request.server is None else "its processes and its server"
        return "oom", excess_reason(end.used_bytes, request.memory, whose)
    if end.timed_out:
        limit = request.timeout_s
        return "timeout", "took too long" if limit is None else f"took longer than limits.timeout_s={limit:g}"
    if end.code == -signal.SIGKILL and oom_kill:
        return "oom", "the system ran out of memory and killed it"
    log = Path(request.log)
    cause = cause_of_exit(log)
    if "std::bad_alloc" in (cause or ""):
        return "oom", "std::bad_alloc"
    if end.code < 0:
        return "crashed", killed_by(-end.code, log)
    reason = f"exited with code {end.code} without leaving a record"
    return "crashed", f"{reason}: {cause}" if cause else reason
