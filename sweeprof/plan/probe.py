"""Checks that need imports, in a separate process: the user's targets, and devices.

The driver imports neither user code nor frameworks; a crash or a hang of an import must not affect it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sweeprof.config.signatures import given_arguments
from sweeprof.datasets.source import checked_split, run_name
from sweeprof.errors import (
    DatasetError,
    Problem,
    Unsupported,
    UserError,
    WorkerError,
    choice_problem,
    described,
    original,
)
from sweeprof.metrics.quality import output_scores
from sweeprof.model_sources import OWN_KEYS
from sweeprof.plan.plan import Combination, environment
from sweeprof.processes import Child, child_environment
from sweeprof.results.record import Json
from sweeprof.targets import chosen_builder, instantiate, target_problems

PROBE_S = 120.0
DATASETS_S = 30.0
"""How long datasets may take to load at planning; what takes longer is checked when it is measured."""

Target = tuple[str, str, list[str], bool]
"""The arguments of :func:`target_problems`."""


def probe(combinations: Sequence[Combination], packaged: frozenset[str], here: bool = True) -> list[Problem]:
    """Return the problems of the targets and devices of the combinations.

    Args:
        packaged: targets that sweeprof's own configs name; they need no look.
        here: whether they are measured on this host; what devices others have only they can say.
    """
    targets: dict[str, Target] = {}
    datasets: dict[str, Json] = {}
    questions: dict[str, Json] = {}
    devices: dict[tuple[str, str], Json] = {}
    for config in (c.config for c in combinations):
        for target in _targets(config):
            if target[1] not in packaged:
                targets[_text(target)] = target
        node, device = config["dataset"], config["device"]["type"]
        if here and (node["_target_"] not in packaged or node.get("prepare")):
            datasets[_text(node)] = node
        if config.get("quality"):
            question = {"nodes": config["quality"], "dataset": node, "device": device}
            questions[_text([config["quality"], device])] = question
        if here and device != "cpu":  # which every backend has
            devices[config["backend"]["_target_"], device] = config["backend"]
    run_name()  # what is decoded now is there for the trials
    problems: list[Problem] = []
    if targets or datasets:
        problems += _asked({"targets": list(targets.values())}, {}, {"datasets": list(datasets.values())})
    if questions:
        problems += _asked({"quality": list(questions.values())}, {})
    for (_, device), backend in devices.items():
        problems += _asked({"backend": backend, "device": device}, environment({"backend": backend}))
    return problems


def _text(node: object) -> str:
    return json.dumps(node, sort_keys=True, default=str)


def _targets(config: Json) -> Iterator[Target]:
    try:
        builder, node = chosen_builder(config["backend"], config["model"])
        yield _called_alone(f"model.{builder}", node)
    except Unsupported:  # which the combination's row says
        pass
    for group in ("dataset", "backend"):
        yield _called_alone(group, config[group])
    for key in ("optimizer", "loss"):
        node = config["training"][key]
        if isinstance(node, Mapping):
            yield f"training.{key}._target_", node["_target_"], list(given_arguments(node)), False
    generation = config.get("generation", {})
    if config.get("mode") == "generation" and generation.get("function") is not None:
        arguments = [name for name in generation if name not in OWN_KEYS]
        yield "generation.function", generation["function"], arguments, False


def _called_alone(key: str, node: Mapping[str, Any]) -> Target:
    """Return the target of a node that is called with the node's arguments only, unless some of them are positional."""
    return f"{key}._target_", node["_target_"], list(given_arguments(node)), "_args_" not in node


def quality_problems(question: Json) -> list[Problem]:
    """Return the problems of making the metrics of quality; imports and makes them."""
    try:
        dataset: object = instantiate(question["dataset"])
    except Exception:  # which is a problem of the dataset
        return []
    problems: list[Problem] = []
    for name, node in question["nodes"].items():
        try:
            output_scores({name: node}, question["device"], dataset)
        except UserError as error:
            problems += error.problems
    return problems


def _asked(question: Json, variables: Mapping[str, str], then: Json | None = None) -> list[Problem]:
    """Return the problems that a child process finds; ``then`` is sent if there are none, and need not be answered."""
    child = Child("sweeprof.plan.probe:answered", [], child_environment(variables), None, answers=True)
    try:
        answer = child.ask(question, PROBE_S)
        if then and not answer["problems"]:
            with suppress(WorkerError):  # the rows will say what is wrong
                answer = child.ask(then, DATASETS_S)
    except WorkerError as error:
        names = [name for _, name, *_ in question.get("targets", [])]
        names += [str(node["_target_"]) for q in question.get("quality", []) for node in q["nodes"].values()]
        subject = ", ".join(names) or question["backend"]["_target_"]
        return [Problem("_target_", subject, f"cannot be imported: {str(error).rstrip('.')}.")]
    finally:
        child.close()
    return [Problem(**problem) for problem in answer["problems"]]


def dataset_problems(node: Json) -> list[Problem]:
    """Return the problems of what a dataset returns; errors that it raises are left to the trials, which may run elsewhere."""
    try:
        dataset = instantiate(node)
        if node.get("prepare"):
            dataset.prepare("test")
        checked_split(dataset, "test")
    except Exception as error:  # user code may raise any exception
        cause = original(error)
        if isinstance(cause, UserError) and cause.problems:
            return list(cause.problems)
        if isinstance(cause, DatasetError):
            # The key by which the user chose the data.
            key, value = "dataset", node["_target_"]
            if node.get("path") is not None:
                key, value = "dataset.path", node["path"]
            elif isinstance(node.get("source"), Mapping):
                key, value = "dataset.source._target_", node["source"].get("_target_")
            return [Problem(key, value, f"has data that a model cannot be measured on: {str(cause).rstrip('.')}.")]
    return []


def device_problem(backend: Json, device: str) -> Problem | None:
    """Return the problem of a device that the backend does not offer on this host; None if it does. Imports the framework."""
    try:
        offered = instantiate(backend).devices()
    except Exception as error:  # a framework may fail to import in any way
        return Problem("backend", backend["_target_"], f"cannot be used: {described(error).rstrip('.')}.")
    return None if device in offered else choice_problem("device.type", device, "device of this host", offered)


def answered(question: Json) -> Json:
    """Return the answer of the child process to a question."""
    found: list[Problem] = []
    if "targets" in question:
        for target in question["targets"]:
            found += target_problems(*target)
    elif "quality" in question:
        for one in question["quality"]:
            found += quality_problems(one)
    elif "datasets" in question:
        for node in question["datasets"]:
            found += dataset_problems(node)
    elif problem := device_problem(question["backend"], question["device"]):
        found.append(problem)
    return {"problems": [dataclasses.asdict(problem) for problem in found]}
