"""Marks in a graph: timestamps that the graph takes itself while it runs, between everything before and everything after them.

A graph has no order but that of its data. Here its operators are held to the order in which they were made, stretch by stretch:
what was made before a timestamp runs before it, and what was made after it runs after it. Within a stretch TensorFlow is free, and
fuses operators as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

UNORDERED = {"Placeholder", "Const", "VarHandleOp"}
"""Operators that do nothing when they run."""


class Stamps:
    """The timestamps of the graph that is being made, in the order in which they will be taken."""

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self.taken: list[Any] = []

    def is_here(self) -> bool:
        return tf.compat.v1.get_default_graph() is self._graph

    def at(self, tensors: Sequence[Any], is_entry: bool = False) -> tuple[int, list[Any]]:
        """The mark is the timestamp's index."""
        # What made a tensor can be fused with what is before it only if no timestamp waits for it directly.
        before = [tf.identity(tensor) for tensor in tensors]
        with tf.control_dependencies([*before, *self.taken[-1:]]):
            stamp = tf.timestamp()
        with tf.control_dependencies([stamp]):
            after = [tf.identity(tensor) for tensor in before]
        self.taken.append(stamp)
        return len(self.taken) - 1, after

    def hold(self, results: Any, from_both_sides: bool) -> None:
        """Hold everything that ``results`` or the state of a variable depend on to its stretch.

        Args:
            results: what the graph returns.
            from_both_sides: whether also what waits for no other operator of its stretch waits for the timestamp before it.
        """
        operators = list(self._graph.get_operations())
        stamps = [stamp.op for stamp in self.taken]
        needed = _needed(operators, [leaf.op for leaf in tf.nest.flatten(results) if isinstance(leaf, tf.Tensor)])
        stretches: list[set[Any]] = [set() for _ in range(len(stamps) + 1)]
        for operator, number in _numbered(operators, stamps, needed).items():
            stretches[number].add(operator)
        for stretch, before, after in zip(stretches, [None, *stamps], [*stamps, None], strict=True):
            _hold(stretch, before if from_both_sides else None, after)


def _needed(operators: Sequence[Any], results: Sequence[Any]) -> set[Any]:
    """What runs at all; the others, such as gradients that nobody asked for, must not run because a timestamp waits for them."""
    waiting = [*results, *(operator for operator in operators if operator.op_def.is_stateful)]
    needed = set()
    while waiting:
        operator = waiting.pop()
        if operator not in needed:
            needed.add(operator)
            waiting += _sources(operator)
    return {operator for operator in needed if operator.type not in UNORDERED}


def _numbered(operators: Sequence[Any], stamps: Sequence[Any], needed: set[Any]) -> dict[Any, int]:
    """The stretch of every operator: that in which it was made, or an earlier one where something there needs it.

    So it is with what the gradient of a loop adds to the loop afterwards, for it to remember what the gradient needs.
    """
    numbers: dict[Any, int] = {}
    ended, left = set(stamps), 0
    for operator in operators:
        if operator in ended:
            left += 1
        elif operator in needed:
            numbers[operator] = left
    waiting = list(numbers)
    while waiting:
        operator = waiting.pop()
        for source in _sources(operator):
            if numbers.get(source, 0) > numbers[operator]:
                numbers[source] = numbers[operator]
                waiting.append(source)
    return numbers


def _hold(stretch: set[Any], before: Any, after: Any) -> None:
    """Let what waits for nothing in the stretch wait for the timestamp before it, and that after it for what nothing waits for."""
    awaited = set[Any]()
    for operator in stretch:
        sources = [source for source in _sources(operator) if source in stretch]
        awaited.update(sources)
        if before is not None and not sources and before not in operator.control_inputs:
            operator._add_control_input(before)
    for operator in stretch.difference(awaited, [] if after is None else after.control_inputs):
        if after is not None:
            after._add_control_input(operator)


def _sources(operator: Any) -> list[Any]:
    return [*(tensor.op for tensor in operator.inputs), *operator.control_inputs]
