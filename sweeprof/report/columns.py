"""The texts of single values (a measurement, a ratio, a verdict), and the columns of a table with their titles."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from sweeprof.numbers import MISSING, ratio_number, rounded, text_unit
from sweeprof.results.compared_rows import Comparison, Row, is_training, reason_of, value_of
from sweeprof.results.constraints import named_metrics
from sweeprof.results.differences import Cell
from sweeprof.results.measurement import FURTHER_TITLES, HEADLINE, Better, Measurement, MetricInfo, Number
from sweeprof.results.statistics import MOST_ROUNDS
from sweeprof.results.verdicts import OUTPUT_DIFFERENCE, REASONS
from sweeprof.text import axes_text, axis_text, one_line

UNCLEAR = "~"
"""Marks a ratio whose verdict is undecided; the footnotes give the reason."""

_NAMES = ("layer", "operator", "line")
"""Details that name what a value is of."""
_COUNTS = ("n", "steps", "steps per sample")
_HAS_PREFIX = frozenset({"s", "B", "MAC", "FLOP", "params", "samples/s", "ratio", "abs", ""})
"""Units whose values read right without naming the unit in the header."""


def measured_of(candidates: Sequence[Row], metrics: Sequence[str]) -> str:
    """Return how much of a ranking was measured, e.g. ``of the 5 of 6 measured, 2 incomplete``; empty if all were, completely.

    Args:
        candidates: the rows that the ranking is about; unsupported ones cannot be measured and are not counted.
        metrics: names of the metrics that a row needs a value of.
    """
    possible = known = incomplete = 0
    for row in candidates:
        if row.status == "unsupported":
            continue
        possible += 1
        if row.has_values and all(value_of(row, name) is not None for name in metrics):
            known += 1
            incomplete += row.is_incomplete
    text = f"of the {known} of {possible} measured"
    if incomplete:
        return f"{text}, {incomplete} incomplete"
    return text if known < possible else ""


def rounds_text(row: Row) -> str:
    """Return the number of measured rounds, e.g. ``2 of 3 rounds``; a row may also be incomplete because of another pass."""
    text = f"{row.rounds_complete} of {row.rounds_planned} rounds"
    return f"{text}, incomplete" if row.is_incomplete and row.rounds_complete == row.rounds_planned else text


def named_text(measurement: Measurement) -> str:
    """Return the part of the model that a value describes, e.g. ``layer features.0``; empty for the whole model."""
    return ", ".join(f"{name} {one_line(str(of))}" for name, of in measurement.detail.items() if name in _NAMES)


def value_text(measurement: Measurement, with_interval: bool = True) -> str:
    """A value with its 95 % interval, e.g. ``1.23 ms [1.2–1.27]``; the interval names a unit only where it differs."""
    if measurement.value is None or not math.isfinite(measurement.value):
        return MISSING
    unit = text_unit(measurement.name, measurement.unit)
    text = rounded(measurement.value, unit)
    if measurement.interval is None or not with_interval:
        return text
    low, high = (rounded(end, unit) for end in measurement.interval)
    shown_unit = text.partition(" ")[2]
    if shown_unit and low.endswith(f" {shown_unit}") and high.endswith(f" {shown_unit}"):
        low, high = low.partition(" ")[0], high.partition(" ")[0]
    return f"{text} [{low}–{high}]"


def ratio_text(cell: Cell) -> str:
    """A ratio to the baseline with its verdict in words, e.g. ``×1.90 [1.85–1.95] worse``, ``×1.90 ~``; ``– worse`` than zero."""
    mark = UNCLEAR if cell.verdict in ("unclear", "not_comparable") else cell.verdict or ""
    if cell.ratio is None or not math.isfinite(cell.ratio):
        return f"{MISSING} {mark}".rstrip()
    text = f"×{ratio_number(cell.ratio)}"
    if cell.ratio_interval:
        low, high = cell.ratio_interval
        text += f" [{ratio_number(low)}–{ratio_number(high)}]"
    return f"{text} {mark}".rstrip()


def verdict_note(cell: Cell) -> str:
    """Return the reason of a verdict, e.g. ``the interval of the ratio crosses the threshold; about 12 rounds would settle it``."""
    why = REASONS.get(cell.verdict_reason or "", cell.verdict_reason or "")
    if cell.verdict_reason == "interval_crosses_threshold":
        needed = f"more than {MOST_ROUNDS}" if cell.rounds_needed is None else f"about {cell.rounds_needed}"
        why += f"; {needed} rounds would settle it"
    if cell.base == 0 and cell.measurement.value is not None:
        why = "; ".join(filter(None, ("no ratio, because the baseline is zero", why)))
    return f"{why} ({cell.used})" if cell.used == "paired" else why


def detail_text(measurement: Measurement) -> str:
    """The further figures of a measurement, e.g. ``min 1.2 ms, p90 1.5 ms, p99 not given: n<299``, ``layer fc1``."""
    parts = []
    unit = text_unit(measurement.name, measurement.unit)
    for name, figure in measurement.detail.items():
        if name in (*_NAMES, "slowest"):
            parts.append(f"{name} {one_line(str(figure))}")
        elif figure is None or (isinstance(figure, float) and not math.isfinite(figure)):
            parts.append(f"{name} not given")
        elif isinstance(figure, bool) or not isinstance(figure, (int, float)):
            parts.append(f"{name} not given: {one_line(str(figure))}")
        elif name in _COUNTS:
            parts.append(f"{name} {figure:,.0f}")
        elif name == "spread":
            parts.append(f"spread {100 * figure:.0f}%")
        else:
            parts.append(f"{name} {rounded(figure, unit)}")
    return ", ".join(parts)


# The metrics and columns of a table

MODEL_AXIS = "model"

_FEW = 4
"""Of headline metrics: a table with fewer shows all that have a value."""
_BUILT_IN = (
    "params",
    "size",
    "compute",
    "latency",
    "throughput",
    "rate",
    "layers",
    "energy",
    "operators",
    "memory",
    "quality",
)
"""Families of which the headline metrics are shown; a user's own metric always is."""
_AFTER_OWN = ("params/total", "compute/macs_per_sample", "compute/macs", "throughput/samples_per_s")
"""The user's own metrics stand before the first of these."""
_ONE_MINUS_ACCURACY = "quality/error"
"""Built-in, but no headline metric: shown only where there are few others."""
_UNEXPECTED = (
    "latency/iteration",
    "latency/backward",
    "latency/update",
    "rate/mfu_train",
    "memory/cuda_allocated_peak_bytes",
    "quality/top5",
    "quality/topk",
    "quality/loss",
    "quality/perplexity",
    "quality/miou",
    "quality/mse",
    "quality/mae",
    "quality/r2",
)
"""Headline metrics that nobody expects of inference, of a model on the host, or of targets of another kind."""
STEPS = ("latency/iteration", "latency/forward")
"""The time of a training step, and that of any other step."""
_STEP, _FORWARD = STEPS
SAMPLES_PER_S = "throughput/samples_per_s"
_PER_S = re.compile(r"throughput/\w+_per_s")
_PRECISION = "backend.precision"
ARROWS: dict[Better, str] = {"lower": " ↓", "higher": " ↑", None: ""}


def is_throughput(metric: str) -> bool:
    """True for samples per second, and for the same in another unit of the workload, such as tokens.

    It is shown without an interval: that is the latency's, the other way up.
    """
    return _PER_S.fullmatch(metric) is not None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    key: str
    """Axis key or canonical metric name."""
    kind: Literal["axis", "rounds", "fulfils", "value", "ratio"]
    title: str
    """With ``↓`` or ``↑`` where a lower or a higher value is better."""
    numeric: bool = True
    """True if its entries are numbers, which are right-aligned."""
    hint: str = ""
    """The meaning of the column in one sentence."""


def shown_metrics(comparison: Comparison) -> list[MetricInfo]:
    """Return the metrics of the tables that any row has a value of, the most important first.

    First the time of a step, then what the constraints, the Pareto front and a search name, then the other headline metrics and
    the user's own. Where few of the headline have values, all metrics that have any are shown.

    Throughput is shown in samples and in the other units that the workloads are counted in; where those are the same numbers, as
    for images, in those alone.
    """
    known = {info.name: info for info in comparison.metrics if _any(comparison.rows, info.name)}
    if "compute/macs_per_sample" in known:
        known.pop("compute/macs", None)  # the same figure times the batch size
    if "memory/process_peak_bytes" in known:
        known.pop("memory/rss_peak_bytes", None)  # the same figure, or that of the host beside an accelerator
    headline = [name for name in HEADLINE if name in known]
    own = [name for name in known if _is_own(name)]
    further = [name for name in known if name not in headline and name not in own]
    filling = [] if len(headline) >= _FEW else further
    if SAMPLES_PER_S in headline:
        units = list(filter(is_throughput, further))
        filling = [name for name in filling if name not in units]
        place = headline.index(SAMPLES_PER_S)
        headline[place + 1 : place + 1] = units
        for name in units:
            if all(value_of(row, SAMPLES_PER_S) == value_of(row, name) for row in comparison.rows):
                headline.remove(SAMPLES_PER_S)
                break
    first = [name for name in headline if name in STEPS]
    named = []
    with suppress(ValueError):  # a file that somebody has changed may have constraints on metrics that it lacks
        named = [info.name for info in named_metrics(comparison)]
    # A faster precision is of use only where the outputs agree.
    if len({str(row.axes.get(_PRECISION)) for row in comparison.rows}) > 1:
        named.append(OUTPUT_DIFFERENCE)
    first += [name for name in named if name in headline]
    place = next((place for place, name in enumerate(headline) if name in _AFTER_OWN), len(headline))
    ordered = dict.fromkeys([*first, *headline[:place], *own, *headline[place:], *filling])
    return [known[name] for name in ordered]


def _is_own(metric: str) -> bool:
    """True for a metric of the user."""
    if metric in HEADLINE or metric == _ONE_MINUS_ACCURACY:
        return False
    family = metric.partition("/")[0]
    return family == "quality" or family not in _BUILT_IN


def called_metrics(comparison: Comparison) -> list[MetricInfo]:
    """The metrics of :func:`shown_metrics` whose verdicts count: each figure once.

    Within a sweep the baseline's outputs have no difference from themselves, which is no better.
    """
    shown = independent_metrics(shown_metrics(comparison))
    return [info for info in shown if comparison.against is not None or info.name != OUTPUT_DIFFERENCE]


def independent_metrics(infos: Sequence[MetricInfo]) -> list[MetricInfo]:
    """Return the metrics without throughput, if the time is among them from which it follows: of a step, of the first token."""
    names = {info.name for info in infos}
    is_timed = not names.isdisjoint((_STEP, _FORWARD))
    follows = {info.name for info in infos if is_timed and is_throughput(info.name)}
    if "generation/time_to_first_token" in names:
        follows.add("generation/prefill_throughput")
    return [info for info in infos if info.name not in follows]


def is_optional(metric: str) -> bool:
    """True if nobody expects a value of the metric, so that no note says that it is missing."""
    is_headline = metric in HEADLINE or is_throughput(metric)
    return metric in _UNEXPECTED or not (is_headline or _is_own(metric))


def is_of_other_mode(rows: Sequence[Row], metric: str) -> bool:
    """True if none of at least one row has a value, because the metric is of another mode, such as a training step's."""
    missing = [row for row in rows if value_of(row, metric) is None and reason_of(row, metric).startswith("mode=")]
    return 0 < len(missing) == len(rows)


def _any(rows: Sequence[Row], name: str) -> bool:
    return any(value_of(row, name) is not None for row in rows)


def baseline_text(comparison: Comparison) -> str:
    """The baseline's axis values: ``torch``; a value that is no name comes with its axis, as ``batch_size=1``.

    Of another sweep, as the user named it.
    """
    if comparison.against is not None:
        return one_line(comparison.against.label)
    varying = comparison.varying_axes()
    values = {axis: value for axis, value in comparison.baseline.items() if axis in varying} or comparison.baseline
    return values_text(values) or "baseline"


def values_text(axes: Mapping[str, object]) -> str:
    """Return the values of axes, those that are no names with their axis: ``torch, batch_size=1``."""
    names = []
    for axis, value in axes.items():
        names.append(axis_text(value) if isinstance(value, str) else axes_text({axis: value}))
    return ", ".join(names)


def metric_title(info: MetricInfo, rows: Sequence[Row]) -> str:
    """The short name of a metric in a table of these rows, with its unit where the values do not show it."""
    if info.name == _FORWARD and any(is_training(row) for row in rows):
        return "forward"  # which is not what a training step takes
    if info.name in FURTHER_TITLES:
        return FURTHER_TITLES[info.name]
    key = SAMPLES_PER_S if is_throughput(info.name) else info.name
    # A number that a program reports has the name that its user gave it.
    title = HEADLINE.get(key, one_line(info.name.removeprefix("command/")))
    return title if info.unit in _HAS_PREFIX else f"{title} ({one_line(info.unit)})"


def metric_columns(info: MetricInfo, rows: Sequence[Row], baseline: str) -> list[Column]:
    """The column of a metric, and that of its ratio to the baseline where the metric has one."""
    name, arrow = metric_title(info, rows), ARROWS[info.better]
    columns = [Column(info.name, "value", name + arrow, hint=one_line(info.definition))]
    # Ratios: of the training step where there is one, and of the forward for rows that have no such step.
    steps = [step for step in (_STEP, _FORWARD) if _any(rows, step)]
    if not any(value_of(row, _STEP) is None and value_of(row, _FORWARD) is not None for row in rows):
        steps = steps[:1]
    has_ratio = any(info.name in row.cells and row.cells[info.name].ratio is not None for row in rows)
    if info.name in steps and has_ratio:
        of = f"{name} " if len(steps) > 1 else ""
        hint = "This value over the baseline's, with the verdict."
        columns.append(Column(info.name, "ratio", f"{of}vs {baseline}{arrow}", hint=hint))
    return columns


def axis_title(axis: str, axes: Sequence[str]) -> str:
    """Return the last part of an axis, such as ``precision`` of ``backend.precision``; all of it where two would be the same."""
    last = axis.rpartition(".")[2]
    is_only = sum(other.rpartition(".")[2] == last for other in axes) <= 1
    return one_line(last if is_only else axis)


def constant_value(info: MetricInfo, rows: Sequence[Row]) -> Number | None:
    """The value that every row with values has, where there are at least two and it is exact; else None."""
    measured = [row for row in rows if row.has_values]
    values = {value_of(row, info.name) for row in measured}
    if len(measured) < 2 or len(values) != 1 or None in values:
        return None
    return None if any(row.cells[info.name].measurement.interval for row in measured) else values.pop()
