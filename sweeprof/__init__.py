"""sweeprof: declarative sweeps that profile machine-learning models.

The public names are imported on first use, so that ``import sweeprof`` stays instant and imports no framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeprof.errors import Problem, SweeprofError, Unsupported, UserError, WorkerError
    from sweeprof.metrics.metric import Metric, metric
    from sweeprof.profiling.layers import LayerTable
    from sweeprof.profiling.profiler import Profiler
    from sweeprof.profiling.timing import Protocol, Timing
    from sweeprof.results.compare import Comparison
    from sweeprof.results.measurement import Measurement
    from sweeprof.results.record import Record

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "sweeprof.results.compare",
    "LayerTable": "sweeprof.profiling.layers",
    "Measurement": "sweeprof.results.measurement",
    "Metric": "sweeprof.metrics.metric",
    "Problem": "sweeprof.errors",
    "Profiler": "sweeprof.profiling.profiler",
    "Protocol": "sweeprof.profiling.timing",
    "Record": "sweeprof.results.record",
    "SweeprofError": "sweeprof.errors",
    "Timing": "sweeprof.profiling.timing",
    "Unsupported": "sweeprof.errors",
    "UserError": "sweeprof.errors",
    "WorkerError": "sweeprof.errors",
    "metric": "sweeprof.metrics.metric",
}

__all__ = [
    "Comparison",
    "LayerTable",
    "Measurement",
    "Metric",
    "Problem",
    "Profiler",
    "Protocol",
    "Record",
    "SweeprofError",
    "Timing",
    "Unsupported",
    "UserError",
    "WorkerError",
    "__version__",
    "metric",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'sweeprof' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
