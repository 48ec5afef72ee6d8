"""What a framework's own counter says of a model: shown beside sweeprof's count, never instead of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeprof.results.validation import validated


@dataclass(frozen=True, slots=True)
class OwnCounts:
    """Counts of one forward of the whole batch, each in the unit and by the rules of whoever counted."""

    counts: Mapping[str, int]
    """By the name of the counter, e.g. ``{"tfprof": 845_862}``."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Of counters that gave nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OwnCounts:
        """What :meth:`to_dict` wrote."""
        return validated(cls, data)
