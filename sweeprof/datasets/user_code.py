"""Objects and functions of the user that a dataset's options name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeprof.errors import Problem, UserError
from sweeprof.targets import target_problems


def made(node: str | Mapping[str, Any] | None, key: str) -> Any:
    """Return the function that a dotted name stands for, or the object that a node with ``_target_`` makes; None for None.

    Raises:
        UserError: it cannot be found, or does not take these arguments.
        Exception: whatever the user's code raised.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import get_object, instantiate

    if node is None:
        return None
    if isinstance(node, str):
        problems = target_problems(key, node, [])
    else:
        problems = node_problems(key, node)
        if not problems:
            arguments = [name for name in node if not str(name).startswith("_")]
            problems = target_problems(f"{key}._target_", node["_target_"], arguments)
    if problems:
        raise UserError(problems)
    try:
        return get_object(node) if isinstance(node, str) else instantiate(dict(node), _convert_="all")
    except InstantiationException as error:
        raise (error.__cause__ or error) from None


def node_problems(key: str, node: Mapping[str, Any] | None) -> list[Problem]:
    """Return the problem of a node that must have a ``_target_``."""
    if isinstance(node, Mapping) and isinstance(node.get("_target_"), str):
        return []
    return [Problem(f"{key}._target_", None, "is missing: it must name a class or function.")]
