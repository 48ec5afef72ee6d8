"""Attribution of operators to a layer and a phase: by the time at which they ran, or at which they entered the graph."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from sweeprof.backends.tensorflow.probes import LayerProbes
from sweeprof.measuring.layer_timing import LEFT
from sweeprof.results.layer_times import OUTSIDE
from sweeprof.results.operators import Phase

LayerPhase = tuple[str, Phase | None]
"""The path of a layer, and the phase; None where nothing tells it."""
REWRITTEN = re.compile(r"-\d+-\w+-LayoutOptimizer$")
"""What TensorFlow appends to the name of an operator that it puts beside another."""
PREFIXES = ("gradient_tape", "ArithmeticOptimizer", "ConstantFolding")
"""What it puts before the scope of an operator, whose backward, rewritten form or constant part another one is."""


class HostTimestamps:
    """Marks are nanoseconds since the epoch."""

    def __init__(self) -> None:
        self.busy: list[tuple[int, int]] = []
        """When tensors were passed on, which takes an operator of its own."""

    def is_here(self) -> bool:
        return bool(tf.executing_eagerly())

    def now(self) -> int:
        return time.time_ns()

    def at(self, tensors: Sequence[Any], is_entry: bool) -> tuple[int, list[Any]]:
        begin = self.now()
        passed = [tf.identity(tensor) for tensor in tensors]
        self.busy.append((begin, self.now()))
        return begin, passed

    def was_busy(self, mark: float) -> bool:
        """True if tensors were being passed on at the time ``mark``."""
        place = bisect_right(self.busy, mark, key=lambda span: span[0]) - 1
        return place >= 0 and mark < self.busy[place][1]


class GraphPositions:
    """Marks are places in the order in which a graph's operators are made."""

    def __init__(self) -> None:
        self.graph = tf.compat.v1.get_default_graph()

    def is_here(self) -> bool:
        return tf.compat.v1.get_default_graph() is self.graph

    def now(self) -> int:
        return len(self.graph.get_operations())

    def at(self, tensors: Sequence[Any], is_entry: bool) -> tuple[int, list[Any]]:
        return self.now(), [tf.identity(tensor) for tensor in tensors]


class Untouched:
    """Marks are places in the first graph that is made; tensors are passed on as they are, and it is the one without marks."""

    def __init__(self) -> None:
        self.graph: Any = None

    @property
    def operators(self) -> Sequence[Any]:
        """The operators of the graph so far."""
        return () if self.graph is None else self.graph.get_operations()

    def is_here(self) -> bool:
        if tf.executing_eagerly():
            return False
        self.graph = self.graph or tf.compat.v1.get_default_graph()
        return tf.compat.v1.get_default_graph() is self.graph

    def at(self, tensors: Sequence[Any], is_entry: bool) -> tuple[int, list[Any]]:
        return len(self.operators), list(tensors)


@dataclass(frozen=True, slots=True)
class PhaseBoundaries:
    """The marks between the phases of a step."""

    begin: int
    backward: int
    update: int
    end: int


class Attribution:
    """Tells who owned each moment of a step."""

    def __init__(self, probes: LayerProbes, turns: PhaseBoundaries) -> None:
        self._marks, self._owners = [turns.begin], list[LayerPhase]([(OUTSIDE, "forward")])
        running, from_number = [OUTSIDE], {0: OUTSIDE}
        for what, number, mark in probes.forward:
            if what == LEFT:
                running.pop()
            elif what is not None:
                running.append(probes.described[what][0][0])
            from_number[number] = running[-1]
            self._add(mark, running[-1], "forward")
        self._add(turns.backward, OUTSIDE, "backward")
        for _, number, mark in probes.backward:
            self._add(mark, from_number[number], "backward")
        self._add(turns.update, OUTSIDE, "update")

    def _add(self, mark: int, path: str, phase: Phase) -> None:
        self._marks.append(mark)
        self._owners.append((path, phase))

    def at(self, mark: float) -> LayerPhase:
        """Return the layer and phase at a time, or at a position in the graph."""
        return self._owners[max(0, bisect_right(self._marks, mark) - 1)]


class AttributionByName:
    """Finds the owner of an operator of a graph by its name, whatever TensorFlow has made of the graph."""

    def __init__(self, owners: Attribution, operators: Sequence[Any]) -> None:
        self._owners = {operator.name: owners.at(place) for place, operator in enumerate(operators)}
        self._operators = {operator.name: operator for operator in operators}

    def of(self, name: str) -> LayerPhase:
        """Return the layer and phase of the operator, or of the loop or function that contains it."""
        parts = REWRITTEN.sub("", name).split("/")
        names = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self._owners[known] for known in names if known in self._owners), (OUTSIDE, None))

    def shapes(self, name: str, kind: str) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of an operator's inputs, if it is the original operator of the graph and they are known."""
        operator = self._operators.get(name)
        if operator is None or operator.type != kind:
            return ()
        shapes = [tensor.shape for tensor in operator.inputs]
        return tuple(tuple(shape.as_list()) for shape in shapes if shape.is_fully_defined() and shape.rank)


class AttributionByScope:
    """Finds the layer of an operator of a graph by its name, which for one of a backward has the name scope of the forward in it.

    Keras gives every call of a layer a scope of its own, but TensorFlow numbers scopes as it likes: which is whose is known from
    the operators that were put into the graph while a layer ran.
    """

    def __init__(self, owners: Attribution, operators: Sequence[Any]) -> None:
        self._named: dict[str, str] = {}
        self._scoped: dict[str, str] = {}
        for place, operator in enumerate(operators):
            path, _ = owners.at(place)
            if path != OUTSIDE:
                self._named[operator.name] = path
                self._scoped.setdefault(operator.name.rpartition("/")[0], path)

    def of(self, name: str) -> str:
        """The path of the layer to which the operator, or the innermost scope around it, belongs."""
        parts = [part for part in REWRITTEN.sub("", name).split("/") if part not in PREFIXES]
        names = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
        found = (known[each] for each in names for known in (self._named, self._scoped) if each in known)
        return next(found, OUTSIDE)
