"""The modules of a model, visited once before it is counted: paths, state to restore, and which modules are interchangeable."""

from __future__ import annotations

import dis
import enum
import types
from collections import Counter, OrderedDict
from collections.abc import Hashable
from functools import cache
from operator import itemgetter
from typing import Any

import torch

from sweeprof.backends.torch.state import (
    ORIGINAL,
    Attributes,
    attributes_of,
    children_of,
    tensors_among,
)

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


class Structure:
    """Every module below a root, each once, parents first."""

    def __init__(self, paths: dict[torch.nn.Module, list[str]]) -> None:
        """Args:
        paths: the modules with the paths by which they are held.
        """
        self.paths = paths
        self.attributes: Attributes = attributes_of(paths)
        self.tensors = tensors_among(paths)
        """Every parameter and buffer; one that is shared as often as it is held."""
        self.kinds: dict[torch.nn.Module, Kind | None] = {}
        self.positions: dict[type, set[str]] = {}
        """Classes of modules that have such attributes."""
        self._interned: dict[Hashable, Kind] = {}
        self._objects: dict[int, tuple[object, tuple[object, ...]]] = {}
        """Other objects that modules hold, with what they held."""
        held = 0
        names: set[str] = set()
        for module in reversed(paths):  # children come before their parents
            self.kinds[module] = self._kind(module) if len(paths[module]) == 1 else None
            held += len(children_of(module)) if module._modules else 0
            names.update(module._parameters.keys())
        self.is_recursive = held >= len(paths)
        """True if a module is within itself."""
        self.has_masks = any(name.endswith(ORIGINAL) for name in names)
        """True if ``torch.nn.utils.prune`` has put a mask on a parameter."""
        self.frequency = Counter(kind for kind in self.kinds.values() if kind is not None)

    def _kind(self, module: torch.nn.Module) -> Kind | None:
        try:
            return self._interned.setdefault(self._key(module), len(self._interned))
        except _NotComparable:
            return None

    def release(self) -> None:
        """Free what only the forward needs."""
        self.attributes = Attributes(())
        self._interned.clear()
        self._objects.clear()

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
        parts: list[Any] = [kind, values[0]]
        for held in values[1:3]:
            if held:
                parts += held
                parts += [_ABSENT if tensor is None else _tensor_key(tensor) for tensor in held.values()]
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
            values = [value if type(value) in PLAIN_VALUES else self._part(value, module) for value in values]
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


class _NotComparable(Exception):
    """A module holds something of which it is not known what it does."""


_ABSENT = "absent"


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


def _assigns_outside(code: types.CodeType) -> bool:
    names = {"STORE_GLOBAL", "DELETE_GLOBAL"}
    for instruction in dis.get_instructions(code):
        if instruction.opname in names:
            return True
        if instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in code.co_freevars:
            return True
    return any(_assigns_outside(inner) for inner in code.co_consts if isinstance(inner, types.CodeType))
