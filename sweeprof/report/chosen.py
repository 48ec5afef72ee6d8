"""What qualifies, what misses what, and the Pareto front, as lines that every report says the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sweeprof.report.batches import TITLE, batch_lines
from sweeprof.report.cells import measured_of, one_line, rounds_text, value_of
from sweeprof.report.choices import conditions, metric_names
from sweeprof.report.columns import baseline_text, metric_title
from sweeprof.report.judged import Section, against_lines, means_lines, teller, tests_text
from sweeprof.report.table import sorted_rows
from sweeprof.report.units import scaled, text_unit
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.measurement import MetricInfo

_MOST = 20
"""Combinations that a report lists; ``comparison.csv`` has all of them."""
_ARROWS = {"lower": "↓", "higher": "↑", None: ""}


def sections(comparison: Comparison) -> list[Section]:
    """What a report says below its tables, in its order; nothing that the comparison does not have."""
    other = f"Compared with {baseline_text(comparison)}"
    tested = tests_text(comparison)
    found = [
        Section(other, tuple(against_lines(comparison))),
        Section(f"Geometric means vs {baseline_text(comparison)}", tuple(means_lines(comparison))),
        Section("Verdicts", (tested,) if tested else ()),
        Section(*_qualifying(comparison)),
        Section(*_front(comparison)),
        Section(TITLE, tuple(batch_lines(comparison))),
    ]
    return [section for section in found if section.lines]


def _qualifying(comparison: Comparison) -> tuple[str, tuple[str, ...]]:
    if not comparison.constraints:
        return "", ()
    rows = sorted_rows(comparison)
    fitting, missing = [row for row in rows if not row.misses], [row for row in rows if row.misses]
    title = f"{len(fitting)} of {len(rows)} combinations qualify: {' and '.join(comparison.constraints)}"
    tell, said = teller(comparison), _Figures(comparison, _infos(comparison))
    lines = []
    for info, row in _best(said.infos, fitting):
        label = measured_of(_qualified(comparison), [info.name])
        lines.append(f"best {said.titles[info.name]}{f' {label}' if label else ''}: {said.of(row)}")
    if missing:
        lines += _listed(fitting, lambda row: f"qualifies: {said.of(row)}")
    lines += _listed(missing, lambda row: f"misses: {tell(row.axes)} – {'; '.join(row.misses)}")
    return one_line(title), tuple(map(one_line, lines))


def _qualified(comparison: Comparison) -> list[Row]:
    """The rows that qualify, and those that might if they were measured."""
    return [row for row in comparison.rows if not row.misses or not row.has_values]


def _infos(comparison: Comparison) -> list[MetricInfo]:
    """The metrics that the constraints and the front speak of, in the order of the comparison."""
    names = metric_names(comparison.metrics)
    known = [*names, *comparison.axes]
    spoken = {names.get(n) for c in conditions(comparison.constraints, known) for n in c.expression.names}
    return [info for info in comparison.metrics if info.name in spoken or info.name in comparison.pareto]


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
    said = _Figures(comparison, [infos[name] for name in comparison.pareto])
    title = ", ".join(f"{said.titles[info.name]} {_ARROWS[info.better]}" for info in said.infos)
    label = measured_of(_qualified(comparison), [info.name for info in said.infos])
    return f"Pareto front{f' {label}' if label else ''}: {title}", tuple(_listed(rows, said.of))


class _Figures:
    """Rows with their figures, as text."""

    def __init__(self, comparison: Comparison, infos: Sequence[MetricInfo]) -> None:
        self.infos = infos
        self.titles = {info.name: metric_title(info, comparison.rows) for info in infos}
        self._tell = teller(comparison)

    def of(self, row: Row) -> str:
        """E.g. ``model=mlp – latency 1.00 ms, accuracy 0.9000``."""
        known = [(info, value) for info in self.infos if (value := value_of(row, info.name)) is not None]
        said = ", ".join(f"{self.titles[i.name]} {scaled(value, text_unit(i.name, i.unit))}" for i, value in known)
        name = f"{self._tell(row.axes)} ({rounds_text(row)})" if row.is_incomplete else self._tell(row.axes)
        return f"{name} – {said}" if said else name


def _listed(rows: Sequence[Row], said: Callable[[Row], str]) -> list[str]:
    more = [f"and {len(rows) - _MOST} more, in comparison.csv"] if len(rows) > _MOST else []
    return [*map(said, rows[:_MOST]), *more]
