"""Combinations in shards for a cluster: by what they ask for, and by how long they are expected to take. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeprof.results.record import Json, PassName
from sweeprof.sweep.plan import Combination, expected_seconds, pair_key

Shards = tuple[tuple[str, ...], ...]


def in_tasks(
    combinations: Sequence[Combination],
    baseline: Mapping[str, Any],
    passes: Sequence[PassName],
    asked: Mapping[str, Json],
    minutes: float | None,
    count: int | None = None,
) -> tuple[Shards, list[Json]]:
    """Ids in shards, and what the task of each shard asks for.

    Args:
        asked: what the task of a combination asks for, by id.
        minutes: of work for a shard; what a baseline pairs stays together, even if that takes longer.
        count: of shards, instead; there are more where combinations ask for different things.
    """
    kinds: dict[str, dict[str, list[Combination]]] = {}
    for c in combinations:
        if c.unsupported is None:
            alike = kinds.setdefault(json.dumps(asked[c.id], sort_keys=True), {})
            alike.setdefault(pair_key(c.axes, baseline), []).append(c)
    whole = sum(_seconds(c, passes) for groups in kinds.values() for group in groups.values() for c in group)
    shards: list[tuple[str, ...]] = []
    resources: list[Json] = []
    for kind, groups in kinds.items():
        weighed = [([c.id for c in group], sum(_seconds(c, passes) for c in group)) for group in groups.values()]
        total = sum(seconds for _, seconds in weighed)
        share = math.ceil(total / (minutes * 60)) if minutes else 1
        wanted = share if count is None else max(1, round(count * total / whole))
        made = list(_dealt(weighed, total, wanted))
        shards += made
        resources += [json.loads(kind)] * len(made)
    return tuple(shards), resources


def _seconds(combination: Combination, passes: Sequence[PassName]) -> float:
    return sum(expected_seconds(combination, name) for name in passes)


def _dealt(weighed: Sequence[tuple[list[str], float]], total: float, count: int) -> Iterator[tuple[str, ...]]:
    """The groups in their order, in at most ``count`` shards of about the same length: neighbours share what a process imports."""
    shard: list[str] = []
    before, made = 0.0, 0
    for place, (ids, seconds) in enumerate(weighed):
        shard += ids
        before += seconds
        left, due = len(weighed) - place - 1, count - made - 1
        if due and (before >= total * (made + 1) / count - seconds / 2 or left <= due):
            yield tuple(shard)
            shard, made = [], made + 1
    if shard:
        yield tuple(shard)
