"""The one function that turns a config node into an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from sweeprof.errors import Unsupported

NOT_ARGUMENTS = (
    *("framework", "builders", "preload", "preload_for", "environment", "environment_for", "tolerance", "for_files"),
    "prepare",
)
"""Keys that tell the sweep about a node and are not passed to its constructor."""


def instantiate(node: Mapping[str, object]) -> Any:
    """Call ``node['_target_']`` with the other keys as arguments; nested nodes are instantiated too.

    Raises:
        hydra.errors.InstantiationException: the target cannot be imported, or raised; its cause is the original error.
    """
    from hydra.utils import instantiate as hydra_instantiate

    arguments = {key: value for key, value in node.items() if key not in NOT_ARGUMENTS}
    return hydra_instantiate(arguments, _convert_="all")


def builder(node: Mapping[str, object], framework: str | None = None) -> Callable[[], Any]:
    """Return a function that instantiates ``node`` when called, e.g. under another default device.

    Args:
        node: of a config.
        framework: of the model that is built, as configs name it; a process that builds it seeds this one's generators.
    """
    return partial(instantiate, {**node, **({"framework": framework} if framework else {})})


def builders_of(backend: Mapping[str, Any]) -> list[str]:
    """The builders that a backend can run, by their keys in a model's node, the one it likes best first."""
    return list(backend.get("builders") or [backend.get("framework")])


def chosen_builder(backend: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The key and the node of the builder that ``backend`` runs ``model`` by.

    Raises:
        Unsupported: the model names none that it can run.
    """
    names = builders_of(backend)
    for name in names:
        if model.get(name) is not None and _is_for_file(model[name]):
            return name, model[name]
    if model.get("path") is not None and any(model.get(name) is not None for name in names):
        raise Unsupported(f"the backend does not run a {Path(str(model['path'])).suffix} file")
    listed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else str(names[0])
    raise Unsupported(f"the model names no builder for {listed}")


def _is_for_file(node: Mapping[str, Any]) -> bool:
    """True if a builder reads any file, or files with the suffix that its path has."""
    suffixes = node.get("for_files")
    return suffixes is None or Path(str(node.get("path"))).suffix in suffixes


def located(target: str) -> Callable[..., object]:
    """The class or function of that dotted name.

    Raises:
        Exception: it cannot be imported.
    """
    from hydra.utils import get_object

    return cast("Callable[..., object]", get_object(target))
