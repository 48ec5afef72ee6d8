"""The graph of a model in a file, with the layer table and the peak of live bytes that follow from it, for all file formats.

A format's reader makes the graph, and a format's costs tell what each operator costs. Counts need nothing else of a format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from sweeprof.counting import operators
from sweeprof.counting.formulas import (
    Formulas,
    OperatorCost,
    TensorShapes,
    Variable,
    added,
    layer_row,
    operator_cost,
    summed,
    together,
    whole,
)
from sweeprof.counting.operators import COMPLEX, INTEGER, LINEAR_BY_AXES, NOTHING, REAL, Numbers, RecurrentCell
from sweeprof.results.layer_times import ROOT, above
from sweeprof.results.layers import Bytes, LayerRow, LayerTable, Liveness, OperatorCount, Weights


@lru_cache(maxsize=64)
def itemsize(dtype: str) -> float:
    """Return the bytes of an element by the name of its data type: ``int4``, ``float8_e4m3fn``; 0 for texts and handles."""
    if dtype == "bool":
        return 1
    found = re.search(r"\d+", dtype)
    if found is None:
        return 0
    size = int(found[0]) / 8
    return int(size) if size.is_integer() else size


@lru_cache(maxsize=64)
def numbers_of(dtype: str) -> Numbers:
    """Return the kind of numbers of a data type, by its name."""
    if "complex" in dtype:
        return COMPLEX
    return REAL if "float" in dtype else INTEGER


@dataclass(slots=True, eq=False)
class CallTensor:
    """An operand or a result."""

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
        return prod(self.sizes)

    @property
    def nbytes(self) -> Bytes:
        return whole(self.elements * self.itemsize)


Tensor = TypeVar("Tensor", bound=CallTensor)


@dataclass(slots=True, eq=False)
class OperatorCall(Generic[Tensor]):
    """One run of an operator."""

    op: str
    """The framework's name for it, e.g. ``Conv``."""
    path: str
    """Of its module."""
    inputs: tuple[Tensor | None, ...]
    """None for an optional one that is not given."""
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """The name that a file gives to this operator."""
    namespace: str = ""
    """Of the framework, or of who added the operator to it."""

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

    def text(self, attribute: str, default: str) -> str:
        """Return an attribute as a text, which some formats store as bytes."""
        value = self.attributes.get(attribute, default)
        return value.decode() if isinstance(value, bytes) else str(value)


Operator = TypeVar("Operator", bound=OperatorCall[Any])
Rule = Callable[[OperatorCall[Any]], OperatorCost]


def cost_by(
    operator: Operator,
    formulas: Formulas,
    standard: str,
    rules: Mapping[str, Callable[[Operator], OperatorCost | None]],
    free: Collection[str],
) -> OperatorCost | None:
    """Return the cost of an operator, or None if it is unknown. A user's formula receives inputs, attributes and outputs.

    Args:
        operator: of a graph.
        formulas: the user's, which come first.
        standard: the namespace of the rules.
        rules: by the name of the operator; a rule returns None where the cost depends on values.
        free: operators that do no arithmetic.
    """
    written = formulas.of_operator(operator.qualified)
    if written is not None:
        return operator_cost(written, operator.inputs, operator.attributes, operator.outputs)
    if operator.namespace != standard:
        return None
    if operator.op in free:
        return NOTHING
    rule = rules.get(operator.op)
    if rule is None or not operator.is_known:
        return None
    return rule(operator)


@dataclass(slots=True)
class CountedOperators:
    """The costs of the operators that a module itself ran, together and by name."""

    macs: int = 0
    flops: int = 0
    ops: int = 0
    operators: dict[str, OperatorCount] = field(default_factory=dict)

    @property
    def cost(self) -> OperatorCost:
        """The costs of all of them together."""
        return self.macs, self.flops, self.ops

    def add(self, name: str, cost: OperatorCost, inputs: int, outputs: int, times: int = 1) -> None:
        """Add an operator that ran so many times, with the elements of its first input and its first output."""
        count = self.operators.setdefault(name, OperatorCount(name, 0, 0, 0, 0, 0, 0))
        count.calls += times
        macs, flops, ops = (times * figure for figure in cost)
        self.macs += macs
        self.flops += flops
        self.ops += ops
        count.macs += macs
        count.flops += flops
        count.ops += ops
        count.inputs += times * inputs
        count.outputs += times * outputs

    def copied(self) -> CountedOperators:
        """Return the same sums, to which others can be added."""
        return replace(self, operators={name: copy(count) for name, count in self.operators.items()})


def elementwise(name: str, call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of an elementwise operator, by the name of its definition."""
    return operators.elementwise(name, call.result.elements, call.result.numbers)


def definitions(table: str) -> dict[str, str]:
    """Return definitions by a backend's names of them, from a table with a line for each: its name, a colon, and their names."""
    found = {}
    for line in table.strip().split("\n"):
        definition, _, names = line.partition(": ")
        found.update(dict.fromkeys(names.split(), definition))
    return found


def elementwise_rules(table: str) -> dict[str, Rule]:
    """Return the rules of a table of elementwise operators, as :func:`definitions` reads it."""
    return {name: partial(elementwise, definition) for name, definition in definitions(table).items()}


RuleOf = TypeVar("RuleOf")


def by_name(table: Mapping[str, RuleOf]) -> dict[str, RuleOf]:
    """Return the rules by the names of the operators, of a table whose keys are one name, or several with spaces between them."""
    found: dict[str, RuleOf] = {}
    for names, rule in table.items():
        found.update(dict.fromkeys(names.split(), rule))
    return found


# Products


def is_added(bias: CallTensor | None) -> bool:
    """Return True if there is a bias; torch's exporter puts constant zeros where a convolution has none."""
    return bias is not None and (bias.data is None or bool(bias.data.any()))


def matmul(call: OperatorCall[Any], *, transposed: str = "", inner: int = 0, bias: int | None = None) -> OperatorCost:
    """Return the cost of a matrix product.

    Args:
        call: of the operator.
        transposed: the attribute that is set if the axis that is summed over is the last but one.
        inner: position of the operand that has this axis.
        bias: position of the bias; None: there is none.
    """
    sizes, made = call.operand(inner).sizes, call.result
    length = sizes[-1]
    if call.attributes.get(transposed) and len(sizes) > 1:
        length = sizes[-2]
    return operators.matmul(made.elements, length, made.numbers, bias=bias is not None and is_added(call.input(bias)))


def convolution(
    call: OperatorCall[Any], *, first: int, end: int | None = None, weight: int = 1, bias: int = 2
) -> OperatorCost:
    """Return the cost of a convolution, the window of which is the sizes ``first:end`` of its weight.

    Args:
        call: of the operator.
        first: of the weight's axes.
        end: of these.
        weight: its position.
        bias: that of the bias.
    """
    window, made = prod(call.operand(weight).sizes[first:end]), call.result
    return operators.convolution(made.elements, window, made.numbers, bias=is_added(call.input(bias)))


def transposed_convolution(
    call: OperatorCall[Any], *, first: int, end: int | None = None, given: int = 0, bias: int | None = 2
) -> OperatorCost:
    """Return the cost of a transposed convolution, whose input is at ``given`` and whose weight is the second operand."""
    inputs, window = call.operand(given).elements, prod(call.operand(1).sizes[first:end])
    has_bias = bias is not None and is_added(call.input(bias))
    made = call.result
    return operators.transposed_convolution(inputs, window, made.elements, made.numbers, bias=has_bias)


def einsum(call: OperatorCall[Any], *, attribute: str = "equation") -> OperatorCost:
    """Return the cost of an einsum, by the attribute that has its subscripts."""
    shapes, made = [value.sizes for value in call.inputs if value is not None], call.result
    return operators.einsum(call.text(attribute, ""), shapes, made.elements, made.numbers)


@dataclass(frozen=True, slots=True)
class RecurrentKind:
    """A kind of recurrent network."""

    cell: Callable[..., RecurrentCell]
    """Returns its cell for the definitions of the nonlinearities."""
    activations: tuple[str, ...]
    """The definitions without the attribute that names others."""


RNN = RecurrentKind(operators.rnn_cell, ("tanh",))
GRU = RecurrentKind(operators.gru_cell, ("sigmoid", "tanh"))
LSTM = RecurrentKind(operators.lstm_cell, ("sigmoid", "tanh", "tanh"))


def recurrent(
    kind: RecurrentKind, call: OperatorCall[Any], *, weight: int, bias: int | None = None
) -> OperatorCost | None:
    """Return the cost of a recurrent network of ``X (…, I)``, and ``W (directions, gates · H, I)`` of one direction or two.

    None if a nonlinearity is unknown. The attribute ``activations`` has those of each direction, or of all.

    Args:
        kind: which.
        call: of the operator.
        weight: the position of ``W``; those of the products with the state come after it.
        bias: the position of the biases of both products, if there are any; None: both have one together.
    """
    given, sizes = call.operand(0), call.operand(weight).sizes
    named = [activation(name) for name in call.attributes.get("activations", ())] or [*kind.activations]
    biases = 1
    if bias is not None:
        biases = 2 * is_added(call.input(bias))
    peepholes = call.input(7) is not None
    steps, count = given.elements // given.sizes[-1], len(kind.activations)
    total = NOTHING
    directions = sizes[0] if len(sizes) == 3 else 1
    for direction in range(directions):
        own = named[direction * count : (direction + 1) * count] or named[:count]
        if None in own:
            return None
        cell = kind.cell(*own)
        hidden = sizes[-2] // cell.gates
        cost = operators.recurrent(cell, steps, sizes[-1], hidden, hidden, biases, peepholes=peepholes)
        total = operators.added(total, cost)
    return total


# Elementwise operators with attributes

ACTIVATIONS = by_name(
    {
        "affine": "affine",
        "clip": "arithmetic",
        "elu": "elu",
        "hardsigmoid": "hardsigmoid",
        "hardswish": "hardswish",
        "thresholdedrelu": "hardtanh",
        "leakyrelu": "leaky_relu",
        "relu": "relu",
        "scaledtanh": "scaled_tanh",
        "sigmoid": "sigmoid",
        "silu swish": "silu",
        "softplus": "softplus",
        "softsign": "softsign",
        "tanh": "tanh",
    }
)
"""Definitions of the nonlinearities that attributes name, by their names without capitals and underscores."""


def activation(name: str | bytes) -> str | None:
    """Return the definition of a nonlinearity by its name, such as ``HardSigmoid`` or ``hard_sigmoid``; None if it is unknown."""
    if isinstance(name, bytes):
        name = name.decode()
    return ACTIVATIONS.get(name.lower().replace("_", ""))


def gelu(attribute: str, call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of a GELU, by the attribute that tells whether it is approximated by tanh."""
    if call.text(attribute, "").lower() in ("tanh", "true"):
        return elementwise("gelu_tanh", call)
    return elementwise("gelu", call)


def sum_of_tensors(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of a sum, a mean, a maximum or a minimum of any number of tensors."""
    made = call.result
    return operators.sum_of_tensors(len(call.inputs), made.elements, made.numbers, mean=call.op == "Mean")


def interpolation(mode: str, axes: int, result: CallTensor) -> OperatorCost:
    """Return the cost of an interpolation along so many axes."""
    if mode == "nearest":
        kind = mode
    elif "cubic" in mode:
        kind = "bicubic"
    else:
        kind = LINEAR_BY_AXES[min(axes, 3) - 1]
    return operators.elementwise(kind, result.elements, result.numbers)


def resize(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of a resize, which interpolates along the axes that change."""
    changed = sum(a != b for a, b in zip(call.operand(0).sizes, call.result.sizes, strict=True))
    if not changed:
        return NOTHING
    return interpolation(call.text("mode", "nearest"), changed, call.result)


# Norms and softmax


def batch_norm(call: OperatorCall[Any], *, training: str = "") -> OperatorCost:
    """Return the cost of a batch norm of ``(X, scale, …)``, by the attribute that is set if it computes the statistics."""
    is_training = bool(call.attributes.get(training))
    return operators.batch_norm(call.operand(0).elements, call.operand(1).elements, affine=True, training=is_training)


def group_norm(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of a group norm."""
    given = call.operand(0)
    rows = given.sizes[0] * int(call.attributes["num_groups"])
    return operators.normalisation(given.elements, rows, weight=True, bias=True)


def softmax(call: OperatorCall[Any], *, axis: int = -1) -> OperatorCost:
    """Return the cost of a softmax along the attribute ``axis``, an axis or several; without it along this one."""
    given = call.operand(0)
    if call.result.numbers is INTEGER:
        return NOTHING
    return operators.softmax(given.elements, length_along(given.sizes, call.attributes.get("axis", axis)))


def length_along(sizes: tuple[int, ...], axes: int | Iterable[int] | None) -> int:
    """Return the number of elements along one axis, several, or all."""
    if axes is None or not sizes:
        return prod(sizes)
    if isinstance(axes, int):
        return sizes[axes]
    return prod(sizes[axis] for axis in axes)


def log_softmax(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of a log-softmax."""
    return operators.log_softmax(call.operand(0).elements)


def logsumexp(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of a logarithm of a sum of exponentials."""
    return operators.logsumexp(call.operand(0).elements, call.result.elements)


# Pooling, reductions, scans and transforms


def average_pool(call: OperatorCall[Any], *, window: Sequence[str]) -> OperatorCost:
    """Return the cost of average pooling, by the attributes that have the window, or one size of it each."""
    sizes = prod(int(np.prod(call.attributes[name])) for name in window)
    return operators.average_pool(call.operand(0).elements, call.result.elements, sizes)


def adaptive_average_pool(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of adaptive average pooling; channels are first unless ``data_format`` tells otherwise."""
    given, made = call.operand(0).sizes, call.result.sizes
    if call.attributes.get("data_format", "channels_first") == "channels_first":
        return operators.adaptive_average_pool(given[2:], made[2:], given[0] * given[1])
    return operators.adaptive_average_pool(given[1:-1], made[1:-1], given[0] * given[-1])


def max_pool(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of max pooling."""
    made = call.result
    if made.numbers is INTEGER:
        return NOTHING
    return operators.max_pool(call.operand(0).elements, made.elements)


def reduction(name: str, call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of a reduction, by the name of its definition."""
    given, made = call.operand(0), call.result
    if made.numbers is INTEGER:
        return NOTHING
    parts = 2 if given.numbers is COMPLEX else 1
    return operators.reduction(name, given.elements * parts, made.elements * parts)


def scan(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of an operator that adds each element of its result once."""
    made = call.result
    return operators.scan(made.elements * int(made.numbers))


def scatter(call: OperatorCall[Any]) -> OperatorCost:
    """Return the cost of a scatter, which only moves unless it is to reduce."""
    updates = call.operand(2)
    if updates.numbers is INTEGER or call.text("reduction", "none") == "none":
        return NOTHING
    return operators.scan(updates.elements)


def fourier(call: OperatorCall[Any], *, axes: int, is_real: bool) -> OperatorCost:
    """Return the cost of a Fourier transform along the last axes."""
    given, made = call.operand(0), call.result
    larger = max(given, made, key=lambda tensor: tensor.elements)
    return operators.fourier(larger.elements, prod(larger.sizes[-axes:]), is_real=is_real)


# The graph of a model in a file, with the layer table and the peak of live bytes that follow from it, for all file formats.


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
