"""Where models are kept that were made into files for a run-time, and under which name: that of all they are made from."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sweeprof.profiling import peaks

FORMAT = 1
"""Of the files; another one makes every model anew."""
INGREDIENTS = {".py", ".safetensors", ".pt", ".pth", ".bin", ".npz", ".npy", ".h5", ".keras", ".json", ".yaml"}
"""Files beside a builder that it may read."""


def cache_folder(name: str, wanted: str | None) -> Path | None:
    """``wanted``, or the folder of that name where the XDG base directory specification has caches; None without a home."""
    if wanted is not None:
        return Path(wanted).expanduser().absolute()
    others = peaks.cache()
    return None if others is None else others.with_name(name)


def key_of(node: Mapping[str, Any], makers: Sequence[str], *more: Any) -> str:
    """What a file depends on: the description, the sources and weights it names, the packages that make it, and ``more``.

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


def _ingredients(node: Any) -> Iterator[tuple[str, int, int]]:
    for text in _texts(node):
        named = Path(text).expanduser().absolute()
        yield from _stamps([named] if named.is_file() else sorted(named.rglob("*")) if named.is_dir() else [])
        source = _source(text) if "." in text else None
        if source is not None:
            beside = source.parent
            yield from _stamps(path for path in (*beside.glob("*"), *beside.glob("*/*")) if path.suffix in INGREDIENTS)


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from _texts(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _texts(value)


def _stamps(paths: Any) -> Iterator[tuple[str, int, int]]:
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
    """Of a module within ``where``, or at the top, where an editable installation may have a finder of its own."""
    try:
        return find_spec(name) if where is None else PathFinder.find_spec(name, where)
    except ValueError:  # a module that runs without a file, as __main__ does
        return None
