"""A user's own model, given by keys such as ``model.torch._target_``: its builder and its name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sweeprof.config.validation import FRAMEWORK_EXTRAS
from sweeprof.errors import Problem, Unsupported, choice_problem
from sweeprof.measuring.instantiate import chosen_builder
from sweeprof.results.record import Json

FRAMEWORKS = (*FRAMEWORK_EXTRAS, "fake")
NOT_BUILDERS = ("inputs", "names", "peft")
"""Parts of a model with a ``_target_`` that do not build it."""


def without_other_builders(model: Json, keys: Sequence[str]) -> Json:
    """The default model without its own builders and arguments: who names a builder by ``keys`` has another model."""
    named = set(_builders_named(keys))
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


def custom_model(keys: Sequence[str], backend: Mapping[str, Any], model: Json) -> str | None:
    """The name of the user's own model, where ``keys`` give the builder that the backend runs: the last part of that."""
    named = _builders_named(keys)
    with suppress(Unsupported):  # then the row has the name of the model that the backend does not run
        builder, _ = chosen_builder(backend, model)
        named = [builder] if builder in named else []
    return str(model[named[0]]["_target_"]).rpartition(".")[2] if named else None


def _builders_named(keys: Sequence[str]) -> list[str]:
    """Return the frameworks for which ``keys`` give a builder."""
    parts = [key.split(".") for key in keys if key.endswith("._target_")]
    return [names[1] for names in parts if len(names) == 3 and names[1] not in NOT_BUILDERS]


def framework_problems(keys: Sequence[str], builders: Sequence[object], settings: Collection[str]) -> Iterator[Problem]:
    """Return the keys of builders for unknown frameworks.

    Args:
        keys: below ``model``, as the user gives them.
        builders: what the backend runs.
        settings: those of the model's source.
    """
    known = {*FRAMEWORKS, *builders}
    for key in keys:
        name = key.split(".")[1]
        if name in settings or name in NOT_BUILDERS:
            continue
        if name not in known and settings and not key.endswith("._target_"):
            yield choice_problem("model", name, "setting of this model", sorted(settings))
        elif name not in known:
            yield choice_problem(key.rpartition(".")[0], key.split(".")[1], "framework", [str(name) for name in known])


def source_settings(model: Mapping[str, object]) -> set[str]:
    """Return the keys of a model's own file that are settings of its source, and neither builders nor descriptions."""
    builders = {key for key, node in model.items() if isinstance(node, Mapping) and "_target_" in node}
    return set(model) - builders
