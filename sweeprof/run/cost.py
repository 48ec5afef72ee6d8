"""The predicted duration of a sweep: from earlier sweeps on this host, else from the protocols and typical durations."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path

from sweeprof.errors import SweeprofError
from sweeprof.passes.registry import pass_named
from sweeprof.plan.comparing import most_rounds
from sweeprof.plan.plan import Combination, Plan, Trial
from sweeprof.results.environment import process_age
from sweeprof.results.files import read_json
from sweeprof.results.record import FINE, PassName
from sweeprof.results.verdicts import MIN_ROUNDS
from sweeprof.run.search import measured_plan
from sweeprof.run.tracking_file import read_tracking
from sweeprof.storage.events import Event, events_of
from sweeprof.storage.folder import Folder, sweeps

MOST_SWEEPS = 20
"""How many earlier sweeps are read, the newest first."""
MOST_COMBINATIONS = 2000
"""Earlier sweeps with more combinations are not read."""
TRIAL_S: Mapping[str, float] = {"torch": 0.15, "tensorflow": 0.5, "fake": 0.05}
"""Typical duration of a trial beside what its protocol asks for, by framework."""
OTHER_TRIAL_S = 0.3
IMPORT_S: Mapping[str, float] = {"torch": 3.0, "tensorflow": 6.0, "fake": 0.3}
"""Typical duration of an import, by framework; frameworks are imported side by side."""
OTHER_IMPORT_S = 2.0
END_S = 2.0
"""Typical duration of writing the reports and sending them."""
LONGEST_START_S = 60.0
"""A process that is older did something else before."""
LONGEST_WRITE_S = 2.0
"""A file that is newer than its stamp by more was written again."""
LONGEST_GAP_S = 120.0
"""A sweep of which nothing ran for longer was interrupted, or the clock was set; if it was sent later, by another command."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Some trials: their duration and their number."""

    seconds: float = 0.0
    number: int = 0
    known: int = 0
    """How many are of combinations that were measured before on this host."""

    def __add__(self, other: Trials) -> Trials:
        return Trials(self.seconds + other.seconds, self.number + other.number, self.known + other.known)

    def times(self, share: float) -> Trials:
        """Return this share of the trials."""
        return Trials(share * self.seconds, round(share * self.number), round(share * self.known))


@dataclass(frozen=True, slots=True)
class Work:
    """The trials of combinations, by how many rounds they get."""

    first: Trials = Trials()
    """Everything once."""
    least: Trials = Trials()
    """All trials, if verdicts that stop the rounds are decided as early as possible …"""
    most: Trials = Trials()
    """… and if none of them is; the same where the number of rounds is fixed or known from an earlier sweep."""

    def __add__(self, other: Work) -> Work:
        return Work(self.first + other.first, self.least + other.least, self.most + other.most)

    def times(self, share: float) -> Work:
        """Return the work of this share of the combinations."""
        return Work(self.first.times(share), self.least.times(share), self.most.times(share))


@dataclass(frozen=True, slots=True)
class Cost:
    """The predicted duration of a sweep without a budget."""

    work: Work
    once_s: float
    """The start, imports, reports and the tracker."""


def predicted_cost(plan: Plan, output: Path, is_left: Callable[[Trial], bool] = lambda _: True) -> Cost:
    """Return how long the plan takes on this host, trial after trial.

    Args:
        output: the folder of all sweeps.
        is_left: whether a trial is to be measured.
    """
    start_s = _start_s()
    able = [c for c in plan.combinations if c.unsupported is None]
    earlier = _Earlier()
    wanted = {c.id for c in able}
    for folder in _on_this_host(output):
        earlier.read(folder, wanted)
    works = {c.id: _work(c, plan.passes, earlier, is_left) for c in able}
    # Of a search it is not known which further combinations it measures.
    chosen = [id for id in works if plan.search is None or not all(is_left(Trial(id, name)) for name in plan.passes)]
    others = sorted(works.keys() - set(chosen))
    share = max(0, plan.size - len(chosen)) / max(1, len(others))
    work = sum((works[id] for id in chosen), Work()) + sum((works[id] for id in others), Work()).times(share)
    return Cost(work, start_s + earlier.once(able, plan.size))


def _work(
    combination: Combination, passes: Sequence[PassName], earlier: _Earlier, is_left: Callable[[Trial], bool]
) -> Work:
    """Return the trials of a combination that are left."""
    work = Work()
    for name in passes:
        most = rounds_of(combination, name)
        least = most
        if pass_named(name).kind == "rounds" and most_rounds(combination.config):
            known = earlier.rounds.get(combination.id)
            least, most = (MIN_ROUNDS, most) if known is None else (known, known)
        measured = earlier.trials.get((combination.id, name))
        if measured is None:
            seconds = asked_seconds(combination, name) + earlier.beside(combination, name)
        else:
            seconds = statistics.median(measured)
        left = [is_left(Trial(combination.id, name, number)) for number in range(most)]
        numbers = [sum(left[:rounds]) for rounds in (1, least, most)]
        work += Work(*(Trials(number * seconds, number, 0 if measured is None else number) for number in numbers))
    return work


def rounds_of(combination: Combination, pass_name: PassName) -> int:
    """Return how many trials a pass over a combination has."""
    return int(combination.config["protocol"]["rounds"]) if pass_named(pass_name).kind == "rounds" else 1


def asked_seconds(combination: Combination, pass_name: PassName) -> float:
    """Return how long the protocol asks a trial to measure."""
    if pass_named(pass_name).kind != "rounds":
        return 0.0
    protocol = combination.config["protocol"]
    least = max(protocol["min_s"], protocol.get("min_samples", 0) * protocol.get("sample_s", 0.0))
    return float(protocol["warmup_s"] + least)


def _start_s() -> float:
    """Return the age of this process: a sweep begins with the same planning as a dry run."""
    return min(LONGEST_START_S, max(0.0, process_age()))


def _on_this_host(output: Path) -> Iterator[Folder]:
    """Yield the newest sweeps below ``output`` that this host measured."""
    for folder in islice(sweeps(output), MOST_SWEEPS):
        with suppress(SweeprofError, OSError, ValueError):
            if read_json(folder.environment).get("host") == socket.gethostname():
                yield folder


_Kind = tuple[str, PassName]
"""Framework and pass."""


@dataclass(slots=True)
class _Earlier:
    """Durations in earlier sweeps, the newest first."""

    trials: dict[tuple[str, PassName], list[float]] = field(default_factory=dict)
    """Seconds of each trial of a combination's pass, from the newest sweep that has it."""
    rounds: dict[str, int] = field(default_factory=dict)
    """The number of rounds that decided the verdicts of a combination, or that did not."""
    _beside: dict[_Kind, list[float]] = field(default_factory=dict)
    """Seconds beside what the protocol asks for."""
    _once: dict[frozenset[str], float] = field(default_factory=dict)
    """Seconds that belong to no trial, by the frameworks of a sweep."""

    def read(self, folder: Folder, wanted: set[str]) -> None:
        """Add the durations of a sweep; nothing of one that cannot be read or was measured elsewhere."""
        try:
            plan = folder.read_plan()
        except (SweeprofError, OSError, ValueError):
            return
        if plan.cluster or len(plan.combinations) > MOST_COMBINATIONS:
            return
        plan = measured_plan(plan, folder)
        combinations = {c.id: c for c in plan.combinations}
        found: dict[tuple[str, PassName], list[float]] = {}
        events = list(events_of(folder.events))
        for event, seconds in _durations(events):
            combination = combinations.get(event.combination_id)
            if combination is None or event.status not in FINE:
                continue
            found.setdefault((combination.id, event.pass_name), []).append(seconds)
            beside = seconds - asked_seconds(combination, event.pass_name)
            self._beside.setdefault(_kind(combination, event.pass_name), []).append(beside)
        for key, durations in found.items():
            if key[0] in wanted:
                self.trials.setdefault(key, durations)
        for id in wanted & combinations.keys():
            most = most_rounds(combinations[id].config)
            if most and folder.record_path(Trial(id, "timing", most - 1)).exists():
                self.rounds.setdefault(id, most)
            elif (rounds := folder.rounds_that_decided(id, "decided")) is not None:
                self.rounds.setdefault(id, rounds)
        if len(plan.shards) == 1 and plan.parallel_trials == 1:
            once_s = _once_s(folder, plan, events)
            if once_s is not None:
                self._once.setdefault(_frameworks(plan.combinations), once_s)

    def beside(self, combination: Combination, pass_name: PassName) -> float:
        """Return how long a trial takes beside what its protocol asks for."""
        durations = self._beside.get(_kind(combination, pass_name))
        if durations:
            return statistics.median(durations)
        return TRIAL_S.get(_framework(combination), OTHER_TRIAL_S)

    def once(self, combinations: Sequence[Combination], count: int) -> float:
        """Return how long a sweep takes beside its start and its trials."""
        frameworks = _frameworks(combinations)
        if frameworks in self._once:
            return self._once[frameworks]
        imports = [IMPORT_S.get(name, OTHER_IMPORT_S) for name in frameworks]
        return max(imports, default=0.0) + END_S + 0.05 * count


def _framework(combination: Combination) -> str:
    return str(combination.config["backend"].get("framework"))


def _frameworks(combinations: Sequence[Combination]) -> frozenset[str]:
    return frozenset(_framework(c) for c in combinations if c.unsupported is None)


def _kind(combination: Combination, pass_name: PassName) -> _Kind:
    return _framework(combination), pass_name


def _durations(events: Sequence[Event]) -> Iterator[tuple[Event, float]]:
    """Yield the end of each trial with its duration in seconds, without the time that it waited for other sweeps."""
    began: dict[tuple[str, PassName, int], float] = {}
    for event in events:
        if event.kind in ("begin", "running"):
            began[event.key] = event.time
        elif event.kind == "end" and event.key in began:
            yield event, event.time - began.pop(event.key)


def _once_s(folder: Folder, plan: Plan, events: Sequence[Event]) -> float | None:
    """Return the seconds from the plan to the end that belong to no trial; None of a sweep that did not run through at once."""
    trials = sum(1 for _ in _durations(events))
    decided = {event.key for event in events if event.kind == "decided"}
    if trials + len(decided) != len(plan.trials()):
        return None
    once_s = 0.0
    last, does_nothing = _moment(plan.created, folder.plan), True
    for event in events:
        gap_s = event.time - last
        if does_nothing and not 0 <= gap_s < LONGEST_GAP_S:
            return None
        if does_nothing:
            once_s += gap_s
        last, does_nothing = event.time, event.kind in ("end", "decided")
    return once_s + _end_s(folder, last)


def _end_s(folder: Folder, last: float) -> float:
    """Return the seconds from the last trial to the end of the sweep."""
    with suppress(SweeprofError, OSError, ValueError):
        sent = read_tracking(folder).get("sent")
        if sent:
            seconds = _moment(sent, folder.tracking) - last
            if 0 <= seconds < LONGEST_GAP_S:
                return seconds
    return END_S


def _moment(stamp: str, file: Path) -> float:
    """Return the time of a stamp that is cut to a second, in seconds since the epoch: when the file that has it was written.

    Where the file was written later, as in a copy of the folder, it is the middle of that second.
    """
    second = datetime.fromisoformat(stamp).timestamp()
    with suppress(OSError):
        written = file.stat().st_mtime
        if second <= written < second + LONGEST_WRITE_S:
            return written
    return second + 0.5
