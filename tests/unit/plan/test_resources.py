"""What tasks ask for, and how combinations are dealt out to them."""

from __future__ import annotations

import pytest

from support.planning import planned
from sweeprof.errors import UserError
from sweeprof.plan.plan import expected_seconds, pair_key

FAKE = ("cluster=slurm", "model=fake", "backend=fake", "dataset=synthetic", "tracking=none")
TWO = (*FAKE, "batch_size=1,2,3,4", "model.fake.step_s=0.001,0.002", "compare.baseline={model.fake.step_s: 0.001}")


def test_options_by_which_tasks_are_found_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        planned([*FAKE, "cluster.options={job-name: mine, nice: 5, array: 0-3}"])
    assert [problem.key for problem in caught.value.problems] == ["cluster.options.job-name", "cluster.options.array"]


def test_without_a_cluster_nothing_is_asked_for() -> None:
    assert planned(["cluster=none", *FAKE[1:]]).cluster == {}


def test_what_combinations_use_is_asked_for() -> None:
    plan = planned([*FAKE, "backend.threads=3", "cluster.memory=4GiB", "cluster.partition=cpu"])
    (asked,) = plan.cluster["resources"]
    assert (asked["cpus"], asked["gpus"], asked["memory"], asked["partition"]) == (3, 0, "4GiB", "cpu")


def test_a_gpu_is_asked_for_where_the_device_is_one() -> None:
    plan = planned(["cluster=slurm", "device=cuda,cpu", "tracking=none"])
    gpus = {
        c.axes["device"]: asked["gpus"]
        for shard, asked in zip(plan.shards, plan.cluster["resources"], strict=True)
        for c in plan.combinations
        if c.id in shard
    }
    assert gpus == {"cuda": 1, "cpu": 0}


def test_a_pair_gets_what_is_enough_for_both() -> None:
    plan = planned([*FAKE, "batch_size=1,2", "backend.threads=1,4", "compare.baseline={backend.threads: 1}"])
    assert [asked["cpus"] for asked in plan.cluster["resources"]] == [4]


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
        (["hydra/launcher=joblib", "cluster=slurm"], "hydra/launcher: 'joblib' cannot be combined with cluster=slurm"),
    ],
)
def test_a_launcher_that_does_not_belong_is_told(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        planned([*FAKE[1:-1], "tracking=none", *arguments])
