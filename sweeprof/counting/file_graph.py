"""The graph of a model in a file, with the layer table and the peak of live bytes that follow from it, for all file formats.

A format's reader makes the graph, and a format's costs tell what each operator costs. Counts need nothing else of a format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Literal

from sweeprof.counting.formulas import OperatorCost, TensorShapes, Variable, added, layer_row, summed, together
from sweeprof.counting.mapping import CallTensor, CountedOperators, Operator, Tensor
from sweeprof.counting.operators import INTEGER, NOTHING
from sweeprof.results.layer_times import ROOT, above
from sweeprof.results.layers import Bytes, LayerRow, LayerTable, Liveness, Weights

# The peak of live bytes: each tensor takes memory from the operator that makes it to the last one that reads it


@dataclass(slots=True)
class OperatorRun:
    """One run of an operator; tensors are known by keys of any kind."""

    path: str
    """Of its module."""
    operands: Sequence[Hashable]
    results: Mapping[Hashable, Bytes]
    """Bytes of each result; a constant, which takes memory before the model runs, is left out."""
    memory_of: Hashable | None = None
    """The operand whose memory the results share; None: they have memory of their own."""


def peak_of(runs: Sequence[OperatorRun], outputs: Iterable[Hashable], input_bytes: Bytes) -> Liveness:
    """Return the peak over runs in their order: what they make, without weights and the model's inputs.

    A result that nothing reads lives while its operator runs, an output of the model to the end. The results of a view live in
    its operand: in no memory of their own, and as long as any of both is read.

    Args:
        runs: in their order.
        outputs: keys of the model's outputs.
        input_bytes: of the model's inputs.
    """
    owner: dict[Hashable, Hashable] = {}
    last_use: dict[Hashable, int] = {}
    for position, run in enumerate(runs):
        if run.memory_of is not None:
            owner.update(dict.fromkeys(run.results, owner.get(run.memory_of, run.memory_of)))
        for key in (*run.operands, *run.results):
            last_use[owner.get(key, key)] = position
    for key in outputs:
        last_use[owner.get(key, key)] = len(runs)
    freed: dict[int, Bytes] = {}
    live: Bytes = 0
    peak: Bytes = 0
    peak_path = ROOT
    for position, run in enumerate(runs):
        if run.memory_of is None:
            for key, size in run.results.items():
                live += size
                freed[last_use[key]] = freed.get(last_use[key], 0) + size
        if live > peak:
            peak, peak_path = live, run.path
        live -= freed.get(position, 0)
    return Liveness(int(peak), peak_path, int(input_bytes))


WeightRole = Literal["parameter", "frozen", "buffer"]
"""What a weight is: a parameter that would learn, one that would not, or state that no optimizer sees."""


@dataclass(frozen=True, slots=True)
class FileGraph(Generic[Operator, Tensor]):
    """Operators in the order in which they run."""

    operators: tuple[Operator, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...] = ()
    """Constants that the file stores."""


def liveness(graph: FileGraph[Any, Any], views: Collection[str]) -> Liveness | None:
    """Return the peak of live bytes; None where a shape is not known.

    Args:
        graph: the graph.
        views: names of the operators whose result has the memory of their first input.
    """
    if not all(operator.is_known for operator in graph.operators):
        return None
    runs = []
    for operator in graph.operators:
        made = {tensor: tensor.nbytes for tensor in operator.outputs if not tensor.is_constant}
        source = operator.input(0) if operator.op in views else None
        runs.append(OperatorRun(operator.path, operator.inputs, made, source))
    return peak_of(runs, graph.outputs, sum(tensor.nbytes for tensor in graph.inputs))


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What is known of a graph beside its operators."""

    types: Mapping[str, str]
    """Class name by path of all modules, ``""`` for the root; empty if that is not known."""
    roles: Mapping[str, WeightRole]
    """Role by weight; one that is the same tensor as another has none. Where the types are not known, neither are these."""
    sizes: Mapping[str, int]
    """Bytes by the weight of the unquantized model, of what a quantized one stores in its place."""
    views: Collection[str]
    """Operators whose result has the memory of their first input."""
    buffers: Mapping[str, tuple[int, ...]]
    """Positions of the inputs that are no parameters, such as a moving mean and variance, by the name of the operator."""


def module_table(
    graph: FileGraph[Operator, Any],
    facts: GraphFacts,
    cost_of: Callable[[Operator], OperatorCost | None],
    standard: str,
) -> LayerTable:
    """Return the layers of a graph, one row for each module. There is no silent zero.

    Args:
        graph: the graph.
        facts: what is known of it.
        cost_of: returns the cost of an operator; None lists it as uncovered.
        standard: the namespace that uncovered operators are listed without.
    """
    counts: dict[str, CountedOperators] = {}
    uncovered: Counter[str] = Counter()
    calls = 0
    for operator in graph.operators:
        if all(value.is_constant and value.data is not None for value in operator.outputs):  # no step computes it
            continue
        calls += 1
        cost = cost_of(operator)
        if cost is None:
            name = operator.op if operator.namespace == standard else operator.qualified
            uncovered[name] += 1
        elif cost != NOTHING:
            first, made = map(_known_elements, (operator.input(0), operator.result))
            counts.setdefault(operator.path, CountedOperators()).add(operator.op, cost, first, made)
    rows = module_rows(graph, facts.types, _weights(graph, facts), counts)
    return LayerTable(rows, dict(uncovered), operator_calls=calls, liveness=liveness(graph, facts.views))


def _known_elements(value: CallTensor | None) -> int:
    return 0 if value is None or value.shape is None else value.elements


def _weights(graph: FileGraph[Any, Any], facts: GraphFacts) -> dict[str, Weights]:
    """Return weights by the path of their module: the one in the weight's name, else the first that reads it."""
    roles = facts.roles if facts.types else _guessed(graph, facts.buffers)
    readers: dict[CallTensor, str] = {}
    for operator in graph.operators:
        for value in operator.inputs:
            if value is not None:
                readers.setdefault(value, operator.path)
    found: dict[str, list[Variable]] = {}
    for weight in graph.weights:
        role = roles.get(weight.name)
        if role is None:
            continue
        path = weight.name.rpartition(".")[0] if facts.types else readers.get(weight, ROOT)
        itemsize, dtype = weight.itemsize, weight.dtype
        if weight.name in facts.sizes and role != "buffer":
            itemsize, dtype = facts.sizes[weight.name] / weight.elements, "int8"
        variable = Variable(weight, weight.elements, itemsize, dtype, role == "parameter", role == "buffer")
        found.setdefault(path or ROOT, []).append(variable)
    return {path: summed(variables) for path, variables in found.items()}


BATCH_NORM_BUFFERS = (3, 4)
"""Positions of a batch norm's moving mean and variance."""
QUANTISED = ("int8", "uint8", "int4", "uint4", "int2", "uint2")


def _guessed(graph: FileGraph[Any, Any], buffers: Mapping[str, tuple[int, ...]]) -> dict[str, WeightRole]:
    """Return the roles in a file without roles: arrays that are no settings; a batch norm's statistics are no parameters."""
    state: set[CallTensor | None] = set()
    for operator in graph.operators:
        state.update(map(operator.input, buffers.get(operator.op, ())))
    roles: dict[str, WeightRole] = {}
    for value in graph.weights:
        if value.shape and (value.numbers is not INTEGER or value.dtype in QUANTISED):
            roles[value.name] = "buffer" if value in state else "parameter"
    return roles


def described(tensors: Iterable[CallTensor]) -> TensorShapes:
    """Return what a row shows of some tensors; one whose shape is not known has none."""
    parts = []
    for tensor in tensors:
        if tensor.shape is None:
            parts.append(TensorShapes((), (tensor.dtype,), None))
        else:
            parts.append(TensorShapes((tensor.shape,), (tensor.dtype,), tensor.nbytes, tensor.elements))
    return together(parts)


NEVER_CALLED = ("ModuleList", "ModuleDict")
"""Modules that only hold others."""


def module_rows(
    graph: FileGraph[Any, Any],
    types: Mapping[str, str],
    weights: Mapping[str, Weights],
    counts: Mapping[str, CountedOperators],
) -> tuple[LayerRow, ...]:
    """Return one row per module in the order of the operators, each after the module that it is in; its calls are one row.

    A module without an operator was never called, for example dropout, which is not in a graph for inference.

    Args:
        graph: the graph.
        types: class name by path of all modules, ``""`` for the root.
        weights: own weights by path.
        counts: by path.
    """
    called = modules_of(operator.path for operator in graph.operators)
    position: dict[str, int] = {}
    for path in (*called, *types, *weights):
        position.setdefault(path or ROOT, len(position))
    parents = set[str]().union(*(around(path)[:-1] for path in called))
    below: dict[str, list[Weights]] = {}
    for path, own in weights.items():
        for place in around(path):
            below.setdefault(place, []).append(own)
    borders = _borders(graph)
    rows = []
    for path in position:
        kind = types.get("", "Graph") if path == ROOT else types.get(path, "")
        border = borders.get(path, _Border())
        inputs, outputs = described(border.inputs.values()), described(border.outputs.values())
        counted = counts.get(path, CountedOperators())
        own = weights.get(path, Weights())
        row = layer_row(path, kind, own, counted.cost, inputs, outputs, is_leaf=path not in parents)
        row.operators = tuple(counted.operators.values())
        row.subtree = added(below.get(path, ()))
        if path in called and path != ROOT:
            row.parent = position[around(path)[-2]]
        if path not in called or kind in NEVER_CALLED:
            row.call = -1
        rows.append(row)
    return tuple(rows)


def modules_of(paths: Iterable[str]) -> dict[str, None]:
    """Return every path once, in their order, the root first and each after the modules that it is in."""
    found = {ROOT: None}
    for path in dict.fromkeys(paths):
        found.update(dict.fromkeys(around(path)))
    return found


@lru_cache(maxsize=1 << 14)
def around(path: str) -> tuple[str, ...]:
    """Return the modules that a module is in, outermost first, and itself."""
    return (*above(path), path)


@dataclass(slots=True)
class _Border:
    """The inputs and outputs of a module by name: tensors that depend on the model's inputs, in the order of the operators."""

    inputs: dict[str, CallTensor] = field(default_factory=dict)
    outputs: dict[str, CallTensor] = field(default_factory=dict)


def _borders(graph: FileGraph[Any, Any]) -> dict[str, _Border]:
    maker: dict[CallTensor, tuple[str, ...]] = {}
    readers: dict[CallTensor, set[str]] = {}
    for operator in graph.operators:
        maker.update(dict.fromkeys(operator.outputs, around(operator.path)))
        for tensor in operator.inputs:
            if tensor is not None:
                readers.setdefault(tensor, set()).add(operator.path)
    borders: dict[str, _Border] = {}
    results = set(graph.outputs)
    for operator in graph.operators:
        places = around(operator.path)
        for tensor in operator.inputs:
            if tensor is None or tensor.is_constant:
                continue
            for path in places:
                if path not in maker.get(tensor, ()):
                    borders.setdefault(path, _Border()).inputs[tensor.name] = tensor
        for tensor in operator.outputs:
            if tensor.is_constant:
                continue
            for path in places:
                if tensor in results or any(path not in around(reader) for reader in readers.get(tensor, ())):
                    borders.setdefault(path, _Border()).outputs[tensor.name] = tensor
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    borders[ROOT] = _Border(inputs, {tensor.name: tensor for tensor in graph.outputs})
    return borders
