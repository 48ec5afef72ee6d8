"""A graph whose values have shapes: plain data, made by ``reading.py``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...] | None
    """None where it is not known."""
    dtype: str
    """As numpy calls it; ``""`` where it is not known."""
    data: Any = None
    """The array, of what is constant and small."""
    is_fixed: bool = False
    """Whether it is an initializer, or is made of nothing but those."""

    @property
    def elements(self) -> int:
        assert self.shape is not None
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * itemsize(self.dtype)

    @property
    def is_floating(self) -> bool:
        return "float" in self.dtype or "complex" in self.dtype

    @property
    def is_constant(self) -> bool:
        """Whether it depends on no input."""
        return self.is_fixed or self.data is not None


@dataclass(slots=True, eq=False)
class Node:
    """An operator of the graph."""

    name: str
    domain: str
    op: str
    path: str
    """Of its module."""
    inputs: tuple[Value | None, ...]
    """None for an optional one that is not given."""
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Any]

    def input(self, position: int) -> Value | None:
        """That input, or None where it is not given."""
        return self.inputs[position] if len(self.inputs) > position else None

    @property
    def qualified(self) -> str:
        """``onnx::Conv`` for what the standard has."""
        return f"{self.domain or 'onnx'}::{self.op}"

    @property
    def is_known(self) -> bool:
        """Whether every shape around it is."""
        return all(value is None or value.shape is not None for value in (*self.inputs, *self.outputs))


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they run."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    weights: tuple[Value, ...]
    """Initializers."""

    @cached_property
    def consumers(self) -> dict[Value, list[Node]]:
        """Who reads a value."""
        found: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value is not None:
                    found.setdefault(value, []).append(node)
        return found


def itemsize(dtype: str) -> int:
    """Bytes of an element; 0 for texts."""
    if dtype in ("", "object"):
        return 0
    return int(np.dtype(onnx_dtype(dtype)).itemsize)


def onnx_dtype(name: str) -> Any:
    """The numpy type of that name, or ml_dtypes' for those that numpy has not."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(getattr(ml_dtypes, name))
