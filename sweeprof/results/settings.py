"""Configs of many combinations as flat settings, what is alike in all of them told once. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeprof.results.record import Json


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a config; a list is a value, and so is an empty mapping."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def common_and_own(configs: Sequence[Mapping[str, Any]]) -> tuple[Json, list[Json]]:
    """The settings that all configs have alike, and of each config the others."""
    flattened = [dict(flat(config)) for config in configs]
    if not flattened:
        return {}, []
    common = {
        key: value
        for key, value in flattened[0].items()
        if all(key in one and one[key] == value for one in flattened[1:])
    }
    return common, [{key: value for key, value in one.items() if key not in common} for one in flattened]


def spelled(value: Any) -> str:
    """A setting as text; None is what is not set."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
