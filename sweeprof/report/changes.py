"""The changes between two sweeps: a pure function of a sweep that was compared with another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeprof.numbers import MISSING, rounded, text_unit
from sweeprof.report.answer import Answer, answer
from sweeprof.report.columns import baseline_text, called_metrics, metric_title, ratio_text, verdict_note
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
from sweeprof.results.comparison import Cell, Comparison, Row, reason_of, value_of
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.verdicts import REASONS, WITHOUT_ROUNDS, Verdict
from sweeprof.text import one_line

ChangeKind = Verdict | Literal["missing", "new"]
KINDS: tuple[ChangeKind, ...] = ("worse", "missing", "not_comparable", "unclear", "better", "new")
"""In the order of the report; ``same`` is counted, not listed."""


@dataclass(frozen=True, slots=True)
class SweepChange:
    """One figure, or one combination, beside the other sweep's or the baseline's."""

    kind: ChangeKind
    axes: str
    """The combination, by the axes that tell it from others."""
    metric: str
    """Canonical name; ``status`` where the whole combination changed."""
    title: str
    before: str
    now: str
    ratio: str = ""
    """With its interval and verdict."""
    reason: str | None = None
    """Code of the verdict's reason."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that a comparison of two sweeps says."""

    answer: Answer
    """The comparison in words."""
    lines: tuple[str, ...]
    """Lines about the two sweeps, and changes of settings and environment."""
    changes: tuple[SweepChange, ...]
    counts: dict[str, int]
    """Verdicts and kinds of changes, how many of each."""
    remarks: tuple[str, ...]
    """Protocol, thresholds, how many tests, and what to expect of them."""

    def of(self, kinds: Sequence[str]) -> list[SweepChange]:
        """The changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]


def changes_of(new: Comparison, metrics: Sequence[MetricInfo]) -> Changes:
    """Return the changes; ``new`` was compared with the other sweep, ``metrics`` are the ones to include."""
    found = sorted(_changes(new, metrics), key=lambda change: KINDS.index(change.kind))
    same = sum(
        1 for row in new.rows for i in metrics if (cell := row.cells.get(i.name)) is not None and cell.verdict == "same"
    )
    counts: Counter[str] = Counter(change.kind for change in found)
    counted = {"same": same, **counts}
    remarks = tuple(text for text in (protocol_text(new, with_intervals=False), tests_text(new)) if text)
    return Changes(answer(new), tuple(against_lines(new)), tuple(found), counted, remarks)


def _changes(new: Comparison, metrics: Sequence[MetricInfo]) -> Iterator[SweepChange]:
    tell = combination_namer(new)
    titles = {info: metric_title(info, new.rows) for info in metrics}
    for row in sorted_rows(new):
        name = tell(row.axes)
        if row.baseline_id is None:
            yield SweepChange("new", name, "status", "status", "not there", row.status)
            continue
        if row.baseline_status != row.status:
            yield _status_change(row, name)
        yield from (change for change, _ in figure_changes(new, row, name, titles) if change.kind != "same")
    for axes in new.against.absent if new.against else ():
        yield SweepChange("missing", tell(axes), "status", "status", "there", "not there")
    for info in new.against.absent_metrics if new.against else ():
        yield SweepChange("missing", "all", info.name, metric_title(info, new.rows), "measured", "not measured")


def _status_change(row: Row, name: str) -> SweepChange:
    """Return a row's change of status: "worse" if it stopped working, "better" if it works now, "unclear" if it fails otherwise."""
    kind: ChangeKind = "better" if row.status == "ok" else "worse" if row.baseline_status == "ok" else "unclear"
    now = f"{row.status}: {one_line(row.reason)}" if row.reason else row.status
    return SweepChange(kind, name, "status", "status", str(row.baseline_status), now)


def _is_alike(cell: Cell, threshold: float | None) -> bool:
    """True if a value without rounds, for which no verdict is possible, differs from the baseline's by the threshold at most."""
    if cell.verdict_reason not in WITHOUT_ROUNDS or cell.ratio is None:
        return False
    return abs(cell.ratio - 1) <= (threshold or 0)


def figure_changes(
    comparison: Comparison, row: Row, name: str, titles: Mapping[MetricInfo, str]
) -> Iterator[tuple[SweepChange, Cell]]:
    """Yield each figure of a row that has a verdict, or that is gone since another sweep; with its cell.

    Args:
        comparison: of the row.
        row: the row; nothing for a baseline, or if either side has no values.
        name: of the combination.
        titles: of the metrics to include.
    """
    if row.is_baseline or not row.has_values or not row.baseline_has_values:
        return
    for info, title in titles.items():
        cell = row.cells.get(info.name)
        if cell is None or cell.base is None or _is_alike(cell, comparison.threshold_of(info.name)):
            continue
        unit = text_unit(info.name, info.unit)
        before = rounded(cell.base, unit)
        value = value_of(row, info.name)
        if value is not None and cell.verdict is not None:
            now, ratio = rounded(value, unit), ratio_text(cell)
            yield SweepChange(cell.verdict, name, info.name, title, before, now, ratio, cell.verdict_reason), cell
        elif value is None and comparison.against is not None:
            # Within a sweep, what one backend reports and another does not is no change.
            yield SweepChange("worse", name, info.name, title, before, f"no value: {reason_of(row, info.name)}"), cell


_TITLES = {
    "worse": "Worse",
    "missing": "Missing",
    "not_comparable": "Not comparable",
    "unclear": "Unclear",
    "better": "Better",
    "new": "New",
}
_STYLES = {"worse": "bold red", "missing": "bold red", "better": "bold green"}


def changes_headline(changes: Changes) -> str:
    """E.g. ``3 worse, 1 better, 40 same``."""
    ordered = [*(kind for kind in KINDS if kind in changes.counts), "same"]
    return ", ".join(f"{changes.counts[kind]} {kind.replace('_', ' ')}" for kind in ordered)


def print_changes(changes: Changes, title: str, out: Console) -> None:
    """Print the answer in words, then what changed, what is worse first."""
    out.print(Text(changes.answer.finding, style="bold"))
    out.print(Text(changes.answer.rest))
    out.print(Text(title), soft_wrap=True)
    for line in changes.lines:
        out.print(Text(line, style="dim"), soft_wrap=True)
    for kind in KINDS:
        found = changes.of([kind])
        if not found:
            continue
        out.print()
        out.print(Text(f"{_TITLES[kind]} ({len(found)})", style=_STYLES.get(kind, "bold")))
        table = Table(box=None, show_header=False, pad_edge=False)
        for _ in range(5):
            table.add_column(overflow="fold")
        for change in found:
            table.add_row(*map(Text, change_cells(change)))
        out.print(table)
    out.print()
    for line in changes.remarks:
        out.print(Text(line, style="dim"), soft_wrap=True)
    out.print(Text(changes_headline(changes), style="bold"))


def change_cells(change: SweepChange) -> tuple[str, ...]:
    """Return a change as texts: the combination, the metric, both values, the ratio, and why there is no verdict."""
    why = REASONS.get(change.reason or "", "") if change.kind in ("unclear", "not_comparable") else ""
    return (change.axes, change.title, f"{change.before} → {change.now}", change.ratio, why)


def markdown(changes: Changes, title: str) -> str:
    """The same as GitHub Markdown, short enough for a comment or the summary of a job."""
    comment = Comment("the file of `--json`")
    comment.add(f"**{sanitised(changes.answer.finding, 2000)}** {sanitised(changes.answer.rest, 2000)}")
    comment.add(f"{sanitised(title, 300)}: {changes_headline(changes)}.")
    comment.add("\n".join(f"- {sanitised(line, 300)}" for line in changes.lines))
    for line in changes.remarks:
        comment.add(sanitised(line, 1000))
    names = ("change", "combination", "metric", "before → now", "ratio", "why")
    rows = ((change.kind, *(sanitised(cell, 300) for cell in change_cells(change))) for change in changes.changes)
    head = [(name, name == "ratio") for name in names]
    comment.table("What changed", head, rows, len(changes.changes), fold=False)
    return comment.text()


# The changes between two sweeps as a JUnit report, which CI systems show as tests: one for each metric of each combination.


_UNDECIDED = ("unclear", "not_comparable")


def junit(changes: Changes, compared: Comparison, failing: Sequence[str]) -> str:
    """Return the XML text.

    Args:
        changes: between the two sweeps.
        compared: the new sweep with the metrics that are compared, compared with the other one.
        failing: kinds of changes that are failures; an undecided one of another kind is skipped, everything else passes.
    """
    suite = ElementTree.Element("testsuite", name=one_line(f"sweeprof compare {compared.name}"))
    for change in changes.changes:
        _add_change(suite, change, failing)
    tell = combination_namer(compared)
    for row in compared.rows:
        for info in compared.metrics:
            cell = row.cells.get(info.name)
            if cell is not None and cell.verdict == "same":
                _add(suite, tell(row.axes), metric_title(info, compared.rows))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _add_change(suite: ElementTree.Element, change: SweepChange, failing: Sequence[str]) -> None:
    case = _add(suite, change.axes, change.title)
    kind = change.kind.replace("_", " ")
    text = ": ".join([kind, ", ".join(filter(None, change_cells(change)[2:]))])
    if change.kind in failing:
        ElementTree.SubElement(case, "failure", type=change.kind, message=one_line(text))
    elif change.kind in _UNDECIDED:
        ElementTree.SubElement(case, "skipped", message=one_line(text))
    else:
        ElementTree.SubElement(case, "system-out").text = one_line(text)


def _add(suite: ElementTree.Element, combination: str, metric: str) -> ElementTree.Element:
    return ElementTree.SubElement(suite, "testcase", classname=one_line(combination), name=one_line(metric), time="0")


# A comparison as a comment in a pull request: the verdict first, what got worse and what failed, the rest folded away.


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
