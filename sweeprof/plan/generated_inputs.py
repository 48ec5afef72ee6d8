"""Descriptions of models' inputs for the datasets that need them, filled in when a sweep is planned; and lists of models.

Both import the packages of the model's source, in a process of their own.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial

from sweeprof.errors import Problem, Unsupported, UserError, WorkerError, described, nearest, original
from sweeprof.plan.plan import Combination, identity
from sweeprof.processes import call, child_environment
from sweeprof.results.record import Json
from sweeprof.targets import instantiate, located

AUTO = "sweeprof.datasets.auto.Auto"
GENERATED, DESCRIBED = "inputs", "model_inputs"
"""The key of a dataset for the description of the model's inputs: of ``dataset=auto``, which needs it, and of other datasets."""
ANSWER_S = 180.0
"""How long describing the inputs of all models may take: a file may be large, and a package slow to import."""
UNSUPPORTED = "unsupported"
"""In place of a description, the key of the reason why a model cannot be built as the config says."""
WILDCARDS = "*?["
GENERATION = "generation"
"""The argument of a function that describes inputs by which it learns of mode=generation: the config's ``generation``."""
PROMPT_LENGTH = "generation.prompt_length"
NAME = "model.name"
"""The key whose values may be patterns."""


def with_generated_inputs(combinations: Sequence[Combination]) -> tuple[list[Combination], list[Problem]]:
    """Return the combinations with descriptions of the inputs that datasets generate or fit, and what is wrong with them."""
    nodes: dict[str, Json] = {}
    needed: set[str] = set()
    problems = []
    for combination in combinations:
        key = _open_key(combination)
        if key is None:
            continue
        node = _question(combination)
        if node is None and key == DESCRIBED:
            continue
        if node is None:
            problems.append(
                Problem(
                    "dataset",
                    "auto",
                    f"needs a model whose source describes its inputs, and {combination.axes.get('model')} has none: name "
                    f"a dataset, such as dataset=synthetic.",
                )
            )
        else:
            nodes[_key(node)] = node
            if key == GENERATED or combination.config.get("inputs"):
                needed.add(_key(node))
    problems += [problem for combination in combinations for problem in _size_problems(combination)]
    problems += [
        Problem(PROMPT_LENGTH, c.config["generation"]["prompt_length"], "has an effect with dataset=auto only.")
        for c in combinations
        if _prompt_length(c) is not None and c.config["dataset"].get("_target_") != AUTO
    ]
    if problems or not nodes:
        return list(combinations), list({str(problem): problem for problem in problems}.values())
    answer = asked({"inputs": list(nodes.values()), "needed": [key in needed for key in nodes]})
    problems = [Problem(**problem) for problem in answer["problems"]]
    if problems:
        return list(combinations), problems
    descriptions = dict(zip(nodes, answer["inputs"], strict=True))
    return [_filled(combination, descriptions) for combination in combinations], []


def _size_problems(combination: Combination) -> list[Problem]:
    """Return the problem of sizes of inputs that nothing reads."""
    sizes, dataset = combination.config.get("inputs"), combination.config["dataset"]
    if not sizes or dataset.get("_target_") == AUTO:
        return []
    if DESCRIBED not in dataset:
        return [
            Problem(
                "inputs", dict(sizes), "has an effect only with a dataset that fits the model, such as dataset=auto."
            )
        ]
    if combination.config["model"].get("inputs") is None:
        reason = (
            "has an effect only with a model whose source describes its inputs; the dataset has options of its own."
        )
        return [Problem("inputs", dict(sizes), reason)]
    return []


def _open_key(combination: Combination) -> str | None:
    """Return the key of the dataset for the description of the model's inputs; None if it has none, or a value for it."""
    dataset = combination.config["dataset"]
    key = GENERATED if dataset.get("_target_") == AUTO else DESCRIBED
    is_open = key in dataset or key == GENERATED
    return key if is_open and dataset.get(key) is None else None


def _prompt_length(combination: Combination) -> int | None:
    """Return the length of the prompt that a combination asks for."""
    config = combination.config
    if config.get("mode") != "generation":
        return None
    length: int | None = config.get("generation", {}).get("prompt_length")
    return length


def _question(combination: Combination) -> Json | None:
    """Return the node of the function that describes the inputs, with the settings of the generation in mode=generation."""
    config = combination.config
    node: Json | None = config["model"].get("inputs")
    if node is None or config.get("mode") != "generation":
        return node
    return {**node, GENERATION: config["generation"]}


def _key(node: Json) -> str:
    return json.dumps(node, sort_keys=True, default=str)


def _filled(combination: Combination, descriptions: dict[str, Json]) -> Combination:
    key, node = _open_key(combination), _question(combination)
    description = None if key is None or node is None else descriptions[_key(node)]
    if key is None or description is None:
        return combination
    if UNSUPPORTED in description:
        return dataclasses.replace(combination, unsupported=combination.unsupported or description[UNSUPPORTED])
    argument, targets = description["targets_argument"], description["targets"]
    is_own_loss = combination.config["mode"] == "training" and combination.config["training"]["loss"] == "own"
    if key == GENERATED and is_own_loss and argument is not None and targets is not None:
        description = {**description, "inputs": {**description["inputs"], argument: targets}}
    dataset = {**combination.config["dataset"], key: description}
    config = {**combination.config, "dataset": dataset}
    axes = dict(combination.axes)
    for axis, value in combination.axes.items():
        # None is the default of this model, in a sweep that sets the size for others.
        if axis.startswith("inputs.") and value is None:
            axes[axis] = description["sizes"].get(axis.removeprefix("inputs."))
    unsupported = combination.unsupported or _batch_reason(config["batch_size"], description["batch_size"])
    return dataclasses.replace(combination, id=identity(config), axes=axes, config=config, unsupported=unsupported)


def _batch_reason(batch_size: int, only: int | None) -> str | None:
    """Return why a model does not take a batch size; None if it does."""
    if only is None or batch_size == only:
        return None
    return f"the model takes batches of {only} only: batch_size={only}"


def matching_names(pattern: str, names: Json | None) -> list[str]:
    """Return the models of a source whose names match a pattern.

    Args:
        pattern: with ``*``, ``?`` or ``[…]``.
        names: the node of the function that lists them; None: the model's source has none.

    Raises:
        UserError: there are none.
    """
    if names is None:
        raise UserError([Problem(NAME, pattern, "is a pattern, and this model's source cannot list its models.")])
    answer = asked({"names": names})
    if answer["problems"]:
        raise UserError([Problem(**problem) for problem in answer["problems"]])
    found = fnmatch.filter(answer["names"], pattern)
    if not found:
        close = nearest(pattern.strip(WILDCARDS), answer["names"])
        raise UserError([Problem(NAME, pattern, "matches no model.", close)])
    return found


def is_pattern(value: object) -> bool:
    """True for text with a wildcard."""
    return isinstance(value, str) and any(character in value for character in WILDCARDS)


def asked(question: Json) -> Json:
    """Return the answer of a child process, which imports the models' source."""
    try:
        return call("sweeprof.plan.generated_inputs:answered", question, child_environment({}), ANSWER_S)
    except WorkerError as error:
        nodes = question.get("inputs") or [question["names"]]
        problem = Problem("model", ", ".join(map(_named, nodes)), f"cannot be described: {error}.")
        return {"problems": [dataclasses.asdict(problem)]}


def _named(node: Json) -> str:
    """Return by what the config names the model that a node describes."""
    return next((str(node[key]) for key in ("path", "name", "architecture") if node.get(key)), str(node["_target_"]))


def _tried(problems: list[Problem], node: Json, call: Callable[[], object]) -> object:
    """Return the result of a source's function; None where it raised something, which is added to the problems."""
    try:
        return call()
    except Exception as error:  # a source may raise anything
        cause = original(error)
        if isinstance(cause, UserError) and cause.problems:
            problems += [problem for problem in cause.problems if problem not in problems]
        else:
            problems.append(Problem("model", _named(node), f"cannot be described: {described(error)}."))
    return None


def _description(node: Json) -> Json:
    """Return the description of a model's inputs, or why the model is unsupported.

    Raises:
        UserError: a prompt has a length, and the model's source describes no prompts.
        Exception: whatever the source raised.
    """
    generation = node.get(GENERATION)
    if generation is not None and GENERATION not in inspect.signature(located(node["_target_"])).parameters:
        if generation.get("prompt_length") is not None:
            allowed = "has no effect: the source of this model does not describe prompts. Set inputs.* instead."
            raise UserError([Problem(PROMPT_LENGTH, generation["prompt_length"], allowed)])
        node = {key: value for key, value in node.items() if key != GENERATION}
    try:
        described: Json = instantiate(node).to_dict()
    except Exception as error:  # Hydra wraps what a source raises
        cause = original(error)
        if isinstance(cause, Unsupported):
            return {UNSUPPORTED: str(cause)}
        raise
    return described


def answered(question: Json) -> Json:
    """Return the answer to a question; imports the models' source."""
    problems: list[Problem] = []
    answer: Json = {}
    if "names" in question:
        answer["names"] = _tried(problems, question["names"], partial(instantiate, question["names"]))
    else:
        answer["inputs"] = []
        for node, is_needed in zip(question["inputs"], question["needed"], strict=True):
            # A dataset that only takes a description does without one, as a model of several kinds of inputs may have none.
            answer["inputs"].append(_tried(problems if is_needed else [], node, partial(_description, node)))
    return {**answer, "problems": [dataclasses.asdict(problem) for problem in problems]}
