"""The search that a config describes: its goals, its conditions, and how many combinations it may measure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeprof.config.samplers import default_sampler
from sweeprof.errors import Problem, choice_problem
from sweeprof.plan.comparing import compare_problems
from sweeprof.plan.plan import Combination, ComparisonSettings, Plan, SearchPlan
from sweeprof.results.comparison import SearchGoal
from sweeprof.results.constraints import metric_names
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Json

Direction = Literal["maximize", "minimize"]
DIRECTIONS: tuple[Direction, ...] = ("maximize", "minimize")
BETTER = {"maximize": "higher", "minimize": "lower"}
SHARE = 1 / 6
"""The share of the combinations that is measured, if the config does not say how many …"""
LEAST_TRIALS = 20
"""… but at least so many."""
REPLACEABLE = ("trials", "sampler", "seed")
"""The keys below ``search`` that a resumed sweep may change without repeating its whole command."""


@dataclass(frozen=True, slots=True)
class _Given:
    """A goal as the config names it."""

    direction: Direction
    name: str


def has_goal(search: Json) -> bool:
    """True if a sweep is a search."""
    return any(search.get(direction) is not None for direction in DIRECTIONS)


def _given(search: Json) -> Iterator[_Given]:
    for direction in DIRECTIONS:
        named = search.get(direction)
        for name in [named] if isinstance(named, str) else named or ():
            yield _Given(direction, name)


def goal_problems(search: Json, metrics: Sequence[MetricInfo], axes: Sequence[str]) -> Iterator[Problem]:
    """Return the problems of the goals and conditions, given the metrics and axes of the sweep."""
    if not has_goal(search):
        return
    names, infos = metric_names(metrics), {info.name: info for info in metrics}
    seen: set[str] = set()
    goals = list(_given(search))
    for goal in goals:
        key = f"search.{goal.direction}"
        if goal.name not in names:
            yield choice_problem(key, goal.name, "metric of this sweep", names)
            continue
        info = infos[names[goal.name]]
        if info.better not in (None, BETTER[goal.direction]):
            other = next(one for one in DIRECTIONS if one != goal.direction)
            yield Problem(key, goal.name, f"is better the {info.better} it is: write search.{other}={goal.name}.")
        elif info.better is None and len(goals) > 1:
            yield Problem(key, goal.name, "has no better direction, so it cannot be one of several goals.")
        if info.name in seen:
            yield Problem(key, goal.name, "is named twice.")
        seen.add(info.name)
    for problem in compare_problems({"constraints": search.get("subject_to")}, metrics, axes):
        yield dataclasses.replace(problem, key="search.subject_to")


def placement_problems(shards: object) -> Iterator[Problem]:
    """Return the problem of a search that is to be divided."""
    if shards not in (None, 1):
        yield Problem("shards", shards, "must be 1 for a search, which measures one combination after the other.")


def search_plan(search: Json, metrics: Sequence[MetricInfo], combinations: Sequence[Combination]) -> SearchPlan | None:
    """Return the search of a config without problems; None if it has no goal."""
    if not has_goal(search):
        return None
    names = metric_names(metrics)
    able = sum(combination.unsupported is None for combination in combinations)
    trials = search["trials"] or max(LEAST_TRIALS, math.ceil(SHARE * able))
    goals = tuple(SearchGoal(names[goal.name], goal.direction) for goal in _given(search))
    return SearchPlan(goals, min(trials, able), search["sampler"] or default_sampler(), search["seed"])


def with_conditions(compare: ComparisonSettings, search: SearchPlan | None, given: Json) -> ComparisonSettings:
    """Return the settings of the comparison with the conditions of a search, and with the front of its goals."""
    if search is None:
        return compare
    constraints = list(dict.fromkeys([*(compare.constraints or ()), *given["subject_to"]]))
    front = [goal.metric for goal in search.goals] if len(search.goals) > 1 else compare.pareto
    return dataclasses.replace(compare, constraints=constraints, pareto=front)


def change_problems(search: SearchPlan | None, given: Mapping[str, object]) -> Iterator[Problem]:
    """Return the problems of keys on the command line of a resumed sweep that does not repeat the command of the sweep.

    Args:
        given: by dotted key; those that do not belong to the search are ignored.
    """
    for key, value in given.items():
        top, _, name = key.partition(".")
        if top != "search":
            continue
        if search is None:
            yield Problem(key, value, "cannot be set: the sweep that is resumed is not a search.")
        elif name not in REPLACEABLE:
            keys = ", ".join(f"search.{one}" for one in REPLACEABLE)
            message = f"cannot be changed alone: repeat the command of the sweep with resume. Without it, you can change {keys}."
            yield Problem(key, value, message)


def changed_search(plan: Plan, given: Mapping[str, object]) -> SearchPlan:
    """Return the search of a stored plan with some of the keys :data:`REPLACEABLE`, without those that are null."""
    assert plan.search is not None
    known: Json = {name: value for name, value in given.items() if value is not None}
    found = dataclasses.replace(plan.search, **known)
    able = sum(c.unsupported is None for c in plan.combinations)
    return dataclasses.replace(found, trials=min(found.trials, able))
