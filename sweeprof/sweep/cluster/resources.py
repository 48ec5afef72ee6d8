"""What the tasks of a cluster ask for: by the settings under ``cluster``, and for some combinations otherwise. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sweeprof.errors import Problem, UserError, key_problem
from sweeprof.results.record import Json
from sweeprof.sweep.amounts import parse_minutes, parse_size
from sweeprof.sweep.check import rule_problems
from sweeprof.sweep.plan import IDENTITY, Combination, pair_key
from sweeprof.sweep.rules import Rule, read_rules

RESOURCES = ("partition", "account", "qos", "constraint", "time", "memory", "cpus", "gpus", "exclusive", "options")
"""The keys under ``cluster`` that groups may set, too."""
WHERE = "where"
_KEY = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
OURS = ("job-name", "array", "output", "parsable", "wrap", "wait", "test-only", "clusters")
"""Options of sbatch by which the tasks of a sweep are found again."""
SETTINGS = (*RESOURCES, "scheduler", "minutes", "parallel", "groups", "setup", "environment", "python", "poll_s")
"""The keys under ``cluster``, as in ``conf/cluster/slurm.yaml``."""


def setting_problems(cluster: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys under ``cluster`` that nothing reads, as from a sweep file."""
    for name, value in cluster.items():
        if name not in SETTINGS:
            yield key_problem(f"cluster.{name}", value, [f"cluster.{known}" for known in SETTINGS])


def option_problems(options: Mapping[str, Any], key: str = "cluster.options") -> Iterator[Problem]:
    """Options of sbatch that are not the user's to give."""
    for name, value in options.items():
        if name in OURS:
            yield Problem(f"{key}.{name}", value, "is set by sweeprof, which finds its tasks by it.")


def group_problems(groups: Sequence[Any]) -> Iterator[Problem]:
    """What is wrong with ``cluster.groups`` beside the combinations that it speaks of."""
    for number, group in enumerate(groups):
        key = f"cluster.groups[{number}]"
        if not isinstance(group, Mapping) or WHERE not in group:
            yield Problem(key, group, "is not {where: {axis: value}, memory: …}.")
            continue
        for name in group:
            if name not in (*RESOURCES, WHERE):
                yield key_problem(f"{key}.{name}", group[name], [f"{key}.{known}" for known in (WHERE, *RESOURCES)])
        asked = {name: group[name] for name in group if name in RESOURCES}
        for problem in rule_problems({"cluster": asked}):
            yield Problem(problem.key.replace("cluster", key, 1), problem.value, problem.allowed, problem.nearest)
        if isinstance(group.get("options"), Mapping):
            yield from option_problems(group["options"], f"{key}.options")


def asked_for(
    combinations: Sequence[Combination],
    settings: Mapping[str, Any],
    baseline: Mapping[str, Any],
    axes: Mapping[str, list[Any]],
    jobs: int,
) -> dict[str, Json]:
    """What the task of each combination asks for, by the combination's id; the same for all that the baseline pairs.

    Raises:
        UserError: groups that cannot be read, or that ask for different nodes for what is to be on one.
    """
    where = [group[WHERE] for group in settings["groups"]]
    keys = _config_keys(where)
    # A site's groups hold for every sweep, whatever values this one has.
    rules, problems = read_rules(where, axes, keys, axes, "cluster.groups where")
    if problems:
        raise UserError(problems)
    base = {key: settings[key] for key in RESOURCES}
    together: dict[str, list[Combination]] = {}
    for combination in combinations:
        if combination.unsupported is None:
            together.setdefault(pair_key(combination.axes, baseline), []).append(combination)
    found: dict[str, Json] = {}
    told: dict[str, Problem] = {}
    for pair in together.values():
        each = [_of(c, base, rules, settings["groups"], jobs, keys) for c in pair]
        one, clashes = _of_all(each)
        for key, values in clashes.items():
            told.setdefault(f"{key} {values}", _clash(key, values, pair[0]))
        found.update({c.id: one for c in pair})
    if told:
        raise UserError(list(told.values()))
    return found


def _config_keys(where: Sequence[Any]) -> set[str]:
    """Keys of a combination's config that groups speak of, whether or not this sweep varies them."""
    words = (word for entry in where for word in (_KEY.findall(entry) if isinstance(entry, str) else entry))
    return {word for word in map(str, words) if "." in word and word.partition(".")[0] in IDENTITY}


def _point(c: Combination, keys: Iterable[str]) -> dict[str, Any]:
    found = {key: node for key in keys if (node := _at(c.config, key)) is not None}
    return {**found, **c.axes}


def _at(config: Mapping[str, Any], key: str) -> Any:
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _of(
    c: Combination,
    base: Json,
    rules: Sequence[Rule],
    groups: Sequence[Mapping[str, Any]],
    jobs: int,
    keys: Iterable[str],
) -> Json:
    asked, point = dict(base), _point(c, keys)
    for rule, group in zip(rules, groups, strict=True):
        if rule.matches(point):
            own = {key: value for key, value in group.items() if key != WHERE}
            asked |= {**own, "options": {**asked["options"], **own.get("options", {})}}
    if asked["cpus"] is None:
        asked["cpus"] = int(c.config["backend"].get("threads") or 1) * jobs
    if asked["gpus"] is None:
        asked["gpus"] = 1 if str(c.config["device"]["type"]).startswith(("cuda", "gpu")) else 0
    return asked


def _of_all(each: Sequence[Json]) -> tuple[Json, dict[str, list[Any]]]:
    """What is enough for all, and where they ask for what cannot be had together."""
    asked: Json = {}
    clashes: dict[str, list[Any]] = {}
    for key in RESOURCES:
        values = _distinct(one[key] for one in each)
        known = [value for value in values if value is not None]
        if len(values) == 1:
            asked[key] = values[0]
        elif key in ("memory", "time", "cpus", "exclusive"):
            asked[key] = max(known, key=_size)
        elif key == "gpus" and sum(isinstance(value, str) for value in known) <= 1:
            asked[key] = max(known, key=lambda value: (isinstance(value, str), value))
        else:
            clashes[key] = values
            asked[key] = values[0]
    return asked, clashes


def _clash(key: str, values: Sequence[Any], one: Combination) -> Problem:
    said = "are asked for by combinations that the baseline pairs, which must be measured on one host, as around "
    return Problem(
        f"cluster.groups {key}", list(values), said + ", ".join(f"{a}={v}" for a, v in one.axes.items()) + "."
    )


def _size(value: Any) -> float:
    return float(parse_minutes(value) or parse_size(value) or value)


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found
