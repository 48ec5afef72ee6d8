"""Which rows of a comparison qualify, the Pareto front, and the best rows. Pure functions."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sweeprof.numbers import rounded, text_unit
from sweeprof.results.compare import Comparison, Row, reason_of, value_of
from sweeprof.results.expression import Expression, parse
from sweeprof.results.measurement import Measurement, MetricInfo, plain_title
from sweeprof.text import axis_text, one_line

Direction = Literal["lower", "higher"]
BATCH_AXIS = "batch_size"
BATCH_METRIC = "throughput/samples_per_s"


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
            message.append(axis_text(value) if metric is None else rounded(value, text_unit(metric.name, metric.unit)))
        try:
            holds = self.expression.value(values)
        except ValueError as error:
            return f"{self.expression.text}: {error}"
        return None if holds is True else f"{self.expression.text}: {', '.join(message)}"

    def uncertain(self, row: Row, names: Mapping[str, str]) -> tuple[str, Measurement] | None:
        """Return a name with its value if the condition is decided otherwise at an end of the value's 95 % interval."""
        values = {name: row.axes.get(names[name], value_of(row, names[name])) for name in self.expression.names}
        if None in values.values():
            return None
        for name in sorted(values):
            cell = row.cells.get(names[name])
            if cell is None or cell.measurement.interval is None:
                continue
            try:
                holds = self.expression.value(values)
                ends = [self.expression.value({**values, name: end}) for end in cell.measurement.interval]
            except ValueError:
                continue
            if any(end is not holds for end in ends):
                return name, cell.measurement
        return None


def conditions(constraints: Sequence[str], names: Sequence[str]) -> list[Condition]:
    """The constraints, taken apart at ``and`` where that changes nothing, so that each part has a reason of its own.

    Raises:
        ValueError: one cannot be read, or has an unknown name.
    """
    found = []
    for text in constraints:
        parse(text, names)  # an error names the place in the whole text
        parts = [text] if re.search(r"[()'\"\[]|\bor\b", text) else re.split(r"\band\b", text)
        found += [Condition(parse(part.strip(), names)) for part in parts]
    return found


def metric_names(metrics: Sequence[MetricInfo]) -> dict[str, str]:
    """Return the names that a user may use for each metric, mapped to the full name.

    These are the full name itself, its title in a table, and its last part if no other metric has the same.
    """
    full = [info.name for info in metrics]
    parts = Counter(name.rpartition("/")[2] for name in full)
    names = {}
    for name in full:
        part = name.rpartition("/")[2]
        if parts[part] == 1:
            names[part] = name
    for name in full:
        title = plain_title(name)
        if title is not None:
            names[title] = name
    return {**names, **{name: name for name in full}}


def _known_names(comparison: Comparison) -> dict[str, str]:
    return {**metric_names(comparison.metrics), **{axis: axis for axis in comparison.axes}}


def with_selection(comparison: Comparison, pareto: Sequence[str] = (), constraints: Sequence[str] = ()) -> Comparison:
    """The comparison with what every row misses of the constraints, and which rows are on the Pareto front.

    A front needs two metrics that have a direction and that the comparison has; it is of the rows that qualify.

    Raises:
        ValueError: a constraint cannot be read.
    """
    names = _known_names(comparison)
    wanted = conditions(constraints, list(names))
    rows = [dataclasses.replace(row, misses=tuple(_misses(comparison, row, wanted, names))) for row in comparison.rows]
    infos = {info.name: info for info in comparison.metrics}
    front = [infos[names[name]] for name in pareto if names.get(name) in infos]
    front = [info for info in front if info.better is not None]
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
    if wanted and not row.has_values:
        yield f"{row.status}: {one_line(row.reason or 'no reason was given')}"
        return
    for condition in wanted:
        missed = condition.misses(comparison, row, names)
        if missed is not None:
            yield missed


def uncertain_selection(comparison: Comparison) -> dict[str, tuple[str, Measurement]]:
    """Return, by the id of the combination, the value because of which it is not certain whether it qualifies, with its name."""
    names = _known_names(comparison)
    wanted = conditions(comparison.constraints, list(names))
    found = {}
    for row in comparison.rows:
        if not row.has_values:
            continue
        open_conditions = {}
        for condition in wanted:
            value = condition.uncertain(row, names)
            if value is not None:
                open_conditions[condition] = value
        missed = [condition for condition in wanted if condition.misses(comparison, row, names) is not None]
        if open_conditions and all(condition in open_conditions for condition in missed):
            found[row.combination_id] = next(iter(open_conditions.values()))
    return found


def named_metrics(comparison: Comparison) -> list[MetricInfo]:
    """The metrics that the constraints, the front and the goals of a search name, in the order of the comparison."""
    names = _known_names(comparison)
    wanted = set(comparison.pareto)
    for condition in conditions(comparison.constraints, list(names)):
        wanted.update(names[name] for name in condition.expression.names)
    if comparison.search is not None:
        wanted.update(goal.metric for goal in comparison.search.goals)
    return [info for info in comparison.metrics if info.name in wanted]


def dominant(points: Sequence[Sequence[float]], better: Sequence[Direction]) -> list[int]:
    """Indices of the points of any number of directions that no other dominates, in their order.

    One dominates another by being at least as good in every direction and better in one.
    """
    signs = np.array([1.0 if direction == "lower" else -1.0 for direction in better])
    costs = np.array([tuple(point) for point in points], dtype=float).reshape(len(points), len(signs)) * signs
    return [i for i, cost in enumerate(costs) if not ((costs <= cost).all(axis=1) & (costs < cost).any(axis=1)).any()]


def on_front(rows: Sequence[Row], metrics: Sequence[MetricInfo]) -> set[str]:
    """Ids of the measured rows that no other is at least as good as in all metrics and better in one."""
    if not metrics:
        return set()
    points: dict[str, list[float]] = {}
    for row in rows:
        values = [value for info in metrics if (value := value_of(row, info.name)) is not None]
        if row.has_values and len(values) == len(metrics):
            points[row.combination_id] = values
    ids = list(points)
    return {ids[place] for place in dominant(list(points.values()), [info.better or "lower" for info in metrics])}


def best_row(rows: Iterable[Row], metric: str, better: Direction) -> Row | None:
    """Return the first row with the best value of a metric; None if no row has a value."""
    best, best_cost = None, 0.0
    for row in rows:
        value = value_of(row, metric)
        if value is None:
            continue
        cost = value if better == "lower" else -value
        if best is None or cost < best_cost:
            best, best_cost = row, cost
    return best


def best_batch_sizes(comparison: Comparison, rows: Iterable[Row]) -> list[tuple[Row, list[Row]]]:
    """Return the row with the highest throughput for each combination of the other axes, and the rows that it is chosen from.

    Nothing if only the batch size varies. That the difference to the next batch size is certain is not said.

    Args:
        comparison: of the rows.
        rows: in the order of the result.
    """
    if BATCH_AXIS not in comparison.varying_axes():
        return []
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if BATCH_AXIS in row.axes:
            others = repr([(axis, value) for axis, value in row.axes.items() if axis != BATCH_AXIS])
            groups.setdefault(others, []).append(row)
    found = []
    for group in groups.values():
        measured = [row for row in group if row.has_values and value_of(row, BATCH_METRIC) is not None]
        best = best_row(measured, BATCH_METRIC, "higher")
        if best is not None and len(measured) > 1:
            found.append((best, group))
    return found if len(groups) > 1 else []
