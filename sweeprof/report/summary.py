"""The text around a report's tables: headline, best rows, footnotes, environment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeprof.numbers import ratio_number, rounded, text_unit
from sweeprof.report.columns import (
    MODEL_AXIS,
    UNCLEAR,
    baseline_text,
    is_optional,
    measured_of,
    metric_title,
    rounds_text,
    shown_metrics,
    value_text,
)
from sweeprof.report.table import rows_by_table, sorted_rows
from sweeprof.results.comparison import (
    DEVIATION,
    MIN_ROUNDS,
    Cell,
    Comparison,
    Row,
    ValuePair,
    is_training,
    reason_of,
    spelled,
    value_of,
)
from sweeprof.results.constraints import (
    BATCH_AXIS,
    BATCH_METRIC,
    Direction,
    best_batch_sizes,
    best_row,
    named_metrics,
    uncertain_selection,
)
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.statistics import CONFIDENCE, MOST_ROUNDS
from sweeprof.results.verdicts import REASONS, Verdict, expected_false
from sweeprof.text import axes_text, axis_text, one_line

# The sections below a report's tables: what qualifies, the Pareto front, and the best batch sizes, in words.


_MOST = 8
"""Lines of one kind that a report lists."""
_WAYS = {
    "rounds": "interleaved round by round",
    "samples": "interleaved sample by sample",
}


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A title and its lines."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mean:
    """The geometric mean of a metric's ratios over the combinations that have values on both sides."""

    candidate: str
    metric: str
    """The metric's title."""
    ratio: float
    count: int
    of: int
    """Combinations that could have had a ratio."""
    incomplete: int = 0
    """Ratios in which either side has fewer rounds than planned."""


def percent(share: float) -> str:
    """A share in percent, e.g. ``5 %``."""
    return f"{100 * share:g} %"


IntervalKind = Literal["rounds", "process", "both"]


def interval_kind(measurements: Iterable[Measurement]) -> IntervalKind | None:
    """Return the kind of the measurements' intervals: over rounds, within one process, or mixed; None if there are none."""
    found = {one.has_interval_within_process for one in measurements if one.interval is not None}
    if not found:
        return None
    return "both" if len(found) == 2 else "process" if found == {True} else "rounds"


INTERVALS: dict[IntervalKind, str] = {
    "rounds": "95 % interval over the rounds",
    "process": "95 % interval of the median within one process, not between processes",
    "both": "95 % interval over the rounds; of values with one round that of the median within one process",
}


def protocol_text(comparison: Comparison, with_intervals: bool = True) -> str:
    """Rounds, how they were interleaved, the thresholds, and what the brackets are; empty where the comparison does not tell."""
    rounds = comparison.protocol.get("rounds")
    if not rounds:
        return ""
    count = " or ".join(map(str, sorted(rounds)))
    parts = [f"{count} {'round' if rounds == [1] else 'rounds'}"]
    if comparison.protocol.get("decide"):
        parts[0] = f"at most {parts[0]}, until verdicts are decided"
        if budget := comparison.protocol.get("budget"):
            parts[0] += f" or budget={budget[0]} is used up"
    if rounds != [1]:
        parts[0] += ", " + " or ".join(_WAYS.get(way, way) for way in comparison.protocol.get("interleave", ()))
    own = ", ".join(f"{one_line(name)} {percent(value)}" for name, value in comparison.thresholds.items())
    if comparison.threshold is not None:
        parts.append(f"threshold {percent(comparison.threshold)}" + (f" ({own})" if own else ""))
    else:
        parts.append(f"thresholds {own}" if own else "no threshold, so no verdicts")
    kind = interval_kind(cell.measurement for row in comparison.rows for cell in row.cells.values())
    if kind is not None and with_intervals:
        parts.append(f"[ ]: {INTERVALS[kind]}")
    return " · ".join(parts)


def tests_text(comparison: Comparison) -> str:
    """Return how many ratios were tested, their verdicts, and the expected number of false ones; empty if none was tested."""
    tested = [cell for row in comparison.rows for cell in row.cells.values() if cell.ratio_interval is not None]
    if not tested:
        return ""
    found = Counter(cell.verdict for cell in tested)
    message = ", ".join(f"{found[v]} {v}" for v in ("better", "worse", "same", "unclear") if found[v])
    ratios = "ratio was" if len(tested) == 1 else "ratios were"
    repeated = " over all its rounds" if comparison.protocol.get("decide") else ""
    drift = ", not counting a drift of the machine between the sweeps" if comparison.against else ""
    return (
        f"{len(tested)} {ratios} tested, each at {percent(CONFIDENCE)} confidence{repeated}: {message}. "
        f"By chance alone, at most {expected_false(len(tested)):.2g} of them would be better or worse{drift}"
    )


def verdict_counts(counts: Mapping[Verdict, int], once: int, order: Iterable[Verdict]) -> str:
    """Return how often each verdict was reached, e.g. ``2 better, 9 unclear (measured once, which cannot decide)``.

    Args:
        once: how many of the unclear ones were measured once, in a single process.
    """
    parts = []
    for verdict in order:
        note = ""
        if verdict == "unclear" and once:
            which = "" if once == counts[verdict] else f"{once} of them "
            note = f" ({which}measured once, which cannot decide)"
        parts.append(f"{counts.get(verdict, 0)} {verdict.replace('_', ' ')}{note}")
    return ", ".join(parts)


def geometric_means(comparison: Comparison) -> list[Mean]:
    """Per value of the baseline's axes and per metric of the tables.

    Of a single combination there is no mean, and one of ratios that are all 1 is not worth a word.
    """
    groups: dict[str, list[Row]] = {}
    for row in comparison.rows:
        if row.baseline_id is not None and not row.is_baseline:
            groups.setdefault(candidate_name(comparison, row), []).append(row)
    found, infos = [], shown_metrics(comparison)
    for candidate, rows in groups.items():
        for info in infos if len(rows) > 1 else ():
            known = [(row, ratio) for row in rows if (ratio := _usable(row, info.name)) is not None]
            ratios = [ratio for _, ratio in known]
            if len(ratios) > 1 and info.better is not None and set(ratios) != {1.0}:
                mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
                partial = sum(row.is_incomplete or row.baseline_is_incomplete for row, _ in known)
                found.append(Mean(candidate, metric_title(info, rows), mean, len(ratios), len(rows), partial))
    return found


def candidate_name(comparison: Comparison, row: Row) -> str:
    """Return the values by which a row differs from its baseline: ``tensorflow``; ``all`` for the rows of another sweep."""
    varying = comparison.varying_axes()
    if comparison.against is not None:
        return "all"
    named = {axis: row.axes[axis] for axis in comparison.baseline if axis in row.axes and axis in varying}
    return ", ".join(axis_text(v) if isinstance(v, str) else axes_text({k: v}) for k, v in named.items())


def _usable(row: Row, metric: str) -> float | None:
    cell: Cell | None = row.cells.get(metric)
    fine = cell is not None and row.has_values and row.baseline_has_values and cell.verdict != "not_comparable"
    return cell.ratio if cell is not None and fine and cell.ratio is not None and cell.ratio > 0 else None


def means_lines(comparison: Comparison) -> list[str]:
    """The geometric means, a line per candidate."""
    by_candidate: dict[str, list[Mean]] = {}
    for mean in geometric_means(comparison):
        by_candidate.setdefault(mean.candidate, []).append(mean)
    return [f"{candidate}: {', '.join(map(_mean_text, means))}" for candidate, means in by_candidate.items()]


def _mean_text(mean: Mean) -> str:
    incomplete = f", {mean.incomplete} incomplete" if mean.incomplete else ""
    return f"{mean.metric} ×{ratio_number(mean.ratio)} ({mean.count} of {mean.of}{incomplete})"


def against_lines(comparison: Comparison) -> list[str]:
    """Return lines about the other sweep: its name, rows that only one sweep has, and changes since."""
    other = comparison.against
    if other is None:
        return []
    matched = sum(row.baseline_id is not None for row in comparison.rows)
    when = other.created[:16].replace("T", " ")
    lines = [f"{other.name} of {when}, {other.sweep_id}: {matched} of {len(comparison.rows)} combinations are in both"]
    new = [row.axes for row in comparison.rows if row.baseline_id is None]
    tell = combination_namer(comparison)
    lines += _listed("only here", [tell(axes) for axes in new])
    lines += _listed("only there", [tell(axes) for axes in other.absent])
    lines += _listed("only measured there", [metric_title(info, comparison.rows) for info in other.absent_metrics])
    lines += [f"{name}: {_change(change)}" for name, change in other.software.items()]
    lines += [f"{key}: {', '.join(map(_change, changes))}" for key, changes in other.settings.items()]
    return [one_line(line) for line in [*lines, *environment_lines(comparison)]]


def combination_namer(comparison: Comparison) -> Callable[[Mapping[str, object]], str]:
    """Return a function that names a combination of either sweep by the axes whose values differ between rows."""
    constant = {} if len(comparison.rows) == 1 else comparison.rows[0].axes if comparison.rows else {}
    varying = set(comparison.varying_axes())

    def tell(axes: Mapping[str, object]) -> str:
        text = {axis: value for axis, value in axes.items() if axis in varying or constant.get(axis) != value}
        return axes_text(text or axes)

    return tell


def environment_lines(comparison: Comparison) -> Iterator[str]:
    """Fields of the comparable key that differ, with the number of rows."""
    found = Counter(
        f"{field}: {_change(change)}" for row in comparison.rows for field, change in sorted(row.differs.items())
    )
    for line, rows in found.items():
        yield f"{line} (in {rows} {'row' if rows == 1 else 'rows'}; times are not comparable)"


def _listed(what: str, names: list[str]) -> list[str]:
    more = [f"{what}: {len(names) - _MOST} more"] if len(names) > _MOST else []
    return [*(f"{what}: {name}" for name in names[:_MOST]), *more]


def _change(change: ValuePair) -> str:
    before, now = ("not there" if side is None else spelled(side) for side in change)
    return f"{before} → {now}"


def settling_text(comparison: Comparison) -> str:
    """Return how many rounds would decide the ratios whose intervals cross the threshold."""
    infos = shown_metrics(comparison)
    crossing = [
        cell
        for row in comparison.rows
        for info in infos
        if (cell := row.cells.get(info.name)) and cell.verdict_reason == "interval_crosses_threshold"
    ]
    needed = sorted(cell.rounds_needed for cell in crossing if cell.rounds_needed is not None)
    if not needed:
        return f"more than {MOST_ROUNDS} rounds of this spread would settle it"
    span = str(needed[0]) if needed[0] == needed[-1] else f"{needed[0]} to {needed[-1]}"
    rest = f"; more than {MOST_ROUNDS} for some" if len(needed) < len(crossing) else ""
    return f"about {span} rounds of this spread would settle it{rest}"


# The text around a report's tables: headline, best rows, footnotes, environment.


MOST_DAMAGED = 20
_STEP = "latency/iteration"
_BEST: tuple[tuple[str, str, Direction], ...] = (
    (_STEP, "shortest training step", "lower"),
    ("latency/forward", "lowest latency", "lower"),
    ("throughput/samples_per_s", "highest throughput", "higher"),
)


@dataclass(frozen=True, slots=True)
class Best:
    """The best measured row of a model by one metric; says what was measured, not that the difference is certain."""

    model: str
    what: str
    """E.g. ``lowest latency``."""
    value: str
    where: str
    """The row's other axes, e.g. ``torch, batch_size 1``; with how much was measured where that is not everything."""


@dataclass(frozen=True, slots=True)
class Footnote:
    """A warning, or a kind of missing figure, of one or more rows."""

    code: str
    rows: int
    text: str
    """The observation, in the first of the rows."""
    advice: str


_Group = tuple[str, str]
"""Code and advice."""


def headline(comparison: Comparison) -> str:
    """Return how many combinations were measured, and the outcome of the others."""
    counts = comparison.counts()
    total = len(comparison.rows)
    noun = "combination" if total == 1 else "combinations"
    if comparison.search is not None:
        noun = f"chosen {noun}"
    measured = f"{counts.pop('ok')} of {total} {noun} measured"
    incomplete = sum(row.status == "ok" and bool(row.failures) for row in comparison.rows)
    if incomplete:
        measured += f", {incomplete} of them incompletely"
    parts = [measured]
    running = comparison.running
    if running is not None:
        # Verdicts may be decided before all rounds are measured, and a search may end with fewer combinations.
        is_at_most = bool(comparison.protocol.get("decide")) or comparison.search is not None
        planned = f"{'at most ' if is_at_most else ''}{running.planned:,}"
        parts = [f"running: {running.done:,} of {planned} trials have ended", measured]
        if "skipped" in counts:
            counts["not begun"] = counts.pop("skipped")
    parts.append(", ".join(f"{number} {status}" for status, number in counts.items()))
    return "; ".join(filter(None, parts))


def best_rows(comparison: Comparison) -> list[Best]:
    """Per model the shortest training step, the lowest latency and the highest throughput, where at least two rows have one."""
    found = []
    varying = [axis for axis in comparison.varying_axes() if axis != MODEL_AXIS]
    for title, rows in rows_by_table(comparison).items():
        for metric, what, better in _BEST:
            comparable = _comparable([row for row in rows if row.has_values], metric)
            row = best_row(comparable, metric, better)
            if row is None or sum(value_of(one, metric) is not None for one in comparable) < 2:
                continue
            modes = [row.axes.get("mode") for row in comparable]
            unmeasured = [other for other in rows if not other.has_values and other.axes.get("mode") in modes]
            label = measured_of([*comparable, *unmeasured], [metric])
            place = ", ".join(part for part in (where(row, varying), label) if part)
            found.append(Best(title, what, value_text(row.cells[metric].measurement, with_interval=False), place))
    return found


def _comparable(rows: Sequence[Row], metric: str) -> Sequence[Row]:
    """Return the rows among which the best is chosen: inference apart from training, and training by its whole steps."""
    inference = [row for row in rows if not is_training(row)]
    if metric == "latency/forward":
        return inference or [row for row in rows if value_of(row, _STEP) is None]
    return [row for row in rows if is_training(row)] if metric == _STEP else inference or rows


def where(row: Row, axes: Sequence[str]) -> str:
    """The values of the given axes as far as the row has them; numbers with their axis, as they say little alone."""
    parts = []
    for axis in axes:
        if axis in row.axes:
            text = axis_text(row.axes[axis])
            parts.append(text if isinstance(row.axes[axis], str) else f"{one_line(axis)} {text}")
    return ", ".join(parts)


def footnotes(comparison: Comparison) -> list[Footnote]:
    """Undecided verdicts, figures that are missing, and warnings with their advice; each kind once."""
    rows: Counter[_Group] = Counter()
    infos, settling = shown_metrics(comparison), settling_text(comparison)
    first: dict[_Group, str] = {}
    for row in comparison.rows:
        # What is seen differs in its figures from row to row: rows with the same advice are one note, with the first row's figures.
        seen = {(code, advice): text for code, text, advice in _remarks(comparison, row, infos, settling)}
        rows.update(seen.keys())
        first = {**seen, **first}
    warnings = [Footnote(code, rows[code, advice], text, advice) for (code, advice), text in first.items()]
    found = [*warnings, *_missing(comparison), *_incomplete(comparison), *_damaged(comparison)]
    return sorted(found, key=lambda note: (note.code, note.text))


def _damaged(comparison: Comparison) -> Iterator[Footnote]:
    """One note per file that could not be read, up to :data:`MOST_DAMAGED`."""
    shown, hidden = comparison.damaged[:MOST_DAMAGED], len(comparison.damaged) - MOST_DAMAGED
    for line in shown:
        is_record = line.startswith("records/")
        rows = 1 if is_record else len(comparison.rows)
        advice = "resume=DIR sets it aside and measures the trial again" if is_record else ""
        yield Footnote("damaged_file", rows, one_line(line), advice)
    if hidden > 0:
        yield Footnote("damaged_file", hidden, f"{hidden} more files cannot be read", "")


def _missing(comparison: Comparison) -> Iterator[Footnote]:
    """One note per reason, with the metrics that it holds for."""
    names: dict[str, dict[str, None]] = {}
    rows: dict[str, set[str]] = {}
    expected = [info.name for info in shown_metrics(comparison) if not is_optional(info.name)]
    for row in comparison.rows:
        for name in expected:
            cell = row.cells.get(name)
            has_failed = cell is not None and cell.measurement.failure is not None  # which is shown with its location
            if row.has_values and value_of(row, name) is None and not has_failed:
                reason = reason_of(row, name)
                names.setdefault(reason, {})[one_line(name)] = None
                rows.setdefault(reason, set()).add(row.combination_id)
    for reason, missing in names.items():
        yield Footnote("missing", len(rows[reason]), f"{', '.join(missing)}: {reason}", "")


def _incomplete(comparison: Comparison) -> Iterator[Footnote]:
    """One note per reason why rows have fewer rounds or passes than planned."""
    reasons = Counter(f"{row.status}: {one_line(row.reason or '')}" for row in comparison.rows if row.is_incomplete)
    for reason, rows in reasons.items():
        yield Footnote("incomplete", rows, reason, _RESUME if comparison.running is None else _CONTINUES)


def _remarks(
    comparison: Comparison, row: Row, infos: Sequence[MetricInfo], settling: str
) -> Iterator[tuple[str, str, str]]:
    """Code, text and advice of everything that limits the row."""
    for warning in (*row.warnings, *(w for cell in row.cells.values() for w in cell.measurement.warnings)):
        yield warning.code, one_line(warning.text), one_line(warning.advice)
    if not row.has_values:
        return
    for info in infos:
        cell = row.cells.get(info.name)
        # What is measured once says so beside its value; here it would be said of every sweep.
        if cell and cell.ratio is not None and cell.verdict in _UNCALLED and cell.verdict_reason != "measured_once":
            yield _uncalled(comparison, row, cell, comparison.threshold_of(info.name), settling)


_UNCALLED = ("unclear", "not_comparable")
_RESUME = "measure what is missing: resume=DIR"
_CONTINUES = "the sweep measures what is missing"


def _uncalled(
    comparison: Comparison, row: Row, cell: Cell, threshold: float | None, settling: str
) -> tuple[str, str, str]:
    """Code, text and advice for a value without a verdict better, worse or same."""
    code = cell.verdict_reason or cell.verdict or "unclear"
    if code == "no_threshold":
        text = f"{UNCLEAR} undecided: there is no threshold"
        return code, text, "set compare.thresholds, or use protocol=default"
    if code == "too_few_rounds":
        text, advice = _too_few_rounds(comparison, cell)
        return code, f"{UNCLEAR} undecided: {text}", advice
    if code == "interval_crosses_threshold":
        # Of metrics with different thresholds the note is one.
        margin = "" if threshold is None or comparison.thresholds else f" of {percent(threshold)}"
        text = f"{UNCLEAR} undecided: the 95 % interval of the ratio crosses the threshold{margin}"
        return code, text, settling
    if code == "different_environment":
        message = ", ".join(
            f"{field} {spelled(before)} → {spelled(now)}" for field, (before, now) in row.differs.items()
        )
        return (
            code,
            f"{UNCLEAR} not comparable with the baseline: {one_line(message)}",
            same_environment(row),
        )
    advice = _ADVICE.get(code, "")
    kind = "not comparable" if cell.verdict == "not_comparable" else "undecided"
    return code, f"{UNCLEAR} {kind}: {REASONS.get(code, one_line(code))}", advice


_ADVICE = {
    "incomplete_count": "give these operators a formula: sweeprof.operator_formula",
    "different_data": "evaluate both on the same samples",
    "not_by_round": "return a value that can be computed from one round",
}
"""By the code of a verdict's reason, where it is the same for every row."""


def _too_few_rounds(comparison: Comparison, cell: Cell) -> tuple[str, str]:
    """Return which side lacks rounds, and advice."""
    own, base = len(cell.measurement.rounds), cell.base_rounds
    planned = comparison.protocol.get("rounds") or [0]
    # Each side was to be measured often enough: what is missing was interrupted or failed.
    is_interrupted = min(planned) >= MIN_ROUNDS
    more = f"at least {MIN_ROUNDS} rounds, e.g. protocol=default"
    if own < MIN_ROUNDS:
        resume = "measure the missing rounds: resume=DIR" if comparison.running is None else _CONTINUES
        advice = resume if is_interrupted else f"measure {more}"
        return f"{_rounds(own)} cannot distinguish a difference from chance", advice
    if base is not None and base < MIN_ROUNDS:
        if comparison.against is not None:
            return f"the other sweep has only {_rounds(base)}", f"measure the other sweep again with {more}"
        resume = "measure the baseline's missing rounds: resume=DIR" if comparison.running is None else _CONTINUES
        advice = resume if is_interrupted else f"measure the baseline with {more}"
        return f"the baseline has only {_rounds(base)}", advice
    text = f"fewer than {MIN_ROUNDS} of its rounds were measured together with the baseline's"
    return text, "measure both again, in a sweep of their own"


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def same_environment(row: Row) -> str:
    """Return advice on a row whose environment differs from its baseline's."""
    if DEVIATION in row.differs:
        return "the row's warnings, or those of its baseline, name the setting that the model changed"
    if "host" in row.differs:
        return "measure both on one host"
    return f"measure both with the same {', '.join(map(one_line, row.differs))}"


def environment_items(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the recorded environment of the sweep as pairs of name and text."""
    env = comparison.environment
    cpu = env.get("cpu") or {}
    items = [("host", env.get("host")), ("submitted from", env.get("submitted_from")), ("os", env.get("os"))]
    cores = ", ".join(f"{cpu[k]} {k}" for k in ("logical", "physical") if cpu.get(k))
    items.append(("cpu", " ".join(part for part in (cpu.get("model"), f"({cores} cores)" if cores else "") if part)))
    items += [(f"cpu {name}", cpu.get(name)) for name in ("governor", "quota")]
    if env.get("memory_bytes"):
        items.append(("memory", rounded(env["memory_bytes"], "B")))
    items += [
        ("gpu", axis_text(gpu.get("name", gpu) if isinstance(gpu, dict) else gpu)) for gpu in env.get("gpus") or ()
    ]
    items.append(("load", ", ".join(str(load) for load in env.get("load") or ())))
    items.append(("python", env.get("python")))
    items += sorted((env.get("versions") or {}).items())
    git = env.get("git") or {}
    if git.get("revision"):
        items.append(("git", f"{git['revision']}{' with uncommitted changes' if git.get('dirty') else ''}"))
    return [(one_line(str(name)), one_line(str(text))) for name, text in items if text not in (None, "")]


# The sections below a report's tables: what qualifies, the Pareto front, and the best batch sizes, in words.


_MOST_LISTED = 20
"""Combinations that a report lists; ``comparison.csv`` has all of them."""
_ARROWS = {"lower": "↓", "higher": "↑", None: ""}
MOST_BATCH_LINES = 60
"""Lines that a report has room for; beyond that its table and its plots show the best batch sizes."""


def sections(comparison: Comparison) -> list[ReportSection]:
    """Return the sections below a report's tables, in order, without those for which the comparison has no data."""
    base = baseline_text(comparison)
    tested = tests_text(comparison)
    found = [
        ReportSection(f"Compared with {base}", tuple(against_lines(comparison))),
        ReportSection(f"Geometric means vs {base}", tuple(means_lines(comparison))),
        ReportSection("Verdicts", (tested,) if tested else ()),
        _qualifying(comparison),
        _front(comparison),
        ReportSection("Best batch size, by throughput", tuple(batch_lines(comparison))),
    ]
    return [section for section in found if section.lines]


def _qualifying(comparison: Comparison) -> ReportSection:
    if not comparison.constraints:
        return ReportSection("", ())
    rows = sorted_rows(comparison)
    fitting = [row for row in rows if not row.misses]
    missing = [row for row in rows if row.misses]
    verb = "qualifies" if len(fitting) == 1 else "qualify"
    title = f"{len(fitting)} of {len(rows)} combinations {verb}: {' and '.join(comparison.constraints)}"
    titles = {info: metric_title(info, comparison.rows) for info in named_metrics(comparison)}
    tell = combination_namer(comparison)
    notes = dict.fromkeys((row.combination_id for row in rows), "")
    for id, (name, measurement) in uncertain_selection(comparison).items():
        notes[id] = f" (not certain: {name} {value_text(measurement)})"
    lines = []
    for info, name in titles.items():
        differing = {value_of(row, info.name) for row in fitting} - {None}
        best = None if info.better is None else best_row(fitting, info.name, info.better)
        if best is not None and len(differing) > 1:
            heading = f"best {name} {measured_of(_qualified(comparison), [info.name])}".rstrip()
            lines.append(f"{heading}: {_with_figures(titles, best, tell)}")
    if missing:
        shown = [f"{_with_figures(titles, row, tell)}{notes[row.combination_id]}" for row in fitting[:_MOST_LISTED]]
        lines += [*(f"qualifies: {text}" for text in shown), *_more(fitting)]
    for row in missing[:_MOST_LISTED]:
        lines.append(f"misses: {tell(row.axes)} – {'; '.join(row.misses)}{notes[row.combination_id]}")
    lines += _more(missing)
    return ReportSection(one_line(title), tuple(map(one_line, lines)))


def _qualified(comparison: Comparison) -> list[Row]:
    """The rows that qualify, and those that might if they were measured."""
    return [row for row in comparison.rows if not row.misses or not row.has_values]


def _front(comparison: Comparison) -> ReportSection:
    rows = [row for row in sorted_rows(comparison) if row.on_front]
    if len(rows) == len(comparison.rows):  # a front that every row is on says nothing
        return ReportSection("", ())
    known = {info.name: info for info in comparison.metrics}
    titles = {known[name]: metric_title(known[name], comparison.rows) for name in comparison.pareto}
    title = ", ".join(f"{name} {_ARROWS[info.better]}" for info, name in titles.items())
    heading = f"Pareto front {measured_of(_qualified(comparison), comparison.pareto)}".rstrip()
    tell = combination_namer(comparison)
    lines = [_with_figures(titles, row, tell) for row in rows[:_MOST_LISTED]]
    return ReportSection(f"{heading}: {title}", (*lines, *_more(rows)))


def _with_figures(titles: Mapping[MetricInfo, str], row: Row, tell: Callable[[Mapping[str, object]], str]) -> str:
    """Return a row with its figures, e.g. ``model=mlp – latency 1.00 ms, accuracy 0.9000``."""
    figures = []
    for info, title in titles.items():
        value = value_of(row, info.name)
        if value is not None:
            figures.append(f"{title} {rounded(value, text_unit(info.name, info.unit))}")
    name = f"{tell(row.axes)} ({rounds_text(row)})" if row.is_incomplete else tell(row.axes)
    return f"{name} – {', '.join(figures)}" if figures else name


def _more(rows: Sequence[Row]) -> list[str]:
    return [f"and {len(rows) - _MOST_LISTED} more, in comparison.csv"] if len(rows) > _MOST_LISTED else []


def batch_lines(comparison: Comparison) -> list[str]:
    """Return a line for each combination of the other axes; none where the batch size alone varies, which the table shows."""
    lines = []
    tell = combination_namer(comparison)
    for best, rows in best_batch_sizes(comparison, sorted_rows(comparison)):
        others = {axis: value for axis, value in best.axes.items() if axis != BATCH_AXIS}
        throughput = value_text(best.cells[BATCH_METRIC].measurement, with_interval=False)
        label = measured_of(rows, [BATCH_METRIC])
        line = f"{tell(others)}: {axis_text(best.axes[BATCH_AXIS])} – {throughput}"
        lines.append(f"{line} ({label})" if label else line)
    return lines if len(lines) <= MOST_BATCH_LINES else []
