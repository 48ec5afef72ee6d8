"""The plan of a sweep: its combinations, shards and trials in their order, and what the processes of a trial import.

shape ──points, rules──▶ combinations ──by baseline──▶ shards ──passes × rounds──▶ trial groups

Pure: data in, data out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sweeprof.config.constraints import is_folder_name, is_fraction
from sweeprof.config.schema import IDENTITY, RESOURCES, LimitSettings
from sweeprof.errors import Damaged, Problem
from sweeprof.metrics.metric import FAMILIES
from sweeprof.passes.registry import exclusive_passes, pass_named, passes
from sweeprof.results.compared_rows import Excluded, SearchGoal
from sweeprof.results.environment import usable_processors
from sweeprof.results.files import damaged, validated
from sweeprof.results.record import MOST_ROUNDS, Json, PassName, check_id, check_version

SCHEMA_VERSION = 2

ORDER_SEED = 0
"""Seed of the order of trials: a plan always has the same one."""

Point = Json
"""A value per axis."""
Axes = dict[str, list[Any]]
"""The values of every axis."""


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


TrialGroup = tuple[Trial, ...]
"""Trials that run at the same time: those of an interleaved round alternate, any other is the only one of its group."""


@dataclass(frozen=True, slots=True)
class OtherSweep:
    """The sweep whose comparison is the baseline of this one."""

    label: str
    """As the user named it: a folder, ``last``, a tag …"""
    file: str
    """Its folder or its ``comparison.json``."""


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """The keys of ``compare`` as a plan has them, without the baseline's axes."""

    thresholds: dict[str, float] | None = None
    tolerance: float | None = None
    pareto: list[str] | None = None
    constraints: list[str] | None = None
    against: OtherSweep | None = None
    """None if the baseline is one of the sweep's own combinations."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A search: only some of the combinations of a plan are measured, one after the other."""

    goals: tuple[SearchGoal, ...]
    """Several have a Pareto front."""
    trials: int
    """Maximum number of combinations to measure."""
    sampler: str
    """The name of a class in ``optuna.samplers``."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The data that shards and reports need, written before anything is measured."""

    sweep_id: str
    name: str
    created: str
    command: str
    axes: Axes
    """Values per axis, in the order of the table's columns."""
    baseline: Json
    combinations: tuple[Combination, ...]
    excluded: tuple[Excluded, ...]
    shards: tuple[tuple[str, ...], ...]
    """Ids of the combinations that belong on one host, shard by shard; those that cannot be measured are in none."""
    passes: tuple[PassName, ...]
    metrics: list[str | Json]
    """The metric set, as in the config."""
    threshold: float | None
    limits: LimitSettings
    isolation: str
    fail_fast: bool = False
    """True if the first trial that fails ends the sweep."""
    budget: str | None = None
    """Duration of the whole sweep, such as ``10min``; None: no limit."""
    cluster: Json = field(default_factory=dict)
    """Of a sweep on a cluster: its ``settings``, and the ``resources`` of each shard's task."""
    compare: ComparisonSettings = field(default_factory=ComparisonSettings)
    search: SearchPlan | None = None
    """None: every combination is measured."""
    schema_version: int = SCHEMA_VERSION

    @property
    def scheduler(self) -> str | None:
        """The scheduler of a sweep on a cluster."""
        return str(self.cluster["settings"]["scheduler"]) if self.cluster else None

    def to_dict(self) -> Json:
        """Plain JSON data; equal parts of the combinations' configs are there once."""
        data = {spec.name: getattr(self, spec.name) for spec in dataclasses.fields(self)}
        data["combinations"], data["parts"] = _packed(self.combinations)
        data["excluded"] = [dataclasses.asdict(point) for point in self.excluded]
        data["limits"] = dataclasses.asdict(self.limits)
        data["compare"] = dataclasses.asdict(self.compare)
        data["search"] = None if self.search is None else dataclasses.asdict(self.search)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Plan:
        """The plan that :meth:`to_dict` wrote.

        Raises:
            Damaged: the data are not a plan, or come from a later schema version.
        """
        if not isinstance(data, dict):
            raise damaged(data, "a plan")
        check_version(data, "plan", SCHEMA_VERSION)
        parts = validated(dict[str, list[object]], data.get("parts"))
        combinations = validated(list[Json], data.get("combinations"))
        plain = {**data, "combinations": [_unpacked(c, parts) for c in combinations], "schema_version": SCHEMA_VERSION}
        plan = validated(cls, plain)
        for index, name in enumerate(plan.passes):
            if name not in passes():
                raise damaged(name, f"one of {', '.join(passes())}", ["passes", index])
        _check(plan)
        return plan

    @property
    def size(self) -> int:
        """The largest number of combinations that are measured."""
        count = len(self.combinations)
        return count if self.search is None else min(count, self.search.trials)

    def combination(self, id: str) -> Combination:
        """The combination with this id."""
        return next(c for c in self.combinations if c.id == id)

    def trial_groups(self, shard: int) -> list[TrialGroup]:
        """Return the trials of a shard, in the order of execution."""
        ids = set(self.shards[shard])
        return trial_groups([c for c in self.combinations if c.id in ids], self.passes, self.baseline)

    def trials(self) -> list[Trial]:
        """Every trial, shard by shard."""
        return [trial for index in range(len(self.shards)) for group in self.trial_groups(index) for trial in group]


def _packed(combinations: Sequence[Combination]) -> tuple[list[Json], dict[str, list[object]]]:
    """Return the combinations with each part of their configs as its position in a list of different ones, and these lists."""
    parts: dict[str, list[object]] = {}
    places: dict[tuple[str, str], int] = {}
    seen: dict[tuple[str, int], int] = {}  # equal parts mostly are the same objects
    packed = []
    for combination in combinations:
        config = {}
        for key, value in combination.config.items():
            if (key, id(value)) not in seen:
                listed = parts.setdefault(key, [])
                text = json.dumps(value, sort_keys=True)
                if (key, text) not in places:
                    places[key, text] = len(listed)
                    listed.append(value)
                seen[key, id(value)] = places[key, text]
            config[key] = seen[key, id(value)]
        fields = {spec.name: getattr(combination, spec.name) for spec in dataclasses.fields(combination)}
        packed.append({**fields, "config": config})
    return packed, parts


def _unpacked(data: Json, parts: Mapping[str, Sequence[object]]) -> Json:
    config = {}
    for key, value in validated(Json, data.get("config")).items():
        config[key] = value
        if key in parts:
            if type(value) is not int or not 0 <= value < len(parts[key]):
                raise damaged(value, "the position of a part", ["combinations", "config", key])
            config[key] = parts[key][value]
    return {**data, "config": config}


@dataclass(frozen=True, slots=True)
class _Protocol:
    """The keys of a combination's protocol that every reader of a plan needs."""

    rounds: int
    interleave: str = "rounds"


@dataclass(frozen=True, slots=True)
class _Config:
    """The keys of a combination's config that every reader of a plan needs."""

    batch_size: int
    protocol: _Protocol
    model: Json = field(default_factory=dict)
    dataset: Json = field(default_factory=dict)
    backend: Json = field(default_factory=dict)


def _check(plan: Plan) -> None:
    """Raise :class:`Damaged` for a plan that its types alone allow: files and folders are named by its ids and its name."""
    check_id(plan.sweep_id, "sweep_id")
    if not is_folder_name(plan.name):
        raise damaged(plan.name, "the name of a sweep", ["name"])
    try:
        datetime.fromisoformat(plan.created).astimezone()
    except (ValueError, OverflowError):
        raise damaged(plan.created, "a time", ["created"]) from None
    try:
        validated(list[str | Json], plan.metrics)
    except Damaged as error:
        raise Damaged(f"metrics.{error}") from None
    fractions = {"threshold": plan.threshold, "compare.tolerance": plan.compare.tolerance}
    fractions |= {f"compare.thresholds.{name}": share for name, share in (plan.compare.thresholds or {}).items()}
    for key, fraction in fractions.items():
        if fraction is not None and not is_fraction(fraction):
            raise damaged(fraction, "a number between 0 and 1", [key])
    ids = set()
    for place, combination in enumerate(plan.combinations):
        where = ("combinations", place)
        check_id(combination.id, *where, "id")
        if combination.id in ids:
            raise damaged(combination.id, "an id of one combination", [*where, "id"])
        ids.add(combination.id)
        try:
            rounds = validated(_Config, combination.config).protocol.rounds
        except Damaged as error:
            raise Damaged(f"combinations[{place}].config.{error}") from None
        if not 1 <= rounds <= MOST_ROUNDS:
            raise damaged(rounds, f"a number from 1 to {MOST_ROUNDS}", [*where, "config", "protocol", "rounds"])
    for place, shard in enumerate(plan.shards):
        for id in shard:
            if id not in ids:
                raise damaged(id, "the id of a combination", ["shards", place])


def identity(config: Mapping[str, object]) -> str:
    """The id of a resolved config: a hash of its content, the same on every machine and in every run."""
    mode = config.get("mode")
    unused = {key for key in ("inputs", "quality", "args") if not config.get(key)}
    if mode is not None:
        unused.update(key for key in ("training", "generation") if key != mode)
    content = {key: _essence(config[key]) for key in IDENTITY if key in config and key not in unused}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    return "c" + digest.hexdigest()[:12]


def _essence(node: object) -> object:
    """A node without its list of modules to import early, which changes how soon a process starts and nothing that it measures."""
    if not isinstance(node, Mapping):
        return node
    unused = ["preload", "preload_for"]
    if node.get("prepare"):
        unused += ["cache", "cache_limit", "prepare"]
    kept = {key: value for key, value in node.items() if key not in unused}
    for name in ("precision_method", "decide"):
        if kept.get(name, "") is None:
            del kept[name]
    return kept


def without_repeats(combinations: Sequence[Combination]) -> tuple[tuple[Combination, ...], tuple[Excluded, ...]]:
    """Combinations with different ids; a repeated one is listed as excluded."""
    first: dict[str, Combination] = {}
    repeats = []
    for combination in combinations:
        if combination.id in first:
            text = ", ".join(f"{key}={value}" for key, value in first[combination.id].axes.items())
            repeats.append(Excluded(combination.axes, f"the same as {text}"))
        else:
            first[combination.id] = combination
    return tuple(first.values()), tuple(repeats)


def trial_groups(
    combinations: Sequence[Combination], passes: Sequence[PassName], baseline: Mapping[str, object]
) -> list[TrialGroup]:
    """Every trial of a shard in the order of execution.

    The first round of the timing pass comes first, spread over the axes: after it every combination has a result. Then passes
    that measure the device once, then passes that do not measure it, each by combination. Then the other rounds of the timing
    pass: each times every combination once, in a different order, so that a drift of the machine affects all combinations
    alike. If the protocol interleaves samples, combinations that share a baseline are in one group.
    """
    planned = [c for c in combinations if c.unsupported is None]
    able = [planned[position] for position in spread([c.axes for c in planned], baseline)]
    first: list[TrialGroup] = []
    alone: list[TrialGroup] = []
    aside: list[TrialGroup] = []
    others: list[TrialGroup] = []
    for c in able:
        for name in passes:
            if pass_named(name).kind != "rounds":
                groups = alone if name in exclusive_passes() else aside
                groups.append((Trial(c.id, name),))
    for name in passes:
        if pass_named(name).kind == "rounds":
            for number, groups in enumerate(_rounds(able, name, baseline)):
                if number == 0:
                    first += groups
                else:
                    others += groups
    return [*first, *alone, *aside, *others]


def _rounds(
    combinations: Sequence[Combination], pass_name: PassName, baseline: Mapping[str, object]
) -> Iterator[list[TrialGroup]]:
    """Yield the trial groups of each round of a pass; those of the first round in the order of the combinations."""
    shuffler = random.Random(ORDER_SEED)
    rounds = {c.id: int(c.config["protocol"]["rounds"]) for c in combinations}
    server_of = {c.id: server_key(c) for c in combinations}
    together: dict[str, list[str]] = {}
    for c in combinations:
        key = c.id
        if c.config["protocol"].get("interleave") == "samples":
            key = pair_key(c.axes, baseline)
        together.setdefault(key, []).append(c.id)
    for round in range(max(rounds.values(), default=0)):
        groups = [[id for id in group if round < rounds[id]] for group in together.values()]
        groups = [group for group in groups if group]
        if round:
            shuffler.shuffle(groups)
        # One server runs at a time: combinations with the same one follow each other.
        places: dict[str, int] = {}
        for group in groups:
            places.setdefault(server_of[group[0]], len(places))
        groups.sort(key=lambda group: places[server_of[group[0]]])
        for group in groups:
            shuffler.shuffle(group)
        yield [tuple(Trial(id, pass_name, round) for id in group) for group in groups]


def server_key(combination: Combination) -> str:
    """Return the text that is equal for programs that share a server; empty without one."""
    server = combination.config.get("backend", {}).get("server")
    return json.dumps(server, sort_keys=True) if server else ""


def alternating_server_problems(
    combinations: Iterable[Combination], baseline: Mapping[str, object]
) -> Iterator[Problem]:
    """Return the problem of combinations that shall alternate and need different servers, of which one runs at a time."""
    servers: dict[str, str] = {}
    for c in combinations:
        if c.config["protocol"].get("interleave") == "samples":
            key = server_key(c)
            if servers.setdefault(pair_key(c.axes, baseline), key) != key:
                message = "alternates between combinations that need different servers, of which one runs at a time; use rounds."
                yield Problem("protocol.interleave", "samples", message)
                return


def expected_seconds(combination: Combination, pass_name: PassName) -> float:
    """Roughly how long a pass over a combination takes, all its rounds together."""
    protocol = combination.config["protocol"]
    if pass_named(pass_name).kind != "rounds":
        return 1.0
    return float(protocol["rounds"] * (1.0 + protocol["warmup_s"] + protocol["min_s"]))


def pair_key(axes: Mapping[str, object], baseline: Mapping[str, object]) -> str:
    """Return the text that is equal for combinations that share a baseline."""
    return json.dumps({key: value for key, value in axes.items() if key not in baseline}, sort_keys=True, default=str)


def spread(points: Sequence[Mapping[str, object]], baseline: Mapping[str, object]) -> list[int]:
    """Return the positions of the points in the order in which they are measured first: along diagonals of the axes.

    So the first results say something about every value of each axis.

    Args:
        points: the axis values of each combination.
        baseline: the axis values that make a combination a baseline.
    """
    order = list(range(len(points)))
    # Unshuffled, a drift of the machine would always favour the same side of a comparison.
    random.Random(ORDER_SEED).shuffle(order)
    axes = list(dict.fromkeys(axis for point in points for axis in point))
    # If the baseline is one combination, it is that of all others.
    axes = [axis for axis in axes if axis not in baseline] or axes
    numbers: dict[str, dict[str, int]] = {}
    for axis in axes:
        numbers[axis] = {}
        for position in order:
            numbers[axis].setdefault(repr(points[position].get(axis)), len(numbers[axis]))
    # The axis with most values is first: a step along it is then a step along all others.
    axes.sort(key=lambda axis: -len(numbers[axis]))

    def rank(position: int) -> tuple[int, ...]:
        steps = [numbers[axis][repr(points[position].get(axis))] for axis in axes] or [0]
        offsets = [(step - steps[0]) % len(numbers[axis]) for axis, step in zip(axes, steps, strict=False)]
        return (*offsets, steps[0])

    return sorted(order, key=rank)


# ----------------------------------------------------------------------------------------------------------------------
# The shards of a sweep, and the resources of their tasks on a cluster

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
CLUSTER = "hydra_plugins.sweeprof_plugins.cluster.ClusterLauncher"
"""sweeprof's own, which ``cluster=slurm`` and the like select."""


MIB = 2**20
PROCESSES_MIB = 256
"""Memory of a task's own process and of its helpers."""
FRAMEWORK_MIB = {
    "torch": 1280,
    "tensorflow": 2048,
    "jax": 1280,
    "onnxruntime": 1024,
    "litert": 1280,
    "fake": 64,
    "command": 64,
}
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
    seconds: dict[str, float] = {}
    places = {key: place for place, key in enumerate(dict.fromkeys(map(server_key, combinations)))}
    for c in sorted(combinations, key=lambda c: places[server_key(c)]):  # neighbours are in one shard
        if c.unsupported is None:
            alike = kinds.setdefault(json.dumps(asked[c.id], sort_keys=True), {})
            alike.setdefault(pair_key(c.axes, baseline), []).append(c)
            seconds[c.id] = sum(expected_seconds(c, name) for name in passes)
    shards: list[tuple[str, ...]] = []
    resources: list[Json] = []
    for kind, groups in kinds.items():
        weighed = []
        for group in groups.values():
            ids = [c.id for c in group]
            weighed.append((ids, sum(seconds[id] for id in ids)))
        total = sum(each for _, each in weighed)
        wanted = 1
        if count is not None:
            wanted = max(1, round(count * total / sum(seconds.values())))
        elif minutes:
            wanted = math.ceil(total / (minutes * 60))
        made = list(_dealt(weighed, total, wanted))
        shards += made
        resources += [json.loads(kind)] * len(made)
    return tuple(shards), resources


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


# ----------------------------------------------------------------------------------------------------------------------
# The modules that the processes of a combination import before a trial, and their environment variables

EVERY_TRIAL = (
    "hydra.utils",
    *(f"sweeprof.metrics.{family}" for family in FAMILIES),
    "sweeprof.datasets.arrays",
    *(f"sweeprof.zoo.{model}" for model in ("mlp", "lenet5", "digits_resnet")),
)
"""Modules that every worker needs, or so many that each trial would import them again."""

TORCHMETRICS = "sweeprof.metrics.quality:import_torchmetrics"
"""Imports torchmetrics, which takes seconds, where the metrics of quality are of it."""


def preload(config: Json, pass_name: str) -> list[str]:
    """Return the modules that the fork server for this combination and pass imports, and functions that it calls.

    A function is ``MODULE:FUNCTION``. ``preload_for`` has those of passes and modes. Those of the model are for the framework that
    it is made in; a backend that borrows the model has it made by another process.
    """
    backend, model = config["backend"], config.get("model", {})
    modules = [*EVERY_TRIAL, *backend.get("preload", [])]
    if backend.get("framework") in model:
        modules += model.get("preload", [])
    modules += config["dataset"].get("preload", [])
    for name in (config.get("mode"), pass_name):
        modules += backend.get("preload_for", {}).get(name, [])
    if pass_name == "quality":  # the times and the memory of the other passes are those of the model alone
        targets = [str(node.get("_target_")) for node in config.get("quality", {}).values()]
        if any(target.startswith("torchmetrics.") for target in targets):
            modules.append(TORCHMETRICS)
    # Without repetitions, passes that need nothing more than the others have the same fork server.
    return list(dict.fromkeys(modules))


def environment(config: Json, pass_name: str = "") -> dict[str, str]:
    """Return the environment variables that the backend sets, including those for one pass."""
    backend = config["backend"]
    asked = {**(backend.get("environment") or {}), **backend.get("environment_for", {}).get(pass_name, {})}
    return {key: str(value) for key, value in asked.items()}
