"""What is recorded while a model is counted: the running module, each module call, and the bytes that are alive."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from math import prod
from types import GeneratorType
from typing import Any

import torch

from sweeprof.backends.torch.private import (
    current_autograd_node,
    disable_current_modes,
    is_wrapper_subclass,
    sequence_number,
)
from sweeprof.backends.torch.state import forwards_wrapped
from sweeprof.counting.formulas import (
    NO_TENSORS,
    Args,
    Cost,
    Formula,
    Formulas,
    Kwargs,
    ModuleSelection,
    OperatorCost,
    TensorShapes,
    cost_by_formula,
    together,
)
from sweeprof.measuring.layer_timing import path_below
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import Liveness, OperatorCount


@dataclass(slots=True, eq=False)
class ModuleCall:
    """One call of one module while it is counted."""

    module: torch.nn.Module | None
    path: str
    parent: ModuleCall | None
    is_excluded: bool = False
    """True if it is not counted, and has no row."""
    children: int = 0
    operators: dict[str, list[int]] = field(default_factory=dict)
    """calls, MACs, FLOPs, ops, input elements, output elements by operator."""
    uncovered: dict[str, int] = field(default_factory=dict)
    """Calls by operator without a formula."""
    inputs: TensorShapes = NO_TENSORS
    outputs: TensorShapes = NO_TENSORS
    counted: Cost | None = None
    """The cost by a formula of the module's type, which replaces that of its operators."""
    row: int | None = None
    """Index of its row, once the table is made."""


def described(tree: object) -> TensorShapes:
    """Return a description of every tensor in ``tree``."""
    if type(tree) is tuple and len(tree) == 1:
        tree = tree[0]
    if type(tree) is torch.Tensor and not tree.is_nested:
        return _seen_of(tree.shape, tree.dtype)
    return together([_described_tensor(tensor) for tensor in tensors_in(tree)])


def _described_tensor(tensor: torch.Tensor) -> TensorShapes:
    if tensor.is_nested:
        with disable_current_modes():
            return together([_described_tensor(part) for part in tensor.unbind()])
    if tensor.layout is torch.strided:
        return _seen_of(tensor.shape, tensor.dtype)
    elements, nbytes = stored_size(tensor)
    return TensorShapes((tuple(tensor.shape),), (dtype_name(tensor.dtype),), nbytes, elements)


def is_plain(tensor: torch.Tensor) -> bool:
    """True for a tensor that is not made of others: most are such."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def stored_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that hold what a tensor stores, its values first: of a sparse one also the indices."""
    with disable_current_modes():
        if tensor.layout is torch.sparse_coo:
            return [tensor._values(), tensor._indices()]
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
        if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]
    if is_wrapper_subclass(type(tensor)):  # such as torchao's: values, scales and zero points
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # type: ignore[attr-defined]
    return [tensor]


def stored_size(tensor: torch.Tensor) -> tuple[int, int]:
    """Return how many elements a tensor has, of a sparse one those that it stores, and their bytes with those of its indices."""
    if is_plain(tensor):
        elements = tensor.numel()
        return elements, elements * tensor.itemsize
    parts = stored_parts(tensor)
    elements = tensor.numel()
    if tensor.layout in _STORES_A_PART:
        elements = parts[0].numel()
    return elements, sum(part.numel() * part.itemsize for part in parts)


_STORES_A_PART = (
    torch.jagged,
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)
"""Layouts of tensors that do not store every element of their shape."""


@lru_cache(maxsize=4096)  # what one layer returns, the next one is given
def _seen_of(shape: torch.Size, dtype: torch.dtype) -> TensorShapes:
    elements = prod(shape)
    return TensorShapes((tuple(shape),), (dtype_name(dtype),), elements * dtype.itemsize, elements)


class _Thread(threading.local):
    """What is known of the thread that runs."""

    call: ModuleCall | None = None
    """The call of a module that is running; None: there was none yet."""
    is_followed = False
    """True if the operators of the thread are counted."""


class CallSites:
    """Follows the calls of every module below a root, in every thread."""

    def __init__(self, paths: dict[torch.nn.Module, list[str]], formulas: Formulas) -> None:
        self.paths = paths
        self.excluded = excluded_paths(self.paths, formulas.selection)
        self.outside = ModuleCall(None, OUTSIDE, None, OUTSIDE in self.excluded)
        self.calls: list[ModuleCall] = []
        self.thread = _Thread()
        self.thread.call = self.outside
        self.in_thread: Callable[[Callable[..., object]], Callable[..., object]] | None = None
        """Returns a function that counts what another one does in the thread in which it is called."""
        self._formulas = formulas
        self._formula_of: dict[type, Formula | None] = {}
        self._timeline: list[tuple[int, str]] | None = None

    @property
    def current(self) -> ModuleCall:
        """The call that is running; in a thread that was there before, the first call of the model until there is another one."""
        if self.thread.call is not None:
            return self.thread.call
        if self.calls:
            return self.calls[0]
        return self.outside

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Within it, every call of a module is followed, also one made as ``module.forward(...)``."""
        # A scripted module runs in an interpreter that knows no instances.
        modules = [module for module in self.paths if not isinstance(module, torch.jit.ScriptModule)]
        with forwards_wrapped(modules, self.following):
            yield

    def following(self, module: torch.nn.Module, forward: Callable[..., object]) -> Callable[..., object]:
        """Return what runs in the place of a module's forward."""
        return partial(self._followed, module, forward, self.formula_of(module))

    def _followed(
        self,
        module: torch.nn.Module,
        forward: Callable[..., object],
        formula: Formula | None,
        /,
        *args: object,
        **kwargs: object,
    ) -> object:
        if self.in_thread is not None and not self.thread.is_followed:
            return self.in_thread(partial(self._followed, module, forward, formula))(*args, **kwargs)
        call = self.called(module, args, kwargs)
        outputs = self.run(call, forward, args, kwargs)
        if formula is not None and not call.is_excluded:
            call.counted = cost_by_formula(formula, module, (*args, *kwargs.values()), outputs)
        return outputs

    def called(self, module: torch.nn.Module, args: Args, kwargs: Kwargs) -> ModuleCall:
        """Return the record of a call that begins."""
        parent = self.current
        names = self.paths[module]
        path = names[0]
        if len(names) > 1:
            path = path_below(names, parent.path)
        call = ModuleCall(module, path, parent, path in self.excluded)
        if not call.is_excluded:
            call.inputs = described((args, kwargs) if kwargs else args)
            parent.children += 1
            self.calls.append(call)
        return call

    def run(self, call: ModuleCall, forward: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """Run the forward of a call; what it does is counted for that call."""
        before = self.thread.call
        self._now_in(call)  # not by `running`, which takes longer than some layers
        try:
            outputs = forward(*args, **kwargs)
        finally:
            self._now_in(before)
        if type(outputs) is GeneratorType:
            return self._resumed(call, outputs)
        call.outputs = described(outputs)
        return outputs

    @contextmanager
    def running(self, call: ModuleCall | None) -> Iterator[None]:
        """Within it, what runs in this thread is counted for a call."""
        before = self.thread.call
        self._now_in(call)
        try:
            yield
        finally:
            self._now_in(before)

    def _resumed(self, call: ModuleCall, outputs: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Return a generator whose steps are counted for the call that made it, even if another call advances it."""
        items = []
        while True:
            with self.running(call):
                try:
                    items.append(next(outputs))
                except StopIteration as end:
                    call.outputs = described(items)
                    return end.value
            yield items[-1]

    def formula_of(self, module: torch.nn.Module) -> Formula | None:
        """Return the formula by which the user says what a module costs; None: its operators are counted."""
        kind = type(module)
        if kind not in self._formula_of:
            self._formula_of[kind] = self._formulas.of_module(module)
        return self._formula_of[kind]

    def count(self, name: str, cost: OperatorCost, args: Args, output: object) -> None:
        """Add an operator to the call that is running."""
        operators = self.current.operators
        figures = operators.get(name)
        if figures is None:
            figures = operators[name] = [0, 0, 0, 0, 0, 0]
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

    def _now_in(self, call: ModuleCall | None) -> None:
        self.thread.call = call
        if self._timeline is not None:
            self._timeline.append((sequence_number(), self.current.path))

    def where(self) -> str:
        """Path of the call that is running, or whose backward is."""
        if self._timeline is None:
            return self.current.path
        node = current_autograd_node()
        if node is None:
            return self.current.path
        # Nodes are numbered in the order in which the forward made them.
        made_after = bisect_right(self._timeline, node._sequence_nr(), key=lambda entry: entry[0])
        return self._timeline[made_after - 1][1]


class _Alive(weakref.ref[torch.UntypedStorage]):
    """A reference to a storage that knows what to subtract when it is gone."""

    __slots__ = ("key", "nbytes")
    key: int
    nbytes: int


class LiveBytes:
    """The bytes of tensors that are alive at the same time, each storage once, while a model runs over shapes.

    Counts a storage from the operator that made it until nothing refers to it any more, views and autograd included.
    """

    def __init__(self, where: Callable[[], str], excluded: Iterable[torch.Tensor]) -> None:
        """Args:
        where: the path of the layer that is running.
        excluded: tensors that are there anyhow.
        """
        self._where = where
        # By address, which storages made later may have if these did not stay: a forward may replace a buffer.
        self._excluded = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in excluded}
        self._alive: dict[int, _Alive] = {}
        self.live = 0
        """Bytes alive now."""
        self._peak = 0
        self._peak_at = where()

    def saw(self, output: object) -> None:
        """Take note of what an operator returned."""
        if isinstance(output, list | tuple):
            for part in output:
                self.saw(part)
            return
        if not isinstance(output, torch.Tensor) or output.layout is not torch.strided:
            return
        storage = output.untyped_storage()
        key = storage._cdata
        if key in self._alive or key in self._excluded:
            return
        reference = _Alive(storage, self._gone)
        reference.key = key
        reference.nbytes = storage.nbytes()
        self._alive[key] = reference
        self.live += reference.nbytes
        if self.live > self._peak:
            self._peak = self.live
            self._peak_at = self._where()

    def alive(self) -> set[int]:
        """Return the keys of the storages that are alive now and count."""
        return set(self._alive)

    def _gone(self, reference: _Alive) -> None:
        self.live -= reference.nbytes
        self._alive.pop(reference.key, None)

    def result(self, input_bytes: int) -> Liveness:
        """The peak so far."""
        return Liveness(self._peak, self._peak_at, input_bytes)


def operator_counts(call: ModuleCall) -> tuple[OperatorCount, ...]:
    """Return the operators that the call ran, without those that do no arithmetic."""
    counts = []
    for name, figures in call.operators.items():
        if any(figures[1:4]) or name.startswith("upsample"):  # which other tools count
            counts.append(OperatorCount(name, *figures))
    return tuple(counts)


def costs_of(call: ModuleCall) -> OperatorCost:
    """MACs, FLOPs and ops of a call: those of its operators, or what a formula says instead."""
    macs = flops = ops = 0
    for figures in call.operators.values():
        macs += figures[1]
        flops += figures[2]
        ops += figures[3]
    message = call.counted
    if message is not None:
        if message.macs is not None:
            macs = message.macs
        if message.flops is not None:
            flops = message.flops
        if message.ops is not None:
            ops = message.ops
    return macs, flops, ops


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Every tensor in nested containers, dataclasses and mappings, in their order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    found: list[torch.Tensor] = []
    _collect(tree, found)
    return found


_CONTAINERS = (list, tuple, set, frozenset)


def _collect(tree: object, found: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif isinstance(tree, _CONTAINERS):
        for part in tree:
            _collect(part, found)
    elif isinstance(tree, Mapping):
        for part in tree.values():
            _collect(part, found)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for spec in dataclasses.fields(tree):
            _collect(getattr(tree, spec.name, None), found)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def excluded_paths(paths: Mapping[torch.nn.Module, list[str]], selection: ModuleSelection) -> frozenset[str]:
    """Return the paths that are not counted or timed.

    Raises:
        UserError: a pattern matches no module, or no module is left.
    """
    if selection.is_everything:
        return frozenset()
    types: dict[str, type] = {}
    for module, names in paths.items():
        types |= dict.fromkeys(names, type(module))
    return selection.excluded(types)


def paths_of(root: torch.nn.Module) -> dict[torch.nn.Module, list[str]]:
    """Every module with every path by which it can be reached; one that is registered under several parents has several."""
    found: dict[torch.nn.Module, list[str]] = {}
    _add_paths(root, "", frozenset(), found)
    return found


def _add_paths(
    module: torch.nn.Module, path: str, above: frozenset[int], found: dict[torch.nn.Module, list[str]]
) -> None:
    """Add the path of a module and those below it; no function within :func:`paths_of`, which would be part of a cycle."""
    found.setdefault(module, []).append(path or ROOT)
    inner = None
    for name, child in module._modules.items():
        if child is not None:
            inner = inner or above | {id(module)}
            if id(child) not in inner:
                _add_paths(child, f"{path}.{name}" if path else name, inner, found)
