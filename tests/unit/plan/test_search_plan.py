"""The search that a config describes, and the problems of one that cannot be planned."""

from __future__ import annotations

import pytest

from support.planning import planned
from sweeprof.config.validation import part_problems
from sweeprof.errors import UserError
from sweeprof.plan.compose import change_problems
from sweeprof.plan.plan import Plan, SearchPlan
from sweeprof.results.compared_rows import SearchGoal
from sweeprof.results.record import Json

FAKE = ("model=fake", "backend=fake", "tracking=none", "metrics=latency")
SIZES = "batch_size=doubling(1,64)"


def test_a_search_is_part_of_the_plan() -> None:
    given = "search={maximize: throughput, subject_to: ['latency < 5 ms'], trials: 4}"
    plan = planned([*FAKE, SIZES, "compare.constraints=['batch_size < 64']", given])
    goals = (SearchGoal("throughput/samples_per_s", "maximize"),)
    assert plan.search == SearchPlan(goals, 4, "GPSampler", 0)
    assert plan.axes["batch_size"] == [1, 2, 4, 8, 16, 32, 64]
    assert plan.compare.constraints == ["batch_size < 64", "latency < 5 ms"]
    assert plan.size == 4
    assert len(plan.shards) == 1
    assert Plan.from_dict(plan.to_dict()) == plan
    assert "search" not in plan.combinations[0].command


def test_without_trials_a_sixth_of_the_combinations_is_measured_and_at_least_twenty() -> None:
    few = planned([*FAKE, "batch_size=range(1,31)", "search.minimize=latency", "search.sampler=TPESampler"])
    assert few.search == SearchPlan((SearchGoal("latency/forward", "minimize"),), 20, "TPESampler", 0)
    many = planned([*FAKE, "batch_size=range(1,153)", "search.minimize=latency"])
    assert many.search is not None
    assert many.search.trials == 26  # of 152


def test_several_goals_are_the_pareto_front() -> None:
    plan = planned([*FAKE, SIZES, "search.maximize=throughput", "search.minimize=latency"])
    assert plan.compare.pareto == ["throughput/samples_per_s", "latency/forward"]


def test_on_a_cluster_a_search_is_one_task_with_the_largest_of_the_resources() -> None:
    threads = "backend.threads=1,3"
    plan = planned([*FAKE, SIZES, threads, "cluster=slurm", "cluster.minutes=0.1", "search.maximize=throughput"])
    assert plan.shards == (tuple(c.id for c in plan.combinations),)
    (resources,) = plan.cluster["resources"]
    assert resources["cpus"] == 3


def test_a_single_combination_is_no_search() -> None:
    assert planned([*FAKE, "search.maximize=throughput", "single_combination=true"]).search is None


def test_all_problems_of_goals_and_conditions_at_once() -> None:
    with pytest.raises(UserError) as error:
        planned(
            [
                *FAKE,
                SIZES,
                "shards=2",
                "search.maximize=[throughptu,latency]",
                "search.minimize=[per_sample,latency/per_sample]",
                "search.subject_to=['latncy < 5 ms',latency]",
            ]
        )
    problems = [str(problem) for problem in error.value.problems]
    for message in (
        "shards: 2 must be 1 for a search, which measures one combination after the other.",
        "search.maximize: 'throughptu' is not a metric of this sweep. Did you mean 'throughput'?",
        "search.maximize: 'latency' is better the lower it is: write search.minimize=latency.",
        "search.minimize: 'latency/per_sample' is named twice.",
        "search.subject_to: 'latncy < 5 ms' uses 'latncy', which is not known. Did you mean 'latency'?",
        "search.subject_to: 'latency' has 'latency', which is not a condition: compare it with a value.",
    ):
        assert [one for one in problems if one.startswith(message)], (message, problems)
    assert len(problems) == 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maximize": []}, "search.maximize: [] is not a metric such as throughput, a list of metrics, or null."),
        (
            {"trials": 3},
            "search.trials: 3 needs a goal: search.maximize or search.minimize, such as search.maximize=throughput.",
        ),
        (
            {"minimize": "latency", "sampler": "TPE"},
            "search.sampler: 'TPE' is not a sampler for a search. Did you mean 'TPESampler'? Known: GPSampler, ",
        ),
        (
            {"minimize": "latency", "sampler": "GridSampler"},
            "search.sampler: 'GridSampler' is not a sampler for a search. Did you mean 'GPSampler'? Known: GPSampler, ",
        ),
        (
            {"minimize": "latency", "trials": 0},
            "search.trials: 0 is not a number of combinations: a whole number from 1 to 100,000, or null.",
        ),
    ],
)
def test_problems_of_single_keys(given: Json, message: str) -> None:
    keys = {"maximize": None, "minimize": None, "subject_to": [], "trials": None, "sampler": None, "seed": 0, **given}
    (problem,) = part_problems("search", keys)
    assert str(problem).startswith(message)


def test_changes_of_a_resumed_search() -> None:
    search = SearchPlan((SearchGoal("latency/forward", "minimize"),), 5, "TPESampler")
    assert list(change_problems(search, {"search.trials": 9, "limits.timeout_s": 3})) == []
    (problem,) = change_problems(search, {"search.maximize": "throughput"})
    assert str(problem).startswith(
        "search.maximize: 'throughput' cannot be changed alone: repeat the command of the sweep"
    )
    (problem,) = change_problems(None, {"search.trials": 9})
    assert str(problem) == "search.trials: 9 cannot be set: the sweep that is resumed is not a search."
