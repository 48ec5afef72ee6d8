"""Decoded samples as ``.npy`` files: written once per host, and memory-mapped by every process that reads them.

An entry is a folder ``entries/KEY`` with an array per file and ``entry.json``. It is written under a lock to another name and then
renamed, so that it is complete or does not exist.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sweeprof.datasets.collate import Sample
from sweeprof.errors import DatasetError, Problem, UserError
from sweeprof.paths import cache_folder
from sweeprof.results.files import write_atomically
from sweeprof.results.record import Json

FORMAT = 3
"""Of an entry; part of every key."""
HEADER_BYTES = 256
"""Of a ``.npy`` file: the shape is known when the last sample has been written, and then fits in."""
RUN_S = 7 * 24 * 3600
"""How long the keys of a run are kept, …"""
NEWEST_RUNS = 1000
"""… but those of so many runs also if they seem older: a clock that is set makes new ones look old."""
SAID_AFTER_S = 3.0
"""A wait for another process that takes longer is logged."""
DESCRIPTION = "entry.json"
log = logging.getLogger(__name__)

SampleArray = npt.NDArray[Any]
Varies = Literal["nothing", "length", "shape"]
"""In what samples may differ: the length of their first axis, or their shape."""


@dataclass(frozen=True, slots=True)
class CachedSamples:
    """Samples in the cache."""

    inputs: Any
    """An array, a nested mapping or tuple of arrays, or a list of samples whose shapes differ."""
    targets: Any
    channel_axis: int | None


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of entries."""

    folder: Path
    limit: int
    """Bytes above which the entries that were used longest ago are removed."""

    @classmethod
    def at(cls, folder: str | None, limit: int) -> Cache:
        """Return the cache in a folder; None: the user's cache folder, or one for temporary files without a home."""
        chosen = cache_folder("data", folder)
        return cls(chosen or Path(tempfile.gettempdir()) / f"sweeprof-{os.getuid()}" / "data", limit)

    def read(self, key: str) -> CachedSamples | None:
        """Return the entry, memory-mapped; None if there is none, or it is damaged."""
        folder = self.folder / "entries" / key
        try:
            described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
            inputs, targets = _restored(described["inputs"], folder), _restored(described["targets"], folder)
            with suppress(OSError):  # another user's, or a file system that is read only
                os.utime(folder / DESCRIPTION)
            return CachedSamples(inputs, targets, described["channel_axis"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Keep other processes from writing the entry."""
        from filelock import FileLock, Timeout

        with self._writable():
            (self.folder / "locks").mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._lock_path(key))
            try:
                lock.acquire(timeout=SAID_AFTER_S)
            except Timeout:
                log.warning("another process decodes the same samples: waiting for %s", lock.lock_file)
                lock.acquire()  # for as long as decoding takes: the lock ends with its process, and a trial with its limit
        try:
            yield
        finally:
            lock.release()

    def write(self, key: str, samples: Iterator[Sample], varies: Varies) -> None:
        """Write an entry, and remove the oldest ones if the cache is then too large; the caller holds the lock.

        Args:
            key: of the entry.
            samples: all of them.
            varies: in what samples may differ.

        Raises:
            DatasetError: there are no samples, or they do not go together.
            UserError: the folder cannot be written.
        """
        temporary = self.folder / "entries" / f"{key}.part"
        with self._writable():
            shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
            temporary.mkdir(parents=True)
        writer = _Writer(temporary, varies)
        try:
            for sample in samples:
                with self._writable():
                    writer.add(sample)
            if not writer.count:
                raise DatasetError("there are no samples")
            with self._writable():
                writer.finish()
                shutil.rmtree(self.folder / "entries" / key, ignore_errors=True)  # a damaged one
                temporary.rename(self.folder / "entries" / key)
        finally:
            writer.close()
            shutil.rmtree(temporary, ignore_errors=True)
        self._prune(key)

    def key_of_run(self, run: str, config: str) -> str | None:
        """Return the key that a run found for a config; None if it has not looked yet."""
        try:
            return (self.folder / "runs" / run / config).read_text(encoding="utf-8")
        except OSError:
            return None

    def set_key_of_run(self, run: str, config: str, key: str) -> None:
        """Keep the key for the other processes of a run: all of them see the same samples, also if files change."""
        with self._writable():
            write_atomically(self.folder / "runs" / run / config, key, durable=False)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"cannot be written: {error.strerror or error}; dataset.cache=FOLDER chooses another folder."
            raise UserError([Problem("dataset.cache", str(self.folder), reason)]) from error

    def _prune(self, kept: str) -> None:
        """Remove the entries that were used longest ago, but not ``kept``, and what is left of runs that ended days ago.

        Times of files tell the order of their use, and only together with their number that something is old: clocks are set.
        """
        from filelock import FileLock, Timeout

        now = time.time()
        for old in sorted(_listed(self.folder / "runs"), key=_modified)[:-NEWEST_RUNS]:
            if now - _modified(old) > RUN_S:
                shutil.rmtree(old, ignore_errors=True)
        sizes: dict[Path, int] = {}
        for path in _listed(self.folder / "entries"):
            if path.suffix == ".part":  # of a process that was killed; one that is being written has its lock taken
                lock = FileLock(self._lock_path(path.name.partition(".")[0]))
                with suppress(Timeout, OSError), lock.acquire(timeout=0):
                    shutil.rmtree(path, ignore_errors=True)
                continue
            sizes[path] = 0
            for file in _listed(path):
                with suppress(OSError):
                    sizes[path] += file.stat().st_size
            if _modified(path / DESCRIPTION) > now:  # by a clock that was ahead: it would count as just used for ever
                with suppress(OSError):
                    os.utime(path / DESCRIPTION)
        total = sum(sizes.values())
        for path in sorted(sizes, key=lambda path: _modified(path / DESCRIPTION)):
            if total <= self.limit:
                return
            if path.name == kept:
                continue
            removed = path.with_name(f"{path.name}.{os.getpid()}.part")  # incomplete entries must not be found
            with suppress(OSError):
                path.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)
                total -= sizes[path]

    def _lock_path(self, key: str) -> Path:
        return self.folder / "locks" / f"{key}.lock"


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclass(slots=True)
class _Column:
    """One array of all samples; those of different shapes are written one behind the other."""

    path: Path
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of the first sample."""
    place: str
    """Of the first sample."""
    varies: Varies
    file: BufferedWriter = field(init=False)
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.file = self.path.open("wb")
        self.file.write(bytes(HEADER_BYTES))

    def add(self, array: SampleArray, place: str) -> None:
        """Write the array of a sample; raises :class:`DatasetError` if it does not go with those before."""
        what = f"{self.name!r} of {place}" if self.name else place
        problem = None
        if array.dtype != self.dtype:
            problem = f"is of type {array.dtype}, and of {self.place} of type {self.dtype}"
        elif array.shape != self.shape and self.varies != "shape":
            if array.ndim != len(self.shape) or array.shape[1:] != self.shape[1:]:
                advice = "dataset.collate may name a function that makes a batch of samples of different shapes"
                problem = f"has the shape {array.shape}, and {self.place} has {self.shape}: {advice}"
            elif self.varies == "nothing":
                advice = "dataset.collate=pad fills up samples of different lengths"
                problem = f"has the length {len(array)}, and {self.place} has {self.shape[0]}: {advice}"
        elif array.ndim != len(self.shape):
            problem = f"has {array.ndim} axes, and {self.place} has {len(self.shape)}"
        if problem is not None:
            raise DatasetError(f"{what} {problem}")
        self.shapes.append(array.shape)
        self.file.write(np.ascontiguousarray(array).tobytes())

    def finish(self, are_listed: bool) -> Json:
        """Complete the file, and return its description; ``are_listed``: samples become items of a list."""
        shape: tuple[int, ...] = (len(self.shapes), *self.shape)
        has_shapes = are_listed and bool(self.shape)
        if has_shapes:
            shape = (sum(map(math.prod, self.shapes)),)
            np.save(self.path.with_suffix(".shapes.npy"), np.asarray(self.shapes, np.int64))
        described = f"{{'descr': {self.dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}}}".encode("latin1")
        begin = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
        self.file.seek(0)
        self.file.write(begin + described.ljust(HEADER_BYTES - 11) + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"file": self.path.name, "has_shapes": has_shapes}


class _Writer:
    """Writes samples to the files of an entry."""

    def __init__(self, folder: Path, varies: Varies) -> None:
        self._folder, self._varies = folder, varies
        self._columns: dict[str, _Column] = {}
        self._first: Sample | None = None
        self.count = 0

    def add(self, sample: Sample) -> None:
        """Write a sample; raises :class:`DatasetError` if it does not go with those before."""
        leaves = sample.leaves()
        if self._first is None:
            self._first = sample
            for number, (path, array) in enumerate(leaves.items()):
                file, name = self._folder / f"{number}.npy", path.partition(".")[2]
                self._columns[path] = _Column(file, name, array.dtype, array.shape, sample.place, self._varies)
        if leaves.keys() != self._columns.keys():
            ours, theirs = ", ".join(sorted(leaves)), ", ".join(sorted(self._columns))
            raise DatasetError(f"{sample.place} has {ours}, and {self._first.place} has {theirs}")
        for path, array in leaves.items():
            self._columns[path].add(array, sample.place)
        self.count += 1

    def finish(self) -> None:
        """Complete the entry."""
        assert self._first is not None
        described: Json = {"format": FORMAT, "samples": self.count, "channel_axis": self._first.channel_axis}
        for part in ("inputs", "targets"):
            columns = {path: one for path, one in self._columns.items() if path.partition(".")[0] == part}
            are_listed = any(len(set(column.shapes)) > 1 for column in columns.values())
            files = {path: column.finish(are_listed) for path, column in columns.items()}
            described[part] = None
            if files:
                tree = _described(getattr(self._first, part), part, files)
                described[part] = {"are_listed": are_listed, "tree": tree}
        with (self._folder / DESCRIPTION).open("w", encoding="utf-8") as file:
            json.dump(described, file)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close all files."""
        for column in self._columns.values():
            with suppress(OSError):
                column.file.close()


def _described(tree: object, path: str, files: Json) -> Json:
    """Return the structure of a sample with the files of its arrays."""
    if isinstance(tree, dict):
        return {"mapping": [[name, _described(value, f"{path}.{name}", files)] for name, value in tree.items()]}
    if isinstance(tree, tuple):
        return {"tuple": [_described(value, f"{path}.{at}", files) for at, value in enumerate(tree)]}
    described: Json = files[path]
    return described


def _restored(part: Json | None, folder: Path) -> Any:
    """Return inputs or targets as an entry describes them: arrays of all samples, or a list of samples; None if it has none."""
    if part is None:
        return None
    samples = _arrays(part["tree"], folder)
    return rows(samples) if part["are_listed"] else samples


def _arrays(tree: Json, folder: Path) -> Any:
    if "mapping" in tree:
        return {name: _arrays(inner, folder) for name, inner in tree["mapping"]}
    if "tuple" in tree:
        return tuple(_arrays(inner, folder) for inner in tree["tuple"])
    path = folder / tree["file"]
    array = np.load(path, mmap_mode="r").view(np.ndarray)
    if not tree["has_shapes"]:
        return array
    shapes = np.load(path.with_suffix(".shapes.npy"))
    pieces = np.split(array, np.cumsum(shapes.prod(axis=1))[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def rows(columns: Any) -> list[Any]:
    """Return a list of samples for arrays of all samples, or a mapping or tuple of them."""
    if isinstance(columns, dict):
        values = zip(*map(rows, columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in values]
    if isinstance(columns, tuple):
        return list(zip(*map(rows, columns), strict=True))
    return list(columns)
