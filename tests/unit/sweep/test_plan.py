"""Points, identities, trials and shards."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.plans import fake_plan
from sweeprof.results.compare import Excluded
from sweeprof.results.record import PASSES
from sweeprof.sweep.plan import (
    IDENTITY,
    SCHEMA_VERSION,
    Combination,
    Plan,
    Trial,
    estimated_seconds,
    identity,
    in_shards,
    points,
    split_excluded,
    trials,
    without_repeats,
)

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


def combination(id: str, rounds: int = 1, unsupported: str | None = None, **axes: Any) -> Combination:
    return Combination(id, axes, {**CONFIG, "protocol": {**CONFIG["protocol"], "rounds": rounds}}, "", unsupported)


def test_the_last_axis_varies_fastest() -> None:
    assert points({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_no_axes_are_one_point_and_an_empty_axis_is_none() -> None:
    assert points({}) == [{}]
    assert points({"a": [1], "b": []}) == []


@given(st.dictionaries(st.text(max_size=3), st.lists(st.integers(), unique=True, max_size=4), max_size=4))
def test_every_point_is_there_once(axes: dict[str, list[int]]) -> None:
    found = [tuple(point.values()) for point in points(axes)]
    assert len(found) == len(set(found)) == len(list(itertools.product(*axes.values())))
    assert all(list(point) == list(axes) for point in points(axes))


@pytest.mark.parametrize(
    ("rule", "left_out"),
    [
        ({"a": 1}, [(1, "x"), (1, "y")]),
        ({"a": 1, "b": "x"}, [(1, "x")]),
        ({"a": [1, 2], "b": "y"}, [(1, "y"), (2, "y")]),
        ({"b": ("x",)}, [(1, "x"), (2, "x")]),
        ({"a": 3}, []),
        ({"c": 1}, []),
        ({"a": "1"}, []),
    ],
)
def test_exclude_rules(rule: dict[str, Any], left_out: list[tuple[int, str]]) -> None:
    kept, excluded = split_excluded(points({"a": [1, 2], "b": ["x", "y"]}), [rule])
    assert [tuple(e.axes.values()) for e in excluded] == left_out
    assert [tuple(p.values()) for p in kept] == [p for p in itertools.product((1, 2), "xy") if p not in left_out]


def test_an_exclusion_has_the_first_matching_rule_as_its_reason() -> None:
    _, excluded = split_excluded([{"a": 1, "b": 2}], [{"a": 9}, {"a": 1, "b": [2, 3]}, {"a": 1}])
    assert excluded == [Excluded({"a": 1, "b": 2}, "exclude: a=1, b=[2, 3]")]


def test_without_rules_everything_stays() -> None:
    assert split_excluded([{"a": 1}], []) == ([{"a": 1}], [])


def test_the_golden_identity() -> None:
    """Records of earlier sweeps must be found again: change this only with the schema version."""
    assert identity(CONFIG) == GOLDEN_ID


def test_the_identity_ignores_the_order_of_keys() -> None:
    def backwards(node: Any) -> Any:
        return {key: backwards(node[key]) for key in reversed(node)} if isinstance(node, dict) else node

    assert identity(backwards(CONFIG)) == GOLDEN_ID


@pytest.mark.parametrize("key", ["tracking", "limits", "output", "name", "hydra", "isolation", "shards", "dry_run"])
def test_the_identity_ignores_what_is_not_measured(key: str) -> None:
    assert identity({**CONFIG, key: {"any": "thing"}}) == GOLDEN_ID


@pytest.mark.parametrize("key", IDENTITY)
def test_the_identity_changes_with_what_is_measured(key: str) -> None:
    given = copy.deepcopy({"mode": "training", "training": {"optimizer": "sgd"}, **CONFIG})
    changed = {**given, key: {**given[key], "new": 1} if isinstance(given[key], dict) else 9}
    without = {k: v for k, v in given.items() if k != key}
    assert len({identity(given), identity(changed), identity(without)}) == 3


def test_an_identity_is_no_number() -> None:
    assert GOLDEN_ID[0] == "c"
    assert len(GOLDEN_ID) == 13
    assert int(GOLDEN_ID[1:], 16)


def test_a_repeated_combination_is_excluded() -> None:
    first, second = combination("c1", a=1, b=2), combination("c2", a=3, b=4)
    kept, repeats = without_repeats([first, second, combination("c1", a=5, b=6)])
    assert kept == (first, second)
    assert repeats == (Excluded({"a": 5, "b": 6}, "the same as a=1, b=2"),)


def test_what_repeats_nothing_comes_first() -> None:
    order = trials([combination("c1", 2), combination("c2", 2)], PASSES, 0)
    once = [name for name in PASSES if name != "timing"]
    first = [(t.combination_id, t.pass_name) for t in order[: 2 * len(once)]]
    assert first == [(id, name) for id in ("c1", "c2") for name in once]
    assert {t.pass_name for t in order[2 * len(once) :]} == {"timing"}


@given(rounds=st.lists(st.integers(1, 6), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_every_round_has_every_combination_once(rounds: list[int], seed: int) -> None:
    order = trials([combination(f"c{i}", n) for i, n in enumerate(rounds)], ["timing"], seed)
    assert [t.round for t in order] == sorted(t.round for t in order)
    for round in range(max(rounds)):
        ids = [t.combination_id for t in order if t.round == round]
        assert sorted(ids) == sorted(f"c{i}" for i, n in enumerate(rounds) if round < n)
    assert all(t.attempt == 0 for t in order)


def test_rounds_have_orders_of_their_own_that_the_seed_fixes() -> None:
    combinations = [combination(f"c{i}", 5) for i in range(8)]

    def orders(seed: int) -> list[tuple[str, ...]]:
        order = trials(combinations, ["timing"], seed)
        return [tuple(t.combination_id for t in order if t.round == r) for r in range(5)]

    assert len(set(orders(0))) == 5
    assert orders(0) == orders(0)
    assert orders(0) != orders(1)


def test_static_passes_alone_need_no_rounds() -> None:
    assert trials([combination("c1", 5)], ["quality"], 0) == [Trial("c1", "quality")]
    assert trials([], PASSES, 0) == []


def test_what_is_unsupported_is_not_tried() -> None:
    order = trials([combination("c1"), combination("c2", unsupported="no builder")], PASSES, 0)
    assert {t.combination_id for t in order} == {"c1"}


grid = st.fixed_dictionaries(
    {
        "model": st.lists(st.sampled_from("mno"), unique=True, min_size=1),
        "backend": st.lists(st.sampled_from(["torch", "tf", "fake"]), unique=True, min_size=1),
        "batch_size": st.lists(st.sampled_from([1, 8, 64]), unique=True, min_size=1),
    }
)


@given(grid=grid, count=st.integers(0, 12), rounds=st.integers(1, 3))
def test_shards_keep_pairs_together_and_lose_nothing(grid: dict[str, list[Any]], count: int, rounds: int) -> None:
    combinations = [combination(f"c{i}", rounds, **point) for i, point in enumerate(points(grid))]
    order = trials(combinations, PASSES, 0)
    shards = in_shards(order, combinations, {"backend": "torch"}, count)
    assert 1 <= len(shards) <= max(1, count)
    assert all(shards)
    assert sorted(itertools.chain(*shards), key=repr) == sorted(order, key=repr)
    where = {t.combination_id: i for i, shard in enumerate(shards) for t in shard}
    assert all(where[t.combination_id] == i for i, shard in enumerate(shards) for t in shard)
    for a, b in itertools.combinations(combinations, 2):
        if all(a.axes[key] == b.axes[key] for key in ("model", "batch_size")):
            assert where[a.id] == where[b.id]
    positions = {trial: i for i, trial in enumerate(order)}
    assert all([positions[t] for t in shard] == sorted(positions[t] for t in shard) for shard in shards)


def test_shards_are_alike_in_size() -> None:
    combinations = [combination(f"c{i}", batch_size=i) for i in range(10)]
    shards = in_shards(trials(combinations, ["quality"], 0), combinations, {"backend": "torch"}, 4)
    assert sorted(len(shard) for shard in shards) == [2, 2, 3, 3]


def test_a_plan_survives_json() -> None:
    made = fake_plan({"a": {"step_s": 0.5}, "b": {"step_s": [1, 2]}}, PASSES, rounds=3)
    made = dataclasses.replace(made, excluded=(Excluded({"model": "x"}, "why"),))
    assert Plan.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert made.combination("cb").axes["model"] == "b"


def test_a_later_schema_is_refused() -> None:
    data = {**fake_plan({"a": {}}).to_dict(), "schema_version": SCHEMA_VERSION + 1}
    with pytest.raises(ValueError, match=f"plan schema {SCHEMA_VERSION + 1} is newer"):
        Plan.from_dict(data)


def test_the_estimate_is_what_the_protocols_ask_for() -> None:
    made = fake_plan({"a": {}, "b": {}}, ("analysis", "timing"), rounds=3)
    config = {**made.combinations[0].config, "protocol": {"warmup_s": 2.0, "min_s": 3.0, "rounds": 3}}
    made = dataclasses.replace(
        made, combinations=tuple(dataclasses.replace(c, config=config) for c in made.combinations)
    )
    assert estimated_seconds(made) == 8 * 1.0 + 6 * 5.0


def test_ten_thousand_combinations_take_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: one draw per timing trial but the last of a round, and one key per combination."""
    axes = {"model": list(range(25)), "backend": list(range(4)), "batch_size": list(range(100))}
    made = points(axes)
    assert len(made) == 10_000
    combinations = [Combination(f"c{i}", p, {"protocol": {"rounds": 3}}, "") for i, p in enumerate(made)]
    calls = {"dumps": 0}
    dumps = json.dumps

    def counting(*arguments: Any, **keywords: Any) -> str:
        calls["dumps"] += 1
        return dumps(*arguments, **keywords)

    monkeypatch.setattr(json, "dumps", counting)
    order = trials(combinations, PASSES, 0)
    assert len(order) == 10_000 * (3 + len(PASSES) - 1)
    shards = in_shards(order, combinations, {"backend": 0}, 8)
    assert sum(map(len, shards)) == len(order)
    assert calls["dumps"] == 10_000
