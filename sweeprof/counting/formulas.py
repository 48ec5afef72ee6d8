"""The modules that are counted, the formulas that users add, and the sums that make a row of the layer table.

Users add formulas for module types and operators which sweeprof does not know, or which they want counted differently:

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
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from sweeprof.errors import Problem, UserError, nearest
from sweeprof.results.layer_times import OUTSIDE, ROOT, above
from sweeprof.results.layers import Bytes, LayerRow, Shapes, Weights

ModulePattern = str | type[Any]
"""A path or a glob of paths (``stage1.*``), the name of a class or a glob of it (``Conv2d``, ``*Norm*``), or a class."""
ModulePatterns = ModulePattern | Iterable[ModulePattern]


@dataclass(frozen=True, slots=True)
class ModuleSelection:
    """The modules that are counted and timed; a module that is excluded is so with everything inside it."""

    include: tuple[ModulePattern, ...] = ()
    """Only these modules and everything inside them; empty: all."""
    exclude: tuple[ModulePattern, ...] = ()
    """Not these modules, nor anything inside them."""

    @classmethod
    def of(cls, include: ModulePatterns, exclude: ModulePatterns) -> ModuleSelection:
        """Return the selection of one pattern or several.

        Raises:
            UserError: something is neither text nor a class.
        """
        chosen = []
        for key, given in (("include", include), ("exclude", exclude)):
            patterns: tuple[Any, ...] = (given,)
            if isinstance(given, Iterable) and not isinstance(given, str | type):
                patterns = tuple(given)
            for pattern in patterns:
                if not isinstance(pattern, str | type):
                    allowed = "must be a path, a glob, a class or its name, or several of these."
                    raise UserError([Problem(key, pattern, allowed)])
            chosen.append(patterns)
        return cls(*chosen)

    @property
    def is_everything(self) -> bool:
        """True if nothing is excluded."""
        return not self.include and not self.exclude

    def excluded(self, modules: Mapping[str, type[Any] | str]) -> frozenset[str]:
        """Return the paths that are excluded, that of code outside any module among them.

        Args:
            modules: the class, or its name, of every module by its path.

        Raises:
            UserError: a pattern matches no module, or no module is left.
        """
        if self.is_everything:
            return frozenset()
        problems = []
        matched: dict[str, set[str]] = {}
        for key, patterns in (("include", self.include), ("exclude", self.exclude)):
            matched[key] = set()
            for pattern in patterns:
                found = {path for path, kind in modules.items() if _matches(pattern, path, kind)}
                matched[key] |= found
                if not found:
                    closest = nearest(_name_of(pattern), sorted({*modules, *map(_name_of, modules.values())}))
                    problems.append(Problem(key, _name_of(pattern), "matches no module of the model.", closest))
        if problems:
            raise UserError(problems)
        excluded = set()
        for path in modules:
            around = {path, *above(path)}
            if not around.isdisjoint(matched["exclude"]) or (self.include and around.isdisjoint(matched["include"])):
                excluded.add(path)
        if len(excluded) == len(modules):
            key, patterns = "exclude", self.exclude
            if not patterns:
                key, patterns = "include", self.include
            raise UserError([Problem(key, ", ".join(map(_name_of, patterns)), "leaves no module to measure.")])
        if self.include:
            excluded.add(OUTSIDE)
        return frozenset(excluded)


EVERYTHING = ModuleSelection()
"""Nothing is excluded."""


def outermost(excluded: Iterable[str]) -> tuple[str, ...]:
    """Return the paths of excluded modules whose parents are not excluded."""
    paths = set(excluded) - {OUTSIDE}
    return tuple(sorted(path for path in paths if paths.isdisjoint(above(path)[-1:])))


def _matches(pattern: ModulePattern, path: str, kind: type[Any] | str) -> bool:
    if isinstance(pattern, str):
        if path == pattern or (path != ROOT and fnmatchcase(path, pattern)):
            return True
        return fnmatchcase(_name_of(kind), pattern)
    if isinstance(kind, type):
        return issubclass(kind, pattern)
    return kind == pattern.__name__


def _name_of(kind: type[Any] | str) -> str:
    return kind if isinstance(kind, str) else kind.__name__


# ---------------------------------------------------------------------------------------------------------------
# Formulas
# ---------------------------------------------------------------------------------------------------------------

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
        names = ", ".join([kind.__name__ for kind in self._modules] + list(self._operators)) or "nothing"
        if self._outer is None:
            return f"<Formulas of {names}>"
        return f"<Formulas of {names}, else {self._outer!r}>"

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
        """Return the formula of the module's type, what the module declares itself, or the same of the nearest of its bases."""
        for kind in type(module).__mro__:
            formula = self._of_type(kind)
            if formula is not None:
                return formula
            if HOOK in vars(kind):
                return _declared
        return None

    def of_operator(self, name: str) -> Formula | None:
        """Return the formula of the operator with that qualified name."""
        if name in self._operators or self._outer is None:
            return self._operators.get(name)
        return self._outer.of_operator(name)

    def _of_type(self, kind: type) -> Formula | None:
        if kind in self._modules or self._outer is None:
            return self._modules.get(kind)
        return self._outer._of_type(kind)


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
    ops = flops if cost.ops is None else cost.ops
    return macs, flops, ops


def _declared(module: object, inputs: object, outputs: object) -> Cost:
    """Return the cost that ``compute_module_complexity`` declares.

    Raises:
        TypeError: that is no mapping, lacks ``flops``, has keys that :class:`Cost` does not, or a value that is not a number.
    """
    costs = getattr(module, HOOK)(inputs, outputs)
    hook = f"{type(module).__name__}.{HOOK}"
    known = [spec.name for spec in dataclasses.fields(Cost) if spec.name != "is_declared"]
    if not isinstance(costs, Mapping) or "flops" not in costs or not set(costs) <= set(known):
        raise TypeError(f"{hook} must return a mapping with 'flops' and any of {', '.join(known)}, not {costs!r}")
    counts = {name: costs[name] for name in ("macs", "flops", "ops") if costs.get(name) is not None}
    sizes = costs.get("param_size", {})
    if not isinstance(sizes, Mapping):
        sizes = {"param_size": sizes}
    for name, number in {**counts, **sizes}.items():
        if not isinstance(number, Real) or number < 0:
            raise TypeError(f"{hook} gives {name} {number!r}, which is not a number of at least 0")
    rounded = {name: round(count) for name, count in counts.items()}
    return Cost(**{**costs, **rounded}, is_declared=True)


DEFAULTS = Formulas()
"""Formulas that hold for every model."""


def module_formula(kind: type) -> Callable[[Formula], Formula]:
    """Register the decorated ``(module, inputs, outputs) -> Cost`` for a module type and its subclasses, for every model."""
    return partial(_register, kind)


def operator_formula(name: str) -> Callable[[Formula], Formula]:
    """Register the decorated ``(args, kwargs, output) -> Cost`` for the operator ``namespace::name``, for every model."""
    return partial(_register, name)


def _register(key: FormulaKey, formula: Formula) -> Formula:
    DEFAULTS.add(key, formula)
    return formula


# ---------------------------------------------------------------------------------------------------------------
# The weights of a layer
# ---------------------------------------------------------------------------------------------------------------

NO_WEIGHTS = Weights()


class Variable(NamedTuple):
    """A parameter or a buffer."""

    key: Hashable
    """The same for what is one in memory."""
    elements: int
    itemsize: float
    """Bytes of an element; a fraction where a layer declares that it stores less."""
    dtype: str
    trainable: bool
    is_buffer: bool
    pruned: int | None = 0
    """Elements that a pruning mask sets to zero; None where the mask has no values."""


def summed(variables: Collection[Variable]) -> Weights:
    """Return the weights of variables, each of which counts."""
    parts = []
    for _, elements, itemsize, dtype, is_trainable, is_buffer, masked in variables:
        nbytes = elements * itemsize
        if is_buffer:
            parts.append(Weights(buffers=elements, buffers_bytes=nbytes, pruned=masked))
        else:
            trainable = elements * is_trainable
            parts.append(Weights(elements, trainable, nbytes, dtypes={dtype: elements}, pruned=masked))
    return added(parts)


def added(parts: Sequence[Weights]) -> Weights:
    """Return the weights of parts that share none."""
    parts = [part for part in parts if part is not NO_WEIGHTS]
    if not parts:
        return NO_WEIGHTS
    params = trainable = buffers = 0
    pruned: int | None = 0
    params_bytes: float = 0
    buffers_bytes: float = 0
    dtypes: dict[str, int] = {}
    for part in parts:
        params += part.params
        trainable += part.trainable
        params_bytes += part.params_bytes
        buffers += part.buffers
        buffers_bytes += part.buffers_bytes
        pruned = None if pruned is None or part.pruned is None else pruned + part.pruned
        for dtype, elements in part.dtypes.items():
            dtypes[dtype] = dtypes.get(dtype, 0) + elements
    return Weights(params, trainable, whole(params_bytes), buffers, whole(buffers_bytes), dtypes, pruned)


def whole(size: float) -> int | float:
    """Return the size as an integer unless it has half bytes; bytes per element are fractions, whose products are not exact."""
    if isinstance(size, int):
        return size
    if math.isclose(size, round(size), rel_tol=1e-9):
        return round(size)
    return size


def declared_size(sizes: ParamSize, name: str, usual: float, is_buffer: bool) -> float:
    """Return the bytes per element of a parameter or buffer: as its module declares, else the usual ones.

    A size of all parameters holds for no buffer.
    """
    if isinstance(sizes, Mapping):
        return sizes.get(name, usual)
    return usual if is_buffer else sizes


# ---------------------------------------------------------------------------------------------------------------
# The row of a layer table, made of what a backend knows of one call: its tensors, its weights and its costs
# ---------------------------------------------------------------------------------------------------------------


class TensorShapes(NamedTuple):
    """Shapes, data types and bytes of some tensors, without holding them."""

    shapes: Shapes = ()
    dtypes: tuple[str, ...] = ()
    nbytes: Bytes | None = 0
    """None where a shape is not known, or a data type has no size, as strings have none."""
    elements: int = 0


NO_TENSORS = TensorShapes()


def together(parts: Sequence[TensorShapes]) -> TensorShapes:
    """Return the description of several tensors, from one of each."""
    if len(parts) == 1:
        return parts[0]
    shapes: Shapes = ()
    dtypes: tuple[str, ...] = ()
    nbytes: Bytes | None = 0
    elements = 0
    for part in parts:
        shapes += part.shapes
        dtypes += part.dtypes
        nbytes = None if nbytes is None or part.nbytes is None else nbytes + part.nbytes
        elements += part.elements
    return TensorShapes(shapes, dtypes, nbytes, elements)


def layer_row(
    path: str,
    kind: str,
    weights: Weights,
    cost: OperatorCost,
    inputs: TensorShapes,
    outputs: TensorShapes,
    *,
    is_leaf: bool,
) -> LayerRow:
    """Return the row of the first call of a module.

    Args:
        path: of the module.
        kind: its type.
        weights: its own.
        cost: of its own operators.
        inputs: what it was given.
        outputs: what it returned.
        is_leaf: False if calls within it return its activations.
    """
    macs, flops, ops = cost
    return LayerRow(
        path=path,
        type=kind,
        depth=0 if path in (ROOT, OUTSIDE) else path.count(".") + 1,
        call=0,
        params=weights.params,
        trainable=weights.trainable,
        params_bytes=weights.params_bytes,
        buffers=weights.buffers,
        macs=macs,
        input_shapes=inputs.shapes,
        output_shapes=outputs.shapes,
        flops=flops,
        ops=ops,
        act_bytes=outputs.nbytes if is_leaf else 0,
        input_bytes=inputs.nbytes,
        output_bytes=outputs.nbytes,
        input_dtypes=inputs.dtypes,
        output_dtypes=outputs.dtypes,
        buffers_bytes=weights.buffers_bytes,
        dtypes=weights.dtypes,
    )
