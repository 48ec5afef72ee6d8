"""The answer of a comparison in words: what is better, by how much, where not, how certain that is, and what to do next.

Every report begins with it. It is computed from the comparison alone. It states as a fact only what a verdict supports; of anything
else it says that there is no certain difference, and what was measured.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from sweeprof.numbers import MISSING, percent, rounded, rounded_percent, text_unit
from sweeprof.report.columns import (
    MODEL_AXIS,
    SAMPLES_PER_S,
    STEPS,
    UNCLEAR,
    axis_title,
    baseline_text,
    called_metrics,
    metric_title,
    value_text,
)
from sweeprof.report.summary import (
    candidate_name,
    combination_namer,
    headline,
    noisy_rows,
    same_environment,
    where,
)
from sweeprof.report.table import sorted_rows
from sweeprof.report.view import counted, first_few
from sweeprof.results.compared_rows import Comparison, Row, SearchSummary, best_row, compared_row, is_training, value_of
from sweeprof.results.constraints import BATCH_AXIS, named_metrics, uncertain_selection
from sweeprof.results.differences import Cell, Verdict
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.statistics import MOST_ROUNDS, MOST_SEQUENTIAL_ROUNDS
from sweeprof.results.verdicts import MIN_ROUNDS
from sweeprof.text import axis_text, one_line

Confidence = Literal["high", "medium", "low"]

FACTOR = 1.2
"""From this ratio on a difference is written as a factor, below it in percent."""
HOUR_S = 3600.0
MOST_NAMES = 4
"""Sides or combinations that one sentence names."""
MOST_CASES = 100
"""Lines of the table of the best."""
MOST_EXCEPTIONS = 2
"""Cases that are named one by one."""
CERTAIN: tuple[Verdict, ...] = ("better", "worse", "same")
_SLOWEST_LAYER, _ACCURACY, _PARAMETERS = "layers/slowest_self_s", "quality/accuracy", "params/total"


@dataclass(frozen=True, slots=True)
class BestTable:
    """The best choice in each case, as texts."""

    head: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    """The first :data:`MOST_CASES`."""
    left_out: int = 0
    """How many further cases there are."""


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
    best: BestTable | None = None
    """None where there is one case, which the finding tells."""

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
    rows = [row for row in comparison.rows if row.has_values]
    if comparison.search is not None and comparison.against is None:
        return Answer(" ".join(_search_sentences(comparison, comparison.search)), counts)
    if not comparison.rows:
        return Answer("There are no combinations.", counts)
    if not rows:
        total = len(comparison.rows)
        subject = "The combination has no result" if total == 1 else f"None of {total} combinations has a result"
        return Answer(f"{subject}. {_most_common_reason(comparison)}", counts)
    metric = main_metric(comparison)
    pairs = [] if metric is None else _pairs(comparison, metric)
    best = None
    if comparison.against is not None:
        finding = " ".join([*_since(comparison, metric, pairs), *_gone(comparison)])
    elif comparison.constraints:
        finding, best = _fulfilling(comparison, _deciding_metric(comparison))
    elif metric is not None and metric.name == _SLOWEST_LAYER:
        finding = _slowest_layers(comparison, rows)
    elif len(comparison.rows) == 1:
        finding = _single(comparison, rows[0])
    elif metric is None:
        finding = f"{len(rows)} of {len(comparison.rows)} combinations were measured; no metric has a better direction."
    elif pairs:
        cases = _cases(comparison, metric, pairs)
        finding = _compared(comparison, metric, cases, pairs)
        best = _best_table(comparison, metric, cases)
    elif comparison.varying_axes() == (BATCH_AXIS,) and any(value_of(row, SAMPLES_PER_S) for row in rows):
        finding = _scaling(comparison, metric)
    else:
        right = [row for row in rows if not comparison.has_wrong_outputs(row)]
        finding, best = _lowest(comparison, metric, right or rows)
    counts = f"{counts} {_sides_without_results(comparison)}".rstrip()
    if not pairs:
        return Answer(finding, counts, advice=_advice_without_pairs(comparison), best=best)
    confidence, reasons = _confidence(comparison, pairs)
    return Answer(finding, counts, confidence, reasons, _advice(comparison, pairs), best)


def _most_common_reason(comparison: Comparison) -> str:
    """Return why most of the combinations have no result."""
    reasons = Counter(one_line(row.reason or "no reason was given") for row in comparison.rows)
    reason, count = reasons.most_common(1)[0]
    share = "" if count == len(comparison.rows) else f" of {count}"
    return f"The reason{share}: {reason.rstrip('.')}."


def main_metric(comparison: Comparison) -> MetricInfo | None:
    """Return the metric that the answer is about: the first of the tables that has a better direction."""
    for info in called_metrics(comparison):
        if info.better is not None and any(_value(row, info) is not None for row in comparison.rows):
            return info
    return None


def best_of_all(comparison: Comparison) -> Row | None:
    """Return the row with the best value among those that fulfil the constraints; None if there is none."""
    metric = _deciding_metric(comparison)
    if metric is None:
        return None
    known = [row for row in comparison.fulfilling() if _value(row, metric) is not None]
    sign = 1 if metric.better == "lower" else -1
    return min(known, key=lambda row: sign * (_value(row, metric) or 0.0), default=None)


def _deciding_metric(comparison: Comparison) -> MetricInfo | None:
    """Return the metric of the best row: a search's goal, throughput where the time of a step is constrained, else the main one."""
    infos = {info.name: info for info in comparison.metrics}
    goal = comparison.search.goals[0] if comparison.search is not None and comparison.search.goals else None
    if goal is not None and goal.metric in infos:
        return _directed(infos[goal.metric], goal.direction == "maximize")
    named = named_metrics(comparison) if comparison.constraints else []
    if any(info.name in STEPS or info.name.startswith("latency/p") for info in named):
        return infos.get(SAMPLES_PER_S, main_metric(comparison))
    return main_metric(comparison)


def metric_of(row: Row, metric: MetricInfo) -> str:
    """Return the name of the metric for a row: a training step is compared as a whole, and any other step is a forward."""
    if metric.name not in STEPS:
        return metric.name
    return STEPS[0] if is_training(row) else STEPS[1]


def _value(row: Row, metric: MetricInfo) -> float | None:
    return value_of(row, metric_of(row, metric)) if row.has_values else None


def _text(row: Row, metric: MetricInfo) -> str:
    """Return the value of a row with its unit."""
    return value_text(row.cells[metric_of(row, metric)].measurement, with_interval=False)


# Words that several sentences use


def _amount(metric: MetricInfo, ratio: float, is_better: bool = True) -> str:
    """Return how far a ratio is from 1, in either direction, as it stands before :func:`_word`: ``2.0×``, ``12%``."""
    factor = max(ratio, 1 / ratio)
    if factor >= 10:
        return f"{factor:.0f}×"
    if factor >= FACTOR:
        return f"{factor:.1f}×"
    # Half as much is 50% lower; what takes half the time is 100% faster.
    is_lower = metric.name not in STEPS and is_better == (metric.better == "lower")
    share = 1 - 1 / factor if is_lower else factor - 1
    return rounded_percent(share)


def _amounts(metric: MetricInfo, ratios: Sequence[float], is_better: bool = True) -> str:
    """Return the smallest and the largest of some amounts, e.g. ``1.3–2.8×``."""
    sizes = sorted(max(ratio, 1 / ratio) for ratio in ratios)
    low, high = _amount(metric, sizes[0], is_better), _amount(metric, sizes[-1], is_better)
    if low == high:
        return low
    if low[-1] == high[-1]:
        return f"{low[:-1]}–{high}"
    return f"{low} to {high}"


def _word(metric: MetricInfo, is_better: bool = True, ending: Literal["er", "est"] = "er") -> str:
    """Return the word for a side: ``faster``, ``slower``, ``fastest``, ``lower`` …"""
    if metric.name in STEPS:
        stem = "fast" if is_better else "slow"
    else:
        stem = "low" if is_better == (metric.better == "lower") else "high"
    return stem + ending


def _in_cases(count: int, total: int) -> str:
    """Return `` in both cases``, `` in all 9 cases`` or `` in 7 of 9 cases``; nothing if there is one case."""
    if total == 1:
        return ""
    if count < total:
        return f" in {count} of {total} cases"
    return " in both cases" if total == 2 else f" in all {total} cases"


def _joined(names: Sequence[str]) -> str:
    """Return ``torch``, ``torch and jax`` or ``torch, jax and ort``; of many names their number."""
    if len(names) > MOST_NAMES:
        return f"{len(names)} sides"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _name(comparison: Comparison, row: Row) -> str:
    """Return the varying axes of a row, or its model where nothing varies."""
    return where(row, comparison.varying_axes()) or axis_text(row.axes.get(MODEL_AXIS, "the model"))


# Groups of rows of which one is the best


@dataclass(frozen=True, slots=True)
class _Ranking:
    """The best of some rows, and those that may be as good."""

    best: Row
    open: tuple[Row, ...]
    """Those without a verdict against the best."""
    rivals: tuple[Row, ...]
    """Those of them that may be as good; see :func:`_may_be_as_good`."""
    equal: tuple[Row, ...]
    """Certain to differ by no more than the threshold."""
    second: Row | None
    """The best of the others."""


def _ranked(comparison: Comparison, rows: Sequence[Row], metric: MetricInfo) -> _Ranking:
    """Return the ranking of some rows that have a value."""
    sign = 1 if metric.better == "lower" else -1
    best, *others = sorted(rows, key=lambda row: sign * (_value(row, metric) or 0.0))
    undecided, rivals, equal = [], [], []
    for row in others:
        cell = _compared_cell(comparison, row, best, metric)
        if cell.verdict == "same":
            equal.append(row)
        elif cell.verdict != "worse":
            undecided.append(row)
            if _may_be_as_good(comparison, row, best, metric, cell.verdict_reason):
                rivals.append(row)
    return _Ranking(best, tuple(undecided), tuple(rivals), tuple(equal), others[0] if others else None)


def _may_be_as_good(comparison: Comparison, row: Row, best: Row, metric: MetricInfo, reason: str | None) -> bool:
    """Return False if the values of a row and of the best one, whose ratio cannot be tested for this reason, are clearly apart.

    With too few rounds they are if they differ by more than the threshold, and where a round is not positive if their 95% intervals
    do not overlap.
    """
    name = metric_of(row, metric)
    own, theirs = row.cells[name].measurement, best.cells[metric_of(best, metric)].measurement
    threshold = comparison.threshold_of(name)
    if reason == "too_few_rounds" and threshold is not None and own.value is not None and theirs.value is not None:
        return abs(own.value - theirs.value) <= threshold * abs(theirs.value)
    if reason == "test_failed" and own.interval is not None and theirs.interval is not None:
        return own.interval[0] <= theirs.interval[1] and theirs.interval[0] <= own.interval[1]
    return True


_OPPOSITE: dict[Verdict | None, Verdict] = {"better": "worse", "worse": "better", "same": "same"}


def _compared_cell(comparison: Comparison, row: Row, best: Row, metric: MetricInfo) -> Cell:
    """Return a cell with the verdict of a row compared with the best one: as in the table if either is the other's baseline."""
    if comparison.against is None:
        if row.baseline_id == best.combination_id:
            return row.cells[metric_of(row, metric)]
        if best.baseline_id == row.combination_id:
            cell = best.cells[metric_of(best, metric)]
            return replace(cell, verdict=_OPPOSITE.get(cell.verdict))
    name = metric_of(row, metric)
    own = {name: replace(row.cells[name].measurement, better=metric.better)}
    theirs = {name: best.cells[metric_of(best, metric)].measurement}
    return compared_row(row, own, best, theirs, comparison.threshold, comparison.thresholds).cells[name]


# A search: the best combination, or the Pareto front


def _search_sentences(comparison: Comparison, search: SearchSummary) -> list[str]:
    infos = {info.name: info for info in comparison.metrics}
    known = [goal for goal in search.goals if goal.metric in infos]
    goals = [_directed(infos[goal.metric], goal.direction == "maximize") for goal in known]
    titles = {goal: metric_title(goal, comparison.rows) for goal in goals}
    measured_rows = [row for row in comparison.rows if row.has_values]
    feasible = comparison.fulfilling()
    rows = [row for row in feasible if all(value_of(row, goal.name) is not None for goal in goals)]
    measured = f"({len(measured_rows)} of {counted(search.combinations, 'combination')} measured)"
    condition = ""
    if comparison.constraints:
        condition = f" with {' and '.join(map(one_line, comparison.constraints))}"
    if not goals or not feasible:
        sentences = [f"The search found no combinations{condition or ' that have a result'} {measured}."]
    elif not rows:
        joint = " and" if condition else ""
        wanted = " and ".join(titles.values())
        sentences = [f"The search found no combinations{condition}{joint} with a value of {wanted} {measured}."]
    elif len(search.goals) == 1:
        ranking = _ranked(comparison, rows, goals[0])
        value = f"{_name(comparison, ranking.best)} – {_text(ranking.best, goals[0])}"
        best = f"{_best_word(ranking)} {titles[goals[0]]}"
        sentences = [f"{best}{condition}: {value} {measured}.{_rivals(comparison, ranking)}"]
    else:
        count = counted(sum(row.on_front for row in rows), "combination")
        sentences = [f"The Pareto front of {', '.join(titles.values())}{condition} has {count} {measured}."]
    if search.too_large:
        verb = "was" if search.too_large == 1 else "were"
        sentences.append(f"{search.too_large} {verb} not run, because a smaller one is too large.")
    chosen, most = len(comparison.rows), min(search.trials, search.combinations - search.too_large)
    if comparison.running is None and chosen < most:
        ended = f"after {chosen:,} of {most:,} combinations"
        sentences.append(f"The search ended early, {ended}: resume=last continues it.")
    if comparison.rows and not measured_rows:
        sentences.append(_most_common_reason(comparison))
    return sentences


def _directed(info: MetricInfo, is_largest: bool) -> MetricInfo:
    """Return a metric of which a search wants the largest or the smallest value, whatever is better."""
    return replace(info, better="higher" if is_largest else "lower")


def _best_word(ranking: _Ranking) -> str:
    """Return what a sentence calls the best row: of several that may be the best it is the best that was measured."""
    return "Best measured" if ranking.open else "Best"


def _rivals(comparison: Comparison, ranking: _Ranking) -> str:
    """Return a sentence about the rows that may be as good as the best, after a space; empty if there are none."""
    others = [*ranking.equal, *ranking.rivals]
    if not others:
        return ""
    names = first_few([_name(comparison, row) for row in others], MOST_EXCEPTIONS, "; ")
    return f" Not certain to be worse: {names}." if ranking.rivals else f" As good: {names}."


# A comparison with a baseline


@dataclass(frozen=True, slots=True)
class _Pair:
    """A row that is compared with a baseline other than itself."""

    row: Row
    cell: Cell
    ratio: float | None
    """Below 1 the row is better, whatever the metric; None if a value is zero or negative."""

    @property
    def is_certain(self) -> bool:
        return self.cell.verdict in CERTAIN


def _pairs(comparison: Comparison, metric: MetricInfo) -> list[_Pair]:
    """Return the rows with right outputs that have a value of the metric, and whose baseline has one; those without ratio last."""
    wrong = {row.combination_id for row in comparison.rows if comparison.has_wrong_outputs(row)}
    pairs = []
    for row in comparison.rows:
        cell = row.cells.get(metric_of(row, metric))
        if cell is None or row.is_baseline or not (row.has_values and row.baseline_has_values):
            continue
        if row.combination_id in wrong or (comparison.against is None and row.baseline_id in wrong):
            continue
        if cell.ratio is not None and math.isfinite(cell.ratio) and cell.ratio > 0:
            pairs.append(_Pair(row, cell, cell.ratio if metric.better == "lower" else 1 / cell.ratio))
        elif cell.verdict in ("better", "worse"):
            pairs.append(_Pair(row, cell, None))
    return sorted(pairs, key=lambda pair: (pair.ratio is None, pair.ratio is None and pair.cell.verdict != "worse"))


@dataclass(frozen=True, slots=True)
class _Case:
    """A baseline with the rows that are compared with it."""

    row: Row
    """The baseline."""
    ranking: _Ranking | None
    """Of the baseline and the other sides; None if no other side can be compared with it."""
    sides: tuple[str, ...] = ()
    """The names of the other sides."""
    ratios: Mapping[str, float] = field(default_factory=dict)
    """Those of the other sides, by name, as in :class:`_Pair`."""
    winner: str | None = None
    """The side that is certainly better than all others, or the sides that are equal and better; None if there is none."""
    is_equal: bool = False
    """True if all sides are certainly equal."""


def _cases(comparison: Comparison, metric: MetricInfo, pairs: Sequence[_Pair]) -> list[_Case]:
    """Return every baseline of the sweep with its ranking."""
    others: defaultdict[str, list[_Pair]] = defaultdict(list)
    for pair in pairs:
        others[pair.row.baseline_id or ""].append(pair)
    planned = {row.baseline_id for row in comparison.rows if not row.is_baseline}
    base = baseline_text(comparison)
    cases = []
    for row in sorted_rows(comparison):
        if row.combination_id not in planned:
            continue
        found = others[row.combination_id]
        if not found:
            cases.append(_Case(row, None))
            continue
        names = {row.combination_id: base}
        for pair in found:
            names[pair.row.combination_id] = candidate_name(comparison, pair.row) or "the other"
        ratios = {names[pair.row.combination_id]: pair.ratio for pair in found if pair.ratio is not None}
        ranking = _ranked(comparison, [row, *(pair.row for pair in found)], metric)
        is_equal = len(ranking.equal) == len(found)
        winner = None
        if not ranking.open and not is_equal:
            best = {one.combination_id for one in (ranking.best, *ranking.equal)}
            winner = _joined([name for id, name in names.items() if id in best])
        sides = tuple(names[pair.row.combination_id] for pair in found)
        cases.append(_Case(row, ranking, sides, ratios, winner, is_equal))
    return cases


def _compared(comparison: Comparison, metric: MetricInfo, cases: Sequence[_Case], pairs: Sequence[_Pair]) -> str:
    """Return which side wins in how many cases, by how much, and how many cases are equal or undecided."""
    base = baseline_text(comparison)
    measured = [case for case in cases if case.ranking is not None]
    sides = list(dict.fromkeys(name for case in measured for name in case.sides))
    wins: defaultdict[str, list[_Case]] = defaultdict(list)
    for case in measured:
        if case.winner is not None:
            wins[case.winner].append(case)
    equal = sum(case.is_equal for case in measured)
    undecided = len(measured) - equal - sum(map(len, wins.values()))
    who = _joined([base, *sides])
    by = "" if metric.name in STEPS else f"By {metric_title(metric, comparison.rows)}, "
    if not wins and not equal:
        no = "no certain difference between" if len(sides) < 2 else "no certain winner among"
        text = f"{by}{no if by else no.capitalize()} {who}{_in_cases(len(measured), len(cases))}"
        return f"{text} ({_measured(metric, base, measured, pairs)})."
    if wins:
        parts = _winners(comparison, metric, wins, sides, len(cases))
    else:
        text = f"{who} are {'equally fast' if metric.name in STEPS else 'equal'}{_in_cases(equal, len(cases))}"
        threshold = comparison.threshold_of(metric_of(measured[0].row, metric))
        if threshold is not None and any(pair.cell.ratio_interval for pair in pairs):
            text += f", within {percent(threshold)}"
        parts, equal = [text], 0
    if equal:
        parts.append(f"equal in {equal}")
    if undecided:
        parts.append(f"{'undecided' if len(sides) == 1 else 'no certain winner'} in {undecided}")
    if len(measured) < len(cases):
        parts.append(f"{len(cases) - len(measured)} without a result")
    return f"{by}{'; '.join(parts)}."


def _winners(
    comparison: Comparison,
    metric: MetricInfo,
    wins: Mapping[str, Sequence[_Case]],
    sides: Sequence[str],
    total: int,
) -> list[str]:
    """Return the sides that win cases, the one that wins most first."""
    base, word = baseline_text(comparison), _word(metric)
    first, *others = sorted(wins, key=lambda name: -len(wins[name]))
    cases = wins[first]
    loser = base if first != base else sides[0]
    side = first if first != base else loser
    ratios = [case.ratios[side] for case in cases if side in case.ratios]
    amount = f"{_amounts(metric, ratios)} " if ratios else ""
    if len(sides) == 1:
        text = f"{first} is {amount}{word} than {loser}{_in_cases(len(cases), total)}{_cost(comparison, metric, first)}"
    else:
        verb = "is" if first in (base, *sides) else "are"
        text = f"{first} {verb} the {_word(metric, ending='est')} of {len(sides) + 1}{_in_cases(len(cases), total)}"
        if first in sides:
            text += f", {amount}{word} than {base}"
    parts = [text]
    for name in others:
        place = f" ({_place(comparison, wins[name][0].row)})" if len(wins[name]) == 1 else ""
        parts.append(f"{name} in {len(wins[name])}{place}")
    return parts


def _measured(metric: MetricInfo, base: str, cases: Sequence[_Case], pairs: Sequence[_Pair]) -> str:
    """Return what was measured where nothing is certain, e.g. ``measured: jax 1.7× faster, 1 round``."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for case in cases:
        for name, ratio in case.ratios.items():
            ratios[name].append(ratio)
    if not ratios:
        return "a value is zero"
    overall = {name: math.exp(math.fsum(map(math.log, found)) / len(found)) for name, found in ratios.items()}
    name = min(overall, key=lambda side: overall[side])
    if len(overall) == 1 and overall[name] == 1:
        text = "equal"
    elif len(overall) == 1 and overall[name] > 1:
        text = f"{base} {_amount(metric, overall[name])} {_word(metric)}"
    else:
        text = f"{name} {_amount(metric, overall[name], overall[name] <= 1)} {_word(metric, overall[name] <= 1)}"
        if len(overall) > 1:
            text += f" than {base}"
    average = " on average" if len(cases) > 1 else ""
    rounds = min(min(len(pair.cell.measurement.rounds), pair.cell.base_rounds or 0) for pair in pairs)
    few = f", {counted(rounds, 'round')}" if 0 < rounds < MIN_ROUNDS else ""
    return f"measured: {text}{average}{few}"


def _cost(comparison: Comparison, metric: MetricInfo, winner: str) -> str:
    """Return how the faster of two sides differs in accuracy, and in parameters if models are compared; exact values only."""
    if metric.unit != "s":
        return ""
    texts = []
    is_base = winner == baseline_text(comparison)
    for name in (_ACCURACY, _PARAMETERS):
        cells = [
            row.cells[name] for row in comparison.rows if not row.is_baseline and row.has_values and name in row.cells
        ]
        verdicts = {cell.verdict for cell in cells}
        differences = {(cell.measurement.value, cell.base) for cell in cells}
        if len(differences) != 1 or not verdicts <= set(CERTAIN):
            continue
        value, base = differences.pop()
        if value is None or base is None:
            continue
        if is_base:
            value, base = base, value
        if name == _ACCURACY and verdicts != {"same"}:
            texts.append(f"accuracy {100 * (value - base):+.2g} points".replace("-", "−"))
        elif name == _ACCURACY and MODEL_AXIS in comparison.baseline:
            texts.append("the same accuracy")
        elif name == _PARAMETERS and MODEL_AXIS in comparison.baseline and value > 0 and base > 0 and value != base:
            factor = max(value / base, base / value)
            size = f"{factor:.1f}×" if factor >= FACTOR else rounded_percent(abs(value / base - 1))
            texts.append(f"{size} {'fewer' if value < base else 'more'} parameters")
    return "".join(f", {text}" for text in texts)


def _place(comparison: Comparison, row: Row) -> str:
    """Return the axes of a row that vary and that the baseline does not name: ``digits_resnet, batch_size 64``."""
    varying = comparison.varying_axes()
    return where(row, [axis for axis in varying if axis not in comparison.baseline]) or where(row, varying)


def _best_table(comparison: Comparison, metric: MetricInfo, cases: Sequence[_Case]) -> BestTable | None:
    """Return the best side of each case."""
    axes = [axis for axis in comparison.varying_axes() if axis not in comparison.baseline]
    if len(cases) < 2 or not axes:
        return None
    names = {row.combination_id: candidate_name(comparison, row) for row in comparison.rows}
    lines = []
    for case in cases[:MOST_CASES]:
        place = [axis_text(case.row.axes.get(axis)) for axis in axes]
        lines.append((*place, *_best_cells(metric, case.ranking, names)))
    return BestTable(_best_head(comparison, metric, axes), tuple(lines), len(cases) - len(lines))


def _best_head(comparison: Comparison, metric: MetricInfo, axes: Sequence[str]) -> tuple[str, ...]:
    titles = [axis_title(axis, comparison.axes) for axis in axes]
    value = metric_title(metric, comparison.rows)
    if metric.name in STEPS and len({is_training(row) for row in comparison.rows if row.has_values}) > 1:
        value = "time of a step"
    return (*titles, _word(metric, ending="est"), value, "next")


def _best_cells(metric: MetricInfo, ranking: _Ranking | None, names: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the name of the best row, its value, and how far the next one is behind; ``~`` marks what is not certain."""
    if ranking is None:
        return MISSING, MISSING, "nothing to compare"
    best, second = ranking.best, ranking.second
    if second is None:
        return names[best.combination_id], _text(best, metric), "nothing to compare"
    behind = names[second.combination_id]
    value, other = _value(best, metric), _value(second, metric)
    if second in ranking.equal:
        behind += ", equal"
    elif value and other and value / other > 0 and value != other:
        behind += f", {_amount(metric, value / other, False)} {_word(metric, False)}"
    mark = f" {UNCLEAR}" if ranking.open else ""
    return f"{names[best.combination_id]}{mark}", _text(best, metric), f"{behind}{mark}"


def _sides_without_results(comparison: Comparison) -> str:
    """Return a sentence that names the sides of which no row has a result; empty if there are none."""
    if not comparison.baseline or comparison.against is not None:
        return ""
    sides: defaultdict[str, list[Row]] = defaultdict(list)
    for row in comparison.rows:
        sides[candidate_name(comparison, row)].append(row)
    names = [name for name, rows in sides.items() if name and not any(row.has_values for row in rows)]
    return f"No result: {first_few(names, MOST_NAMES)}." if names else ""


# A comparison with another sweep


def _since(comparison: Comparison, metric: MetricInfo | None, pairs: Sequence[_Pair]) -> list[str]:
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
    if metric is None or not pairs:
        return [f"No combination can be compared with {one_line(comparison.against.label)} of {day}."]
    tell = combination_namer(comparison)
    compared = [pair for pair in pairs if pair.ratio is not None]
    parts = []
    verdicts: tuple[Verdict, ...] = ("worse", "better")
    for verdict in verdicts:
        ratios = [(pair.ratio, pair.row) for pair in pairs if pair.cell.verdict == verdict and pair.ratio is not None]
        if not ratios:
            continue
        ratio, row = max(ratios, key=lambda found: abs(math.log(found[0])))
        name, word = tell(row.axes), _word(metric, verdict == "better")
        amount = _amount(metric, ratio, verdict == "better")
        if len(ratios) == 1:
            parts.append(f"{name} is {amount} {word}")
        else:
            most = amount if amount.startswith("less") else f"at most {amount}"
            parts.append(f"{len(ratios)} of {len(compared)} combinations are {word}, {most} ({name})")
    unit = text_unit(metric.name, metric.unit)
    without_ratio = [pair for pair in pairs if pair.ratio is None]
    for pair in without_ratio[:MOST_EXCEPTIONS]:
        assert pair.cell.base is not None  # for it has a verdict
        assert pair.cell.measurement.value is not None
        change = f"{rounded(pair.cell.base, unit)} → {rounded(pair.cell.measurement.value, unit)}"
        parts.append(f"{tell(pair.row.axes)} is {pair.cell.verdict} ({change})")
    if len(without_ratio) > MOST_EXCEPTIONS:
        parts.append(f"{len(without_ratio) - MOST_EXCEPTIONS} more differ so from a value that is zero or negative")
    subject = "" if metric.name in STEPS else f"by {metric_title(metric, comparison.rows)}, "
    if not parts:
        subject = ""
        change = "no change" if all(pair.is_certain for pair in compared) else "no certain change"
        of = "time of a training step" if metric.name == STEPS[0] else metric_title(metric, comparison.rows)
        parts.append(f"{change} in {of} ({counted(len(compared), 'combination')})")
    return [f"Since {day}: {subject}{'; '.join(parts)}.", *_other_metrics(comparison, metric)]


_APART = ("different_data", "different_unit", "different_counters")


def _other_metrics(comparison: Comparison, metric: MetricInfo) -> list[str]:
    """Return which metrics other than the main one are worse since another sweep, or cannot be compared with it."""
    sentences = []
    worse, apart = [], []
    for info in called_metrics(comparison):
        if info.name in (*STEPS, metric.name):
            continue
        cells = [row.cells[info.name] for row in comparison.rows if info.name in row.cells]
        title = metric_title(info, comparison.rows)
        found = [cell for cell in cells if cell.verdict == "worse"]
        ratios = {cell.ratio for cell in found}
        apart_count = sum(cell.verdict_reason in _APART for cell in cells)
        if found:
            ratio = ratios.pop() if len(ratios) == 1 else None
            amount = ""
            if ratio is not None and ratio > 0:  # one change that every row shows
                amount = f" {_amount(info, ratio, False)} {_word(info, False)}"
            worse.append(f"{title}{amount} in {len(found)}")
        if apart_count:
            apart.append(f"{title} in {apart_count}")
    if worse:
        sentences.append(f"Also worse: {', '.join(worse)}.")
    if apart:
        sentences.append(f"Not comparable: {', '.join(apart)}.")
    return sentences


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


# Nothing is compared with a baseline: the best values


def _fulfilling(comparison: Comparison, metric: MetricInfo | None) -> tuple[str, BestTable | None]:
    """Return the best combination that fulfils the constraints, with what it gains; and the best one of each model.

    Where the time of a step is constrained, the best is the one with the highest throughput.
    """
    conditions = " and ".join(map(one_line, comparison.constraints))
    total = len(comparison.rows)
    good = comparison.fulfilling()
    if not good:
        return f"None of {total} combinations fulfils {conditions}.", None
    fulfil = "fulfils it" if len(good) == 1 else "fulfil it"
    if len(comparison.constraints) > 1 or " and " in conditions:
        fulfil = fulfil.replace("it", "them")
    share = f"{len(good)} of {total} combinations {fulfil}"
    rows = [row for row in good if metric is not None and _value(row, metric) is not None]
    uncertain = uncertain_selection(comparison)
    doubtful = sum(row.combination_id in uncertain for row in good)
    if doubtful:
        share += ", which is not certain" if len(good) == 1 else f", {doubtful} of them not certainly"
    if metric is None or not rows:
        return f"{share} ({conditions}).", None
    ranking = _ranked(comparison, rows, metric)
    best, title = ranking.best, metric_title(metric, comparison.rows)
    text = f"{_best_word(ranking)} {title} with {conditions}: {_name(comparison, best)} – {_text(best, metric)}"
    cell = best.cells[metric_of(best, metric)]
    if best.baseline_id is not None and not best.is_baseline and cell.ratio:
        if cell.verdict in ("better", "worse"):
            is_better = cell.verdict == "better"
            text += f", {_amount(metric, cell.ratio, is_better)} {_word(metric, is_better)} than {baseline_text(comparison)}"
        elif cell.verdict != "same":
            text += f", not certain to differ from {baseline_text(comparison)}"
    finding = f"{text}; {share}.{_rivals(comparison, ranking)}"
    return finding, _table_of_groups(comparison, metric, rows, [MODEL_AXIS])


def _single(comparison: Comparison, row: Row) -> str:
    """Return what was measured of the only combination."""
    figures: list[str] = []
    for info in called_metrics(comparison):
        if value_of(row, info.name) is not None and len(figures) < MOST_NAMES:
            text = value_text(row.cells[info.name].measurement, with_interval=False)
            figures.append(f"{metric_title(info, comparison.rows)} {text}")
    if not figures:
        return "The combination was measured; no metric has a value."
    return f"{where(row, comparison.axes) or 'the model'}: {', '.join(figures)}."


def _slowest_layers(comparison: Comparison, rows: Sequence[Row]) -> str:
    """Return the slowest layer of the first combinations, with its share of the forward."""
    texts = []
    for row in rows:
        cell = row.cells.get(_SLOWEST_LAYER)
        if cell is None or cell.measurement.value is None:
            continue
        seconds, detail = cell.measurement.value, cell.measurement.detail
        text = f"{one_line(str(detail.get('layer')))} takes {rounded(seconds, 's')}"
        forward_s = detail.get("forward")
        if isinstance(forward_s, int | float) and forward_s > 0:
            share = f"{100 * seconds / forward_s:.0f}%"
            text = f"{one_line(str(detail.get('layer')))} takes {share} of the forward"
            text += f" ({rounded(seconds, 's')} of {rounded(forward_s, 's')})"
        texts.append(text if len(rows) == 1 else f"{_name(comparison, row)}: {text}")
    return f"{first_few(texts, MOST_EXCEPTIONS, '; ')}."


def _scaling(comparison: Comparison, metric: MetricInfo) -> str:
    """Return how throughput and the time of a step change with the batch size, the only axis."""
    info = next(info for info in comparison.metrics if info.name == SAMPLES_PER_S)
    known = [row for row in sorted_rows(comparison) if _value(row, info) is not None]
    known = [row for row in known if not comparison.has_wrong_outputs(row)] or known
    best = best_row(known, SAMPLES_PER_S, "higher")
    assert best is not None  # some row has a value
    first = known[0]
    text = f"Highest throughput: {_text(best, info)} at batch_size {axis_text(best.axes.get(BATCH_AXIS))}"
    if best is not first:
        ratio = (_value(best, info) or 0.0) / (_value(first, info) or math.nan)
        amount = f"{ratio:.2f}×" if ratio < FACTOR else _amount(info, ratio)
        if _compared_cell(comparison, best, first, info).verdict == "better":
            text += f", {amount} that of {axis_text(first.axes.get(BATCH_AXIS))}"
        else:
            text += f", measured {amount} that of {axis_text(first.axes.get(BATCH_AXIS))} (not certain)"
    if all(_value(row, metric) is not None for row in known) and metric is not info:
        text += f"; {metric_title(metric, comparison.rows)} {_text(first, metric)} to {_text(known[-1], metric)}"
    return f"{text}."


def _lowest(comparison: Comparison, metric: MetricInfo, rows: Sequence[Row]) -> tuple[str, BestTable | None]:
    """Return the best values where nothing is compared with a baseline, and those of each group of rows that are alike."""
    if metric.name in STEPS:
        training = [row for row in rows if is_training(row) and value_of(row, STEPS[0]) is not None]
        inference = [row for row in rows if not is_training(row) and value_of(row, STEPS[1]) is not None]
        found = {"latency": inference, "time of a training step": training}
    else:
        found = {metric_title(metric, comparison.rows): [row for row in rows if _value(row, metric) is not None]}
    parts = []
    for title, known in found.items():
        if not known:
            continue
        if len(known) == 1:
            verb = "are" if title.endswith("s") and metric.unit != "s" else "is"
            parts.append(f"the {title} of {_name(comparison, known[0])} {verb} {_text(known[0], metric)}")
        elif len({_value(row, metric) for row in known}) == 1:
            parts.append(f"equal {title} in all {len(known)} combinations: {_text(known[0], metric)}")
        else:
            ranking = _ranked(comparison, known, metric)
            word = "lowest" if metric.better == "lower" else "highest"
            measured = " measured" if ranking.open else ""
            parts.append(f"{word}{measured} {title}: {_text(ranking.best, metric)} ({_name(comparison, ranking.best)})")
    axes = [axis for axis in ("mode", MODEL_AXIS, BATCH_AXIS) if axis in comparison.varying_axes()]
    if len(axes) == len(comparison.varying_axes()):
        axes = [axis for axis in axes if axis != MODEL_AXIS]
    known = [row for row in rows if _value(row, metric) is not None]
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}.", _table_of_groups(comparison, metric, known, axes)


def _table_of_groups(
    comparison: Comparison, metric: MetricInfo, rows: Sequence[Row], axes: Sequence[str]
) -> BestTable | None:
    """Return the best of each group of rows with the same values of some axes; None if there is one group, or nothing to choose."""
    ids = {row.combination_id for row in rows}
    groups: defaultdict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in sorted_rows(comparison):
        if row.combination_id in ids:
            groups[tuple(axis_text(row.axes.get(axis)) for axis in axes)].append(row)
    others = [axis for axis in comparison.varying_axes() if axis not in axes]
    if len(groups) < 2 or not others or max(map(len, groups.values())) < 2:
        return None
    names = {row.combination_id: where(row, others) for row in rows}
    lines = []
    for place, members in list(groups.items())[:MOST_CASES]:
        lines.append((*place, *_best_cells(metric, _ranked(comparison, members, metric), names)))
    return BestTable(_best_head(comparison, metric, axes), tuple(lines), len(groups) - len(lines))


# Confidence and advice


def _confidence(comparison: Comparison, pairs: Sequence[_Pair]) -> tuple[Confidence, tuple[str, ...]]:
    open_cells = [pair.cell for pair in pairs if not pair.is_certain]
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
        if codes[code] < len(pairs) and code not in ("different_environment", "no_threshold"):
            share = f" in {codes[code]} of {len(pairs)}"
        reasons.append(text + share)
    if others:
        reasons.append(f"{others} not certain")
    noisy = noisy_rows(comparison)
    if noisy:
        reasons.append(counted(noisy, "noisy row"))
    is_half_certain = 2 * len(open_cells) <= len(pairs)
    return "medium" if is_half_certain else "low", tuple(reasons)


def _advice(comparison: Comparison, pairs: Sequence[_Pair]) -> str:  # noqa: PLR0911  # one for each kind of advice
    """Return what would make more of the differences certain; empty if all are."""
    open_pairs = [pair for pair in pairs if not pair.is_certain]
    codes = Counter(pair.cell.verdict_reason for pair in open_pairs)
    protocol = comparison.protocol
    if comparison.running is not None:
        return "The sweep continues; sweeprof report DIR shows its present state."
    if any(row.is_incomplete for row in comparison.rows):
        return "Measure what is missing: resume=last."
    if codes["too_few_rounds"] or codes["no_threshold"]:
        is_other_side = all(len(pair.cell.measurement.rounds) >= MIN_ROUNDS for pair in open_pairs)
        subject = "Measure the other sweep" if comparison.against is not None and is_other_side else "Run"
        return f"{subject} again with protocol=default."
    if codes["interval_crosses_threshold"] and protocol.get("budget"):
        return _with_another_hour(comparison, pairs)
    if codes["interval_crosses_threshold"]:
        if comparison.against is None and not any(protocol.get("decide") or ()):
            again = "Run again with protocol=decide."
        else:
            crossing = [pair for pair in open_pairs if pair.cell.verdict_reason == "interval_crosses_threshold"]
            needed = [pair.cell.rounds_needed or MOST_ROUNDS + 1 for pair in crossing]
            if min(needed) > MOST_SEQUENTIAL_ROUNDS:
                return "At this noise level more rounds would not help: quiet the machine first."
            rounds = min(max(needed), MOST_SEQUENTIAL_ROUNDS)
            again = f"Run again with protocol.rounds={rounds}."
        if noisy_rows(comparison):
            return f"Quiet the machine first. {again}"
        return again
    if codes["different_environment"]:
        apart = next(pair.row for pair in open_pairs if pair.cell.verdict_reason == "different_environment")
        text = same_environment(apart)
        return f"{text[:1].upper()}{text[1:]}."
    return ""


def _advice_without_pairs(comparison: Comparison) -> str:
    """Return how to name a baseline, if there is none among the combinations; empty where the batch size alone varies."""
    axes = [axis for axis in comparison.varying_axes() if axis != BATCH_AXIS]
    is_compared = comparison.against is not None or any(axis in comparison.baseline for axis in axes)
    if is_compared or comparison.running is not None:
        return ""
    if not axes:
        if len(comparison.rows) == 1 and any(comparison.protocol.get("decide") or ()):
            return "Nothing is compared, because there is one combination: protocol=default measures five rounds of it."
        return ""
    axis = next((axis for axis in axes if axis not in (MODEL_AXIS, "mode")), axes[0])
    example = f"compare.baseline={{{one_line(axis)}: {axis_text(comparison.rows[0].axes.get(axis))}}}"
    return f"For ratios and verdicts name a baseline, such as '{example}'."


def _with_another_hour(comparison: Comparison, pairs: Sequence[_Pair]) -> str:
    """Return how many of the comparisons that are not decided further rounds would decide, the shortest first, within an hour."""
    rows = {row.combination_id: row for row in comparison.rows}
    costs = []
    for pair in pairs:
        needed, row = pair.cell.rounds_needed, pair.row
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
    open_count = sum(not pair.is_certain for pair in pairs)
    if not decided:
        return "Another hour would not settle it." if open_count == 1 else "Another hour would settle none of them."
    which = "it" if open_count == 1 else f"about {decided} of the {open_count} that are not decided"
    return f"Another hour would settle {which}: resume=last budget=1h."
