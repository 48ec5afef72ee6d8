"""Rules by which a backend maps its operators to the definitions of :mod:`sweeprof.counting.operators`.

A rule takes a call of an operator, whose shapes are known, and returns its cost. The rules here read only its operands and its
result. They hold for every format whose operators have them in the usual order; a rule that needs attributes is in its backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Protocol, TypeVar

from sweeprof.counting import operators
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import COMPLEX, INTEGER, NOTHING, Numbers


class Sized(Protocol):
    """A tensor, as far as costs need it."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of its axes."""

    @property
    def elements(self) -> int:
        """Their product."""

    @property
    def numbers(self) -> Numbers:
        """The kind of numbers of its elements."""


class OperatorCall(Protocol):
    """One call of an operator."""

    def operand(self, position: int) -> Sized:
        """Return an operand that every call of the operator has."""

    @property
    def result(self) -> Sized:
        """The first result."""


Call = TypeVar("Call", bound=OperatorCall)
Rule = Callable[[Call], OperatorCost]


def elementwise(name: str) -> Callable[[OperatorCall], OperatorCost]:
    """Return the rule of an elementwise operator, by the name of its definition."""

    def rule(call: OperatorCall) -> OperatorCost:
        return operators.elementwise(name, call.result.elements, call.result.numbers)

    return rule


def elementwise_rules(table: str, prefix: str = "") -> dict[str, Callable[[OperatorCall], OperatorCost]]:
    """Return the rules of a table whose lines have the name of a definition, a colon, and a backend's names of it.

    Args:
        table: the lines.
        prefix: goes before the backend's names.
    """
    rules = {}
    for line in table.strip().split("\n"):
        definition, _, names = line.partition(": ")
        for name in names.split():
            rules[prefix + name] = elementwise(definition)
    return rules


def named(
    rule: Callable[[Call], OperatorCost], names: str, prefix: str = ""
) -> dict[str, Callable[[Call], OperatorCost]]:
    """Return the same rule for several operators."""
    return {prefix + name: rule for name in names.split()}


def reduction(name: str) -> Callable[[OperatorCall], OperatorCost]:
    """Return the rule of a reduction, by the name of its definition."""

    def rule(call: OperatorCall) -> OperatorCost:
        given, made = call.operand(0), call.result
        if made.numbers is INTEGER:
            return NOTHING
        parts = 2 if given.numbers is COMPLEX else 1
        return operators.reduction(name, given.elements * parts, made.elements * parts)

    return rule


def scan(call: OperatorCall) -> OperatorCost:
    """Return the cost of an operator that adds each element of its result once."""
    made = call.result
    if made.numbers is INTEGER:
        return NOTHING
    return operators.scan(made.elements * (2 if made.numbers is COMPLEX else 1))


def max_pool(call: OperatorCall) -> OperatorCost:
    """Return the cost of max pooling."""
    made = call.result
    return NOTHING if made.numbers is INTEGER else operators.max_pool(call.operand(0).elements, made.elements)


def log_softmax(call: OperatorCall) -> OperatorCost:
    """Return the cost of a log-softmax."""
    return operators.log_softmax(call.operand(0).elements)


def softmax(call: OperatorCall, axes: Iterable[int] = (-1,)) -> OperatorCost:
    """Return the cost of a softmax along some axes."""
    given = call.operand(0)
    length = prod(given.sizes[axis] for axis in axes) if given.sizes else 1
    return NOTHING if call.result.numbers is INTEGER else operators.softmax(given.elements, length)


def logsumexp(call: OperatorCall) -> OperatorCost:
    """Return the cost of a logarithm of a sum of exponentials."""
    return operators.logsumexp(call.operand(0).elements, call.result.elements)


def fourier(axes: int, *, is_real: bool) -> Callable[[OperatorCall], OperatorCost]:
    """Return the rule of a Fourier transform along the last axes."""

    def rule(call: OperatorCall) -> OperatorCost:
        given, made = call.operand(0), call.result
        larger = given if given.elements >= made.elements else made
        return operators.fourier(larger.elements, prod(larger.sizes[-axes:]), is_real=is_real)

    return rule
