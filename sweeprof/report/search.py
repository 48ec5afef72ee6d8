"""The answer of a search in words: the best combination, how many were measured, and which others may be as good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sweeprof.report.cells import value_text
from sweeprof.report.columns import metric_title
from sweeprof.report.summary import combination_namer, percent
from sweeprof.results.comparison import Comparison, Row, SearchGoal, SearchSummary, compared_row, value_of
from sweeprof.results.constraints import best_row
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.verdicts import REASONS, Cell
from sweeprof.text import one_line

NOTICEABLE = 0.1
"""Where nothing can be decided, values within this relative difference may be equal."""
MOST_NAMES = 4
"""Combinations that are named one by one."""


@dataclass(frozen=True, slots=True)
class _Goal:
    info: MetricInfo
    is_largest: bool
    """True if the largest value is the best."""


def search_sentences(comparison: Comparison, search: SearchSummary) -> Iterator[str]:
    """Yield the sentences of the answer of a search."""
    goals = [goal for named in search.goals if (goal := _goal(comparison, named)) is not None]
    measured_rows = [row for row in comparison.rows if row.has_values]
    feasible = [row for row in measured_rows if not row.misses]
    with_values = [row for row in feasible if all(value_of(row, goal.info.name) is not None for goal in goals)]
    noun = "combination" if search.combinations == 1 else "combinations"
    measured = f"{len(measured_rows)} of {search.combinations} {noun} measured"
    condition = f" that fulfil {' and '.join(map(one_line, comparison.constraints))}" if comparison.constraints else ""
    if not goals or not with_values:
        yield f"The search found no combinations{_lacking(comparison, goals, feasible, condition)} ({measured})."
    elif len(search.goals) == 1:
        yield from _best(comparison, goals[0], with_values, measured, condition)
    else:
        yield _front(comparison, goals, with_values, measured, condition)
    if search.too_large:
        verb = "was" if search.too_large == 1 else "were"
        yield f"{search.too_large} {verb} not run, because a smaller one is too large."
    chosen, most = len(comparison.rows), min(search.trials, search.combinations - search.too_large)
    if comparison.running is None and chosen < most:
        yield f"The search ended early, after {chosen} of {most} combinations: resume=last continues it."


def _lacking(comparison: Comparison, goals: Sequence[_Goal], feasible: Sequence[Row], condition: str) -> str:
    """Return what no combination has: a value of a goal, if there are some that fulfil the conditions."""
    if not feasible or not goals:
        return condition or " that have a result"
    titles = " and ".join(metric_title(goal.info, comparison.rows) for goal in goals)
    return f"{condition}{' and' if condition else ' that'} have a value of {titles}"


def _goal(comparison: Comparison, goal: SearchGoal) -> _Goal | None:
    """Return the goal with its metric; None if the comparison does not have it."""
    info = next((info for info in comparison.metrics if info.name == goal.metric), None)
    return None if info is None else _Goal(info, goal.direction == "maximize")


def _value_text(comparison: Comparison, goal: _Goal, row: Row) -> str:
    text = value_text(row.cells[goal.info.name].measurement, with_interval=False)
    return f"{metric_title(goal.info, comparison.rows)} {text}"


def _best(comparison: Comparison, goal: _Goal, rows: list[Row], measured: str, condition: str) -> Iterator[str]:
    tell = combination_namer(comparison)
    best = best_row(rows, goal.info.name, "higher" if goal.is_largest else "lower")
    assert best is not None  # all rows have a value
    word = "largest" if goal.is_largest else "smallest"
    title = metric_title(goal.info, comparison.rows)
    of = f" of those{condition}" if condition else ""
    yield (f"The {word} {title}{of} is that of {tell(best.axes)}: {_value_text(comparison, goal, best)} ({measured}).")
    threshold = comparison.threshold_of(goal.info.name)
    cells = {row.combination_id: _compared(comparison, row, best, goal.info) for row in rows if row is not best}
    close = [row for row in rows if row is not best and _is_close(cells[row.combination_id], threshold or NOTICEABLE)]
    if close:
        close.sort(key=lambda row: value_of(row, goal.info.name) or 0.0, reverse=goal.is_largest)
        names = "; ".join(tell(row.axes) for row in close[:MOST_NAMES])
        more = f" and {len(close) - MOST_NAMES} more" if len(close) > MOST_NAMES else ""
        yield f"Not distinguishable from it: {names}{more}."
        return
    doubt = next((cell.verdict_reason or "" for cell in cells.values() if not _is_certain(cell)), None)
    if doubt is not None:
        margin = percent(threshold or NOTICEABLE)
        yield f"No other is within {margin} of it, which is not certain: {REASONS.get(doubt, one_line(doubt))}."
    elif cells:
        yield "It can be distinguished from all others."


def _compared(comparison: Comparison, row: Row, best: Row, metric: MetricInfo) -> Cell:
    """Return the value of a row beside that of the best."""
    measurements = {metric.name: row.cells[metric.name].measurement}
    theirs = {metric.name: best.cells[metric.name].measurement}
    thresholds = comparison.thresholds
    return compared_row(row, measurements, best, theirs, comparison.threshold, thresholds).cells[metric.name]


def _is_certain(cell: Cell) -> bool:
    """True if two values are certain to differ by more than the threshold."""
    return cell.verdict in ("better", "worse") or cell.verdict_reason == "neither_is_better"


def _is_close(cell: Cell, threshold: float) -> bool:
    """True if two values may be equal; with too few rounds to decide that, if their ratio is within the threshold."""
    if _is_certain(cell):
        return False
    if cell.ratio is None or cell.verdict == "same" or cell.verdict_reason == "interval_crosses_threshold":
        return True
    return 1 / (1 + threshold) <= cell.ratio <= 1 + threshold


def _front(comparison: Comparison, goals: list[_Goal], rows: list[Row], measured: str, condition: str) -> str:
    tell = combination_namer(comparison)
    front = [row for row in rows if row.on_front]
    front.sort(key=lambda row: value_of(row, goals[0].info.name) or 0.0, reverse=goals[0].is_largest)
    shown = []
    for row in front[:MOST_NAMES]:
        values = ", ".join(_value_text(comparison, goal, row) for goal in goals)
        shown.append(f"{tell(row.axes)} ({values})")
    more = f" and {len(front) - MOST_NAMES} more" if len(front) > MOST_NAMES else ""
    noun = "combination" if len(front) == 1 else "combinations"
    titles = ", ".join(metric_title(goal.info, comparison.rows) for goal in goals)
    of = f" of those{condition}" if condition else ""
    return f"The Pareto front of {titles}{of} has {len(front)} {noun} ({measured}): {'; '.join(shown)}{more}."
