"""Decoders of keras_hub that generate text, with random weights: ``model=keras_hub model.architecture=llama``.

Their configurations have no sizes by default: ``model.config.*`` gives those of the backbone, such as ``num_layers``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from sweeprof.datasets.auto import ArraySpec, ModelInputs
from sweeprof.errors import Problem, UserError, key_problem
from sweeprof.model_sources import check_sizes, known_name, package, size
from sweeprof.model_sources.generate_arguments import NEW_TOKENS, OWN_KEYS, check_keras_generate

SEQUENCE_LENGTH = 128
LEARNED_POSITIONS = ("gpt2", "opt")
"""Architectures that have an embedding for each position, and so a longest sequence."""


def architectures() -> list[str]:
    """Return the names of all architectures: decoders that read text alone."""
    return list(_kinds())


def _kinds() -> dict[str, Any]:
    """Return the classes of models by the names of their architectures, which are those of keras_hub's folders."""
    models = package("keras_hub", "keras_hub").models
    found: dict[str, Any] = {}
    for name, kind in vars(models).items():
        build_cache = getattr(kind, "_build_cache", None)
        if name.endswith("CausalLM") and build_cache is not None:
            reads_text = list(inspect.signature(build_cache).parameters) == ["self", "token_ids"]
            found |= {kind.__module__.split(".")[-2]: kind} if reads_text else {}
    return found


def _kind(architecture: str | None) -> Any:
    kinds = _kinds()
    if architecture is None:
        raise UserError([Problem("model.architecture", None, f"is missing. Known: {', '.join(sorted(kinds))}.")])
    return kinds[known_name("model.architecture", architecture, kinds, "architecture of keras_hub")]


def _checked(kind: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the backbone; raise :class:`UserError` for those that it lacks or does not have."""
    parameters = inspect.signature(kind.backbone_cls.__init__).parameters
    known = [name for name, p in parameters.items() if name != "self" and p.kind is not p.VAR_KEYWORD]
    keys = [f"model.config.{name}" for name in known]
    problems = [key_problem(f"model.config.{name}", config[name], keys) for name in config if name not in known]
    missing = [name for name in known if parameters[name].default is inspect.Parameter.empty and name not in config]
    if missing and not problems:
        allowed = f"lacks {', '.join(missing)}: {kind.backbone_cls.__name__} has no default for them."
        problems.append(Problem("model.config", dict(config), allowed))
    if problems:
        raise UserError(problems)
    return dict(config)


def build(architecture: str | None, config: Mapping[str, Any] | None = None) -> Any:
    """Return the model, without a tokenizer.

    Args:
        architecture: as keras_hub calls its folder, such as ``gpt2``.
        config: arguments of the backbone, such as ``num_layers``.
    """
    kind = _kind(architecture)
    return kind(backbone=kind.backbone_cls(**_checked(kind, config or {})), preprocessor=None)


def inputs(
    architecture: str | None,
    sizes: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
) -> ModelInputs:
    """Return the description of the model's inputs: ids of ``inputs.sequence_length`` tokens, and a mask of ones.

    Args:
        architecture, config: as of :func:`build`.
        sizes: the config's ``inputs``.
        generation: the config's ``generation`` in mode=generation.

    Raises:
        UserError: a size or an argument of the generation is not one of this model.
    """
    kind = _kind(architecture)
    known = _checked(kind, config or {})
    check_sizes(sizes, ["sequence_length"])
    new_tokens = 0
    length = size(sizes, "sequence_length", SEQUENCE_LENGTH)
    if generation is not None:
        prompt = generation.get("prompt_length")
        if prompt is not None and sizes.get("sequence_length", prompt) != prompt:
            allowed = f"differs from generation.prompt_length={prompt}: give only one of the two."
            raise UserError([Problem("inputs.sequence_length", sizes["sequence_length"], allowed)])
        length = length if prompt is None else prompt
        new_tokens = generation.get("new_tokens", NEW_TOKENS)
        if generation.get("function") is None:
            check_keras_generate({name: value for name, value in generation.items() if name not in OWN_KEYS})
    default = inspect.signature(kind.backbone_cls.__init__).parameters.get("max_sequence_length")
    if architecture in LEARNED_POSITIONS and default is not None:
        longest = known.get("max_sequence_length", default.default)
        if length + new_tokens > longest:
            limit = f"is above the longest sequence of this model: model.config.max_sequence_length={longest}."
            if new_tokens == 0:
                raise UserError([Problem("inputs.sequence_length", length, limit)])
            allowed = f"and a prompt of {length} {limit.replace('is above', 'are above')}"
            raise UserError([Problem("generation.new_tokens", new_tokens, allowed)])
    vocabulary = int(known["vocabulary_size"])
    ids = ArraySpec((length,), "int32", high=vocabulary)
    return ModelInputs(
        {"token_ids": ids, "padding_mask": ArraySpec((length,), "int32", low=1)},
        "keywords",
        ids,
        unit="tokens",
        units_per_sample=length,
        sizes={"sequence_length": length},
        vocabulary=vocabulary,
    )
