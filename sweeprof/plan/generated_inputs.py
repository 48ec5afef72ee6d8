"""Descriptions of generated inputs, filled in when a sweep is planned; and lists of the models that a source knows.

Both import the packages of the model's source, in a process of their own.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from sweeprof.errors import Problem, UserError, WorkerError, nearest
from sweeprof.measuring.instantiate import instantiate, located
from sweeprof.plan.plan import Combination, identity
from sweeprof.processes import Child, child_environment, inherited_connection
from sweeprof.results.record import Json
from sweeprof.tracebacks import described, original

AUTO = "sweeprof.datasets.auto.Auto"
ANSWER_S = 180.0
"""How long describing the inputs of all models may take: a file may be large, and a package slow to import."""
WILDCARDS = "*?["
GENERATION = "generation"
"""The argument of a function that describes inputs by which it learns of mode=generation: the config's ``generation``."""
PROMPT_LENGTH = "generation.prompt_length"
NAME = "model.name"
"""The key whose values may be patterns."""


def with_generated_inputs(combinations: Sequence[Combination]) -> tuple[list[Combination], list[Problem]]:
    """Return the combinations with descriptions of the inputs that ``dataset=auto`` generates, and what is wrong with them."""
    nodes: dict[str, Json] = {}
    problems = []
    for combination in combinations:
        if not _is_open(combination):
            continue
        node = _question(combination)
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
    problems += [
        Problem("inputs", dict(c.config["inputs"]), "has an effect with dataset=auto only.")
        for c in combinations
        if c.config.get("inputs") and c.config["dataset"].get("_target_") != AUTO
    ]
    problems += [
        Problem(PROMPT_LENGTH, c.config["generation"]["prompt_length"], "has an effect with dataset=auto only.")
        for c in combinations
        if _prompt_length(c) is not None and c.config["dataset"].get("_target_") != AUTO
    ]
    if problems or not nodes:
        return list(combinations), list({str(problem): problem for problem in problems}.values())
    answered = _asked({"inputs": list(nodes.values())})
    problems = [Problem(**problem) for problem in answered["problems"]]
    if problems:
        return list(combinations), problems
    descriptions = dict(zip(nodes, answered["inputs"], strict=True))
    return [_filled(combination, descriptions) for combination in combinations], []


def _is_open(combination: Combination) -> bool:
    dataset = combination.config["dataset"]
    return dataset.get("_target_") == AUTO and dataset.get("inputs") is None


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
    if not _is_open(combination):
        return combination
    question = _question(combination)
    assert question is not None
    description = descriptions[_key(question)]
    dataset = {**combination.config["dataset"], "inputs": description}
    config = {**combination.config, "dataset": dataset}
    axes = dict(combination.axes)
    for axis, value in combination.axes.items():
        if (
            axis.startswith("inputs.") and value is None
        ):  # the default of this model, in a sweep that sets it for others
            axes[axis] = description["sizes"].get(axis.removeprefix("inputs."))
    return dataclasses.replace(combination, id=identity(config), axes=axes, config=config)


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
    answered = _asked({"names": names})
    if answered["problems"]:
        raise UserError([Problem(**problem) for problem in answered["problems"]])
    found = fnmatch.filter(answered["names"], pattern)
    if not found:
        close = nearest(pattern.strip(WILDCARDS), answered["names"])
        raise UserError([Problem(NAME, pattern, "matches no model.", close)])
    return found


def is_pattern(value: object) -> bool:
    """True for text with a wildcard."""
    return isinstance(value, str) and any(character in value for character in WILDCARDS)


def _asked(question: Json) -> Json:
    with TemporaryDirectory() as folder:
        child = Child("sweeprof.plan.generated_inputs", [], child_environment({}), Path(folder) / "inputs.log")
        try:
            answered: Json = child.ask(question, ANSWER_S)
        except WorkerError as error:
            problem = Problem("model", "", f"cannot be described: {error}.")
            return {"problems": [dataclasses.asdict(problem)]}
        finally:
            child.close()
    return answered


def _tried(problems: list[Problem], call: Callable[[], object]) -> object:
    """Return the result of a source's function; None where it raised something, which is added to the problems."""
    try:
        return call()
    except Exception as error:  # a source may raise anything
        cause = original(error)
        if isinstance(cause, UserError) and cause.problems:
            problems += [problem for problem in cause.problems if problem not in problems]
        else:
            problems.append(Problem("model", "", f"cannot be described: {described(error)}."))
    return None


def _description(node: Json) -> Json:
    """Return the description of a model's inputs.

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
    described: Json = instantiate(node).to_dict()
    return described


def _serve() -> None:
    connection = inherited_connection()
    for question in connection.messages():
        problems: list[Problem] = []
        answer: Json = {}
        if "names" in question:
            answer["names"] = _tried(problems, partial(instantiate, question["names"]))
        else:
            answer["inputs"] = [_tried(problems, partial(_description, node)) for node in question["inputs"]]
        connection.send({**answer, "problems": [dataclasses.asdict(problem) for problem in problems]})


if __name__ == "__main__":
    _serve()
