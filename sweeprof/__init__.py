"""sweeprof: declarative sweeps that profile machine-learning models.

The public names are imported on first use, so that ``import sweeprof`` stays instant and imports no framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeprof.backends.torch.tensors import live_tensors
    from sweeprof.errors import (
        MetricWarning,
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
    from sweeprof.profiling.loop import LoopSession, session
    from sweeprof.profiling.profile import Profile, compare, profile
    from sweeprof.profiling.profiler import Profiler
    from sweeprof.profiling.recipe import Recipe
    from sweeprof.profiling.timing import Protocol, Timing
    from sweeprof.profiling.training import TrainingProfiler
    from sweeprof.report.scaled import scaled
    from sweeprof.report.side_by_side import side_by_side
    from sweeprof.results.allocations import Allocations
    from sweeprof.results.compare import Comparison
    from sweeprof.results.differences import Difference
    from sweeprof.results.iteration import Iteration
    from sweeprof.results.layer_times import LayerTimes
    from sweeprof.results.layers import LayerRow, LayerTable, Training
    from sweeprof.results.lines import Lines
    from sweeprof.results.measurement import Measurement, MetricInfo
    from sweeprof.results.operators import Operators
    from sweeprof.results.peaks import Peaks
    from sweeprof.results.record import Record
    from sweeprof.results.tensors import TensorDifference, TensorRow, tensor_difference
    from sweeprof.tracking.layers import log_layers

__version__ = "0.1.0"

_HOMES = {
    "Allocations": "sweeprof.results.allocations",
    "Comparison": "sweeprof.results.compare",
    "Cost": "sweeprof.profiling.formulas",
    "Data": "sweeprof.profiling.data",
    "Difference": "sweeprof.results.differences",
    "Estimate": "sweeprof.metrics.metric",
    "Formulas": "sweeprof.profiling.formulas",
    "Inputs": "sweeprof.profiling.inputs",
    "Iteration": "sweeprof.results.iteration",
    "LayerRow": "sweeprof.results.layers",
    "LayerTable": "sweeprof.results.layers",
    "LayerTimes": "sweeprof.results.layer_times",
    "Layers": "sweeprof.profiling.layers",
    "Lines": "sweeprof.results.lines",
    "LoopSession": "sweeprof.profiling.loop",
    "Measurement": "sweeprof.results.measurement",
    "Metric": "sweeprof.metrics.metric",
    "MetricInfo": "sweeprof.results.measurement",
    "MetricWarning": "sweeprof.errors",
    "Missing": "sweeprof.metrics.metric",
    "Operators": "sweeprof.results.operators",
    "OverrideError": "sweeprof.errors",
    "Peaks": "sweeprof.results.peaks",
    "Problem": "sweeprof.errors",
    "Profile": "sweeprof.profiling.profile",
    "Profiler": "sweeprof.profiling.profiler",
    "Protocol": "sweeprof.profiling.timing",
    "Recipe": "sweeprof.profiling.recipe",
    "Record": "sweeprof.results.record",
    "SweeprofError": "sweeprof.errors",
    "TensorDifference": "sweeprof.results.tensors",
    "TensorRow": "sweeprof.results.tensors",
    "TensorSpec": "sweeprof.profiling.inputs",
    "Timing": "sweeprof.profiling.timing",
    "Training": "sweeprof.results.layers",
    "TrainingProfiler": "sweeprof.profiling.training",
    "Uncounted": "sweeprof.errors",
    "UncountedWarning": "sweeprof.errors",
    "Unsupported": "sweeprof.errors",
    "UserError": "sweeprof.errors",
    "WorkerError": "sweeprof.errors",
    "compare": "sweeprof.profiling.profile",
    "evaluation": "sweeprof.metrics.evaluation",
    "live_tensors": "sweeprof.backends.torch.tensors",
    "log_layers": "sweeprof.tracking.layers",
    "metric": "sweeprof.metrics.metric",
    "metric_group": "sweeprof.metrics.metric",
    "module_formula": "sweeprof.profiling.formulas",
    "operator_formula": "sweeprof.profiling.formulas",
    "pattern_of": "sweeprof.profiling.inputs",
    "profile": "sweeprof.profiling.profile",
    "scaled": "sweeprof.report.scaled",
    "session": "sweeprof.profiling.loop",
    "side_by_side": "sweeprof.report.side_by_side",
    "tensor_difference": "sweeprof.results.tensors",
}

__all__ = [
    "Allocations",
    "Comparison",
    "Cost",
    "Data",
    "Difference",
    "Estimate",
    "Formulas",
    "Inputs",
    "Iteration",
    "LayerRow",
    "LayerTable",
    "LayerTimes",
    "Layers",
    "Lines",
    "LoopSession",
    "Measurement",
    "Metric",
    "MetricInfo",
    "MetricWarning",
    "Missing",
    "Operators",
    "OverrideError",
    "Peaks",
    "Problem",
    "Profile",
    "Profiler",
    "Protocol",
    "Recipe",
    "Record",
    "SweeprofError",
    "TensorDifference",
    "TensorRow",
    "TensorSpec",
    "Timing",
    "Training",
    "TrainingProfiler",
    "Uncounted",
    "UncountedWarning",
    "Unsupported",
    "UserError",
    "WorkerError",
    "__version__",
    "compare",
    "evaluation",
    "live_tensors",
    "log_layers",
    "metric",
    "metric_group",
    "module_formula",
    "operator_formula",
    "pattern_of",
    "profile",
    "scaled",
    "session",
    "side_by_side",
    "tensor_difference",
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'sweeprof' has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
