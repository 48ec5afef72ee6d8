"""The arguments of ``generate``: which a measurement sets itself, and which a model has."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from sweeprof.errors import Problem, UserError, key_problem

NEW_TOKENS = 32
OWN_KEYS = ("prompt_length", "new_tokens", "function")
"""Keys of ``generation`` that are not arguments of the function that generates."""
FIXED = ("max_new_tokens", "min_new_tokens", "max_length", "min_length")
"""Arguments of ``generate`` that follow from ``generation.new_tokens``."""
RESERVED = ("stopping_criteria", "streamer", "return_dict_in_generate", "max_time", "stop_strings")
"""Arguments of ``generate`` that a measurement sets itself, or that may end a generation early."""


def argument_problems(arguments: Mapping[str, Any], is_own: bool) -> list[Problem]:
    """Return the problems of arguments that no ``generate`` may be given.

    Args:
        arguments: without the keys that are not arguments.
        is_own: True if they are for a function of the user's, which may have any.
    """
    problems = []
    for name in () if is_own else arguments:
        if name in FIXED:
            problems.append(
                Problem(f"generation.{name}", arguments[name], "is set by sweeprof: give generation.new_tokens.")
            )
        elif name in RESERVED:
            allowed = "is set by sweeprof, which measures until the last token."
            problems.append(Problem(f"generation.{name}", arguments[name], allowed))
    return problems


def check_generate(kind: type, arguments: Mapping[str, Any]) -> None:
    """Check arguments against those of the ``generate`` of a class of transformers, and of its configuration of generations.

    Args:
        kind: of the model.
        arguments: of ``generate``.

    Raises:
        UserError: the class has no ``generate``, or that has no such argument; with the closest match.
    """
    can_generate = getattr(kind, "can_generate", None)
    generate = getattr(kind, "generate", None)
    if generate is None or (can_generate is not None and not can_generate()):
        allowed = (
            f"needs a model that generates text, and {kind.__name__} has no generate: choose a model with a head, such as "
            "model.task=text-generation, or name a function by generation.function."
        )
        raise UserError([Problem("mode", "generation", allowed)])
    names = set(inspect.signature(generate).parameters)
    transformers = sys.modules.get("transformers")  # imported by whoever has such a class
    if transformers is not None:
        names |= set(transformers.GenerationConfig().to_dict())
    known = [f"generation.{name}" for name in sorted({*names, *OWN_KEYS} - {"self", "kwargs", *FIXED, *RESERVED})]
    problems = []
    for name, value in arguments.items():
        if f"generation.{name}" not in known:
            problems.append(key_problem(f"generation.{name}", value, known))
    if problems:
        raise UserError(problems)
