"""Constraints, the Pareto front and the best batch sizes of a comparison. Pure functions."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sweeprof.report.cells import axis_text, measured_of, one_line, reason_of, rounds_text, value_of, value_text
from sweeprof.report.columns import baseline_text, metric_title, plain_title
from sweeprof.report.table import sorted_rows
from sweeprof.report.units import scaled, text_unit
from sweeprof.report.verdict_summary import ReportSection, against_lines, combination_namer, means_lines, tests_text
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.expression import Expression, parse
from sweeprof.results.measurement import MetricInfo

Direction = Literal["lower", "higher"]


def dominant(points: Sequence[Sequence[float]], better: Sequence[Direction]) -> list[int]:
    """Indices of the points of any number of directions that no other dominates, in their order.

    One dominates another by being at least as good in every direction and better in one.
    """
    signs = np.array([1.0 if direction == "lower" else -1.0 for direction in better])
    costs = np.array([tuple(point) for point in points], dtype=float).reshape(len(points), len(signs)) * signs
    return [i for i, cost in enumerate(costs) if not ((costs <= cost).all(axis=1) & (costs < cost).any(axis=1)).any()]


@dataclass(frozen=True, slots=True)
class Condition:
    """One part of a constraint: what must hold for a combination to qualify."""

    expression: Expression

    @property
    def is_number(self) -> bool:
        """True if it is a sum of metrics, which is never a condition; its names must be those of numeric metrics."""
        try:
            return not isinstance(self.expression.value(dict.fromkeys(self.expression.names, 1.0)), bool)
        except ValueError:
            return False

    def misses(self, comparison: Comparison, row: Row, names: Mapping[str, str]) -> str | None:
        """Return the reason why the row misses the condition; None if it holds. A row without a value always misses it."""
        infos = {info.name: info for info in comparison.metrics}
        values, message = {}, []
        for name in sorted(self.expression.names):
            metric = infos.get(names[name])
            value = row.axes.get(names[name]) if metric is None else value_of(row, metric.name)
            if value is None:
                why = "no such axis here" if metric is None else reason_of(row, metric.name)
                return f"{self.expression.text}: {name} has no value ({why})"
            values[name] = value
            message.append(axis_text(value) if metric is None else scaled(value, text_unit(metric.name, metric.unit)))
        try:
            holds = self.expression.value(values)
        except ValueError as error:
            return f"{self.expression.text}: {error}"
        return None if holds is True else f"{self.expression.text}: {', '.join(message)}"

    def uncertain(self, row: Row, names: Mapping[str, str]) -> str | None:
        """Return the value with the 95 % interval at an end of which the condition is decided otherwise; None if there is none."""
        values = {name: row.axes.get(names[name], value_of(row, names[name])) for name in self.expression.names}
        for name in sorted(values):
            cell = row.cells.get(names[name])
            interval = None if cell is None else cell.measurement.interval
            if cell is None or interval is None or None in values.values():
                continue
            try:
                holds = self.expression.value(values)
                changes = any(self.expression.value({**values, name: bound}) is not holds for bound in interval)
            except ValueError:
                continue
            if changes:
                return f"{name} {value_text(cell.measurement)}"
        return None


def uncertain_selection(comparison: Comparison) -> dict[str, str]:
    """Return, by the id of the combination, the value because of which it is not certain that it qualifies, or that it does not."""
    names = {**metric_names(comparison.metrics), **{axis: axis for axis in comparison.axes}}
    wanted = conditions(comparison.constraints, list(names))
    found = {}
    for row in comparison.rows:
        open_conditions = {condition: text for condition in wanted if (text := condition.uncertain(row, names))}
        missed = [condition for condition in wanted if condition.misses(comparison, row, names) is not None]
        if row.has_values and open_conditions and all(condition in open_conditions for condition in missed):
            found[row.combination_id] = next(iter(open_conditions.values()))
    return found


def metric_names(metrics: Sequence[MetricInfo]) -> dict[str, str]:
    """Return the names that a user may use for each metric, mapped to the full name.

    That is the full name itself, its title in a table, or its last part where no other metric has the same.
    """
    full = {info.name: info.name for info in metrics}
    lasts = Counter(name.rpartition("/")[2] for name in full)
    short = {last: name for name in full if lasts[last := name.rpartition("/")[2]] == 1}
    titles = {title: name for name in full if (title := plain_title(name)) is not None}
    return {**short, **titles, **full}


def conditions(constraints: Sequence[str], names: Sequence[str]) -> list[Condition]:
    """The constraints, taken apart at ``and`` where that changes nothing, so that each part can be told of.

    Raises:
        ValueError: one cannot be read, or uses what is not known.
    """
    for text in constraints:
        parse(text, names)  # of its parts alone it would be told where the text of a part ends
    return [Condition(parse(part, names)) for text in constraints for part in _parts(text)]


def _parts(text: str) -> list[str]:
    if re.search(r"[()'\"\[]|\bor\b", text):
        return [text]
    return [part.strip() for part in re.split(r"\band\b", text)]


def with_selection(comparison: Comparison, pareto: Sequence[str] = (), constraints: Sequence[str] = ()) -> Comparison:
    """The comparison with what every row misses of the constraints, and which rows are on the Pareto front.

    A front needs two metrics that have a direction and that the comparison has; it is of the rows that qualify.

    Raises:
        ValueError: a constraint cannot be read.
    """
    names = metric_names(comparison.metrics)
    known = {**names, **{axis: axis for axis in comparison.axes}}
    wanted = conditions(constraints, list(known))
    rows = [dataclasses.replace(row, misses=tuple(_misses(comparison, row, wanted, known))) for row in comparison.rows]
    infos = {info.name: info for info in comparison.metrics}
    front = [infos[names[name]] for name in pareto if name in names and infos[names[name]].better is not None]
    if len(front) != len(pareto) or len(front) < 2:
        front = []
    best = on_front([row for row in rows if not row.misses], front)
    return dataclasses.replace(
        comparison,
        rows=tuple(dataclasses.replace(row, on_front=row.combination_id in best) for row in rows),
        pareto=tuple(info.name for info in front),
        constraints=tuple(constraints),
    )


def _misses(comparison: Comparison, row: Row, wanted: Sequence[Condition], names: Mapping[str, str]) -> Iterator[str]:
    if not wanted:
        return
    if not row.has_values:
        yield f"{row.status}: {one_line(row.reason or 'no reason was given')}"
        return
    for condition in wanted:
        missed = condition.misses(comparison, row, names)
        if missed is not None:
            yield missed


def on_front(rows: Sequence[Row], metrics: Sequence[MetricInfo]) -> set[str]:
    """Ids of the measured rows that no other is at least as good as in all metrics and better in one."""
    if not metrics:
        return set()
    points: dict[str, tuple[float, ...]] = {}
    for row in rows:
        values = [value_of(row, info.name) for info in metrics]
        if row.has_values and None not in values:
            points[row.combination_id] = tuple(float(value) for value in values if value is not None)
    better: list[Direction] = [info.better or "lower" for info in metrics]
    ids = list(points)
    return {ids[place] for place in dominant(list(points.values()), better)}


_MOST = 20
"""Combinations that a report lists; ``comparison.csv`` has all of them."""
_ARROWS = {"lower": "↓", "higher": "↑", None: ""}


def sections(comparison: Comparison) -> list[ReportSection]:
    """Return the sections below a report's tables, in order, without those for which the comparison has no data."""
    other = f"Compared with {baseline_text(comparison)}"
    tested = tests_text(comparison)
    found = [
        ReportSection(other, tuple(against_lines(comparison))),
        ReportSection(f"Geometric means vs {baseline_text(comparison)}", tuple(means_lines(comparison))),
        ReportSection("Verdicts", (tested,) if tested else ()),
        ReportSection(*_qualifying(comparison)),
        ReportSection(*_front(comparison)),
        ReportSection(BATCH_TITLE, tuple(batch_lines(comparison))),
    ]
    return [section for section in found if section.lines]


def _qualifying(comparison: Comparison) -> tuple[str, tuple[str, ...]]:
    if not comparison.constraints:
        return "", ()
    rows = sorted_rows(comparison)
    fitting, missing = [row for row in rows if not row.misses], [row for row in rows if row.misses]
    verb = "qualifies" if len(fitting) == 1 else "qualify"
    title = f"{len(fitting)} of {len(rows)} combinations {verb}: {' and '.join(comparison.constraints)}"
    tell, message = combination_namer(comparison), _RowTexts(comparison, _infos(comparison))
    uncertain = uncertain_selection(comparison)
    notes = {id: f" (not certain: {text})" for id, text in uncertain.items()}
    lines = []
    for info, row in _best(message.infos, fitting):
        label = measured_of(_qualified(comparison), [info.name])
        lines.append(f"best {message.titles[info.name]}{f' {label}' if label else ''}: {message.of(row)}")
    if missing:
        lines += _listed(fitting, lambda row: f"qualifies: {message.of(row)}{notes.get(row.combination_id, '')}")
    lines += _listed(
        missing, lambda row: f"misses: {tell(row.axes)} – {'; '.join(row.misses)}{notes.get(row.combination_id, '')}"
    )
    return one_line(title), tuple(map(one_line, lines))


def _qualified(comparison: Comparison) -> list[Row]:
    """The rows that qualify, and those that might if they were measured."""
    return [row for row in comparison.rows if not row.misses or not row.has_values]


def _infos(comparison: Comparison) -> list[MetricInfo]:
    """The metrics that the constraints, the front and the goals of a search name, in the order of the comparison."""
    names = metric_names(comparison.metrics)
    known = [*names, *comparison.axes]
    spoken = {names.get(n) for c in conditions(comparison.constraints, known) for n in c.expression.names}
    goals = [goal.metric for goal in comparison.search.goals] if comparison.search is not None else []
    return [info for info in comparison.metrics if info.name in (*spoken, *comparison.pareto, *goals)]


def _best(infos: Sequence[MetricInfo], rows: Sequence[Row]) -> Iterator[tuple[MetricInfo, Row]]:
    """The best of the rows by each of the metrics that has a direction."""
    for info in infos:
        values = [(value, row) for row in rows if (value := value_of(row, info.name)) is not None]
        if info.better is not None and len({value for value, _ in values}) > 1:
            choose = min if info.better == "lower" else max
            yield info, choose(values, key=lambda pair: pair[0])[1]


def _front(comparison: Comparison) -> tuple[str, tuple[str, ...]]:
    rows = [row for row in sorted_rows(comparison) if row.on_front]
    # A front that every row is on says nothing.
    if len(rows) == len(comparison.rows):
        return "", ()
    infos = {info.name: info for info in comparison.metrics}
    message = _RowTexts(comparison, [infos[name] for name in comparison.pareto])
    title = ", ".join(f"{message.titles[info.name]} {_ARROWS[info.better]}" for info in message.infos)
    label = measured_of(_qualified(comparison), [info.name for info in message.infos])
    return f"Pareto front{f' {label}' if label else ''}: {title}", tuple(_listed(rows, message.of))


class _RowTexts:
    """Rows with their figures, as text."""

    def __init__(self, comparison: Comparison, infos: Sequence[MetricInfo]) -> None:
        self.infos = infos
        self.titles = {info.name: metric_title(info, comparison.rows) for info in infos}
        self._tell = combination_namer(comparison)

    def of(self, row: Row) -> str:
        """E.g. ``model=mlp – latency 1.00 ms, accuracy 0.9000``."""
        known = [(info, value) for info in self.infos if (value := value_of(row, info.name)) is not None]
        message = ", ".join(f"{self.titles[i.name]} {scaled(value, text_unit(i.name, i.unit))}" for i, value in known)
        name = f"{self._tell(row.axes)} ({rounds_text(row)})" if row.is_incomplete else self._tell(row.axes)
        return f"{name} – {message}" if message else name


def _listed(rows: Sequence[Row], said: Callable[[Row], str]) -> list[str]:
    more = [f"and {len(rows) - _MOST} more, in comparison.csv"] if len(rows) > _MOST else []
    return [*map(said, rows[:_MOST]), *more]


BATCH_AXIS = "batch_size"
BATCH_METRIC = "throughput/samples_per_s"
MOST_BATCH_LINES = 60
"""Lines that a report has room for; beyond that its table and its plots tell."""
BATCH_TITLE = "Best batch size, by throughput"


def batch_lines(comparison: Comparison) -> Iterator[str]:
    """A line per combination of the other axes; none where the batch size alone varies, which the table shows as it is.

    What is said is what was measured: not that the difference to the next batch size is certain.
    """
    groups = _rows_without_batch_axis(comparison)
    if not 1 < len(groups) <= MOST_BATCH_LINES:
        return
    unit = next((info.unit for info in comparison.metrics if info.name == BATCH_METRIC), "")
    tell = combination_namer(comparison)
    for rows in groups:
        known = [(value_of(row, BATCH_METRIC), row) for row in rows if row.has_values]
        values = [(value, row) for value, row in known if value is not None]
        if len(values) > 1:
            value, best = max(values, key=lambda pair: pair[0])
            others = {axis: chosen for axis, chosen in best.axes.items() if axis != BATCH_AXIS}
            label = measured_of(rows, [BATCH_METRIC])
            text = (
                f"{tell(others)}: {axis_text(best.axes[BATCH_AXIS])} – {scaled(value, text_unit(BATCH_METRIC, unit))}"
            )
            yield f"{text} ({label})" if label else text


def _rows_without_batch_axis(comparison: Comparison) -> list[list[Row]]:
    if BATCH_AXIS not in comparison.varying_axes():
        return []
    found: dict[str, list[Row]] = {}
    for row in sorted_rows(comparison):
        if BATCH_AXIS in row.axes:
            others = repr([(axis, value) for axis, value in row.axes.items() if axis != BATCH_AXIS])
            found.setdefault(others, []).append(row)
    return list(found.values())
