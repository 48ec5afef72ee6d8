"""Objects and functions of the user that a dataset's options name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sweeprof.errors import Problem, UserError


def made(node: str | Mapping[str, Any] | None, key: str) -> Any:
    """Return the function that a dotted name stands for, or the object that a node with ``_target_`` makes; None for None.

    Raises:
        UserError: it cannot be found.
        Exception: whatever the user's code raised.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import get_object, instantiate

    if node is None:
        return None
    try:
        if isinstance(node, str):
            return get_object(node)
        if "_target_" not in node:
            raise UserError([Problem(f"{key}._target_", None, "is missing: it must name a class or function.")])
        return instantiate(dict(node), _convert_="all")
    except InstantiationException as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, ImportError | AttributeError):
            raise error.__cause__ from None
        name = node if isinstance(node, str) else node["_target_"]
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise UserError([Problem(key, name, f"cannot be called: {reason}")]) from None
    except (ImportError, AttributeError, ValueError) as error:
        name = node if isinstance(node, str) else node["_target_"]
        raise UserError([Problem(key, name, f"cannot be imported: {error}")]) from None


def node_problems(key: str, node: Mapping[str, Any] | None) -> list[Problem]:
    """Return the problem of a node that must have a ``_target_``."""
    if isinstance(node, Mapping) and isinstance(node.get("_target_"), str):
        return []
    return [Problem(f"{key}._target_", None, "is missing: it must name a class or function.")]
