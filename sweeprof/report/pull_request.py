"""A comparison as a comment in a pull request: the verdict first, what got worse and what failed, the rest folded away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sweeprof.numbers import MISSING, rounded, text_unit
from sweeprof.report.answer import answer
from sweeprof.report.cells import ratio_text, verdict_note
from sweeprof.report.columns import baseline_text, called_metrics, metric_title
from sweeprof.report.markdown import Comment, code_block, sanitised
from sweeprof.report.summary import environment_items, footnotes, headline
from sweeprof.report.table import ReportTable, TableRow, sorted_rows, tables
from sweeprof.report.verdict_summary import (
    against_lines,
    combination_namer,
    means_lines,
    protocol_text,
    tests_text,
    verdict_counts,
)
from sweeprof.results.compare import Comparison, Row, reason_of, value_of
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.verdicts import WITHOUT_ROUNDS, Cell, Verdict

_MOST = 20
"""Rows of a table that is not folded, or that only details what the headline counts."""
_MORE = "Not every figure fits here: `comparison.csv` and `report.html` have them all."
_ORDER: tuple[Verdict, ...] = ("worse", "better", "same", "unclear", "not_comparable")


@dataclass(frozen=True, slots=True)
class _Difference:
    """One figure beside the baseline's."""

    verdict: Verdict
    name: str
    """The combination."""
    title: str
    """The metric."""
    before: str
    now: str
    ratio: str
    why: str
    size: float
    """How much worse or better, as a factor of at least 1; sorts."""
    is_measured_once: bool = False
    """True if there is no verdict because it was measured in a single process."""


def pull_request(comparison: Comparison, made: Sequence[ReportTable] | None = None) -> str:
    """GitHub Markdown of less than 65,536 characters, however large the sweep: what does not fit is counted.

    Throughput, which is the latency the other way up, is in the tables alone.

    Args:
        comparison: what was measured.
        made: its tables, where they are made already.
    """
    rows = sorted_rows(comparison)
    comment, calls = Comment(), _calls(comparison, rows)
    comment.add(f"### {sanitised(comparison.name)}: {_verdicts(calls)}{headline(comparison)}")
    words = answer(comparison)
    parts = (words.finding, words.certainty, words.advice)  # the counts are in the title
    comment.add(sanitised(" ".join(part for part in parts if part), 2000))
    comment.add(" · ".join(filter(None, (_beside(comparison), sanitised(protocol_text(comparison), 1000)))))
    base = sanitised(baseline_text(comparison))
    now = "now" if comparison.against else "this"
    head = [*_left("combination", "metric"), (base, True), (now, True), ("ratio", True)]
    by_verdict = {v: sorted((c for c in calls if c.verdict == v), key=lambda c: -c.size) for v in _ORDER}
    worse = by_verdict["worse"]
    comment.table(f"Worse ({len(worse)})", head, map(_cells, worse), len(worse), _MOST, fold=False)
    failed = [row for row in rows if not row.has_values or row.failures]
    fully = " fully" if any(row.has_values for row in failed) else ""
    title, why = f"Not{fully} measured ({len(failed)})", _left("combination", "status", "why")
    comment.table(title, why, _failures(comparison, failed), len(failed), _MOST, fold=False)
    if comparison.against is not None:
        comment.add(
            "\n".join(["**What changed**", "", *(f"- {sanitised(line, 300)}" for line in against_lines(comparison))])
        )
    for verdict in ("better", "unclear", "not_comparable"):
        found = by_verdict[verdict]
        title = f"{verdict.replace('_', ' ').capitalize()} ({len(found)})"
        lines = ((*_cells(call), sanitised(call.why, 200)) for call in found)
        comment.table(title, [*head, *_left("why")], lines, len(found), _MOST)
    # What explains the figures is short, and would be the first to find no room after them.
    comment.add(_around(comparison))
    _all(comment, tables(comparison) if made is None else made)
    return comment.text()


def _left(*titles: str) -> list[tuple[str, bool]]:
    return [(title, False) for title in titles]


def _verdicts(calls: Sequence[_Difference]) -> str:
    if not calls:
        return ""
    counts = Counter(call.verdict for call in calls)
    once = sum(call.is_measured_once for call in calls)
    return f"{verdict_counts(counts, once, [v for v in _ORDER if counts[v] or v == 'worse'])} – "


def _beside(comparison: Comparison) -> str:
    return f"Compared with {sanitised(baseline_text(comparison))}" if comparison.against or comparison.baseline else ""


def _calls(comparison: Comparison, rows: Sequence[Row]) -> list[_Difference]:
    infos = called_metrics(comparison)
    titles = {info.name: metric_title(info, comparison.rows) for info in infos}
    tell = combination_namer(comparison)
    found = []
    for row in rows:
        if row.baseline_id is None or row.is_baseline or not row.has_values or not row.baseline_has_values:
            continue
        name = tell(row.axes)
        found += [call for info in infos if (call := _call(comparison, row, info, name, titles)) is not None]
    return found


def _call(
    comparison: Comparison, row: Row, info: MetricInfo, name: str, titles: Mapping[str, str]
) -> _Difference | None:
    cell = row.cells.get(info.name)
    if cell is None or cell.base is None or _is_alike(cell, comparison.threshold_of(info.name)):
        return None
    unit, title = text_unit(info.name, info.unit), titles[info.name]
    before, value = rounded(cell.base, unit), value_of(row, info.name)
    if value is None:
        # Within a sweep, what one backend tells and another does not is no change.
        lost = comparison.against is not None
        why = reason_of(row, info.name)
        return (
            _Difference("worse", name, title, before, f"no value: {why}", MISSING, "", float("inf")) if lost else None
        )
    if cell.verdict is None:
        return None
    # Rounded, so that what is alike to a reader stays in the order of the tables.
    size = round(max(cell.ratio, 1 / cell.ratio), 2) if cell.ratio and cell.ratio > 0 else float("inf")
    return _Difference(
        cell.verdict,
        name,
        title,
        before,
        rounded(value, unit),
        ratio_text(cell),
        verdict_note(cell),
        size,
        cell.verdict_reason == "measured_once",
    )


def _is_alike(cell: Cell, threshold: float | None) -> bool:
    """True if a value without rounds, for which no verdict is possible, differs from the baseline's by the threshold at most."""
    return cell.verdict_reason in WITHOUT_ROUNDS and cell.ratio is not None and abs(cell.ratio - 1) <= (threshold or 0)


def _cells(call: _Difference) -> tuple[str, ...]:
    return (sanitised(call.name), sanitised(call.title), call.before, sanitised(call.now), call.ratio)


def _failures(comparison: Comparison, failed: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    tell = combination_namer(comparison)
    for row in failed:
        was = f" (was {row.baseline_status})" if comparison.against and row.baseline_status else ""
        status = "incomplete" if row.status == "ok" else row.status
        yield sanitised(tell(row.axes)), f"{status}{was}", sanitised(row.reason or "no reason was given", 300)


def _around(comparison: Comparison) -> str:
    """Return the text about the measurement: means, tests, remarks, environment, command."""
    lines = [f"- {sanitised(line, 300)}" for line in [*means_lines(comparison)[:_MOST], tests_text(comparison)] if line]
    for note in footnotes(comparison)[:_MOST]:
        message = " – ".join(sanitised(text, 300) for text in (note.text, note.advice) if text)
        lines.append(f"- {sanitised(note.code)} in {note.rows} {'row' if note.rows == 1 else 'rows'}: {message}")
    items = environment_items(comparison)
    if items:
        lines.append(f"- {' · '.join(f'{sanitised(name)} {sanitised(text)}' for name, text in items)}")
    command = code_block(comparison.command) if 0 < len(comparison.command) < 2000 else ""
    inside = "\n\n".join(filter(None, ("\n".join(lines), command)))
    return f"<details><summary>How it was measured</summary>\n\n{inside}\n\n</details>" if inside else ""


def _all(comment: Comment, found: Sequence[ReportTable]) -> None:
    """Every combination, a table per model, as far as there is room."""
    left = False
    for place, table in enumerate(found):
        is_whole = all(line.row.status == "ok" for line in table.lines)
        head = [(sanitised(c.title), c.numeric) for c in table.columns] + ([] if is_whole else _left("status"))
        rows, count = (_row(line, table, is_whole) for line in table.lines), len(table.lines)
        title = f"{sanitised(table.title)}: all {count} combinations"
        # What a table leaves of its share is for those after it.
        left |= not comment.table(title, head, rows, count, share=1 / (len(found) - place))
    if left:
        comment.add(_MORE, is_last=True)


def _row(line: TableRow, table: ReportTable, is_whole: bool) -> list[str]:
    cells = [
        sanitised(entry.text) if column.kind == "axis" else entry.text if line.failure is None else MISSING
        for column, entry in zip(table.columns, line.entries, strict=True)
    ]
    return cells if is_whole else [*cells, "incomplete" if line.row.is_incomplete else line.status]
