"""Points, identities, trials and shards."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.plans import fake_plan
from sweeprof.config.schema import IDENTITY
from sweeprof.passes.registry import exclusive_passes, passes
from sweeprof.plan.plan import Combination, Plan, Trial, identity, in_shards, trial_groups, without_repeats
from sweeprof.results.compared_rows import Excluded
from sweeprof.results.record import PassName

CONFIG: dict[str, Any] = {
    "model": {"torch": {"_target_": "a.b", "width": 4}},
    "dataset": {"_target_": "c.d", "seed": 0},
    "backend": {"_target_": "e.f", "framework": "torch", "threads": 1},
    "device": {"type": "cpu"},
    "batch_size": 8,
    "metrics": {"select": ["compute/macs"]},
    "protocol": {"rounds": 1, "warmup_s": 0.2, "min_s": 0.5},
    "seed": {"weights": 0, "order": 0},
}
GOLDEN_ID = "c1a00a42add3f"

PASSES = tuple(passes())


def combination(id: str, rounds: int = 1, unsupported: str | None = None, **axes: Any) -> Combination:
    return Combination(id, axes, {**CONFIG, "protocol": {**CONFIG["protocol"], "rounds": rounds}}, "", unsupported)


def points(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The product of the axes."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def test_the_golden_identity() -> None:
    """Records of earlier sweeps must be found again: change this only with the schema version."""
    assert identity(CONFIG) == GOLDEN_ID
    assert identity(dict(reversed(CONFIG.items()))) == GOLDEN_ID


@pytest.mark.parametrize("key", ["tracking", "limits", "name", "isolation"])
def test_the_identity_ignores_what_is_not_measured(key: str) -> None:
    assert identity({**CONFIG, key: {"any": "thing"}}) == GOLDEN_ID


@pytest.mark.parametrize("key", IDENTITY)
def test_the_identity_changes_with_what_is_measured(key: str) -> None:
    parts: dict[str, Any] = {"training": {"optimizer": "sgd"}, "generation": {"new_tokens": 8}, "inputs": {"rows": 3}}
    parts |= {"quality": {"f1": {"_target_": "a.b"}}, "args": {"n": 1}}
    given = copy.deepcopy({"mode": key if key == "generation" else "training", **parts, **CONFIG})
    changed = {**given, key: {**given[key], "new": 1} if isinstance(given[key], dict) else 9}
    without = {k: v for k, v in given.items() if k != key}
    assert len({identity(given), identity(changed), identity(without)}) == 3


def test_the_settings_of_another_mode_are_no_part_of_the_identity() -> None:
    plain = {mode: identity({**CONFIG, "mode": mode}) for mode in ("inference", "training", "generation")}
    for mode, id in plain.items():
        for part in ("training", "generation"):
            assert (identity({**CONFIG, "mode": mode, part: {"new": 1}}) == id) == (part != mode)


def test_a_repeated_combination_is_excluded() -> None:
    first, second = combination("c1", a=1, b=2), combination("c2", a=3, b=4)
    kept, repeats = without_repeats([first, second, combination("c1", a=5, b=6)])
    assert kept == (first, second)
    assert repeats == (Excluded({"a": 5, "b": 6}, "the same as a=1, b=2"),)


def trials(combinations: list[Combination], passes: Sequence[PassName]) -> list[Trial]:
    """The trials of a plan without interleaved runs."""
    found = trial_groups(combinations, passes, {})
    assert all(len(group) == 1 for group in found)
    return [trial for (trial,) in found]


def test_the_first_round_comes_first_and_the_others_last() -> None:
    order = trials([combination("c1", 2), combination("c2", 2)], PASSES)
    aside = [name for name in PASSES if name not in exclusive_passes()]
    alone = [name for name in PASSES if name in exclusive_passes() and name != "timing"]
    ids = [trial.combination_id for trial in order[:2]]
    assert sorted(ids) == ["c1", "c2"]
    assert order[:2] == [Trial(id, "timing", 0) for id in ids]
    assert order[2:-2] == [Trial(id, name) for names in (alone, aside) for id in ids for name in names]
    assert {(trial.pass_name, trial.round) for trial in order[-2:]} == {("timing", 1)}


def test_the_first_results_are_spread_over_the_axes() -> None:
    models, backends, sizes = ["mlp", "lenet5", "resnet"], ["torch", "tf"], [1, 8, 64]
    product = points({"model": models, "backend": backends, "batch_size": sizes})
    combinations = [combination(f"c{number}", **point) for number, point in enumerate(product)]
    by_id = {c.id: c.axes for c in combinations}
    found = trial_groups(combinations, ["timing"], {"backend": "torch"})
    order = [by_id[trial.combination_id] for (trial,) in found[:18]]
    assert {axes["model"] for axes in order[:6]} == set(models)
    assert {axes["batch_size"] for axes in order[:6]} == set(sizes)
    for first, second in zip(order[::2], order[1::2], strict=True):
        assert {first["backend"], second["backend"]} == set(backends)
        assert (first["model"], first["batch_size"]) == (second["model"], second["batch_size"])


def test_combinations_that_share_one_baseline_are_spread_too() -> None:
    combinations = [combination(f"c{m}{size}", model=m, batch_size=size) for m in "ab" for size in (1, 2, 4)]
    order = [t.combination_id for (t,) in trial_groups(combinations, ["timing"], {"model": "a", "batch_size": 1})]
    assert {id[1] for id in order[:2]} == {"a", "b"}
    assert {id[2] for id in order[:3]} == {"1", "2", "4"}


@given(rounds=st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_every_round_has_every_combination_once(rounds: list[int]) -> None:
    order = trials([combination(f"c{i}", n) for i, n in enumerate(rounds)], ["timing"])
    assert [t.round for t in order] == sorted(t.round for t in order)
    for round in range(max(rounds)):
        ids = [t.combination_id for t in order if t.round == round]
        assert sorted(ids) == sorted(f"c{i}" for i, n in enumerate(rounds) if round < n)


def test_rounds_have_orders_of_their_own_that_are_always_the_same() -> None:
    order = trials([combination(f"c{i}", 5) for i in range(8)], ["timing"])
    orders = [tuple(t.combination_id for t in order if t.round == r) for r in range(5)]
    assert len(set(orders)) == 5
    assert orders[0] == ("c4", "c1", "c5", "c2", "c0", "c3", "c7", "c6")  # in every process


def test_static_passes_alone_need_no_rounds() -> None:
    assert trials([combination("c1", 5)], ["quality"]) == [Trial("c1", "quality")]
    assert trials([], PASSES) == []


def test_what_is_unsupported_is_not_tried() -> None:
    order = trials([combination("c1"), combination("c2", unsupported="no builder")], PASSES)
    assert {t.combination_id for t in order} == {"c1"}


def test_what_shares_a_baseline_is_interleaved_in_one_trial_group() -> None:
    samples = {**CONFIG, "protocol": {**CONFIG["protocol"], "rounds": 3, "interleave": "samples"}}
    combinations = [
        Combination(f"c{backend}{size}", {"backend": backend, "batch_size": size}, samples, "")
        for backend in ("torch", "tf", "onnx")
        for size in (1, 8)
    ]
    found = trial_groups(combinations, ["timing"], {"backend": "torch"})
    assert [len(group) for group in found] == [3] * 6
    assert all(len({(t.combination_id[-1], t.round) for t in group}) == 1 for group in found)
    assert len({tuple(t.combination_id for t in group) for group in found if group[0].combination_id[-1] == "1"}) > 1


grid = st.fixed_dictionaries(
    {
        "model": st.lists(st.sampled_from("mno"), unique=True, min_size=1),
        "backend": st.lists(st.sampled_from(["torch", "tf", "fake"]), unique=True, min_size=1),
        "batch_size": st.lists(st.sampled_from([1, 8, 64]), unique=True, min_size=1),
    }
)


@given(grid=grid, count=st.integers(0, 12))
def test_shards_keep_pairs_together_and_lose_nothing(grid: dict[str, list[Any]], count: int) -> None:
    combinations = [combination(f"c{i}", **point) for i, point in enumerate(points(grid))]
    shards = in_shards(combinations, {"backend": "torch"}, count)
    assert 1 <= len(shards) <= max(1, count)
    assert all(shards)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= len(grid["backend"])  # one pair
    assert sorted(itertools.chain(*shards)) == sorted(c.id for c in combinations)
    where = {id: i for i, shard in enumerate(shards) for id in shard}
    for a, b in itertools.combinations(combinations, 2):
        if all(a.axes[key] == b.axes[key] for key in ("model", "batch_size")):
            assert where[a.id] == where[b.id]
    assert all(list(shard) == [c.id for c in combinations if c.id in shard] for shard in shards)


def test_a_plan_survives_json() -> None:
    made = fake_plan({"a": {"step_s": 0.5}, "b": {"step_s": [1, 2]}}, PASSES, rounds=3)
    made = dataclasses.replace(made, excluded=(Excluded({"model": "x"}, "why"),))
    assert Plan.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert made.combination("cb").axes["model"] == "b"
