"""The plots of a comparison as plain data; drawn by :mod:`sweeprof.report.images` and :mod:`sweeprof.report.html`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeprof.report.cells import (
    axis_number,
    axis_text,
    is_training,
    measured_of,
    one_line,
    shortened,
    unit_suffix,
    value_of,
)
from sweeprof.report.columns import MODEL_AXIS
from sweeprof.report.figure import OTHER_COLOUR, Axis, Dash, Marker, Plot, Series, backend_colour, model_look
from sweeprof.report.selection import pareto_front
from sweeprof.report.summary import where
from sweeprof.report.units import FIXED_NAMES, fixed_value, scaled
from sweeprof.report.verdict_summary import IntervalKind, interval_kind
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.measurement import MetricInfo

__all__ = ["Axis", "Plot", "Series", "backend_colour", "numeric_axis", "plots"]

BACKEND_AXIS = "backend"
BATCH_AXIS = "batch_size"

_LOG_SPAN = 10.0
"""Values that span more than this factor are drawn on a logarithmic scale."""
_NAME_LIMIT = 40
_MOST_TICKS = 12


@dataclass(frozen=True, slots=True)
class _Sweep:
    """A comparison with what every series asks of it, found once."""

    comparison: Comparison
    varying: tuple[str, ...]
    values: dict[str, list[str]]
    """The distinct values per axis, as text, in the order of the sweep."""

    @classmethod
    def of(cls, comparison: Comparison) -> _Sweep:
        axes = {*comparison.axes, MODEL_AXIS, BACKEND_AXIS}
        values = {a: list(dict.fromkeys(axis_text(row.axes.get(a)) for row in comparison.rows)) for a in axes}
        return cls(comparison, comparison.varying_axes(), values)


def plots(comparison: Comparison) -> list[Plot]:
    """Training step, latency and throughput over a numeric axis, and accuracy against latency; those with something to see."""
    sweep = _Sweep.of(comparison)
    is_trained = any(value_of(row, "latency/iteration") is not None for row in comparison.rows)
    found = [
        _over_axis(sweep, "training_step", "Training step", "latency/iteration"),
        _over_axis(sweep, "latency", "Forward" if is_trained else "Latency", "latency/forward"),
        _over_axis(sweep, "throughput", "Throughput", "throughput/samples_per_s"),
        _accuracy(sweep),
    ]
    return [plot for plot in found if plot is not None]


def numeric_axis(comparison: Comparison) -> str | None:
    """The axis that lines run over: the batch size where it varies, else the first varying axis made of numbers."""
    varying = [axis for axis in comparison.varying_axes() if axis != MODEL_AXIS]
    numeric = [a for a in varying if all(axis_number(row.axes.get(a)) is not None for row in comparison.rows)]
    return BATCH_AXIS if BATCH_AXIS in numeric else next(iter(numeric), None)


def _metric(comparison: Comparison, name: str) -> MetricInfo | None:
    return next((info for info in comparison.metrics if info.name == name), None)


_BARS: dict[IntervalKind, str] = {
    "rounds": "95 % over the rounds",
    "process": "95 % within one process",
    "both": "95 % over the rounds, or within one process",
}


def _over_axis(sweep: _Sweep, key: str, noun: str, metric: str) -> Plot | None:
    axis, info = numeric_axis(sweep.comparison), _metric(sweep.comparison, metric)
    if axis is None or info is None:
        return None
    xs = sorted({number for row in sweep.comparison.rows if (number := axis_number(row.axes[axis])) is not None})
    series = [
        _line(sweep, rows, info, axis)
        for rows in _by_line(sweep, axis).values()
        if any(value_of(row, metric) is not None for row in rows)
    ]
    if sum(y is not None for one in series for y in one.y) < 2:
        return None
    title = f"{noun} over {one_line(axis).replace('_', ' ')}"
    kind = interval_kind(
        row.cells[metric].measurement for row in sweep.comparison.rows if value_of(row, metric) is not None
    )
    bars = f" – bars: {_BARS[kind]}" if kind else ""
    x_axis = Axis(one_line(axis) + bars, _is_log(xs), tuple(xs) if len(xs) <= _MOST_TICKS else ())
    ys = [y for one in series for y in one.y if y is not None]
    return Plot(key, title, x_axis, Axis(_titled(noun, info), _is_log(ys)), tuple(series))


def _by_line(sweep: _Sweep, x_axis: str | None) -> dict[tuple[str, ...], list[Row]]:
    """The rows that share every varying axis but the one the lines run over."""
    axes = [a for a in sweep.varying if a != x_axis]
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in sweep.comparison.rows:
        found.setdefault(tuple(axis_text(row.axes.get(a)) for a in axes), []).append(row)
    return found


def _line(sweep: _Sweep, rows: Sequence[Row], info: MetricInfo, axis: str) -> Series:
    # Only the values that this line's own rows have: one that another model was swept over is no gap here.
    ordered = sorted(rows, key=lambda row: float(row.axes[axis]))
    points = [_point(row, info) for row in ordered]
    name, colour, dash, marker = _look(sweep, rows[0], axis)
    xs = tuple(row.axes[axis] for row in ordered)
    labels = tuple(_label(sweep, row, info) for row in ordered)
    y, low, high = zip(*points, strict=True)
    return Series(name, colour, dash, marker, xs, y, low, high, labels)


def _point(row: Row, info: MetricInfo) -> tuple[float | None, float | None, float | None]:
    """Value and interval in the unit of the plot."""
    value = value_of(row, info.name)
    if value is None:
        return None, None, None
    low, high = row.cells[info.name].measurement.interval or (None, None)
    ends = [None if end is None else fixed_value(end, info.unit) for end in (low, high)]
    return fixed_value(value, info.unit), ends[0], ends[1]


def _look(sweep: _Sweep, row: Row, x_axis: str | None) -> tuple[str, str, Dash, Marker]:
    """Name, colour, dash and marker of a row's series: a colour per backend, a dash and a marker per model."""
    axes = [a for a in sweep.varying if a != x_axis]
    name = " · ".join(shortened(axis_text(row.axes.get(a)), _NAME_LIMIT) for a in axes) or one_line(
        sweep.comparison.name
    )
    # With a single backend its colour would say nothing; the models, or what else varies, take the colours then.
    colour_axis = next((a for a in (BACKEND_AXIS, MODEL_AXIS, *axes) if a in axes), BACKEND_AXIS)
    colour = backend_colour(axis_text(row.axes.get(colour_axis)), sweep.values[colour_axis])
    dash, marker = model_look(axis_text(row.axes.get(MODEL_AXIS)), sweep.values[MODEL_AXIS])
    return name, colour, dash, marker


def _label(sweep: _Sweep, row: Row, *infos: MetricInfo) -> str:
    model = shortened(axis_text(row.axes.get(MODEL_AXIS, sweep.comparison.name)), _NAME_LIMIT)
    figures = [
        scaled(value, i.unit) + unit_suffix(i.unit) for i in infos if (value := value_of(row, i.name)) is not None
    ]
    return ", ".join(part for part in (model, shortened(where(row, sweep.varying), 2 * _NAME_LIMIT), *figures) if part)


def _titled(noun: str, info: MetricInfo) -> str:
    unit = FIXED_NAMES.get(info.unit, info.unit)
    arrow = {"lower": " – lower is better", "higher": " – higher is better", None: ""}[info.better]
    return f"{noun}{f' ({unit})' if unit else ''}{arrow}"


def _is_log(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) >= _LOG_SPAN


def _accuracy(sweep: _Sweep) -> Plot | None:
    """Accuracy against latency; per sample where the batch size varies, as a larger batch always takes longer."""
    batched = BATCH_AXIS in sweep.varying
    speed = (_metric(sweep.comparison, "latency/per_sample") if batched else None) or _metric(
        sweep.comparison, "latency/forward"
    )
    accuracy = _metric(sweep.comparison, "quality/accuracy")
    if speed is None or accuracy is None:
        return None
    rows = [
        r
        for r in sweep.comparison.rows
        if r.has_values and value_of(r, speed.name) is not None and value_of(r, accuracy.name) is not None
    ]
    # A forward within a training step is no rival of one alone.
    rows = [row for row in rows if not is_training(row)] or rows
    modes = [row.axes.get("mode") for row in rows]
    rivals = rows + [r for r in sweep.comparison.rows if not r.has_values and r.axes.get("mode") in modes]
    points = [(_point(row, speed)[0] or 0.0, _point(row, accuracy)[0] or 0.0) for row in rows]
    if len(set(points)) < 2:
        return None
    front = pareto_front(points)
    label = measured_of(rivals, [speed.name, accuracy.name])
    series = [_front(points, front)]
    place = {row.combination_id: i for i, row in enumerate(rows)}
    for group in _by_line(sweep, BATCH_AXIS if batched else None).values():
        members = [row for row in group if row.combination_id in place]
        if not members:
            continue
        name, colour, dash, marker = _look(sweep, members[0], BATCH_AXIS if batched else None)
        x, y = zip(*(points[place[row.combination_id]] for row in members), strict=True)
        none = (None,) * len(members)
        labels = tuple(_label(sweep, row, accuracy, speed) for row in members)
        series.append(Series(name, colour, dash, marker, x, y, none, none, labels, lines=False))
    noun = "Latency per sample" if speed.name == "latency/per_sample" else "Latency"
    x_axis = Axis(_titled(noun, speed), _is_log([x for x, _ in points]))
    return Plot(
        "accuracy",
        f"Accuracy against {noun.lower()}" + (f" ({label})" if label else ""),
        x_axis,
        Axis(_titled("Accuracy", accuracy), False),
        tuple(series),
    )


def _front(points: Sequence[tuple[float, float]], front: Sequence[int]) -> Series:
    x, y = zip(*(points[i] for i in front), strict=True)
    none = (None,) * len(front)
    return Series(
        "Pareto front", OTHER_COLOUR, "solid", "circle", x, y, none, none, ("",) * len(front), points=False, steps=True
    )
