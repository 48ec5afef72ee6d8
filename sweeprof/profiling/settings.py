"""The settings of a framework around a pass: as they were requested, and as they were while the model ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeprof.results.comparable import Deviations, deviations_of


@dataclass(slots=True)
class MeasuredSettings:
    """What a backend reports before and after the last pass, see :class:`sweeprof.backends.ReportsSettings`."""

    requested: Mapping[str, Any] = field(default_factory=dict)
    """In effect before the pass, or asked for by a config."""
    in_effect: Mapping[str, Any] = field(default_factory=dict)
    """After the model ran, which may have changed them; empty if the pass did not run it."""
    _left: Mapping[str, Any] | None = None
    """After the last pass: if they are the same before the next one, nobody but the model has changed them."""

    def begin(self, current: Mapping[str, Any], configured: Mapping[str, Any]) -> None:
        """Note the settings before a pass, and those of them that a config asks for."""
        if current != self._left:
            self.requested = {**current, **configured}
        self.in_effect = {}

    def end(self, current: Mapping[str, Any]) -> None:
        """Note the settings after a pass."""
        self._left = current

    @property
    def deviations(self) -> Deviations:
        """Settings that were not as requested while the model ran, with the requested and the actual value."""
        return deviations_of(self.requested, self.in_effect)
