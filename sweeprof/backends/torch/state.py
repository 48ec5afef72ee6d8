"""Leaving a model, and torch itself, as they were found; and the threads in which a model runs operators."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import Enum
from functools import lru_cache, partial
from multiprocessing.dummy import DummyProcess
from multiprocessing.pool import ThreadPool
from operator import attrgetter, is_
from threading import Thread
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

from sweeprof.backends.torch.private import (
    OpOverload,
    ProfilerSettings,
    TorchDispatchMode,
    is_profiler_enabled,
)
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported

ORIGINAL, MASK = "_orig", "_mask"
"""The ends of the names by which ``torch.nn.utils.prune`` registers a parameter and its mask."""
KEPT_BYTES = 1 << 30
"""Of the parameters, and of the tensors that are neither parameters nor buffers, no more than this is copied to be restored."""


@contextmanager
def unchanged(
    module: torch.nn.Module,
    *,
    values: bool = True,
    attributes: Attributes | None = None,
    tensors: Sequence[torch.Tensor] | None = None,
) -> Iterator[None]:
    """Put back everything that happens to ``module`` within it, also after an error.

    Restored: mode, attributes and what they hold (see :class:`Attributes`), which tensors are its parameters and buffers, which of
    them want gradients, and the state of the random generators.

    Args:
        values: their device, which gradients they have, and the values of buffers too, for a model that really runs; buffers are
            copied to the host for that. The values of parameters are for :func:`parameters_kept`.
        attributes: what :func:`attributes_of` returns, where the caller has it already.
        tensors: the parameters and buffers of all modules, likewise.
    """
    attributes = attributes or attributes_of(module, modules_of(module))
    modules = attributes.modules
    tensors = tensors_among(modules) if tensors is None else tensors
    # Their first forward changes their class, also of those whose weights were loaded, so that none of their tensors is lazy.
    lazy: list[tuple[Any, type]] = [(inner, type(inner)) for inner in modules if isinstance(inner, LazyModuleMixin)]
    if values:
        lazy += [(tensor, type(tensor)) for tensor in tensors if is_lazy(tensor)]
    if any_lazy(tensors):
        tensors = [tensor for tensor in tensors if not is_lazy(tensor)]
    wanting = list(map(_requires_grad, tensors))
    holding = []
    written = attributes.tensors
    if values:
        holding = [(tensor, tensor.data, tensor.grad) for tensor in tensors if tensor.is_leaf]
        written = [*written, *(b for b in module.buffers() if not is_lazy(b) and not b.is_meta)]
    kept = [_Values(tensor) for tensor in written]
    is_outermost = id(module) not in _REMEMBERED
    if is_outermost:
        _REMEMBERED[id(module)] = attributes
    try:
        accelerator, numbers = _seeded_accelerators()
        with torch.random.fork_rng(devices=numbers, device_type=accelerator):
            yield
    finally:
        if is_outermost:
            del _REMEMBERED[id(module)]
        attributes.restore()
        for thing, kind in lazy:
            _make_lazy(thing, kind)
        for tensor, data, grad in holding:
            tensor.data, tensor.grad = data, grad
        if list(map(_requires_grad, tensors)) != wanting:
            for tensor, requires_grad in zip(tensors, wanting, strict=True):
                tensor.requires_grad_(requires_grad)
        for tensor_values in kept:
            tensor_values.restore()


def _make_lazy(thing: Any, kind: type) -> None:
    """Give a parameter or module back the class that it had before it became a layer for the shape that it met."""
    if type(thing) is not kind:
        if isinstance(thing, torch.Tensor):
            thing.data = torch.empty(0, dtype=thing.dtype, device=thing.device)
        thing.__class__ = kind


_requires_grad = attrgetter("requires_grad")
_REMEMBERED: dict[int, Attributes] = {}
"""The attributes that a call of :func:`unchanged` has remembered, for those within it; by the identity of its module."""


class WrappedForward(partial[Any]):
    """A forward in the place of another; a copy or a pickle of its module has the other one.

    To a model that looks at its own forward it is the other one: it has its class, signature, name and code. It is a partial, as
    that is called without a step in Python.
    """

    original: Callable[..., object]

    @classmethod
    def of(cls, original: Callable[..., object], wrapping: Callable[..., object]) -> WrappedForward:
        """``wrapping`` in the place of ``original``."""
        made = cls(wrapping)
        made.original = original
        for name in ("__doc__", "__module__", "__annotations__"):  # what its class has, too
            if hasattr(original, name):
                setattr(made, name, getattr(original, name))
        return made

    @property
    def __class__(self) -> Any:
        return self.original.__class__

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError("the class of a forward cannot be changed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __eq__(self, other: object) -> bool:
        if type(other) is WrappedForward:
            other = other.original
        return bool(self.original == other)

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return repr(self.original)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.original, memo)

    def __reduce_ex__(self, _protocol: object) -> Any:
        return _itself, (self.original,)


_ABSENT: Any = object()


def _itself(forward: Callable[..., object]) -> Callable[..., object]:
    return forward


@contextmanager
def forwards_wrapped(
    modules: Iterable[torch.nn.Module], wrap: Callable[[torch.nn.Module, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within it each instance has the ``forward`` that ``wrap`` makes of it and of its own; afterwards its own.

    Unlike a pair of hooks a wrapped forward sees arguments and results in one place, sees ``module.forward(...)`` too, costs a
    fifth, and is not taken along when the module is copied or saved.
    """
    wrapped: list[tuple[dict[str, Any], Any]] = []
    try:
        for module in modules:
            attributes = vars(module)
            wrapped.append((attributes, attributes.get("forward", _ABSENT)))
            forward = module.forward
            attributes["forward"] = WrappedForward.of(forward, wrap(module, forward))
        yield
    finally:
        for attributes, before in wrapped:
            if before is _ABSENT:
                attributes.pop("forward", None)
            else:
                attributes["forward"] = before


_TRAINED_BY_CALLERS: set[int] = set()
"""The identities of the modules that :func:`in_inference_mode` has found in training mode, as long as it lasts."""


@contextmanager
def in_inference_mode(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Within it none of a caller's modules is in training mode.

    Not by ``eval()``: what a model does when it is called, merging adapters for example, could not be undone.
    """
    trained = [module for module in modules if is_training(module)]
    identities = set(map(id, trained))
    try:
        for module in trained:
            _set_mode(module, False)
        _TRAINED_BY_CALLERS.update(identities)
        yield
    finally:
        _TRAINED_BY_CALLERS.difference_update(identities)
        for module in trained:
            _set_mode(module, True)


@contextmanager
def in_training_mode(module: torch.nn.Module) -> Iterator[None]:
    """Within it a module is as its owner trains it (see :func:`start_training`); afterwards all modes are what they were."""
    modes = {inner: inner.training for inner in modules_of(module) if hasattr(inner, "training")}
    try:
        start_training(module, module)
        yield
    finally:
        for inner, mode in modes.items():
            _set_mode(inner, mode)


def start_training(module: torch.nn.Module, original: torch.nn.Module) -> torch.nn.Module:
    """Return a module in training mode as its owner trains it: layers that are frozen may stay in inference mode.

    The layers of a caller's model that is in training mode get their own modes back; of any other model ``train()`` is called.

    Args:
        module: the original or a copy.
        original: the model that a caller or a builder has made.
    """
    if id(original) in _TRAINED_BY_CALLERS:
        for inner, own in zip(modules_of(module), modules_of(original), strict=True):
            if hasattr(inner, "training"):
                _set_mode(inner, id(own) in _TRAINED_BY_CALLERS)
    else:
        with suppress(NotImplementedError):  # an exported program has the mode of its export only
            module.train()
    return module


def _set_mode(module: torch.nn.Module, is_training: bool) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        module.training = is_training  # its forward reads a flag in C++, which only an assignment reaches
    else:
        vars(module)["training"] = is_training


@contextmanager
def parameters_kept(module: torch.nn.Module, is_trained: bool) -> Iterator[None]:
    """Give the parameters and their gradients the values back that they had, after an optimizer or a forward has written to them.

    Lazy parameters have no values.

    Args:
        is_trained: an optimizer writes to them. Otherwise, as few forwards do, nothing is restored where they have more than
            :data:`KEPT_BYTES`, and no parameter that is sparse, quantized or of a class with operators of its own.
    """
    tensors: list[torch.Tensor] = list(module.parameters())
    tensors = [tensor for tensor in tensors if not is_lazy(tensor)]
    gradients = [tensor.grad for tensor in tensors]
    tensors += [gradient for gradient in gradients if gradient is not None]
    if not is_trained:
        tensors = [tensor for tensor in tensors if _has_plain_values(tensor)]
        if sum(tensor.nbytes for tensor in tensors) > KEPT_BYTES:
            tensors = []
    kept = [_Values(tensor) for tensor in tensors]
    try:
        yield
    finally:
        for values in kept:
            values.restore()


def _has_plain_values(tensor: torch.Tensor) -> bool:
    """True if a tensor is an array of numbers in memory of its own, which can be copied and written back."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested or is_lazy(tensor):
        return False
    return type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


class _Values:
    """The values that a tensor has when this is made, on the host.

    They are written back only where they have changed: memory that is mapped from a file stays shared with it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._data = tensor.data  # the memory, also where the tensor gets another one meanwhile
        self._before = _on_host(self._data)

    def restore(self) -> None:
        with torch.inference_mode(self._data.is_inference()):
            try:
                is_same = torch.equal(self._data.to(self._before.device), self._before)
            except RuntimeError:  # not every data type can be compared
                is_same = False
            if not is_same:
                self._data.copy_(self._before)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that takes no memory of an accelerator, where it would be taken for a part of the step."""
    if tensor.device.type in ("cpu", "meta"):
        return tensor.detach().clone()
    return tensor.detach().to("cpu")


def is_training(module: torch.nn.Module) -> bool:
    """True if a module is in training mode; one that TorchScript has frozen has no mode."""
    return bool(getattr(module, "training", False))


def frozen_weights(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the weights that TorchScript has made constants of a frozen module's forward, with their names there."""
    if not isinstance(module, torch.jit.ScriptModule) or hasattr(module, "training") or not hasattr(module, "graph"):
        return []
    found = []
    graph: Any = module.graph
    for node in graph.findAllNodes("prim::Constant"):
        if node.output().type().kind() == "TensorType" and node.hasAttribute("value"):
            weight = node.t("value")
            if weight.is_floating_point() or weight.is_complex():
                found.append((node.output().debugName(), weight))
    return found


def offloaded_to(root: torch.nn.Module) -> torch.device | None:
    """Return the device on which a model runs whose weights accelerate brings there call by call; None for any other model."""
    for module in modules_of(root):
        hook = vars(module).get("_hf_hook")
        for part in getattr(hook, "hooks", (hook,)):
            device = getattr(part, "execution_device", None)
            if device is not None and getattr(part, "offload", False):
                return torch.device(device)
    return None


def children_of(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that a module holds itself; the mapping of a scripted module has no length and no truth."""
    return [child for child in module._modules.values() if child is not None]


def modules_of(root: torch.nn.Module) -> list[torch.nn.Module]:
    """A root and every module below it, each once, parents first: ``root.modules()``, a few times quicker."""
    found: dict[torch.nn.Module, None] = {}
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += reversed(children_of(module))
    return list(found)


def is_compiled(module: torch.nn.Module) -> bool:
    """True if ``torch.compile`` made the module, or was applied to it in place."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def running_as_python(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules whose forward Python calls: scripted or compiled modules would skip a probe, or compile it."""
    modules = list(modules)
    compiled: set[torch.nn.Module] = set()
    for module in modules:
        if is_compiled(module):
            compiled.update(modules_of(getattr(module, "_orig_mod", module)))
    return [m for m in modules if m not in compiled and not isinstance(m, torch.jit.ScriptModule)]


def tensors_of(root: torch.nn.Module) -> list[torch.Tensor]:
    """Every parameter and buffer of a module and all below it; one that is shared as often as it is held."""
    return tensors_among(modules_of(root))


def tensors_among(modules: Iterable[torch.nn.Module], buffers: bool = True) -> list[torch.Tensor]:
    """Every parameter, and with ``buffers`` every buffer, that the modules hold themselves."""
    found: list[torch.Tensor | None] = []
    for module in modules:
        found += module._parameters.values()
        if buffers:
            found += module._buffers.values()
    return [tensor for tensor in found if tensor is not None]


def any_lazy(tensors: Iterable[torch.Tensor]) -> bool:
    """Return True if a parameter or buffer has no shape yet: ``is_lazy`` of each, a few times quicker."""
    return any(issubclass(kind, UninitializedParameter | UninitializedBuffer) for kind in set(map(type, tensors)))


def masks_of(root: torch.nn.Module) -> list[torch.Tensor]:
    """The pruning masks of a module and all below it."""
    found = []
    for module in modules_of(root):
        for name in module._parameters.keys():  # noqa: SIM118  # that of a scripted module is no mapping
            if not name.endswith(ORIGINAL):  # the buffers of a scripted module have no ``get``
                continue
            mask = module._buffers.get(name.removesuffix(ORIGINAL) + MASK)
            if mask is not None:
                found.append(mask)
    return found


def known_accelerator() -> torch.device | None:
    """Return the accelerator that this PyTorch is built for; None if there is none, where PyTorch 2.6 raises."""
    try:
        return torch.accelerator.current_accelerator()
    except RuntimeError:
        return None


def _seeded_accelerators() -> tuple[str, list[int]]:
    """Return the type and the numbers of the accelerators whose random numbers are kept; none before anything has used them."""
    current = known_accelerator()
    if current is None:
        return "cuda", []
    module = torch.get_device_module(current)
    is_initialized = getattr(module, "is_initialized", lambda: True)
    # MPS has one generator, whose functions take no device, as fork_rng calls them.
    if current.type == "mps" or not hasattr(module, "get_rng_state") or not is_initialized():
        return current.type, []
    return current.type, list(range(torch.accelerator.device_count()))


def attributes_of(module: torch.nn.Module, modules: list[torch.nn.Module]) -> Attributes:
    """Return the attributes of ``modules``, those of ``module``, that a call of :func:`unchanged` around has remembered; or new."""
    known = _REMEMBERED.get(id(module))
    return known if known is not None and known.modules == modules else Attributes(modules)


_CONTAINERS: tuple[Any, ...] = (OrderedDict, dict, list, deque, set)
"""Containers that can be emptied and filled again; one of a derived class, by the methods of the first of these."""
_OF_MODULES = frozenset(vars(torch.nn.Module()))
"""The names of the attributes that every module has. What these containers hold needs no look: modules, parameters, hooks."""
_MOST_ELEMENTS = 10_000
"""The elements of a container with more are not looked into: it is a vocabulary, or a data set."""
_MOST_PARTS = 100_000
"""After so many objects in all, no further ones are looked into."""
_WITHOUT_STATE: frozenset[Any] = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type, FunctionType, BuiltinFunctionType, MethodType}
    | {torch.device, torch.dtype, torch.Size, torch.layout, torch.memory_format}
)
"""Classes of objects that a forward does not change: they are not looked into."""
_CACHED_FUNCTION = type(lru_cache(_itself))
_DATA_MODULES = frozenset({"abc", "typing", "collections", "_collections_abc", "types"})
"""Modules of the standard library whose objects are restored with their attributes: they have no other state."""


class Attributes:
    """The attributes of modules, and what these hold, as they were when it was made.

    That is: containers, the attributes and slots of objects that are written in Python, and whatever these hold in turn; the states
    of random generators. A ``functools.lru_cache`` of a method, or of a function in the file of a module's class, is emptied if it
    has a new result. Left as they are: objects of the standard library and of torch, such as files, queues and data loaders;
    objects with a lock, which other threads may be using; modules that are not registered as such; NumPy arrays; elements of
    containers with more than 10,000; and what comes after 100,000 objects.
    """

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        self.modules = modules
        self.tensors: list[torch.Tensor] = []
        """Those that are neither parameters nor buffers, up to :data:`KEPT_BYTES` of them."""
        self.further_tensors: list[torch.Tensor] = []
        """The rest of them."""
        self._held: list[tuple[Any, Any, Any]] = []
        """Every container, the class whose methods change it, and a copy of its contents."""
        self._slots: list[tuple[Any, Any, Any]] = []
        """Every object that has slots, a slot, and what was in it."""
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._misses = {cache: cache.cache_info().misses for cache in _caches_of(set(map(type, modules)))}
        waiting = []
        of_modules: list[tuple[Any, Any, Any]] = []
        for module in modules:
            attributes = vars(module)
            of_modules.append((attributes, dict, attributes.copy()))
            for name, value in attributes.items():
                kind = type(value)
                if name not in _OF_MODULES:
                    if kind not in _WITHOUT_STATE:
                        waiting.append(value)
                elif kind in _CONTAINERS:
                    self._held.append((value, kind, value.copy() if value else ()))
        if waiting:
            self._look_into(waiting)
        self._held += of_modules  # restored last

    def _look_into(self, waiting: list[Any]) -> None:
        seen = set(map(id, tensors_among(self.modules)))
        is_plain: dict[type, bool] = {}
        size = 0
        while waiting and len(seen) < _MOST_PARTS:
            part = waiting.pop()
            kind = type(part)
            if kind in _WITHOUT_STATE or id(part) in seen:
                continue
            seen.add(id(part))
            if issubclass(kind, torch.Tensor):
                if _has_plain_values(part):
                    size += part.nbytes
                    (self.tensors if size <= KEPT_BYTES else self.further_tensors).append(part)
            elif issubclass(kind, torch.Generator):
                self._generators.append((part, part.get_state()))
            else:
                if kind not in is_plain:
                    is_plain[kind] = _is_plain(kind)
                if is_plain[kind]:
                    waiting += self._remember(part)

    def _remember(self, part: Any) -> list[Any]:
        """Remember a container or an object, and return what it holds."""
        kind = type(part)
        content: Any = ()
        base = next((base for base in _CONTAINERS if issubclass(kind, base)), None)
        if base is not None:
            content = _content(part, base)
        elif issubclass(kind, tuple | frozenset):
            content = part
        elements = []
        if len(content) <= _MOST_ELEMENTS:
            held = content.values() if isinstance(content, dict) else content
            elements = [element for element in held if type(element) not in _WITHOUT_STATE]
        slots = [slot for owner in kind.__mro__ for slot in vars(owner).values() if type(slot) is MemberDescriptorType]
        in_slots = [(part, slot, slot.__get__(part, kind)) for slot in slots if _is_set(slot, part)]
        try:
            attributes = object.__getattribute__(part, "__dict__")
        except AttributeError:
            attributes = {}
        inner = [*attributes.values(), *(value for _, _, value in in_slots)]
        if any(type(value).__module__ in ("_thread", "threading") for value in inner):
            return []
        if base is not None:
            self._held.append((part, base, content))
        if type(attributes) is dict:
            self._held.append((attributes, dict, attributes.copy()))
        self._slots += in_slots
        return [*elements, *inner]

    def restore(self) -> None:
        """Put every one back that was exchanged, added or removed."""
        for part, slot, value in self._slots:
            slot.__set__(part, value)
        for container, base, content in self._held:
            if not _same(container, base, content):
                base.clear(container)
                if issubclass(base, dict):
                    for key, value in dict(content).items():
                        base.__setitem__(container, key, value)
                elif base is set:
                    set.update(container, content)
                else:
                    base.extend(container, content)
        for generator, state in self._generators:
            generator.set_state(state)
        for cache, misses in self._misses.items():
            if cache.cache_info().misses != misses:
                cache.cache_clear()
                self._misses[cache] = 0


def _caches_of(kinds: Iterable[type]) -> Iterator[Any]:
    """Yield the functions with a ``functools.lru_cache`` among the methods of classes, and in the files that define these.

    Those of torch do not depend on who calls them.
    """
    owners = {id(owner): owner for kind in kinds for owner in kind.__mro__ if owner is not object}
    own = [owner for owner in owners.values() if str(owner.__module__).partition(".")[0] != "torch"]
    defining = {name: sys.modules[name] for name in (owner.__module__ for owner in own) if name in sys.modules}
    for owner in (*own, *defining.values()):
        for value in list(vars(owner).values()):
            function = value.__func__ if type(value) in (staticmethod, classmethod) else value
            if type(function) is _CACHED_FUNCTION:
                yield function


def _is_plain(kind: type) -> bool:
    """True if an object of this class has no state but its attributes and elements, so that it is restored with them."""
    for base in kind.__mro__:
        package = str(base.__module__).partition(".")[0]
        if package == "builtins":
            is_plain = base in (object, dict, list, set, tuple, frozenset)
        elif package == "torch":
            is_plain = base.__module__.startswith("torch.optim")
        else:
            is_plain = package in _DATA_MODULES or (package not in sys.stdlib_module_names and package != "sweeprof")
        if not is_plain:
            return False
    return True


def _is_set(slot: Any, part: object) -> bool:
    try:
        slot.__get__(part, type(part))
    except AttributeError:
        return False
    return True


def _content(container: Any, base: Any) -> Any:
    """A copy of what a container holds, by the methods of ``base``: those of its own class may do anything."""
    if issubclass(base, dict):
        return dict(base.items(container))
    if base is set:
        return set(set.__iter__(container))
    return list(base.__iter__(container))


def _same(container: Any, base: Any, content: Any) -> bool:
    """True if a container holds the identical objects, in the same order."""
    if base.__len__(container) != len(content):
        return False
    if not content:
        return True
    if issubclass(base, dict):
        return all(map(is_, base.values(container), content.values())) and all(map(is_, base.keys(container), content))
    if base is set:
        return set.__eq__(container, content) is True
    return all(map(is_, base.__iter__(container), content))


# Inputs that are objects of their own, such as a cache of keys and values: copied with the tensors in them, and compared.


_CONSTANTS = (type, ModuleType, FunctionType, Enum, torch.nn.Module, str, bytes, int, float, complex, type(None))
"""What has no state that a forward is expected to change; a module has parameters, which are no input."""


def with_tensors(thing: object, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of an object in which every tensor is what ``change`` makes of it.

    A forward may change the object, which is its caller's. One that cannot be copied, as it holds a lock or a file, is returned
    itself.
    """
    if isinstance(thing, _CONSTANTS):
        return thing
    tensors = [part for part in parts_of(thing) if isinstance(part, torch.Tensor)]
    try:
        return copy.deepcopy(thing, {id(tensor): change(tensor) for tensor in tensors})
    except (TypeError, RuntimeError, NotImplementedError):
        return thing


def parts_of(tree: object) -> Iterator[object]:
    """Yield the object itself and everything that it holds, in containers and attributes, each once."""
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, (torch.Tensor, *_CONSTANTS)):
            continue
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, list | tuple | set | frozenset | deque):
            waiting += part
        waiting += getattr(part, "__dict__", {}).values()
        slots = [name for kind in type(part).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
        waiting += [getattr(part, name) for name in slots if hasattr(part, name)]


def _names(slots: object) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)  # type: ignore[arg-type]


def state_of(tree: object) -> tuple[object, ...]:
    """Return what differs after something has written into an object, added to it, or replaced a part of it."""
    state: list[object] = []
    for part in parts_of(tree):
        if isinstance(part, torch.Tensor):
            shape = version = None
            if not part.is_nested:
                shape = part.shape
            if not part.is_inference():
                version = part._version
            state.append((id(part), shape, version))
        elif isinstance(part, int | float | str):
            state.append(part)
        elif hasattr(part, "__len__"):
            state.append(len(part))
    return tuple(state)


# Operators that a forward runs in other threads: torch's modes, and its profiler, belong to a thread.


Function = Callable[..., Any]
T = TypeVar("T")

IN_OTHER_THREADS = "the model runs operators in other threads, which {} cannot follow"
_POOLS = ("concurrent.futures.thread", "multiprocessing.pool")
"""The modules whose threads run what others give them: that is followed, and not the threads, which stay."""
_TASKS: tuple[tuple[type, str], ...] = (
    (ThreadPoolExecutor, "submit"),
    (ThreadPool, "apply_async"),
    (ThreadPool, "_map_async"),
    (ThreadPool, "imap"),
    (ThreadPool, "imap_unordered"),
)
"""Methods whose first argument runs in the threads of a pool."""
FOLLOWED = "sweeprof: followed"
"""The name of the part of a profile in which a thread's operators are seen."""
_OWN_THREADS = "sweeprof-"


class UnseenOperators(Unsupported):
    """A model runs operators where they are not seen."""


@contextmanager
def tasks_wrapped(wrap: Callable[[Function], Function]) -> Iterator[None]:
    """Within it, what is given to another thread is what ``wrap`` makes of it; it is called in the thread that gives it."""
    start_thread, before = Thread.start, [vars(kind).get(name) for kind, name in _TASKS]

    def start(thread: Any) -> None:
        target = getattr(thread, "_target", None)
        if not isinstance(thread, DummyProcess) and getattr(target, "__module__", None) not in _POOLS:
            thread.run = wrap(thread.run)
        start_thread(thread)

    def giving(method: Function) -> Function:
        def give(pool: Any, function: Function, /, *args: Any, **kwargs: Any) -> Any:
            return method(pool, wrap(function), *args, **kwargs)

        return give

    try:
        setattr(Thread, "start", start)  # noqa: B010  # a method is not assigned to
        for kind, name in _TASKS:
            setattr(kind, name, giving(getattr(kind, name)))
        yield
    finally:
        setattr(Thread, "start", start_thread)  # noqa: B010
        for (kind, name), method in zip(_TASKS, before, strict=True):
            if method is None:
                delattr(kind, name)
            else:
                setattr(kind, name, method)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode in which nothing is compiled; to be wrapped for that would import the compiler, two seconds in every process."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class InThread(DispatchMode):
    """Hands the operators of another thread on; a mode of its own, as a mode remembers what it was entered within."""

    def __init__(self, dispatch: Callable[[OpOverload, Args, Kwargs], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dispatch = dispatch

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        return self._dispatch(func, args, kwargs or {})


def seen_whole(what: str, run: Callable[[], T]) -> T:
    """Return what ``run`` returns, if no operator ran where it is not seen: in a thread from before, in no call that is followed.

    Where such a thread has done anything, ``run`` is called again, in a profile of all threads.

    Args:
        what: cannot see such operators.

    Raises:
        UnseenOperators: some ran there, or the installed torch cannot tell.
    """
    before = _processor_times()
    result = run()
    woken = _woken(before)
    if not woken:
        return result
    if is_profiler_enabled():
        raise UnseenOperators(
            f"{IN_OTHER_THREADS.format(what)}, or may do so: only torch's profiler tells, which is in use"
        )
    try:
        settings = ProfilerSettings(profile_all_threads=True)
    except TypeError:
        reason = f"{IN_OTHER_THREADS.format(what)}, or may do so: torch {torch.__version__} cannot profile all threads"
        raise UnseenOperators(reason) from None
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=settings
    ) as profiler:
        result = run()
    unseen = _unseen(profiler.profiler.kineto_results.events(), {thread.native_id for thread in woken})
    if unseen:
        names = ", ".join(f"{name} ×{calls}" for name, calls in sorted(unseen.items()))
        raise UnseenOperators(f"{IN_OTHER_THREADS.format(what)}: {names} in a thread that was started before")
    return result


def _processor_times() -> dict[threading.Thread, int]:
    """The processor time of every other thread that Python started, in nanoseconds; 0 where the system does not tell."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    times = {}
    for thread in threading.enumerate():
        is_pythons = not isinstance(thread, threading._DummyThread)  # such a one may have ended
        if thread is threading.current_thread() or not is_pythons or thread.name.startswith(_OWN_THREADS):
            continue
        times[thread] = 0 if clock_of is None else time.clock_gettime_ns(clock_of(thread.ident))
    return times


def _woken(before: dict[threading.Thread, int]) -> set[threading.Thread]:
    """The threads of ``before`` that have used the processor since."""
    now = _processor_times()
    return {thread for thread, used in before.items() if now.get(thread) != used or now[thread] == 0}


def _unseen(events: Collection[Any], threads: Collection[int | None]) -> Counter[str]:
    """The outermost operators that some threads ran outside of the parts in which they are followed."""
    unseen: Counter[str] = Counter()
    ends: dict[int, int] = {}
    for event in sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns())):
        thread = event.device_resource_id()
        if thread not in threads or event.start_ns() < ends.get(thread, 0):
            continue
        ends[thread] = event.start_ns() + event.duration_ns()
        if event.name() != FOLLOWED:
            unseen[event.name()] += 1
    return unseen


@contextmanager
def in_one_thread(what: str, step: Callable[[], object]) -> Iterator[None]:
    """Within it, a model is to run its operators in the thread that calls it.

    Args:
        what: cannot see operators of other threads.
        step: is called once more at the end, if a thread from before has done anything.

    Raises:
        UnseenOperators: at the end, if it ran some in others.
    """
    ran_in_others = False
    before = _processor_times()

    def note(func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        nonlocal ran_in_others
        ran_in_others = True
        return func(*args, **kwargs)

    def noted(function: Function) -> Function:
        def run(*args: Any, **kwargs: Any) -> Any:
            with InThread(note):
                return function(*args, **kwargs)

        return run

    with tasks_wrapped(noted):
        yield
    if ran_in_others:
        raise UnseenOperators(IN_OTHER_THREADS.format(what))
    if _woken(before):
        seen_whole(what, step)
