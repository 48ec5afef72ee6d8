"""Maps a backend's operators to the definitions of :mod:`sweeprof.counting.operators`.

A backend describes each operator of a graph, or each operation that its trace meets, by an :class:`OperatorCall`. A rule takes
one whose shapes are known, and returns its cost. The rules here hold for every backend whose operators have these operands and
attributes; what else an operator needs is in its backend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from sweeprof.counting import operators
from sweeprof.counting.formulas import Formulas, OperatorCost, operator_cost, whole
from sweeprof.counting.operators import COMPLEX, INTEGER, LINEAR_BY_AXES, NOTHING, REAL, Numbers, RecurrentCell
from sweeprof.results.layers import Bytes, OperatorCount


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
