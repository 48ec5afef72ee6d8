"""Counts every operator that reaches the dispatcher: one TorchDispatchMode, nothing of torch is patched.

An operator is counted by a formula, known to do no arithmetic, opened into its parts, or listed as uncovered; there is no
silent zero. Under ``torch.inference_mode`` operators arrive whole (``linear``, ``lstm``, ``scaled_dot_product_attention``), with
gradients in the parts that autograd sees.

Over shapes, the model's parameters may stay where they are: what is computed from meta tensors is a meta tensor, a real tensor
that meets one is taken for its shape, and only constants of a few elements are computed for real, so that a forward may ask
for their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sweeprof.backends.torch.callsites import CallSites
from sweeprof.backends.torch.costs import COSTS, Rule
from sweeprof.backends.torch.costs.free import does_no_arithmetic
from sweeprof.backends.torch.costs.pointwise import ONE_EACH
from sweeprof.backends.torch.liveness import LiveBytes
from sweeprof.backends.torch.recurrent_shapes import RECURRENT
from sweeprof.backends.torch.shapes import SHORTCUTS, Shortcut
from sweeprof.profiling.formulas import Formula, Formulas, asked

CONSTANT_ELEMENTS = 4096
"""Tensors up to this size that depend on no input are computed for real."""

_META = torch.device("meta")
_SHORTCUTS: dict[str, Shortcut] = {**SHORTCUTS, **RECURRENT}


class NotOnShapes(Exception):
    """The forward needs values, which shapes do not have."""


@dataclass(frozen=True, slots=True)
class _Operator:
    """What is known of an overload, looked up once."""

    name: str
    cost: Rule | None
    shortcut: Shortcut | None
    is_composite: bool
    is_covered: bool
    allocates: bool
    mutates: bool
    takes_device: bool


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds each operator's cost to the call that is running."""

    def __init__(
        self,
        sites: CallSites,
        live: LiveBytes,
        formulas: Formulas,
        on_shapes: bool,
        protected: Iterable[torch.Tensor] = (),
    ) -> None:
        """Args:
        on_shapes: compute on meta; else run every operator as it comes.
        protected: real tensors that must not be written to.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.operator_calls = 0
        self._sites, self._live, self._formulas, self._on_shapes = sites, live, formulas, on_shapes
        self._protected = {tensor.untyped_storage()._cdata for tensor in protected if tensor.layout == torch.strided}
        self._operators: dict[Any, _Operator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here; being wrapped for it would import the compiler, two seconds in every process.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = self._looked_up(func)
        if operator.is_composite:
            with self:  # counted by its parts
                return func.decompose(*args, **kwargs)
        self.operator_calls += 1
        output = None
        if self._on_shapes:
            if operator.shortcut is not None:
                output = operator.shortcut(args, kwargs)
            if output is None:
                output = self._on_meta(func, operator, args, kwargs)
        else:
            output = func(*args, **kwargs)
        if operator.cost is not None:
            self._sites.count(operator.name, operator.cost(args, kwargs, output), args, output)
        elif not operator.is_covered:
            self._sites.miss(operator.name)
        if operator.allocates:
            self._live.saw(output)
        return output

    def _looked_up(self, func: Any) -> _Operator:
        written = self._formulas.of_operator(func._schema.name)
        known = _known(func)
        return known if written is None else replace(known, cost=_as_rule(written), is_composite=False, is_covered=True)

    def _on_meta(self, func: Any, operator: _Operator, args: Any, kwargs: Mapping[str, Any]) -> Any:
        real, meta = _devices(args, kwargs)
        if not real and not meta:
            return self._constant(func, operator, args, kwargs)
        if not real:
            return func(*_shapes_of(args), **_shapes_of(kwargs)) if operator.takes_device else func(*args, **kwargs)
        if not meta and (func.is_view or (_elements(args) <= CONSTANT_ELEMENTS and self._may_run(operator, args))):
            return func(*args, **kwargs)
        if operator.mutates:
            return self._written(func, args, kwargs)
        shapes, keywords = _shapes_of(args), _shapes_of(kwargs)
        output = None if operator.shortcut is None else operator.shortcut(shapes, keywords)
        return func(*shapes, **keywords) if output is None else output

    def _may_run(self, operator: _Operator, args: Any) -> bool:
        """Whether an operator on constants leaves the model's own tensors as they are."""
        return not operator.mutates or args[0].untyped_storage()._cdata not in self._protected

    def _constant(self, func: Any, operator: _Operator, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """A new tensor that depends on no other: for real only where it is small and asked for on a real device."""
        if not operator.takes_device:
            return func(*args, **kwargs)
        output = func(*args, **{**kwargs, "device": _META})
        wanted = kwargs.get("device")
        small = isinstance(output, torch.Tensor) and output.numel() <= CONSTANT_ELEMENTS
        return func(*args, **kwargs) if small and (wanted is None or wanted.type != "meta") else output

    def _written(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Write into a tensor in form only; the real one keeps its values.

        Raises:
            NotOnShapes: a constant that the forward made itself is overwritten by what has no values.
        """
        target = args[0]
        if not target.is_meta and target.untyped_storage()._cdata not in self._protected:
            raise NotOnShapes(f"{func} writes into a tensor whose values the forward may ask for")
        func(*_shapes_of(args), **_shapes_of(kwargs))
        return target


@cache
def _known(func: Any) -> _Operator:
    """What is known of an overload, whatever formulas a user has."""
    qualified = func._schema.name
    namespace, _, name = qualified.partition("::")
    overload = func._overloadname
    cost = COSTS.get(qualified)
    free = does_no_arithmetic(func)
    is_composite = cost is None and not free and func._can_decompose()
    if cost is None and not free and not is_composite and torch.Tag.pointwise in func.tags:
        cost = ONE_EACH
    return _Operator(
        name=(name if namespace == "aten" else qualified).removesuffix("_") or name,
        cost=cost,
        shortcut=_SHORTCUTS.get(qualified if overload == "default" else f"{qualified}.{overload}"),
        is_composite=is_composite,
        is_covered=cost is not None or free,
        allocates=not func.is_view and not func._schema.is_mutable,
        mutates=func._schema.is_mutable,
        takes_device=any(str(argument.type) in _DEVICES for argument in func._schema.arguments),
    )


_DEVICES = ("Device", "Optional[Device]")


def _as_rule(formula: Formula) -> Rule:
    def rule(args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> tuple[int, int, int]:
        cost = asked(formula, args, kwargs, output)
        macs = cost.macs or 0
        flops = 2 * macs if cost.flops is None else cost.flops
        return macs, flops, flops if cost.ops is None else cost.ops

    return rule


def _devices(args: Any, kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether there are real tensors, and whether there are meta tensors, among the arguments."""
    real = meta = False
    for argument in (*args, *kwargs.values()) if kwargs else args:
        for item in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(item, torch.Tensor):
                if item.is_meta:
                    meta = True
                else:
                    real = True
    return real, meta


def _elements(args: Any) -> int:
    return sum(
        item.numel()
        for argument in args
        for item in (argument if isinstance(argument, list | tuple) else (argument,))
        if isinstance(item, torch.Tensor)
    )


def _mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(item, change) for item in tree)
    if isinstance(tree, dict):
        return {key: _mapped(item, change) for key, item in tree.items()}
    return change(tree)


def _shapes_of(tree: Any) -> Any:
    return _mapped(tree, _shape_of)


def _shape_of(item: Any) -> Any:
    if isinstance(item, torch.Tensor) and not item.is_meta:
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=_META)
    return _META if isinstance(item, torch.device) else item
