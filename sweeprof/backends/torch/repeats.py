"""Counts of repeated blocks: a call that must do the same as an earlier one is not run, and its counts are copied.

A call is reused if all of this holds, and is run otherwise:

* The modules are interchangeable (:mod:`structure`): equal classes, attributes, children, and shapes, layouts and types of all
  parameters and buffers. A position such as ``layer_idx`` may differ if the call that was run did not read it.
* The arguments are equal: tensors on meta by shape, layout and type, with the same tensors and memory shared among them; tensors
  with values must be the identical objects; everything else is a plain value or a container of those.
* The call that was run read no value of a tensor, wrote to no tensor that has values, called modules of its own only, left its
  arguments as they were, and kept no tensor alive but those that it returned, which are new or parts of arguments.
* After the forward, no module that a reused call ran has other attributes, no other object that a module holds has, and no random
  number was drawn. Else the model is counted once more, without reuse.

A function outside the modules' classes that has a memory of its own could still make a difference; ``reuse_counts=False``
(``metrics.reuse_counts=false`` in a config) switches all of this off. A call in which a user's formula is called is not reused.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch

from sweeprof.backends.torch.callsites import CallSites, ModuleCall
from sweeprof.backends.torch.dispatch import CountingMode
from sweeprof.backends.torch.liveness import LiveBytes
from sweeprof.backends.torch.private import (
    GLOBAL_HOOKS,
    DisableTorchDispatch,
    dispatch_mode_count,
    function_mode_count,
    function_transform,
    is_any_autocast_enabled,
)
from sweeprof.backends.torch.single_operators import Rule, are_original, operator_of
from sweeprof.backends.torch.structure import PLAIN_TENSORS, PLAIN_VALUES, Kind, Structure

_META = torch.device("meta")


class _NotComparable(Exception):
    """Arguments or results contain something whose state is not known."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A call that was run and may be reused."""

    call: ModuleCall
    first: int
    last: int
    """Positions of the calls within it."""
    operator_calls: int
    peak: int
    """Bytes alive at most, above those before the call."""
    peak_at: str
    output: Any
    """A tree like its result, with a description in the place of each tensor."""
    with_values: tuple[weakref.ref[torch.Tensor], ...]
    """Arguments that have values."""


@dataclass(frozen=True, slots=True)
class _Given:
    """An argument, or a view of its memory."""

    position: int
    shape: torch.Size | None = None
    """None: the argument itself."""
    stride: tuple[int, ...] = ()
    offset: int = 0
    """Elements after the argument's."""


@dataclass(frozen=True, slots=True)
class _New:
    """A tensor in memory that the call allocated."""

    storage: int
    """Number of the memory among the call's results."""
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    nbytes: int
    """Of the memory; 0: just what the tensor needs."""


class Repeats:
    """Finds calls that need not be run while a model is counted."""

    def __init__(self, sites: CallSites, structure: Structure, live: LiveBytes, mode: CountingMode) -> None:
        self._sites, self._structure, self._live, self._mode = sites, structure, live, mode
        self._runs: dict[Hashable, _Run | None] = {}
        self._module_at = {names[0]: module for module, names in structure.paths.items()}
        self._surroundings: tuple[object, ...] = ()
        self._random = _random_states()
        self.sources: set[str] = set()
        """Paths of the modules whose calls were reused."""
        self.is_possible = not any(GLOBAL_HOOKS)
        self._are_original = are_original()

    def begin(self) -> None:
        """Note the settings of torch, just before the forward."""
        self._surroundings = _surroundings()

    @contextmanager
    def watching_positions(self) -> Iterator[None]:
        """Within it, a call that reads the position of a module cannot be reused."""
        watched = [(kind, name) for kind, names in self._structure.positions.items() for name in names]
        before = [vars(kind).get(name, watched) for kind, name in watched]
        try:
            for kind, name in watched:
                setattr(kind, name, _Position(name, self._sites))
            yield
        finally:
            for (kind, name), value in zip(watched, before, strict=True):
                if value is watched:
                    delattr(kind, name)
                else:
                    setattr(kind, name, value)

    def may_repeat(self, module: torch.nn.Module) -> Kind | None:
        """Return the module's kind; None if its calls are never reused."""
        return self._structure.kinds.get(module) if self.is_possible else None

    def operator_of(self, module: torch.nn.Module) -> Rule | None:
        """Return the rule by which a layer need not be run; None if it has to be."""
        return operator_of(module) if self._are_original else None

    def of_layer(self, rule: Rule, layer: torch.nn.Module, given: torch.Tensor) -> torch.Tensor | None:
        """Count a layer that is one operator, and return its result; None if it has to be run."""
        if _surroundings() != self._surroundings:
            return None
        operator = rule(layer, given)
        return None if operator is None else self._mode.of_layer(*operator)

    def is_frequent(self, kind: Kind) -> bool:
        """True if several modules are of that kind."""
        return self._structure.frequency[kind] > 1

    def were_wrong(self, changed: Sequence[torch.nn.Module]) -> bool:
        """True if something happened for which a reused call might have had another result.

        Args:
            changed: the modules that have other attributes than before the forward.
        """
        if not self.sources:
            return False
        if self._structure.objects_changed() or self._random != _random_states():
            return True
        return any(self._is_within_source(self._structure.paths[module][0]) for module in changed)

    def _is_within_source(self, path: str) -> bool:
        return path in self.sources or any(path.startswith(f"{source}.") for source in self.sources)

    def call(self, kind: Kind, call: ModuleCall, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of a call: of ``forward``, or like that of an equal call before."""
        tensors: list[torch.Tensor] = []
        try:
            key = self._key(kind, args, kwargs, tensors)
        except _NotComparable:
            return self._sites.run(call, forward, args, kwargs)
        known = self._runs.get(key)
        if known is not None and all(reference() is not None for reference in known.with_values):
            return self._reused(known, call, tensors)
        return self._run(key, kind, call, forward, args, kwargs, tensors)

    def _key(self, kind: Kind, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> tuple[Hashable, ...]:
        """Return what decides about the result of a call; the tensors among its arguments are added to ``tensors``.

        Raises:
            _NotComparable: that is not known.
        """
        if _surroundings() != self._surroundings:
            raise _NotComparable
        if not kwargs and len(args) == 1:
            only = args[0]
            if type(only) is torch.Tensor and only.is_meta and not only.__dict__:
                tensors.append(only)
                return kind, only.shape, only.stride(), only.dtype
        key = (kind, _argument_key(args, tensors), _argument_key(kwargs, tensors) if kwargs else None)
        if len(tensors) > 1:
            places = [tensor.untyped_storage()._cdata for tensor in tensors]
            names = list(map(id, tensors))
            return (*key, *map(places.index, places), *map(names.index, names))
        return key

    def _run(
        self,
        key: tuple[Hashable, ...],
        kind: Kind,
        call: ModuleCall,
        forward: Any,
        args: Any,
        kwargs: Any,
        tensors: list[torch.Tensor],
    ) -> Any:
        """Run a call, and remember it if it may be reused."""
        sites, live = self._sites, self._live
        first, operator_calls, marks = len(sites.calls), self._mode.operator_calls, sites.marks
        bytes_before, made = live.live, live.made
        before = live.begin()
        try:
            output = sites.run(call, forward, args, kwargs)
        finally:
            peak, peak_at = live.end(before)
        if sites.marks != marks:
            return output
        fresh: dict[int, int] = {}
        try:
            described = self._described(output, tensors, made, fresh)
            if len(key) == 4:
                is_same = (tensors[0].shape, tensors[0].stride()) == key[1:3]
            else:
                again: list[torch.Tensor] = []
                is_same = self._key(kind, args, kwargs, again) == key and all(map(is_, again, tensors))
        except _NotComparable:
            return output
        prefix = f"{call.path}."
        if not is_same or live.live - bytes_before != sum(fresh.values()):
            return output
        if not all(inner.path.startswith(prefix) for inner in sites.calls[first:]):
            return output
        with_values = tuple(weakref.ref(tensor) for tensor in tensors if not tensor.is_meta)
        self._runs[key] = _Run(
            call,
            first,
            len(sites.calls),
            self._mode.operator_calls - operator_calls,
            peak - bytes_before,
            peak_at,
            described,
            with_values,
        )
        return output

    def _described(self, output: Any, tensors: list[torch.Tensor], made: int, fresh: dict[int, int]) -> Any:
        """Return the tree of a result with descriptions of tensors; ``fresh`` gets the bytes of new memory by its identity."""
        kind = type(output)
        if kind in (tuple, list):
            return kind(self._described(item, tensors, made, fresh) for item in output)
        if kind is dict:
            return {name: self._described(item, tensors, made, fresh) for name, item in output.items()}
        if kind is not torch.Tensor:
            if kind in PLAIN_VALUES:
                return output
            raise _NotComparable
        for position, tensor in enumerate(tensors):
            if tensor is output:
                return _Given(position)
        if not output.is_meta or output.__dict__ or output.layout is not torch.strided:
            raise _NotComparable
        storage = output.untyped_storage()
        for position, tensor in enumerate(tensors):
            if tensor.is_meta and tensor.untyped_storage()._cdata == storage._cdata:
                if tensor.dtype != output.dtype:
                    raise _NotComparable
                offset = output.storage_offset() - tensor.storage_offset()
                return _Given(position, output.shape, output.stride(), offset)
        if not self._live.made_since(storage, made):
            raise _NotComparable
        nbytes = storage.nbytes()
        number = list(fresh).index(storage._cdata) if storage._cdata in fresh else len(fresh)
        is_alone = storage._cdata not in fresh
        fresh[storage._cdata] = nbytes
        shape, stride, offset = output.shape, output.stride(), output.storage_offset()
        if is_alone and not offset and nbytes == output.numel() * output.itemsize:
            nbytes = 0
        return _New(number, shape, stride, output.dtype, offset, nbytes)

    def _reused(self, run: _Run, call: ModuleCall, tensors: list[torch.Tensor]) -> Any:
        """Copy the counts of a run to another call; returns a result like that of the run."""
        sites, source = self._sites, run.call
        self.sources.add(source.path)
        begin = len(source.path)
        self._live.reach(
            run.peak, call.path + run.peak_at[begin:] if run.peak_at.startswith(source.path) else call.path
        )
        self._mode.operator_calls += run.operator_calls
        call.copy(source)
        if run.last > run.first:
            copies: dict[ModuleCall | None, ModuleCall] = {source: call}
            for inner in sites.calls[run.first : run.last]:
                path = call.path + inner.path[begin:]
                copy = copies[inner] = inner.at(path, self._module_at[path], copies[inner.parent])
                sites.calls.append(copy)
        new: dict[int, torch.Tensor] = {}
        with DisableTorchDispatch():
            output = self._made(run.output, tensors, new)
        for tensor in new.values():
            self._live.saw(tensor)
        return output

    def _made(self, tree: Any, tensors: list[torch.Tensor], new: dict[int, torch.Tensor]) -> Any:
        """Return a result by its description; ``new`` gets the tensors with memory of their own."""
        kind = type(tree)
        if kind is _New:
            return _new_tensor(tree, new)
        if kind in (tuple, list):
            return kind(self._made(item, tensors, new) for item in tree)
        if kind is dict:
            return {name: self._made(item, tensors, new) for name, item in tree.items()}
        if kind is not _Given:
            return tree
        given = tensors[tree.position]
        if tree.shape is None:
            return given
        return given.as_strided(tree.shape, tree.stride, given.storage_offset() + tree.offset)


def _new_tensor(tensor: _New, new: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return a tensor like the one described; ``new`` has the tensors made before, by the number of their memory."""
    if tensor.storage not in new and not tensor.nbytes:
        made = new[tensor.storage] = torch.empty_strided(tensor.shape, tensor.stride, dtype=tensor.dtype, device=_META)
        return made
    if tensor.storage not in new:
        new[tensor.storage] = torch.empty((tensor.nbytes,), dtype=torch.uint8, device=_META)
    memory = new[tensor.storage].untyped_storage()
    made = torch.empty((0,), dtype=tensor.dtype, device=_META)
    return made.set_(memory, tensor.offset, tensor.shape, tensor.stride)


class _Position:
    """An attribute of modules that notes when it is read."""

    def __init__(self, name: str, sites: CallSites) -> None:
        self._name, self._sites = name, sites

    def __get__(self, module: Any, kind: type) -> Any:
        self._sites.marks += 1
        attributes = {} if module is None else vars(module)
        if self._name not in attributes:
            raise AttributeError(self._name)
        return attributes[self._name]

    def __set__(self, module: Any, value: object) -> None:
        vars(module)[self._name] = value

    def __delete__(self, module: Any) -> None:
        del vars(module)[self._name]


def _argument_key(argument: Any, tensors: list[torch.Tensor]) -> Hashable:
    """Return a key of an argument, and add its tensors to ``tensors``.

    Raises:
        _NotComparable: it contains something else than tensors, plain values and containers.
    """
    kind = type(argument)
    if kind in PLAIN_VALUES:
        return kind, argument
    if kind in PLAIN_TENSORS:
        tensors.append(argument)
        if argument.__dict__ or argument.layout is not torch.strided:
            raise _NotComparable
        if not argument.is_meta:
            return id(argument)
        return argument.shape, argument.stride(), argument.dtype
    if kind in (tuple, list):
        return kind, *[_argument_key(item, tensors) for item in argument]
    if kind is dict:
        return kind, *argument, *[_argument_key(item, tensors) for item in argument.values()]
    raise _NotComparable


def _surroundings() -> tuple[object, ...]:
    """Return the settings of torch that decide what operators a forward runs."""
    return (
        torch.get_default_dtype(),
        torch.is_inference_mode_enabled(),
        is_any_autocast_enabled(),
        function_mode_count(),
        dispatch_mode_count(),
        function_transform() is None,  # in torch.vmap tensors do not show the axis of the batch
    )


def _random_states() -> tuple[object, ...]:
    """Return the states of the generators of random numbers."""
    import numpy as np

    numpy_state: Any = np.random.get_state(legacy=True)
    return random.getstate(), bytes(torch.get_rng_state().numpy()), bytes(numpy_state[1]), *numpy_state[2:]
