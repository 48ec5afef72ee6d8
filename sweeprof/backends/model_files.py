"""Makes a model's file in a process of its own: a measured process is to have nothing in memory but the run-time that loads it.

The child gets a request in JSON on standard input, and answers in JSON in the last line of its output: ``{"error": null}``, or the
stage that failed, the class of the error and what it says. What the builder raised is raised again here.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, ClassVar, NoReturn, Self, TypeVar

import numpy as np
from filelock import FileLock

from sweeprof.backends import AnyArray, Build
from sweeprof.errors import Unsupported
from sweeprof.measuring.instantiate import instantiate
from sweeprof.results.files import read_json, write_json
from sweeprof.tracebacks import formatted, located_at, location_of, message_of, original

LOCK_S = 600.0
"""How long to wait for another process that makes the same file."""
LONGEST = 400
"""Characters of an error's first line."""
NO_MEMORY = "can't allocate memory"
"""What torch's allocator says, in a plain RuntimeError."""
ChildRequest = Mapping[str, Any]


class BuildFailed(RuntimeError):
    """The builder raised, in the process that makes the file, an error whose class this process does not have."""


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """An error that was raised in the child process."""

    stage: str
    """``build``, or what the child calls the other one."""
    kind: str
    """The class of the error."""
    message: str
    """Its first line."""
    location: str | None = None
    """Where in the user's code it was raised."""
    traceback: str = ""

    @classmethod
    def of(cls, stage: str, error: BaseException) -> ChildFailure:
        """Return the description of an error, without Hydra's wrapping."""
        cause = original(error)
        message = message_of(cause)[:LONGEST]
        return cls(stage, type(cause).__name__, message, location_of(cause), formatted(error))

    def raise_as(self, refusal: str) -> NoReturn:
        """Raise what the builder raised; for a failure of another stage, Unsupported with ``refusal`` before the message."""
        if self.kind == "MemoryError" or NO_MEMORY in self.message:
            raise self._as_raised(MemoryError(self.message))
        if self.kind == "Unsupported":
            raise Unsupported(self.message)
        if self.stage != "build":
            raise Unsupported(f"{refusal}: {self.kind}: {self.message}")
        self.reraise()

    def reraise(self) -> NoReturn:
        """Raise it as what it was; as :class:`BuildFailed` where its class is not known here."""
        known = getattr(builtins, self.kind, None)
        if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _STRUCTURED):
            raise self._as_raised(known(self.message))
        raise self._as_raised(BuildFailed(f"{self.kind}: {self.message}"))

    def _as_raised(self, error: Exception) -> Exception:
        located_at(error, self.location)
        if self.traceback:
            error.add_note(f"in the process that makes the model's file:\n{self.traceback}")
        return error


_STRUCTURED = (UnicodeError, BaseExceptionGroup)
"""Errors that are not made from a message alone."""


class MadeFile:
    """A file that a converter makes in a folder of its own, where another file has what the first does not tell.

    A subclass is a dataclass with the field ``path``.
    """

    __slots__ = ()
    NAME: ClassVar[str]
    """Of the file in its folder."""
    path: str

    def write_facts(self) -> None:
        """Write every field but the path beside the file. From then on the folder is complete."""
        facts = {spec.name: getattr(self, spec.name) for spec in fields(self)}  # type: ignore[arg-type]
        del facts["path"]
        write_json(Path(self.path).with_name(FACTS), facts)

    @classmethod
    def within(cls, folder: Path) -> Self:
        """The file in a folder.

        Raises:
            FileNotFoundError: there is none.
        """
        facts: Any = read_json(folder / FACTS)
        return cls(path=str(folder / cls.NAME), **facts)  # type: ignore[call-arg]


FACTS = "facts.json"
File = TypeVar("File", bound=MadeFile)


@dataclass(frozen=True, slots=True)
class Maker:
    """A module that makes files in a process of its own: it calls :func:`answer`."""

    module: str
    refusal: str
    """The beginning of the message of an error that is not the builder's."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Of the environment of the process."""

    def make(self, request: ChildRequest) -> None:
        """Let the process carry out a request.

        Raises:
            Unsupported: it cannot make the file.
            Exception: whatever the builder raised.
        """
        failure = run_child(self.module, request, self.variables)
        if failure is not None:
            failure.raise_as(self.refusal)


def made_once(
    kind: type[File], folder: Path, maker: Maker, request: ChildRequest, samples: Sequence[AnyArray] = ()
) -> File:
    """Return the file in a folder; where there is none, a maker makes it, while other processes that want it wait.

    Args:
        kind: of the file.
        folder: of the file; the request gets it as ``folder``.
        maker: of the file.
        request: to the maker.
        samples: the request gets the path of a file with them as ``samples``, for :func:`stored_arrays`; None if there are none.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock"), timeout=LOCK_S), TemporaryDirectory(prefix="sweeprof-samples-") as kept:
        try:
            return kind.within(folder)
        except FileNotFoundError:
            pass
        folder.mkdir(exist_ok=True)
        path = Path(kept) / "samples.npz"
        if samples:
            np.savez(path, *samples)
        maker.make({**request, "folder": str(folder), "samples": str(path) if samples else None})
        return kind.within(folder)


class _Held:
    """What a folder of :func:`temporary_folder` lives as long as."""


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A new folder that exists within the context.

    A loaded model holds such a context and never leaves it. The folder is then removed when the model is collected, or the process
    ends; ``TemporaryDirectory`` would warn about that if the model is part of a reference cycle.
    """
    path = mkdtemp(prefix=prefix)
    held = _Held()
    remove = weakref.finalize(held, shutil.rmtree, path, ignore_errors=True)
    try:
        yield Path(path)
    finally:
        remove()


def digest_of(arrays: Iterable[AnyArray]) -> str:
    """Return a hash of the content of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def stored_arrays(path: str | None) -> list[AnyArray]:
    """Return the arrays that ``numpy.savez`` wrote; none without a path."""
    if path is None:
        return []
    with np.load(path) as stored:
        return [stored[f"arr_{index}"] for index in range(len(stored.files))]


def batches_of(arrays: Sequence[AnyArray], size: int) -> Iterator[list[AnyArray]]:
    """Every sample in batches of one size, the last one filled up with the first samples."""
    number = len(arrays[0])
    for begin in range(0, number, size):
        chosen = np.arange(begin, begin + size) % number
        yield [array[chosen] for array in arrays]


def built(node: Mapping[str, object], seed: int) -> Any:
    """Return what a config node describes, built with this seed of every generator that is loaded."""
    random.seed(seed)
    np.random.seed(seed)  # Keras draws its seeds from Python's generator
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    return instantiate(node)


def described(build: Build) -> Mapping[str, object] | None:
    """The config node that ``build`` makes the model from; None where a caller has the model in hands."""
    if isinstance(build, partial) and build.func is instantiate and len(build.args) == 1:
        node: Mapping[str, object] = build.args[0]
        return node
    return None


def run_child(module: str, request: ChildRequest, variables: Mapping[str, str]) -> ChildFailure | None:
    """Let ``module`` carry out the request in a process of its own with these variables; what failed.

    Raises:
        RuntimeError: the process died.
    """
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        env={**os.environ, **variables, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        raise RuntimeError(f"the process that makes the model's file ended with code {done.returncode}: {last}")
    error = json.loads(done.stdout.rpartition("\n")[2])["error"]
    return None if error is None else ChildFailure(**error)


def answer(carry_out: Callable[[ChildRequest], ChildFailure | None]) -> None:
    """The child's side: read the request, carry it out, tell how that went."""
    failure = carry_out(json.load(sys.stdin))
    error = None if failure is None else asdict(failure)
    sys.stdout.write(f"\n{json.dumps({'error': error})}")


FORMAT = 1
"""The version of the cached files. If it changes, every model is converted again."""
INGREDIENTS = {".py", ".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy", ".h5", ".keras", ".json", ".yaml"}
"""Files beside a builder that it may read."""


def key_of(node: Mapping[str, object], makers: Sequence[str], *more: object) -> str:
    """Return the cache key of a file: a hash of the description, its sources and weights, the packages that make it, and ``more``.

    Sources are known by path, size and time of their last change: what lies beside the builder's module or one folder below it,
    and every file that the description names. What a builder reads elsewhere is not known: remove the cache after changing it.
    """
    versions = {name: _version(name) for name in makers}
    known = [FORMAT, node, versions, sys.version, sorted(_ingredients(node)), *more]
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:24]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _ingredients(node: object) -> Iterator[tuple[str, int, int]]:
    for text in _texts(node):
        named = Path(text).expanduser().absolute()
        yield from _stamps([named] if named.is_file() else sorted(named.rglob("*")) if named.is_dir() else [])
        source = _source(text) if "." in text else None
        if source is not None:
            beside = source.parent
            yield from _stamps(path for path in (*beside.glob("*"), *beside.glob("*/*")) if path.suffix in INGREDIENTS)


def _texts(tree: object) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _texts(value)


def _stamps(paths: Iterable[Path]) -> Iterator[tuple[str, int, int]]:
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        if path.is_file():
            yield str(path), status.st_size, status.st_mtime_ns


def _source(target: str) -> Path | None:
    """The file of the module that a dotted name begins with, found without importing anything: that may take a framework."""
    where, found = None, None
    for part in target.split("."):
        spec = _spec(part, where) if part.isidentifier() else None
        if spec is None:
            break
        found, where = spec.origin, spec.submodule_search_locations
        if where is None:
            break
    return Path(found) if found not in (None, "built-in", "frozen") else None


def _spec(name: str, where: Sequence[str] | None) -> ModuleSpec | None:
    """Return the spec of a module within ``where``, or at the top level, where an editable installation may have its own finder."""
    try:
        return find_spec(name) if where is None else PathFinder.find_spec(name, where)
    except ValueError:  # a module that runs without a file, as __main__ does
        return None
