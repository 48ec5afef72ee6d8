"""When the rounds of a sweep end: after a failure, as soon as they have decided (``protocol.decide``), or with its budget.

A combination that raises or lacks memory in the first round gets no further ones: its status would remain the worst of its rounds.

With ``protocol.decide``, after each round from the third on every comparison is made as the report makes it, with intervals that
allow for the repeated tests (:func:`sweeprof.results.statistics.repeated_confidence`). A combination needs no further rounds once
each of its comparisons is decided, or is unlikely to be decided by further rounds, and no limit of a constraint lies within the
interval of its value.

With ``budget``, trials end early enough for the reports to be written within it.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeprof.config.constraints import parse_seconds
from sweeprof.errors import Damaged
from sweeprof.metrics.compute import PLACEHOLDER
from sweeprof.metrics.select import select
from sweeprof.passes.registry import pass_named
from sweeprof.plan.comparing import deciding_metric, metric_in_rounds, most_rounds
from sweeprof.plan.plan import Plan, Trial, expected_seconds
from sweeprof.results.compared_rows import Row, SearchGoal, compared_row, value_of
from sweeprof.results.constraints import conditions, metric_names
from sweeprof.results.differences import Cell
from sweeprof.results.environment import process_age, text
from sweeprof.results.files import read_json, validated, write_json
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import FINE, Record, Status
from sweeprof.results.statistics import is_hopeless
from sweeprof.results.verdicts import MIN_ROUNDS
from sweeprof.run.comparison import comparison_of
from sweeprof.storage import Folder

FAILS_AGAIN: tuple[Status, ...] = ("failed", "oom", "unsupported")
"""Statuses of a round that its repetition has, too: an exception, and a lack of memory. A crash, a lost process, and the exit code
of a program may be chance."""


class SequentialRounds:
    """Follows the comparisons of one shard.

    Args:
        plan: of the sweep.
        folder: of the sweep, with the records of the rounds that have been measured.
        ids: of the shard's combinations.
    """

    def __init__(self, plan: Plan, folder: Folder, ids: tuple[str, ...]) -> None:
        self._plan, self._folder = plan, folder
        members = set(ids)
        self._combinations = {c.id: c for c in plan.combinations if c.id in members and c.unsupported is None}
        self._sequential = [id for id, c in self._combinations.items() if most_rounds(c.config)]
        self._metrics = select(plan.metrics, trust=True) if self._sequential else []
        self._goal: SearchGoal | None = None
        """Of a search with one goal: the best combination is compared with all others that fulfil the conditions."""
        if plan.search is not None and len(plan.search.goals) == 1:
            self._goal = plan.search.goals[0]

    def note_decided(self, rounds: int) -> list[str]:
        """Note in the folder which combinations need no more than the first ``rounds`` rounds; returns their ids."""
        waiting = [id for id in self._combinations if self._folder.rounds_that_decided(id) is None]
        decided = []
        if rounds < MIN_ROUNDS:
            for id in waiting:
                in_rounds = self._records_in_rounds(id)
                is_program = self._combinations[id].config["backend"].get("framework") == "command"
                repeated = ("unsupported",) if is_program else FAILS_AGAIN
                if in_rounds and all(record.status in repeated for record in in_rounds):
                    decided.append(id)
        elif not set(waiting).isdisjoint(self._sequential):
            still_open = self._still_open()
            decided = [id for id in waiting if id in self._sequential and id not in still_open]
        for id in decided:
            self._folder.note_decided(id, rounds)
        return decided

    def _records_in_rounds(self, id: str) -> list[Record]:
        return [record for record in self._folder.records_of(id) if pass_named(record.pass_name).kind == "rounds"]

    def _still_open(self) -> set[str]:
        """Return the combinations that further rounds can decide: one of their comparisons, or whether they fulfil a condition."""
        comparison = comparison_of(self._folder, only=self._combinations.keys(), trust=True)
        rows = {row.combination_id: row for row in comparison.rows if row.combination_id in self._combinations}
        cells: dict[str, Cell] = {}
        for id, row in rows.items():
            records = self._records_in_rounds(id)
            # One whose last round failed decides nothing.
            if records and max(records, key=lambda record: record.round).status == "ok":
                cell = self._deciding_cell(row)
                if cell is not None:
                    cells[id] = cell
        sequential = [id for id in self._sequential if id in cells]
        infos = {info.name: info for info in comparison.metrics}
        still_open = {id for id in sequential if self._is_near_limit(cells[id], infos)}
        others: dict[str, str | None] = {}
        if self._plan.compare.against is not None:
            still_open.update(id for id in sequential if self._may_be_decided(cells[id], rows[id]))
        elif self._goal is None:
            others = {id: rows[id].baseline_id for id in sequential}
        if self._goal is not None:
            feasible = [id for id in sequential if self._is_feasible(rows[id])]
            others = dict.fromkeys(feasible, self._best(feasible, cells))
        for id, other in others.items():
            if other is None or other == id or other not in cells:
                continue
            # An earlier round may have decided it, so that one of them was not measured again.
            if any(self._folder.rounds_that_decided(one) is not None for one in (id, other)):
                continue
            cell = cells[id]
            if self._goal is not None:
                own, theirs = cell.measurement, cells[other].measurement
                threshold = comparison.thresholds.get(own.name, comparison.threshold)
                compared = compared_row(rows[id], {own.name: own}, rows[other], {own.name: theirs}, threshold, {})
                cell = compared.cells[own.name]
            if cell.verdict_reason == "too_few_rounds" or self._may_be_decided(cell, rows[id]):
                still_open |= {id, other}
        return still_open

    def _deciding_cell(self, row: Row) -> Cell | None:
        """Return the cell of the metric that decides; None if it has no value."""
        if self._goal is not None:
            pattern = re.escape(self._goal.metric)
            if metric_in_rounds(self._metrics, self._goal.metric) is None:
                return None
        else:
            metric = deciding_metric(self._metrics, self._combinations[row.combination_id].config.get("mode"))
            if metric is None:
                return None
            pattern = re.escape(metric.metric.info.name).replace(PLACEHOLDER, r"\w+")  # the unit of the workload
        for name, cell in row.cells.items():
            if re.fullmatch(pattern, name) and value_of(row, name) is not None:
                return cell
        return None

    def _is_feasible(self, row: Row) -> bool:
        """True if nothing of a combination failed, and it fulfils all conditions of the search."""
        records = self._folder.records_of(row.combination_id)
        return row.has_values and not row.misses and all(record.status in FINE for record in records)

    def _best(self, ids: Sequence[str], cells: Mapping[str, Cell]) -> str | None:
        """Return the combination with the best value of a search's goal so far; None if there is none."""
        values = {id: float(cells[id].measurement.value or 0) for id in ids}
        if self._goal is not None and self._goal.direction == "maximize":
            return max(values, key=values.__getitem__, default=None)
        return min(values, key=values.__getitem__, default=None)

    def _may_be_decided(self, cell: Cell, row: Row) -> bool:
        """True if the interval of a comparison crosses the threshold, and further rounds can change that."""
        if cell.verdict_reason != "interval_crosses_threshold":
            return False
        has_budget = self._plan.budget is not None  # which is spent on hopeless comparisons, too
        return has_budget or not is_hopeless(len(cell.measurement.rounds), cell.rounds_needed, row.most_rounds)

    def _is_near_limit(self, cell: Cell, infos: Mapping[str, MetricInfo]) -> bool:
        """True if a condition on the deciding metric holds at one end of its interval over the rounds, and not at the other."""
        if cell.measurement.interval is None:
            return False
        names = metric_names([infos[cell.measurement.name]])
        units = dict.fromkeys(names, infos[cell.measurement.name].unit)
        for constraint in self._plan.compare.constraints or ():
            try:
                (condition,) = conditions([constraint], list(names), units)
                holds = {condition.expression.value(dict.fromkeys(names, end)) for end in cell.measurement.interval}
            except ValueError:  # of several metrics, or of others
                continue
            if len(holds) == 2:
                return True
        return False


# ---- The budget ----


REPORTS_S = 1.5
"""Time that is kept for the end of a sweep …"""
REPORT_S = 0.05
"""… and for each combination: its reports and its run in the tracker."""
REPORTS_SHARE = 0.1
"""That is at most this share of the budget, so that most of a short one is for measuring, …"""
LEAST_REPORTS_S = 1.0
"""… but at least so long, …"""
LEAST_REPORT_S = 0.02
"""… with this for each combination."""


@dataclass(frozen=True, slots=True)
class _End:
    """The content of ``budget.json``."""

    ends: float
    """Seconds since the epoch, for shards that a launcher runs on other hosts."""
    monotonic: float
    """The same time by the monotonic clock of the driver's host, which nobody sets while the sweep runs."""
    boot: str | None
    """The boot of that host, since which its monotonic clock counts; None if unknown."""


def begin_budget(folder: Folder, plan: Plan) -> None:
    """Note when the trials of a sweep on this machine must end; the time since this process was started counts.

    What an earlier budget ended gets further rounds; with the first budget also what was given up before without one.
    """
    is_first = plan.budget is not None and not folder.budget.exists()
    folder.forget_decided(None if is_first else "budget")
    seconds = parse_seconds(plan.budget)
    if seconds is None or plan.cluster:
        folder.budget.unlink(missing_ok=True)
        return
    least = LEAST_REPORTS_S + LEAST_REPORT_S * plan.size
    reports_s = min(REPORTS_S + REPORT_S * plan.size, max(least, REPORTS_SHARE * seconds))
    note_end(folder, seconds - process_age() - reports_s)


def note_end(folder: Folder, left_s: float) -> None:
    """Note that the trials of a sweep on this machine must end in ``left_s`` seconds."""
    write_json(folder.budget, _End(time.time() + left_s, time.monotonic() + left_s, _boot()))


def _boot() -> str | None:
    """Return the identifier of this host's current boot."""
    return text(Path("/proc/sys/kernel/random/boot_id"))


def trials_end(folder: Folder) -> float | None:
    """Return when the trials of a sweep on this machine must end, by this host's monotonic clock; None without a budget."""
    try:
        end = validated(_End, read_json(folder.budget))
    except (Damaged, OSError):
        return None
    boot = _boot()
    if boot is not None and boot == end.boot:
        return end.monotonic
    return time.monotonic() + end.ends - time.time()


class Budget:
    """The time that the trials of a shard have, from the moment it begins."""

    def __init__(self, folder: Folder, plan: Plan, shard: int) -> None:
        combinations = {c.id: c for c in plan.combinations}
        self._rounds: dict[str, float] = {}
        """Expected seconds of a round, by combination, before any was measured."""
        for id, combination in combinations.items():
            rounds = int(combination.config["protocol"]["rounds"])
            self._rounds[id] = expected_seconds(combination, "timing") / rounds
        self._taken: dict[str, list[float]] = {}
        """Seconds of the trials that have ended, by pass."""
        self.ends: float | None = None
        """By this host's monotonic clock; None: there is no limit."""
        seconds = parse_seconds(plan.budget)
        if seconds is None:
            return
        self.ends = trials_end(folder)
        if plan.cluster:
            work_of = {id: sum(expected_seconds(c, name) for name in plan.passes) for id, c in combinations.items()}
            work = [sum(map(work_of.__getitem__, ids)) for ids in plan.shards]
            seconds *= work[shard] / sum(work)
        if plan.cluster or self.ends is None:  # the shard was started without its driver
            self.ends = time.monotonic() + seconds

    def has_time_for(self, trials: Sequence[Trial], start_s: float = 0.0) -> bool:
        """True if a trial, or several that alternate, are expected to end in time; ``start_s``: seconds until they begin."""
        # Of trials that alternate, each takes as long as all of them.
        return self._is_in_time(start_s + max(map(self._expected_s, trials), default=-math.inf))

    def has_time_for_each(self, trials: Sequence[Trial], start_s: float = 0.0) -> bool:
        """True if trials that run one after the other are expected to end in time."""
        return self._is_in_time(start_s + sum(map(self._expected_s, trials)))

    def _is_in_time(self, seconds: float) -> bool:
        return self.ends is None or time.monotonic() + seconds <= self.ends

    def _expected_s(self, trial: Trial) -> float:
        return statistics.fmean(self._taken.get(trial.pass_name) or [self._rounds[trial.combination_id]])

    def take(self, trial: Trial, seconds: float) -> None:
        """Note how long a trial took."""
        self._taken.setdefault(trial.pass_name, []).append(seconds)
