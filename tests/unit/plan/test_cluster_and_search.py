"""What tasks of a cluster ask for, how combinations are dealt out to them, and plans of searches."""

from __future__ import annotations

import pytest

from support import planning
from sweeprof.config.validation import part_problems
from sweeprof.plan.compose import change_problems
from sweeprof.plan.plan import Plan, SearchPlan, expected_seconds
from sweeprof.results.compared_rows import SearchGoal
from sweeprof.results.record import Json


def planned(*arguments: str) -> Plan:
    return planning.planned(["model=fake", "backend=fake", "dataset=synthetic", "tracking=none", *arguments])


def clustered(*arguments: str) -> Plan:
    return planned("cluster=slurm", *arguments)


TWO = ("batch_size=1,2,3,4", "model.fake.step_s=0.001,0.002", "compare.baseline={model.fake.step_s: 0.001}")


def test_what_combinations_use_is_asked_for() -> None:
    plan = clustered("backend.threads=3", "cluster.memory=4GiB", "cluster.partition=cpu")
    (asked,) = plan.cluster["resources"]
    assert (asked["cpus"], asked["gpus"], asked["memory"], asked["partition"]) == (3, 0, "4GiB", "cpu")
    assert Plan.from_dict(plan.to_dict()) == plan


def test_a_gpu_is_asked_for_where_the_device_is_one() -> None:
    plan = planning.planned(["cluster=slurm", "device=cuda,cpu", "tracking=none"])
    device = {c.id: c.axes["device"] for c in plan.combinations}
    asked = zip(plan.shards, plan.cluster["resources"], strict=True)
    assert {device[id]: one["gpus"] for shard, one in asked for id in shard} == {"cuda": 1, "cpu": 0}


def test_a_pair_gets_what_is_enough_for_both() -> None:
    plan = clustered("batch_size=1,2", "backend.threads=1,4", "compare.baseline={backend.threads: 1}")
    assert [asked["cpus"] for asked in plan.cluster["resources"]] == [4]


@pytest.mark.parametrize("minutes", [0.05, 0.2, 1, 1000])
def test_there_are_shards_for_about_the_minutes(minutes: float) -> None:
    plan = clustered(*TWO, f"cluster.minutes={minutes}")
    seconds = sum(expected_seconds(c, name) for c in plan.combinations for name in plan.passes)
    assert len(plan.shards) == min(4, -(-seconds // (minutes * 60)))


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7])
def test_a_number_of_shards_takes_the_place_of_minutes(shards: int) -> None:
    assert len(clustered(*TWO, f"shards={shards}").shards) == min(4, shards)


# Searches

LATENCY = "metrics=latency"
SIZES = "batch_size=doubling(1,64)"


def test_a_search_is_part_of_the_plan() -> None:
    given = "search={maximize: throughput, subject_to: ['latency < 5 ms'], trials: 4}"
    plan = planned(LATENCY, SIZES, "compare.constraints=['batch_size < 64']", given)
    goals = (SearchGoal("throughput/samples_per_s", "maximize"),)
    assert plan.search == SearchPlan(goals, 4, "GPSampler", 0)
    assert plan.axes["batch_size"] == [1, 2, 4, 8, 16, 32, 64]
    assert plan.compare.constraints == ["batch_size < 64", "latency < 5 ms"]
    assert plan.size == 4
    assert len(plan.shards) == 1
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "search" not in plan.combinations[0].command


def test_without_trials_a_sixth_of_the_combinations_is_measured_and_at_least_twenty() -> None:
    few = planned(LATENCY, "batch_size=range(1,31)", "search.minimize=latency", "search.sampler=TPESampler")
    assert few.search == SearchPlan((SearchGoal("latency/forward", "minimize"),), 20, "TPESampler", 0)
    many = planned(LATENCY, "batch_size=range(1,153)", "search.minimize=latency")
    fewer = planned(LATENCY, SIZES, "search.minimize=latency")
    assert [plan.search.trials for plan in (many, fewer) if plan.search] == [26, 7]  # of 152, of 7


def test_several_goals_are_the_pareto_front() -> None:
    plan = planned(LATENCY, SIZES, "search.maximize=throughput", "search.minimize=latency")
    assert plan.compare.pareto == ["throughput/samples_per_s", "latency/forward"]


def test_on_a_cluster_a_search_is_one_task_with_the_largest_of_the_resources() -> None:
    plan = clustered(LATENCY, SIZES, "backend.threads=1,3", "cluster.minutes=0.1", "search.maximize=throughput")
    assert plan.shards == (tuple(c.id for c in plan.combinations),)
    (resources,) = plan.cluster["resources"]
    assert resources["cpus"] == 3


def test_a_single_combination_is_no_search() -> None:
    assert planned(LATENCY, "search.maximize=throughput", "single_combination=true").search is None


SAMPLER = "is not a sampler for a search. Did you mean"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maximize": []}, "maximize: [] is not a metric such as throughput, a list of metrics, or null."),
        ({"trials": 3}, "trials: 3 needs a goal: search.maximize or search.minimize, such as search.maximize=throughput."),
        ({"minimize": "latency", "sampler": "TPE"}, f"sampler: 'TPE' {SAMPLER} 'TPESampler'? Known: GPSampler, "),
        ({"minimize": "latency", "sampler": "GridSampler"}, f"sampler: 'GridSampler' {SAMPLER} 'GPSampler'? Known: GPSampler, "),
        (
            {"minimize": "latency", "trials": 0},
            "trials: 0 is not a number of combinations: a whole number from 1 to 100,000, or null.",
        ),
    ],
)  # fmt: skip
def test_problems_of_single_keys(given: Json, message: str) -> None:
    keys = {"maximize": None, "minimize": None, "subject_to": [], "trials": None, "sampler": None, "seed": 0, **given}
    (problem,) = part_problems("search", keys)
    assert str(problem).startswith(f"search.{message}")


def test_changes_of_a_resumed_search() -> None:
    search = SearchPlan((SearchGoal("latency/forward", "minimize"),), 5, "TPESampler")
    assert list(change_problems(search, {"search.trials": 9, "limits.timeout_s": 3})) == []
    (problem,) = change_problems(search, {"search.maximize": "throughput"})
    said = "search.maximize: 'throughput' cannot be changed alone: repeat the command of the sweep"
    assert str(problem).startswith(said)
    (problem,) = change_problems(None, {"search.trials": 9})
    assert str(problem) == "search.trials: 9 cannot be set: the sweep that is resumed is not a search."
