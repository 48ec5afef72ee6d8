"""The batch size at which each other setting has its highest throughput."""

from __future__ import annotations

from collections.abc import Iterator

from sweeprof.report.cells import axis_text, measured_of, value_of
from sweeprof.report.table import sorted_rows
from sweeprof.report.units import scaled, text_unit
from sweeprof.report.verdict_summary import combination_namer
from sweeprof.results.compare import Comparison, Row

AXIS = "batch_size"
METRIC = "throughput/samples_per_s"
MOST = 60
"""Lines that a report has room for; beyond that its table and its plots tell."""
TITLE = "Best batch size, by throughput"


def batch_lines(comparison: Comparison) -> Iterator[str]:
    """A line per combination of the other axes; none where the batch size alone varies, which the table shows as it is.

    What is said is what was measured: not that the difference to the next batch size is certain.
    """
    groups = _groups(comparison)
    if not 1 < len(groups) <= MOST:
        return
    unit = next((info.unit for info in comparison.metrics if info.name == METRIC), "")
    tell = combination_namer(comparison)
    for rows in groups:
        known = [(value_of(row, METRIC), row) for row in rows if row.has_values]
        values = [(value, row) for value, row in known if value is not None]
        if len(values) > 1:
            value, best = max(values, key=lambda pair: pair[0])
            others = {axis: chosen for axis, chosen in best.axes.items() if axis != AXIS}
            label = measured_of(rows, [METRIC])
            text = f"{tell(others)}: {axis_text(best.axes[AXIS])} – {scaled(value, text_unit(METRIC, unit))}"
            yield f"{text} ({label})" if label else text


def _groups(comparison: Comparison) -> list[list[Row]]:
    if AXIS not in comparison.varying_axes():
        return []
    found: dict[str, list[Row]] = {}
    for row in sorted_rows(comparison):
        if AXIS in row.axes:
            others = repr([(axis, value) for axis, value in row.axes.items() if axis != AXIS])
            found.setdefault(others, []).append(row)
    return list(found.values())
