"""What of an environment must be alike for two measurements to be compared, and what has merely changed. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sweeprof.results.record import Json, Warning
from sweeprof.results.settings import spelled

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
DEVIATION = "settings in effect"
"""A field of the key that only measurements have whose settings were not as requested: they are comparable with nothing."""
AS_REQUESTED = "as requested"

Deviations = Mapping[str, tuple[Any, Any]]
"""By the name of a setting, the requested value and the actual one."""


def deviations_of(requested: Mapping[str, Any], actual: Mapping[str, Any]) -> Deviations:
    """Return the settings whose actual value is not the requested one; a setting that only one side knows is no deviation."""
    common = [name for name in actual if name in requested]
    return {
        name: (requested[name], actual[name]) for name in common if not _is_same(name, requested[name], actual[name])
    }


def _is_same(name: str, requested: Any, actual: Any) -> bool:
    if name == "device" and ":" not in str(requested):  # `cuda` is any of the devices `cuda:0`, `cuda:1` …
        return str(requested) == str(actual).partition(":")[0]
    return bool(requested == actual)


def warnings_of(deviations: Deviations) -> tuple[Warning, ...]:
    """Return a warning for each setting that was not as requested."""
    return tuple(
        Warning(
            "settings_differ",
            f"{name} was {_shown(actual)} while the model ran, and {_shown(requested)} was requested: not comparable",
            "request what the model sets (backend.threads), or keep it from setting threads"
            if name == "threads"
            else f"keep the model from changing {name}",
        )
        for name, (requested, actual) in deviations.items()
    )


def unsteady(environments: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings in effect that were not the same in all of these environments, with their values."""
    found: dict[str, list[Any]] = {}
    for environment in environments:
        for name, value in (environment.get("settings") or {}).items():
            values = found.setdefault(name, [])
            if value not in values:
                values.append(value)
    return {name: values for name, values in found.items() if len(values) > 1}


def unsteady_warnings(environments: Iterable[Mapping[str, Any]]) -> tuple[Warning, ...]:
    """Return a warning for each setting that changed between passes or rounds of one combination."""
    return tuple(
        Warning(
            "settings_changed",
            f"{name} was not the same in all passes and rounds: {', '.join(map(_shown, values))}",
            "set it once, before the sweep, and measure this combination again",
        )
        for name, values in unsteady(environments).items()
    )


def _deviation(environments: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what deviates from the request, or changed between these environments; None where nothing does."""
    found = {
        f"{name} {_shown(actual)} instead of {_shown(requested)}": None
        for environment in environments
        for name, (requested, actual) in (environment.get("deviations") or {}).items()
    }
    found |= {f"{name} {' and '.join(map(_shown, values))}": None for name, values in unsteady(environments).items()}
    return ", ".join(found) or None


def _shown(value: Any) -> str:
    return spelled(value) if value != "" else "nothing"


def key_of(environments: Iterable[Mapping[str, Any]]) -> Json:
    """The comparable key of measurements from these environments; a field that differs among them has all of its values."""
    found: dict[str, list[Any]] = {field: [] for field in KEY}
    known = list(environments)
    for environment in known:
        for field, path in KEY.items():
            value = _at(environment, path)
            if value not in found[field]:
                found[field].append(value)
    key: Json = {field: values[0] if len(values) == 1 else values for field, values in found.items() if values}
    deviation = _deviation(known)
    return key if deviation is None else {**key, DEVIATION: deviation}


def differing(own: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields of two comparable keys that differ: the baseline's value and this one. What a side does not tell does not differ."""
    common = [field for field in own if field in base and field != DEVIATION]
    found = {field: (base[field], own[field]) for field in common if own[field] != base[field]}
    if DEVIATION in own or DEVIATION in base:  # also where both deviate alike: what else the models did is not known
        found[DEVIATION] = base.get(DEVIATION, AS_REQUESTED), own.get(DEVIATION, AS_REQUESTED)
    return found


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
