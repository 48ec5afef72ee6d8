"""Memory of a process of its own."""

from __future__ import annotations

from sweeprof.metrics.metric import Estimate, metric
from sweeprof.profiling.memory import Memory


@metric(name="memory/rss_peak_bytes", unit="B", better="lower")
def rss_peak(memory: Memory) -> Estimate:
    """Peak resident set of a process that only loads the model and steps it, the framework included."""
    detail = {"baseline": memory.rss_baseline_bytes, "loaded": memory.rss_loaded_bytes}
    return Estimate(memory.rss_peak_bytes, "high-water mark", detail=detail)
