"""Metrics that are computed by functions of the model itself or of its data, while these exist.

In records this pass is called ``live``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sweeprof.backends import Backend
from sweeprof.passes.registry import Parameter, Pass
from sweeprof.passes.session import Session
from sweeprof.results.record import Json, Stored


@dataclass(frozen=True, slots=True)
class ModelMetrics(Stored):
    """By metric name: a value with its estimator and detail, or the reason why there is none."""

    results: dict[str, Json] = field(default_factory=dict)

    @property
    def tracebacks(self) -> Sequence[str]:
        """The tracebacks of the metrics that raised, each once."""
        failures = [result.get("failure") or {} for result in self.results.values()]
        return list(dict.fromkeys(failure["traceback"] for failure in failures if failure.get("traceback")))


def run(session: Session, _: Backend) -> ModelMetrics:
    """Return the results of the session's metrics that read the model or its data.

    One that raises has a reason and does not affect the others.
    """
    results: dict[str, Json] = {}
    with session.loaded() as model, session.timed("measure"):
        for metric in session.model_metrics:
            results.update(metric.model_results(model.native, session.data))
    return ModelMetrics(results)


PASS = Pass(
    name="live",
    order=130,
    run=run,
    read=ModelMetrics.from_dict,
    kind="exact",
    provides=(Parameter("model", source="object"), Parameter("data", source="object")),
)
