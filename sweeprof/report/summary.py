"""The text around a report's tables: headline, best rows, footnotes, environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sweeprof.numbers import rounded
from sweeprof.report.cells import UNCLEAR, measured_of, value_text
from sweeprof.report.columns import MODEL_AXIS, is_optional, shown_metrics
from sweeprof.report.table import rows_by_table
from sweeprof.report.verdict_summary import percent, settling_text
from sweeprof.results.compare import (
    DEVIATION,
    MIN_ROUNDS,
    Cell,
    Comparison,
    Row,
    is_training,
    reason_of,
    spelled,
    value_of,
)
from sweeprof.results.constraints import Direction, best_row
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.verdicts import REASONS
from sweeprof.text import axis_text, one_line

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
