"""Validation of a composed config: every problem at once, each with key, value and allowed values.

Here is what the constraint of a single key in :mod:`.schema` cannot check; the last part checks the settings of backends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from sweeprof.backends import HOMES, TARGETS, missing_package, unsupported_reason
from sweeprof.backends.command import command_problems
from sweeprof.config import override_syntax
from sweeprof.config.constraints import METRICS
from sweeprof.config.override_syntax import is_among, spelled
from sweeprof.config.schema import constraint_problems, keys_below
from sweeprof.config.signatures import (
    Argument,
    argument_problems,
    constant_of,
    given_arguments,
    kind_problems,
    signature_of,
)
from sweeprof.datasets.source import integer_problems
from sweeprof.errors import Problem, UserError, choice_problem, key_problem, nearest
from sweeprof.metrics.quality import problems_of
from sweeprof.metrics.select import select
from sweeprof.model_sources import OWN_KEYS
from sweeprof.model_sources import argument_problems as generate_problems
from sweeprof.paths import conf_folder
from sweeprof.results.record import Json
from sweeprof.results.statistics import MOST_SEQUENTIAL_ROUNDS
from sweeprof.results.verdicts import MIN_ROUNDS
from sweeprof.targets import NOT_ARGUMENTS

SCHEDULERS = ("slurm", "ray")
RESERVED_OPTIONS = (
    *("job-name", "array", "output", "parsable", "wrap", "wait", "test-only", "clusters"),
    *("name", "namespace", "lifetime", "get_if_exists"),
)
"""Options of sbatch, and of Ray's actors, by which sweeprof finds the tasks of a sweep."""


def config_problems(config: Json) -> list[Problem]:
    """Return every problem of one resolved config; its parts do not depend on each other."""
    further: dict[str, Callable[[Any], Iterable[Problem]]] = {
        "protocol": _protocol_problems,
        "training": _training_problems,
        "generation": _generation_problems,
        "metrics": _metric_problems,
        "dataset": _dataset_problems,
        "backend": _backend_problems,
        "model": _model_problems,
        "tracking": _tracking_problems,
        "quality": problems_of,
        "cluster": _cluster_problems,
        "search": _search_problems,
    }
    problems = constraint_problems(config)
    for name, part in config.items():
        if name in further:
            problems += further[name](part)
    return problems


def part_problems(name: str, part: Any) -> list[Problem]:
    """Return every problem of the part ``name`` of a resolved config."""
    return config_problems({name: part})


def _protocol_problems(protocol: Any) -> Iterator[Problem]:
    if not isinstance(protocol, Mapping) or protocol.get("decide") is None:
        return
    if constraint_problems({"protocol": protocol}):
        return
    rounds = protocol.get("rounds")
    if type(rounds) is int and not MIN_ROUNDS <= rounds <= MOST_SEQUENTIAL_ROUNDS:
        allowed = f"it must be from {MIN_ROUNDS} to {MOST_SEQUENTIAL_ROUNDS}; protocol=decide has 20."
        message = f"is not a number of rounds that can decide: with protocol.decide {allowed}"
        yield Problem("protocol.rounds", rounds, message)
    if protocol.get("threshold") is None:
        message = "is not a difference: protocol.decide needs one, such as protocol.threshold=0.05."
        yield Problem("protocol.threshold", "null", message)


def _training_problems(training: Any) -> Iterator[Problem]:
    if not isinstance(training, Mapping):
        yield Problem("training", training, "is not {optimizer: …, loss: …}.")
        return
    for key in keys_below("training"):
        value = training.get(key)
        if isinstance(value, Mapping) and not isinstance(value.get("_target_"), str):
            target = f"training.{key}._target_"
            yield Problem(target, value.get("_target_"), "is not the dotted name of a class or function.")


def _generation_problems(generation: Any) -> Iterator[Problem]:
    if not isinstance(generation, Mapping):
        yield Problem("generation", generation, "is not {prompt_length: …, new_tokens: …}.")
        return
    arguments = {name: value for name, value in generation.items() if name not in OWN_KEYS}
    yield from generate_problems(arguments, is_own=generation.get("function") is not None)


def _metric_problems(metrics: Json) -> list[Problem]:
    if "select" not in metrics:
        return constraint_problems({"metrics": {"select": None}})
    if not METRICS.accepts(metrics["select"]):  # reported with the other constraints
        return []
    try:
        selected = select(metrics["select"])
    except UserError as error:
        return list(error.problems)
    if selected:
        return []
    return [Problem("metrics.select", metrics["select"], "names passes alone: add a metric, such as latency/forward.")]


def _dataset_problems(dataset: Any) -> Iterator[Problem]:
    if not isinstance(dataset, Mapping) or not dataset.get("_target_"):
        yield Problem("dataset._target_", None, "is missing: it must name a class or function.")
    else:
        for problem in _argument_problems("dataset", dataset):
            yield _with_dataset(problem, str(problem.value))
        if str(dataset["_target_"]).startswith("sweeprof."):
            yield from integer_problems(dataset)


def _with_dataset(problem: Problem, argument: str) -> Problem:
    """Return a problem of an argument that the dataset does not have, with the datasets that have it."""
    if problem.key != "dataset" or problem.nearest is not None:
        return problem
    entry = re.compile(rf"^{re.escape(argument)}:", re.MULTILINE)
    files = sorted((conf_folder() / "dataset").glob("*.yaml"))
    having = [f"dataset={file.stem}" for file in files if entry.search(file.read_text(encoding="utf-8"))]
    if not having:
        return problem
    return replace(problem, allowed=f"{problem.allowed} Datasets that have it: {', '.join(having)}.")


def _argument_problems(key: str, node: Mapping[str, Any]) -> Iterable[Problem]:
    """Return the problems of arguments that a function of sweeprof does not accept; the probe checks other targets."""
    return argument_problems(key, node) if node["_target_"].startswith("sweeprof.") else ()


@dataclass(frozen=True, slots=True)
class Extra:
    """The packages that a framework needs."""

    packages: tuple[str, ...]
    """As they are imported, its own first."""
    name: str
    """The extra of sweeprof that installs it."""


FRAMEWORK_EXTRAS = {home.framework: Extra(home.packages, home.extra) for home in HOMES.values() if home.packages}
"""By the framework of a backend."""


def _backend_problems(backend: Any) -> Iterator[Problem]:
    if not isinstance(backend, Mapping) or not backend.get("_target_"):
        yield Problem("backend._target_", None, "is missing: it must name a class or function.")
        return
    if backend.get("framework") == "command":
        yield from command_problems(backend)
    extra = FRAMEWORK_EXTRAS.get(str(backend.get("framework")))
    if extra is None:
        return
    missing = missing_package(extra.packages)
    if missing is not None:
        others = FRAMEWORK_EXTRAS.values()
        installed = [f"backend={other.name}" for other in others if missing_package(other.packages) is None]
        what = "" if missing == extra.packages[0] else f"needs the package {missing}, which "
        instead = f", or use what is installed: {', '.join(installed)}" if installed else ""
        message = f"{what}{_not_installed(extra.name).removesuffix('.')}{instead}."
        yield Problem("backend", extra.name, message)


def builder_problem(builder: str, backend: str) -> Problem | None:
    """Return the problem of a model whose builder needs a framework that is not installed; None if there is none.

    Args:
        builder: the key of the builder in the model's node.
        backend: the framework of the backend, which may export models of other frameworks.
    """
    if builder == backend or builder not in FRAMEWORK_EXTRAS:
        return None
    extra = FRAMEWORK_EXTRAS[builder]
    package = "keras" if builder == "tensorflow" else extra.packages[0]
    if missing_package([package]) is None:
        return None
    message = f"is needed to build the model for {backend}, and {_not_installed(extra.name)}"
    return Problem(f"model.{builder}", extra.name, message)


def _model_problems(model: Json) -> Iterator[Problem]:
    is_file = any(isinstance(node, Mapping) and "for_files" in node for node in model.values())
    if is_file and model.get("path") is None:
        yield Problem("model.path", None, "is missing: it must name a file.")
        return
    for framework, node in model.items():
        if not isinstance(node, Mapping):
            continue
        if isinstance(node.get("_target_"), str):
            yield from _argument_problems(f"model.{framework}", node)
        elif framework in FRAMEWORK_EXTRAS or "_target_" in node:  # others are settings of the model's source
            message = "is not the dotted name of a class or function."
            yield Problem(f"model.{framework}._target_", node.get("_target_"), message)


def lacks_default_tracker(tracking: object, given: Iterable[str]) -> bool:
    """Return True if MLflow is the tracker by default only, and is not installed.

    Args:
        tracking: that part of the config.
        given: the keys or overrides of the command line.
    """
    if not isinstance(tracking, Mapping) or not _lacks_mlflow(tracking):
        return False
    if any(key.lstrip("+").startswith("tracking") for key in given):
        return False
    return all(tracking.get(name) == key.default for name, key in keys_below("tracking").items())


def _lacks_mlflow(tracking: Mapping[str, object]) -> bool:
    return str(tracking.get("_target_")).startswith("sweeprof.tracking.mlflow") and find_spec("mlflow") is None


def _tracking_problems(tracking: Json) -> Iterator[Problem]:
    if _lacks_mlflow(tracking):
        yield Problem("tracking", "mlflow", _not_installed("mlflow"))


def _cluster_problems(cluster: Json) -> Iterator[Problem]:
    scheduler = cluster.get("scheduler")
    if scheduler not in (None, *SCHEDULERS):
        yield choice_problem("cluster.scheduler", scheduler, "scheduler", SCHEDULERS)
        return
    known = keys_below("cluster")
    for name, value in cluster.items():
        if name not in known:
            yield key_problem(f"cluster.{name}", value, [key.name for key in known.values()])
    options = cluster.get("options")
    if isinstance(options, Mapping):
        for name, value in options.items():
            if name in RESERVED_OPTIONS:
                message = "is set by sweeprof, which uses it to find its tasks."
                yield Problem(f"cluster.options.{name}", value, message)


def _search_problems(search: Any) -> Iterator[Problem]:
    """Return the problems of a search that do not depend on the metrics and axes of the sweep."""
    if not isinstance(search, Mapping):
        return
    sampler = search.get("sampler")
    if search.get("maximize") is None and search.get("minimize") is None:
        named = [key for key in ("subject_to", "trials") if search.get(key) not in (None, [])]
        if named and not constraint_problems({"search": search}):
            message = "needs a goal: search.maximize or search.minimize, such as search.maximize=throughput."
            yield Problem(f"search.{named[0]}", search[named[0]], message)
    elif not override_syntax.is_installed():
        yield Problem("search", "search", _not_installed("search"))
    elif isinstance(sampler, str) and sampler not in override_syntax.samplers():
        known = override_syntax.samplers()
        close = nearest(sampler, known) or nearest(f"{sampler}Sampler", known)
        yield replace(choice_problem("search.sampler", sampler, "sampler for a search", known), nearest=close)


def _not_installed(extra: str) -> str:
    return f"is not installed here: pip install 'sweeprof[{extra}]'."


def baseline_problems(baseline: object, axes: Mapping[str, list[object]]) -> Iterator[Problem]:
    """Return the problems of ``compare.baseline``, given the values per axis."""
    if not isinstance(baseline, Mapping):
        yield Problem("compare.baseline", baseline, "is not {axis: value}.")
        return
    for key, value in baseline.items():
        if key not in axes:
            yield choice_problem("compare.baseline", key, "axis of this sweep", axes)
        elif not is_among(value, axes[key]):
            yield choice_problem(f"compare.baseline.{key}", value, "value of that axis", [str(v) for v in axes[key]])


def modes_without_model_problems(configs: Iterable[Json]) -> Iterator[Problem]:
    """Return the problems of combinations of mode=loading or mode=command: metrics that need a model, or another backend."""
    for config in configs:
        mode, runs_programs = config["mode"], config["backend"].get("framework") == "command"
        if runs_programs and mode != "command":
            yield Problem(
                "mode", mode, "measures a model, and backend=command has none: it is measured with mode=command."
            )
            return
        if mode == "command" and not runs_programs:
            message = "measures programs, and this backend runs a model: choose backend=command, or metrics=default."
            yield Problem("mode", mode, message)
            return
        if mode not in ("loading", "command"):
            continue
        what = "the data loader alone, without" if mode == "loading" else "programs, and not"
        for entry in config["metrics"]["select"]:
            # A metric with options of its own is checked where it is selected.
            if not isinstance(entry, Mapping) and not str(entry).startswith(f"{mode}/"):
                yield Problem("mode", mode, f"measures {what} {entry}: add metrics={mode}.")
                return


def mode_problems(axes: Mapping[str, list[object]], modes: Collection[str]) -> Iterator[Problem]:
    """Return the problems of axes that belong to another mode than those of all combinations."""
    for key, values in axes.items():
        part = key.partition(".")[0]
        if modes and part in ("training", "generation") and part not in modes and len(values) > 1:
            used = " and ".join(sorted(set(modes)))
            yield Problem(key, ",".join(map(str, values)), f"has no effect with mode={used}; add mode={part}.")


def open_problems(name: str, node: object) -> Iterator[Problem]:
    """Return the problems of keys that a config leaves open (``???``), and nothing gives a value."""
    if node == "???":
        yield Problem(name, "???", f"has no value; give it one: {name}=VALUE.")
    elif isinstance(node, Mapping):
        for key, inner in node.items():
            yield from open_problems(f"{name}.{key}", inner)
    elif isinstance(node, list):
        for place, inner in enumerate(node):
            yield from open_problems(f"{name}.{place}", inner)


# ----------------------------------------------------------------------------------------------------------------------
# The settings of a backend in sweeps over several: which of them support which values

_DEFAULTS = {"precision": "fp32"}
"""The meaning of a setting's default, if its constructor's default is None: the model as it is."""
_NO_DEFAULT = ("mode", "layout")
"""Settings whose default says how one framework works; it is not true of a framework that lacks the setting."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The config node of a backend, checked against what its constructor accepts."""

    node: Json
    """Without the settings that the backend lacks and that have their default value."""
    dropped: frozenset[str] = frozenset()
    """Names of the settings that were removed."""
    unsupported: str | None = None
    """Why the backend cannot run with these settings."""
    problems: tuple[Problem, ...] = ()
    devices: tuple[str, ...] = ()
    """The only kinds of devices that have its precision; empty if all have it."""


def fitted(node: Json, name: str, targets: Callable[[], Collection[str]]) -> Fitted:
    """The node of the backend called ``name``, in a sweep over backends with these ``targets`` (asked for only if needed)."""
    target = str(node.get("_target_"))
    signature = signature_of(target)
    if signature is None:  # the process that imports it will tell
        return Fitted(node)
    dropped: set[str] = set()
    reasons: list[str] = []
    problems: list[Problem] = []
    refused = {problem.key for problem in constraint_problems({"backend": node})}
    for setting, value in given_arguments(node).items():
        key = f"backend.{setting}"
        if key in refused or (signature.is_open and setting not in signature.arguments):
            continue
        if setting in signature.arguments:
            found = _refused(key, value, signature.arguments[setting], target, name, targets)
        else:
            found = _foreign(key, value, target, name, targets)
            if found is None:
                dropped.add(setting)
        if isinstance(found, str):
            reasons.append(found)
        elif found is not None:
            problems.append(found)
    methods, gaps = constant_of(target, "precision_methods"), constant_of(target, "precision_gaps")
    precision_devices = constant_of(target, "precision_devices")
    devices: tuple[str, ...] = ()
    if isinstance(precision_devices, Mapping) and isinstance(node.get("precision"), str):
        devices = precision_devices.get(node["precision"], ())
    is_valid = not problems and not refused
    if is_valid and isinstance(methods, Mapping):  # the class declares which precisions it supports
        known_gaps = gaps if isinstance(gaps, Mapping) else {}
        reason = unsupported_reason(name, methods, known_gaps, node.get("precision"), node.get("precision_method"))
        if reason is not None:
            reasons.append(reason)
    kept = {key: value for key, value in node.items() if key not in dropped}
    if kept.get("precision") == "fp32" and "precision_method" in kept:
        kept["precision_method"] = None  # which has no effect: combinations that differ in it alone are one
    return Fitted(kept, frozenset(dropped), "; ".join(reasons) or None, tuple(problems), devices)


def _refused(
    key: str, value: object, argument: Argument, target: str, name: str, targets: Callable[[], Collection[str]]
) -> Problem | str | None:
    """Return the problem of a value that the backend does not accept, or the reason if another backend does."""
    problem = next(kind_problems(key, value, argument.kind), None)
    if problem is None:
        return None
    setting = key.removeprefix("backend.")
    choices = _choices(target, setting)
    if any(value in _choices(other, setting) for other in TARGETS):
        return f"{name} does not support {setting}={value} (only {', '.join(map(str, choices))})"
    if not choices:
        return problem
    known = set(choices)
    for other in targets():
        known.update(_choices(other, setting))
    return choice_problem(key, value, setting, map(str, known))


def _foreign(
    key: str, value: object, target: str, name: str, targets: Callable[[], Collection[str]]
) -> Problem | str | None:
    """Return the problem of a setting that the backend lacks, or the reason if others have it; None if it has their default."""
    setting = key.removeprefix("backend.")
    defaults = []
    for other in targets():
        if setting in _arguments(other):
            default = _arguments(other)[setting].default
            defaults.append(_DEFAULTS.get(setting) if default is None else default)
    if not defaults:
        return unknown_setting(key, value, [target, *targets()])
    if setting in _NO_DEFAULT:
        return f"{name} has no setting '{setting}'"
    if value in defaults:
        return None
    return f"{name} does not support {setting}={spelled(value)} (only the default, {spelled(defaults[0])})"


def unknown_setting(key: str, value: object, targets: Collection[str]) -> Problem:
    """The problem of a key that is a setting of none of the backends with these targets."""
    known: set[str] = set()
    for target in targets:
        known.update(f"backend.{name}" for name in _arguments(target))
    return key_problem(key, value, known)


def is_setting(key: str, targets: Collection[str]) -> bool:
    """True if ``key`` can be set in a sweep over backends with these targets."""
    name = key.split(".")[1]
    signatures = [signature_of(target) for target in targets]
    accepted = any(signature is None or signature.accepts(name) for signature in signatures)
    return accepted or name in (*NOT_ARGUMENTS, "_target_")


def _choices(target: str, setting: str) -> tuple[object, ...]:
    argument = _arguments(target).get(setting)
    return argument.kind.choices if argument and argument.kind else ()


def _arguments(target: str) -> Mapping[str, Argument]:
    signature = signature_of(target)
    return signature.arguments if signature else {}
