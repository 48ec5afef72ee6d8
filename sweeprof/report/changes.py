"""The changes between two sweeps, for a terminal, as Markdown and as JUnit; and any comparison as a comment in a pull request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    conditions,
    environment_items,
    footnotes,
    headline,
    means_lines,
    protocol_text,
    tests_text,
    verdict_counts,
)
from sweeprof.report.table import ReportTable, TableRow, sorted_rows, tables
from sweeprof.report.view import counted
from sweeprof.results.compared_rows import Comparison, Row, reason_of, value_of
from sweeprof.results.differences import Cell, Verdict
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.verdicts import REASONS, WITHOUT_ROUNDS
from sweeprof.text import one_line

ChangeKind = Verdict | Literal["missing", "new"]
KINDS: tuple[ChangeKind, ...] = ("worse", "missing", "not_comparable", "unclear", "better", "new")
"""In the order of the report; ``same`` is counted, not listed."""
_UNDECIDED = ("unclear", "not_comparable")


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
    """Conditions, protocol, thresholds, how many tests, and what to expect of them."""

    def of(self, kinds: Sequence[str]) -> list[SweepChange]:
        """The changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]


def changes_of(new: Comparison, metrics: Sequence[MetricInfo]) -> Changes:
    """Return the changes; ``new`` was compared with the other sweep, ``metrics`` are the ones to include."""
    tell = combination_namer(new)
    titles = {info: metric_title(info, new.rows) for info in metrics}
    changes: list[SweepChange] = []
    counts: Counter[str] = Counter(same=0)
    for row in sorted_rows(new):
        name = tell(row.axes)
        if row.baseline_id is None:
            changes.append(SweepChange("new", name, "status", "status", "not there", row.status))
            continue
        if row.baseline_status != row.status:
            kind: ChangeKind = "unclear"  # it fails otherwise
            if row.status == "ok":
                kind = "better"
            elif row.baseline_status == "ok":
                kind = "worse"
            now = f"{row.status}: {one_line(row.reason)}" if row.reason else row.status
            changes.append(SweepChange(kind, name, "status", "status", str(row.baseline_status), now))
        changes += [change for change, _ in figure_changes(new, row, name, titles) if change.kind != "same"]
        counts["same"] += sum(row.cells[i.name].verdict == "same" for i in metrics if i.name in row.cells)
    if new.against is not None:
        for axes in new.against.absent:
            changes.append(SweepChange("missing", tell(axes), "status", "status", "there", "not there"))
        for info in new.against.absent_metrics:
            title = metric_title(info, new.rows)
            changes.append(SweepChange("missing", "all", info.name, title, "measured", "not measured"))
    changes.sort(key=lambda change: KINDS.index(change.kind))
    counts.update(change.kind for change in changes)
    remarks = filter(None, (conditions(new), protocol_text(new, with_intervals=False), tests_text(new)))
    return Changes(answer(new), tuple(against_lines(new)), tuple(changes), dict(counts), tuple(remarks))


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
        if cell is None or cell.base is None:
            continue
        # No verdict is possible without rounds; what differs by the threshold at most is no change.
        threshold = comparison.threshold_of(info.name) or 0
        if cell.verdict_reason in WITHOUT_ROUNDS and cell.ratio is not None and abs(cell.ratio - 1) <= threshold:
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


def gate_text(changes: Changes, failing: Sequence[str]) -> str:
    """Return whether a comparison passes that fails on some kinds of changes, as a sentence; empty if it fails on none."""
    if not failing:
        return ""
    kinds = " or ".join(kind.replace("_", " ") for kind in failing)
    count = len(changes.of(failing))
    return f"Failed: {counted(count, 'change')} {kinds}." if count else f"Passed: no change {kinds}."


def grouped(changes: Sequence[SweepChange]) -> list[SweepChange]:
    """Return the changes, with the same change of several combinations as one."""
    names: dict[SweepChange, list[str]] = {}
    for change in changes:
        names.setdefault(replace(change, axes=""), []).append(change.axes)
    found = []
    for change, axes in names.items():
        found.append(replace(change, axes=axes[0] if len(axes) == 1 else f"{len(axes)} combinations"))
    return found


def print_changes(changes: Changes, title: str, out: Console, failing: Sequence[str] = ()) -> None:
    """Print the answer in words, then what changed, what is worse first; ``failing``: the kinds of changes that are failures."""
    gate = gate_text(changes, failing)
    if gate:
        out.print(Text(gate, style="bold red" if changes.of(failing) else "bold green"))
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
        for change in grouped(found):
            table.add_row(*map(Text, change_cells(change)))
        out.print(table)
    out.print()
    for line in changes.remarks:
        out.print(Text(line, style="dim"), soft_wrap=True)
    out.print(Text(changes_headline(changes), style="bold"))


def change_cells(change: SweepChange) -> tuple[str, ...]:
    """Return a change as texts: the combination, the metric, both values, the ratio, and why there is no verdict."""
    why = REASONS.get(change.reason or "", "") if change.kind in _UNDECIDED else ""
    return (change.axes, change.title, f"{change.before} → {change.now}", change.ratio, why)


def markdown(changes: Changes, title: str, failing: Sequence[str] = ()) -> str:
    """The same as GitHub Markdown, short enough for a comment or the summary of a job."""
    comment = Comment("the file of `--json`")
    gate = gate_text(changes, failing)
    if gate:
        comment.add(f"### {gate}")
    comment.add(f"**{sanitised(changes.answer.finding, 2000)}** {sanitised(changes.answer.rest, 2000)}")
    comment.add(f"{sanitised(title, 300)}: {changes_headline(changes)}.")
    comment.add("\n".join(f"- {sanitised(line, 300)}" for line in changes.lines))
    for line in changes.remarks:
        comment.add(sanitised(line, 1000))
    names = ("change", "combination", "metric", "before → now", "ratio", "why")
    shown = grouped(changes.changes)
    rows = [(change.kind, *(sanitised(cell, 300) for cell in change_cells(change))) for change in shown]
    head = [(name, name == "ratio") for name in names]
    comment.table("What changed", head, rows, fold=False)
    return comment.text()


# The changes between two sweeps as a JUnit report, which CI systems show as tests: one for each metric of each combination.


def junit(changes: Changes, compared: Comparison, failing: Sequence[str]) -> str:
    """Return the XML text.

    Args:
        changes: between the two sweeps.
        compared: the new sweep with the metrics that are compared, compared with the other one.
        failing: kinds of changes that are failures; an undecided one of another kind is skipped, everything else passes.
    """
    suite = ElementTree.Element("testsuite", name=one_line(f"sweeprof compare {compared.name}"))

    def add(combination: str, metric: str) -> ElementTree.Element:
        names = {"classname": one_line(combination), "name": one_line(metric)}
        return ElementTree.SubElement(suite, "testcase", names, time="0")

    for change in changes.changes:
        case = add(change.axes, change.title)
        text = one_line(f"{change.kind.replace('_', ' ')}: {', '.join(filter(None, change_cells(change)[2:]))}")
        if change.kind in failing:
            ElementTree.SubElement(case, "failure", type=change.kind, message=text)
        elif change.kind in _UNDECIDED:
            ElementTree.SubElement(case, "skipped", message=text)
        else:
            ElementTree.SubElement(case, "system-out").text = text
    tell = combination_namer(compared)
    for row in compared.rows:
        for info in compared.metrics:
            cell = row.cells.get(info.name)
            if cell is not None and cell.verdict == "same":
                add(tell(row.axes), metric_title(info, compared.rows))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


# A comparison as a comment in a pull request: the verdict first, what got worse and what failed, the rest folded away.


_MOST = 20
"""Rows of a table that is not folded, or that only details what the headline counts."""
_MORE = "Not every figure fits here: `comparison.csv` and `report.html` have them all."
_ORDER: tuple[Verdict, ...] = ("worse", "better", "same", "unclear", "not_comparable")


def pull_request(comparison: Comparison, made: Sequence[ReportTable] | None = None) -> str:
    """GitHub Markdown of less than 65,536 characters, however large the sweep: what does not fit is counted.

    Throughput, which is the latency the other way up, is in the tables alone.

    Args:
        comparison: what was measured.
        made: its tables, where they are made already.
    """
    tell = combination_namer(comparison)
    comment = Comment()
    titles = {info: metric_title(info, comparison.rows) for info in called_metrics(comparison)}
    figures: list[tuple[SweepChange, Cell]] = []
    failed: list[Row] = []
    for row in sorted_rows(comparison):
        figures += figure_changes(comparison, row, tell(row.axes), titles)
        if not row.has_values or row.failures:
            failed.append(row)
    figures.sort(key=lambda figure: -_size(figure[1]))
    title = f"### {sanitised(comparison.name)}: "
    if figures:
        counts = {verdict: sum(change.kind == verdict for change, _ in figures) for verdict in _ORDER}
        once = sum(change.reason == "measured_once" for change, _ in figures)
        shown = [verdict for verdict in _ORDER if counts[verdict] or verdict == "worse"]
        title += f"{verdict_counts(counts, once, shown)} – "
    comment.add(title + headline(comparison))
    words = answer(comparison)
    # The counts are in the title.
    comment.add(sanitised(" ".join(filter(None, (words.finding, words.certainty, words.advice))), 2000))
    protocol = [sanitised(conditions(comparison), 1000), sanitised(protocol_text(comparison), 1000)]
    if comparison.against or comparison.baseline:
        protocol.insert(0, f"Compared with {sanitised(baseline_text(comparison))}")
    comment.add(" · ".join(filter(None, protocol)))
    if words.best is not None:
        best = [list(map(sanitised, line)) for line in words.best.lines]
        count = len(best) + words.best.left_out
        comment.table("Best", _left(*map(sanitised, words.best.head)), best, _MOST, fold=False, count=count)
    now = "now" if comparison.against else "this"
    head = [*_left("combination", "metric"), (sanitised(baseline_text(comparison)), True), (now, True), ("ratio", True)]
    worse = [_cells(change) for change, _ in figures if change.kind == "worse"]
    comment.table(f"Worse ({len(worse)})", head, worse, _MOST, fold=False)
    _add_failed(comment, comparison, failed)
    if comparison.against is not None:
        changed = [f"- {sanitised(line, 300)}" for line in against_lines(comparison)]
        comment.add("\n".join(["**What changed**", "", *changed]))
    for verdict in ("better", *_UNDECIDED):
        rows = []
        for change, cell in figures:
            if change.kind == verdict:
                rows.append((*_cells(change), sanitised(verdict_note(cell), 200)))
        title = f"{verdict.replace('_', ' ').capitalize()} ({len(rows)})"
        comment.table(title, [*head, *_left("why")], rows, _MOST)
    # What explains the figures is short, and would be the first to find no room after them.
    comment.add(_explanation(comparison))
    _add_tables(comment, tables(comparison) if made is None else made)
    return comment.text()


def _add_failed(comment: Comment, comparison: Comparison, failed: Sequence[Row]) -> None:
    tell = combination_namer(comparison)
    fully = " fully" if any(row.has_values for row in failed) else ""
    lines = []
    for row in failed:
        status: str = "incomplete" if row.status == "ok" else row.status
        if comparison.against and row.baseline_status:
            status += f" (was {row.baseline_status})"
        lines.append((sanitised(tell(row.axes)), status, sanitised(row.reason or "no reason was given", 300)))
    head = _left("combination", "status", "why")
    comment.table(f"Not{fully} measured ({len(failed)})", head, lines, _MOST, fold=False)


def _add_tables(comment: Comment, made: Sequence[ReportTable]) -> None:
    """Add every combination, a table per model, as far as there is room."""
    are_all_shown = True
    for place, table in enumerate(made):
        columns = [(sanitised(column.title), column.numeric) for column in table.columns]
        rows = (row_cells(line, table, sanitised) for line in table.lines)
        if any(line.row.status != "ok" for line in table.lines):
            columns += _left("status")
            rows = (_with_status(line, table) for line in table.lines)
        title = f"{sanitised(table.title)}: all {len(table.lines)} combinations"
        # What a table leaves of its share is for those after it.
        are_all_shown &= comment.table(title, columns, rows, share=1 / (len(made) - place), count=len(table.lines))
    if not are_all_shown:
        comment.add(_MORE, is_last=True)


def _left(*titles: str) -> list[tuple[str, bool]]:
    return [(title, False) for title in titles]


def _with_status(line: TableRow, table: ReportTable) -> list[str]:
    status = "incomplete" if line.row.is_incomplete else line.status
    return [*row_cells(line, table, sanitised), status]


def _size(cell: Cell) -> float:
    """How much worse or better, as a factor of at least 1; rounded, so that what looks equal stays in the order of the tables."""
    return round(max(cell.ratio, 1 / cell.ratio), 2) if cell.ratio and cell.ratio > 0 else float("inf")


def _cells(change: SweepChange) -> tuple[str, ...]:
    ratio = change.ratio or MISSING
    return sanitised(change.axes), sanitised(change.title), change.before, sanitised(change.now), ratio


def _explanation(comparison: Comparison) -> str:
    """Return the text about the measurement: means, tests, remarks, environment, command."""
    texts = [*means_lines(comparison)[:_MOST], tests_text(comparison)]
    lines = [sanitised(text, 300) for text in texts if text]
    for note in footnotes(comparison)[:_MOST]:
        message = " – ".join(sanitised(text, 300) for text in (note.text, note.advice) if text)
        lines.append(f"{sanitised(note.code)} in {counted(note.rows, 'row')}: {message}")
    items = [f"{sanitised(name)} {sanitised(text)}" for name, text in environment_items(comparison)]
    if items:
        lines.append(" · ".join(items))
    parts = ["\n".join(f"- {line}" for line in lines)]
    if 0 < len(comparison.command) < 2000:
        parts.append(code_block(comparison.command))
    inside = "\n\n".join(filter(None, parts))
    return f"<details><summary>How it was measured</summary>\n\n{inside}\n\n</details>" if inside else ""
