"""A user's own model, given by keys such as ``model.torch._target_``: its builder and its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sweeprof.config.validation import FRAMEWORK_EXTRAS
from sweeprof.errors import Problem, choice_problem
from sweeprof.results.record import Json

FRAMEWORKS = (*FRAMEWORK_EXTRAS, "fake")


def without_other_builders(model: Json, keys: Sequence[str]) -> Json:
    """The model without what belongs to its group's: who names a builder by ``keys`` has another model, with its own arguments."""
    named = {key.split(".")[1] for key in keys if key.endswith("._target_") and key.count(".") == 2}
    if not named:
        return model
    kept: Json = {}
    for framework, node in model.items():
        if not isinstance(node, dict):
            kept[framework] = node
        elif framework in named:
            own = {key.split(".")[2] for key in keys if key.startswith(f"model.{framework}.")}
            kept[framework] = {key: value for key, value in node.items() if key in own}
    return kept


def custom_model(keys: Sequence[str], model: Json) -> str | None:
    """The name of the user's own model, where ``keys`` give its builder: the last part of that."""
    named = [key.split(".")[1] for key in keys if key.endswith("._target_")]
    return str(model[named[0]]["_target_"]).rpartition(".")[2] if named else None


def framework_problems(keys: Sequence[str], builders: Sequence[object]) -> Iterator[Problem]:
    """Return the keys of builders for unknown frameworks, given the ``builders`` that the backend runs."""
    known = {*FRAMEWORKS, *builders}
    for key in keys:
        if key.split(".")[1] not in known:
            yield choice_problem(key.rpartition(".")[0], key.split(".")[1], "framework", [str(name) for name in known])
