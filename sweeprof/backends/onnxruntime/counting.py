"""Counts the graph of an ONNX file as it was exported: before the run-time fuses and folds, which changes how it is computed.

Every node is counted by a formula, known to do no arithmetic, or listed as uncovered; there is no silent zero. Loops and branches
are uncovered: what they run is not known from shapes. A node whose shapes the standard's rules do not tell is uncovered too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sweeprof.backends.onnxruntime.costs import COSTS, FREE, NOTHING, Cost
from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.onnxruntime.graph import Graph, Node
from sweeprof.backends.onnxruntime.liveness import liveness
from sweeprof.backends.onnxruntime.reading import read
from sweeprof.backends.onnxruntime.rows import rows_of
from sweeprof.profiling.formulas import Formulas, asked
from sweeprof.results.layers import LayerTable, OperatorCount


@dataclass(slots=True)
class Counts:
    """Of one module: what its own nodes cost."""

    macs: int = 0
    flops: int = 0
    ops: int = 0
    operators: dict[str, OperatorCount] = field(default_factory=dict)

    def add(self, node: Node, cost: Cost) -> None:
        """One more node."""
        macs, flops, ops = cost
        self.macs, self.flops, self.ops = self.macs + macs, self.flops + flops, self.ops + ops
        count = self.operators.setdefault(node.op, OperatorCount(node.op, 0, 0, 0, 0, 0, 0))
        count.calls += 1
        count.macs, count.flops, count.ops = count.macs + macs, count.flops + flops, count.ops + ops
        first = node.input(0)
        count.inputs += first.elements if first is not None and first.shape is not None else 0
        count.outputs += node.outputs[0].elements if node.outputs[0].shape is not None else 0


def count_file(
    file: Exported, shapes: Sequence[tuple[int, ...]], named: dict[str, tuple[int, ...]], formulas: Formulas
) -> LayerTable:
    """The layers of a file for inputs of these shapes, in their order and by name.

    Raises:
        Exception: it is no ONNX file.
    """
    graph = read(file, shapes, named)
    counts: dict[str, Counts] = {}
    uncovered: Counter[str] = Counter()
    for node in graph.nodes:
        if all(value.data is not None for value in node.outputs):  # a constant, which no step computes
            continue
        cost = cost_of(node, formulas)
        if cost is None:
            uncovered[node.op if not node.domain else node.qualified] += 1
        elif cost != NOTHING:
            counts.setdefault(node.path, Counts()).add(node, cost)
    return LayerTable(
        rows=rows_of(graph, file, counts),
        uncovered=dict(uncovered),
        operator_calls=_calls(graph),
        liveness=liveness(graph),
    )


def cost_of(node: Node, formulas: Formulas) -> Cost | None:
    """What a node costs; None where that is not known. A user's formula is given inputs, attributes and outputs."""
    written = formulas.of_operator(node.qualified)
    if written is not None:
        said = asked(written, node.inputs, node.attributes, node.outputs)
        macs = said.macs or 0
        flops = 2 * macs if said.flops is None else said.flops
        return macs, flops, flops if said.ops is None else said.ops
    if node.qualified in FREE:
        return NOTHING
    rule = COSTS.get(node.qualified)
    return rule(node) if rule is not None and node.is_known else None


def _calls(graph: Graph) -> int:
    return sum(any(value.data is None for value in node.outputs) for node in graph.nodes)
