"""Which columns a table has, what they are called, and which figures are one for the whole table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sweeprof.report.cells import axis_number, axis_text, one_line, unit_suffix, value_of
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.measurement import Better, MetricInfo, Number

MODEL_AXIS = "model"

_HEADLINE: dict[str, tuple[str, int]] = {
    "latency/forward": ("latency", 1),
    "throughput/samples_per_s": ("throughput", 3),
    "memory/rss_peak_bytes": ("peak memory", 6),
    "memory/cuda_allocated_peak_bytes": ("peak GPU memory", 6),
    "quality/accuracy": ("accuracy", 4),
    "quality/agreement": ("agreement", 7),
    "compute/macs_per_sample": ("MACs/sample", 8),
    "params/total": ("parameters", 8),
    "compute/macs": ("MACs", 9),
    "compute/flops_per_sample": ("FLOPs/sample", 9),
    "memory/act_peak_live_bytes": ("live activations", 9),
    "memory/footprint_est_bytes": ("footprint", 9),
    "compute/flops_train": ("training FLOPs", 10),
    "memory/footprint_est_bytes_train": ("training footprint", 10),
}
"""Built-in metrics that a table shows, in this order: title, and the rank by which a narrow page keeps them."""
_RATIO_RANK, _USER_RANK = 2, 5
_BUILT_IN = ("params", "size", "compute", "latency", "throughput", "memory", "quality")
"""Families of which only the headline metrics are shown; a user's own metric always is."""
_COMPARED = "latency/forward"
"""The metric whose ratio to the baseline has a column of its own."""
DERIVED = frozenset({"throughput/samples_per_s"})
"""Shown without an interval: it is the latency's, the other way up."""
_ARROWS: dict[Better, str] = {"lower": " ↓", "higher": " ↑", None: ""}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    key: str
    """Axis key or canonical metric name."""
    kind: Literal["axis", "value", "ratio"]
    title: str
    """With ``↓`` or ``↑`` where a lower or a higher value is better."""
    rank: int = 0
    """What a narrow page drops first: the highest."""
    numeric: bool = True
    """Whether its entries are figures, to be aligned on the right."""
    hint: str = ""
    """What the column means, one sentence."""


def shown_metrics(comparison: Comparison) -> list[MetricInfo]:
    """The headline metrics in the order of the columns, then the user's own."""
    known = {info.name: info for info in comparison.metrics}
    own = [info for info in comparison.metrics if info.name.partition("/")[0] not in _BUILT_IN]
    if "compute/macs_per_sample" in known:
        known.pop("compute/macs", None)  # the same figure times the batch size
    return [known[name] for name in _HEADLINE if name in known] + own


def baseline_text(comparison: Comparison) -> str:
    """The baseline's axis values: ``torch``; a value that is no name comes with its axis, as ``batch_size=1``."""
    values = comparison.baseline.items()
    named = [axis_text(v) if isinstance(v, str) else f"{axis}={axis_text(v)}" for axis, v in values]
    return ", ".join(named) or "baseline"


def metric_title(info: MetricInfo) -> str:
    """The short name of a metric, with its unit where the values do not show it."""
    name, _ = _HEADLINE.get(info.name, (one_line(info.name), 0))
    return name + unit_suffix(info.unit)


def metric_columns(info: MetricInfo, rows: Sequence[Row], baseline: str) -> list[Column]:
    """The column of a metric, and that of its ratio to the baseline where the metric has one."""
    _, rank = _HEADLINE.get(info.name, ("", _USER_RANK))
    title = metric_title(info) + _ARROWS[info.better]
    columns = [Column(info.name, "value", title, rank, hint=one_line(info.definition))]
    cells = [row.cells[info.name] for row in rows if info.name in row.cells]
    if info.name == _COMPARED and any(cell.ratio is not None for cell in cells):
        hint = "This value over the baseline's, with the verdict."
        columns.append(Column(info.name, "ratio", f"vs {baseline}{_ARROWS[info.better]}", _RATIO_RANK, hint=hint))
    return columns


def axis_column(axis: str, rows: Sequence[Row]) -> Column:
    """The column of an axis."""
    numeric = all(axis_number(row.axes[axis]) is not None for row in rows if axis in row.axes)
    return Column(axis, "axis", one_line(axis), numeric=numeric)


def constant_value(info: MetricInfo, rows: Sequence[Row]) -> Number | None:
    """The value that every measured row has, where there are at least two and it is exact; else None."""
    measured = [row for row in rows if row.status == "ok"]
    values = {value_of(row, info.name) for row in measured}
    if len(measured) < 2 or len(values) != 1 or None in values:
        return None
    return None if any(row.cells[info.name].measurement.interval for row in measured) else values.pop()
