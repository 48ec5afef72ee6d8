"""Which combinations qualify, and which no other beats: constraints and the Pareto front of a comparison. Pure functions."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweeprof.expression import Expression, parse
from sweeprof.report.cells import axis_text, one_line, reason_of, value_of
from sweeprof.report.columns import plain_title
from sweeprof.report.pareto import Direction, dominant
from sweeprof.report.units import scaled, text_unit
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.measurement import MetricInfo


@dataclass(frozen=True, slots=True)
class Condition:
    """One part of a constraint: what must hold for a combination to qualify."""

    expression: Expression

    @property
    def is_number(self) -> bool:
        """Whether it is a sum of metrics, which nothing fulfils; its names must be those of metrics, which are numbers."""
        try:
            return not isinstance(self.expression.value(dict.fromkeys(self.expression.names, 1.0)), bool)
        except ValueError:
            return False

    def misses(self, comparison: Comparison, row: Row, names: Mapping[str, str]) -> str | None:
        """Why the row does not fulfil it; None where it does. What has no value fulfils nothing."""
        infos = {info.name: info for info in comparison.metrics}
        values, said = {}, []
        for name in sorted(self.expression.names):
            metric = infos.get(names[name])
            value = row.axes.get(names[name]) if metric is None else value_of(row, metric.name)
            if value is None:
                why = "no such axis here" if metric is None else reason_of(row, metric.name)
                return f"{self.expression.text}: {name} has no value ({why})"
            values[name] = value
            said.append(axis_text(value) if metric is None else scaled(value, text_unit(metric.name, metric.unit)))
        try:
            holds = self.expression.value(values)
        except ValueError as error:
            return f"{self.expression.text}: {error}"
        return None if holds is True else f"{self.expression.text}: {', '.join(said)}"


def metric_names(metrics: Sequence[MetricInfo]) -> dict[str, str]:
    """What a user may call a metric, and its full name.

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
        ValueError: one cannot be read, or speaks of what is not known.
    """
    for text in constraints:
        parse(text, names)  # of its parts alone it would be told where the text of a part ends
    return [Condition(parse(part, names)) for text in constraints for part in _parts(text)]


def _parts(text: str) -> list[str]:
    if re.search(r"[()'\"\[]|\bor\b", text):
        return [text]
    return [part.strip() for part in re.split(r"\band\b", text)]


def chosen(comparison: Comparison, pareto: Sequence[str] = (), constraints: Sequence[str] = ()) -> Comparison:
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
