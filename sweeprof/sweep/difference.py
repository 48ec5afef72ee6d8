"""How two plans of one sweep differ, in words."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from sweeprof.sweep.plan import Combination, Plan

MOST_KEYS = 8
"""Changed keys that are spelled out."""
_ABSENT = object()


def difference(old: Plan, new: Plan, measured: Collection[str]) -> list[str]:
    """Sentences: what is new, what is gone, which keys changed, how much of what was measured still belongs.

    Args:
        measured: the combinations that have records.
    """
    before, after = ({c.id: c for c in plan.combinations} for plan in (old, new))
    added, gone = [after[id] for id in after.keys() - before], [before[id] for id in before.keys() - after]
    if not added and not gone and old.passes == new.passes:
        return []
    words = []
    changed = dict(_changes(gone, added))
    if changed:
        shown = [f"{key}: {_text(a)} → {_text(b)}" for key, (a, b) in list(changed.items())[:MOST_KEYS]]
        more = f" and {len(changed) - MOST_KEYS} more" if len(changed) > MOST_KEYS else ""
        words.append(f"Changed: {', '.join(shown)}{more}.")
    if added or gone:
        words.append(f"{len(added)} combinations are new, {len(gone)} are gone.")
    passes = [name for name in new.passes if name not in old.passes]
    if passes:
        words.append(f"New passes: {', '.join(passes)}.")
    belong = sum(id in after for id in measured)
    words.append(f"{belong} of {len(measured)} combinations with results still belong to it.")
    return words


def _changes(gone: Collection[Combination], added: Collection[Combination]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Dotted keys with their values before and after, of combinations that stand at the same place of the sweep."""
    places = {_place(c): c for c in gone}
    for combination in added:
        other = places.get(_place(combination))
        if other is None:
            continue
        a, b = dict(_leaves(other.config)), dict(_leaves(combination.config))
        for key in sorted(a.keys() | b.keys()):
            if a.get(key, _ABSENT) != b.get(key, _ABSENT):
                yield key, (a.get(key, _ABSENT), b.get(key, _ABSENT))


def _place(combination: Combination) -> str:
    return json.dumps(combination.axes, sort_keys=True, default=str)


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, default=str)
