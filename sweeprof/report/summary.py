"""The text around a report's tables: protocol, headline, best rows, footnotes, environment, and the sections below."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeprof.numbers import percent, rounded, text_unit
from sweeprof.report.columns import (
    ARROWS,
    MODEL_AXIS,
    UNCLEAR,
    axis_title,
    baseline_text,
    called_metrics,
    is_of_other_mode,
    is_optional,
    measured_of,
    metric_title,
    rounds_text,
    shown_metrics,
    values_text,
)
from sweeprof.report.table import sorted_rows
from sweeprof.report.view import counted
from sweeprof.results.compared_rows import DEVIATION, THREADS, Comparison, Row, ValuePair, reason_of, spelled, value_of
from sweeprof.results.constraints import BATCH_AXIS
from sweeprof.results.differences import Cell
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.record import Failure, Status
from sweeprof.results.statistics import CONFIDENCE
from sweeprof.results.verdicts import MIN_ROUNDS, REASONS, expected_false
from sweeprof.text import axes_text, axis_text, one_line, without_numbers

_MOST = 8
"""Lines of one kind that a report lists."""
_WAYS = {"rounds": "interleaved round by round", "samples": "interleaved sample by sample"}


IntervalKind = Literal["rounds", "process", "both"]


def interval_kind(measurements: Iterable[Measurement]) -> IntervalKind | None:
    """Return the kind of the measurements' intervals: over rounds, within one process, or mixed; None if there are none."""
    found = {one.has_interval_within_process for one in measurements if one.interval is not None}
    if not found:
        return None
    if len(found) == 2:
        return "both"
    return "process" if True in found else "rounds"


INTERVALS: dict[IntervalKind, str] = {
    "rounds": "95% interval over the rounds",
    "process": "95% interval of the median within one process, not between processes",
    "both": "95% interval over the rounds; of values with one round that of the median within one process",
}


def protocol_text(comparison: Comparison, with_intervals: bool = True) -> str:
    """Rounds, how they were interleaved, the thresholds, and what the brackets are; empty where the comparison does not tell."""
    rounds = comparison.protocol.get("rounds")
    if not rounds:
        return ""
    measured = f"{' or '.join(map(str, sorted(rounds)))} {'round' if rounds == [1] else 'rounds'}"
    if comparison.protocol.get("decide"):
        measured = f"at most {measured}, until verdicts are decided"
        budget = comparison.protocol.get("budget")
        if budget:
            measured += f" or budget={budget[0]} is used up"
    ways = comparison.protocol.get("interleave", ())
    if rounds != [1] and ways:
        measured += f", {' or '.join(_WAYS.get(way, way) for way in ways)}"
    parts = [measured]
    own = ", ".join(f"{one_line(name)} {percent(value)}" for name, value in comparison.thresholds.items())
    if comparison.threshold is not None:
        parts.append(f"threshold {percent(comparison.threshold)}")
        if own:
            parts[-1] += f" ({own})"
    else:
        parts.append(f"thresholds {own}" if own else "no threshold, so no verdicts")
    kind = interval_kind(cell.measurement for row in comparison.rows for cell in row.cells.values())
    if kind is not None and with_intervals:
        parts.append(f"[\N{NO-BREAK SPACE}]: {INTERVALS[kind]}")
    return " · ".join(parts)


_MARKS = re.compile(r"\((R|TM|r|tm)\)| CPU\b")
_SETTINGS = ("backend.precision", "mode")


def conditions(comparison: Comparison) -> str:
    """Return what holds for all rows: processor or GPU, backend, threads, precision, mode, dataset, axes with one value."""
    if not comparison.rows:
        return ""
    varying, axes, settings = comparison.varying_axes(), comparison.rows[0].axes, comparison.settings
    constant = {axis: axes[axis] for axis in comparison.axes if axis not in varying and axis in axes}
    if settings.get("mode") == "command":  # a program has no model, data and batches
        constant = {axis: constant[axis] for axis in constant if axis not in (MODEL_AXIS, "dataset", BATCH_AXIS)}
        settings = {"device.type": settings.get("device.type", "")}
    device = str(constant.pop("device", settings.get("device.type", "")))
    parts = []
    if device.startswith("cpu"):
        model = (comparison.environment.get("cpu") or {}).get("model")
        parts.append(_MARKS.sub("", f"CPU {one_line(model)}") if model else "CPU")
    elif device and "device" not in varying:
        names = [gpu.get("name") if isinstance(gpu, dict) else gpu for gpu in comparison.environment.get("gpus") or ()]
        parts.append(", ".join([axis_text(device), *dict.fromkeys(map(axis_text, names))]))
    parts += [axis_text(constant.pop(axis)) for axis in ("backend", MODEL_AXIS) if axis in constant]
    if THREADS in settings and THREADS not in varying:
        constant.pop(THREADS, None)
        threads = settings[THREADS]
        parts.append(counted(threads, "thread") if isinstance(threads, int) else "threads as the backend chooses")
    for key in _SETTINGS:
        value = constant.pop(key, settings.get(key))
        if value is not None and key not in varying:
            parts.append(axis_text(value))
    if "dataset._target_" in settings and "dataset" not in varying:
        name = constant.pop("dataset", str(settings["dataset._target_"]).rpartition(".")[2].lower())
        parts.append(f"dataset {axis_text(name)}")
    parts += [f"{axis_title(axis, comparison.axes)} {axis_text(value)}" for axis, value in constant.items()]
    return " · ".join(map(one_line, parts))


def tests_text(comparison: Comparison) -> str:
    """Return how many ratios were tested, each figure once, their verdicts, and the expected number of false ones."""
    names = [info.name for info in called_metrics(comparison)]
    tested = []
    for row in comparison.rows:
        cells = [row.cells[name] for name in names if name in row.cells]
        tested += [cell for cell in cells if cell.ratio_interval is not None]
    if not tested:
        return ""
    found = Counter(cell.verdict for cell in tested)
    message = ", ".join(f"{found[v]} {v}" for v in ("better", "worse", "same", "unclear") if found[v])
    text = "1 ratio was" if len(tested) == 1 else f"{len(tested)} ratios were"
    text += f" tested, each at {percent(CONFIDENCE)} confidence"
    if comparison.protocol.get("decide"):
        text += " over all its rounds"
    expected = expected_false(len(tested))
    number = f"{expected:.2g}" if expected < 99.5 else f"{expected:,.0f}"
    text += f": {message}. Expect at most {number} false {'verdict' if number == '1' else 'verdicts'} by chance"
    if comparison.against:
        text += ", not counting a drift of the machine between the sweeps"
    return text


def candidate_name(comparison: Comparison, row: Row) -> str:
    """Return the values by which a row differs from its baseline: ``tensorflow``; ``all`` for the rows of another sweep."""
    if comparison.against is not None:
        return "all"
    varying = comparison.varying_axes()
    return values_text({axis: row.axes[axis] for axis in comparison.baseline if axis in row.axes and axis in varying})


def against_lines(comparison: Comparison) -> list[str]:
    """Return lines about the other sweep: its name, rows that only one sweep has, and changes since."""
    other = comparison.against
    if other is None:
        return []
    matched = sum(row.baseline_id is not None for row in comparison.rows)
    when = other.created[:16].replace("T", " ")
    combinations = counted(len(comparison.rows), "combination")
    verb = "is" if len(comparison.rows) == 1 else "are"
    lines = [f"{other.name} of {when}, {other.sweep_id}: {matched} of {combinations} {verb} in both"]
    tell = combination_namer(comparison)
    names = {
        "only here": [tell(row.axes) for row in comparison.rows if row.baseline_id is None],
        "only there": [tell(axes) for axes in other.absent],
        "only measured there": [metric_title(info, comparison.rows) for info in other.absent_metrics],
    }
    for what, found in names.items():
        lines += [f"{what}: {name}" for name in found[:_MOST]]
        if len(found) > _MOST:
            lines.append(f"{what}: {len(found) - _MOST} more")
    lines += [f"{name}: {_change(change)}" for name, change in other.software.items()]
    lines += [f"{key}: {', '.join(map(_change, changes))}" for key, changes in other.settings.items()]
    # Fields of the comparable key that differ, with the number of rows.
    differing: Counter[str] = Counter()
    for row in comparison.rows:
        differing.update(f"{field}: {_change(change)}" for field, change in sorted(row.differs.items()))
    for line, count in differing.items():
        lines.append(f"{line} (in {counted(count, 'row')}; times are not comparable)")
    return [one_line(line) for line in lines]


def _change(change: ValuePair) -> str:
    return " → ".join("not there" if side is None else spelled(side) for side in change)


def combination_namer(comparison: Comparison) -> Callable[[Mapping[str, object]], str]:
    """Return a function that names a combination of either sweep by the axes whose values differ between rows."""
    # Rows of the other sweep may differ in axes that do not vary here; a single row is named by all of its axes.
    constant: Mapping[str, object] = comparison.rows[0].axes if len(comparison.rows) > 1 else {}
    varying = set(comparison.varying_axes())

    def tell(axes: Mapping[str, object]) -> str:
        shown = {axis: value for axis, value in axes.items() if axis in varying or constant.get(axis) != value}
        return axes_text(shown or axes)

    return tell


# What was not measured, by cause

RowOutcome = Status | Literal["incomplete"]
"""``incomplete``: measured, but for a metric that raised."""
MOST_FAILURES = 20
"""Different failures that the terminal and Markdown list."""


@dataclass(frozen=True, slots=True)
class FailedRows:
    """Combinations that failed for one reason."""

    status: RowOutcome
    reason: str
    rows: tuple[tuple[str, str], ...]
    """Combination id and name of each."""
    traceback: str | None = None
    log: str | None = None
    """Of the first of them, below the sweep's folder."""


def failures(comparison: Comparison) -> list[FailedRows]:
    """Combinations without a full measurement by status and reason, whatever its numbers, the most frequent first.

    Combinations with values that lack rounds are listed by :func:`footnotes`, and here where something raised.
    """
    groups: defaultdict[tuple[RowOutcome, str], dict[str, tuple[Row, list[Failure]]]] = defaultdict(dict)
    for row in sorted_rows(comparison):
        status: RowOutcome = "incomplete" if row.has_values else row.status
        known = row.failures
        if not known and not row.has_values:
            known = (Failure("", row.reason or "no reason was given"),)
        for failure in known:  # one cause may end several passes
            group = groups[status, without_numbers(failure.message)]
            group.setdefault(row.combination_id, (row, []))[1].append(failure)
    tell = combination_namer(comparison)
    found = []
    for (ending, _), members in groups.items():
        rows = tuple((row.combination_id, tell(row.axes)) for row, _ in members.values())
        all_failures = [failure for _, failures in members.values() for failure in failures]
        sources = ", ".join(dict.fromkeys(failure.source for failure in all_failures if failure.source))
        tracebacks = [failure.traceback for failure in all_failures if failure.traceback]
        message = one_line(all_failures[0].message)
        reason = f"{sources}: {message}" if sources else message
        found.append(FailedRows(ending, reason, rows, tracebacks[0] if tracebacks else None, all_failures[0].log))
    return sorted(found, key=lambda failure: -len(failure.rows))


# The headline


def headline(comparison: Comparison) -> str:
    """Return how many combinations were measured, and the outcome of the others."""
    counts = comparison.counts()
    total = len(comparison.rows)
    chosen = "chosen " if comparison.search is not None else ""
    measured = f"{counts.pop('ok')} of {total} {chosen}{'combination' if total == 1 else 'combinations'} measured"
    incomplete = sum(row.status == "ok" and bool(row.failures) for row in comparison.rows)
    if incomplete:
        measured += f", {incomplete} of them incompletely"
    parts = [measured]
    running = comparison.running
    if running is not None:
        planned = f"{running.planned:,}"
        # Verdicts may be decided before all rounds are measured, and a search may end with fewer combinations.
        if comparison.protocol.get("decide") or comparison.search is not None:
            planned = f"at most {planned}"
        parts.insert(0, f"running: {running.done:,} of {planned} trials have ended")
        if "skipped" in counts:
            counts["not begun"] = counts.pop("skipped")
    parts.append(", ".join(f"{number} {status}" for status, number in counts.items()))
    return "; ".join(filter(None, parts))


def where(row: Row, axes: Sequence[str]) -> str:
    """The values of the given axes as far as the row has them; numbers with their axis, as they say little alone."""
    parts = []
    for axis in axes:
        if axis in row.axes:
            text = axis_text(row.axes[axis])
            parts.append(text if isinstance(row.axes[axis], str) else f"{axis_title(axis, list(row.axes))} {text}")
    return ", ".join(parts)


# Footnotes

MOST_DAMAGED = 20
NOISE = ("spread_high", "spread_severe", "drift")
"""Codes of the warnings that say that a row's times scatter."""


@dataclass(frozen=True, slots=True)
class Footnote:
    """A warning, or a kind of missing figure, of one or more rows."""

    code: str
    rows: int
    text: str
    """The observation; of several with different figures the first one, which is then called an example."""
    advice: str


_EXAMPLE = ", for example"
_CONTINUES = "the sweep measures what is missing"


def footnotes(comparison: Comparison) -> list[Footnote]:
    """Undecided verdicts, figures that are missing, and warnings with their advice; each kind once."""
    counts: Counter[tuple[str, str]] = Counter()
    texts: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    infos = shown_metrics(comparison)
    for row in comparison.rows:
        remarks = list(_remarks(comparison, row, infos))
        counts.update({(code, advice) for code, _, advice in remarks})
        for code, text, advice in remarks:
            texts[code, advice][text] = None
    notes = []
    for (code, advice), found in texts.items():
        text, *others = found
        if others:  # figures differ from row to row, but rows with the same advice are one note
            text += _EXAMPLE
        notes.append(Footnote(code, counts[code, advice], text, advice))
    notes += _missing(comparison)
    incomplete = Counter(f"{row.status}: {one_line(row.reason or '')}" for row in comparison.rows if row.is_incomplete)
    advice = "measure what is missing: resume=DIR" if comparison.running is None else _CONTINUES
    notes += [Footnote("incomplete", count, reason, advice) for reason, count in incomplete.items()]
    for line in comparison.damaged[:MOST_DAMAGED]:
        if line.startswith("records/"):
            advice = "resume=DIR sets it aside and measures the trial again"
            notes.append(Footnote("damaged_file", 1, one_line(line), advice))
        else:
            notes.append(Footnote("damaged_file", len(comparison.rows), one_line(line), ""))
    hidden = len(comparison.damaged) - MOST_DAMAGED
    if hidden > 0:
        notes.append(Footnote("damaged_file", hidden, f"{hidden} more files cannot be read", ""))
    return sorted(notes, key=lambda note: (note.code, note.text))


def short_notes(comparison: Comparison) -> list[str]:
    """Return the footnotes for a terminal, a sentence for each cause without codes and advice."""
    by_code: defaultdict[str, list[Footnote]] = defaultdict(list)
    for note in footnotes(comparison):
        by_code[note.code].append(note)
    busy, noisy = by_code.pop("load_high", []), noisy_rows(comparison)
    noise = [note for code in NOISE for note in by_code.pop(code, [])]
    lines = []
    if busy:
        text, _, processes = _capital(busy[0].text).partition(": ")
        if processes.endswith(_EXAMPLE):
            text += _EXAMPLE
        text += f" ({counted(sum(note.rows for note in busy), 'row')})"
        lines.append(f"{text}; noisy times in {counted(noisy, 'row')}" if noisy else text)
    elif noise:
        text = noise[0].text
        if len(noise) > 1 and not text.endswith(_EXAMPLE):
            text += _EXAMPLE
        lines.append(f"Noisy times in {counted(noisy, 'row')}: {text}")
    for notes in by_code.values():
        for note in notes:
            if note.code == "missing":
                lines.append(f"No {note.text} ({counted(note.rows, 'row')})")
            elif note.code == "damaged_file":  # the path of a file
                lines.append(f"Damaged: {note.text}")
            elif note.code == "incomplete":
                lines.append(f"Incomplete: {note.text} ({counted(note.rows, 'row')})")
            else:
                lines.append(f"{_capital(note.text)} ({counted(note.rows, 'row')})")
    return lines


def noisy_rows(comparison: Comparison) -> int:
    """Return the number of rows whose times scatter."""
    return sum(any(warning.code in NOISE for warning in row.all_warnings) for row in comparison.rows)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _missing(comparison: Comparison) -> Iterator[Footnote]:
    """Yield one note per reason, with the titles of the metrics that it holds for."""
    titles: defaultdict[str, dict[str, None]] = defaultdict(dict)
    rows: defaultdict[str, set[str]] = defaultdict(set)
    names = {info.name for info in comparison.metrics}
    for info in comparison.metrics:
        if is_optional(info.name) or (info.name == "compute/macs" and "compute/macs_per_sample" in names):
            continue
        for row in comparison.rows:
            cell = row.cells.get(info.name)
            has_failed = cell is not None and cell.measurement.failure is not None  # which is shown with its location
            is_missing = value_of(row, info.name) is None and not is_of_other_mode([row], info.name)
            if row.has_values and is_missing and not has_failed:
                reason = reason_of(row, info.name)
                titles[reason][metric_title(info, comparison.rows)] = None
                rows[reason].add(row.combination_id)
    for reason, missing in titles.items():
        yield Footnote("missing", len(rows[reason]), f"{', '.join(missing)}: {reason}", "")


def _remarks(comparison: Comparison, row: Row, infos: Sequence[MetricInfo]) -> Iterator[tuple[str, str, str]]:
    """Yield code, text and advice of everything that limits the row."""
    for warning in row.all_warnings:
        yield warning.code, one_line(warning.text), one_line(warning.advice)
    if not row.has_values:
        return
    for info in infos:
        cell = row.cells.get(info.name)
        if cell is None or cell.ratio is None or cell.verdict not in ("unclear", "not_comparable"):
            continue
        # A value that is measured once says so itself; here it would be said of every sweep.
        if cell.verdict_reason != "measured_once":
            text, advice = _undecided(comparison, row, cell, comparison.threshold_of(info.name))
            yield cell.verdict_reason or cell.verdict, f"{UNCLEAR} {text}", advice


_ADVICE = {
    "incomplete_count": "give these operators a formula: sweeprof.operator_formula",
    "different_data": "evaluate both on the same samples",
    "not_by_round": "return a value that can be computed from one round",
}
"""By the code of a verdict's reason, where it is the same for every row."""


def _undecided(comparison: Comparison, row: Row, cell: Cell, threshold: float | None) -> tuple[str, str]:
    """Return text and advice for a value without a verdict better, worse or same."""
    code = cell.verdict_reason or cell.verdict or "unclear"
    if code == "no_threshold":
        return "undecided: there is no threshold", "set compare.thresholds, or use protocol=default"
    if code == "too_few_rounds":
        text, advice = _too_few_rounds(comparison, cell)
        return f"undecided: {text}", advice
    if code == "interval_crosses_threshold":
        # Of metrics with different thresholds the note is one.
        margin = "" if threshold is None or comparison.thresholds else f" of {percent(threshold)}"
        return f"undecided: the 95% interval of the ratio crosses the threshold{margin}", ""
    if code == "different_environment":
        changes = [f"{field} {spelled(before)} → {spelled(now)}" for field, (before, now) in row.differs.items()]
        return f"not comparable with the baseline: {one_line(', '.join(changes))}", same_environment(row)
    kind = "not comparable" if cell.verdict == "not_comparable" else "undecided"
    return f"{kind}: {REASONS.get(code, one_line(code))}", _ADVICE.get(code, "")


def _too_few_rounds(comparison: Comparison, cell: Cell) -> tuple[str, str]:
    """Return which side lacks rounds, and advice."""
    own, base = len(cell.measurement.rounds), cell.base_rounds
    if 0 in (own, base):
        return "only one of the two values was measured in rounds", "measure both again in the same way"
    more = f"at least {MIN_ROUNDS} rounds, e.g. protocol=default"
    # If each side was to be measured often enough, what is missing was interrupted or failed.
    is_interrupted = min(comparison.protocol.get("rounds") or [0]) >= MIN_ROUNDS
    if own < MIN_ROUNDS:
        side, text = "", f"{counted(own, 'round')} cannot distinguish a difference from chance"
    elif base is not None and base < MIN_ROUNDS:
        if comparison.against is not None:
            return f"the other sweep has only {counted(base, 'round')}", f"measure the other sweep again with {more}"
        side, text = "baseline", f"the baseline has only {counted(base, 'round')}"
    else:
        text = f"fewer than {MIN_ROUNDS} of its rounds were measured together with the baseline's"
        return text, "measure both again, in a sweep of their own"
    if not is_interrupted:
        return text, f"measure the {side} with {more}" if side else f"measure {more}"
    if comparison.running is not None:
        return text, _CONTINUES
    whose = f"{side}'s " if side else ""
    return text, f"measure the {whose}missing rounds: resume=DIR"


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
    git = env.get("git") or {}
    model = [cpu["model"]] if cpu.get("model") else []
    cores = ", ".join(f"{cpu[kind]} {kind}" for kind in ("logical", "physical") if cpu.get(kind))
    if cores:
        model.append(f"({cores} cores)")
    items = [
        ("host", env.get("host")),
        ("submitted from", env.get("submitted_from")),
        ("os", env.get("os")),
        ("cpu", " ".join(model)),
        ("cpu governor", cpu.get("governor")),
        ("cpu quota", cpu.get("quota")),
    ]
    if env.get("memory_bytes"):
        items.append(("memory", rounded(env["memory_bytes"], "B")))
    for gpu in env.get("gpus") or ():
        name = gpu.get("name", gpu) if isinstance(gpu, dict) else gpu
        items.append(("gpu", axis_text(name)))
    items.append(("load", ", ".join(map(str, env.get("load") or ()))))
    items.append(("python", env.get("python")))
    items += sorted((env.get("versions") or {}).items())
    if git.get("revision"):
        items.append(("git", f"{git['revision']} with uncommitted changes" if git.get("dirty") else git["revision"]))
    return [(one_line(str(name)), one_line(str(text))) for name, text in items if text not in (None, "")]


# The sections below a report's tables: the slowest layers, another sweep, verdicts, the Pareto front


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A title and its lines."""

    title: str
    lines: tuple[str, ...]


_MOST_LISTED = 20
"""Combinations that a report lists; ``comparison.csv`` has all of them."""


def sections(comparison: Comparison) -> list[ReportSection]:
    """Return the sections below a report's tables, in order, without those for which the comparison has no data."""
    base = baseline_text(comparison)
    tested = tests_text(comparison)
    found = [
        ("Slowest layers", _slowest_layers(comparison)),
        (f"Compared with {base}", against_lines(comparison)),
        ("Verdicts", [tested] if tested else []),
        _front(comparison),
    ]
    return [ReportSection(title, tuple(lines)) for title, lines in found if lines]


def _slowest_layers(comparison: Comparison) -> list[str]:
    """Return the five slowest calls of layers of the first combinations."""
    tell = combination_namer(comparison)
    lines = []
    for row in comparison.rows:
        cell = row.cells.get("layers/slowest_self_s")
        if cell is not None and "slowest" in cell.measurement.detail:
            lines.append(f"{tell(row.axes)}: {one_line(str(cell.measurement.detail['slowest']))}")
    return lines[:_MOST]


def _front(comparison: Comparison) -> tuple[str, list[str]]:
    rows = [row for row in sorted_rows(comparison) if row.on_front]
    # A front that every row is on says nothing, nor does the smallest batch.
    is_smallest = len(rows) == 1 and comparison.varying_axes() == (BATCH_AXIS,)
    if is_smallest or len(rows) == len(comparison.rows):
        return "", []
    infos = {info.name: info for info in comparison.metrics}
    titles = {infos[name]: metric_title(infos[name], comparison.rows) for name in comparison.pareto}
    title = ", ".join(name + ARROWS[info.better] for info, name in titles.items())
    # Of the rows that fulfil the constraints, or might if they were measured.
    candidates = [row for row in comparison.rows if not row.misses or not row.has_values]
    heading = f"Pareto front {measured_of(candidates, comparison.pareto)}".rstrip()
    tell = combination_namer(comparison)
    lines = []
    for row in rows[:_MOST_LISTED]:
        figures = []
        for info, name in titles.items():
            value = value_of(row, info.name)
            if value is not None:
                figures.append(f"{name} {rounded(value, text_unit(info.name, info.unit))}")
        place = tell(row.axes)
        if row.is_incomplete:
            place += f" ({rounds_text(row)})"
        lines.append(f"{place} – {', '.join(figures)}" if figures else place)
    if len(rows) > _MOST_LISTED:
        lines.append(f"and {len(rows) - _MOST_LISTED} more, in comparison.csv")
    return f"{heading}: {title}", lines
