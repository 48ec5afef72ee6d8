"""The figures of a sweep for services that draw their history: Bencher (BMF) and github-action-benchmark, as JSON data.

Neither format has a place for the reason of a missing value: such a figure is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from sweeprof.numbers import FIXED_NAMES, fixed_factor, fixed_key
from sweeprof.results.compared_rows import Comparison, value_of
from sweeprof.results.measurement import Better, Measurement
from sweeprof.results.record import Json
from sweeprof.text import axes_text


def bmf(comparison: Comparison) -> Json:
    """Return the Bencher Metric Format: value and interval by combination and by metric with unit (``latency/forward_ms``)."""
    data: Json = {}
    for name, measurement, value, interval in _figures(comparison):
        figure = {"value": value}
        if interval is not None:
            figure["lower_value"], figure["upper_value"] = interval
        data.setdefault(name, {})[fixed_key(measurement.name, measurement.unit)] = figure
    return data


def benchmark_action(comparison: Comparison, better: Better) -> list[Json]:
    """Return the entries of github-action-benchmark: ``customSmallerIsBetter`` or ``customBiggerIsBetter``.

    Args:
        comparison: what was measured.
        better: of the metrics that are returned; a file of that service has one direction.
    """
    entries = []
    for name, measurement, value, interval in _figures(comparison):
        if measurement.better != better:
            continue
        unit = FIXED_NAMES.get(measurement.unit, measurement.unit)
        entry: Json = {"name": f"{name}: {measurement.name}", "unit": unit, "value": value}
        if interval is not None:
            entry["range"] = f"{interval[0]:.4g} – {interval[1]:.4g}"
            entry["extra"] = f"range: 95% interval; rounds: {len(measurement.rounds) or 1}"
        entries.append(entry)
    return entries


def _figures(comparison: Comparison) -> Iterator[tuple[str, Measurement, float, tuple[float, float] | None]]:
    """Yield each value with a better direction: its combination, its measurement, value and interval in the metric's fixed unit."""
    for row in comparison.rows:
        for metric, cell in row.cells.items():
            value = value_of(row, metric) if row.has_values else None
            if value is None or cell.measurement.better is None:
                continue
            factor = fixed_factor(cell.measurement.unit)
            interval = cell.measurement.interval
            if interval is not None:
                interval = (interval[0] * factor, interval[1] * factor)
            # All axes, also those with one value: the name stays the same when another value is added.
            yield axes_text(row.axes), cell.measurement, value * factor, interval
