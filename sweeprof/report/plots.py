"""The plots of a comparison as plain data; drawn by :mod:`sweeprof.report.images` and :mod:`sweeprof.report.html`."""

from __future__ import annotations

import re
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
from sweeprof.report.columns import MODEL_AXIS, is_throughput, shown_metrics
from sweeprof.report.figure import (
    OTHER_COLOUR,
    Annotation,
    Axis,
    Dash,
    Marker,
    Plot,
    Series,
    backend_colour,
    model_look,
)
from sweeprof.report.selection import pareto_front
from sweeprof.report.summary import where
from sweeprof.report.units import FIXED_NAMES, fixed_value, scaled
from sweeprof.report.verdict_summary import IntervalKind, interval_kind
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.measurement import MetricInfo

__all__ = ["Axis", "Plot", "Series", "backend_colour", "numeric_axis", "plots"]

BACKEND_AXIS = "backend"
BATCH_AXIS = "batch_size"

PROMPT_LENGTH_AXIS = "generation.prompt_length"
TIME_PER_TOKEN, DECODE_THROUGHPUT = "generation/time_per_token", "generation/decode_throughput"

_TIMES_OVER_SIZES = (
    ("training_step", "Training step", "latency/iteration"),
    ("latency", "Latency", "latency/forward"),
    ("generation_latency", "Latency of a generation", "generation/latency"),
    ("time_to_first_token", "Time to the first token", "generation/time_to_first_token"),
    ("time_per_token", "Time per token", TIME_PER_TOKEN),
)
"""Key, title and metric of the times that are drawn over sizes of the inputs."""
_TIMES_OVER_MAIN = ("latency/iteration", "latency/forward")
"""Those that are drawn over the main axis in any case."""
_MOST_NOTES = 24
"""Points of a plot that are labelled with their batch size."""
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
    """Times and throughput over numeric axes, accuracy against latency, throughput against speed per user; those with something to
    see.

    Times and throughput are drawn over the axis of :func:`numeric_axis`, times also over each further size of the inputs.
    """
    sweep = _Sweep.of(comparison)
    is_trained = any(value_of(row, "latency/iteration") is not None for row in comparison.rows)
    main = numeric_axis(comparison)
    rates = [info for info in shown_metrics(comparison) if is_throughput(info.name)]
    found = [
        _over_axis(sweep, main, "training_step", "Training step", "latency/iteration"),
        _over_axis(sweep, main, "latency", "Forward" if is_trained else "Latency", "latency/forward"),
    ]
    for place, info in enumerate(rates):
        key = "throughput" if place == 0 else f"throughput_{info.name.rpartition('/')[2].removesuffix('_per_s')}"
        found.append(_over_axis(sweep, main, key, "Throughput", info.name))
    for axis in _input_sizes(comparison):
        slug = re.sub(r"\W", "_", axis)
        for key, noun, metric in _TIMES_OVER_SIZES:
            if axis != main or metric not in _TIMES_OVER_MAIN:
                title = "Forward" if is_trained and metric == "latency/forward" else noun
                found.append(_over_axis(sweep, axis, f"{key}_over_{slug}", title, metric))
    found += [_accuracy(sweep), _speed_per_user(sweep)]
    return [plot for plot in found if plot is not None]


def numeric_axis(comparison: Comparison) -> str | None:
    """The axis that lines run over: the batch size where it varies, else the first varying axis made of numbers."""
    numeric = _numeric_axes(comparison)
    return BATCH_AXIS if BATCH_AXIS in numeric else next(iter(numeric), None)


def _numeric_axes(comparison: Comparison) -> list[str]:
    """Return the varying axes of which every row has a number."""
    varying = [axis for axis in comparison.varying_axes() if axis != MODEL_AXIS]
    return [a for a in varying if all(axis_number(row.axes.get(a)) is not None for row in comparison.rows)]


def _input_sizes(comparison: Comparison) -> list[str]:
    """Return the varying axes that are sizes of the inputs, such as ``inputs.sequence_length``, of which any row has a number.

    Models of one sweep may have different sizes: a row without the size is on no line.
    """
    sizes = [a for a in comparison.varying_axes() if a.startswith("inputs.") or a == PROMPT_LENGTH_AXIS]
    return [a for a in sizes if len({axis_number(row.axes.get(a)) for row in comparison.rows} - {None}) > 1]


def _metric(comparison: Comparison, name: str) -> MetricInfo | None:
    return next((info for info in comparison.metrics if info.name == name), None)


_BARS: dict[IntervalKind, str] = {
    "rounds": "95 % over the rounds",
    "process": "95 % within one process",
    "both": "95 % over the rounds, or within one process",
}


def _over_axis(sweep: _Sweep, axis: str | None, key: str, noun: str, metric: str) -> Plot | None:
    info = _metric(sweep.comparison, metric)
    if axis is None or info is None:
        return None
    placed = [row for row in sweep.comparison.rows if axis_number(row.axes.get(axis)) is not None]
    xs = sorted({row.axes[axis] for row in placed})
    series = [
        _line(sweep, rows, info, axis)
        for rows in _by_line(sweep, placed, axis).values()
        if any(value_of(row, metric) is not None for row in rows)
    ]
    if sum(y is not None for one in series for y in one.y) < 2:
        return None
    name = axis.removeprefix("inputs.").removeprefix("generation.")
    title = f"{noun} over {one_line(name).replace('_', ' ')}"
    kind = interval_kind(row.cells[metric].measurement for row in placed if value_of(row, metric) is not None)
    bars = f" – bars: {_BARS[kind]}" if kind else ""
    x_axis = Axis(one_line(axis) + bars, _is_log(xs), tuple(xs) if len(xs) <= _MOST_TICKS else ())
    ys = [y for one in series for y in one.y if y is not None]
    return Plot(key, title, x_axis, Axis(_titled(noun, info), _is_log(ys)), tuple(series))


def _by_line(sweep: _Sweep, rows: Sequence[Row], x_axis: str | None) -> dict[tuple[str, ...], list[Row]]:
    """The rows that share every varying axis but the one the lines run over."""
    axes = [a for a in sweep.varying if a != x_axis]
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
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
    """Name, colour, dash and marker of a row's series: a colour per backend, a dash and a marker per model.

    Where there is one model, what else varies takes the dashes and markers.
    """
    axes = [a for a in sweep.varying if a != x_axis]
    name = " · ".join(shortened(axis_text(row.axes.get(a)), _NAME_LIMIT) for a in axes) or one_line(
        sweep.comparison.name
    )
    # With a single backend its colour would say nothing; the models, or what else varies, take the colours then.
    colour_axis = next((a for a in (BACKEND_AXIS, MODEL_AXIS, *axes) if a in axes), BACKEND_AXIS)
    colour = backend_colour(axis_text(row.axes.get(colour_axis)), sweep.values[colour_axis])
    shape_axis = next((a for a in (MODEL_AXIS, *axes) if a in axes and a != colour_axis), MODEL_AXIS)
    dash, marker = model_look(axis_text(row.axes.get(shape_axis)), sweep.values[shape_axis])
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
    for group in _by_line(sweep, sweep.comparison.rows, BATCH_AXIS if batched else None).values():
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


def _speed_per_user(sweep: _Sweep) -> Plot | None:
    """Tokens per second of the whole batch against those of one sequence of it, which is one user; a line runs over batch sizes."""
    time, total = (_metric(sweep.comparison, name) for name in (TIME_PER_TOKEN, DECODE_THROUGHPUT))
    if time is None or total is None:
        return None
    rows = [row for row in sweep.comparison.rows if row.has_values and (value_of(row, time.name) or 0) > 0]
    rows = [row for row in rows if value_of(row, total.name) is not None]
    series, notes = [], []
    for members in _by_line(sweep, rows, BATCH_AXIS).values():
        ordered = sorted(members, key=lambda row: axis_number(row.axes.get(BATCH_AXIS)) or 0)
        name, colour, dash, marker = _look(sweep, ordered[0], BATCH_AXIS)
        x = tuple(1 / (value_of(row, time.name) or 1) for row in ordered)
        y = tuple(value_of(row, total.name) for row in ordered)
        none = (None,) * len(ordered)
        labels = tuple(_label(sweep, row, total, time) for row in ordered)
        series.append(Series(name, colour, dash, marker, x, y, none, none, labels))
        for row, across, up in zip(ordered, x, y, strict=True):
            if BATCH_AXIS in row.axes and up is not None:
                notes.append(Annotation(across, up, f"batch {axis_text(row.axes[BATCH_AXIS])}", is_above=True))
    xs = [x for line in series for x in line.x]
    ys = [y for line in series for y in line.y if y is not None]
    if len(set(zip(xs, ys, strict=True))) < 2:
        return None
    return Plot(
        "throughput_per_user",
        "Throughput against speed per user",
        Axis("Tokens/s per user – higher is better", _is_log(xs)),
        Axis(_titled("Throughput", total), _is_log(ys)),
        tuple(series),
        tuple(notes) if len(notes) <= _MOST_NOTES else (),
        caption="A line runs over batch sizes; tokens/s per user is 1 over the time per token.",
    )


def _front(points: Sequence[tuple[float, float]], front: Sequence[int]) -> Series:
    x, y = zip(*(points[i] for i in front), strict=True)
    none = (None,) * len(front)
    return Series(
        "Pareto front", OTHER_COLOUR, "solid", "circle", x, y, none, none, ("",) * len(front), points=False, steps=True
    )
