"""A metric's value for one combination, with all one needs to judge it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sweeprof.results.record import Warning

Better = Literal["lower", "higher"] | None
Number = int | float


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """What a metric is, apart from any value of it."""

    name: str
    """Canonical, e.g. ``latency/forward``."""
    unit: str
    """Base unit, e.g. ``s``, ``B``, ``MAC``, ``params``, ``ratio``."""
    better: Better
    """The direction of improvement; None where neither is better."""
    definition: str
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One metric of one combination. Either ``value`` or ``reason`` is given, never both."""

    name: str
    unit: str
    better: Better
    value: Number | None
    """In the base unit."""
    reason: str | None = None
    """Why there is no value."""
    estimator: str = "exact"
    """How the value was made from the samples, e.g. ``median``."""
    interval: tuple[float, float] | None = None
    """95 % interval of the estimate."""
    detail: dict[str, Any] = field(default_factory=dict)
    """Further figures in the same unit (``min``, ``max``, ``p90`` …), or the reason why one is not given."""
    rounds: tuple[float, ...] = ()
    """One estimate per round, where the metric was measured in rounds; what a comparison pairs."""
    warnings: tuple[Warning, ...] = ()
    round_numbers: tuple[int, ...] = ()
    """Which rounds the estimates are of; a round that failed is not among them."""

    def by_round(self) -> dict[int, float]:
        """Estimate by number of the round."""
        numbers = self.round_numbers or range(len(self.rounds))
        return dict(zip(numbers, self.rounds, strict=True))
