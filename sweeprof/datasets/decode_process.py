"""The process that decodes the samples of a source, so that the processes that measure need not import what that takes."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import Any

from sweeprof.datasets.source import Source
from sweeprof.errors import UserError, described, location_of, original
from sweeprof.results.record import Json


def decode(question: Json) -> Json:
    """Decode a split; return what is wrong: problems, or an error with its location."""
    module, _, name = question["target"].rpartition(".")
    answer: dict[str, Any] = {"problems": [], "error": None, "location": None}
    try:
        source: Source = getattr(import_module(module), name)(**question["arguments"])
        source.prepare(question["split"])
    except Exception as error:  # the user's code may raise anything
        cause = original(error)
        if isinstance(cause, UserError):
            answer["problems"] = [dataclasses.asdict(problem) for problem in cause.problems]
        else:
            answer["location"] = location_of(error)
        if not answer["problems"]:
            answer["error"] = described(error)
    return answer
