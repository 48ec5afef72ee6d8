"""What each call of a layer did, while a model is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sweeprof.backends.keras.costs.rule import Cost as Figures
from sweeprof.backends.keras.tensors import Seen, tensors_in
from sweeprof.profiling.formulas import Cost
from sweeprof.results.layers import OperatorCount


class Call:
    """One call of one layer, or ``times`` equal ones: the steps of a recurrent network are one call of its cell."""

    __slots__ = (
        *("children", "counted", "inputs", "layer", "operator_calls", "operators", "outputs", "parent", "path"),
        *("in_graph", "times", "uncovered"),
    )

    def __init__(self, layer: Any, path: str, parent: Call | None, times: int = 1) -> None:
        self.layer, self.path, self.parent, self.times = layer, path, parent, times
        self.children = 0
        self.in_graph = False
        """Whether a framework traces it in a graph of its own, where layers are called on the graph's tensors."""
        self.inputs = self.outputs = Seen()
        self.counted: Cost | None = None
        """What a formula of the layer's type says instead of its operations."""
        self.clear()

    def clear(self) -> None:
        """Forget every operation."""
        self.operators: dict[str, list[int]] = {}
        """calls, MACs, FLOPs, ops, input elements, output elements by operation."""
        self.operator_calls = 0
        self.uncovered: Counter[str] = Counter()
        """Calls by operation without a formula."""

    def count(self, name: str, cost: Figures, used: Any, made: Any, times: int) -> None:
        """Add an operation that ran so many times."""
        self.operator_calls += times
        given, returned = tensors_in(used)[:1], tensors_in(made)[:1]
        figures = (1, *cost, sum(map(_elements, given)), sum(map(_elements, returned)))
        known = self.operators.setdefault(name, [0] * len(figures))
        for index, figure in enumerate(figures):
            known[index] += times * figure

    def miss(self, name: str, times: int) -> None:
        """Note that an operation has no formula."""
        self.operator_calls += times
        self.uncovered[name] += times

    @property
    def is_told(self) -> bool:
        """Whether a formula says what the operations cost, known or not."""
        return self.counted is not None and (self.counted.macs is not None or self.counted.flops is not None)

    @property
    def costs(self) -> Figures:
        """MACs, FLOPs and ops: those of the operations, or what a formula says instead."""
        macs, flops, ops = (sum(figures[at] for figures in self.operators.values()) for at in (1, 2, 3))
        said = self.counted
        if said is None:
            return macs, flops, ops
        return (
            macs if said.macs is None else said.macs * self.times,
            flops if said.flops is None else said.flops * self.times,
            ops if said.ops is None else said.ops * self.times,
        )

    @property
    def operator_counts(self) -> tuple[OperatorCount, ...]:
        """What the call ran, operations without arithmetic left out."""
        return tuple(OperatorCount(name, *figures) for name, figures in self.operators.items() if any(figures[1:4]))


def uncovered(calls: Iterable[Call]) -> dict[str, int]:
    """Calls by operation without a formula, but for those of layers whose own formula says what they cost."""
    missed: Counter[str] = Counter()
    for call in calls:
        if not call.is_told:
            missed.update(call.uncovered)
    return dict(missed)


def _elements(tensor: Any) -> int:
    count = 1
    for size in tensor.shape:
        count *= int(size or 0)
    return count
