"""What of an environment must be alike for two measurements to be compared, and what has merely changed. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sweeprof.results.record import Json

KEY: dict[str, tuple[str, ...]] = {
    "host": ("host",),
    "processor": ("cpu", "model"),
    "processors available": ("cpu", "available"),
    "processor quota": ("cpu", "quota"),
    "governor": ("cpu", "governor"),
    "GPUs": ("gpus",),
}
"""The comparable key: where each of its fields is in an environment. Threads are beside it, for they are a setting."""

THREADS = "backend.threads"


def key_of(environments: Iterable[Mapping[str, Any]]) -> Json:
    """The comparable key of measurements from these environments; a field that differs among them has all of its values."""
    found: dict[str, list[Any]] = {field: [] for field in KEY}
    for environment in environments:
        for field, path in KEY.items():
            value = _at(environment, path)
            if value not in found[field]:
                found[field].append(value)
    return {field: values[0] if len(values) == 1 else values for field, values in found.items() if values}


def differing(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields of two comparable keys that differ: the baseline's value and this one. What a side does not tell does not differ."""
    common = [field for field in own if field in base]
    return {field: (base[field], own[field]) for field in common if own[field] != base[field]}


def changed(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What of two environments differs and forbids no comparison: system, Python, versions of libraries, the user's revision."""
    return {
        name: (before, now)
        for name, before, now in _software(own, base)
        if before != now and (before is not None or now is not None)
    }


def _software(own: Mapping[str, Any], base: Mapping[str, Any]) -> Iterable[tuple[str, Any, Any]]:
    for name in ("os", "python"):
        yield name, base.get(name), own.get(name)
    before, now = base.get("versions") or {}, own.get("versions") or {}
    for name in sorted({*before, *now}):
        yield name, before.get(name), now.get(name)
    yield "git", _revision(base), _revision(own)


def _revision(environment: Mapping[str, Any]) -> str | None:
    git = environment.get("git") or {}
    revision = git.get("revision")
    return f"{str(revision)[:12]}{' with uncommitted changes' if git.get('dirty') else ''}" if revision else None


def _at(environment: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    node: Any = environment
    for part in path:
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
