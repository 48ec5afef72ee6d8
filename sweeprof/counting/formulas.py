"""Formulas that users add for module types and operators which sweeprof does not know, or counts otherwise than they want.

    @sweeprof.module_formula(MyAttention)
    def attention(module, inputs, outputs):
        return sweeprof.Cost(macs=..., flops=...)

    @sweeprof.operator_formula("mylib::fused_mlp")
    def fused_mlp(args, kwargs, output):
        return sweeprof.Cost(macs=...)

``sweeprof.profile(model, inputs, formulas={MyAttention: attention})`` holds for one model and leaves the defaults alone. A formula
of a type holds for its subclasses too. A module may instead declare its own: a method
``compute_module_complexity(inputs, outputs)`` that returns a mapping with ``flops`` and whatever else of :class:`Cost` it knows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any

from sweeprof.counting.selection import EVERYTHING, ModuleSelection

Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]
"""Arguments of an operator."""
OperatorCost = tuple[int, int, int]
"""MACs, FLOPs and textbook operations of one run of an operator."""
FormulaKey = type | str
HOOK = "compute_module_complexity"
"""Method by which a module declares its own costs."""


ParamSize = Mapping[str, float] | float
"""Bytes per element of the parameters named, or of all parameters of a module."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one call itself, without the modules that it calls. A field that is None keeps the counted value."""

    macs: int | None = None
    flops: int | None = None
    ops: int | None = None
    input_shapes: tuple[tuple[int, ...], ...] | None = None
    output_shapes: tuple[tuple[int, ...], ...] | None = None
    param_size: ParamSize = field(default_factory=dict)
    """Bytes per element of the parameters named, e.g. ``{"weight": 2 / 8}`` for a weight of two bits; one number: of all."""
    activation_size: float | None = None
    """Bytes per element of what the call returns."""
    is_declared: bool = field(default=False, repr=False, compare=False)
    """True if the module itself declares it, by ``compute_module_complexity``."""


Formula = Callable[..., Cost]


class Formulas:
    """Formulas by module type and by operator name; an inner set takes precedence over an outer one."""

    def __init__(
        self,
        formulas: Mapping[Any, Formula] | None = None,
        outer: Formulas | None = None,
        selection: ModuleSelection = EVERYTHING,
    ) -> None:
        """Args:
        formulas: by module type or operator.
        outer: those that hold where these have none.
        selection: the modules that are counted.
        """
        self._modules: dict[type, Formula] = {}
        self._operators: dict[str, Formula] = {}
        self._outer = outer
        self.selection = selection
        """The modules that are counted."""
        for key, formula in (formulas or {}).items():
            self.add(key, formula)

    def __repr__(self) -> str:
        names = [kind.__name__ for kind in self._modules] + list(self._operators)
        outer = "" if self._outer is None else f", else {self._outer!r}"
        return f"<Formulas of {', '.join(names) or 'nothing'}{outer}>"

    def add(self, key: FormulaKey, formula: Formula) -> None:
        """Register ``formula`` for a module type or for an operator, e.g. ``"mylib::op"``.

        Raises:
            TypeError: the key is neither.
        """
        if isinstance(key, type):
            self._modules[key] = formula
            return
        if not isinstance(key, str) or "::" not in key:  # type: ignore[redundant-expr]  # a caller may pass anything
            raise TypeError(f"a formula is for a module type or an operator 'namespace::name', not for {key!r}")
        self._operators[key] = formula

    def of_module(self, module: object) -> Formula | None:
        """The formula of the module's type, what the module declares itself, or the same of the nearest of its bases."""
        for kind in type(module).__mro__:
            formula = self._of_type(kind)
            if formula is not None:
                return formula
            if HOOK in vars(kind):
                return _declared
        return None

    def of_operator(self, name: str) -> Formula | None:
        """The formula of the operator with that qualified name."""
        formula = self._operators.get(name)
        return self._outer.of_operator(name) if formula is None and self._outer is not None else formula

    def _of_type(self, kind: type) -> Formula | None:
        formula = self._modules.get(kind)
        return self._outer._of_type(kind) if formula is None and self._outer is not None else formula


class FormulaFailed(Exception):
    """A formula raised ``error``: its author's mistake, and none of the forward that asked for it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def cost_by_formula(formula: Formula, *about: object) -> Cost:
    """Return a formula's cost.

    Raises:
        FormulaFailed: it raised something, or returned no cost.
    """
    try:
        cost: object = formula(*about)
    except Exception as error:  # a user's formula may raise anything
        raise FormulaFailed(error) from error
    if not isinstance(cost, Cost):
        raise FormulaFailed(TypeError(f"a formula returned {cost!r}, not a sweeprof.Cost"))
    return cost


def operator_cost(formula: Formula, *about: object) -> OperatorCost:
    """Return a formula's cost of an operator; two FLOPs for each multiply-accumulate, and as many operations, where it names none.

    Raises:
        FormulaFailed: it raised something, or returned no cost.
    """
    cost = cost_by_formula(formula, *about)
    macs = cost.macs or 0
    flops = 2 * macs if cost.flops is None else cost.flops
    return macs, flops, flops if cost.ops is None else cost.ops


def _declared(module: object, inputs: object, outputs: object) -> Cost:
    """Return the cost that ``compute_module_complexity`` declares.

    Raises:
        TypeError: that is no mapping, lacks ``flops``, has keys that :class:`Cost` does not, or a value that is not a number.
    """
    costs = getattr(module, HOOK)(inputs, outputs)
    known = [spec.name for spec in dataclasses.fields(Cost) if spec.name != "is_declared"]
    if not isinstance(costs, Mapping) or "flops" not in costs or not set(costs) <= set(known):
        raise TypeError(
            f"{type(module).__name__}.{HOOK} must return a mapping with 'flops' and any of {', '.join(known)}, not {costs!r}"
        )
    sizes = costs.get("param_size", {})
    counts = {name: costs[name] for name in ("macs", "flops", "ops") if costs.get(name) is not None}
    numbers = {**counts, "param_size": 0, **(sizes if isinstance(sizes, Mapping) else {"param_size": sizes})}
    for name, number in numbers.items():
        if not isinstance(number, Real) or number < 0:
            raise TypeError(
                f"{type(module).__name__}.{HOOK} gives {name} {number!r}, which is not a number of at least 0"
            )
    return Cost(**{**costs, **{name: round(count) for name, count in counts.items()}}, is_declared=True)


DEFAULTS = Formulas()
"""Formulas that hold for every model."""


def module_formula(kind: type) -> Callable[[Formula], Formula]:
    """Register the decorated ``(module, inputs, outputs) -> Cost`` for a module type and its subclasses, for every model."""
    return partial(_registered, kind)


def operator_formula(name: str) -> Callable[[Formula], Formula]:
    """Register the decorated ``(args, kwargs, output) -> Cost`` for the operator ``namespace::name``, for every model."""
    return partial(_registered, name)


def _registered(key: FormulaKey, formula: Formula) -> Formula:
    DEFAULTS.add(key, formula)
    return formula
