"""A comparison as a comment in a pull request: the verdict first, what got worse and what failed, the rest folded away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sweeprof.numbers import MISSING
from sweeprof.report.answer import answer
from sweeprof.report.cells import verdict_note
from sweeprof.report.changes import SweepChange, figure_changes
from sweeprof.report.columns import baseline_text, called_metrics, metric_title
from sweeprof.report.markdown import Comment, code_block, row_cells, sanitised
from sweeprof.report.summary import (
    against_lines,
    combination_namer,
    environment_items,
    footnotes,
    headline,
    means_lines,
    protocol_text,
    tests_text,
    verdict_counts,
)
from sweeprof.report.table import ReportTable, TableRow, sorted_rows, tables
from sweeprof.results.comparison import Comparison, Row
from sweeprof.results.verdicts import Cell, Verdict

_MOST = 20
"""Rows of a table that is not folded, or that only details what the headline counts."""
_MORE = "Not every figure fits here: `comparison.csv` and `report.html` have them all."
Figure = tuple[SweepChange, Cell]
_ORDER: tuple[Verdict, ...] = ("worse", "better", "same", "unclear", "not_comparable")


def pull_request(comparison: Comparison, made: Sequence[ReportTable] | None = None) -> str:
    """GitHub Markdown of less than 65,536 characters, however large the sweep: what does not fit is counted.

    Throughput, which is the latency the other way up, is in the tables alone.

    Args:
        comparison: what was measured.
        made: its tables, where they are made already.
    """
    rows = sorted_rows(comparison)
    comment = Comment()
    titles = {info: metric_title(info, comparison.rows) for info in called_metrics(comparison)}
    tell = combination_namer(comparison)
    figures = [figure for row in rows for figure in figure_changes(comparison, row, tell(row.axes), titles)]
    figures.sort(key=lambda figure: -_size(figure[1]))
    comment.add(f"### {sanitised(comparison.name)}: {_verdicts(figures)}{headline(comparison)}")
    words = answer(comparison)
    parts = (words.finding, words.certainty, words.advice)  # the counts are in the title
    comment.add(sanitised(" ".join(part for part in parts if part), 2000))
    comment.add(" · ".join(filter(None, (_beside(comparison), sanitised(protocol_text(comparison), 1000)))))
    base = sanitised(baseline_text(comparison))
    now = "now" if comparison.against else "this"
    head = [*_left("combination", "metric"), (base, True), (now, True), ("ratio", True)]
    worse = [change for change, _ in figures if change.kind == "worse"]
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
        found = [figure for figure in figures if figure[0].kind == verdict]
        title = f"{verdict.replace('_', ' ').capitalize()} ({len(found)})"
        lines = ((*_cells(change), sanitised(verdict_note(cell), 200)) for change, cell in found)
        comment.table(title, [*head, *_left("why")], lines, len(found), _MOST)
    # What explains the figures is short, and would be the first to find no room after them.
    comment.add(_around(comparison))
    _all(comment, tables(comparison) if made is None else made)
    return comment.text()


def _left(*titles: str) -> list[tuple[str, bool]]:
    return [(title, False) for title in titles]


def _verdicts(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    counts = {verdict: sum(change.kind == verdict for change, _ in figures) for verdict in _ORDER}
    once = sum(change.reason == "measured_once" for change, _ in figures)
    return f"{verdict_counts(counts, once, [v for v in _ORDER if counts[v] or v == 'worse'])} – "


def _beside(comparison: Comparison) -> str:
    return f"Compared with {sanitised(baseline_text(comparison))}" if comparison.against or comparison.baseline else ""


def _size(cell: Cell) -> float:
    """How much worse or better, as a factor of at least 1; rounded, so that what looks equal stays in the order of the tables."""
    return round(max(cell.ratio, 1 / cell.ratio), 2) if cell.ratio and cell.ratio > 0 else float("inf")


def _cells(change: SweepChange) -> tuple[str, ...]:
    now = sanitised(change.now)
    return (sanitised(change.axes), sanitised(change.title), change.before, now, change.ratio or MISSING)


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
    cells = row_cells(line, table, sanitised)
    return cells if is_whole else [*cells, "incomplete" if line.row.is_incomplete else line.status]
