"""Calls that are counted without being run: those that must do the same as an earlier one, and those of single operators.

A layer that runs one operator (:mod:`single_operators`) is counted as that operator. The counts of a block are copied from an
equal call of it, or of a block like it. A call is reused if all of this holds, and is run otherwise:

* The modules are interchangeable (:class:`Structure`): equal classes, attributes, children, and shapes, layouts and types of all
  parameters and buffers. A position such as ``layer_idx`` may differ if the call that was run did not read it.
* The arguments are equal: tensors on meta by shape, layout and type, with the same tensors and memory shared among them; tensors
  with values must be the identical objects; everything else is a plain value or a container of those.
* The call that was run read no value of a tensor, wrote to no tensor that has values, called modules of its own only, left its
  arguments as they were, and kept no tensor alive but those that it returned, which are new or parts of arguments.
* After the forward, no module that a reused call ran has other attributes, no other object that a module holds has, and no random
  number of Python or NumPy was drawn. Else the model is counted once more, without reuse.

A function outside the modules' classes that has a memory of its own could still make a difference; ``reuse_counts=False``
(``metrics.reuse_counts=false`` in a config) switches all of this off. A call in which a user's formula is called is not reused.
"""

from __future__ import annotations

import dis
import enum
import random
import sys
import types
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from operator import is_, itemgetter
from typing import Any

import torch

from sweeprof.backends.torch.callsites import CallSites, LiveBytes, ModuleCall, described, paths_of
from sweeprof.backends.torch.dispatch import CountingMode
from sweeprof.backends.torch.private import (
    GLOBAL_HOOKS,
    DisableTorchDispatch,
    dispatch_mode_count,
    function_mode_count,
    function_transform,
    is_any_autocast_enabled,
)
from sweeprof.backends.torch.single_operators import Rule, are_original, operator_of
from sweeprof.backends.torch.state import ORIGINAL, any_lazy, children_of, tensors_among
from sweeprof.counting.formulas import Args, Formulas, Kwargs

_META = torch.device("meta")

Kind = int
"""A number that modules share whose forward does the same for the same arguments."""

PLAIN_VALUES: frozenset[Any] = frozenset(
    {int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.layout, torch.Size}
)
_FUNCTIONS: frozenset[Any] = frozenset({types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType})
PLAIN_TENSORS: frozenset[Any] = frozenset({torch.Tensor, torch.nn.Parameter})
_hooks_of = itemgetter("_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_pre_hooks")
_FIRST = tuple(vars(torch.nn.Module()))

_POSITIONS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "block_idx"})
"""Attributes by which a block knows its position. They may differ between interchangeable modules; a call that reads one is not
reused."""
_UNUSED_IN_INFERENCE = (
    ("torch.nn.modules.dropout", "", "p"),
    ("torchvision.ops.stochastic_depth", "StochasticDepth", "p"),
    ("timm.layers.drop", "DropPath", "drop_prob"),
    ("transformers.models.", "DropPath", "drop_prob"),
)
"""Module, end of the class's name, and an attribute that has no influence on a layer that returns its input in inference."""


class _NotComparable(Exception):
    """A module, arguments or results contain something of which it is not known what it does, or in what state it is."""


class Structure:
    """Every module below a root, each once, parents first."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = root
        self.paths = paths = paths_of(root)
        """The modules with the paths by which they are held."""
        self.tensors = tensors_among(paths)
        """Every parameter and buffer; one that is shared as often as it is held."""
        self.is_lazy = any_lazy(self.tensors)
        """True if a parameter or buffer has no shape yet; no modules are comparable then."""
        self.positions: dict[type, set[str]] = {}
        """Classes of modules that have such attributes."""
        self._objects: dict[int, tuple[object, tuple[object, ...]]] = {}
        """Other objects that modules hold, with what they held."""
        children = 0
        names: set[str] = set()
        parents = []
        for module in paths:
            if module._parameters:
                names.update(module._parameters.keys())
            if module._modules:
                children += len(children_of(module))
                parents.append((type(module), *module._modules.keys()))
        self.is_tree = children < len(paths)
        """False if a module is held twice, or is within itself."""
        self.has_masks = any(name.endswith(ORIGINAL) for name in names)
        """True if ``torch.nn.utils.prune`` has put a mask on a parameter."""
        self.kinds: dict[torch.nn.Module, Kind] = {}
        """Of comparable modules; none where no module with others in it looks like another one: no call can be reused then."""
        may_repeat = len(set(parents)) < len(parents) and not self.is_lazy
        known: dict[Hashable, Kind] = {}
        for module in reversed(paths) if may_repeat else ():  # children come before their parents
            if len(paths[module]) == 1:
                try:
                    self.kinds[module] = known.setdefault(self._key(module), len(known))
                except _NotComparable:
                    continue
        self.frequency = Counter(self.kinds.values())

    def differs(self, module: torch.nn.Module) -> bool:
        """True if the module may have an attribute in which it differs from other modules of its kind."""
        kind: Any = type(module)
        return kind in self.positions or (_unused(kind) is not None and not module.training)

    def objects_changed(self) -> bool:
        """True if an object that is no module, but is held by one, has other attributes than before."""
        return any(
            len(before) != len(vars(held)) or any(a is not b for a, b in zip(vars(held).values(), before, strict=True))
            for held, before in self._objects.values()
        )

    def _key(self, module: torch.nn.Module) -> Hashable:
        """Return what decides what a module does: its class, its attributes and its children.

        Raises:
            _NotComparable: that is not known.
        """
        attributes = vars(module)
        values = list(attributes.values())
        kind: Any = type(module)
        own = len(_FIRST)
        if len(values) < own or values[own - 1] is not attributes.get("_modules"):
            raise _NotComparable
        if any(_hooks_of(attributes)) or "forward" in attributes or not _is_plain(kind):
            raise _NotComparable
        parts: list[Any] = [kind, values[0], len(values[1])]  # which of the tensors that follow are parameters
        for held in values[1:3]:
            if held:
                parts += held
                for tensor in held.values():
                    parts.append(_ABSENT if tensor is None else _tensor_key(tensor))
        children = values[own - 1]
        if children:
            parts += children
            for child in children.values():
                child_kind = _ABSENT if child is None else self.kinds.get(child)
                if child_kind is None:
                    raise _NotComparable
                parts.append(child_kind)
        names, rest = tuple(attributes), values[own:]
        unused = None if values[0] else _unused(kind)
        if unused is None and not _POSITIONS.isdisjoint(names):
            self.positions.setdefault(kind, set()).update(_POSITIONS.intersection(names))
        if unused is not None or kind in self.positions:
            hidden = {unused, *self.positions.get(kind, ())}
            rest = [_ABSENT if name in hidden else value for name, value in zip(names[own:], rest, strict=True)]
        return *parts, names, self._parts(rest, module)

    def _parts(self, values: Any, module: torch.nn.Module) -> Hashable:
        """Return a key of several values with their types."""
        types_of = tuple(map(type, values))
        if not PLAIN_VALUES.issuperset(types_of):
            values = [
                value if type(value) in PLAIN_VALUES or _is_integers(value) else self._part(value, module)
                for value in values
            ]
        return types_of, *values

    def _part(self, value: Any, module: torch.nn.Module) -> Hashable:
        """Return a key of an attribute that is no plain value.

        Raises:
            _NotComparable: it belongs to one module alone.
        """
        kind = type(value)
        if kind in (list, tuple):
            return self._parts(value, module)
        if kind in (dict, OrderedDict):
            return self._parts(list(value), module), self._parts(list(value.values()), module)
        if kind in (set, frozenset) and PLAIN_VALUES.issuperset(map(type, value)):
            return frozenset(value)
        if kind is types.MethodType and value.__self__ is module:
            return "method", value.__func__
        if isinstance(value, torch.Tensor) and value.is_meta:
            return _tensor_key(value)
        if kind not in _FUNCTIONS and not isinstance(value, enum.Enum):
            is_unknown = isinstance(value, torch.Tensor | torch.nn.Module | types.MethodType)
            if is_unknown or not hasattr(value, "__dict__"):
                raise _NotComparable
            self._objects.setdefault(id(value), (value, tuple(vars(value).values())))
        return "same", id(value)


_ABSENT = "absent"
_INTEGER = frozenset({int})


def _is_integers(value: object) -> bool:
    """Return True for a tuple of integers, such as a kernel size."""
    return type(value) is tuple and _INTEGER.issuperset(map(type, value))


def _tensor_key(tensor: torch.Tensor) -> Hashable:
    if type(tensor) not in PLAIN_TENSORS or tensor.__dict__ or tensor.layout is not torch.strided:
        raise _NotComparable
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad, tensor.is_meta or tensor.device


_READS_ATTRIBUTES: Any = vars(torch.nn.Module)["__getattr__"]


@cache
def _unused(kind: type) -> str | None:
    """Return the name of the attribute that has no influence on a layer's forward in inference."""
    for module, name, attribute in _UNUSED_IN_INFERENCE:
        if kind.__module__.startswith(module) and kind.__name__.endswith(name):
            return attribute
    return None


@cache
def _is_plain(kind: type) -> bool:
    """True if no method of a class of modules assigns to a global variable or one of an enclosing function.

    A class that decides itself how attributes are read is not plain either.
    """
    reads: Any = kind
    if reads.__getattribute__ is not object.__getattribute__ or reads.__getattr__ is not _READS_ATTRIBUTES:
        return False
    if issubclass(kind, torch.jit.ScriptModule):
        return False
    functions = [
        value
        for base in kind.__mro__
        if not base.__module__.startswith("torch.nn.")
        for value in vars(base).values()
        if isinstance(value, types.FunctionType)
    ]
    return not any(_assigns_outside(function.__code__) for function in functions)


_TO_GLOBALS = {dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL")}
_TO_CELLS = {dis.opmap[name] for name in ("STORE_DEREF", "DELETE_DEREF")}


def _assigns_outside(code: types.CodeType) -> bool:
    opcodes = set(code.co_code[::2])  # each is followed by its argument
    if opcodes & _TO_GLOBALS:
        return True
    enclosing = {*code.co_freevars} - {"__class__"}  # which `super()` reads
    if enclosing and opcodes & _TO_CELLS:  # its own variables are cells too, if a function within it reads them
        for instruction in dis.get_instructions(code):
            if instruction.opcode in _TO_CELLS and instruction.argval in enclosing:
                return True
    return any(_assigns_outside(inner) for inner in code.co_consts if isinstance(inner, types.CodeType))


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


class ReusingCallSites(CallSites):
    """Follows the calls of every module; one whose counts and result are known without it is not run."""

    def __init__(self, structure: Structure, formulas: Formulas, may_reuse: bool) -> None:
        """Follow the calls of a model.

        Args:
            structure: of the model.
            formulas: of the user.
            may_reuse: whether a call may be left out; False: every call is run.
        """
        super().__init__(structure.paths, formulas)
        self.structure = structure
        self.sources: set[str] = set()
        """Paths of the modules whose calls were reused."""
        self._runs: dict[Hashable, _Run] = {}
        self._module_at = {names[0]: module for module, names in self.paths.items()}
        self._random: tuple[object, ...] = ()
        """The states of the generators of random numbers before the forward, where a call may be reused."""
        self._may_repeat = may_reuse and not any(GLOBAL_HOOKS)
        self._are_original = may_reuse and are_original()
        self._surroundings: tuple[object, ...] = ()
        self._live: LiveBytes
        self._mode: CountingMode

    @contextmanager
    def reusing(self, live: LiveBytes, mode: CountingMode) -> Iterator[None]:
        """Within it, just around the forward, calls are reused; one that reads the position of its module cannot be."""
        self._live, self._mode, self._surroundings = live, mode, _surroundings()
        positions = self.structure.positions if self._may_repeat else {}
        watched = [(kind, name) for kind, names in positions.items() for name in names]
        before = [vars(kind).get(name, watched) for kind, name in watched]
        try:
            for kind, name in watched:
                setattr(kind, name, _Position(name, self))
            yield
        finally:
            self._runs.clear()
            # They refer to this object; without the cycle, it and the model are freed with their last references.
            del self._live, self._mode
            for (kind, name), value in zip(watched, before, strict=True):
                if value is watched:
                    delattr(kind, name)
                else:
                    setattr(kind, name, value)

    def following(self, module: torch.nn.Module, forward: Callable[..., object]) -> Callable[..., object]:
        if self.formula_of(module) is not None:
            return super().following(module, forward)
        if module._modules:  # to run a module without others in it is as quick as to reuse a call of it
            kind = self.structure.kinds.get(module) if self._may_repeat else None
            if kind is not None and self.structure.frequency[kind] > 1:
                self._random = self._random or _random_states()
                return partial(self._repeated, module, forward, kind)
        elif self._are_original:
            rule = operator_of(module)
            if rule is not None:
                return partial(self._single, module, forward, rule)
        return super().following(module, forward)

    def _single(
        self, module: torch.nn.Module, forward: Callable[..., object], rule: Rule, /, *args: object, **kwargs: object
    ) -> object:
        """Return the result of a layer that is one operator, which is run only if it may be another one now."""
        call = self.called(module, args, kwargs)
        given: Any = args[0] if len(args) == 1 and not kwargs else None
        if type(given) is torch.Tensor and given.is_meta and _surroundings() == self._surroundings:
            operator = rule(module, given)
            if operator is not None:
                before, self.current = self.current, call
                output = self._mode.of_layer(*operator)
                self.current = before
                if output is not None:
                    call.outputs = described(output)
                    return output
        return self.run(call, forward, args, kwargs)

    def _repeated(
        self, module: torch.nn.Module, forward: Callable[..., object], kind: Kind, /, *args: object, **kwargs: object
    ) -> object:
        """Return the result of a call: of ``forward``, or like that of an equal call before."""
        call = self.called(module, args, kwargs)
        tensors: list[torch.Tensor] = []
        try:
            key = self._key(kind, args, kwargs, tensors)
        except _NotComparable:
            return self.run(call, forward, args, kwargs)
        known = self._runs.get(key)
        if known is not None and all(reference() is not None for reference in known.with_values):
            return self._reused(known, call, tensors)
        return self._run_once(key, call, forward, args, kwargs, tensors)

    def were_wrong(self, changed: Sequence[torch.nn.Module]) -> bool:
        """True if something happened for which a reused call might have had another result.

        Args:
            changed: the modules that have other attributes than before the forward.
        """
        if not self.sources:
            return False
        if self.structure.objects_changed() or self._random != _random_states():
            return True
        return any(self._is_within_source(self.structure.paths[module][0]) for module in changed)

    def _is_within_source(self, path: str) -> bool:
        return path in self.sources or any(path.startswith(f"{source}.") for source in self.sources)

    def _key(self, kind: Hashable, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> tuple[Hashable, ...]:
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
            if len(set(places)) < len(places):
                names = list(map(id, tensors))
                return (*key, *map(places.index, places), *map(names.index, names))
        return key

    def _run_once(
        self,
        key: tuple[Hashable, ...],
        call: ModuleCall,
        forward: Callable[..., object],
        args: Args,
        kwargs: Kwargs,
        tensors: list[torch.Tensor],
    ) -> object:
        """Run a call, and remember it if it may be reused."""
        live = self._live
        first, operator_calls, marks = len(self.calls), self._mode.operator_calls, self.marks
        bytes_before, made = live.live, live.made
        before = live.begin()
        try:
            output = self.run(call, forward, args, kwargs)
        finally:
            peak, peak_at = live.end(before)
        if self.marks != marks:
            return output
        fresh: dict[int, int] = {}
        try:
            description = self._described(output, tensors, made, fresh)
            if len(key) == 4:
                is_same = (tensors[0].shape, tensors[0].stride()) == key[1:3]
            else:
                again: list[torch.Tensor] = []
                is_same = self._key(key[0], args, kwargs, again) == key and all(map(is_, again, tensors))
        except _NotComparable:
            return output
        prefix = f"{call.path}."
        if not is_same or live.live - bytes_before != sum(fresh.values()):
            return output
        if not all(inner.path.startswith(prefix) for inner in self.calls[first:]):
            return output
        with_values = tuple(weakref.ref(tensor) for tensor in tensors if not tensor.is_meta)
        self._runs[key] = _Run(
            call,
            first,
            len(self.calls),
            self._mode.operator_calls - operator_calls,
            peak - bytes_before,
            peak_at,
            description,
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
        if not self._live.made_since(storage, made):
            for position, tensor in enumerate(tensors):
                if tensor.is_meta and tensor.untyped_storage()._cdata == storage._cdata:
                    if tensor.dtype != output.dtype:
                        raise _NotComparable
                    offset = output.storage_offset() - tensor.storage_offset()
                    return _Given(position, output.shape, output.stride(), offset)
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
        source = run.call
        self.sources.add(source.path)
        begin = len(source.path)
        self._live.reach(
            run.peak, call.path + run.peak_at[begin:] if run.peak_at.startswith(source.path) else call.path
        )
        self._mode.operator_calls += run.operator_calls
        call.copy(source)
        if run.last > run.first:
            copies: dict[ModuleCall | None, ModuleCall] = {source: call}
            for inner in self.calls[run.first : run.last]:
                path = call.path + inner.path[begin:]
                copy = copies[inner] = inner.at(path, self._module_at[path], copies[inner.parent])
                self.calls.append(copy)
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
    """Return the states of the generators of random numbers; NumPy's has none before something has imported it.

    Torch's is not among them: its numbers are tensors, and a call that reads the values of one is not reused.
    """
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is None:
        return random.getstate(), None
    state = numpy_random.get_state(legacy=False)
    twister = state["state"]
    return random.getstate(), (twister["key"].tobytes(), twister["pos"], state["has_gauss"], state["gauss"])
