"""The running module and the record of each module call, while a model is counted."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any, Protocol

import torch

from sweeprof.backends.torch.private import current_autograd_node, sequence_number
from sweeprof.backends.torch.single_operators import Rule
from sweeprof.backends.torch.state import forwards_wrapped
from sweeprof.backends.torch.structure import Kind, Structure
from sweeprof.counting.formulas import Args, Cost, Formula, Formulas, Kwargs, OperatorCost, cost_by_formula
from sweeprof.counting.selection import ModuleSelection
from sweeprof.measuring.layer_timing import path_below
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import OperatorCount, Shapes


@dataclass(slots=True)
class TensorShapes:
    """Shapes, data types and bytes of some tensors, without holding them."""

    shapes: Shapes = ()
    dtypes: tuple[str, ...] = ()
    nbytes: int = 0
    elements: int = 0


class ModuleCall:
    """One call of one module while it is counted."""

    __slots__ = (
        "children",
        "counted",
        "inputs",
        "is_excluded",
        "module",
        "operators",
        "outputs",
        "parent",
        "path",
        "source",
        "uncovered",
    )

    def __init__(
        self, module: torch.nn.Module | None, path: str, parent: ModuleCall | None, is_excluded: bool = False
    ) -> None:
        self.module = module
        self.path = path
        self.parent = parent
        self.is_excluded = is_excluded
        """True if it is not counted, and has no row."""
        self.children = 0
        self.operators: dict[str, list[int]] = {}
        """calls, MACs, FLOPs, ops, input elements, output elements by operator."""
        self.inputs = self.outputs = _NOTHING
        self.counted: Cost | None = None
        """The cost by a formula of the module's type, which replaces that of its operators."""
        self.uncovered: dict[str, int] = {}
        """Calls by operator without a formula."""
        self.source: ModuleCall | None = None
        """The equal call whose counts these are; None if this one was run."""

    def copy(self, other: ModuleCall) -> None:
        """Take over all counts of an equal call."""
        self.source = other
        self.children = other.children
        self.operators = other.operators
        self.inputs, self.outputs = other.inputs, other.outputs
        self.uncovered = other.uncovered

    def at(self, path: str, module: torch.nn.Module, parent: ModuleCall) -> ModuleCall:
        """Return an equal call of another module."""
        made = ModuleCall(module, path, parent)
        made.copy(self)
        return made


_NOTHING = TensorShapes()


def described(tree: object) -> TensorShapes:
    """Return a description of every tensor in ``tree``."""
    if isinstance(tree, tuple) and len(tree) == 1:
        tree = tree[0]
    if isinstance(tree, torch.Tensor):
        return _seen_of(tree.shape, tree.dtype)
    alone = [_seen_of(tensor.shape, tensor.dtype) for tensor in tensors_in(tree)]
    return TensorShapes(
        tuple(one.shapes[0] for one in alone),
        tuple(one.dtypes[0] for one in alone),
        sum(one.nbytes for one in alone),
        sum(one.elements for one in alone),
    )


@lru_cache(maxsize=4096)  # what one layer returns, the next one is given
def _seen_of(shape: torch.Size, dtype: torch.dtype) -> TensorShapes:
    elements = prod(shape)
    return TensorShapes((tuple(shape),), (dtype_name(dtype),), elements * dtype.itemsize, elements)


class ReusesCalls(Protocol):
    """Copies the counts of calls instead of running them again (:class:`sweeprof.backends.torch.repeats.Repeats`)."""

    def may_repeat(self, module: torch.nn.Module) -> Kind | None:
        """Return the module's kind; None if its calls are never reused."""

    def operator_of(self, module: torch.nn.Module) -> Rule | None:
        """Return the rule by which a layer need not be run; None if it has to be."""

    def of_layer(self, rule: Rule, layer: torch.nn.Module, given: torch.Tensor) -> torch.Tensor | None:
        """Count a layer that is one operator, and return its result; None if it has to be run."""

    def is_frequent(self, kind: Kind) -> bool:
        """True if several modules are of that kind."""

    def watching_positions(self) -> AbstractContextManager[None]:
        """Within it, a call that reads the position of a module cannot be reused."""

    def call(
        self,
        kind: Kind,
        call: ModuleCall,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Return the result of a call: of ``forward``, or like that of an equal call before."""


@dataclass(slots=True)  # not frozen: one per module is made
class _Followed:
    """A module whose calls are followed, and what is known of them beforehand."""

    module: torch.nn.Module
    forward: Callable[..., object]
    formula: Formula | None
    """By which the user says what it costs."""
    kind: Kind | None
    """If its calls may be like those of another module."""
    rule: Rule | None
    """By which it need not be run."""


class CallSites:
    """Follows the calls of every module below a root."""

    def __init__(self, root: torch.nn.Module, formulas: Formulas) -> None:
        self.paths = paths_of(root)
        self.excluded = excluded_paths(self.paths, formulas.selection)
        self.outside = ModuleCall(None, OUTSIDE, None, OUTSIDE in self.excluded)
        self.calls: list[ModuleCall] = []
        self.current = self.outside
        self.marks = 0
        """How often something happened for which a call that runs cannot be reused."""
        self.structure: Structure | None = None
        self.repeats: ReusesCalls | None = None
        """Finds calls that need not be run; None: all are."""
        self._formulas = formulas
        self._formula_of: dict[type, Formula | None] = {}
        self._timeline: list[tuple[int, str]] | None = None

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Within it, every call of a module is followed, also one made as ``module.forward(...)``."""
        # A scripted module runs in an interpreter that knows no instances.
        modules = [module for module in self.paths if not isinstance(module, torch.jit.ScriptModule)]
        watching = nullcontext() if self.repeats is None else self.repeats.watching_positions()
        with forwards_wrapped(modules, lambda module: self._following(module, module.forward)), watching:
            yield

    def _following(self, module: torch.nn.Module, forward: Callable[..., object]) -> Callable[..., object]:
        formula = self._formula(module)
        repeats = None if formula is not None else self.repeats
        kind = None if repeats is None else repeats.may_repeat(module)
        # To run a module without others in it is as quick as to reuse a call of it.
        is_repeated = repeats is not None and kind is not None and bool(module._modules) and repeats.is_frequent(kind)
        rule = None if repeats is None else repeats.operator_of(module)
        return partial(self._followed, _Followed(module, forward, formula, kind if is_repeated else None, rule))

    def _followed(self, followed: _Followed, /, *args: object, **kwargs: object) -> object:
        module, forward = followed.module, followed.forward
        parent = self.current
        names = self.paths[module]
        path = names[0] if len(names) == 1 else path_below(names, parent.path)
        if path in self.excluded:
            self._now_in(ModuleCall(module, path, parent, is_excluded=True))
            try:
                return forward(*args, **kwargs)
            finally:
                self._now_in(parent)
        call = ModuleCall(module, path, parent)
        call.inputs = described((args, kwargs) if kwargs else args)
        parent.children += 1
        self.calls.append(call)
        repeats = self.repeats
        if followed.kind is not None and repeats is not None:
            return repeats.call(followed.kind, call, forward, args, kwargs)
        if followed.rule is not None and repeats is not None and not kwargs and len(args) == 1:
            given: Any = args[0]
            if type(given) is torch.Tensor and given.is_meta:
                self.current = call
                output = repeats.of_layer(followed.rule, module, given)
                self.current = parent
                if output is not None:
                    call.outputs = described(output)
                    return output
        outputs = self.run(call, forward, args, kwargs)
        if followed.formula is not None:
            self.marks += 1
            call.counted = cost_by_formula(followed.formula, module, (*args, *kwargs.values()), outputs)
        return outputs

    def run(self, call: ModuleCall, forward: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """Run the forward of a call; what it does is counted for that call."""
        before = self.current
        self._now_in(call)
        try:
            outputs = forward(*args, **kwargs)
        finally:
            self._now_in(before)
        call.outputs = described(outputs)
        return outputs

    def _formula(self, module: torch.nn.Module) -> Formula | None:
        kind = type(module)
        if kind not in self._formula_of:
            self._formula_of[kind] = self._formulas.of_module(module)
        return self._formula_of[kind]

    def count(self, name: str, cost: OperatorCost, args: Args, output: object) -> None:
        """Add an operator to the call that is running."""
        figures = self.current.operators.get(name)
        if figures is None:
            figures = self.current.operators[name] = [0, 0, 0, 0, 0, 0]
        figures[0] += 1
        figures[1] += cost[0]
        figures[2] += cost[1]
        figures[3] += cost[2]
        if args and isinstance(args[0], torch.Tensor):
            figures[4] += args[0].numel()
        if isinstance(output, torch.Tensor):
            figures[5] += output.numel()
        elif isinstance(output, tuple) and output and isinstance(output[0], torch.Tensor):
            figures[5] += output[0].numel()

    def miss(self, name: str) -> None:
        """Note that an operator of the call that is running has no formula."""
        self.current.uncovered[name] = self.current.uncovered.get(name, 0) + 1

    @property
    def counted_calls(self) -> list[ModuleCall]:
        """Every call that is counted, and what runs outside any, such as the backward of these calls."""
        return [*self.calls, self.outside]

    @property
    def uncovered(self) -> dict[str, int]:
        """Calls by operator without a formula, but for those of modules whose own formula says what they cost."""
        missed: Counter[str] = Counter()
        for call in self.counted_calls:
            if call.uncovered and (call.counted is None or (call.counted.macs is None and call.counted.flops is None)):
                missed.update(call.uncovered)
        return dict(missed)

    @property
    def is_excluded(self) -> bool:
        """True if what runs now is not counted."""
        if not self.excluded:
            return False
        return self.where() in self.excluded

    def remember_gradients(self) -> None:
        """Note which autograd nodes each call makes, so that :meth:`where` can tell whose backward is running."""
        self._timeline = [(0, self.current.path)]

    def _now_in(self, call: ModuleCall) -> None:
        self.current = call
        if self._timeline is not None:
            self._timeline.append((sequence_number(), call.path))

    def where(self) -> str:
        """Path of the call that is running, or whose backward is."""
        node = None if self._timeline is None else current_autograd_node()
        if node is None or self._timeline is None:
            return self.current.path
        # Nodes are numbered in the order in which the forward made them.
        made_after = bisect_right(self._timeline, node._sequence_nr(), key=lambda entry: entry[0])
        return self._timeline[made_after - 1][1]


def operator_counts(call: ModuleCall) -> tuple[OperatorCount, ...]:
    """Return the operators that the call ran, without those that do no arithmetic."""
    counts = [
        OperatorCount(name, *figures)
        for name, figures in call.operators.items()
        if figures[1] or figures[2] or figures[3] or name.startswith("upsample")  # which other tools count
    ]
    return tuple(counts) if counts else ()


def costs_of(call: ModuleCall) -> OperatorCost:
    """MACs, FLOPs and ops of a call: those of its operators, or what a formula says instead."""
    macs = flops = ops = 0
    for figures in call.operators.values():
        macs += figures[1]
        flops += figures[2]
        ops += figures[3]
    message = call.counted
    if message is None:
        return macs, flops, ops
    return (
        macs if message.macs is None else message.macs,
        flops if message.flops is None else message.flops,
        ops if message.ops is None else message.ops,
    )


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Every tensor in nested containers, dataclasses and mappings, in their order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    found: list[torch.Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: object, found: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif isinstance(tree, list | tuple | set | frozenset):
        for part in tree:
            _collect(part, found)
    elif isinstance(tree, Mapping):
        for part in tree.values():
            _collect(part, found)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for spec in dataclasses.fields(tree):
            _collect(getattr(tree, spec.name, None), found)


_DTYPE_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    name = _DTYPE_NAMES.get(dtype)
    if name is None:
        name = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def excluded_paths(paths: Mapping[torch.nn.Module, list[str]], selection: ModuleSelection) -> frozenset[str]:
    """Return the paths that are not counted or timed.

    Raises:
        UserError: a pattern matches no module, or no module is left.
    """
    if selection.is_everything:
        return frozenset()
    return selection.excluded({path: type(module) for module, names in paths.items() for path in names})


def paths_of(root: torch.nn.Module) -> dict[torch.nn.Module, list[str]]:
    """Every module with every path by which it can be reached; one that is registered under several parents has several."""
    found: dict[torch.nn.Module, list[str]] = {}

    def visit(module: torch.nn.Module, path: str, above: frozenset[int]) -> None:
        found.setdefault(module, []).append(path or ROOT)
        inner = None
        for name, child in module._modules.items():
            if child is not None:
                inner = inner or above | {id(module)}
                if id(child) not in inner:
                    visit(child, f"{path}.{name}" if path else name, inner)

    visit(root, "", frozenset())
    return found
