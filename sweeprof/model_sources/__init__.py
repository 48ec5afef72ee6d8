"""Model sources: collections and files of models that a config names, such as ``model=timm model.name=resnet18``.

A source is one module here (or anywhere) and one file ``conf/model/NAME.yaml``. The module has functions that build a model for a
framework, and a function that describes what a model takes (:class:`sweeprof.datasets.ModelInputs`), from which
``dataset=auto`` generates samples. Where names can be listed it has a function that lists them, for ``model.name='resnet*'``. The
YAML file passes the settings of the source to these functions; ``docs/models.md`` has an example.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from sweeprof.datasets import ArraySpec, ImagePreprocessing, ModelInputs, source
from sweeprof.errors import Problem, UserError, choice_problem, key_problem

PUBLISHED = "A published model has a name: model=timm model.name=resnet18; also of torchvision, transformers and Keras."


def package(name: str, extra: str) -> ModuleType:
    """Return an imported package; raises :class:`UserError` if it is not installed."""
    return source.package(name, extra, "model")


def image_inputs(
    shape: tuple[int, ...],
    classes: int | None,
    sizes: Mapping[str, int],
    images: ImagePreprocessing | None,
    no_images: str | None = None,
) -> ModelInputs:
    """Return the description of a model that takes images, or clips of them, channels first, as its only argument.

    Args:
        shape: of one sample.
        classes: that an image may have; None or 0: the model does not classify.
        sizes, images, no_images: as of :class:`ModelInputs`.
    """
    return ModelInputs(
        {"x": ArraySpec(shape)},
        "positional",
        ArraySpec((), "int64", high=classes) if classes else None,
        channel_axis=1,
        unit="images",
        sizes=sizes,
        images=images,
        no_images=no_images,
    )


_MODELS = {
    "timm": ("timm", "models/*.py"),
    "torchvision": ("torchvision", "models/**/*.py"),
    "keras_applications": ("keras", "src/applications/*.py"),
}
"""By source: the package, and its files with a function for each model."""


def overrides_for(name: str) -> list[str]:
    """Return the overrides that choose the published model ``name`` from each installed source that has it; imports nothing."""
    definition = re.compile(rf"^def ({re.escape(name)})\(", re.MULTILINE | re.IGNORECASE)
    found = []
    for source_name, (package_name, files) in _MODELS.items():
        spec = find_spec(package_name)
        for folder in (spec and spec.submodule_search_locations) or ():
            for file in sorted(Path(folder).glob(files)):
                match = definition.search(file.read_text(encoding="utf-8", errors="replace"))
                if match:
                    found.append(f"model={source_name} model.name={match[1]}")
                    break
    return found


def choice_of_model(name: object, known: Iterable[str]) -> Problem:
    """Return the problem of a model that no config names, with the sources that have a published model of that name."""
    problem = choice_problem("model", name, "model", known)
    overrides = overrides_for(str(name))
    if overrides:
        return replace(
            problem, allowed=f"is the name of a published model: write {' or '.join(overrides)}.", nearest=None
        )
    if problem.nearest is None:
        return replace(problem, allowed=f"{problem.allowed} {PUBLISHED}")
    return problem


def known_name(key: str, name: str, known: Iterable[str], noun: str) -> str:
    """Return a name that is one of those known; raises :class:`UserError` with the closest one."""
    names = list(known)
    if name not in names:
        raise UserError([choice_problem(key, name, noun, names)])
    return name


def size(sizes: Mapping[str, Any], name: str, default: int, *, may_be_empty: bool = False) -> int:
    """Return the size that ``inputs.NAME`` gives, or the default of the model."""
    value = sizes.get(name, default)
    least, allowed = 1, "a whole number above 0."
    if may_be_empty:
        least, allowed = 0, "a whole number, 0 or more."
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError([Problem(f"inputs.{name}", value, f"is not a size: {allowed}")])
    return value


def check_sizes(sizes: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise :class:`UserError` for every key under ``inputs`` that the model does not have."""
    keys = [f"inputs.{name}" for name in known]
    unknown = [name for name in sizes if f"inputs.{name}" not in keys]
    if unknown:
        raise UserError([key_problem(f"inputs.{name}", sizes[name], keys) for name in unknown])


def check_arguments(arguments: Mapping[str, Any], build: Callable[[], object], module: str) -> None:
    """Raise :class:`UserError` for an argument under ``model.arguments`` that the constructor of a torch model does not take.

    The model is built on the meta device, which takes no memory. Whatever else goes wrong there is left to the trials.

    Args:
        arguments: of the constructor.
        build: builds the model with them.
        module: of the function that builds it, for the arguments that its class does take.
    """
    if not arguments:
        return
    torch = package("torch", "torch")
    try:
        with torch.device("meta"):
            build()
    except TypeError as error:
        found = re.search(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'", str(error))
        if found is None or found[2] not in arguments:
            return
        called = getattr(sys.modules.get(module), found[1], None)
        known = [] if called is None else _names_of_arguments(called)
        problem = choice_problem(f"model.arguments.{found[2]}", found[2], f"argument of {found[1]}", known)
        raise UserError([problem]) from None
    except Exception:  # a model may read values, which the meta device does not have
        return


def check_names_of_arguments(key: str, arguments: Iterable[str], called: Callable[..., object], name: str) -> None:
    """Raise :class:`UserError` for every argument under ``key`` that a function or a class does not take."""
    parameters = inspect.signature(called).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = _names_of_arguments(called)
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        raise UserError([choice_problem(f"{key}.{one}", one, f"argument of {name}", known) for one in unknown])


def _names_of_arguments(called: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(called).parameters.values()
    return [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]


# The arguments of ``generate``: which a measurement sets itself, and which a model has.


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
    for name, value in arguments.items():
        if name in FIXED and not is_own:
            problems.append(Problem(f"generation.{name}", value, "is set by sweeprof: give generation.new_tokens."))
        elif name in RESERVED and not is_own:
            allowed = "is set by sweeprof, which measures until the last token."
            problems.append(Problem(f"generation.{name}", value, allowed))
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
    names = {*inspect.signature(generate).parameters, *OWN_KEYS}
    if "transformers" in sys.modules:  # else the model cannot be one of its classes
        names |= set(sys.modules["transformers"].GenerationConfig().to_dict())
    names -= {"self", "kwargs", *FIXED, *RESERVED}
    unknown = [name for name in arguments if name not in names]
    if unknown:
        known = [f"generation.{name}" for name in sorted(names)]
        raise UserError([key_problem(f"generation.{name}", arguments[name], known) for name in unknown])
