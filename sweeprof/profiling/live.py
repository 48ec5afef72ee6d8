"""What metrics found that asked for the model itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sweeprof.results.validation import validated


class LiveMetric(Protocol):
    """A metric, bound to its options, that reads the model or its data."""

    def live_results(self, model: Any, data: Any) -> Mapping[str, Mapping[str, Any]]:
        """By metric name: a value with its estimator and detail, or the reason why there is none; plain JSON data."""


@dataclass(frozen=True, slots=True)
class Live:
    """By metric name, what was found."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Sequence[LiveMetric], model: Any, data: Any) -> Live:
        """Ask every metric; one that raises has a reason and takes none of the others with it."""
        found: dict[str, dict[str, Any]] = {}
        for metric in metrics:
            found.update({name: dict(result) for name, result in metric.live_results(model, data).items()})
        return cls(found)

    @property
    def tracebacks(self) -> list[str]:
        """The tracebacks of the metrics that raised, each once."""
        failures = (result.get("failure") or {} for result in self.results.values())
        return list(dict.fromkeys(trace for failure in failures if (trace := failure.get("traceback"))))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Live:
        """What :meth:`to_dict` wrote."""
        return validated(cls, data)
