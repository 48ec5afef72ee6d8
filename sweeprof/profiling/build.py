"""The one function that turns a config node into an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

NOT_ARGUMENTS = ("framework", "preload", "preload_for", "environment")
"""Keys that tell the sweep about a node and are not passed to its constructor."""


def instantiate(node: Mapping[str, Any]) -> Any:
    """Call ``node['_target_']`` with the other keys as arguments; nested nodes are instantiated too.

    Raises:
        hydra.errors.InstantiationException: the target cannot be imported, or raised; its cause is the original error.
    """
    from hydra.utils import instantiate as hydra_instantiate

    arguments = {key: value for key, value in node.items() if key not in NOT_ARGUMENTS}
    return hydra_instantiate(arguments, _convert_="all")


def builder(node: Mapping[str, Any]) -> Callable[[], Any]:
    """A function that instantiates ``node`` when called, e.g. under another default device."""
    return partial(instantiate, dict(node))


def located(target: str) -> Callable[..., Any]:
    """The class or function of that dotted name.

    Raises:
        Exception: it cannot be imported.
    """
    from hydra.utils import get_object

    found: Callable[..., Any] = get_object(target)
    return found
