"""Graphs of operators, as model files have them: counted operator by operator, with a row for each module. Imports no framework."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from sweeprof.counting.formulas import Formulas, OperatorCost, cost_by_formula
from sweeprof.counting.mapping import Rule
from sweeprof.counting.operators import COMPLEX, INTEGER, NOTHING, REAL, Numbers
from sweeprof.counting.parameters import added
from sweeprof.results.layer_times import ROOT, above
from sweeprof.results.layers import LayerRow, LayerTable, Liveness, OperatorCount, Shapes, Weights

WeightRole = Literal["parameter", "frozen", "buffer"]
"""What a weight is: a parameter that would learn, one that would not, or state that no optimizer sees."""
STANDARDS = ("onnx", "openvino")
"""Namespaces of operators that a table lists without them."""


def itemsize(dtype: str) -> int:
    """Bytes of an element, by the name of its type; 0 for texts."""
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits[0]) // 8) if bits else int(dtype == "bool")


@dataclass(slots=True, eq=False)
class GraphValue:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...] | None
    """None where it is not known."""
    dtype: str
    """As numpy calls it; ``""`` where it is not known."""
    data: Any = None
    """The array, of what is constant and small."""
    is_fixed: bool = False
    """True if it is a weight, or computed from weights only."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a value whose shape is known."""
        assert self.shape is not None
        return self.shape

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        return self.elements * itemsize(self.dtype)

    @property
    def numbers(self) -> Numbers:
        """The kind of numbers of the elements."""
        return REAL if "float" in self.dtype else COMPLEX if "complex" in self.dtype else INTEGER

    @property
    def is_floating(self) -> bool:
        return self.numbers is not INTEGER

    @property
    def is_constant(self) -> bool:
        """True if the value depends on no input."""
        return self.is_fixed or self.data is not None


@dataclass(slots=True, eq=False)
class GraphNode:
    """An operator of the graph."""

    name: str
    namespace: str
    """``onnx`` for what the ONNX standard has."""
    op: str
    path: str
    """Of its module."""
    inputs: tuple[GraphValue | None, ...]
    """None for an optional one that is not given."""
    outputs: tuple[GraphValue, ...]
    attributes: Mapping[str, Any]

    def input(self, position: int) -> GraphValue | None:
        """Return the input at a position, or None if it is omitted."""
        return self.inputs[position] if len(self.inputs) > position else None

    def operand(self, position: int) -> GraphValue:
        """Return an input that every node of the operator has."""
        value = self.input(position)
        assert value is not None
        return value

    @property
    def result(self) -> GraphValue:
        """The first output."""
        return self.outputs[0]

    @property
    def qualified(self) -> str:
        """E.g. ``onnx::Conv``."""
        return f"{self.namespace}::{self.op}"

    @property
    def is_known(self) -> bool:
        """True if the shapes of all inputs and outputs are known."""
        return all(value is None or value.shape is not None for value in (*self.inputs, *self.outputs))


@dataclass(frozen=True)
class OperatorGraph:
    """Nodes in the order in which they run."""

    nodes: tuple[GraphNode, ...]
    inputs: tuple[GraphValue, ...]
    outputs: tuple[GraphValue, ...]
    weights: tuple[GraphValue, ...]
    """Constants that may be parameters."""

    @cached_property
    def consumers(self) -> dict[GraphValue, list[GraphNode]]:
        """The nodes that read each value."""
        found: dict[GraphValue, list[GraphNode]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value is not None:
                    found.setdefault(value, []).append(node)
        return found


VIEWS = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}
"""Operators whose result is their input under another shape: no memory of its own."""


def liveness(graph: OperatorGraph) -> Liveness | None:
    """The peak; None where a shape is not known. What depends on no input is a weight, and in no peak."""
    if not all(node.is_known for node in graph.nodes):
        return None
    held = _held(graph)
    last: dict[GraphValue, GraphNode | None] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                last[held.get(value, value)] = node
    for value in graph.outputs:
        last[held.get(value, value)] = None
    gone: dict[GraphNode, int] = {}
    made = {value for node in graph.nodes for value in node.outputs if value not in held and not value.is_constant}
    for value, reader in last.items():
        if value in made and reader is not None:
            gone[reader] = gone.get(reader, 0) + value.nbytes
    live = peak = 0
    where = ROOT
    for node in graph.nodes:
        live += sum(value.nbytes for value in node.outputs if value in made and value in last)
        if live > peak:
            peak, where = live, node.path
        live -= gone.get(node, 0)
    return Liveness(peak, where, sum(value.nbytes for value in graph.inputs))


def _held(graph: OperatorGraph) -> dict[GraphValue, GraphValue]:
    """Return for each view the value that it is a view of."""
    held: dict[GraphValue, GraphValue] = {}
    for node in graph.nodes:
        source = node.input(0)
        if node.op in VIEWS and source is not None:
            held[node.outputs[0]] = held.get(source, source)
    return held


NEVER_CALLED = ("ModuleList", "ModuleDict")
"""Modules that only hold others."""
BATCH_NORMS, STATISTICS = ("BatchNormalization", "BatchNormInference"), (3, 4)
"""Operators that normalise a batch, and their inputs that are the moving mean and variance."""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What is known beside a graph."""

    types: Mapping[str, str] = field(default_factory=dict)
    """Class name by module path, of all modules."""
    roles: Mapping[str, WeightRole] = field(default_factory=dict)
    """Role by weight; one that is the same tensor as another has none. Empty: they are guessed."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by the weight of the unquantized model, of what a quantized one stores in its place."""


def layer_table(
    graph: OperatorGraph, facts: GraphFacts, cost_of: Callable[[GraphNode], OperatorCost | None]
) -> LayerTable:
    """Return the layers of a graph.

    Every operator is counted by ``cost_of``, or listed as uncovered where that returns None; there is no silent zero.
    """
    counts: dict[str, ModuleCounts] = {}
    uncovered: Counter[str] = Counter()
    calls = 0
    for node in graph.nodes:
        if all(value.data is not None for value in node.outputs):  # a constant, which no step computes
            continue
        calls += 1
        cost = cost_of(node)
        if cost is None:
            uncovered[node.op if node.namespace in STANDARDS else node.qualified] += 1
        elif cost != NOTHING:
            counts.setdefault(node.path, ModuleCounts()).add(node, cost)
    rows = rows_of(graph, facts, counts)
    return LayerTable(rows, dict(uncovered), operator_calls=calls, liveness=liveness(graph))


def cost_by(
    node: GraphNode, formulas: Formulas, rules: Mapping[str, Rule[GraphNode]], free: Collection[str]
) -> OperatorCost | None:
    """Return the cost of an operator, or None if it is unknown. A user's formula receives inputs, attributes and outputs.

    Args:
        node: the operator.
        formulas: the user's, which come first.
        rules: by qualified name.
        free: qualified names of operators that do no arithmetic.
    """
    written = formulas.of_operator(node.qualified)
    if written is not None:
        message = cost_by_formula(written, node.inputs, node.attributes, node.outputs)
        macs = message.macs or 0
        flops = 2 * macs if message.flops is None else message.flops
        return macs, flops, flops if message.ops is None else message.ops
    if node.qualified in free:
        return NOTHING
    rule = rules.get(node.qualified)
    return rule(node) if rule is not None and node.is_known else None


def rows_of(graph: OperatorGraph, facts: GraphFacts, counts: Mapping[str, ModuleCounts]) -> tuple[LayerRow, ...]:
    """One row per module, in the order of the nodes, each after the module it is in; a graph does not tell its calls apart.

    A module that no node belongs to is one that was never called: dropout is no part of a graph for inference.
    """
    weights = _weights(graph, facts)
    paths = list(ordered(node.path for node in graph.nodes))
    absent = [path or ROOT for path in facts.types if (path or ROOT) not in paths]
    absent += [path for path in weights if path not in paths and path not in absent]
    position = {path: index for index, path in enumerate([*paths, *absent])}
    borders = _borders(graph)
    rows = []
    for path in position:
        own = weights.get(path, Weights())
        row = _row(path, facts, own, counts.get(path), borders.get(path), is_leaf=not _has_below(path, paths))
        row.subtree = added(
            [w for other, w in weights.items() if path in (other, ROOT) or other.startswith(f"{path}.")]
        )
        parents = above(path)
        row.parent = position[parents[-1]] if parents and path in paths else None
        if path in absent:
            row.call = -1
        rows.append(row)
    return tuple(rows)


def ordered(paths: Iterable[str]) -> dict[str, None]:
    """Every path once, in their order, the root first and each after the modules that it is in."""
    return dict.fromkeys([ROOT, *(one for path in paths for one in [*above(path), path])])


def _has_below(path: str, paths: Iterable[str]) -> bool:
    return any(other != ROOT if path == ROOT else other.startswith(f"{path}.") for other in paths)


def _row(
    path: str, facts: GraphFacts, own: Weights, counts: ModuleCounts | None, border: _Border | None, *, is_leaf: bool
) -> LayerRow:
    kind = facts.types.get("" if path == ROOT else path, "Graph" if path == ROOT else "")
    crossing = border or _Border()
    outputs = crossing.outputs.values()
    return LayerRow(
        path=path,
        type=kind,
        depth=0 if path == ROOT else path.count(".") + 1,
        call=-1 if kind in NEVER_CALLED else 0,
        params=own.params,
        trainable=own.trainable,
        params_bytes=own.params_bytes,
        buffers=own.buffers,
        macs=counts.macs if counts else 0,
        input_shapes=_shapes(crossing.inputs.values()),
        output_shapes=_shapes(outputs),
        flops=counts.flops if counts else 0,
        ops=counts.ops if counts else 0,
        act_bytes=_bytes(outputs) if is_leaf else 0,
        input_bytes=_bytes(crossing.inputs.values()),
        output_bytes=_bytes(outputs),
        input_dtypes=tuple(value.dtype for value in crossing.inputs.values()),
        output_dtypes=tuple(value.dtype for value in outputs),
        buffers_bytes=own.buffers_bytes,
        dtypes=own.dtypes,
        operators=tuple(counts.operators.values()) if counts else (),
    )


def _shapes(values: Iterable[GraphValue]) -> Shapes:
    return tuple(value.shape for value in values if value.shape is not None)


def _bytes(values: Iterable[GraphValue]) -> int | None:
    known = list(values)
    return sum(value.nbytes for value in known) if all(value.shape is not None for value in known) else None


class _Border:
    """The inputs and outputs of a module: values that depend on the model's inputs, each once, in the order of the nodes."""

    def __init__(self) -> None:
        self.inputs: dict[str, GraphValue] = {}
        self.outputs: dict[str, GraphValue] = {}


def _borders(graph: OperatorGraph) -> dict[str, _Border]:
    maker = {value: node for node in graph.nodes for value in node.outputs}
    results = set(graph.outputs)
    borders: dict[str, _Border] = {}
    for node in graph.nodes:
        around = {*above(node.path), node.path}
        for value in node.inputs:
            if value is None or value.is_constant:
                continue
            made_in = _around(maker.get(value))
            for path in [p for p in [*above(node.path), node.path] if p not in made_in]:
                borders.setdefault(path, _Border()).inputs[value.name] = value
        for value in node.outputs:
            readers = [_around(reader) for reader in graph.consumers.get(value, [])]
            for path in around:
                if not value.is_constant and (value in results or any(path not in reader for reader in readers)):
                    borders.setdefault(path, _Border()).outputs[value.name] = value
    root = borders.setdefault(ROOT, _Border())
    root.inputs = {value.name: value for value in graph.inputs}
    root.outputs = {value.name: value for value in graph.outputs}
    return borders


def _around(node: GraphNode | None) -> set[str]:
    return set() if node is None else {*above(node.path), node.path}


def _weights(graph: OperatorGraph, facts: GraphFacts) -> dict[str, Weights]:
    """Weights by the path of the module that holds them: told by its name, else the first that reads it."""
    roles = facts.roles or _guessed(graph)
    found: dict[str, list[tuple[GraphValue, WeightRole]]] = {}
    for value in graph.weights:
        role = roles.get(value.name)
        if role is not None:
            readers = graph.consumers.get(value, [])
            path = value.name.rpartition(".")[0] if facts.roles else readers[0].path if readers else ROOT
            found.setdefault(path or ROOT, []).append((value, role))
    return {path: added([_weight(*one, facts.sizes) for one in values]) for path, values in found.items()}


def _guessed(graph: OperatorGraph) -> dict[str, WeightRole]:
    """Return the roles in a file without roles: arrays that are no settings; a batch norm's statistics are no parameters."""
    statistics = {
        value.name
        for node in graph.nodes
        if node.op in BATCH_NORMS
        for value in (node.input(position) for position in STATISTICS)
        if value is not None
    }
    candidates = [value for value in graph.weights if value.shape and (value.is_floating or value.dtype in _QUANTISED)]
    return {value.name: "buffer" if value.name in statistics else "parameter" for value in candidates}


_QUANTISED = ("int8", "uint8", "int4", "uint4")


def _weight(value: GraphValue, role: WeightRole, sizes: Mapping[str, int]) -> Weights:
    if role == "buffer":
        return Weights(buffers=value.elements, buffers_bytes=value.nbytes)
    trainable = value.elements if role == "parameter" else 0
    dtype = "int8" if value.name in sizes else value.dtype
    return Weights(value.elements, trainable, sizes.get(value.name, value.nbytes), dtypes={dtype: value.elements})


@dataclass(slots=True)
class ModuleCounts:
    """The cost of one module's own nodes."""

    macs: int = 0
    flops: int = 0
    ops: int = 0
    operators: dict[str, OperatorCount] = field(default_factory=dict)

    def add(self, node: GraphNode, cost: OperatorCost) -> None:
        """One more node."""
        macs, flops, ops = cost
        self.macs, self.flops, self.ops = self.macs + macs, self.flops + flops, self.ops + ops
        count = self.operators.setdefault(node.op, OperatorCount(node.op, 0, 0, 0, 0, 0, 0))
        count.calls += 1
        count.macs, count.flops, count.ops = count.macs + macs, count.flops + flops, count.ops + ops
        first = node.input(0)
        count.inputs += first.elements if first is not None and first.shape is not None else 0
        count.outputs += node.outputs[0].elements if node.outputs[0].shape is not None else 0
