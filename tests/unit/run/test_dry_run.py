"""What a dry run prints: the plan, and the predicted duration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from rich.console import Console

from support.plans import fake_plan
from sweeprof.plan.plan import Plan, SearchPlan, Trial
from sweeprof.results.compared_rows import SearchGoal
from sweeprof.run import dry_run
from sweeprof.run.dry_run import print_plan

ONCE_S = dry_run.START_AND_END_S + dry_run.IMPORT_S
ROUND_S, ANALYSIS_S = 0.5 + 1.0 + dry_run.TRIAL_S, dry_run.TRIAL_S


def plan_of(*models: str, rounds: int = 3, decide: str | None = None) -> Plan:
    """One combination per model: an analysis, and rounds that take at least a second and a half."""
    plan = fake_plan({name: {} for name in models}, rounds=rounds)
    protocol = {"warmup_s": 0.5, "min_s": 1.0, "min_samples": 10, "sample_s": 0.01, "rounds": rounds, "decide": decide}
    longer = [dataclasses.replace(c, config={**c.config, "protocol": protocol}) for c in plan.combinations]
    return dataclasses.replace(plan, combinations=tuple(longer))


def printed(plan: Plan, is_left: Callable[[Trial], bool] = lambda _: True) -> dict[str, str]:
    """The lines of a dry run by their first word."""
    out = Console(width=120, record=True)
    print_plan(plan, out, is_left)
    return dict(line.split(maxsplit=1) for line in out.export_text().splitlines() if " " in line.strip())


def test_ids_are_whole_however_many_axes_there_are() -> None:
    plan = fake_plan({"a": {}})
    many = {f"model.fake.argument_{i}": "value" for i in range(6)}
    made = dataclasses.replace(plan.combinations[0], id="c0123456789ab", axes=many)
    out = Console(width=80, record=True)
    axes: dict[str, list[object]] = {axis: [value] for axis, value in many.items()}
    print_plan(dataclasses.replace(plan, axes=axes, combinations=(made,), shards=((made.id,),)), out)
    assert "c0123456789ab" in out.export_text()


def test_the_duration_is_that_of_the_protocol() -> None:
    lines = printed(plan_of("a", "b"))
    assert lines["trials"] == "8 in 1 shard"
    assert lines["about"] == f"{ONCE_S + 2 * (ANALYSIS_S + 3 * ROUND_S):.0f} s, by the protocol"


def test_verdicts_that_stop_the_rounds_give_a_span() -> None:
    lines = printed(plan_of("a", "b", rounds=12, decide="baseline"))
    assert lines["trials"] == "8 to 26 in 1 shard"
    fewest, most = (ONCE_S + 2 * (ANALYSIS_S + rounds * ROUND_S) for rounds in (3, 12))
    assert lines["about"] == f"{fewest:.0f} to {most:.0f} s, by the protocol"
    assert "(at most 12 timing rounds)" in lines["passes"]
    # Of two combinations one has a verdict that stops its rounds.
    one, other = plan_of("a", "b", rounds=12, decide="baseline").combinations
    protocol = {**other.config["protocol"], "decide": None}
    other = dataclasses.replace(other, config={**other.config, "protocol": protocol})
    mixed = dataclasses.replace(plan_of("a", "b", rounds=12), combinations=(one, other))
    assert printed(mixed)["trials"] == "17 to 26 in 1 shard"


def test_a_sweep_with_a_budget_does_not_take_longer() -> None:
    plan = plan_of("a", "b", rounds=12, decide="baseline")
    fewest = ONCE_S + 2 * (ANALYSIS_S + 3 * ROUND_S)
    long = printed(dataclasses.replace(plan, budget="30s"))
    assert long["about"] == f"{fewest:.0f} to 30 s, by the protocol"
    assert "budget" not in long
    short = printed(dataclasses.replace(plan, budget="2s"))
    assert short["about"].startswith("2 s")
    once = ONCE_S + 2 * (ANALYSIS_S + ROUND_S)
    assert short["budget"] == f"2s is too short: to measure everything once takes about {once:.0f} s"


def test_a_resumed_sweep_takes_as_long_as_what_is_left() -> None:
    plan = plan_of("a", "b")
    lines = printed(plan, lambda trial: trial.combination_id == "cb" and trial.round == 2)
    assert lines["trials"] == "1 in 1 shard"
    assert lines["about"] == f"{ONCE_S + ROUND_S:.0f} s, by the protocol"
    assert printed(plan, lambda _: False)["about"] == "nothing is left to measure"


@pytest.mark.parametrize(("is_left", "trials"), [(lambda _: True, 24), (lambda trial: trial.combination_id > "cc", 12)])
def test_a_search_measures_some_of_the_combinations(is_left: Callable[[Trial], bool], trials: int) -> None:
    """Six of ten; where three of them are measured, three of the seven others."""
    plan = plan_of(*"abcdefghij")
    plan = dataclasses.replace(plan, search=SearchPlan((SearchGoal("latency/forward", "minimize"),), 6, "TPESampler"))
    assert printed(plan, is_left)["trials"] == f"{trials} in 1 shard"


def test_a_dry_run_says_that_nothing_is_compared() -> None:
    plan = plan_of("a", "b", rounds=12, decide="baseline")
    assert "verdicts" not in printed(plan)
    assert printed(dataclasses.replace(plan, baseline={}))["verdicts"].startswith("none: no combination has")
    assert "verdicts" not in printed(dataclasses.replace(plan_of("a", "b"), baseline={}))
