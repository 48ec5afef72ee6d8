"""The output of a dry run: the plan, the excluded points with their rules, and the predicted duration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
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
from sweeprof.results.compared_rows import Excluded
from sweeprof.results.record import PassName
from sweeprof.results.verdicts import MIN_ROUNDS
from sweeprof.run.locks import warn_of_oversubscription
from sweeprof.storage import Jobs
from sweeprof.text import axis_text

SHOWN_ROWS, SHOWN_EXCLUDED, SHOWN_VALUES = 200, 10, 12
"""How many combinations, excluded points per rule, and values per axis are shown."""
ID_WIDTH = 13
"""Characters of a combination's id."""
TRIAL_S = 0.15
"""Typical duration of a trial of a small model beside what its protocol requests."""
TRACED_TRIAL_S = {"tensorflow": 0.5, "jax": 1.4}
"""The same, by framework, where every process traces and compiles the model."""
IMPORT_S = 3.0
"""Typical duration of the imports of frameworks, which are imported side by side."""
START_AND_END_S = 3.0
"""Typical duration of planning, of writing the reports and of sending them."""


@dataclass(frozen=True, slots=True)
class PredictedWork:
    """The predicted number of trials and the duration of the sweep."""

    trials: int
    seconds: float


def predicted_work(
    plan: Plan, is_left: Callable[[Trial], bool], most: int | None = None, only_deciding: bool = False
) -> PredictedWork:
    """Predict the work of a plan: the seconds of its protocols, a constant per trial, and the imports.

    Args:
        is_left: whether a trial is to be measured.
        most: the largest number of rounds of a combination; None: as its protocol says.
        only_deciding: True if ``most`` is for combinations whose verdict may end their rounds.
    """
    trials, seconds = 0.0, 0.0
    able = [c for c in plan.combinations if c.unsupported is None]
    # A search that is resumed keeps the combinations that it has begun; which others it will choose is unknown.
    begun = set()
    for combination in able:
        if plan.search is None or any(not is_left(Trial(combination.id, name)) for name in plan.passes):
            begun.add(combination.id)
    share = max(0, plan.size - len(begun)) / max(1, len(able) - len(begun))
    for combination in able:
        weight = 1.0 if combination.id in begun else share
        protocol = combination.config["protocol"]
        least_s = max(protocol["min_s"], protocol.get("min_samples", 0) * protocol.get("sample_s", 0.0))
        for name in plan.passes:
            count = rounds_of(combination, name)
            if most is not None and (most_rounds(combination.config) or not only_deciding):
                count = min(count, most)
            left = sum(is_left(Trial(combination.id, name, number)) for number in range(count))
            trials += weight * left
            seconds += weight * left * TRACED_TRIAL_S.get(combination.config["backend"]["framework"], TRIAL_S)
            if pass_named(name).kind == "rounds":
                seconds += weight * left * (protocol["warmup_s"] + least_s)
    return PredictedWork(round(trials), START_AND_END_S + IMPORT_S + seconds)


def rounds_of(combination: Combination, pass_name: PassName) -> int:
    """Return how many trials a pass over a combination has."""
    return int(combination.config["protocol"]["rounds"]) if pass_named(pass_name).kind == "rounds" else 1


def print_plan(plan: Plan, out: Console, is_left: Callable[[Trial], bool] = lambda _: True) -> None:
    """Print the combinations, the passes, the excluded points with the reasons, and the predicted duration.

    Args:
        plan: what would be measured.
        out: where to print.
        is_left: whether a trial is to be measured; of a sweep that is resumed, not all are.
    """
    out.print(_table(plan))
    hidden = len(plan.combinations) - SHOWN_ROWS
    if hidden > 0:
        out.print(Text(f"… and {hidden} more"))
    out.print()
    lines = [*_axes(plan), *_left_out(plan.excluded)]
    able = [c for c in plan.combinations if c.unsupported is None]
    passes = ", ".join(plan.passes) if able else ""
    rounds = 0
    for combination in able:
        for name in plan.passes:
            rounds = max(rounds, rounds_of(combination, name))
    stops_early = any(most_rounds(c.config) for c in plan.combinations)
    at_most = "at most " if stops_early else ""
    lines.append(f"passes      {passes} ({at_most}{rounds} timing round{'s' * (rounds != 1)})")
    if plan.search is not None:
        goals = ", ".join(f"{goal.direction} {goal.metric}" for goal in plan.search.goals)
        conditions = "".join(f", {condition}" for condition in plan.compare.constraints or ())
        count = f"{plan.size} of {len(plan.combinations)} combinations, chosen by {plan.search.sampler}"
        lines.append(f"search      {count}: {goals}{conditions}")
    if stops_early and not _is_compared(plan):
        lines.append("verdicts    none: no combination has a baseline among the others (compare.baseline)")
    most = predicted_work(plan, is_left)
    least = predicted_work(plan, is_left, MIN_ROUNDS, only_deciding=True) if stops_early else most
    shards = len(plan.shards)
    lines.append(f"trials      {_span(least.trials, most.trials)} in {shards} shard{'s' * (shards != 1)}")
    budget_s = None if plan.cluster else parse_seconds(plan.budget)
    if not most.trials:
        lines.append("about       nothing is left to measure")
    elif budget_s is None:
        lines.append(f"about       {_duration(least.seconds, most.seconds)}, by the protocol")
    else:
        within = _duration(min(least.seconds, budget_s), min(most.seconds, budget_s))
        lines.append(f"about       {within}, by the protocol")
        once_s = predicted_work(plan, is_left, 1).seconds
        if once_s > budget_s:
            once = _duration(once_s, once_s)
            lines.append(f"budget      {plan.budget} is too short: to measure everything once takes about {once}")
    if plan.cluster:
        lines += _tasks(plan)
    for line in lines:
        out.print(Text(line), soft_wrap=True)
    warn_of_oversubscription(plan, out)


def _is_compared(plan: Plan) -> bool:
    """True if anything is compared: with another sweep, with a baseline, or in a search with one goal with the best."""
    if plan.compare.against is not None or (plan.search is not None and len(plan.search.goals) == 1):
        return True
    return any(axis in plan.baseline and len(values) > 1 for axis, values in plan.axes.items())


def _duration(least: float, most: float) -> str:
    if most >= 600:
        return f"{_span(round(least / 60), round(most / 60))} min"
    return f"{_span(round(least), round(most))} s"


def _span(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def _table(plan: Plan) -> Table:
    count = len(plan.combinations)
    title = f"{plan.name}: {count} combination{'s' * (count != 1)}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for axis in plan.axes:
        table.add_column(axis)
    table.add_column("id", style="dim", min_width=ID_WIDTH)  # to be copied, as into compare.baseline
    table.add_column("trials")
    for combination in plan.combinations[:SHOWN_ROWS]:
        if combination.unsupported:
            message = f"unsupported: {combination.unsupported}"
        else:  # counted, not listed: there may be millions
            message = str(sum(rounds_of(combination, name) for name in plan.passes))
        table.add_row(*(_shown(combination.axes[axis]) for axis in plan.axes), combination.id, message)
    return table


def _axes(plan: Plan) -> Iterator[str]:
    """Yield the number of combinations for each value of an axis, for axes with several values."""
    for axis, values in plan.axes.items():
        if len(values) > 1:
            counts = Counter(_shown(c.axes[axis]) for c in plan.combinations)
            text = [f"{value} ({count})" for value, count in counts.items()]
            shown = ", ".join(text[:SHOWN_VALUES])
            if len(text) > SHOWN_VALUES:
                shown += f", … {len(text) - SHOWN_VALUES} more"
            yield f"{axis}: {len(text)} values: {shown}"


def _left_out(excluded: tuple[Excluded, ...]) -> Iterator[str]:
    """Yield the points that a rule excluded, or the first ones and their number if there are many."""

    def rule(one: Excluded) -> str:
        return one.reason if one.reason.startswith("exclude: ") else "the same as another"

    for name, group in groupby(sorted(excluded, key=rule), key=rule):
        points = list(group)
        for one in points[:SHOWN_EXCLUDED]:
            yield f"excluded: {', '.join(f'{key}={_shown(value)}' for key, value in one.axes.items())} ({one.reason})"
        if len(points) > SHOWN_EXCLUDED:
            yield f"excluded: … {len(points) - SHOWN_EXCLUDED} more, {len(points)} in all ({name})"


def _tasks(plan: Plan) -> Iterator[str]:
    """Yield the requested resources of a cluster: a line for tasks with the same resources."""
    scheduler = scheduler_of(plan.cluster["settings"], Jobs(Path()))
    largest = scheduler.largest_array()
    seconds = {c.id: sum(expected_seconds(c, name) for name in plan.passes) for c in plan.combinations}
    alike: dict[str, list[float]] = {}
    for shard, asked in zip(plan.shards, plan.cluster["resources"], strict=True):
        text = " ".join(f"{key}={value}" for key, value in asked.items() if value and key != "needed_memory")
        if not asked["memory"] and asked.get("needed_memory"):
            text += f" memory>={asked['needed_memory'] / 2**30:.3g}GiB"
        alike.setdefault(text, []).append(sum(seconds[id] for id in shard))
    for text, tasks in alike.items():
        arrays = math.ceil(len(tasks) / largest)
        count = f"{len(tasks)} task{'s' * (len(tasks) > 1)} in {arrays} array{'s' * (arrays > 1)}"
        yield f"{scheduler.title.lower():<11} {count}, up to {max(tasks) / 60:.1f} min of work each: {text}"


def _shown(value: Any) -> str:
    return "-" if value is None else axis_text(value)
