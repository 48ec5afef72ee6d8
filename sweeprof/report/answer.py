"""The answer of a comparison in words: what is better, by how much, where not, how certain that is, and what to do next.

Every report begins with it. It is computed from the comparison alone, by the rules of this module.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sweeprof.numbers import rounded, text_unit
from sweeprof.report.columns import MODEL_AXIS, all_warnings, baseline_text, called_metrics, metric_title, value_text
from sweeprof.report.summary import candidate_name, combination_namer, headline, percent, same_environment, where
from sweeprof.report.view import counted, first_few
from sweeprof.results.compared_rows import Comparison, Row, SearchSummary, compared_row, is_training, value_of
from sweeprof.results.constraints import best_row, uncertain_selection
from sweeprof.results.differences import Cell, Verdict
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.statistics import MOST_SEQUENTIAL_ROUNDS
from sweeprof.results.verdicts import MIN_ROUNDS, REASONS
from sweeprof.text import axis_text, one_line

Confidence = Literal["high", "medium", "low"]
CaseDirection = Literal["better", "worse", "equal"]

NOTICEABLE = 0.1
"""Where a comparison has no threshold, a smaller relative difference is called equal."""
FACTOR = 1.2
"""From this ratio on a difference is written as a factor, below it in percent."""
HOUR_S = 3600.0
MOST_NAMES = 4
"""Sides or combinations that one sentence names."""
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
        if not self.reasons:
            return f"Confidence: {self.confidence}."
        return f"Confidence: {self.confidence} ({', '.join(self.reasons)})."

    @property
    def rest(self) -> str:
        """Everything after the finding."""
        return " ".join(filter(None, (self.counts, self.certainty, self.advice)))

    def __str__(self) -> str:
        return f"{self.finding} {self.rest}"


def answer(comparison: Comparison) -> Answer:
    """Return the answer of a comparison."""
    counts = f"{headline(comparison)}."
    has_results = any(row.has_values for row in comparison.rows)
    sentences = []
    if comparison.search is not None:
        sentences += _search_sentences(comparison, comparison.search)
        if comparison.against is None:
            if comparison.rows and not has_results:
                sentences.append(_most_common_reason(comparison))
            return Answer(" ".join(sentences), counts)
    if not comparison.rows:
        return Answer("There are no combinations.", counts)
    if not has_results:
        total = len(comparison.rows)
        subject = "The combination has no result" if total == 1 else f"None of {total} combinations has a result"
        return Answer(f"{subject}. {_most_common_reason(comparison)}", counts)
    metric = main_metric(comparison)
    cases, without_ratio = ([], []) if metric is None else _cases(comparison, metric)
    if comparison.constraints and comparison.search is None:
        sentences.append(_qualifying(comparison, metric))
    if comparison.against is not None:
        sentences += _since(comparison, metric, cases, without_ratio)
        sentences += _gone(comparison)
    else:
        if metric is not None and cases:
            sentences.append(_compared(comparison, metric, cases))
        elif not sentences:
            sentences.append(_best(comparison, metric))
        sentences += _sides_without_results(comparison)
    finding = " ".join(sentences)
    if not cases:
        return Answer(finding, counts, advice=_advice_without_cases(comparison))
    confidence, reasons = _confidence(comparison, cases)
    return Answer(finding, counts, confidence, reasons, _advice(comparison, cases))


def _most_common_reason(comparison: Comparison) -> str:
    """Return why most of the combinations have no result."""
    reasons = Counter(one_line(row.reason or "no reason was given") for row in comparison.rows)
    reason, count = reasons.most_common(1)[0]
    share = "" if count == len(comparison.rows) else f" of {count}"
    return f"The reason{share}: {reason.rstrip('.')}."


def main_metric(comparison: Comparison) -> MetricInfo | None:
    """Return the metric that the answer is about: the time of a step, or else the first with values and a better direction."""
    known = {info.name: info for info in comparison.metrics}
    steps = [known[name] for name in STEPS if name in known]
    for info in (*steps, *called_metrics(comparison)):
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


# Words that several sentences use


def _amount(metric: MetricInfo, ratio: float, is_better: bool = True) -> str:
    """Return how far a ratio is from 1, in either direction, as it stands before :func:`_word`: ``2.0×``, ``12 %``."""
    factor = max(ratio, 1 / ratio)
    if factor >= 10:
        return f"{factor:.0f}×"
    if factor >= FACTOR:
        return f"{factor:.1f}×"
    # Half as much is 50 % lower; what takes half the time is 100 % faster.
    is_lower = metric.name not in STEPS and is_better == (metric.better == "lower")
    share = 1 - 1 / factor if is_lower else factor - 1
    return f"{100 * share:.2g} %"


def _word(metric: MetricInfo, is_better: bool = True, ending: Literal["er", "est"] = "er") -> str:
    """Return the word for a side: ``faster``, ``slower``, ``fastest``, ``lower`` …"""
    if metric.name in STEPS:
        stem = "fast" if is_better else "slow"
    else:
        stem = "low" if is_better == (metric.better == "lower") else "high"
    return stem + ending


def _of_all(count: int, total: int) -> str:
    """Return ``both``, ``all 9`` or ``7 of 9``."""
    if count < total:
        return f"{count} of {total}"
    return "both" if total == 2 else f"all {total}"


# A search: the best combination, or the Pareto front


@dataclass(frozen=True, slots=True)
class _Goal:
    info: MetricInfo
    title: str
    is_largest: bool
    """True if the largest value is the best."""

    def value(self, row: Row) -> float | None:
        return value_of(row, self.info.name)

    def text(self, row: Row) -> str:
        return f"{self.title} {value_text(row.cells[self.info.name].measurement, with_interval=False)}"


def _search_sentences(comparison: Comparison, search: SearchSummary) -> list[str]:
    infos = {info.name: info for info in comparison.metrics}
    goals = []
    for goal in search.goals:
        if goal.metric in infos:
            title = metric_title(infos[goal.metric], comparison.rows)
            goals.append(_Goal(infos[goal.metric], title, goal.direction == "maximize"))
    measured_rows = [row for row in comparison.rows if row.has_values]
    feasible = [row for row in measured_rows if not row.misses]
    rows = [row for row in feasible if all(goal.value(row) is not None for goal in goals)]
    measured = f"({len(measured_rows)} of {counted(search.combinations, 'combination')} measured)"
    condition = ""
    if comparison.constraints:
        condition = f" that fulfil {' and '.join(map(one_line, comparison.constraints))}"
    of = f" of those{condition}" if condition else ""
    if not goals or not feasible:
        sentences = [f"The search found no combinations{condition or ' that have a result'} {measured}."]
    elif not rows:
        titles = " and ".join(goal.title for goal in goals)
        joint = f"{condition} and" if condition else " that"
        sentences = [f"The search found no combinations{joint} have a value of {titles} {measured}."]
    elif len(search.goals) == 1:
        sentences = _best_found(comparison, goals[0], rows, measured, of)
    else:
        tell = combination_namer(comparison)
        front = [row for row in rows if row.on_front]
        front.sort(key=lambda row: goals[0].value(row) or 0.0, reverse=goals[0].is_largest)
        shown = []
        for row in front:
            values = ", ".join(goal.text(row) for goal in goals)
            shown.append(f"{tell(row.axes)} ({values})")
        titles = ", ".join(goal.title for goal in goals)
        count = counted(len(front), "combination")
        sentences = [f"The Pareto front of {titles}{of} has {count} {measured}: {first_few(shown, MOST_NAMES, '; ')}."]
    if search.too_large:
        verb = "was" if search.too_large == 1 else "were"
        sentences.append(f"{search.too_large} {verb} not run, because a smaller one is too large.")
    chosen, most = len(comparison.rows), min(search.trials, search.combinations - search.too_large)
    if comparison.running is None and chosen < most:
        sentences.append(
            f"The search ended early, after {chosen:,} of {most:,} combinations: resume=last continues it."
        )
    return sentences


def _best_found(comparison: Comparison, goal: _Goal, rows: Sequence[Row], measured: str, of: str) -> list[str]:
    tell = combination_namer(comparison)
    name = goal.info.name
    best = best_row(rows, name, "higher" if goal.is_largest else "lower")
    assert best is not None  # all rows have a value
    word = "largest" if goal.is_largest else "smallest"
    found = f"The {word} {goal.title}{of} is that of {tell(best.axes)}: {goal.text(best)} {measured}."
    # The other rows compared with the best one, to see which of them may be as good.
    threshold = comparison.threshold_of(name) or NOTICEABLE
    close: list[Row] = []
    doubts: list[str] = []
    others = [row for row in rows if row is not best]
    for row in others:
        own, theirs = {name: row.cells[name].measurement}, {name: best.cells[name].measurement}
        cell = compared_row(row, own, best, theirs, comparison.threshold, comparison.thresholds).cells[name]
        if cell.verdict in ("better", "worse") or cell.verdict_reason == "neither_is_better":
            continue  # certain to differ by more than the threshold
        doubts.append(cell.verdict_reason or "")
        may_be_equal = cell.verdict == "same" or cell.verdict_reason == "interval_crosses_threshold"
        if cell.ratio is None or may_be_equal or 1 / (1 + threshold) <= cell.ratio <= 1 + threshold:
            close.append(row)
    if close:
        close.sort(key=lambda row: goal.value(row) or 0.0, reverse=goal.is_largest)
        return [
            found,
            f"Not distinguishable from it: {first_few([tell(row.axes) for row in close], MOST_NAMES, '; ')}.",
        ]
    if doubts:
        reason = REASONS.get(doubts[0], one_line(doubts[0]))
        return [found, f"No other is within {percent(threshold)} of it, which is not certain: {reason}."]
    if others:
        return [found, "It can be distinguished from all others."]
    return [found]


# A comparison with a baseline that is one of the rows


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

    @property
    def size(self) -> float:
        """How large the difference is, in either direction."""
        return abs(math.log(self.ratio))


def _cases(comparison: Comparison, metric: MetricInfo) -> tuple[list[_Case], list[tuple[Row, Cell]]]:
    """Return the rows that have a ratio to a baseline other than themselves.

    Then those that are better or worse without a ratio, because a value is zero or negative.
    """
    cases, without_ratio = [], []
    for row in comparison.rows:
        name = metric_of(row, metric)
        cell = row.cells.get(name)
        if cell is None or row.is_baseline or not (row.has_values and row.baseline_has_values):
            continue
        if cell.ratio is None or not math.isfinite(cell.ratio) or cell.ratio <= 0:
            if cell.verdict in ("better", "worse"):
                without_ratio.append((row, cell))
            continue
        ratio = cell.ratio if metric.better == "lower" else 1 / cell.ratio
        direction = _direction(ratio, _threshold(comparison, name))
        if cell.verdict in CERTAIN:
            direction = _DIRECTIONS[cell.verdict]
        cases.append(_Case(row, cell, ratio, direction))
    without_ratio.sort(key=lambda pair: pair[1].verdict != "worse")
    return cases, without_ratio


_DIRECTIONS: dict[Verdict | None, CaseDirection] = {"better": "better", "worse": "worse", "same": "equal"}


def _direction(ratio: float, threshold: float) -> CaseDirection:
    """Return the direction of a ratio that has no certain verdict."""
    if abs(math.log(ratio)) <= math.log1p(threshold):
        return "equal"
    return "better" if ratio < 1 else "worse"


def _threshold(comparison: Comparison, name: str) -> float:
    """Return the relative difference of a metric up to which two values are called equal."""
    threshold = comparison.threshold_of(name)
    return NOTICEABLE if threshold is None else threshold


def _overall(cases: Sequence[_Case]) -> float:
    return math.exp(math.fsum(math.log(case.ratio) for case in cases) / len(cases))


def _certain_of(cases: Sequence[_Case]) -> str:
    """Return how many of some cases are certain, in brackets; empty if all are."""
    certain = sum(case.is_certain for case in cases)
    if certain == len(cases):
        return ""
    return f" ({certain or 'none'} of them certain)" if len(cases) > 1 else " (not certain)"


def _compared(comparison: Comparison, metric: MetricInfo, cases: Sequence[_Case]) -> str:
    sides: defaultdict[str, list[_Case]] = defaultdict(list)
    for case in cases:
        sides[candidate_name(comparison, case.row) or "the other"].append(case)
    base = baseline_text(comparison)
    if len(sides) == 1:
        ((other, found),) = sides.items()
        text = _two_sides(comparison, metric, base, other, found)
    else:
        text = _many_sides(comparison, metric, base, sides)
    if metric.name in STEPS:
        return text
    return f"By {metric_title(metric, comparison.rows)}, {text}"


def _two_sides(  # noqa: PLR0912  # one sentence from left to right
    comparison: Comparison, metric: MetricInfo, base: str, other: str, cases: Sequence[_Case]
) -> str:
    better = [case for case in cases if case.direction == "better"]
    worse = [case for case in cases if case.direction == "worse"]
    equal = len(cases) - len(better) - len(worse)
    if equal == len(cases):
        return _no_difference(comparison, metric, [base, other], cases, len(cases))
    overall = _overall(cases)
    if better and (overall < 1 or not worse):
        winner, wins, loser, losses = other, better, base, worse
    else:
        winner, wins, loser, losses = base, worse, other, better
    word, amount = _word(metric), _amount(metric, overall)
    if len(cases) == 1:
        text = f"{winner} is {amount} {word} than {loser}"
        # Of several cases only one may have a result, as while a sweep runs.
        if sum(candidate_name(comparison, row) == other for row in comparison.rows) > 1:
            text += f" for {_place(comparison, cases[0].row)}"
        return f"{text}."
    are_some_certain = any(case.is_certain for case in cases)
    text = f"{winner} is {word} than {loser} in {_of_all(len(wins), len(cases))} cases"
    if are_some_certain:
        text += _certain_of(wins)
    if (winner == other) == (overall < 1):
        text += f", {amount} overall"
    losses = sorted(losses, key=lambda case: case.size, reverse=True)
    if len(losses) > MOST_EXCEPTIONS:
        text += f"; {loser} is {word} in {len(losses)}"
        if are_some_certain:
            text += _certain_of(losses)
        text += f", at most {_amount(metric, losses[0].ratio)} (for {_place(comparison, losses[0].row)})"
    else:
        for position, case in enumerate(losses):
            place = _place(comparison, case.row)
            if position == 0:
                text += f"; {loser} is {_amount(metric, case.ratio)} {word} for {place}"
            else:
                text += f" and {_amount(metric, case.ratio)} for {place}"
            if are_some_certain:
                text += _certain_of([case])
    if equal:
        text += f"; they are about equal in {counted(equal, 'case')}"
    return f"{text}."


def _no_difference(
    comparison: Comparison, metric: MetricInfo, sides: Sequence[str], cases: Sequence[_Case], total: int
) -> str:
    """Return the finding where no case of ``total`` has a difference that counts."""
    who = f"All {len(sides)}" if len(sides) > MOST_NAMES else f"{', '.join(sides[:-1])} and {sides[-1]}"
    text = "equally fast" if metric.name in STEPS else "equal"
    if total > 1:
        text += f" in {_of_all(total, total)} cases"
    if not all(case.is_certain for case in cases):
        return f"{who} are about {text}."
    threshold = comparison.threshold_of(metric_of(cases[0].row, metric))
    if threshold is not None and cases[0].cell.ratio_interval:
        text += f", within {percent(threshold)}"
    return f"{who} are {text}."


def _many_sides(  # noqa: PLR0912  # one sentence from left to right
    comparison: Comparison, metric: MetricInfo, base: str, sides: dict[str, list[_Case]]
) -> str:
    """Return the finding of three or more sides; who wins a case is the one furthest below the baseline, else the baseline."""
    by_baseline: defaultdict[str | None, dict[str, _Case]] = defaultdict(dict)
    everything: list[_Case] = []
    for name, cases in sides.items():
        everything += cases
        for case in cases:
            by_baseline[case.row.baseline_id][name] = case
    total = len(by_baseline)
    if all(case.direction == "equal" for case in everything):
        return _no_difference(comparison, metric, [base, *sides], everything, total)
    wins: dict[str, list[_Case]] = {name: [] for name in (base, *sides)}
    close: dict[str, Counter[str]] = {name: Counter() for name in wins}
    """By winner: in how many of its cases another side is hardly behind."""
    threshold = _threshold(comparison, metric_of(everything[0].row, metric))
    for found in by_baseline.values():
        better = [name for name, case in found.items() if case.direction == "better"]
        winner = min(better, key=lambda name: found[name].ratio, default=base)
        wins[winner].append(found[winner] if better else next(iter(found.values())))
        ratios = {base: 1.0, **{name: case.ratio for name, case in found.items()}}
        for name, ratio in ratios.items():
            if name != winner and math.log(ratio / ratios[winner]) <= math.log1p(threshold):
                close[winner][name] += 1
    overall = {base: 1.0, **{name: _overall(cases) for name, cases in sides.items()}}
    winner = min(wins, key=lambda name: (-len(wins[name]), overall[name]))
    best = _word(metric, ending="est")
    text = f"{winner} is the {best} of {len(overall)}"
    if total > 1:
        text += f" in {_of_all(len(wins[winner]), total)} cases"
    if winner != base:
        ratio, count = overall[winner], len(sides[winner])
        text += f", {_amount(metric, ratio, ratio < 1)} {_word(metric, ratio < 1)} than {base}"
        if total > 1:
            text += " overall" if count == total else f" in the {count} that it has"
        certain = sum(case.is_certain for case in sides[winner])
        if certain < count and any(case.is_certain for case in everything):
            text += f" (certain in {certain or 'none'} of {count} cases)" if count > 1 else " (not certain)"
    for name, count in close[winner].most_common(MOST_EXCEPTIONS):
        text += f"; {name} is within {percent(threshold)} of it"
        if total > 1:
            text += f" in {count}"
    for name, cases in wins.items():
        if name != winner and cases:
            text += f"; {name} is the {best} in {len(cases)}"
            if len(cases) == 1:
                text += f" ({_place(comparison, cases[0].row)})"
    last = max(overall, key=lambda name: overall[name])
    if last not in (winner, base) and _direction(overall[last], NOTICEABLE) == "worse":
        amount = f"{_amount(metric, overall[last], False)} {_word(metric, False)}"
        text += f"; {last} is the {_word(metric, False, 'est')} overall, {amount} than {base}"
    return f"{text}."


def _place(comparison: Comparison, row: Row) -> str:
    """Return the axes of a row that vary and that the baseline does not name: ``digits_resnet, batch_size 64``."""
    varying = comparison.varying_axes()
    return where(row, [axis for axis in varying if axis not in comparison.baseline]) or where(row, varying)


def _sides_without_results(comparison: Comparison) -> list[str]:
    if not comparison.baseline:
        return []
    sides: defaultdict[str, list[Row]] = defaultdict(list)
    for row in comparison.rows:
        sides[candidate_name(comparison, row)].append(row)
    sentences = []
    for name, rows in sides.items():
        if name and not any(row.has_values for row in rows):
            statuses = Counter(row.status for row in rows)
            counts = ", ".join(f"{count} {status}" for status, count in statuses.items())
            sentences.append(f"{name} has no result ({counts}).")
    return sentences


# A comparison with another sweep


def _since(
    comparison: Comparison,
    metric: MetricInfo | None,
    cases: Sequence[_Case],
    without_ratio: Sequence[tuple[Row, Cell]],
) -> list[str]:
    """Return what changed since another sweep; only verdicts count."""
    assert comparison.against is not None
    day = one_line(comparison.against.created)
    try:
        then = datetime.fromisoformat(comparison.against.created)
    except ValueError:
        pass
    else:
        day = f"{then.day} {then:%B}"
        if not comparison.created.startswith(f"{then.year}-"):
            day += f" {then.year}"
    if metric is None or not (cases or without_ratio):
        return [f"No combination can be compared with {one_line(comparison.against.label)} of {day}."]
    tell = combination_namer(comparison)
    certain = [case for case in cases if case.is_certain]
    parts = []
    for direction in ("worse", "better"):
        found = [case for case in certain if case.direction == direction]
        if not found:
            continue
        most = max(found, key=lambda case: case.size)
        name, word = tell(most.row.axes), _word(metric, direction == "better")
        amount = _amount(metric, most.ratio, direction == "better")
        if len(found) == 1:
            parts.append(f"{name} is {amount} {word}")
        else:
            parts.append(f"{len(found)} of {len(cases)} combinations are {word}, at most {amount} ({name})")
    unit = text_unit(metric.name, metric.unit)
    for row, cell in without_ratio[:MOST_EXCEPTIONS]:
        assert cell.base is not None  # for it has a verdict
        assert cell.measurement.value is not None
        change = f"{rounded(cell.base, unit)} → {rounded(cell.measurement.value, unit)}"
        parts.append(f"{tell(row.axes)} is {cell.verdict} ({change})")
    if len(without_ratio) > MOST_EXCEPTIONS:
        parts.append(f"{len(without_ratio) - MOST_EXCEPTIONS} more differ so from a value that is zero or negative")
    if not parts:
        parts.append(_unchanged(metric, len(cases), are_all_certain=len(certain) == len(cases)))
    subject = "" if metric.name in STEPS else f"by {metric_title(metric, comparison.rows)}, "
    sentences = [f"Since {day}: {subject}{'; '.join(parts)}."]
    return sentences + _other_metrics(comparison, metric)


def _other_metrics(comparison: Comparison, metric: MetricInfo) -> list[str]:
    """Return which metrics other than the main one are worse since another sweep, or cannot be compared with it."""
    sentences = []
    worse, apart = [], []
    for info in called_metrics(comparison):
        if info.name in (*STEPS, metric.name):
            continue
        cells = [row.cells[info.name] for row in comparison.rows if info.name in row.cells]
        title = metric_title(info, comparison.rows)
        worse_count = sum(cell.verdict == "worse" for cell in cells)
        apart_count = sum(cell.verdict_reason in ("different_data", "different_unit") for cell in cells)
        if worse_count:
            worse.append(f"{title} in {worse_count}")
        if apart_count:
            apart.append(f"{title} in {apart_count}")
    if worse:
        sentences.append(f"Also worse: {', '.join(worse)}.")
    if apart:
        sentences.append(f"Not comparable: {', '.join(apart)}.")
    return sentences


def _unchanged(metric: MetricInfo, count: int, are_all_certain: bool) -> str:
    """Return that no combination of ``count`` differs by a metric; other metrics may have changed."""
    has_changed = "has changed" if are_all_certain else "is certain to have changed"
    if metric.name not in STEPS:
        text = f"nothing {has_changed}"
        return f"{text} in {count} combinations" if count > 1 else text
    subject = "the time of a training step" if metric.name == STEPS[0] else "the latency"
    text = f"{subject} {has_changed.replace(' ', ' not ', 1)}"
    return f"{text} in any of {count} combinations" if count > 1 else text


def _gone(comparison: Comparison) -> list[str]:
    """Return which results of another sweep are gone."""
    assert comparison.against is not None
    tell = combination_namer(comparison)
    failed = [row for row in comparison.rows if row.baseline_has_values and not row.has_values]
    absent = comparison.against.absent
    titles = [metric_title(info, comparison.rows) for info in comparison.against.absent_metrics]
    sentences = []
    if failed:
        example = f"{tell(failed[0].axes)}: {failed[0].status}"
        if len(failed) == 1:
            sentences.append(f"1 combination has no result any more ({example}).")
        else:
            sentences.append(f"{len(failed)} combinations have no result any more (such as {example}).")
    if len(absent) == 1:
        sentences.append(f"1 combination is missing ({tell(absent[0])}).")
    elif absent:
        sentences.append(f"{len(absent)} combinations are missing (such as {tell(absent[0])}).")
    if titles:
        sentences.append(f"No longer measured: {first_few(titles, MOST_NAMES)}.")
    return sentences


# Nothing is compared: the best values


def _qualifying(comparison: Comparison, metric: MetricInfo | None) -> str:
    """Return how many combinations fulfil all conditions, and the best of them."""
    total = len(comparison.rows)
    good = [row for row in comparison.rows if row.has_values and not row.misses]
    if not good:
        conditions = "; ".join(map(one_line, comparison.constraints))
        return f"None of {total} combinations fulfils all conditions ({conditions})."
    text = f"{len(good)} of {total} combinations {'fulfils' if len(good) == 1 else 'fulfil'} all conditions"
    uncertain = uncertain_selection(comparison)
    count = sum(row.combination_id in uncertain for row in good)
    if count:
        text += " (not certain)" if len(good) == 1 else f" ({count} of them not certain)"
    if metric is not None:
        best, value = _best_of(good, metric)
        if best is not None:
            superlative = _word(metric, ending="est")
            if metric.name not in STEPS:
                superlative += f" {metric_title(metric, comparison.rows)}"
            text += f"; the {superlative} of them is {value} ({_name(comparison, best)})"
    return f"{text}."


def _best(comparison: Comparison, metric: MetricInfo | None) -> str:
    """Return the best values where nothing is compared."""
    measured = [row for row in comparison.rows if row.has_values]
    if metric is None:
        if len(comparison.rows) == 1:
            return "The combination was measured; no metric has a better direction."
        count = f"{len(measured)} of {len(comparison.rows)} combinations"
        return f"{count} were measured; no metric has a better direction."
    if metric.name in STEPS:
        training = [row for row in measured if is_training(row) and value_of(row, STEPS[0]) is not None]
        inference = [row for row in measured if not is_training(row) and value_of(row, STEPS[1]) is not None]
        found = {"latency": inference, "time of a training step": training}
    else:
        found = {metric_title(metric, comparison.rows): measured}
    parts = []
    for title, rows in found.items():
        best, value = _best_of(rows, metric)
        if best is None:
            continue
        name = _name(comparison, best)
        word = "lowest" if metric.better == "lower" else "highest"
        if len(rows) == 1:
            verb = "are" if title.endswith("s") and metric.unit != "s" else "is"
            parts.append(f"the {title} of {name} {verb} {value}")
        elif metric.unit == "s":
            parts.append(f"the {word} {title} is {value} ({name})")
        elif len({_value(row, metric) for row in rows}) == 1:
            parts.append(f"by {title}, all {len(rows)} combinations are equal ({value})")
        else:
            parts.append(f"by {title}, the {word} value is {value} ({name})")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _best_of(rows: Sequence[Row], metric: MetricInfo) -> tuple[Row | None, str]:
    """Return the best of some rows with its value as text; None and an empty text if no row has a value."""
    best: Row | None = None
    best_value = 0.0
    for row in rows:
        value = _value(row, metric)
        if value is None:
            continue
        is_better = value < best_value if metric.better == "lower" else value > best_value
        if best is None or is_better:
            best, best_value = row, value
    if best is None:
        return None, ""
    return best, value_text(best.cells[metric_of(best, metric)].measurement, with_interval=False)


def _name(comparison: Comparison, row: Row) -> str:
    """Return the varying axes of a row, or its model where nothing varies."""
    return where(row, comparison.varying_axes()) or axis_text(row.axes.get(MODEL_AXIS, "the model"))


# Confidence and advice


def _confidence(comparison: Comparison, cases: Sequence[_Case]) -> tuple[Confidence, tuple[str, ...]]:
    open_cells = [case.cell for case in cases if not case.is_certain]
    if not open_cells:
        return "high", ()
    codes = Counter(cell.verdict_reason for cell in open_cells)
    few = [cell for cell in open_cells if cell.verdict_reason == "too_few_rounds"]
    rounds = min((min(len(cell.measurement.rounds), cell.base_rounds or MIN_ROUNDS) for cell in few), default=0)
    texts = {
        "too_few_rounds": counted(rounds, "round"),
        "interval_crosses_threshold": "interval too wide",
        "different_environment": f"{codes['different_environment']} measured in another environment",
        "different_data": "different test data",
        "no_threshold": "no threshold",
        "measured_once": "measured once",
    }
    reasons = []
    others = len(open_cells)
    for code, text in texts.items():
        if not codes[code]:
            continue
        others -= codes[code]
        share = ""
        if codes[code] < len(cases) and code not in ("different_environment", "no_threshold"):
            share = f" in {codes[code]} of {len(cases)}"
        reasons.append(text + share)
    if others:
        reasons.append(f"{others} not certain")
    noisy = _noisy_rows(comparison)
    if noisy:
        reasons.append(counted(noisy, "noisy row"))
    is_half_certain = 2 * len(open_cells) <= len(cases)
    return "medium" if is_half_certain else "low", tuple(reasons)


def _noisy_rows(comparison: Comparison) -> int:
    """Return the number of rows whose times scatter."""
    return sum(any(warning.code in NOISE for warning in all_warnings(row)) for row in comparison.rows)


def _advice(comparison: Comparison, cases: Sequence[_Case]) -> str:  # noqa: PLR0911  # one for each kind of advice
    """Return what would make more of the differences certain; empty if all are."""
    open_cases = [case for case in cases if not case.is_certain]
    codes = Counter(case.cell.verdict_reason for case in open_cases)
    protocol = comparison.protocol
    if comparison.running is not None:
        return "The sweep continues; sweeprof report DIR shows its present state."
    if any(row.is_incomplete for row in comparison.rows):
        return "Measure what is missing: resume=last."
    if codes["too_few_rounds"] or codes["no_threshold"]:
        is_other_side = all(len(case.cell.measurement.rounds) >= MIN_ROUNDS for case in open_cases)
        subject = "Measure the other sweep" if comparison.against is not None and is_other_side else "Run"
        return f"{subject} again with protocol=default."
    if codes["interval_crosses_threshold"] and protocol.get("budget"):
        return _with_another_hour(comparison, cases)
    if codes["interval_crosses_threshold"]:
        again = "again with protocol=decide"
        if comparison.against is not None or any(protocol.get("decide") or ()):
            rounds = 2 * max(protocol.get("rounds") or [MIN_ROUNDS])
            again = f"again with protocol.rounds={min(MOST_SEQUENTIAL_ROUNDS, rounds)}"
        return f"Wait until the machine is idle and run {again}." if _noisy_rows(comparison) else f"Run {again}."
    if codes["different_environment"]:
        apart = next(case.row for case in cases if case.cell.verdict_reason == "different_environment")
        text = same_environment(apart)
        return f"{text[:1].upper()}{text[1:]}."
    return ""


def _advice_without_cases(comparison: Comparison) -> str:
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
    costs = []
    for case in cases:
        needed, row = case.cell.rounds_needed, case.row
        if needed is not None and needed <= row.most_rounds and row.rounds_complete < row.most_rounds:
            base = rows.get(row.baseline_id or "")
            round_s = row.round_s + (base.round_s if base else 0.0)
            costs.append(max(1, needed - row.rounds_complete) * round_s)
    decided, spent = 0, 0.0
    for cost in sorted(costs):
        spent += cost
        if spent > HOUR_S:
            break
        decided += 1
    open_count = sum(not case.is_certain for case in cases)
    if not decided:
        return "Another hour would not settle it." if open_count == 1 else "Another hour would settle none of them."
    which = "it" if open_count == 1 else f"about {decided} of the {open_count} that are not decided"
    return f"Another hour would settle {which}: resume=last budget=1h."
