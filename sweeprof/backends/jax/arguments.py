"""What a model is called with, parted for XLA: arrays, which a compiled function takes, and all else, which it is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from sweeprof.profiling.inputs import Inputs

ARRAYS = (jax.Array, np.ndarray)


@dataclass(frozen=True, slots=True)
class Form:
    """Arguments without their arrays. Two are equal where one compiled function does for both."""

    tree: Any
    told: tuple[Any, ...]
    """What each leaf is told by; ``None`` for an array."""
    leaves: tuple[Any, ...] = field(compare=False, repr=False)
    """The constants, and ``None`` for each array."""

    def filled(self, arrays: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with these arrays."""
        waiting = iter(arrays)
        leaves = [next(waiting) if told is None else leaf for told, leaf in zip(self.told, self.leaves, strict=True)]
        args, kwargs = jax.tree.unflatten(self.tree, leaves)
        return args, kwargs


def parted(batch: Inputs) -> tuple[Form, list[Any]]:
    """The form of the arguments, and their arrays. A truth value, a text or a number is none: the model's Python may ask for it."""
    leaves, tree = jax.tree.flatten((batch.args, dict(batch.kwargs)))
    arrays = [leaf for leaf in leaves if isinstance(leaf, ARRAYS)]
    constants = tuple(None if isinstance(leaf, ARRAYS) else leaf for leaf in leaves)
    told = tuple(None if isinstance(leaf, ARRAYS) else _told(leaf) for leaf in leaves)
    return Form(tree, told, constants), arrays


def _told(constant: Any) -> tuple[Any, ...]:
    """By its type too, since True equals 1; what has no hash, a set say, by which object it is."""
    try:
        hash(constant)
    except TypeError:
        return type(constant), "object", id(constant)
    return type(constant), constant


def arrays_in(outputs: Any) -> list[Any]:
    """The arrays in what a model returned, in their order; those of a mapping as it lists them, where JAX sorts its keys."""
    if isinstance(outputs, Mapping):
        outputs = tuple(outputs.values())
    if isinstance(outputs, list | tuple):
        return [array for value in outputs for array in arrays_in(value)]
    return [leaf for leaf in jax.tree.leaves(outputs) if isinstance(leaf, ARRAYS)]
