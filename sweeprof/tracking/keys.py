"""Which metrics a tracker gets, and the names under which it accepts them and parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sweeprof.report.cells import shortened
from sweeprof.report.columns import shown_metrics
from sweeprof.report.units import fixed_key
from sweeprof.results.compare import Comparison
from sweeprof.results.measurement import MetricInfo

KEY_LIMIT = 250
"""Characters; MLflow raises on more, as on any character but these (MLFLOW.md 1.1)."""
_REFUSED = re.compile(r"[^/\w.\- ]")

MOST_TRACKED = 13
"""Metrics of a run beside those that the tables show: a page of charts is soon full, and the comparison has all of them."""
INTERVAL_OF = "latency/forward"
"""The one metric whose interval is tracked too; those of all would triple the columns."""
INTERVAL_ENDS = (f"{INTERVAL_OF}_low", f"{INTERVAL_OF}_high")


def safe_key(name: str) -> str:
    """``name`` as a key that the tracker accepts."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part.strip(". ")]
    return shortened("/".join(parts), KEY_LIMIT).replace("…", "_") or "_"


def tracked_metrics(comparison: Comparison) -> list[MetricInfo]:
    """What the tables show, in their order, then others as long as there are few."""
    shown = shown_metrics(comparison)
    rest = [info for info in comparison.metrics if info not in shown]
    return [*shown, *rest[: max(0, MOST_TRACKED - len(shown))]]


def tracked_keys(comparison: Comparison) -> dict[str, str]:
    """The tracked key by the name of each tracked metric, in their order; an interval's ends come last."""
    # Made from all metrics, so that a key does not depend on which others are tracked.
    keys = metric_keys(comparison.metrics)
    names = [info.name for info in tracked_metrics(comparison)]
    return {name: keys[name] for name in (*names, *INTERVAL_ENDS) if name in keys}


def metric_keys(metrics: Sequence[MetricInfo]) -> dict[str, str]:
    """The key by the name of each metric, ends of an interval included; two names never share one."""
    units = {info.name: info.unit for info in metrics}
    units |= {name: units[INTERVAL_OF] for name in INTERVAL_ENDS if INTERVAL_OF in units}
    found: dict[str, str] = {}
    for name, unit in units.items():
        key = plain = safe_key(fixed_key(name, unit))
        number = 2
        while key in found.values():
            key = f"{plain[: KEY_LIMIT - 4]}_{number}"
            number += 1
        found[name] = key
    return found
