"""The names under which a tracker accepts metrics and parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sweeprof.report.cells import shortened
from sweeprof.report.units import fixed_key
from sweeprof.results.measurement import MetricInfo

KEY_LIMIT = 250
"""Characters; MLflow raises on more, as on any character but these (MLFLOW.md 1.1)."""
_REFUSED = re.compile(r"[^/\w.\- ]")

INTERVAL_OF = "latency/forward"
"""The one metric whose interval is tracked too; those of all would triple the columns."""
INTERVAL_ENDS = (f"{INTERVAL_OF}_low", f"{INTERVAL_OF}_high")


def safe_key(name: str) -> str:
    """``name`` as a key that the tracker accepts."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part.strip(". ")]
    return shortened("/".join(parts), KEY_LIMIT).replace("…", "_") or "_"


def metric_keys(metrics: Sequence[MetricInfo]) -> dict[str, str]:
    """The tracked key by the name of each metric, ends of an interval included; two names never share one."""
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
