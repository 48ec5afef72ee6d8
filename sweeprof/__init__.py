"""sweeprof: declarative sweeps that profile machine-learning models.

The public names are imported on first use, so that ``import sweeprof`` stays instant and imports no framework.

They are stable: a name that is renamed or removed works for at least one more minor release, with a ``DeprecationWarning``.
Those in ``_EXPERIMENTAL`` may change in every minor release. docs/stability.md describes both.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweeprof.backends.torch.memory import live_tensors
    from sweeprof.counting.formulas import Cost, Formulas, module_formula, operator_formula
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
    from sweeprof.measuring.inputs import Inputs, TensorSpec, pattern_of
    from sweeprof.measuring.timing import Timing
    from sweeprof.measuring.training_config import GenerationConfig, TrainingConfig
    from sweeprof.metrics.evaluate import evaluation
    from sweeprof.metrics.metric import Estimate, Metric, Missing, metric, metric_group
    from sweeprof.numbers import scaled
    from sweeprof.profiling.layers import Layers
    from sweeprof.profiling.profile_lines import ProfiledFunction, profile_lines
    from sweeprof.profiling.profiler import Profile, Profiler, compare, profile
    from sweeprof.profiling.session import Data, set_logger
    from sweeprof.profiling.training_loop import LoopSession, TrainingProfiler, session
    from sweeprof.report.layer_table import side_by_side
    from sweeprof.results.comparison import Comparison
    from sweeprof.results.environment import Peaks
    from sweeprof.results.graph import Graph, GraphEdge, GraphNode, GraphTensor
    from sweeprof.results.layer_times import Iteration, LayerTimes
    from sweeprof.results.layers import LayerRow, LayerTable, Training
    from sweeprof.results.measurement import Measurement, MetricInfo
    from sweeprof.results.observations import (
        Allocations,
        Lines,
        Operators,
        TensorDifference,
        TensorRow,
        tensor_difference,
    )
    from sweeprof.results.record import Protocol, Record
    from sweeprof.results.verdicts import Difference
    from sweeprof.tracking import log_layers

__version__ = "0.2.0"

# What the library logs is printed only if the program that uses it says so.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    "Allocations": "sweeprof.results.observations",
    "Comparison": "sweeprof.results.comparison",
    "Cost": "sweeprof.counting.formulas",
    "Data": "sweeprof.profiling.session",
    "Difference": "sweeprof.results.verdicts",
    "Estimate": "sweeprof.metrics.metric",
    "Formulas": "sweeprof.counting.formulas",
    "GenerationConfig": "sweeprof.measuring.training_config",
    "Graph": "sweeprof.results.graph",
    "GraphEdge": "sweeprof.results.graph",
    "GraphNode": "sweeprof.results.graph",
    "GraphTensor": "sweeprof.results.graph",
    "Inputs": "sweeprof.measuring.inputs",
    "Iteration": "sweeprof.results.layer_times",
    "LayerRow": "sweeprof.results.layers",
    "LayerTable": "sweeprof.results.layers",
    "LayerTimes": "sweeprof.results.layer_times",
    "Layers": "sweeprof.profiling.layers",
    "Lines": "sweeprof.results.observations",
    "LoopSession": "sweeprof.profiling.training_loop",
    "Measurement": "sweeprof.results.measurement",
    "Metric": "sweeprof.metrics.metric",
    "MetricInfo": "sweeprof.results.measurement",
    "MetricWarning": "sweeprof.errors",
    "Missing": "sweeprof.metrics.metric",
    "Operators": "sweeprof.results.observations",
    "OverrideError": "sweeprof.errors",
    "Peaks": "sweeprof.results.environment",
    "Problem": "sweeprof.errors",
    "Profile": "sweeprof.profiling.profiler",
    "ProfiledFunction": "sweeprof.profiling.profile_lines",
    "Profiler": "sweeprof.profiling.profiler",
    "Protocol": "sweeprof.results.record",
    "TrainingConfig": "sweeprof.measuring.training_config",
    "Record": "sweeprof.results.record",
    "SweeprofError": "sweeprof.errors",
    "TensorDifference": "sweeprof.results.observations",
    "TensorRow": "sweeprof.results.observations",
    "TensorSpec": "sweeprof.measuring.inputs",
    "Timing": "sweeprof.measuring.timing",
    "Training": "sweeprof.results.layers",
    "TrainingProfiler": "sweeprof.profiling.training_loop",
    "Uncounted": "sweeprof.errors",
    "UncountedWarning": "sweeprof.errors",
    "Unsupported": "sweeprof.errors",
    "UserError": "sweeprof.errors",
    "WorkerError": "sweeprof.errors",
    "compare": "sweeprof.profiling.profiler",
    "evaluation": "sweeprof.metrics.evaluate",
    "live_tensors": "sweeprof.backends.torch.memory",
    "log_layers": "sweeprof.tracking",
    "metric": "sweeprof.metrics.metric",
    "metric_group": "sweeprof.metrics.metric",
    "module_formula": "sweeprof.counting.formulas",
    "operator_formula": "sweeprof.counting.formulas",
    "pattern_of": "sweeprof.measuring.inputs",
    "profile": "sweeprof.profiling.profiler",
    "profile_lines": "sweeprof.profiling.profile_lines",
    "scaled": "sweeprof.numbers",
    "session": "sweeprof.profiling.training_loop",
    "set_logger": "sweeprof.profiling.session",
    "side_by_side": "sweeprof.report.layer_table",
    "tensor_difference": "sweeprof.results.observations",
}

_EXPERIMENTAL = {
    "Allocations",
    "GenerationConfig",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "GraphTensor",
    "Lines",
    "ProfiledFunction",
    "TensorDifference",
    "TensorRow",
    "live_tensors",
    "profile_lines",
    "tensor_difference",
}

__all__ = [
    "Allocations",
    "Comparison",
    "Cost",
    "Data",
    "Difference",
    "Estimate",
    "Formulas",
    "GenerationConfig",
    "Graph",
    "GraphEdge",
    "GraphNode",
    "GraphTensor",
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
    "ProfiledFunction",
    "Profiler",
    "Protocol",
    "Record",
    "SweeprofError",
    "TensorDifference",
    "TensorRow",
    "TensorSpec",
    "Timing",
    "Training",
    "TrainingConfig",
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
    "profile_lines",
    "scaled",
    "session",
    "set_logger",
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
