"""Metrics that are computed by functions of the model itself or of its data, while these exist.

In records this pass is called ``live``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeprof.backends import Backend
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import ModelMetric, Session
from sweeprof.results.validation import validated


@dataclass(frozen=True, slots=True)
class ModelMetrics:
    """By metric name: a value with its estimator and detail, or the reason why there is none."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, metrics: Sequence[ModelMetric], model: Any, data: Any) -> ModelMetrics:
        """Return the results of every metric; one that raises has a reason and does not affect the others."""
        results: dict[str, dict[str, Any]] = {}
        for metric in metrics:
            for name, result in metric.model_results(model, data).items():
                results[name] = dict(result)
        return cls(results)

    @property
    def tracebacks(self) -> list[str]:
        """The tracebacks of the metrics that raised, each once."""
        tracebacks: list[str] = []
        for result in self.results.values():
            traceback = (result.get("failure") or {}).get("traceback")
            if traceback and traceback not in tracebacks:
                tracebacks.append(traceback)
        return tracebacks

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelMetrics:
        """Return the results that :meth:`to_dict` wrote."""
        return validated(cls, data)


def run(session: Session, _: Backend) -> ModelMetrics:
    """Return the results of the session's metrics that read the model or its data."""
    with session.loaded() as model, session.timed("measure"):
        return ModelMetrics.of(session.model_metrics, model.native, session.data)


PASS = Pass(
    name="live",
    order=130,
    run=run,
    read=ModelMetrics.from_dict,
    kind="exact",
    provides=(Parameter("model", source="object"), Parameter("data", source="object")),
)
