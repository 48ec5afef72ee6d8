"""Ratios to the baseline and verdicts of a combination as metrics and tags, so that MLflow sorts and filters by them."""

from __future__ import annotations

import math

from sweeprof.numbers import fixed_value
from sweeprof.report.answer import STEPS, main_metric, metric_of
from sweeprof.report.columns import called_metrics
from sweeprof.results.compare import Comparison, Row, value_of
from sweeprof.results.measurement import MetricInfo
from sweeprof.tracking.tables import unique_keys
from sweeprof.tracking.views import VERDICT_TAG

RATIOS = "vs_baseline/"
"""Begins the key of a ratio: the value over the baseline's, whatever is better; 1 for a baseline itself."""


class Ratios:
    """The ratios and verdicts of a comparison; the time of a step is ``latency``, in inference and in training.

    Args:
        comparison: whose metrics with a better direction are compared.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._main = main_metric(comparison)
        infos: list[MetricInfo] = [self._main] if self._main else []
        infos += [info for info in called_metrics(comparison) if info not in infos and info.better is not None]
        names = {info.name: info.name.removesuffix("_bytes").replace("/", "_") for info in infos}
        if self._main and self._main.name in STEPS:
            names[self._main.name] = "latency"
        self._keys = unique_keys({name: RATIOS + short for name, short in names.items()})

    def main_key(self, rows: tuple[Row, ...]) -> str:
        """Return the key of the main metric's ratio; empty if no row is compared."""
        key = self._keys[self._main.name] if self._main else ""
        return key if any(key in self.metrics(row) for row in rows if not row.is_baseline) else ""

    def metrics(self, row: Row) -> dict[str, float]:
        """Return the row's ratios by key, those that it has."""
        found = {}
        for name, key in self._of(row).items():
            ratio = row.cells[name].ratio if row.baseline_has_values else None
            if row.is_baseline and value_of(row, name):
                ratio = 1.0
            if ratio is not None and math.isfinite(ratio) and row.has_values:
                found[key] = fixed_value(ratio, "ratio")
        return found

    def tags(self, row: Row) -> dict[str, str]:
        """Return the row's verdicts; without one on the main metric, the reason in one word."""
        main = metric_of(row, self._main) if self._main else ""
        cells = {name: row.cells[name] for name in self._of(row)} if row.has_values else {}
        tags = {
            f"{VERDICT_TAG}.{key.removeprefix(RATIOS)}": str(cells[name].verdict)
            for name, key in self._of(row).items()
            if name != main and name in cells and cells[name].verdict
        }
        if not row.has_values:
            verdict: str = row.status
        elif row.is_baseline:
            verdict = "baseline"
        elif main in cells and cells[main].verdict:
            verdict = str(cells[main].verdict)
        else:
            verdict = "not_measured" if row.baseline_has_values else "no_baseline"
        return {VERDICT_TAG: verdict, **tags}

    def _of(self, row: Row) -> dict[str, str]:
        """The key of each metric that the row has, by name; the step of the row takes the key of the main metric."""
        keys = {name: key for name, key in self._keys.items() if name in row.cells}
        if self._main:
            step = metric_of(row, self._main)
            if step != self._main.name:
                keys.pop(self._main.name, None)
            if step in row.cells:
                keys[step] = self._keys[self._main.name]
        return keys
