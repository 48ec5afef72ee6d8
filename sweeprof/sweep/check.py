"""Validation of a composed config: every problem at once, each naming key, value and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from sweeprof.errors import Problem, UserError, choice_problem, nearest
from sweeprof.metrics.select import select
from sweeprof.profiling.recipe import LOSSES, OPTIMIZERS

PRECISIONS = ("fp32", "bf16", "fp16", "int8-dynamic")
ISOLATIONS = ("fork", "spawn", "inline")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|MB|GB|TB)?")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


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


MODES = ("inference", "training")
RULES = (
    Rule("mode", lambda value: value in MODES, "is not a kind of step. Known: inference, training."),
    Rule("batch_size", _whole_from(1), "is not a batch size: a whole number of at least 1."),
    Rule("backend.threads", _whole_from(1), "is not a number of threads: a whole number of at least 1."),
    Rule(
        "backend.precision",
        lambda value: value in PRECISIONS,
        f"is not a precision. Known: {', '.join(PRECISIONS)}.",
    ),
    Rule("backend.channels_last", lambda value: isinstance(value, bool), "is not true or false."),
    Rule("backend.compile", lambda value: isinstance(value, bool), "is not true or false."),
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
    Rule("isolation", lambda value: value in ISOLATIONS, f"is not an isolation. Known: {', '.join(ISOLATIONS)}."),
    Rule("shards", _or_null(_whole_from(1)), "is not a number of shards: a whole number of at least 1, or null."),
    Rule("name", _or_null(_is_folder_name), "is not a name: letters, digits, '.', '_', '-' and spaces, or null."),
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
    Rule("dry_run", lambda value: isinstance(value, bool), "is not true or false."),
)


def parse_size(value: Any) -> int | None:
    """Bytes in ``value``, a whole number or a text such as ``2GiB``; None if it is neither or not above 0."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value > 0 else None
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    return int(float(match[1]) * _UNITS[match[2] or "B"]) or None


def config_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong with one resolved config."""
    return [
        *_rule_problems(config),
        *_recipe_problems(config),
        *_metric_problems(config),
        *_target_problems(config),
        *_extra_problems(config),
    ]


def _rule_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    for rule in RULES:
        found, value = _lookup(config, rule.key)
        if found and not rule.accepts(value):
            yield Problem(rule.key, value, rule.allowed, _nearest_choice(rule, value))


def _nearest_choice(rule: Rule, value: Any) -> str | None:
    choices = {"isolation": ISOLATIONS, "mode": MODES, "backend.precision": PRECISIONS}.get(rule.key)
    return None if choices is None else nearest(str(value), choices)


def _lookup(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = node[part]
    return True, node


def _recipe_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    if not isinstance(config["training"], Mapping):
        yield Problem("training", config["training"], "is not {optimizer: …, loss: …}.")
        return
    for key, known in (("optimizer", OPTIMIZERS), ("loss", LOSSES)):
        value = config["training"].get(key)
        if isinstance(value, Mapping):
            if not isinstance(value.get("_target_"), str):
                target = f"training.{key}._target_"
                yield Problem(target, value.get("_target_"), "is not the dotted name of a class or function.")
        elif value not in known:
            yield choice_problem(f"training.{key}", value, key, known)


def _metric_problems(config: Mapping[str, Any]) -> list[Problem]:
    entries = config["metrics"].get("select")
    if not isinstance(entries, list) or not entries:
        return [Problem("metrics.select", entries, "is not a list of at least one metric.")]
    try:
        select(entries)
    except UserError as error:
        return list(error.problems)
    return []


def _target_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    for group in ("dataset", "backend"):
        if not isinstance(config[group], Mapping) or not config[group].get("_target_"):
            yield Problem(f"{group}._target_", None, "is missing: it names what to construct.")
    for framework, node in config["model"].items():
        if isinstance(node, Mapping) and not isinstance(node.get("_target_"), str):
            yield Problem(
                f"model.{framework}._target_", node.get("_target_"), "is not the dotted name of a class or function."
            )


def _extra_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    framework = config["backend"].get("framework")
    if framework in ("torch", "tensorflow") and find_spec(framework) is None:
        yield _missing_extra("backend", framework)
    tracker = str(config["tracking"].get("_target_") or "")
    if tracker.startswith("sweeprof.tracking.mlflow") and find_spec("mlflow") is None:
        yield _missing_extra("tracking", "mlflow")


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


def exclude_problems(rules: Any, axes: Mapping[str, list[Any]], narrowed: Collection[str]) -> Iterator[Problem]:
    """What is wrong with ``exclude``, given the values per axis; a rule that can match nothing is a mistake.

    An axis that the command line narrowed may have lost the values that a sweep file excludes.
    """
    if not isinstance(rules, list) or any(not isinstance(rule, Mapping) or not rule for rule in rules):
        yield Problem("exclude", rules, "is not a list of {axis: value or [values]}.")
        return
    for key, value in (item for rule in rules for item in rule.items()):
        if key not in axes:
            yield choice_problem("exclude", key, "axis of this sweep", axes)
            continue
        for one in value if isinstance(value, list) else [value]:
            if one not in axes[key] and key not in narrowed:
                yield choice_problem(f"exclude {key}", one, "value of that axis", [str(v) for v in axes[key]])
