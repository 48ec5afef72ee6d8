"""Descriptions of models' inputs for the datasets that need them, filled in when a sweep is planned; and lists of models.

Both need imports of the model's source, which a child process makes: this module run as a program.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from sweeprof.errors import Problem, Unsupported, UserError, WorkerError, described, nearest, original
from sweeprof.plan.plan import Combination, identity
from sweeprof.processes import call, child_environment
from sweeprof.results.record import Json
from sweeprof.targets import instantiate, located

AUTO = "sweeprof.datasets.Auto"
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
        key, node = _open_key(combination), _question(combination)
        if key is not None and node is not None:
            nodes[_key(node)] = node
            if key == GENERATED or combination.config.get("inputs"):
                needed.add(_key(node))
        elif key == GENERATED:
            message = (
                f"needs a model whose source describes its inputs, and {combination.axes.get('model')} has none: name "
                f"a dataset, such as dataset=synthetic."
            )
            problems.append(Problem("dataset", "auto", message))
    for combination in combinations:
        problems += _size_problems(combination)
    if problems or not nodes:
        return list(combinations), list({str(problem): problem for problem in problems}.values())
    answer = asked({"inputs": list(nodes.values()), "needed": [key in needed for key in nodes]})
    problems = [Problem(**problem) for problem in answer["problems"]]
    if problems:
        return list(combinations), problems
    descriptions = dict(zip(nodes, answer["inputs"], strict=True))
    return [_filled(combination, descriptions) for combination in combinations], []


def _size_problems(combination: Combination) -> Iterator[Problem]:
    """Return the problems of sizes of inputs, or of a prompt, that nothing reads."""
    config = combination.config
    dataset, sizes = config["dataset"], config.get("inputs")
    if dataset.get("_target_") == AUTO:
        return
    if sizes and DESCRIBED not in dataset:
        message = "has an effect only with a dataset that fits the model, such as dataset=auto."
        yield Problem("inputs", dict(sizes), message)
    elif sizes and config["model"].get("inputs") is None:
        message = (
            "has an effect only with a model whose source describes its inputs; the dataset has options of its own."
        )
        yield Problem("inputs", dict(sizes), message)
    length = config.get("generation", {}).get("prompt_length")
    if config.get("mode") == "generation" and length is not None:
        yield Problem(PROMPT_LENGTH, length, "has an effect with dataset=auto only.")


def _open_key(combination: Combination) -> str | None:
    """Return the key of the dataset for the description of the model's inputs; None if it has none, or a value for it."""
    dataset = combination.config["dataset"]
    if dataset.get("_target_") == AUTO:
        key = GENERATED
    elif DESCRIBED in dataset:
        key = DESCRIBED
    else:
        return None
    return key if dataset.get(key) is None else None


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
    if key is None or node is None or descriptions[_key(node)] is None:
        return combination
    description = descriptions[_key(node)]
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
    unsupported = combination.unsupported
    only = description["batch_size"]
    if unsupported is None and only not in (None, config["batch_size"]):
        unsupported = f"the model takes batches of {only} only: batch_size={only}"
    return dataclasses.replace(combination, id=identity(config), axes=axes, config=config, unsupported=unsupported)


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
    named = (node.get("path"), node.get("name"), node.get("architecture"), node["_target_"])
    return str(next(filter(None, named)))


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
