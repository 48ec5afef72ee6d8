"""Weights that take long to make: the first trial of a shard that makes them writes them to a file, which the others read.

A builder runs in every trial, for whatever it does beside filling weights; where there is a file, on the meta device. The tensors
of the module then get the values in the file, in memory of their own, as if they had been filled there. The module is used only if
nothing tells it from one that was built for real: where any check fails, the model is built as if there were no file.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import json
import logging
import os
import pickle
import random
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import torch

from sweeprof.backends import Build, attribute
from sweeprof.backends.torch.model import build_on_meta, built
from sweeprof.backends.torch.private import swap_contents
from sweeprof.backends.torch.state import modules_of, parts_of, tensors_among
from sweeprof.errors import described
from sweeprof.paths import WEIGHTS
from sweeprof.processes import holds_in_child
from sweeprof.results.files import write_json
from sweeprof.results.record import Json
from sweeprof.targets import instantiate

LONG_S = 1.0
"""Weights that are made in less time are made by every trial."""
ALIGNMENT = 64
"""Bytes to a multiple of which each storage in a file begins, as in memory."""
SYMBOLIC = "torch.fx.experimental.symbolic_shapes"
"""A module that some operators import on the meta device: its 34 MB would be measured as memory of the model."""
MOST_REACHED = 1_000_000
"""The weights of a module that refers to more objects are not kept: looking through them takes a second."""
INITIALISED = "_is_hf_initialized"
"""The attribute by which transformers marks modules whose weights it has filled; it fills none on the meta device."""
_PLAIN = (bool, int, float, complex, str, type(None), torch.device, torch.dtype)
_begun: dict[str, tuple[Path, bytes]] = {}
"""By description of a model, the path of its file, without a suffix, and the state of the generators before this process first
built it: where it builds the model again, it reads the same file."""
log = logging.getLogger(__name__)


class _Unfit(Exception):  # it is never reported as an error
    """Why a module cannot be made from a file."""


def built_once(build: Build, is_mapped: bool = False) -> torch.nn.Module:
    """Return the module that ``build`` makes from a config, with the same values whether or not they come from a file.

    Afterwards the random generators of torch, NumPy and Python are in the same state, too.

    Args:
        is_mapped: map the file instead of reading it, for a module that is then copied to an accelerator.
    """
    folder = os.environ.get(WEIGHTS)
    if folder is None or not isinstance(build, partial) or build.func is not instantiate:
        return built(build)
    # A builder may read variables, and what it draws depends on what was drawn before.
    known = [build.args, torch.initial_seed(), _variables()]
    model = json.dumps(known, sort_keys=True, default=str)
    now = _generators()
    is_first = model not in _begun
    if is_first:
        key = hashlib.sha256(model.encode() + now)
        _begun[model] = Path(folder) / key.hexdigest()[:24], now
    path, before = _begun[model]
    if path.with_suffix(".json").exists() and (not is_first or _is_fit(build, path, before)):
        try:
            _set_generators(before)
            return _read(build, path, is_mapped)
        except Exception as error:  # the builder may raise anything on meta, and a disk may fail
            log.debug("the weights are not read from the file: %s", described(error))
            path.with_suffix(".bin").unlink(missing_ok=True)
            _set_generators(now)
    imported = set(sys.modules)
    begin = time.perf_counter()
    module = built(build)
    build_s = time.perf_counter() - begin
    if build_s >= LONG_S and now == before and not path.with_suffix(".json").exists():
        try:
            _write(module, path, build_s, [name for name in sys.modules if name not in imported])
        except Exception as error:  # a module may hold anything, and a disk may fail
            log.debug("weights are not kept: %s", described(error))
    return module


@cache
def _variables() -> list[tuple[str, str]]:
    """Return the environment variables before this process built anything: CUDA, and what builders import, set further ones."""
    return sorted(os.environ.items())


def _generators() -> bytes:
    """Return the states of the generators of torch, NumPy and Python."""
    return pickle.dumps((torch.get_rng_state().numpy(), np.random.get_state(), random.getstate()))


def _set_generators(states: bytes) -> None:
    of_torch, of_numpy, of_python = pickle.loads(states)
    torch.set_rng_state(torch.from_numpy(of_torch))
    np.random.set_state(of_numpy)
    random.setstate(of_python)


def _contents(module: torch.nn.Module) -> tuple[list[torch.Tensor], list[torch.UntypedStorage], list[Json]]:
    """Return the tensors that a module and all below it hold, each once, their storages, and a description of the module.

    Two modules with equal descriptions differ in nothing but the values of their tensors.

    Raises:
        _Unfit: there is something whose values or state the storages do not have.
    """
    modules = modules_of(module)
    tensors: dict[int, torch.Tensor] = {}
    numbers: dict[int, int] = {}
    contents: list[Json] = []
    for inner in modules:
        held = []
        for tensor in tensors_among([inner]):
            tensors[id(tensor)] = tensor
            held.append(numbers.setdefault(id(tensor), len(numbers)))
        plain = {name: repr(value) for name, value in vars(inner).items() if isinstance(value, _PLAIN)}
        contents.append({"class": type(inner).__qualname__, "plain": plain, "held": held})
    for part in parts_of([vars(inner) for inner in modules]):
        if isinstance(part, torch.Tensor):
            tensors.setdefault(id(part), part)
        elif isinstance(part, str) and part == "meta":
            raise _Unfit(f"the module holds {part!r}")
    for thing in _reached(module):
        if isinstance(thing, torch.Generator) or (isinstance(thing, torch.device) and thing.type == "meta"):
            raise _Unfit(f"the module holds {thing!r}")
    storages: dict[int, torch.UntypedStorage] = {}
    places: dict[int, int] = {}
    for tensor in tensors.values():
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
        if not is_plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or not tensor.is_leaf:
            raise _Unfit(f"a {type(tensor).__name__} is more than its numbers")
        has_hooks = tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None)
        if has_hooks or tensor.grad is not None:
            raise _Unfit("a tensor has hooks or a gradient")
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        contents.append(
            {
                "class": type(tensor).__name__,
                "dtype": str(tensor.dtype),
                "requires_grad": tensor.requires_grad,
                "storage": places.setdefault(storage._cdata, len(places)),
                "view": [tensor.storage_offset(), list(tensor.shape), list(tensor.stride())],
            }
        )
    return list(tensors.values()), list(storages.values()), contents


def _reached(module: torch.nn.Module) -> Iterator[object]:
    """Yield what a module refers to: in attributes and containers, and in closures and arguments of functions that it holds."""
    seen = {id(module)}
    waiting: list[object] = [module]
    while waiting:
        thing = waiting.pop()
        yield thing
        if isinstance(thing, type | ModuleType):
            continue
        found = gc.get_referents(thing)
        if isinstance(thing, FunctionType):  # without the global names of the file that it is in
            found = [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        waiting += [part for part in found if id(part) not in seen]
        seen.update(map(id, found))
        if len(seen) > MOST_REACHED:
            raise _Unfit("the module holds too much to look through")


def _write(module: torch.nn.Module, path: Path, build_s: float, imported: list[str]) -> None:
    """Write the weights of a module that was just built, unless they would take more than half of the free space.

    Args:
        build_s: how long its builder took.
        imported: the names of what it imported.
    """
    _, storages, contents = _contents(module)
    if any(storage.device.type != "cpu" for storage in storages):
        raise _Unfit("the builder puts weights on another device")
    if sum(storage.nbytes() for storage in storages) > shutil.disk_usage(path.parent).free / 2:
        raise _Unfit("the disk has no room for the weights")
    with path.with_suffix(".bin").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where another trial of an interleaved run writes it
        if path.with_suffix(".json").exists():
            return
        try:
            file.truncate(0)  # of a trial that was killed
            for storage in storages:
                file.write(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data)
                file.write(bytes(-storage.nbytes() % ALIGNMENT))
            file.flush()
            os.fsync(file.fileno())  # or the system would write it while something is measured
        except OSError:
            path.with_suffix(".bin").unlink()
            raise
        description = {
            "contents": contents,
            "storages": [storage.nbytes() for storage in storages],
            "torch": torch.get_rng_state().numpy().tobytes().hex(),
            "generators": hashlib.sha256(_generators()).hexdigest(),
            "imported": imported,
            "build_s": build_s,
        }
        write_json(path.with_suffix(".json"), description, compact=True, durable=False)


def _is_fit(build: Build, path: Path, before: bytes) -> bool:
    """Find out in a child whether a module can be made from a file: a builder may keep what it makes on the meta device.

    It is found out once, and in no more than twice the time that building took, or ten seconds.
    """

    def is_fit() -> bool:
        _set_generators(before)
        _read(build, path, is_mapped=True)
        return True

    marker = path.with_suffix(".fit")
    if not marker.exists():
        if not holds_in_child(is_fit, max(10.0, 2 * _described(path)["build_s"])):
            path.with_suffix(".bin").unlink(missing_ok=True)
            return False
        marker.touch()
    return True


def _described(path: Path) -> Json:
    known: Json = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    return known


def _read(build: Build, path: Path, is_mapped: bool) -> torch.nn.Module:
    """Return the module that ``build`` makes, with the weights in a file.

    Raises:
        _Unfit: a module that is built on the meta device differs in more than the values of its tensors.
        Exception: the builder cannot build it there, or the file cannot be read.
    """
    with path.with_suffix(".bin").open("rb") as file:
        known = _described(path)
        for name in known["imported"]:  # or the tensors that modules hold would be made on the meta device
            with suppress(ImportError):  # of modules that have no file, because a program made them
                import_module(name)
        undrawn = torch.get_rng_state()
        has_symbolic = SYMBOLIC in sys.modules
        sys.modules.setdefault(SYMBOLIC, None)  # type: ignore[arg-type]  # so that importing it raises
        try:
            module = build_on_meta(build)
        finally:
            if not has_symbolic:
                del sys.modules[SYMBOLIC]
        is_undrawn = torch.equal(torch.get_rng_state(), undrawn)
        # NumPy's and Python's draw on the meta device what they draw for real.
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(known["torch"]), dtype=torch.uint8))
        if not is_undrawn or hashlib.sha256(_generators()).hexdigest() != known["generators"]:
            raise _Unfit("it draws other random numbers on the meta device")
        for inner, facts in zip(modules_of(module), known["contents"], strict=False):
            if INITIALISED in facts["plain"]:
                setattr(inner, INITIALISED, True)
        tensors, _, contents = _contents(module)
        if contents != known["contents"]:
            raise _Unfit("it is another module on the meta device")
        if any(attribute(tensor, "_use_count")() > 1 for tensor in tensors):
            raise _Unfit("a tensor has views")  # which would keep its memory on meta
        gc.collect()
        found = set(map(id, tensors))
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor) and thing.is_meta and id(thing) not in found:
                raise _Unfit("there is a tensor on meta that the module does not show")
        storages = _storages(file, known["storages"], is_mapped)
    for tensor, facts in zip(tensors, contents[-len(tensors) :], strict=True):
        filled = torch.empty(0, dtype=tensor.dtype).set_(storages[facts["storage"]], *facts["view"])
        # So that whatever refers to the tensor has the values.
        swap_contents(tensor, filled.requires_grad_(tensor.requires_grad))
    return module


def _storages(file: BufferedReader, sizes: list[int], is_mapped: bool) -> list[torch.UntypedStorage]:
    """Return the storages in a file: copies, or the file's own pages, of which only those that are written to are copied."""
    storages, begin = [], 0
    for size in sizes:
        if is_mapped and size:
            values = torch.from_numpy(np.memmap(file, np.uint8, "c", begin, size))
        else:
            values = torch.empty(size, dtype=torch.uint8)
            file.seek(begin)
            if file.readinto(values.numpy().data) != size:
                raise _Unfit("the file is incomplete")
        storages.append(values.untyped_storage())
        begin += size + -size % ALIGNMENT
    return storages
