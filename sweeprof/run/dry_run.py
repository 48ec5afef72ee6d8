"""The output of a dry run: the plan, the excluded points with their rules, and the predicted duration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeprof.cluster.job_tracker import scheduler_of
from sweeprof.config.constraints import parse_seconds
from sweeprof.passes.registry import pass_named
from sweeprof.plan.comparing import most_rounds
from sweeprof.plan.plan import Combination, Plan, Trial, expected_seconds
from sweeprof.results.comparison import Excluded
from sweeprof.results.record import PassName
from sweeprof.results.verdicts import MIN_ROUNDS
from sweeprof.run.locks import warn_of_oversubscription
from sweeprof.storage import Jobs

SHOWN_ROWS, SHOWN_EXCLUDED, SHOWN_VALUES = 200, 10, 12
"""How many combinations, excluded points per rule, and values per axis are shown."""
ID_WIDTH = 13
"""Characters of a combination's id."""
TRIAL_S: Mapping[str, float] = {"torch": 0.15, "tensorflow": 0.5, "fake": 0.05}
"""Typical duration of a trial beside what its protocol requests, by framework."""
OTHER_TRIAL_S = 0.3
IMPORT_S: Mapping[str, float] = {"torch": 3.0, "tensorflow": 6.0, "fake": 0.3}
"""Typical duration of an import, by framework; frameworks are imported side by side."""
OTHER_IMPORT_S = 2.0
START_AND_END_S = 3.0
"""Typical duration of planning, of writing the reports and of sending them."""


@dataclass(frozen=True, slots=True)
class Work:
    """The predicted number of trials and their duration, one after the other."""

    trials: int
    seconds: float


def predicted_work(plan: Plan, is_left: Callable[[Trial], bool], rounds: Callable[[Combination], int]) -> Work:
    """Predict the work of a plan from the protocols and typical durations.

    Args:
        is_left: whether a trial is to be measured.
        rounds: the largest number of rounds of a combination.
    """
    trials, seconds = 0.0, 0.0
    able = [c for c in plan.combinations if c.unsupported is None]
    chosen = able
    # A search that is resumed keeps the combinations that it has begun; which others it will choose is unknown.
    if plan.search is not None:
        chosen = [c for c in able if not all(is_left(Trial(c.id, name)) for name in plan.passes)]
    share = max(0, plan.size - len(chosen)) / max(1, len(able) - len(chosen))
    begun = {c.id for c in chosen}
    for combination in able:
        weight = 1.0 if combination.id in begun else share
        beside_s = TRIAL_S.get(str(combination.config["backend"].get("framework")), OTHER_TRIAL_S)
        for name in plan.passes:
            count = min(rounds(combination), rounds_of(combination, name))
            left = sum(is_left(Trial(combination.id, name, number)) for number in range(count))
            trials += weight * left
            seconds += weight * left * (requested_seconds(combination, name) + beside_s)
    return Work(round(trials), seconds)


def rounds_of(combination: Combination, pass_name: PassName) -> int:
    """Return how many trials a pass over a combination has."""
    return int(combination.config["protocol"]["rounds"]) if pass_named(pass_name).kind == "rounds" else 1


def requested_seconds(combination: Combination, pass_name: PassName) -> float:
    """Return how long the protocol requests a trial to measure."""
    if pass_named(pass_name).kind != "rounds":
        return 0.0
    protocol = combination.config["protocol"]
    least = max(protocol["min_s"], protocol.get("min_samples", 0) * protocol.get("sample_s", 0.0))
    return float(protocol["warmup_s"] + least)


def _fewest_rounds(combination: Combination) -> int:
    """Return the number of rounds if verdicts that stop them are decided as early as possible."""
    return MIN_ROUNDS if most_rounds(combination.config) else int(combination.config["protocol"]["rounds"])


def print_plan(plan: Plan, out: Console, is_left: Callable[[Trial], bool] = lambda _: True) -> None:
    """Print the combinations, the passes, the excluded points with the reasons, and the predicted duration.

    Args:
        plan: what would be measured.
        out: where to print.
        is_left: whether a trial is to be measured; of a sweep that is resumed, not all are.
    """
    able = [c for c in plan.combinations if c.unsupported is None]
    # Counted, not listed: there may be millions.
    out.print(_table(plan, {c.id: sum(rounds_of(c, name) for name in plan.passes) for c in able}))
    hidden = len(plan.combinations) - SHOWN_ROWS
    if hidden > 0:
        out.print(Text(f"… and {hidden} more"))
    out.print()
    for line in [*_axes(plan), *_left_out(plan.excluded)]:
        out.print(Text(line), soft_wrap=True)
    passes = plan.passes if able else ()
    rounds = max((rounds_of(c, name) for c in able for name in plan.passes), default=0)
    least = predicted_work(plan, is_left, _fewest_rounds)
    most = predicted_work(plan, is_left, lambda c: int(c.config["protocol"]["rounds"]))
    shards = len(plan.shards)
    at_most = "at most " if any(most_rounds(c.config) for c in plan.combinations) else ""
    for line in (
        f"passes      {', '.join(passes)} ({at_most}{rounds} timing {'round' if rounds == 1 else 'rounds'})",
        *_search(plan),
        *_without_comparisons(plan),
        f"trials      {_span(least.trials, most.trials)} in {shards} {'shard' if shards == 1 else 'shards'}",
        *_times(plan, least, most, predicted_work(plan, is_left, lambda _: 1)),
    ):
        out.print(Text(line), soft_wrap=True)
    for line in _tasks(plan):
        out.print(Text(line), soft_wrap=True)
    warn_of_oversubscription(plan, out)


def _search(plan: Plan) -> Iterator[str]:
    """Yield what a search looks for, and how many combinations it measures."""
    if plan.search is not None:
        goals = ", ".join(f"{goal.direction} {goal.metric}" for goal in plan.search.goals)
        conditions = "".join(f", {condition}" for condition in plan.compare.constraints or ())
        count = f"{plan.size} of {len(plan.combinations)} combinations, chosen by {plan.search.sampler}"
        yield f"search      {count}: {goals}{conditions}"


def _without_comparisons(plan: Plan) -> Iterator[str]:
    """Yield that verdicts are to end the rounds, but nothing is compared."""
    varying = [axis for axis, values in plan.axes.items() if len(values) > 1]
    is_compared = plan.compare.against is not None or any(axis in plan.baseline for axis in varying)
    # A search with one goal compares with the best.
    is_compared = is_compared or (plan.search is not None and len(plan.search.goals) == 1)
    if not is_compared and any(most_rounds(c.config) for c in plan.combinations):
        yield "verdicts    none: no combination has a baseline among the others (compare.baseline)"


def _times(plan: Plan, least: Work, most: Work, first: Work) -> Iterator[str]:
    """Yield the predicted duration, and that a budget does not suffice to measure everything once."""
    if not most.trials:
        yield "about       nothing is left to measure"
        return
    frameworks = {str(c.config["backend"].get("framework")) for c in plan.combinations if c.unsupported is None}
    once_s = START_AND_END_S + max((IMPORT_S.get(name, OTHER_IMPORT_S) for name in frameworks), default=0.0)
    budget_s = None if plan.cluster else parse_seconds(plan.budget)
    shortest, longest = once_s + least.seconds, once_s + most.seconds
    if budget_s is None:
        yield f"about       {_duration(shortest, longest)}, by the protocol"
        return
    yield f"about       {_duration(min(shortest, budget_s), min(longest, budget_s))}, by the protocol"
    once = once_s + first.seconds
    if once > budget_s:
        yield f"budget      {plan.budget} is too short: to measure everything once takes about {_duration(once, once)}"


def _duration(least: float, most: float) -> str:
    unit_s, unit = (60, "min") if most >= 600 else (1, "s")
    return f"{_span(round(least / unit_s), round(most / unit_s))} {unit}"


def _span(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def _table(plan: Plan, trials: Mapping[str, int]) -> Table:
    count = len(plan.combinations)
    title = f"{plan.name}: {count} combination{'s' * (count != 1)}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for axis in plan.axes:
        table.add_column(axis)
    table.add_column("id", style="dim", min_width=ID_WIDTH)  # to be copied, as into compare.baseline
    table.add_column("trials")
    for combination in plan.combinations[:SHOWN_ROWS]:
        message = f"unsupported: {combination.unsupported}" if combination.unsupported else str(trials[combination.id])
        table.add_row(*(_shown(combination.axes[axis]) for axis in plan.axes), combination.id, message)
    return table


def _axes(plan: Plan) -> Iterator[str]:
    """Return the number of combinations for each value of an axis, for axes with several values."""
    for axis, values in plan.axes.items():
        if len(values) > 1:
            counts = Counter(_shown(c.axes[axis]) for c in plan.combinations)
            text = [f"{value} ({count})" for value, count in counts.items()]
            more = f", … {len(text) - SHOWN_VALUES} more" if len(text) > SHOWN_VALUES else ""
            yield f"{axis}: {len(text)} values: {', '.join(text[:SHOWN_VALUES])}{more}"


def _left_out(excluded: tuple[Excluded, ...]) -> Iterator[str]:
    """Yield the points that a rule excluded, or the first ones and their number if there are many."""
    for kind, group in groupby(sorted(excluded, key=_kind), key=_kind):
        points = list(group)
        for one in points[:SHOWN_EXCLUDED]:
            yield f"excluded: {', '.join(f'{key}={_shown(value)}' for key, value in one.axes.items())} ({one.reason})"
        if len(points) > SHOWN_EXCLUDED:
            yield f"excluded: … {len(points) - SHOWN_EXCLUDED} more, {len(points)} in all ({kind})"


def _tasks(plan: Plan) -> Iterator[str]:
    """Return the requested resources of a cluster: a line for tasks with the same resources."""
    if not plan.cluster:
        return
    scheduler = scheduler_of(plan.cluster["settings"], Jobs(Path()))
    most = scheduler.largest_array()
    seconds = {c.id: sum(expected_seconds(c, name) for name in plan.passes) for c in plan.combinations}
    alike: dict[str, list[float]] = {}
    for shard, asked in zip(plan.shards, plan.cluster["resources"], strict=True):
        text = " ".join(f"{key}={value}" for key, value in asked.items() if value and key != "needed_memory")
        if not asked["memory"] and asked.get("needed_memory"):
            text += f" memory>={asked['needed_memory'] / 2**30:.3g}GiB"
        alike.setdefault(text, []).append(sum(seconds[id] for id in shard))
    for text, tasks in alike.items():
        arrays = math.ceil(len(tasks) / most)
        count = f"{len(tasks)} task{'s' * (len(tasks) > 1)} in {arrays} array{'s' * (arrays > 1)}"
        yield f"{scheduler.title.lower():<11} {count}, up to {max(tasks) / 60:.1f} min of work each: {text}"


def _kind(one: Excluded) -> str:
    """Return the rule; for repeated combinations a text that does not name the other one."""
    return one.reason if one.reason.startswith("exclude: ") else "the same as another"


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
