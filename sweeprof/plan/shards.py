"""The shards of a sweep, and the resources of their tasks on a cluster. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sweeprof.config.schema import RESOURCES
from sweeprof.plan.plan import Combination, expected_seconds, pair_key
from sweeprof.results.environment import usable_processors
from sweeprof.results.record import Json, PassName

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
CLUSTER = "hydra_plugins.sweeprof_plugins.cluster.ClusterLauncher"
"""sweeprof's own, which ``cluster=slurm`` and the like select."""


MIB = 2**20
PROCESSES_MIB = 256
"""Memory of a task's own process and of its helpers."""
FRAMEWORK_MIB = {"torch": 1280, "tensorflow": 2048, "jax": 1280, "onnxruntime": 1024, "litert": 1280, "fake": 64}
"""Memory of a framework's fork server and of a trial of a small model, as schedulers without control groups count it: shared pages
once for each process. Measured with mlp and protocol=short, and a third to a half more."""
OTHER_MIB = 1024
"""Of a framework that is not listed."""


def needed_memory(frameworks: Iterable[str]) -> int:
    """Return the bytes that a task needs for these frameworks, with small models."""
    each = sum(FRAMEWORK_MIB.get(framework, OTHER_MIB) for framework in set(frameworks))
    return int((PROCESSES_MIB + each) * MIB)


def parallel_jobs(launcher: Json) -> int:
    """Return how many jobs a launcher of this config runs at once: the value of its option, else one per processor."""
    processors = usable_processors()
    package, _, kind = str(launcher.get("_target_", "")).rpartition(".")
    if kind == "BasicLauncher":
        return 1
    if kind == "JoblibLauncher":
        jobs = launcher.get("n_jobs") or processors
        return int(jobs) if jobs > 0 else max(1, processors + 1 + jobs)
    if kind == "RayLauncher":
        return int(launcher["ray"]["init"].get("num_cpus") or processors)
    if package.endswith("submitit_launcher") and kind == "SlurmLauncher":
        return min(processors, int(launcher.get("array_parallelism") or processors))
    return processors


def in_shards(
    combinations: Sequence[Combination], baseline: Mapping[str, object], count: int
) -> tuple[tuple[str, ...], ...]:
    """Ids in at most ``count`` shards; what the baseline is compared with stays together, because it must share a host."""
    groups: dict[str, int] = {}
    shards: list[list[str]] = [[] for _ in range(max(1, count))]
    for combination in combinations:
        if combination.unsupported is None:
            place = groups.setdefault(pair_key(combination.axes, baseline), len(groups)) % len(shards)
            shards[place].append(combination.id)
    return tuple(tuple(shard) for shard in shards if shard)


def resources_of(
    combinations: Sequence[Combination], settings: Json, baseline: Mapping[str, object]
) -> dict[str, Json]:
    """Return the resources of each combination's task, by the combination's id; the same for all that the baseline pairs.

    Args:
        settings: ``cluster`` in the config; without a number of processors or GPUs a task gets what its combinations use.
    """
    pairs: dict[str, list[Combination]] = {}
    for combination in combinations:
        if combination.unsupported is None:
            pairs.setdefault(pair_key(combination.axes, baseline), []).append(combination)
    found: dict[str, Json] = {}
    for pair in pairs.values():
        resources = {key: settings.get(key) for key in RESOURCES}
        if resources["cpus"] is None:
            resources["cpus"] = max(int(c.config["backend"].get("threads") or 1) for c in pair)
        if resources["gpus"] is None:
            resources["gpus"] = int(any(str(c.config["device"]["type"]).startswith(("cuda", "gpu")) for c in pair))
        resources["needed_memory"] = needed_memory(str(c.config["backend"]["framework"]) for c in pair)
        found.update({c.id: resources for c in pair})
    return found


Shards = tuple[tuple[str, ...], ...]


def in_tasks(
    combinations: Sequence[Combination],
    baseline: Mapping[str, object],
    passes: Sequence[PassName],
    asked: Mapping[str, Json],
    minutes: float | None,
    count: int | None = None,
) -> tuple[Shards, list[Json]]:
    """Return ids in shards, and the resources of each shard's task.

    Args:
        asked: the resources of a combination's task, by id.
        minutes: of work for a shard; what a baseline pairs stays together, even if that takes longer.
        count: of shards, instead; there are more if combinations request different resources.
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
