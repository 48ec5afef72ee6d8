"""How a plan says that its measurements are compared: thresholds, constraints, the Pareto front, another sweep as baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeprof.errors import Damaged
from sweeprof.metrics.metric import Metric
from sweeprof.passes.registry import exclusive_passes
from sweeprof.plan.plan import Combination, Plan
from sweeprof.report.selection import metric_names, with_selection
from sweeprof.results.compare import Comparison, comparison_from
from sweeprof.results.cross_sweep import set_against
from sweeprof.results.files import read_json
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.record import Json

BASELINE_FILE = "baseline.json"
"""Beside the plan: a copy of the other sweep's comparison, so that reports can be written again without that sweep."""
OUTPUT_DIFFERENCE = "quality/agreement"
"""The metric that a sweep over several frameworks has without being asked to."""


def judged(comparison: Comparison, plan: Plan, folder: Path, damaged: list[str]) -> Comparison:
    """Return the comparison with that of the other sweep, if the plan names one, and with the rows that qualify.

    Args:
        damaged: gets why the other sweep's comparison cannot be read.
    """
    against = plan.compare.get("against")
    if against and (folder / BASELINE_FILE).exists():
        try:
            other = comparison_from(read_json(folder / BASELINE_FILE))
        except (Damaged, OSError) as error:
            damaged.append(f"{BASELINE_FILE}: {error}")
        else:
            comparison = set_against(comparison, other, against["label"])
    return with_selection(comparison, plan.compare.get("pareto") or (), plan.compare.get("constraints") or ())


def thresholds_of(plan: Plan, metrics: Sequence[MetricInfo]) -> dict[str, float]:
    """Return the thresholds of single metrics by their full names."""
    names = metric_names(metrics)
    given: Mapping[str, float] = plan.compare.get("thresholds") or {}
    return {names[name]: float(value) for name, value in given.items() if name in names}


def protocol_of(combinations: Sequence[Combination]) -> Json:
    """Return the different numbers of rounds, ways of interleaving and kernels of the combinations."""
    protocols = [c.config["protocol"] for c in combinations]
    found: dict[str, list[Any]] = {"rounds": [], "interleave": [], "kernel": []}
    for protocol in protocols:
        for key, values in found.items():
            if protocol.get(key) not in values:
                values.append(protocol.get(key))
    return {key: [value for value in values if value is not None] for key, values in found.items()}


def compares_outputs(combinations: Sequence[Combination], tolerance: float | None, metrics: Sequence[Metric]) -> bool:
    """True if a sweep is to compare outputs without being asked to: it times one model on several frameworks."""
    if tolerance is None or not any(metric.passes & exclusive_passes() for metric in metrics):
        return False
    frameworks = {c.config["backend"].get("framework") for c in combinations if c.unsupported is None}
    return len(frameworks) > 1 and all(metric.info.name != OUTPUT_DIFFERENCE for metric in metrics)
