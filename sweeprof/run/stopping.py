"""Rounds that stop as soon as they have decided (``protocol.decide``): which combinations of a shard need no further ones.

A combination that raises or lacks memory in the first round is not tried again. After each round from the third on every comparison
is made as the report makes it, with intervals that allow for the repeated tests
(:func:`sweeprof.results.statistics.repeated_confidence`). A combination needs no further rounds once each of its comparisons is
decided, or is unlikely to be decided by further rounds, and no limit of a constraint lies within the interval of its value.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeprof.config.constraints import parse_seconds
from sweeprof.errors import Damaged
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.metric import Selected
from sweeprof.metrics.select import select
from sweeprof.passes.registry import pass_named
from sweeprof.plan.comparing import deciding_metric, metric_in_rounds, most_rounds, thresholds_of
from sweeprof.plan.plan import Combination, Plan, Trial, expected_seconds
from sweeprof.results.comparison import Row, SearchGoal, compared_row, find_baselines, key_of
from sweeprof.results.constraints import conditions, metric_names
from sweeprof.results.environment import process_age, text
from sweeprof.results.files import read_json, validated, write_json
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Record, Status
from sweeprof.results.statistics import is_hopeless
from sweeprof.results.verdicts import MIN_ROUNDS, Cell
from sweeprof.run.comparison import comparison_of, sessions_of
from sweeprof.run.search import Outcomes
from sweeprof.storage import Folder

Pair = tuple[str, str]
"""The ids of a candidate and of the combination that it is compared with."""


FAILS_AGAIN: tuple[Status, ...] = ("failed", "oom", "unsupported")
"""Statuses of a round that its repetition has, too: an exception, and a lack of memory."""


@dataclass(frozen=True, slots=True)
class _Side:
    """A combination's deciding metric after the rounds so far."""

    row: Row
    measurement: Measurement
    metric: Selected


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
        self._baselines = find_baselines(plan.baseline, {id: c.axes for id, c in self._combinations.items()})
        self._outcomes = Outcomes(plan, folder) if plan.search is not None and self._sequential else None
        """Of a search with one goal the best combination is compared with all others that fulfil the conditions."""

    def note_decided(self, rounds: int) -> list[str]:
        """Note in the folder which combinations need no more than the first ``rounds`` rounds; returns their ids."""
        waiting = [id for id in self._sequential if self._folder.rounds_that_decided(id) is None]
        if not waiting:
            return []
        if rounds < MIN_ROUNDS:
            failed = [id for id in waiting if self._fails_again(id)]
            for id in failed:
                self._folder.note_decided(id, rounds)
            return failed
        sides = {id: self._side(c) for id, c in self._combinations.items()}
        still_open = {id for pair in self._comparisons() if self._is_open(pair, sides) for id in pair}
        still_open |= self._open_against_other_sweep([id for id in waiting if sides[id] is not None])
        still_open |= {id for id in waiting if self._is_near_limit(sides[id])}
        decided = [id for id in waiting if id not in still_open]
        for id in decided:
            self._folder.note_decided(id, rounds)
        return decided

    def _fails_again(self, id: str) -> bool:
        """True if each round of a combination failed in a way that further ones repeat; a crash or a lost process may be chance."""
        records = self._folder.records_of(id)
        in_rounds = [record for record in records if pass_named(record.pass_name).kind == "rounds"]
        return bool(in_rounds) and all(record.status in FAILS_AGAIN for record in in_rounds)

    def _comparisons(self) -> Iterator[Pair]:
        """Yield the comparisons that are to be decided."""
        if self._outcomes is not None and self._goal is not None:
            feasible = [id for id in self._sequential if self._outcomes.of(id).is_feasible]
            best = self._best(feasible)
            yield from ((id, best) for id in feasible if best is not None and id != best)
            return
        if self._plan.compare.against is not None:
            return
        for id in self._sequential:
            base = self._baselines[id]
            if base is not None and base != id:
                yield id, base

    def _best(self, group: list[str]) -> str | None:
        """Return the combination of the group with the best value so far; None if none has a value."""
        values: dict[str, float] = {}
        for id in group:
            side = self._side(self._combinations[id])
            if side is not None and side.measurement.value is not None:
                is_lower = side.metric.metric.info.better == "lower"
                values[id] = side.measurement.value if is_lower else -side.measurement.value
        return min(values, key=values.__getitem__) if values else None

    @property
    def _goal(self) -> SearchGoal | None:
        """The goal of a search; None if it has several, which have a front and not a best combination."""
        search = self._plan.search
        return search.goals[0] if search is not None and len(search.goals) == 1 else None

    def _is_open(self, pair: Pair, sides: dict[str, _Side | None]) -> bool:
        """True if further rounds of both can decide the comparison."""
        candidate, base = sides[pair[0]], sides[pair[1]]
        if candidate is None or base is None:
            return False
        if any(self._folder.rounds_that_decided(id) is not None for id in pair):
            return False  # an earlier round decided it, so that one of them was not measured again
        cell = self._cell(candidate, base)
        return cell.verdict_reason == "too_few_rounds" or self._may_be_decided(cell, candidate.row)

    def _may_be_decided(self, cell: Cell, row: Row) -> bool:
        """True if the interval of a comparison crosses the threshold, and further rounds can change that."""
        if cell.verdict_reason != "interval_crosses_threshold":
            return False
        has_budget = self._plan.budget is not None  # which is spent on hopeless comparisons, too
        return has_budget or not is_hopeless(len(cell.measurement.rounds), cell.rounds_needed, row.most_rounds)

    def _open_against_other_sweep(self, waiting: list[str]) -> set[str]:
        """Return the combinations whose comparison with another sweep (``compare.baseline``) further rounds can decide."""
        if self._plan.compare.against is None or not waiting:
            return set()
        found = set()
        for row in comparison_of(self._folder, running=True, only=waiting, trust=True).rows:
            if row.combination_id not in waiting:
                continue
            metric = deciding_metric(self._metrics, self._combinations[row.combination_id].config.get("mode"))
            cell = row.cells.get(metric.metric.info.name) if metric is not None else None
            if cell is not None and self._may_be_decided(cell, row):
                found.add(row.combination_id)
        return found

    def _is_near_limit(self, side: _Side | None) -> bool:
        """True if a constraint on the deciding metric holds at one end of its interval over the rounds, and not at the other."""
        if side is None or side.measurement.interval is None or not self._plan.compare.constraints:
            return False
        names = metric_names([side.metric.metric.info])
        for constraint in self._plan.compare.constraints:
            try:
                (condition,) = conditions([constraint], list(names))
                holds = {condition.expression.value(dict.fromkeys(names, end)) for end in side.measurement.interval}
            except ValueError:  # of several metrics, or of others
                continue
            if len(holds) == 2:
                return True
        return False

    def _cell(self, candidate: _Side, base: _Side) -> Cell:
        info = candidate.metric.metric.info
        threshold = thresholds_of(self._plan, [info]).get(info.name, self._plan.threshold)
        measurements, theirs = {info.name: candidate.measurement}, {info.name: base.measurement}
        return compared_row(candidate.row, measurements, base.row, theirs, threshold, {}).cells[info.name]

    def _side(self, combination: Combination) -> _Side | None:
        """Return a combination's deciding metric; None if it has none, or if its last round failed."""
        if self._goal is None:
            metric = deciding_metric(self._metrics, combination.config.get("mode"))
        else:
            metric = metric_in_rounds(self._metrics, self._goal.metric)
        if metric is None:
            return None
        records = self._records(combination.id, metric)
        if not records or max(records, key=lambda record: record.round).status != "ok":
            return None
        base = self._baselines[combination.id]
        compared = self._records(base, metric) if base is not None and base != combination.id else records
        batch_size = combination.config["batch_size"]
        measurement = evaluate([metric], records, compared, batch_size)[metric.metric.info.name]
        if measurement.value is None or not math.isfinite(measurement.value):
            return None
        timed = [record for record in records if record.status == "ok"]
        row = Row(
            combination_id=combination.id,
            axes=combination.axes,
            status="ok",
            reason=None,
            cells={},
            baseline_id=base,
            environment=key_of(record.environment for record in timed),
            sessions=sessions_of(records),
            most_rounds=most_rounds(combination.config),
        )
        return _Side(row, measurement, metric)

    def _records(self, id: str, metric: Selected) -> list[Record]:
        """Return the records of the passes in rounds that the metric needs."""
        names = [name for name in metric.metric.passes if pass_named(name).kind == "rounds"]
        return [record for name in names for record in self._folder.records_of(id, name)]


# The budget of a sweep: when its trials must end, so that the reports are written within ``budget``.


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
    note_end(folder, seconds - process_age() - _reports_s(seconds, plan.size))


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


def _reports_s(budget_s: float, combinations: int) -> float:
    """Return the time that is kept for the end of a sweep."""
    least = LEAST_REPORTS_S + LEAST_REPORT_S * combinations
    return min(REPORTS_S + REPORT_S * combinations, max(least, REPORTS_SHARE * budget_s))


@dataclass(slots=True)
class Budget:
    """The time that the trials of a shard have."""

    ends: float | None
    """By this host's monotonic clock; None: there is no limit."""
    _combinations: dict[str, float]
    """Expected seconds of a round, by combination, before any was measured."""
    _taken: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of the trials that have ended, by pass."""

    @classmethod
    def of(cls, folder: Folder, plan: Plan, shard: int) -> Budget:
        """Return the budget of a shard that begins now."""
        combinations = {c.id: c for c in plan.combinations}
        rounds = {id: expected_seconds(c, "timing") / c.config["protocol"]["rounds"] for id, c in combinations.items()}
        seconds = parse_seconds(plan.budget)
        if seconds is None:
            return cls(None, rounds)
        if plan.cluster:
            work = [
                sum(expected_seconds(combinations[id], name) for id in ids for name in plan.passes)
                for ids in plan.shards
            ]
            return cls(time.monotonic() + seconds * work[shard] / sum(work), rounds)
        ends = trials_end(folder)
        # None: the shard was started without its driver.
        return cls(time.monotonic() + seconds if ends is None else ends, rounds)

    def has_time_for(self, trials: Sequence[Trial]) -> bool:
        """True if a trial, or several that alternate, are expected to end in time."""
        if self.ends is None or not trials:
            return True
        # Of trials that alternate, each takes as long as all of them.
        return time.monotonic() + max(self._expected_s(trial) for trial in trials) <= self.ends

    def has_time_for_each(self, trials: Sequence[Trial]) -> bool:
        """True if trials that run one after the other are expected to end in time."""
        return self.ends is None or time.monotonic() + sum(map(self._expected_s, trials)) <= self.ends

    def _expected_s(self, trial: Trial) -> float:
        taken = self._taken.get(trial.pass_name)
        return statistics.fmean(taken) if taken else self._combinations[trial.combination_id]

    def take(self, trial: Trial, seconds: float) -> None:
        """Note how long a trial took."""
        self._taken.setdefault(trial.pass_name, []).append(seconds)
