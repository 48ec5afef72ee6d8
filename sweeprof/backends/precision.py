"""Precisions: one vocabulary for all backends, and which of them a backend supports by which methods. Imports no framework.

A backend declares two literals, which planning reads from its source:

- ``precision_methods``: the methods by precision; the first is the default.
- ``precision_gaps``: by precision why it is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from sweeprof.errors import Unsupported, UserError, choice_problem

Precision = Literal["fp32", "fp16", "bf16", "int8"]
PrecisionMethod = Literal["convert", "autocast", "dynamic", "static", "torchao"]
"""``convert``: weights, computation and inputs; ``autocast``: the computation alone, weights stay in 32 bits; ``dynamic``:
weights of 8 bits, ranges of activations from each batch; ``static``: ranges from samples of the training data; ``torchao``:
the package that makes a model of torch dynamic."""

Methods = Mapping[str, tuple[str, ...]]


def unsupported_reason(
    name: str, methods: Methods, gaps: Mapping[str, str], precision: object, method: object
) -> str | None:
    """Return why a backend does not run in a precision by a method; None if it does.

    Args:
        name: of the backend, for the reason.
        methods: by the precisions that it supports.
        gaps: reasons by the precisions that it does not support.
        precision: one of :data:`Precision`; None: as the model is.
        method: one of :data:`PrecisionMethod`; None: the default.
    """
    if precision is not None and precision not in methods:
        return f"{name} does not support precision={precision}: {gaps.get(str(precision), 'it is not implemented')}"
    if precision == "fp32":  # it has only one method, which others of a sweep need not be
        return None
    allowed = methods[str(precision)] if precision is not None else ()
    if method is None or method in allowed:
        return None
    known = f"only {', '.join(allowed)}" if allowed else "a method needs a precision"
    return f"{name} does not support precision_method={method} for precision={spelled(precision)} ({known})"


def spelled(precision: object) -> str:
    """Return a precision as a config has it."""
    return "null" if precision is None else str(precision)


def checked_method(backend: type, precision: str | None, method: str | None) -> str | None:
    """Return the method by which ``backend`` runs in a precision; None with no precision.

    Raises:
        UserError: there is no such precision or method.
        Unsupported: the backend does not support it.
    """
    declared: Any = backend
    problems = []
    if precision is not None and precision not in get_args(Precision):
        problems.append(choice_problem("backend.precision", precision, "precision", get_args(Precision)))
    if method is not None and method not in get_args(PrecisionMethod):
        problems.append(
            choice_problem("backend.precision_method", method, "method of a precision", get_args(PrecisionMethod))
        )
    if problems:
        raise UserError(problems)
    name = backend.__name__.removesuffix("Backend").lower()
    reason = unsupported_reason(name, declared.precision_methods, declared.precision_gaps, precision, method)
    if reason is not None:
        raise Unsupported(reason)
    if precision is None or (method is not None and precision != "fp32"):
        return method
    default: str = declared.precision_methods[precision][0]
    return default
