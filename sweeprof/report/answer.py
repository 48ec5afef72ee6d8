"""The answer of a comparison in words: what is better, by how much, where not, how certain that is, and what to do next.

Every report begins with it. It is computed from the comparison alone, by the rules of this module.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sweeprof.numbers import rounded, text_unit
from sweeprof.report.columns import MODEL_AXIS, baseline_text, called_metrics, metric_title, value_text
from sweeprof.report.summary import candidate_name, combination_namer, headline, percent, same_environment, where
from sweeprof.results.comparison import (
    MIN_ROUNDS,
    Cell,
    Comparison,
    Row,
    SearchGoal,
    SearchSummary,
    compared_row,
    is_training,
    value_of,
)
from sweeprof.results.constraints import best_row, uncertain_selection
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.statistics import MOST_SEQUENTIAL_ROUNDS
from sweeprof.results.verdicts import REASONS, Verdict
from sweeprof.text import axis_text, one_line


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
        yield f"The search found no combinations{_search_lacks(comparison, goals, feasible, condition)} ({measured})."
    elif len(search.goals) == 1:
        yield from _best_found(comparison, goals[0], with_values, measured, condition)
    else:
        yield _front(comparison, goals, with_values, measured, condition)
    if search.too_large:
        verb = "was" if search.too_large == 1 else "were"
        yield f"{search.too_large} {verb} not run, because a smaller one is too large."
    chosen, most = len(comparison.rows), min(search.trials, search.combinations - search.too_large)
    if comparison.running is None and chosen < most:
        yield f"The search ended early, after {chosen} of {most} combinations: resume=last continues it."


def _search_lacks(comparison: Comparison, goals: Sequence[_Goal], feasible: Sequence[Row], condition: str) -> str:
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


def _best_found(comparison: Comparison, goal: _Goal, rows: list[Row], measured: str, condition: str) -> Iterator[str]:
    tell = combination_namer(comparison)
    best = best_row(rows, goal.info.name, "higher" if goal.is_largest else "lower")
    assert best is not None  # all rows have a value
    word = "largest" if goal.is_largest else "smallest"
    title = metric_title(goal.info, comparison.rows)
    of = f" of those{condition}" if condition else ""
    yield (f"The {word} {title}{of} is that of {tell(best.axes)}: {_value_text(comparison, goal, best)} ({measured}).")
    threshold = comparison.threshold_of(goal.info.name)
    cells = {row.combination_id: _beside_best(comparison, row, best, goal.info) for row in rows if row is not best}
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


def _beside_best(comparison: Comparison, row: Row, best: Row, metric: MetricInfo) -> Cell:
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


# The answer of a comparison in words: what is better, by how much, where not, how certain that is, and what to do next.


Confidence = Literal["high", "medium", "low"]
CaseDirection = Literal["better", "worse", "equal"]

NOTICEABLE = 0.1
"""Where a comparison has no threshold, a smaller relative difference is called equal."""
FACTOR = 1.2
"""From this ratio on a difference is written as a factor, below it in percent."""
HOUR_S = 3600.0
MOST_NAMES = 4
"""Sides that are named where all are equal."""
MOST_EXCEPTIONS = 2
"""Cases that are named one by one."""
STEPS = ("latency/iteration", "latency/forward")
NOISE = ("spread_high", "spread_severe", "drift")
"""Codes of the warnings that say that a row's times scatter."""
CERTAIN: tuple[Verdict, ...] = ("better", "worse", "same")


@dataclass(frozen=True, slots=True)
class Answer:
    """Sentences in plain text."""

    finding: str
    """What is better, by how much and where not."""
    counts: str
    """How many combinations were measured, and the outcome of the others."""
    confidence: Confidence | None = None
    """How many of the compared differences are certain: ``high``, all; ``medium``, at least half. None: nothing was compared."""
    reasons: tuple[str, ...] = ()
    """Why the confidence is not higher."""
    advice: str = ""
    """What to do next."""

    @property
    def certainty(self) -> str:
        """The confidence as a sentence; empty where nothing was compared."""
        if self.confidence is None:
            return ""
        reasons = f" ({', '.join(self.reasons)})" if self.reasons else ""
        return f"Confidence: {self.confidence}{reasons}."

    @property
    def rest(self) -> str:
        """Everything after the finding."""
        return " ".join(part for part in (self.counts, self.certainty, self.advice) if part)

    def __str__(self) -> str:
        return f"{self.finding} {self.rest}"


@dataclass(frozen=True, slots=True)
class _Case:
    """A row with its ratio to its baseline."""

    row: Row
    cell: Cell
    ratio: float
    """Below 1 the row is better, whatever the metric."""
    direction: CaseDirection

    @property
    def is_certain(self) -> bool:
        return self.cell.verdict in CERTAIN


def answer(comparison: Comparison) -> Answer:
    """Return the answer of a comparison."""
    counts = f"{headline(comparison)}."
    found = [] if comparison.search is None else list(search_sentences(comparison, comparison.search))
    if found and comparison.against is None:
        if comparison.rows and not any(row.has_values for row in comparison.rows):
            found.append(_most_common_reason(comparison))
        return Answer(" ".join(found), counts)
    if not any(row.has_values for row in comparison.rows):
        return Answer(_nothing(comparison), counts)
    metric = main_metric(comparison)
    cases = [] if metric is None else _cases(comparison, metric)
    sentences = found
    if comparison.constraints and not found:
        sentences.append(_qualifying(comparison, metric))
    if comparison.against is not None:
        sentences += _since(comparison, cases, metric)
    elif metric is not None and cases:
        sentences.append(_compared(comparison, metric, cases))
    elif not sentences:
        sentences.append(_best(comparison, metric))
    sentences += _lacking(comparison)
    text = " ".join(sentences)
    if not cases:
        return Answer(text, counts, advice=_without_comparisons(comparison))
    confidence, reasons = _confidence(comparison, cases)
    return Answer(text, counts, confidence, reasons, _advice(comparison, cases))


def _nothing(comparison: Comparison) -> str:
    total = len(comparison.rows)
    if not total:
        return "There are no combinations."
    subject = "The combination has no result" if total == 1 else f"None of {total} combinations has a result"
    return f"{subject}. {_most_common_reason(comparison)}"


def _most_common_reason(comparison: Comparison) -> str:
    """Return why most of the combinations have no result."""
    reasons = Counter(one_line(row.reason or "no reason was given") for row in comparison.rows)
    reason, number = reasons.most_common(1)[0]
    where = "" if number == len(comparison.rows) else f" of {number}"
    return f"The reason{where}: {reason.rstrip('.')}."


def main_metric(comparison: Comparison) -> MetricInfo | None:
    """Return the metric that the answer is about: the time of a step, or else the first with values and a better direction."""
    known = {info.name: info for info in comparison.metrics}
    for info in [*(known[name] for name in STEPS if name in known), *called_metrics(comparison)]:
        if info.better is not None and any(_value(row, info) is not None for row in comparison.rows):
            return info
    return None


def metric_of(row: Row, metric: MetricInfo) -> str:
    """Return the name of the metric for a row: a training step is compared as a whole, and any other step is a forward."""
    if metric.name not in STEPS:
        return metric.name
    return STEPS[0] if is_training(row) else STEPS[1]


def _value(row: Row, metric: MetricInfo) -> float | None:
    return value_of(row, metric_of(row, metric)) if row.has_values else None


def _cases(comparison: Comparison, metric: MetricInfo) -> list[_Case]:
    """Return the rows that have a ratio to a baseline other than themselves."""
    found = []
    for row in comparison.rows:
        name = metric_of(row, metric)
        cell = row.cells.get(name)
        if cell is None or cell.ratio is None or row.is_baseline or not (row.has_values and row.baseline_has_values):
            continue
        if not math.isfinite(cell.ratio) or cell.ratio <= 0:
            continue
        ratio = cell.ratio if metric.better == "lower" else 1 / cell.ratio
        found.append(_Case(row, cell, ratio, _direction(cell.verdict, ratio, _threshold(comparison, name))))
    return found


def _direction(verdict: Verdict | None, ratio: float, threshold: float) -> CaseDirection:
    if verdict == "same" or (verdict not in CERTAIN and abs(math.log(ratio)) <= math.log1p(threshold)):
        return "equal"
    if verdict in CERTAIN:
        return "better" if verdict == "better" else "worse"
    return "better" if ratio < 1 else "worse"


def _threshold(comparison: Comparison, name: str) -> float:
    """Return the relative difference of a metric up to which two values are called equal."""
    threshold = comparison.threshold_of(name)
    return NOTICEABLE if threshold is None else threshold


def _overall(cases: Sequence[_Case]) -> float:
    return math.exp(math.fsum(math.log(case.ratio) for case in cases) / len(cases))


def _amount(metric: MetricInfo, ratio: float, is_better: bool) -> str:
    """Return how far a ratio is from 1, in either direction, as it stands before :func:`_word`: ``2.0×``, ``12 %``."""
    factor = max(ratio, 1 / ratio)
    if factor < FACTOR:
        # Half as much is 50 % lower; what takes half the time is 100 % faster.
        is_lower = metric.name not in STEPS and is_better == (metric.better == "lower")
        return f"{100 * (1 - 1 / factor if is_lower else factor - 1):.2g} %"
    return f"{factor:.1f}×" if factor < 10 else f"{factor:.0f}×"


def _word(metric: MetricInfo, is_better: bool, is_most: bool = False) -> str:
    """Return the word for a side: ``faster``, ``slower``, ``fastest``, ``lower`` …"""
    ending = "est" if is_most else "er"
    if metric.name in STEPS:
        return f"{'fast' if is_better else 'slow'}{ending}"
    return f"{'low' if is_better == (metric.better == 'lower') else 'high'}{ending}"


def _compared(comparison: Comparison, metric: MetricInfo, cases: Sequence[_Case]) -> str:
    """Return the finding of a comparison with a baseline that is one of the rows."""
    sides: dict[str, list[_Case]] = {}
    for case in cases:
        sides.setdefault(candidate_name(comparison, case.row) or "the other", []).append(case)
    base = baseline_text(comparison)
    subject = "" if metric.name in STEPS else f"By {metric_title(metric, comparison.rows)}, "
    if len(sides) == 1:
        ((other, found),) = sides.items()
        return subject + _two_sides(comparison, metric, base, other, found)
    return subject + _many_sides(comparison, metric, base, sides)


def _two_sides(comparison: Comparison, metric: MetricInfo, base: str, other: str, cases: Sequence[_Case]) -> str:
    better = [case for case in cases if case.direction == "better"]
    worse = [case for case in cases if case.direction == "worse"]
    equal = len(cases) - len(better) - len(worse)
    if equal == len(cases):
        return _no_difference(comparison, metric, [base, other], cases, len(cases))
    overall = _overall(cases)
    other_wins = bool(better) and (overall < 1 or not worse)
    winner, loser = (other, base) if other_wins else (base, other)
    wins, losses = (better, worse) if other_wins else (worse, better)
    if len(cases) == 1:
        # Of several cases only one may have a result, as while a sweep runs.
        is_all = sum(candidate_name(comparison, row) == other for row in comparison.rows) <= 1
        where = "" if is_all else f" for {_place(comparison, cases[0].row)}"
        return f"{winner} is {_amount(metric, overall, True)} {_word(metric, True)} than {loser}{where}."
    extent = _extent(len(wins), len(cases))
    are_some_certain = any(case.is_certain for case in cases)
    note = _certain_of(wins) if are_some_certain else ""
    parts = [f"{winner} is {_word(metric, True)} than {loser} in {extent} cases{note}"]
    if other_wins == (overall < 1):
        parts[0] += f", {_amount(metric, overall, True)} overall"
    parts += _exceptions(comparison, metric, loser, losses, are_some_certain)
    if equal:
        parts.append(f"they are about equal in {equal} {'case' if equal == 1 else 'cases'}")
    return "; ".join(parts) + "."


def _certain_of(cases: Sequence[_Case]) -> str:
    """Return how many of some cases are certain, in brackets; empty if all are."""
    certain = sum(case.is_certain for case in cases)
    if certain == len(cases):
        return ""
    return f" ({certain or 'none'} of them certain)" if len(cases) > 1 else " (not certain)"


def _extent(count: int, total: int) -> str:
    """Return ``both``, ``all 9`` or ``7 of 9``."""
    if count < total:
        return f"{count} of {total}"
    return "both" if total == 2 else f"all {total}"


def _no_difference(
    comparison: Comparison, metric: MetricInfo, sides: Sequence[str], cases: Sequence[_Case], total: int
) -> str:
    """Return the finding where no case of ``total`` has a difference that counts."""
    who = f"All {len(sides)}" if len(sides) > MOST_NAMES else f"{', '.join(sides[:-1])} and {sides[-1]}"
    adjective = "equally fast" if metric.name in STEPS else "equal"
    where = "" if total == 1 else f" in {_extent(total, total)} cases"
    if not all(case.is_certain for case in cases):
        return f"{who} are about {adjective}{where}."
    threshold = comparison.threshold_of(metric_of(cases[0].row, metric))
    within = "" if threshold is None or not cases[0].cell.ratio_interval else f", within {percent(threshold)}"
    return f"{who} are {adjective}{where}{within}."


def _exceptions(
    comparison: Comparison, metric: MetricInfo, side: str, cases: Sequence[_Case], are_some_certain: bool
) -> list[str]:
    """Return the cases in which the side that loses overall is better.

    Args:
        are_some_certain: whether any case of the comparison is certain; then it is said of which of these that they are not.
    """
    if not cases:
        return []
    furthest = sorted(cases, key=lambda case: abs(math.log(case.ratio)), reverse=True)
    if len(cases) > MOST_EXCEPTIONS:
        most = furthest[0]
        at_most = f"at most {_amount(metric, most.ratio, True)} (for {_place(comparison, most.row)})"
        note = _certain_of(cases) if are_some_certain else ""
        return [f"{side} is {_word(metric, True)} in {len(cases)}{note}, {at_most}"]
    told: list[str] = []
    for case in furthest:
        note = _certain_of([case]) if are_some_certain else ""
        word = "" if told else f"{side} is "
        adjective = "" if told else f"{_word(metric, True)} "
        told.append(f"{word}{_amount(metric, case.ratio, True)} {adjective}for {_place(comparison, case.row)}{note}")
    return [" and ".join(told)]


def _many_sides(comparison: Comparison, metric: MetricInfo, base: str, sides: dict[str, list[_Case]]) -> str:
    """Return the finding of three or more sides; who wins a case is the one furthest below the baseline, else the baseline."""
    by_baseline: dict[str | None, list[tuple[str, _Case]]] = {}
    for name, cases in sides.items():
        for case in cases:
            by_baseline.setdefault(case.row.baseline_id, []).append((name, case))
    everything = [case for cases in sides.values() for case in cases]
    if all(case.direction == "equal" for case in everything):
        return _no_difference(comparison, metric, [base, *sides], everything, len(by_baseline))
    winners: dict[str, list[_Case]] = {name: [] for name in (base, *sides)}
    close: dict[str, Counter[str]] = {name: Counter() for name in winners}
    """By winner: in how many of its cases another side is hardly behind."""
    threshold = _threshold(comparison, metric_of(everything[0].row, metric))
    for found in by_baseline.values():
        better = [(name, case) for name, case in found if case.direction == "better"]
        winner, won = min(better, key=lambda pair: pair[1].ratio) if better else (base, found[0][1])
        winners[winner].append(won)
        ratios = {base: 1.0, **{name: case.ratio for name, case in found}}
        limit = math.log1p(threshold)
        close[winner].update(n for n, r in ratios.items() if n != winner and math.log(r / ratios[winner]) <= limit)
    overall = {base: 1.0, **{name: _overall(cases) for name, cases in sides.items()}}
    winner = min(winners, key=lambda name: (-len(winners[name]), overall[name]))
    total = len(by_baseline)
    extent = f"of {len(overall)}"
    if total > 1:
        extent += f" in {_extent(len(winners[winner]), total)} cases"
    parts = [f"{winner} is the {_word(metric, True, is_most=True)} {extent}"]
    if winner != base:
        count = len(sides[winner])
        reach = "" if total == 1 else " overall" if count == total else f" in the {count} that it has"
        parts[0] += (
            f", {_amount(metric, overall[winner], overall[winner] < 1)} {_word(metric, overall[winner] < 1)} than {base}{reach}"
        )
        certain = sum(case.is_certain for case in sides[winner])
        if certain < count and any(case.is_certain for case in everything):
            parts[0] += f" (certain in {certain or 'none'} of {count} cases)" if count > 1 else " (not certain)"
    for name, count in close[winner].most_common(MOST_EXCEPTIONS):
        parts.append(f"{name} is within {percent(threshold)} of it" + ("" if total == 1 else f" in {count}"))
    for name, cases in winners.items():
        if name != winner and cases:
            places = f" ({_place(comparison, cases[0].row)})" if len(cases) == 1 else ""
            parts.append(f"{name} is the {_word(metric, True, is_most=True)} in {len(cases)}{places}")
    last = max(overall, key=lambda name: overall[name])
    if last not in (winner, base) and _direction(None, overall[last], NOTICEABLE) == "worse":
        parts.append(
            f"{last} is the {_word(metric, False, is_most=True)} overall, "
            f"{_amount(metric, overall[last], False)} {_word(metric, False)} than {base}"
        )
    return "; ".join(parts) + "."


def _place(comparison: Comparison, row: Row) -> str:
    """Return the axes of a row that vary and that the baseline does not name: ``digits_resnet, batch_size 64``."""
    varying = comparison.varying_axes()
    return where(row, [axis for axis in varying if axis not in comparison.baseline]) or where(row, varying)


def _since(comparison: Comparison, cases: Sequence[_Case], metric: MetricInfo | None) -> Iterator[str]:
    """Return what changed since another sweep; only verdicts count."""
    assert comparison.against is not None
    when = _day(comparison.against.created, comparison.created)
    without_ratio = [] if metric is None else _changed_without_ratio(comparison, metric)
    if metric is None or not (cases or without_ratio):
        yield f"No combination can be compared with {one_line(comparison.against.label)} of {when}."
        return
    tell = combination_namer(comparison)
    certain = [case for case in cases if case.is_certain]
    worse = [case for case in certain if case.direction == "worse"]
    better = [case for case in certain if case.direction == "better"]
    parts = []
    for found, is_better in ((worse, False), (better, True)):
        if not found:
            continue
        most = max(found, key=lambda case: abs(math.log(case.ratio)))
        name = tell(most.row.axes)
        if len(found) == 1:
            parts.append(f"{name} is {_amount(metric, most.ratio, is_better)} {_word(metric, is_better)}")
        else:
            word = _word(metric, is_better)
            parts.append(
                f"{len(found)} of {len(cases)} combinations are {word}, at most {_amount(metric, most.ratio, is_better)} ({name})"
            )
    for row, cell in without_ratio[:MOST_EXCEPTIONS]:
        unit = text_unit(metric.name, metric.unit)
        before, now = (rounded(value, unit) for value in (cell.base, cell.measurement.value) if value is not None)
        parts.append(f"{tell(row.axes)} is {cell.verdict} ({before} → {now})")
    if len(without_ratio) > MOST_EXCEPTIONS:
        parts.append(f"{len(without_ratio) - MOST_EXCEPTIONS} more differ so from a value that is zero or negative")
    if not parts:
        parts.append(_unchanged(metric, len(cases), is_certain=len(certain) == len(cases)))
    subject = "" if metric.name in STEPS else f"by {metric_title(metric, comparison.rows)}, "
    yield f"Since {when}: {subject}{'; '.join(parts)}."
    yield from _other_metrics(comparison, metric)


def _other_metrics(comparison: Comparison, metric: MetricInfo) -> Iterator[str]:
    """Return which metrics other than the main one are worse since another sweep, or cannot be compared with it."""
    worse: list[str] = []
    apart: list[str] = []
    for info in called_metrics(comparison):
        if info.name in (*STEPS, metric.name):
            continue
        cells = [row.cells[info.name] for row in comparison.rows if info.name in row.cells]
        title = metric_title(info, comparison.rows)
        if count := sum(cell.verdict == "worse" for cell in cells):
            worse.append(f"{title} in {count}")
        if count := sum(cell.verdict_reason in ("different_data", "different_unit") for cell in cells):
            apart.append(f"{title} in {count}")
    if worse:
        yield f"Also worse: {', '.join(worse)}."
    if apart:
        yield f"Not comparable: {', '.join(apart)}."


def _changed_without_ratio(comparison: Comparison, metric: MetricInfo) -> list[tuple[Row, Cell]]:
    """Return the rows that are better or worse by a metric, and that are no cases: a value is zero or negative."""
    found = []
    for row in comparison.rows:
        cell = row.cells.get(metric_of(row, metric))
        if cell is None or cell.verdict not in ("better", "worse") or not (row.has_values and row.baseline_has_values):
            continue
        if cell.ratio is None or not math.isfinite(cell.ratio) or cell.ratio <= 0:
            found.append((row, cell))
    return sorted(found, key=lambda pair: pair[1].verdict != "worse")


def _unchanged(metric: MetricInfo, count: int, is_certain: bool) -> str:
    """Return that no combination of ``count`` differs by a metric; other metrics may have changed."""
    if metric.name not in STEPS:
        same = "nothing has changed" if is_certain else "nothing is certain to have changed"
        return f"{same} in {count} combinations" if count > 1 else same
    what = "the time of a training step" if metric.name == STEPS[0] else "the latency"
    same = f"{what} has not changed" if is_certain else f"{what} is not certain to have changed"
    return f"{same} in any of {count} combinations" if count > 1 else same


def _lacking(comparison: Comparison) -> Iterator[str]:
    """Return which sides of a comparison have no result at all; since another sweep, which results are gone."""
    if comparison.against is not None:
        tell = combination_namer(comparison)
        failed = [row for row in comparison.rows if row.baseline_has_values and not row.has_values]
        if failed:
            verb, such_as = ("has", "") if len(failed) == 1 else ("have", "such as ")
            yield f"{_combinations(len(failed))} {verb} no result any more ({such_as}{tell(failed[0].axes)}: {failed[0].status})."
        absent = comparison.against.absent
        if absent:
            verb, such_as = ("is", "") if len(absent) == 1 else ("are", "such as ")
            yield f"{_combinations(len(absent))} {verb} missing ({such_as}{tell(absent[0])})."
        titles = [metric_title(info, comparison.rows) for info in comparison.against.absent_metrics]
        if titles:
            more = f" and {len(titles) - MOST_NAMES} more" if len(titles) > MOST_NAMES else ""
            yield f"No longer measured: {', '.join(titles[:MOST_NAMES])}{more}."
    elif comparison.baseline:
        sides: dict[str, list[Row]] = {}
        for row in comparison.rows:
            sides.setdefault(candidate_name(comparison, row), []).append(row)
        for name, rows in sides.items():
            if name and not any(row.has_values for row in rows):
                statuses = Counter(row.status for row in rows)
                counts = ", ".join(f"{number} {status}" for status, number in statuses.items())
                yield f"{name} has no result ({counts})."


def _combinations(count: int) -> str:
    return "1 combination" if count == 1 else f"{count} combinations"


def _day(created: str, now: str) -> str:
    """Return a date as ``20 November``, with the year if it is another than now."""
    try:
        then = datetime.fromisoformat(created)
    except ValueError:
        return one_line(created)
    return f"{then.day} {then:%B}" + ("" if now.startswith(f"{then.year}-") else f" {then.year}")


def _qualifying(comparison: Comparison, metric: MetricInfo | None) -> str:
    """Return how many combinations fulfil all conditions, and the best of them."""
    total = len(comparison.rows)
    good = [row for row in comparison.rows if row.has_values and not row.misses]
    if not good:
        return (
            f"None of {total} combinations fulfils all conditions ({'; '.join(map(one_line, comparison.constraints))})."
        )
    text = f"{len(good)} of {total} combinations {'fulfils' if len(good) == 1 else 'fulfil'} all conditions"
    uncertain = uncertain_selection(comparison)
    count = sum(row.combination_id in uncertain for row in good)
    if count:
        text += " (not certain)" if len(good) == 1 else f" ({count} of them not certain)"
    best = None if metric is None else _best_of(good, metric)
    if metric is None or best is None:
        return f"{text}."
    row, value = best
    superlative = _word(metric, True, is_most=True)
    if metric.name not in STEPS:
        superlative += f" {metric_title(metric, comparison.rows)}"
    return f"{text}; the {superlative} of them is {value} ({_name(comparison, row)})."


def _best(comparison: Comparison, metric: MetricInfo | None) -> str:
    """Return the best values where nothing is compared."""
    measured = [row for row in comparison.rows if row.has_values]
    count = f"{len(measured)} of {len(comparison.rows)} combinations" if len(comparison.rows) > 1 else "The combination"
    if metric is None:
        return f"{count} {'was' if len(comparison.rows) == 1 else 'were'} measured; no metric has a better direction."
    found = []
    if metric.name in STEPS:
        kinds = ((STEPS[1], "latency", False), (STEPS[0], "time of a training step", True))
        for name, title, trained in kinds:
            rows = [row for row in measured if is_training(row) == trained and value_of(row, name) is not None]
            if rows:
                found.append((title, rows))
    else:
        found.append((metric_title(metric, comparison.rows), measured))
    parts = []
    for title, rows in found:
        best = _best_of(rows, metric)
        if best is None:
            continue
        row, value = best
        word = "lowest" if metric.better == "lower" else "highest"
        if len(rows) == 1:
            verb = "are" if title.endswith("s") and metric.unit != "s" else "is"
            parts.append(f"the {title} of {_name(comparison, row)} {verb} {value}")
        elif metric.unit == "s":
            parts.append(f"the {word} {title} is {value} ({_name(comparison, row)})")
        elif len({_value(row, metric) for row in rows}) == 1:
            parts.append(f"by {title}, all {len(rows)} combinations are equal ({value})")
        else:
            parts.append(f"by {title}, the {word} value is {value} ({_name(comparison, row)})")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _best_of(rows: Sequence[Row], metric: MetricInfo) -> tuple[Row, str] | None:
    """Return the best of some rows with its value as text; None if no row has a value."""
    values = {row.combination_id: value for row in rows if (value := _value(row, metric)) is not None}
    measured = [row for row in rows if row.combination_id in values]
    if not measured:
        return None
    choose = min if metric.better == "lower" else max
    best = choose(measured, key=lambda row: values[row.combination_id])
    return best, value_text(best.cells[metric_of(best, metric)].measurement, with_interval=False)


def _name(comparison: Comparison, row: Row) -> str:
    """Return the varying axes of a row, or its model where nothing varies."""
    return where(row, comparison.varying_axes()) or axis_text(row.axes.get(MODEL_AXIS, "the model"))


def _confidence(comparison: Comparison, cases: Sequence[_Case]) -> tuple[Confidence, tuple[str, ...]]:
    open_cases = [case for case in cases if not case.is_certain]
    if not open_cases:
        return "high", ()
    reasons = []
    codes = Counter(case.cell.verdict_reason for case in open_cases)
    if codes["too_few_rounds"]:
        few = [case for case in open_cases if case.cell.verdict_reason == "too_few_rounds"]
        rounds = min(min(len(case.cell.measurement.rounds), case.cell.base_rounds or MIN_ROUNDS) for case in few)
        reasons.append(f"{rounds} {'round' if rounds == 1 else 'rounds'}" + _share(len(few), cases))
    if codes["interval_crosses_threshold"]:
        reasons.append("interval too wide" + _share(codes["interval_crosses_threshold"], cases))
    if codes["different_environment"]:
        reasons.append(f"{codes['different_environment']} measured in another environment")
    if codes["different_data"]:
        reasons.append("different test data" + _share(codes["different_data"], cases))
    if codes["no_threshold"]:
        reasons.append("no threshold")
    if codes["measured_once"]:
        reasons.append("measured once" + _share(codes["measured_once"], cases))
    others = len(open_cases) - sum(codes[code] for code in _TOLD)
    if others:
        reasons.append(f"{others} not certain")
    noisy = _noisy(comparison)
    if noisy:
        reasons.append(f"{noisy} noisy {'row' if noisy == 1 else 'rows'}")
    is_half_certain = 2 * len(open_cases) <= len(cases)
    return "medium" if is_half_certain else "low", tuple(reasons)


def _noisy(comparison: Comparison) -> int:
    """Return the number of rows whose times scatter."""
    return sum(
        any(warning.code in NOISE for warning in row.warnings)
        or any(warning.code in NOISE for cell in row.cells.values() for warning in cell.measurement.warnings)
        for row in comparison.rows
    )


_TOLD = (
    *("too_few_rounds", "interval_crosses_threshold", "different_environment", "different_data"),
    *("no_threshold", "measured_once"),
)
"""Codes of the reasons that :func:`_confidence` has words for."""


def _share(count: int, cases: Sequence[_Case]) -> str:
    return "" if count == len(cases) else f" in {count} of {len(cases)}"


def _advice(comparison: Comparison, cases: Sequence[_Case]) -> str:
    """Return what would make more of the differences certain; empty if all are."""
    open_cells = [case.cell for case in cases if not case.is_certain]
    codes = Counter(cell.verdict_reason for cell in open_cells)
    advice = ""
    if comparison.running is not None:
        advice = "The sweep continues; sweeprof report DIR shows its present state."
    elif any(row.is_incomplete for row in comparison.rows):
        advice = "Measure what is missing: resume=last."
    elif codes["too_few_rounds"] or codes["no_threshold"]:
        is_other_side = all(len(cell.measurement.rounds) >= MIN_ROUNDS for cell in open_cells)
        subject = "Measure the other sweep" if comparison.against is not None and is_other_side else "Run"
        advice = f"{subject} again with protocol=default."
    elif codes["interval_crosses_threshold"] and comparison.protocol.get("budget"):
        advice = _with_another_hour(comparison, cases)
    elif codes["interval_crosses_threshold"]:
        advice = _less_spread(comparison)
    elif codes["different_environment"]:
        apart = next(case.row for case in cases if case.cell.verdict_reason == "different_environment")
        text = same_environment(apart)
        advice = f"{text[:1].upper()}{text[1:]}."
    return advice


def _without_comparisons(comparison: Comparison) -> str:
    """Return why verdicts cannot end the rounds of a sweep, if they should: its combinations have no baseline among them."""
    axes = comparison.varying_axes()
    is_compared = comparison.against is not None or any(axis in comparison.baseline for axis in axes)
    if is_compared or not any(comparison.protocol.get("decide") or ()):
        return ""
    if not axes:
        return "Nothing is compared, because there is one combination: protocol=default measures five rounds of it."
    axis = next((axis for axis in axes if axis not in (MODEL_AXIS, "batch_size")), axes[0])
    example = f"compare.baseline={{{one_line(axis)}: {axis_text(comparison.rows[0].axes.get(axis))}}}"
    return f"Nothing is compared, because no combination has a baseline among the others: name one, such as {example}."


def _with_another_hour(comparison: Comparison, cases: Sequence[_Case]) -> str:
    """Return how many of the comparisons that are not decided further rounds would decide, the shortest first, within an hour."""
    rows = {row.combination_id: row for row in comparison.rows}
    seconds = []
    for case in cases:
        needed, most = case.cell.rounds_needed, case.row.most_rounds
        if needed is not None and needed <= most and case.row.rounds_complete < most:
            further = max(1, needed - case.row.rounds_complete)
            base = rows.get(case.row.baseline_id or "")
            seconds.append(further * (case.row.round_s + (base.round_s if base else 0.0)))
    open_count = sum(not case.is_certain for case in cases)
    settled, spent = 0, 0.0
    for cost in sorted(seconds):
        spent += cost
        if spent > HOUR_S:
            break
        settled += 1
    if not settled:
        return "Another hour would not settle it." if open_count == 1 else "Another hour would settle none of them."
    which = "it" if open_count == 1 else f"about {settled} of the {open_count} that are not decided"
    return f"Another hour would settle {which}: resume=last budget=1h."


def _less_spread(comparison: Comparison) -> str:
    """Return how to measure again with narrower intervals."""
    again = "again with protocol=decide"
    if comparison.against is not None or any(comparison.protocol.get("decide") or ()):
        rounds = 2 * max(comparison.protocol.get("rounds") or [MIN_ROUNDS])
        again = f"again with protocol.rounds={min(MOST_SEQUENTIAL_ROUNDS, rounds)}"
    return f"Wait until the machine is idle and run {again}." if _noisy(comparison) else f"Run {again}."
