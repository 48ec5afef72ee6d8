"""The plan of a sweep: which combinations, in which trials, in which order. Pure: data in, data out.

axes ──product──▶ points ──exclude──▶ combinations ──passes × rounds──▶ trials ──by baseline──▶ shards
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeprof.results.compare import Excluded
from sweeprof.results.record import Json, PassName

SCHEMA_VERSION = 1

IDENTITY = ("model", "dataset", "backend", "device", "batch_size", "mode", "training", "metrics", "protocol", "seed")
"""What makes a combination that combination. Tracking, launcher, limits and paths do not, nor does ``training`` of an inference."""

Point = dict[str, Any]
"""One value per axis."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One value per axis and the config that results."""

    id: str
    """``c`` and 12 hexadecimal digits; the letter keeps YAML from reading it as a number."""
    axes: Point
    config: Json
    """Resolved, restricted to what the measurement depends on."""
    command: str
    """The shell command that measures it alone."""
    unsupported: str | None = None
    """Why it cannot be measured, where that is known beforehand."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The unit of execution and of isolation."""

    combination_id: str
    pass_name: PassName
    round: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a shard and a report need to know, written before anything is measured."""

    sweep_id: str
    name: str
    created: str
    command: str
    axes: dict[str, list[Any]]
    """Values per axis, in the order of the table's columns."""
    baseline: Json
    combinations: tuple[Combination, ...]
    excluded: tuple[Excluded, ...]
    shards: tuple[tuple[Trial, ...], ...]
    metrics: list[Any]
    """The metric set, as in the config."""
    threshold: float | None
    limits: Json
    isolation: str
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> Json:
        """Plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that :meth:`to_dict` wrote.

        Raises:
            ValueError: the data come from a later schema version.
        """
        if data["schema_version"] > SCHEMA_VERSION:
            raise ValueError(
                f"plan schema {data['schema_version']} is newer than this sweeprof, which reads {SCHEMA_VERSION}"
            )
        return cls(
            **{
                **data,
                "combinations": tuple(Combination(**c) for c in data["combinations"]),
                "excluded": tuple(Excluded(**e) for e in data["excluded"]),
                "shards": tuple(tuple(Trial(**t) for t in shard) for shard in data["shards"]),
            }
        )

    def combination(self, id: str) -> Combination:
        """The combination with this id."""
        return next(c for c in self.combinations if c.id == id)


def points(axes: Mapping[str, Sequence[Any]]) -> list[Point]:
    """The product of the axes, the last one varying fastest."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def split_excluded(
    candidates: Sequence[Point], rules: Sequence[Mapping[str, Any]]
) -> tuple[list[Point], list[Excluded]]:
    """Points that stay, and points that a rule leaves out, with the rule as the reason."""
    kept, excluded = [], []
    for point in candidates:
        rule = next((rule for rule in rules if _matches(point, rule)), None)
        if rule is None:
            kept.append(point)
        else:
            spelled = ", ".join(f"{key}={value}" for key, value in rule.items())
            excluded.append(Excluded(point, f"exclude: {spelled}"))
    return kept, excluded


def _matches(point: Point, rule: Mapping[str, Any]) -> bool:
    return all(point.get(key) in (value if isinstance(value, list | tuple) else [value]) for key, value in rule.items())


def identity(config: Mapping[str, Any]) -> str:
    """The id of a resolved config: a hash of its content, the same on every machine and in every run."""
    unused = ("training",) if config.get("mode") == "inference" else ()
    content = {key: _essence(config[key]) for key in IDENTITY if key in config and key not in unused}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    return "c" + digest.hexdigest()[:12]


def _essence(node: Any) -> Any:
    """A node without what is imported ahead of it, which changes how soon a process starts and nothing that it measures."""
    if not isinstance(node, Mapping):
        return node
    return {key: value for key, value in node.items() if key not in ("preload", "preload_for")}


def without_repeats(combinations: Sequence[Combination]) -> tuple[tuple[Combination, ...], tuple[Excluded, ...]]:
    """Combinations with different ids; a repeated one is listed as excluded."""
    first: dict[str, Combination] = {}
    repeats = []
    for combination in combinations:
        if combination.id in first:
            repeats.append(Excluded(combination.axes, f"the same as {_spelled(first[combination.id].axes)}"))
        else:
            first[combination.id] = combination
    return tuple(first.values()), tuple(repeats)


def _spelled(point: Point) -> str:
    return ", ".join(f"{key}={value}" for key, value in point.items())


def trials(combinations: Sequence[Combination], passes: Sequence[PassName], seed: int) -> list[Trial]:
    """Every trial in the order of execution.

    The passes that repeat nothing come first, combination by combination. Then the rounds of the timing pass: each round times
    every combination once, in an order of its own, so that a drift of the machine meets all combinations alike.
    """
    able = [c for c in combinations if c.unsupported is None]
    order = [Trial(c.id, p) for c in able for p in passes if p != "timing"]
    if "timing" in passes:
        order += _interleaved(able, random.Random(seed))
    return order


def _interleaved(combinations: Sequence[Combination], shuffler: random.Random) -> Iterator[Trial]:
    rounds = {c.id: int(c.config["protocol"]["rounds"]) for c in combinations}
    for round in range(max(rounds.values(), default=0)):
        ids = [id for id, count in rounds.items() if round < count]
        shuffler.shuffle(ids)
        yield from (Trial(id, "timing", round) for id in ids)


def in_shards(
    order: Sequence[Trial], combinations: Sequence[Combination], baseline: Mapping[str, Any], count: int
) -> tuple[tuple[Trial, ...], ...]:
    """The trials in at most ``count`` shards; what the baseline is compared with stays together, because it must share a host."""
    groups: dict[str, int] = {}
    shard_of: dict[str, int] = {}
    for combination in combinations:
        rest = {key: value for key, value in combination.axes.items() if key not in baseline}
        key = json.dumps(rest, sort_keys=True, default=str)
        shard_of[combination.id] = groups.setdefault(key, len(groups)) % max(1, count)
    shards: list[list[Trial]] = [[] for _ in range(max(1, count))]
    for trial in order:
        shards[shard_of[trial.combination_id]].append(trial)
    return tuple(tuple(shard) for shard in shards if shard)


def estimated_seconds(plan: Plan) -> float:
    """Roughly how long the plan takes: what the protocols ask for, and a second per process for what surrounds it."""
    protocols = {c.id: c.config["protocol"] for c in plan.combinations}
    total = 0.0
    for trial in itertools.chain.from_iterable(plan.shards):
        total += 1.0
        if trial.pass_name == "timing":
            total += protocols[trial.combination_id]["warmup_s"] + protocols[trial.combination_id]["min_s"]
    return total
