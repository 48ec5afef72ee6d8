"""Validation of a composed config: every problem at once, each naming key, value and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sweeprof.errors import Problem, UserError, choice_problem, nearest
from sweeprof.metrics.select import select
from sweeprof.profiling.recipe import LOSSES, OPTIMIZERS
from sweeprof.results.record import STATUSES
from sweeprof.sweep.amounts import is_gpus, parse_minutes, parse_size
from sweeprof.sweep.signatures import argument_problems

PRECISIONS = ("fp32", "bf16", "fp16", "int8-dynamic")
ISOLATIONS = ("fork", "spawn", "inline")


@dataclass(frozen=True, slots=True)
class Rule:
    """What a key must hold."""

    key: str
    accepts: Callable[[Any], bool]
    allowed: str


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole_from(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number_from(least: float) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and value >= least


def _or_null(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or accepts(value)


def _share(value: Any) -> bool:
    return _is_number(value) and 0 < value < 1


def _is_address(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://", value) is not None


def _is_folder_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w.\- ]+", value) is not None and value.strip(". ") != ""


def _is_folder(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/") and (Path(value).is_dir() or not Path(value).exists())


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_variable(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII) is not None


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


MODES = ("inference", "training")
INTERLEAVINGS = ("rounds", "duel")
KERNELS = ("auto", "convolution", "matmul")
WRITERS = ("head", "job")
RULES = (
    Rule("mode", lambda value: value in MODES, "is not a kind of step. Known: inference, training."),
    Rule("batch_size", _whole_from(1), "is not a batch size: a whole number of at least 1."),
    Rule("backend.threads", _whole_from(1), "is not a number of threads: a whole number of at least 1."),
    Rule(
        "backend.precision",
        lambda value: value in PRECISIONS,
        f"is not a precision. Known: {', '.join(PRECISIONS)}.",
    ),
    Rule("backend.channels_last", _is_bool, "is not true or false."),
    Rule("backend.compile", _is_bool, "is not true or false."),
    Rule("seed.weights", _whole_from(0), "is not a seed: a whole number of at least 0."),
    Rule("seed.order", _whole_from(0), "is not a seed: a whole number of at least 0."),
    Rule("protocol.rounds", _whole_from(1), "is not a number of rounds: a whole number of at least 1."),
    Rule("protocol.warmup_steps", _whole_from(0), "is not a number of steps: a whole number of at least 0."),
    Rule("protocol.warmup_s", _number_from(0), "is not a duration: seconds of at least 0."),
    Rule("protocol.sample_s", _number_from(0), "is not a duration: seconds of at least 0."),
    Rule("protocol.min_samples", _whole_from(1), "is not a number of samples: a whole number of at least 1."),
    Rule("protocol.min_s", _number_from(0), "is not a duration: seconds of at least 0."),
    Rule("protocol.max_s", _number_from(0), "is not a duration: seconds of at least 0."),
    Rule("protocol.target_spread", _or_null(_share), "is not a spread: a number between 0 and 1, or null."),
    Rule("protocol.threshold", _or_null(_share), "is not a threshold: a number between 0 and 1, or null."),
    Rule("limits.timeout_s", _or_null(_number_from(0.001)), "is not a time limit: seconds above 0, or null."),
    Rule(
        "limits.memory",
        lambda value: value is None or parse_size(value) is not None,
        "is not a size, such as 2GiB, or null.",
    ),
    Rule("limits.combinations", _whole_from(1), "is not a number of combinations: a whole number of at least 1."),
    Rule("limits.tracking_s", _number_from(0.001), "is not a time limit: seconds above 0."),
    Rule("limits.locks", _or_null(_is_folder), "is not the full path of a folder, or null."),
    Rule("isolation", lambda value: value in ISOLATIONS, f"is not an isolation. Known: {', '.join(ISOLATIONS)}."),
    Rule("shards", _or_null(_whole_from(1)), "is not a number of shards: a whole number of at least 1, or null."),
    Rule(
        "name",
        _or_null(_is_folder_name),
        "is not a name: letters, digits, '.', '_', '-' and spaces, in quotes where it looks like a number, or null.",
    ),
    Rule(
        "tracking.uri",
        _or_null(_is_address),
        "is not an address of MLflow: http://…, https://…, sqlite:///…, another database, or null.",
    ),
    Rule(
        "metrics.functions",
        lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
        "is not a list of dotted names such as [my_package.MyNet.forward].",
    ),
    Rule("dry_run", _is_bool, "is not true or false."),
    Rule("trust", _is_bool, "is not true or false."),
    Rule("alone", _is_bool, "is not true or false."),
    Rule("fail_fast", _is_bool, "is not true or false."),
    Rule("jobs", _whole_from(1), "is not a number of jobs: a whole number of at least 1."),
    Rule(
        "resume",
        _or_null(lambda value: isinstance(value, str) and value != ""),
        "is not a sweep to go on with: the folder of one, last, or null.",
    ),
    Rule(
        "retry",
        lambda value: isinstance(value, list) and all(one in STATUSES for one in value),
        f"is not a list of statuses. Known: {', '.join(STATUSES)}.",
    ),
    Rule(
        "protocol.interleave",
        lambda value: value in INTERLEAVINGS,
        f"is not a way to take turns. Known: {', '.join(INTERLEAVINGS)}.",
    ),
    Rule(
        "protocol.kernel",
        _or_null(lambda value: value in KERNELS),
        f"is not a calibration kernel. Known: {', '.join(KERNELS)}, null.",
    ),
    Rule(
        "compare.thresholds",
        lambda value: isinstance(value, Mapping) and all(map(_share, value.values())),
        "is not {metric: a number between 0 and 1}.",
    ),
    Rule(
        "compare.tolerance",
        _or_null(_share),
        "is not a share of the largest output: a number between 0 and 1, or null.",
    ),
    Rule("compare.pareto", _are_texts, "is not a list of metrics such as [latency/forward, quality/accuracy]."),
    Rule("tracking.writer", lambda value: value in WRITERS, "is not a writer. Known: head, job."),
    Rule("wait", _is_bool, "is not true or false."),
    Rule("cluster.minutes", _number_from(0.01), "is not a duration: minutes above 0."),
    Rule(
        "cluster.parallel", _or_null(_whole_from(1)), "is not a number of tasks: a whole number of at least 1, or null."
    ),
    Rule(
        "cluster.time",
        _or_null(lambda v: parse_minutes(v) is not None),
        "is not a time limit, such as 30min, 2h or 1d, or null.",
    ),
    # A bare number would be megabytes to Slurm, and is bytes to us.
    Rule(
        "cluster.memory",
        _or_null(lambda v: (parse_size(v) or 0) >= 2**20),
        "is not a size of at least 1 MiB, such as 4GiB, or null.",
    ),
    Rule(
        "cluster.cpus",
        _or_null(_whole_from(1)),
        "is not a number of processors: a whole number of at least 1, or null.",
    ),
    Rule("cluster.gpus", _or_null(is_gpus), "is not a number of GPUs, as 1 or a100:1, or null."),
    Rule("cluster.exclusive", _is_bool, "is not true or false."),
    Rule("cluster.options", lambda value: isinstance(value, Mapping), "is not {option of sbatch: value}."),
    Rule("cluster.groups", lambda value: isinstance(value, list), "is not a list of {where: …, memory: …}."),
    Rule("cluster.setup", _are_texts, "is not a list of lines of shell."),
    Rule(
        "cluster.environment",
        lambda value: isinstance(value, Mapping) and all(map(_is_variable, value)),
        "is not {variable: value}.",
    ),
    Rule("cluster.poll_s", _number_from(0.1), "is not a duration: seconds of at least 0.1."),
    *(
        Rule(
            f"cluster.{key}", _or_null(lambda value: isinstance(value, str) and value != ""), "is not a name, or null."
        )
        for key in ("partition", "account", "qos", "constraint", "python")
    ),
    Rule("compare.constraints", _are_texts, "is not a list of conditions such as ['latency < 5 ms']."),
)


def config_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong with one resolved config."""
    return [
        *rule_problems(config),
        *(problem for name, part in config.items() for problem in _further_problems(name, part)),
    ]


def rule_problems(config: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the values of a config, or of some parts of one."""
    return [problem for name, part in config.items() for problem in _rule_problems(name, part)]


def part_problems(name: str, part: Any) -> list[Problem]:
    """Everything that is wrong with the part ``name`` of a resolved config; parts do not depend on each other."""
    return [*_rule_problems(name, part), *_further_problems(name, part)]


def _further_problems(name: str, part: Any) -> Iterable[Problem]:
    further: dict[str, Callable[[Any], Iterable[Problem]]] = {
        "training": _recipe_problems,
        "metrics": _metric_problems,
        "dataset": _dataset_problems,
        "backend": _backend_problems,
        "model": _model_problems,
        "tracking": _tracking_problems,
        "cluster": _cluster_problems,
    }
    return further[name](part) if name in further else ()


def _rule_problems(name: str, part: Any) -> Iterator[Problem]:
    config = {name: part}
    for rule in RULES:
        if rule.key.partition(".")[0] == name:
            found, value = _lookup(config, rule.key)
            if found and not rule.accepts(value):
                yield Problem(rule.key, value, rule.allowed, _nearest_choice(rule, value))


def _nearest_choice(rule: Rule, value: Any) -> str | None:
    choices = {
        "isolation": ISOLATIONS,
        "mode": MODES,
        "backend.precision": PRECISIONS,
        "protocol.interleave": INTERLEAVINGS,
        "protocol.kernel": KERNELS,
    }.get(rule.key)
    return None if choices is None else nearest(str(value), choices)


def _lookup(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = node[part]
    return True, node


def _recipe_problems(training: Any) -> Iterator[Problem]:
    if not isinstance(training, Mapping):
        yield Problem("training", training, "is not {optimizer: …, loss: …}.")
        return
    for key, known in (("optimizer", OPTIMIZERS), ("loss", LOSSES)):
        value = training.get(key)
        if isinstance(value, Mapping):
            if not isinstance(value.get("_target_"), str):
                target = f"training.{key}._target_"
                yield Problem(target, value.get("_target_"), "is not the dotted name of a class or function.")
        elif value not in known:
            yield choice_problem(f"training.{key}", value, key, known)


def _metric_problems(metrics: Any) -> list[Problem]:
    entries = metrics.get("select")
    if not isinstance(entries, list) or not entries:
        return [Problem("metrics.select", entries, "is not a list of at least one metric.")]
    try:
        select(entries)
    except UserError as error:
        return list(error.problems)
    return []


def _dataset_problems(dataset: Any) -> Iterator[Problem]:
    if not isinstance(dataset, Mapping) or not dataset.get("_target_"):
        yield Problem("dataset._target_", None, "is missing: it names what to construct.")
    else:
        yield from _argument_problems("dataset", dataset)


def _argument_problems(key: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    """Arguments that a function of sweeprof does not accept; other targets are imported by the probe, in a process of its own."""
    return argument_problems(key, node) if node["_target_"].startswith("sweeprof.") else ()


@dataclass(frozen=True, slots=True)
class _Extra:
    """What a framework needs installed."""

    package: str
    """As it is imported."""
    name: str
    """The extra of sweeprof that brings it."""


_EXTRAS = {
    "torch": _Extra("torch", "torch"),
    "tensorflow": _Extra("tensorflow", "tensorflow"),
    "jax": _Extra("jax", "jax"),
    "onnx": _Extra("onnxruntime", "onnxruntime"),
    "litert": _Extra("ai_edge_litert", "litert"),
}


def _backend_problems(backend: Any) -> Iterator[Problem]:
    if not isinstance(backend, Mapping) or not backend.get("_target_"):
        yield Problem("backend._target_", None, "is missing: it names what to construct.")
        return
    extra = _EXTRAS.get(str(backend.get("framework")))
    if extra is not None and find_spec(extra.package) is None:
        yield _missing_extra("backend", extra.name)


def _model_problems(model: Any) -> Iterator[Problem]:
    for framework, node in model.items():
        if isinstance(node, Mapping) and not isinstance(node.get("_target_"), str):
            yield Problem(
                f"model.{framework}._target_", node.get("_target_"), "is not the dotted name of a class or function."
            )
        elif isinstance(node, Mapping):
            yield from _argument_problems(f"model.{framework}", node)


def _tracking_problems(tracking: Any) -> Iterator[Problem]:
    tracker = str(tracking.get("_target_") or "")
    if tracker.startswith("sweeprof.tracking.mlflow") and find_spec("mlflow") is None:
        yield _missing_extra("tracking", "mlflow")
    if tracking.get("writer") == "job" and not str(tracking.get("uri")).startswith(("http://", "https://")):
        said = "needs a server, tracking.uri=http://…: of a database the head is the one writer."
        yield Problem("tracking.writer", "job", said)


def _cluster_problems(cluster: Any) -> Iterable[Problem]:
    # Which asks these rules in turn.
    from sweeprof.sweep.cluster.resources import group_problems, option_problems, setting_problems

    scheduler = cluster.get("scheduler")
    if scheduler not in (None, "slurm"):
        return [choice_problem("cluster.scheduler", scheduler, "scheduler", ["slurm"])]
    groups, options = cluster.get("groups"), cluster.get("options")
    return [
        *setting_problems(cluster),
        *(option_problems(options) if isinstance(options, Mapping) else ()),
        *(group_problems(groups) if isinstance(groups, list) else ()),
    ]


def _missing_extra(key: str, extra: str) -> Problem:
    return Problem(key, extra, f"is not installed here: pip install 'sweeprof[{extra}]'.")


def baseline_problems(baseline: Any, axes: Mapping[str, list[Any]]) -> Iterator[Problem]:
    """What is wrong with ``compare.baseline``, given the values per axis."""
    if not isinstance(baseline, Mapping):
        yield Problem("compare.baseline", baseline, "is not {axis: value}.")
        return
    for key, value in baseline.items():
        if key not in axes:
            yield choice_problem("compare.baseline", key, "axis of this sweep", axes)
        elif value not in axes[key]:
            yield choice_problem(f"compare.baseline.{key}", value, "value of that axis", [str(v) for v in axes[key]])


def training_problems(axes: Mapping[str, list[Any]], modes: Collection[str]) -> Iterator[Problem]:
    """What is wrong with axes of the training step, given the modes of all combinations."""
    if not modes or "training" in modes:
        return
    for key, values in axes.items():
        if key.partition(".")[0] == "training" and len(values) > 1:
            yield Problem(key, ",".join(map(str, values)), "has no effect with mode=inference; add mode=training.")
