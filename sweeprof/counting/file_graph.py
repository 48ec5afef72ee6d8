"""The graph of a model in a file, with the layer table and the live bytes that follow from it, for every format of files.

A format's reader makes the graph, and a format's costs tell what each operator costs. Counts need nothing else of a format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from sweeprof.counting import operators
from sweeprof.counting.formulas import Formulas, OperatorCost, operator_cost_by_formula
from sweeprof.counting.liveness import OperatorRun, peak_of
from sweeprof.counting.operators import INTEGER, LINEAR_BY_AXES, NOTHING, REAL, Numbers
from sweeprof.counting.parameters import Variable, added, summed, whole
from sweeprof.results.layer_times import ROOT, above
from sweeprof.results.layers import Bytes, LayerRow, LayerTable, Liveness, OperatorCount, Weights

WeightRole = Literal["parameter", "frozen", "buffer"]
"""What a weight is: a parameter that would learn, one that would not, or state that no optimizer sees."""


@dataclass(slots=True, eq=False)
class FileTensor:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...] | None
    """None where it is not known."""
    dtype: str
    """E.g. ``float32``; ``""`` where it is not known."""
    itemsize: float = 4
    """Bytes of an element, fractional if smaller than a byte; 0 for texts."""
    numbers: Numbers = REAL
    """The kind of numbers that the elements represent."""
    is_constant: bool = False
    """True if the tensor depends on no input of the model."""
    data: Any = None
    """The array, of what is constant and small."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a tensor whose shape is known."""
        assert self.shape is not None
        return self.shape

    @property
    def elements(self) -> int:
        assert self.shape is not None
        return prod(self.shape)

    @property
    def nbytes(self) -> Bytes:
        size = self.elements * self.itemsize
        return size if isinstance(size, int) else whole(size)


Tensor = TypeVar("Tensor", bound=FileTensor)


@dataclass(slots=True, eq=False)
class FileOperator(Generic[Tensor]):
    """An operator of the graph, as the rules of :mod:`sweeprof.counting.mapping` take it."""

    op: str
    """The format's name for it, e.g. ``Conv``."""
    path: str
    """Of its module."""
    inputs: tuple[Tensor | None, ...]
    """None for an optional one that is not given."""
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """The name that the file gives to this operator."""
    namespace: str = ""
    """Of the format, or of who added the operator to it."""

    @property
    def qualified(self) -> str:
        """E.g. ``onnx::Conv``."""
        return f"{self.namespace}::{self.op}"

    def input(self, position: int) -> Tensor | None:
        """Return the input at a position, or None if it is omitted."""
        return self.inputs[position] if len(self.inputs) > position else None

    def operand(self, position: int) -> Tensor:
        """Return an input that every call of the operator has."""
        value = self.input(position)
        assert value is not None
        return value

    @property
    def result(self) -> Tensor:
        """The first output."""
        return self.outputs[0]

    @property
    def is_known(self) -> bool:
        """True if the shapes of all inputs and outputs are known."""
        return all(value is None or value.shape is not None for value in (*self.inputs, *self.outputs))


Operator = TypeVar("Operator", bound=FileOperator[Any])


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


@dataclass(slots=True)
class OwnCounts:
    """The cost of a module's own operators."""

    macs: int = 0
    flops: int = 0
    ops: int = 0
    operators: dict[str, OperatorCount] = field(default_factory=dict)

    def add(self, name: str, cost: OperatorCost, inputs: int, outputs: int) -> None:
        """Add an operator with the elements of its first input and its first output."""
        macs, flops, ops = cost
        self.macs, self.flops, self.ops = self.macs + macs, self.flops + flops, self.ops + ops
        count = self.operators.setdefault(name, OperatorCount(name, 0, 0, 0, 0, 0, 0))
        count.calls += 1
        count.macs, count.flops, count.ops = count.macs + macs, count.flops + flops, count.ops + ops
        count.inputs, count.outputs = count.inputs + inputs, count.outputs + outputs


def cost_by(
    operator: Operator,
    formulas: Formulas,
    rules: Mapping[str, Callable[[Operator], OperatorCost]],
    free: Collection[str],
) -> OperatorCost | None:
    """Return the cost of an operator, or None if it is unknown. A user's formula receives inputs, attributes and outputs.

    Args:
        operator: of a graph.
        formulas: the user's, which come first.
        rules: by qualified name.
        free: qualified names of operators that do no arithmetic.
    """
    written = formulas.of_operator(operator.qualified)
    if written is not None:
        return operator_cost_by_formula(written, operator.inputs, operator.attributes, operator.outputs)
    if operator.qualified in free:
        return NOTHING
    rule = rules.get(operator.qualified)
    return rule(operator) if rule is not None and operator.is_known else None


# Costs of operators whose operands have the same order in every format.

FileRule = Callable[[FileOperator[Any]], OperatorCost]


def text_of(operator: FileOperator[Any], attribute: str, default: str) -> str:
    """Return an attribute as a text, which some formats store as bytes."""
    value = operator.attributes.get(attribute, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def is_added(bias: FileTensor | None) -> bool:
    """Return True if there is a bias; torch's exporter puts constant zeros where a convolution has none."""
    return bias is not None and (bias.data is None or bool(bias.data.any()))


def matmul(transposed: str = "", inner: int = 0, bias: int | None = None) -> FileRule:
    """Return the rule of a matrix product.

    Args:
        transposed: the attribute that is set if the axis that is summed over is the last but one.
        inner: position of the operand that has this axis.
        bias: position of the bias; None: there is none.
    """

    def rule(operator: FileOperator[Any]) -> OperatorCost:
        sizes, made = operator.operand(inner).sizes, operator.result
        length = sizes[-2 if operator.attributes.get(transposed) and len(sizes) > 1 else -1]
        return operators.matmul(
            made.elements, length, made.numbers, bias=bias is not None and is_added(operator.input(bias))
        )

    return rule


def convolution(first: int, end: int | None = None, weight: int = 1, bias: int = 2) -> FileRule:
    """Return the rule of a convolution, the window of which is the sizes ``first:end`` of its weight.

    Args:
        first: of the weight's axes.
        end: of these.
        weight: its position.
        bias: that of the bias.
    """

    def rule(operator: FileOperator[Any]) -> OperatorCost:
        window, made = prod(operator.operand(weight).sizes[first:end]), operator.result
        return operators.convolution(made.elements, window, made.numbers, bias=is_added(operator.input(bias)))

    return rule


def transposed_convolution(first: int, end: int | None = None, given: int = 0, bias: int | None = 2) -> FileRule:
    """Return the rule of a transposed convolution, whose input is at ``given`` and whose weight is the second operand."""

    def rule(operator: FileOperator[Any]) -> OperatorCost:
        inputs, window = operator.operand(given).elements, prod(operator.operand(1).sizes[first:end])
        has_bias = bias is not None and is_added(operator.input(bias))
        made = operator.result
        return operators.transposed_convolution(inputs, window, made.elements, made.numbers, bias=has_bias)

    return rule


def gelu(attribute: str) -> FileRule:
    """Return the rule of a GELU, by the attribute that tells whether it is approximated by tanh."""

    def rule(operator: FileOperator[Any]) -> OperatorCost:
        is_tanh = text_of(operator, attribute, "").lower() in ("tanh", "true")
        name = "gelu_tanh" if is_tanh else "gelu"
        return operators.elementwise(name, operator.result.elements, operator.result.numbers)

    return rule


def interpolation(mode: str, axes: int, result: FileTensor) -> OperatorCost:
    """Return the cost of an interpolation along so many axes."""
    kinds = ("nearest",) * 3 if mode == "nearest" else ("bicubic",) * 3 if "cubic" in mode else LINEAR_BY_AXES
    return operators.elementwise(kinds[min(axes, 3) - 1], result.elements, result.numbers)


def resize(operator: FileOperator[Any]) -> OperatorCost:
    """Return the cost of a resize, which interpolates along the axes that change."""
    changed = sum(a != b for a, b in zip(operator.operand(0).sizes, operator.result.sizes, strict=True))
    return interpolation(text_of(operator, "mode", "nearest"), changed, operator.result) if changed else NOTHING


def einsum(operator: FileOperator[Any]) -> OperatorCost:
    """Return the cost of an einsum."""
    shapes, made = [value.sizes for value in operator.inputs if value is not None], operator.result
    return operators.einsum(text_of(operator, "equation", ""), shapes, made.elements, made.numbers)


def batch_norm(operator: FileOperator[Any]) -> OperatorCost:
    """Return the cost of a batch norm of ``(X, scale, B, mean, variance)``."""
    is_training = bool(operator.attributes.get("training_mode"))
    given, scale = operator.operand(0), operator.operand(1)
    return operators.batch_norm(given.elements, scale.elements, affine=True, training=is_training)


def group_norm(operator: FileOperator[Any]) -> OperatorCost:
    """Return the cost of a group norm."""
    given = operator.operand(0)
    rows = given.sizes[0] * int(operator.attributes["num_groups"])
    return operators.normalisation(given.elements, rows, weight=True, bias=True)


def scatter(operator: FileOperator[Any]) -> OperatorCost:
    """Return the cost of a scatter, which only moves unless it is to reduce."""
    updates = operator.operand(2)
    reduces = text_of(operator, "reduction", "none") != "none"
    return operators.scan(updates.elements) if reduces and updates.numbers is not INTEGER else NOTHING


def average_pool(*window: str) -> FileRule:
    """Return the rule of average pooling, by the attributes that have the window, or one size of it each."""

    def rule(operator: FileOperator[Any]) -> OperatorCost:
        sizes = prod(prod(np.atleast_1d(operator.attributes[name]).tolist()) for name in window)
        return operators.average_pool(operator.operand(0).elements, operator.result.elements, sizes)

    return rule


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What is known of a graph beside its operators."""

    types: Mapping[str, str]
    """Class name by path of all modules, ``""`` for the root; empty if that is not known."""
    roles: Mapping[str, WeightRole]
    """Role by weight; one that is the same tensor as another has none. Empty: they are guessed."""
    sizes: Mapping[str, int]
    """Bytes by the weight of the unquantized model, of what a quantized one stores in its place."""
    views: Collection[str]
    """Operators whose result has the memory of their first input."""
    batch_norms: Collection[str]
    """Operators whose fourth and fifth input are a moving mean and variance."""


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
    counts: dict[str, OwnCounts] = {}
    uncovered: Counter[str] = Counter()
    calls = 0
    for operator in graph.operators:
        if all(value.data is not None for value in operator.outputs):  # a constant, which no step computes
            continue
        calls += 1
        cost = cost_of(operator)
        if cost is None:
            uncovered[operator.op if operator.namespace == standard else operator.qualified] += 1
        elif cost != NOTHING:
            first, made = (
                0 if value is None or value.shape is None else value.elements
                for value in (operator.input(0), operator.result)
            )
            counts.setdefault(operator.path, OwnCounts()).add(operator.op, cost, first, made)
    rows = module_rows(graph, facts.types, _weights(graph, facts), counts)
    return LayerTable(rows, dict(uncovered), operator_calls=calls, liveness=liveness(graph, facts.views))


def _weights(graph: FileGraph[Any, Any], facts: GraphFacts) -> dict[str, Weights]:
    """Return weights by the path of their module: the one in the weight's name, else the first that reads it."""
    roles = facts.roles or _guessed(graph, facts.batch_norms)
    readers: dict[FileTensor, str] = {}
    for operator in graph.operators:
        for value in operator.inputs:
            if value is not None:
                readers.setdefault(value, operator.path)
    found: dict[str, list[Variable]] = {}
    for weight in graph.weights:
        role = roles.get(weight.name)
        if role is not None:
            path = weight.name.rpartition(".")[0] if facts.roles else readers.get(weight, ROOT)
            found.setdefault(path or ROOT, []).append(_variable(weight, role, facts.sizes.get(weight.name)))
    return {path: summed(variables) for path, variables in found.items()}


STATISTICS = (3, 4)
QUANTISED = ("int8", "uint8", "int4", "uint4")


def _guessed(graph: FileGraph[Any, Any], batch_norms: Collection[str]) -> dict[str, WeightRole]:
    """Return the roles in a file without roles: arrays that are no settings; a batch norm's statistics are no parameters."""
    norms = [operator for operator in graph.operators if operator.op in batch_norms]
    statistics = {operator.input(position) for operator in norms for position in STATISTICS}
    candidates = [v for v in graph.weights if v.shape and (v.numbers is not INTEGER or v.dtype in QUANTISED)]
    return {value.name: "buffer" if value in statistics else "parameter" for value in candidates}


def _variable(value: FileTensor, role: WeightRole, quantised_bytes: int | None) -> Variable:
    """Return a weight with the bytes that the quantised file stores instead of it, if there is one."""
    itemsize: float = value.itemsize
    dtype = value.dtype
    if quantised_bytes is not None and role != "buffer":
        itemsize, dtype = quantised_bytes / value.elements, "int8"
    return Variable(value, value.elements, itemsize, dtype, role == "parameter", role == "buffer")


def layer_row(
    path: str,
    kind: str,
    weights: Weights,
    counts: OwnCounts,
    given: Iterable[FileTensor],
    made: Iterable[FileTensor],
    *,
    is_leaf: bool,
) -> LayerRow:
    """Return the row of the first call of a module.

    Args:
        path: of the module.
        kind: its type.
        weights: its own.
        counts: of its own operators.
        given: what it reads of others.
        made: what it returns to others.
        is_leaf: False if calls within it return its activations.
    """
    given, made = list(given), list(made)
    output_bytes = _bytes(made)
    return LayerRow(
        path=path,
        type=kind,
        depth=0 if path == ROOT else path.count(".") + 1,
        call=0,
        params=weights.params,
        trainable=weights.trainable,
        params_bytes=weights.params_bytes,
        buffers=weights.buffers,
        macs=counts.macs,
        input_shapes=tuple(tensor.shape for tensor in given if tensor.shape is not None),
        output_shapes=tuple(tensor.shape for tensor in made if tensor.shape is not None),
        flops=counts.flops,
        ops=counts.ops,
        act_bytes=output_bytes if is_leaf else 0,
        input_bytes=_bytes(given),
        output_bytes=output_bytes,
        input_dtypes=tuple(tensor.dtype for tensor in given),
        output_dtypes=tuple(tensor.dtype for tensor in made),
        buffers_bytes=weights.buffers_bytes,
        dtypes=weights.dtypes,
        operators=tuple(counts.operators.values()),
    )


def _bytes(tensors: Sequence[FileTensor]) -> Bytes | None:
    return None if any(tensor.shape is None for tensor in tensors) else sum(tensor.nbytes for tensor in tensors)


NEVER_CALLED = ("ModuleList", "ModuleDict")
"""Modules that only hold others."""


def module_rows(
    graph: FileGraph[Any, Any],
    types: Mapping[str, str],
    weights: Mapping[str, Weights],
    counts: Mapping[str, OwnCounts],
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
    absent = dict.fromkeys(path for path in (*[path or ROOT for path in types], *weights) if path not in called)
    position = {path: index for index, path in enumerate([*called, *absent])}
    parents = {parent for path in called for parent in around(path)[:-1]}
    below: dict[str, list[Weights]] = {path: [] for path in position}
    for path, own in weights.items():
        for place in around(path):
            below.setdefault(place, []).append(own)
    borders = _borders(graph)
    rows = []
    for path in position:
        kind = types.get("" if path == ROOT else path, "Graph" if path == ROOT else "")
        border = borders.get(path, _Border())
        row = layer_row(
            path,
            kind,
            weights.get(path, Weights()),
            counts.get(path, OwnCounts()),
            border.inputs.values(),
            border.outputs.values(),
            is_leaf=path not in parents,
        )
        row.subtree = added(below[path])
        if path in called and path != ROOT:
            row.parent = position[around(path)[-2]]
        if path in absent or kind in NEVER_CALLED:
            row.call = -1
        rows.append(row)
    return tuple(rows)


def modules_of(paths: Iterable[str]) -> dict[str, None]:
    """Return every path once, in their order, the root first and each after the modules that it is in."""
    return dict.fromkeys([ROOT, *(place for path in dict.fromkeys(paths) for place in around(path))])


@lru_cache(maxsize=1 << 14)
def around(path: str) -> tuple[str, ...]:
    """Return the modules that a module is in, outermost first, and itself."""
    return (*above(path), path)


@dataclass(slots=True)
class _Border:
    """The inputs and outputs of a module by name: tensors that depend on the model's inputs, in the order of the operators."""

    inputs: dict[str, FileTensor] = field(default_factory=dict)
    outputs: dict[str, FileTensor] = field(default_factory=dict)


def _borders(graph: FileGraph[Any, Any]) -> dict[str, _Border]:
    maker = {tensor: around(operator.path) for operator in graph.operators for tensor in operator.outputs}
    readers: dict[FileTensor, set[str]] = {}
    for operator in graph.operators:
        for tensor in operator.inputs:
            if tensor is not None:
                readers.setdefault(tensor, set()).add(operator.path)
    borders: dict[str, _Border] = {}
    results = set(graph.outputs)
    for operator in graph.operators:
        places = around(operator.path)
        for tensor in operator.inputs:
            if tensor is not None and not tensor.is_constant:
                made_in = maker.get(tensor, ())
                for path in places:
                    if path not in made_in:
                        borders.setdefault(path, _Border()).inputs[tensor.name] = tensor
        for tensor in operator.outputs:
            if tensor.is_constant:
                continue
            read_in = [around(path) for path in readers.get(tensor, ())]
            for path in places:
                if tensor in results or any(path not in reader for reader in read_in):
                    borders.setdefault(path, _Border()).outputs[tensor.name] = tensor
    inputs, outputs = ({tensor.name: tensor for tensor in tensors} for tensors in (graph.inputs, graph.outputs))
    borders[ROOT] = _Border(inputs, outputs)
    return borders
