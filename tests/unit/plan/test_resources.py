"""What tasks ask for, and how combinations are dealt out to them."""

from __future__ import annotations

import pytest

from support.planning import planned
from sweeprof.errors import UserError
from sweeprof.plan.order import pair_key
from sweeprof.plan.plan import expected_seconds

FAKE = ("cluster=slurm", "model=fake", "backend=fake", "dataset=synthetic", "tracking=none")
TWO = (*FAKE, "batch_size=1,2,3,4", "model.fake.step_s=0.001,0.002", "compare.baseline={model.fake.step_s: 0.001}")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("cluster.options={job-name: mine}", "cluster.options.job-name"),
        ("cluster.groups=[{where: {model: fake}, options: {array: 0-3}}]", "cluster.groups[0].options.array"),
    ],
)
def test_options_by_which_tasks_are_found_are_refused(given: str, key: str) -> None:
    with pytest.raises(UserError) as caught:
        planned([*FAKE, given])
    assert [problem.key for problem in caught.value.problems] == [key]


def test_without_a_cluster_nothing_is_asked_for() -> None:
    assert planned(["cluster=none", *FAKE[1:]]).cluster == {}


def test_what_combinations_use_is_asked_for() -> None:
    plan = planned([*FAKE, "backend.threads=3", "parallel_trials=2", "cluster.memory=4GiB", "cluster.partition=cpu"])
    (asked,) = plan.cluster["resources"]
    assert (asked["cpus"], asked["gpus"], asked["memory"], asked["partition"]) == (6, 0, "4GiB", "cpu")


def test_a_gpu_is_asked_for_where_the_device_is_one() -> None:
    plan = planned(["cluster=slurm", "device=cuda,cpu", "tracking=none"])
    gpus = {
        c.axes["device"]: asked["gpus"]
        for shard, asked in zip(plan.shards, plan.cluster["resources"], strict=True)
        for c in plan.combinations
        if c.id in shard
    }
    assert gpus == {"cuda": 1, "cpu": 0}


def test_groups_apply_in_their_order_and_pairs_get_what_is_enough_for_both() -> None:
    groups = (
        "cluster.groups=[{where: {batch_size: [3, 4]}, memory: 2GiB, time: 30min},"
        "{where: 'model.fake.step_s > 0.0015 and batch_size > 3', memory: 10GiB, options: {nice: 5}}]"
    )
    with pytest.raises(UserError, match=r"cluster\.groups options"):
        planned([*TWO, groups])
    plan = planned([*TWO, "cluster.memory=1GiB", groups.replace(", options: {nice: 5}", ", time: 1h")])
    found = {
        next(c.axes["batch_size"] for c in plan.combinations if c.id in shard): (asked["memory"], asked["time"])
        for shard, asked in zip(plan.shards, plan.cluster["resources"], strict=True)
    }
    assert found[3] == ("2GiB", "30min")
    assert found[4] == ("10GiB", "1h")
    assert found[1] == ("1GiB", None)


def test_a_sites_groups_hold_for_every_sweep() -> None:
    groups = (
        "cluster.groups=[{where: {device: cuda}, partition: gpu}, {where: {batch_size: 99}, qos: long},"
        "{where: 'batch_size * model.torch.width > 4096', memory: 40GiB},"
        "{where: 'model.fake.step_s > 0.0015', time: 2h}, {where: {backend.threads: 1}, account: lab}]"
    )
    asked = planned([*TWO, groups]).cluster["resources"]
    assert {(one["partition"], one["qos"], one["memory"]) for one in asked} == {(None, None, None)}
    assert {(one["time"], one["account"]) for one in asked} == {("2h", "lab")}  # what is enough for both of a pair
    alone = planned([*FAKE, "model.fake.step_s=0.002", groups]).cluster["resources"]
    assert [one["time"] for one in alone] == ["2h"]  # a key of the config that this sweep does not vary


def test_a_clash_is_told_once_however_many_pairs_have_it() -> None:
    with pytest.raises(UserError) as told:
        planned([*TWO, "cluster.groups=[{where: 'model.fake.step_s > 0.0015', partition: slow}]"])
    (problem,) = told.value.problems
    assert problem.key == "cluster.groups partition"


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("[{where: {batch: 1}, memory: 1GiB}]", "cluster.groups where: 'batch' is not an axis of this sweep"),
        ("[{where: {batch_size: 1}, memori: 1GiB}]", r"cluster.groups\[0\].memori: .* Did you mean"),
        ("[{where: {batch_size: 1}, memory: much}]", r"cluster.groups\[0\].memory: 'much' is not a size"),
        ("[{memory: 1GiB}]", r"cluster.groups\[0\]: .* is not \{where:"),
    ],
)
def test_mistakes_in_groups_are_told(groups: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        planned([*TWO, f"cluster.groups={groups}"])


def test_an_unknown_setting_is_told() -> None:
    with pytest.raises(UserError, match=r"cluster.mem: .* Did you mean 'cluster.memory'"):
        planned([*FAKE, "+cluster.mem=4GiB"])


@pytest.mark.parametrize("minutes", [0.05, 0.2, 1, 1000])
def test_shards_have_about_the_minutes_and_keep_pairs_together(minutes: float) -> None:
    plan = planned([*TWO, f"cluster.minutes={minutes}"])
    assert sorted(id for shard in plan.shards for id in shard) == sorted(c.id for c in plan.combinations)
    shard_of = {id: place for place, shard in enumerate(plan.shards) for id in shard}
    pairs: dict[str, set[int]] = {}
    seconds: dict[str, float] = {}
    for c in plan.combinations:
        key = pair_key(c.axes, plan.baseline)
        pairs.setdefault(key, set()).add(shard_of[c.id])
        seconds[key] = seconds.get(key, 0) + sum(expected_seconds(c, name) for name in plan.passes)
    assert all(len(shards) == 1 for shards in pairs.values())
    wanted = min(len(pairs), -(-sum(seconds.values()) // (minutes * 60)))
    assert len(plan.shards) == wanted


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7])
def test_a_number_of_shards_takes_the_place_of_minutes(shards: int) -> None:
    assert len(planned([*TWO, f"shards={shards}"]).shards) == min(4, shards)


@pytest.mark.parametrize("shards", [1, 2, 3, 10, 33])
def test_shards_are_of_about_one_length(shards: int) -> None:
    plan = planned([*FAKE, "batch_size=range(1,101)", "metrics=static", f"shards={shards}"])
    sizes = [len(shard) for shard in plan.shards]
    assert len(sizes) == shards
    assert sum(sizes) == 100
    assert max(sizes) - min(sizes) <= 1
    assert [id for shard in plan.shards for id in shard] == [c.id for c in plan.combinations]


def test_a_plan_for_a_cluster_survives_being_written() -> None:
    plan = planned([*TWO])
    assert type(plan).from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hydra/launcher=slurm"], "hydra/launcher: 'slurm' is selected by cluster=slurm"),
        (
            ["tracking=mlflow", "tracking.uri=http://h", "tracking.writer=job"],
            "tracking.writer: 'job' needs a cluster",
        ),
        (["cluster=slurm", "tracking=mlflow", "tracking.writer=job"], "tracking.writer: 'job' needs a server"),
        (["hydra/launcher=joblib", "cluster=slurm"], "hydra/launcher: 'joblib' cannot be combined with cluster=slurm"),
    ],
)
def test_a_launcher_that_does_not_belong_is_told(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        planned([*FAKE[1:-1], "tracking=none", *arguments])
