"""Counts every operator that reaches the dispatcher: one TorchDispatchMode, nothing of torch is patched.

An operator is counted by a formula, known to do no arithmetic, opened into its parts, or listed as uncovered; there is no
silent zero. What works in place or writes into ``out`` counts like the operator that returns a new tensor. Under
``torch.inference_mode`` operators arrive whole (``linear``, ``lstm``, ``scaled_dot_product_attention``), with gradients in the
parts that autograd sees.

Over shapes, the model's parameters may stay where they are: what is computed from meta tensors is a meta tensor, and a real
tensor that meets one is taken for its shape. Only constants, the integers and truth values among the inputs, and what follows from
these are computed for real, so that a forward may ask for their values, or remember constants for the next call (an index of
positions, a mask). They stay real where a forward moves them to the device of a meta tensor. One that the forward overwrites with
what has no values has none from then on.

Operators that take functions: control flow, attention with a score function, and what else torch calls higher-order. Their
functions are run while they are counted, so that the body of a loop counts as often as it runs, and of ``torch.cond`` the
branch that is taken. Where neither is known, because a value decides and there are only shapes, the operator cannot be counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from threading import RLock
from typing import Any

import torch

from sweeprof.backends.torch.callsites import CallSites, LiveBytes, tensors_in
from sweeprof.backends.torch.costs import COSTS, HIGHER_ORDER_COSTS, ONE_EACH, TorchRule, does_no_arithmetic
from sweeprof.backends.torch.graph import GraphRecorder
from sweeprof.backends.torch.private import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    RecordFunction,
    current_dispatch_modes,
    disable_current_modes,
    rule_in_mode,
)
from sweeprof.backends.torch.shapes import RECURRENT, SHORTCUTS, UNKNOWN_TO_TORCH, Shortcut
from sweeprof.backends.torch.threads import FOLLOWED, DispatchMode, InThread, tasks_wrapped
from sweeprof.counting.formulas import Args, Formulas, Kwargs, OperatorCost, operator_cost
from sweeprof.counting.operators import added
from sweeprof.errors import Unsupported


def _is_unknown(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def _same(carried: Iterable[object]) -> Args:
    """The results of a loop, which are like what it began with."""
    return tuple(torch.empty_like(value) if isinstance(value, torch.Tensor) else value for value in carried)


CONSTANT_ELEMENTS = 2**22
"""Tensors up to this size that depend on no weight and no floating-point input are computed for real."""
MOST_CONSTANT_ELEMENTS = 2**26
"""The same for a forward that asked for the values of a larger one, such as a mask of every token by every other."""
MASK_ELEMENTS = 2**16
"""The same for floating-point numbers that a forward makes on meta: a mask is small, and what is filled later may be large."""
WEIGHT_ELEMENTS = 4096
"""What depends on weights alone is computed for real from up to so many elements."""

_META = torch.device("meta")
_NUMBER: Any = torch.ops.aten.scalar_tensor.default
"""Makes a tensor of one number."""
_SHORTCUTS: dict[str, Shortcut] = {**SHORTCUTS, **RECURRENT, **UNKNOWN_TO_TORCH}
_NO_FUNCTIONS = (type, OpOverload, OpOverloadPacket, HigherOrderOperator)
"""What can be called, and is none of the functions that an operator takes."""


class NotOnShapes(Exception):
    """The forward needs values, which shapes do not have."""


@dataclass(frozen=True, slots=True)
class _Operator:
    """Properties of an operator overload, looked up once."""

    name: str
    cost: TorchRule | None
    shortcut: Shortcut | None
    is_composite: bool
    is_covered: bool
    allocates: bool
    """True if its results have memory of their own."""
    may_copy: bool
    """True if its result is a view where that is possible, and else a copy."""
    written: tuple[tuple[int, str], ...]
    """Position and name of the arguments that it writes to."""
    takes_device: bool


class CountingMode(DispatchMode):
    """Adds each operator's cost to the call that is running."""

    def __init__(  # noqa: PLR0913  # one argument for each way to treat what has no values
        self,
        sites: CallSites,
        live: LiveBytes,
        formulas: Formulas,
        on_shapes: bool,
        protected: Iterable[torch.Tensor] = (),
        *,
        constants: int = CONSTANT_ELEMENTS,
        skips_branches: bool = False,
        most_filled: int = MASK_ELEMENTS,
    ) -> None:
        """Args:
        on_shapes: compute on meta; else run every operator as it comes.
        protected: real tensors that must not be written to.
        constants: compute tensors that depend on no floating-point input for real up to so many elements, so that the forward may
            ask for their values; 0: none.
        skips_branches: list control flow that depends on values as uncovered; else it raises :class:`NotOnShapes`.
        most_filled: the same number for floating-point tensors that the forward makes on meta, such as masks.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.operator_calls = 0
        self.higher_order: set[str] = set()
        """Operators that take functions, which ran."""
        self._sites, self._live, self._formulas, self._on_shapes = sites, live, formulas, on_shapes
        self._most, self._skips_branches, self._most_filled = constants, skips_branches, most_filled
        self.recorder: GraphRecorder | None = None
        """Notes every operator that is counted."""
        self._is_silent = False
        """True if operators run without being counted."""
        protected = [tensor for tensor in protected if tensor.layout == torch.strided]
        self._protected = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in protected}
        self._host = protected[0].device if protected else torch.device("cpu")
        """Where constants are that the forward makes on meta."""
        self._overwritten: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        """Memory of constants that have no values any more, until nothing refers to it."""
        self._operators: dict[Any, _Operator] = {}
        self._lock = RLock()
        """Of the thread whose operator is counted."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if types and any(kind.__name__ == "NestedTensor" for kind in types):
            return NotImplemented  # it runs operators on the values of all its parts, which are counted
        with self._lock:
            return self._dispatched(func, args, kwargs or {})

    def _in_turn(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        with self._lock:
            return self._dispatched(func, args, kwargs)

    @contextmanager
    def following_threads(self, gradients: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
        """Within it, operators that run in other threads are counted too, for the module call that had them run.

        These are threads that are started, functions that pools of threads get, and calls of modules in any other thread.

        Args:
            gradients: the gradient mode, which each thread has of its own.
        """
        sites = self._sites

        def followed(function: Callable[..., Any]) -> Callable[..., Any]:
            call = sites.thread.call

            def run(*args: Any, **kwargs: Any) -> Any:
                if sites.thread.is_followed or sites.in_thread is None:
                    with sites.running(call):
                        return function(*args, **kwargs)
                sites.thread.is_followed = True
                try:
                    with RecordFunction(FOLLOWED), gradients(), InThread(self._in_turn), sites.running(call):
                        return function(*args, **kwargs)
                finally:
                    sites.thread.is_followed = False

            return run

        sites.in_thread, sites.thread.is_followed = followed, True
        try:
            with tasks_wrapped(followed):
                yield
        finally:
            sites.in_thread = None

    def _dispatched(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        operator = self._operators.get(func)
        if operator is None:
            if isinstance(func, HigherOrderOperator):
                return self._higher_order(func, args, kwargs)
            operator = self._operators[func] = self._looked_up(func)
        if operator.is_composite:
            with self:  # counted by its parts
                return func.decompose(*args, **kwargs)
        output = None
        if self._on_shapes:
            if operator.shortcut is not None:
                output = operator.shortcut(args, kwargs)
            if output is None:
                output = self._on_meta(func, operator, args, kwargs)
        else:
            output = func(*args, **kwargs)
        is_excluded = self._sites.is_excluded
        cost = None if self._is_silent or is_excluded else self._counted(operator, args, kwargs, output)
        if operator.allocates or (operator.may_copy and _is_copy(args, output)):
            self._live.saw(output)
        if self.recorder is not None and not self._is_silent:
            is_free = cost is None and operator.is_covered and not is_excluded
            written = _targets(operator, args, kwargs)
            self.recorder.ran(operator.name, (0, 0, 0) if is_free else cost, (args, kwargs), output, written)
        return output

    def _counted(self, operator: _Operator, args: Args, kwargs: Kwargs, output: object) -> OperatorCost | None:
        """Count an operator that ran, and return its cost; None if it has no formula."""
        self.operator_calls += 1
        if operator.cost is None:
            if not operator.is_covered:
                self._sites.miss(operator.name)
            return None
        if self._on_shapes:
            cost = operator.cost(args, kwargs, output)
        else:
            cost = added(*(operator.cost(*parts) for parts in _without_nesting(args, kwargs, output)))
        self._sites.count(operator.name, cost, args, output)
        return cost

    def _higher_order(self, func: HigherOrderOperator, args: Args, kwargs: Kwargs) -> Any:
        """Run an operator that takes functions, in which operators are counted as they come.

        Raises:
            NotOnShapes: what it does depends on values.
        """
        name = f"{func.namespace}::{func.name()}"  # type: ignore[no-untyped-call]
        self.higher_order.add(name)
        written = self._formulas.of_operator(name)
        cost = HIGHER_ORDER_COSTS.get(name) if written is None else partial(operator_cost, written)
        ran = False

        def counting(argument: Any) -> Any:
            if not callable(argument) or isinstance(argument, _NO_FUNCTIONS):
                return argument

            @wraps(argument)
            def counted(*args: object, **kwargs: object) -> object:
                nonlocal ran
                ran = True
                with self:
                    return argument(*args, **kwargs)

            return counted

        args, kwargs = _mapped(args, counting), _mapped(kwargs, counting)
        with self._silently() if written is not None else nullcontext():
            output = self._skipped(name, args) if self._on_shapes else None
            if output is None:
                output = func(*args, **kwargs)
            elif written is None:
                ran = False
        is_excluded = self._sites.is_excluded
        figures = None if cost is None or is_excluded else cost(args, kwargs, output)
        if figures is not None:
            self.operator_calls += 1
            self._sites.count(name, figures, args, output)
        elif not ran and not is_excluded:
            self.operator_calls += 1
            self._sites.miss(name)
        self._live.saw(output)
        if self.recorder is not None and (cost is not None or not ran):
            self.recorder.ran(name, figures, (args, kwargs), output, ())
        return output

    def _skipped(self, name: str, args: Args) -> Any:
        """Return the result of control flow that depends on values, without counting it; None for any other operator."""
        with self._silently():
            if name == "higher_order::cond" and _is_unknown(args[0]):
                _, branch, _, operands = args
                skip = partial(branch, *operands)
            elif name == "higher_order::while_loop" and _is_unknown(args[0](*args[2], *args[3])):
                skip = partial(_same, args[2])
            else:
                return None
            if not self._skips_branches:
                raise NotOnShapes(f"what {name} runs depends on values")
            return skip()

    @contextmanager
    def _silently(self) -> Iterator[None]:
        was_silent, self._is_silent = self._is_silent, True
        try:
            yield
        finally:
            self._is_silent = was_silent

    def _looked_up(self, func: OpOverload) -> _Operator:
        known = known_operator(func)
        written = self._formulas.of_operator(func._schema.name)
        if written is None:
            return known
        cost = partial(operator_cost, written)
        return replace(known, cost=cost, is_composite=False, is_covered=True)

    def _on_meta(self, func: OpOverload, operator: _Operator, args: Args, kwargs: Kwargs) -> Any:
        targets = _targets(operator, args, kwargs)
        if self._overwritten:
            if func.is_view and self._is_overwritten(args[0]):
                return self._viewed(func, operator, args, kwargs)
            args, kwargs = _mapped(args, self._without_values), _mapped(kwargs, self._without_values)
        real, meta = _devices(args, kwargs)
        if targets and (real or self._overwritten):
            is_for_real = not meta and not self._is_of_model(targets)
            return func(*args, **kwargs) if is_for_real else self._written(func, targets, args, kwargs)
        if not real and not meta:
            return self._constant(func, operator, args, kwargs)
        if not real:
            return func(*_shapes_of(args), **_shapes_of(kwargs)) if operator.takes_device else func(*args, **kwargs)
        if not meta and operator.takes_device and self._most:
            args, kwargs = _mapped(args, self._off_meta), _mapped(kwargs, self._off_meta)
        if not meta and (func.is_view or _elements(args) <= WEIGHT_ELEMENTS):
            return func(*args, **kwargs)
        shapes, keywords = _shapes_of(args), _shapes_of(kwargs)
        output = None if operator.shortcut is None else operator.shortcut(shapes, keywords)
        if output is None:
            try:
                output = func(*shapes, **keywords)
            except RuntimeError as error:
                output = self._from_values(func, args, kwargs, error)
        is_constant = not meta and _elements((output,)) <= self._most and not self._is_of_model(args)
        return func(*args, **kwargs) if is_constant else output

    def _from_values(self, func: OpOverload, args: Args, kwargs: Kwargs, error: RuntimeError) -> Any:
        """The result of an operator whose shape depends on the values of real arguments, such as a mask that selects rows.

        Raises:
            RuntimeError: ``error``, which it raised on meta, for any other operator.
        """
        try:
            if func is torch.ops.aten.index.Tensor:
                return func(_shape_of(args[0]), _shapes_of(_positions(args[1])))
            if func is torch.ops.aten.masked_select.default:
                return func(torch.empty(1).expand(args[0].shape), args[1]).to(_META, args[0].dtype)
            if func._can_decompose():
                with self, self._silently():
                    return func.decompose(*args, **kwargs)
            return func(*args, **kwargs)  # lengths on the host, beside data on meta
        except RuntimeError:
            raise error from None

    def _is_of_model(self, args: Sequence[object]) -> bool:
        """True if a tensor of the model is among the real arguments."""
        storages = {tensor.untyped_storage()._cdata for tensor in tensors_in(args) if tensor.layout == torch.strided}
        return not storages.isdisjoint(self._protected)

    def _constant(self, func: OpOverload, operator: _Operator, args: Args, kwargs: Kwargs) -> Any:
        """A new tensor that depends on no other: for real where it is small, also if it is asked for on meta."""
        if not operator.takes_device:
            return func(*args, **kwargs)
        if func is _NUMBER and self._most:
            return func(*args, **_mapped(kwargs, self._off_meta))
        output = func(*args, **{**kwargs, "device": _META})
        if not self._most or not isinstance(output, torch.Tensor):
            return output
        wanted = kwargs.get("device")
        is_filled_later = wanted is not None and wanted.type == "meta" and output.is_floating_point()
        most = self._most_filled if is_filled_later else self._most
        return func(*args, **_mapped(kwargs, self._off_meta)) if output.numel() <= most else output

    def _off_meta(self, item: object) -> object:
        """Return the device of constants instead of the meta device; any other argument as it is."""
        return self._host if isinstance(item, torch.device) and item == _META else item

    def _written(self, func: OpOverload, targets: list[torch.Tensor], args: Args, kwargs: Kwargs) -> Any:
        """Write into tensors in form only: those of the model keep their values, constants have none any more."""
        for target in targets:
            if not target.is_meta and target.untyped_storage()._cdata not in self._protected:
                storage = target.untyped_storage()
                # It is called with the reference, which `pop` takes for its default.
                forget = partial(self._overwritten.pop, storage._cdata)
                self._overwritten[storage._cdata] = weakref.ref(storage, forget)
        output = func(*_shapes_of(args), **_shapes_of(kwargs))
        returns = func._schema.returns
        if not returns or any(given.alias_info is None for given in returns):
            return output
        return targets[0] if len(returns) == 1 else tuple(targets)

    def _without_values(self, item: object) -> object:
        """The shape of a constant that was overwritten; anything else as it is."""
        return _shape_of(item) if self._is_overwritten(item) else item

    def _is_overwritten(self, item: object) -> bool:
        if not isinstance(item, torch.Tensor) or item.is_meta or item.layout != torch.strided:
            return False
        return item.untyped_storage()._cdata in self._overwritten

    def _viewed(self, func: OpOverload, operator: _Operator, args: Args, kwargs: Kwargs) -> Any:
        """A view of a constant that was overwritten, which has no values either.

        Raises:
            NotOnShapes: the forward reads them: NumPy and lists are made of a tensor that is resolved.
        """
        if operator.name in ("resolve_conj", "resolve_neg"):
            raise NotOnShapes("the forward asks for values that it computed from shapes")
        return _mapped(func(*args, **kwargs), lambda made: made if self._is_overwritten(made) else _shape_of(made))


@contextmanager
def apart_from_others() -> Iterator[None]:
    """Within it, a count that is running sees no operators: a forward that is counted may count another model."""
    is_within_another = any(isinstance(mode, CountingMode) for mode in current_dispatch_modes())
    with disable_current_modes() if is_within_another else nullcontext():
        yield


def _is_copy(args: Args, output: object) -> bool:
    """True if a result is one tensor that shares no memory with the first argument."""
    given = args[0]
    if not isinstance(output, torch.Tensor) or not isinstance(given, torch.Tensor):
        return False
    if output.layout is not torch.strided or given.layout is not torch.strided:
        return False
    return output is not given and output.untyped_storage()._cdata != given.untyped_storage()._cdata


@cache
def known_operator(func: OpOverload) -> _Operator:
    """Return the properties of an overload, independent of user formulas."""
    qualified = func._schema.name
    namespace, _, name = qualified.partition("::")
    names = (qualified, f"{qualified}_", qualified.removesuffix("_"))
    cost = next((COSTS[known] for known in names if known in COSTS), None)
    free = does_no_arithmetic(func)
    is_composite = cost is None and not free and func._can_decompose()
    if cost is None and not free and not is_composite and _is_pointwise(namespace, name):
        cost = ONE_EACH
    return _Operator(
        name=(name if namespace == "aten" else qualified).removesuffix("_") or name,
        cost=cost,
        shortcut=_SHORTCUTS.get(func.name()),  # type: ignore[no-untyped-call]
        is_composite=is_composite,
        is_covered=cost is not None or free,
        allocates=not func.is_view and not func._schema.is_mutable,
        may_copy=func.is_view and func._can_decompose(),
        written=tuple(
            (index, argument.name)
            for index, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
        takes_device=any(str(argument.type) in _DEVICES for argument in func._schema.arguments),
    )


_DEVICES = ("Device", "Optional[Device]")


def _is_pointwise(namespace: str, name: str) -> bool:
    """True if torch tags an overload of an operator as elementwise, or one of the operator that it is the in-place variant of."""
    packets = [getattr(getattr(torch.ops, namespace), known, None) for known in (name, name.removesuffix("_"))]
    overloads = [getattr(found, overload) for found in packets if found is not None for overload in found.overloads()]
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


def _targets(operator: _Operator, args: Args, kwargs: Kwargs) -> list[torch.Tensor]:
    """The tensors that an operator writes to."""
    found: list[torch.Tensor] = []
    for position, name in operator.written:
        given = args[position] if position < len(args) else kwargs.get(name)
        found += [part for part in (given if isinstance(given, list | tuple) else (given,)) if part is not None]
    return found


def _positions(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Indices with real masks replaced by the positions that they select."""
    found: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.is_meta or index.dtype not in (torch.bool, torch.uint8):
            found.append(index)
        else:
            found += index.nonzero(as_tuple=True)
    return found


def _devices(args: Args, kwargs: Kwargs) -> tuple[bool, bool]:
    """Return whether the arguments contain real tensors, and whether they contain meta tensors."""
    real = meta = False
    for argument in (*args, *kwargs.values()) if kwargs else args:
        for item in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(item, torch.Tensor):
                if item.is_meta:
                    meta = True
                else:
                    real = True
    return real, meta


def _without_nesting(args: Args, kwargs: Kwargs, output: object) -> Iterator[tuple[Args, Kwargs, Any]]:
    """Yield arguments and result of an operator; if they are nested tensors, those of each sample, which has its own sizes."""
    call = (args, kwargs, output)
    sizes = [tensor.size(0) for tensor in tensors_in(call) if tensor.is_nested]
    if not sizes:
        yield call
        return
    for sample in range(sizes[0]):

        def of_sample(item: object, sample: int = sample) -> object:
            if isinstance(item, torch.Tensor) and item.is_nested:
                return item.unbind()[sample].unsqueeze(0)
            return item

        yield _mapped(call, of_sample)


def _elements(args: Args) -> int:
    return sum(
        item.numel()
        for argument in args
        for item in (argument if isinstance(argument, list | tuple) else (argument,))
        if isinstance(item, torch.Tensor)
    )


def _mapped(tree: object, change: Callable[[Any], object]) -> Any:
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(item, change) for item in tree)
    if isinstance(tree, dict):
        return {key: _mapped(item, change) for key, item in tree.items()}
    return change(tree)


def _shapes_of(tree: object) -> Any:
    return _mapped(tree, _shape_of)


def _shape_of(item: object) -> Any:
    if isinstance(item, torch.Tensor) and not item.is_meta:
        return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=_META)
    return _META if isinstance(item, torch.device) else item


def _look_up_all() -> None:
    """Look the most frequent operators up, here and in torch's own tables: once, and not in each process that is forked."""
    for qualified in _SHORTCUTS:
        name, _, overload = qualified.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None:  # a release of torch may not have it yet
            func = getattr(packet, overload or "default")
            known_operator(func)
            with suppress(Unsupported):  # a release without these tables
                rule_in_mode(func, CountingMode)


_look_up_all()  # takes about 5 ms
