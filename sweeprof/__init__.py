"""sweeprof: declarative sweeps that profile machine-learning models.

The public names are imported on first use, so that ``import sweeprof`` stays instant and imports no framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeprof.errors import (
        OverrideError,
        Problem,
        SweeprofError,
        Uncounted,
        UncountedWarning,
        Unsupported,
        UserError,
        WorkerError,
    )
    from sweeprof.metrics.evaluation import evaluation
    from sweeprof.metrics.metric import Estimate, Metric, Missing, metric, metric_group
    from sweeprof.profiling.data import Data
    from sweeprof.profiling.formulas import Cost, Formulas, module_formula, operator_formula
    from sweeprof.profiling.inputs import Inputs, TensorSpec, pattern_of
    from sweeprof.profiling.layers import Layers
    from sweeprof.profiling.profile import Profile, compare, profile
    from sweeprof.profiling.profiler import Profiler
    from sweeprof.profiling.timing import Protocol, Timing
    from sweeprof.report.scaled import scaled
    from sweeprof.report.side_by_side import side_by_side
    from sweeprof.results.compare import Comparison
    from sweeprof.results.differences import Difference
    from sweeprof.results.layers import LayerRow, LayerTable, Training
    from sweeprof.results.measurement import Measurement, MetricInfo
    from sweeprof.results.record import Record

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "sweeprof.results.compare",
    "Cost": "sweeprof.profiling.formulas",
    "Data": "sweeprof.profiling.data",
    "Difference": "sweeprof.results.differences",
    "Estimate": "sweeprof.metrics.metric",
    "Formulas": "sweeprof.profiling.formulas",
    "Inputs": "sweeprof.profiling.inputs",
    "LayerRow": "sweeprof.results.layers",
    "LayerTable": "sweeprof.results.layers",
    "Layers": "sweeprof.profiling.layers",
    "Measurement": "sweeprof.results.measurement",
    "Metric": "sweeprof.metrics.metric",
    "MetricInfo": "sweeprof.results.measurement",
    "Missing": "sweeprof.metrics.metric",
    "OverrideError": "sweeprof.errors",
    "Problem": "sweeprof.errors",
    "Profile": "sweeprof.profiling.profile",
    "Profiler": "sweeprof.profiling.profiler",
    "Protocol": "sweeprof.profiling.timing",
    "Record": "sweeprof.results.record",
    "SweeprofError": "sweeprof.errors",
    "TensorSpec": "sweeprof.profiling.inputs",
    "Timing": "sweeprof.profiling.timing",
    "Training": "sweeprof.results.layers",
    "Uncounted": "sweeprof.errors",
    "UncountedWarning": "sweeprof.errors",
    "Unsupported": "sweeprof.errors",
    "UserError": "sweeprof.errors",
    "WorkerError": "sweeprof.errors",
    "compare": "sweeprof.profiling.profile",
    "evaluation": "sweeprof.metrics.evaluation",
    "metric": "sweeprof.metrics.metric",
    "metric_group": "sweeprof.metrics.metric",
    "module_formula": "sweeprof.profiling.formulas",
    "operator_formula": "sweeprof.profiling.formulas",
    "pattern_of": "sweeprof.profiling.inputs",
    "profile": "sweeprof.profiling.profile",
    "scaled": "sweeprof.report.scaled",
    "side_by_side": "sweeprof.report.side_by_side",
}

__all__ = [
    "Comparison",
    "Cost",
    "Data",
    "Difference",
    "Estimate",
    "Formulas",
    "Inputs",
    "LayerRow",
    "LayerTable",
    "Layers",
    "Measurement",
    "Metric",
    "MetricInfo",
    "Missing",
    "OverrideError",
    "Problem",
    "Profile",
    "Profiler",
    "Protocol",
    "Record",
    "SweeprofError",
    "TensorSpec",
    "Timing",
    "Training",
    "Uncounted",
    "UncountedWarning",
    "Unsupported",
    "UserError",
    "WorkerError",
    "__version__",
    "compare",
    "evaluation",
    "metric",
    "metric_group",
    "module_formula",
    "operator_formula",
    "pattern_of",
    "profile",
    "scaled",
    "side_by_side",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'sweeprof' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
