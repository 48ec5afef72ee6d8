"""The changes between two sweeps, for a terminal, as Markdown and as JUnit; and any comparison as Markdown."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import quote
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweeprof.errors import ExitCode
from sweeprof.numbers import MISSING, rounded, rounded_percent, text_unit
from sweeprof.report.answer import Answer, answer
from sweeprof.report.columns import baseline_text, called_metrics, metric_title, ratio_text
from sweeprof.report.markdown import Comment, code_block, sanitised
from sweeprof.report.summary import (
    against_lines,
    combination_namer,
    conditions,
    environment_items,
    failures,
    footnotes,
    protocol_text,
    sections,
    tests_text,
)
from sweeprof.report.table import ReportTable, TableRow, sorted_rows, tables
from sweeprof.report.view import counted, first_few
from sweeprof.results.compared_rows import Comparison, Row, reason_of, value_of
from sweeprof.results.differences import Verdict
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.verdicts import NO_BASELINE, REASONS, WITHOUT_ROUNDS
from sweeprof.text import axes_text, one_line

ChangeKind = Verdict | Literal["missing", "new"]
KINDS: tuple[ChangeKind, ...] = ("worse", "missing", "not_comparable", "unclear", "better", "new")
"""In the order of the report; ``same`` is counted, not listed."""
_UNDECIDED = ("unclear", "not_comparable")
_UNIT = re.compile(r"[A-Za-z/µ%]*")
"""Units that mean nothing to Markdown."""


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
    factor: float | None = None
    """The value over the other one; None if there is none."""


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
    combinations: int
    """How many combinations are in both sweeps."""
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
        changes += [change for change in figure_changes(new, row, name, titles) if change.kind != "same"]
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
    matched = sum(row.baseline_id is not None for row in new.rows)
    return Changes(answer(new), tuple(against_lines(new)), tuple(changes), dict(counts), matched, tuple(remarks))


def figure_changes(
    comparison: Comparison, row: Row, name: str, titles: Mapping[MetricInfo, str]
) -> Iterator[SweepChange]:
    """Yield each figure of a row that has a verdict, or that is gone since another sweep.

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
        value = value_of(row, info.name)
        is_close = cell.ratio is not None and abs(cell.ratio - 1) <= threshold
        if cell.verdict_reason in WITHOUT_ROUNDS and (is_close or value == cell.base):
            continue
        unit = text_unit(info.name, info.unit)
        before = rounded(cell.base, unit)
        if value is not None and cell.verdict is not None:
            now, ratio = rounded(value, unit), ratio_text(cell)
            factor = cell.ratio if cell.ratio is not None and math.isfinite(cell.ratio) else None
            yield SweepChange(cell.verdict, name, info.name, title, before, now, ratio, cell.verdict_reason, factor)
        elif value is None and comparison.against is not None:
            # Within a sweep, what one backend reports and another does not is no change.
            reason = reason_of(row, info.name)
            kind: Verdict = "not_comparable" if reason == NO_BASELINE else "worse"
            yield SweepChange(kind, name, info.name, title, before, f"no value: {reason}")


_STYLES = {"worse": "bold red", "missing": "bold red", "better": "bold green"}


def changes_headline(changes: Changes) -> str:
    """E.g. ``3 worse, 1 better, 40 same``."""
    ordered = [*(kind for kind in KINDS if kind in changes.counts), "same"]
    return ", ".join(f"{changes.counts[kind]} {kind.replace('_', ' ')}" for kind in ordered)


_MOST_REASONS = 3
"""Reasons in the first line of a gate that fails."""
_LARGEST_FACTOR = 10
"""Beyond it a percentage says little."""


def gate_text(changes: Changes, failing: Sequence[str]) -> str:
    """Return whether a comparison passes that fails on some kinds of changes, and why not; empty if it fails on none.

    E.g. ``FAILED (exit 3): parameters and MACs grew 6 to 25% in all 8 combinations.``
    """
    if not failing:
        return ""
    reasons = []
    for kind in KINDS:
        if kind in failing:
            reasons += _reasons(changes, kind)
    if not reasons:
        return f"PASSED: no change {' or '.join(kind.replace('_', ' ') for kind in failing)}."
    shown = "; ".join(reasons[:_MOST_REASONS])
    if len(reasons) > _MOST_REASONS:
        shown += f"; and {len(reasons) - _MOST_REASONS} more"
    return f"FAILED (exit {int(ExitCode.CHANGED)}): {shown}."


def _reasons(changes: Changes, kind: ChangeKind) -> list[str]:
    """Return what changed so: metrics that changed in the same combinations together, and what has no percentage one by one."""
    moved: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    """By direction and metric: the change in percent of each combination."""
    others = []
    for change in changes.of([kind]):
        factor = change.factor
        if factor is None or factor == 1 or factor > _LARGEST_FACTOR or kind in _UNDECIDED:
            others.append(change)
        else:
            moved["grew" if factor > 1 else "fell", change.title][change.axes] = abs(factor - 1)
    alike: defaultdict[tuple[str, frozenset[str]], list[str]] = defaultdict(list)
    for (verb, title), figures in moved.items():
        alike[verb, frozenset(figures)].append(title)
    reasons = []
    for (verb, names), titles in alike.items():
        named = " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))
        shares = [share for title in titles for share in moved[verb, title].values()]
        low, high = rounded_percent(min(shares)), rounded_percent(max(shares))
        amount = high if low == high else f"{low.removesuffix('%')} to {high}"
        place = next(iter(names))
        if len(names) > 1:
            place = f"{len(names)} combinations"
            if len(names) == changes.combinations:
                place = "both combinations" if len(names) == 2 else f"all {place}"
        reasons.append(f"{named} {verb} {amount} in {place}")
    if len(others) == 1:
        reasons.append(": ".join(filter(None, (others[0].axes, *change_cells(others[0])[1:]))))
    elif others:
        reasons.append(f"{len(others)} changes {kind.replace('_', ' ')}")
    return reasons


def grouped(changes: Sequence[SweepChange]) -> list[SweepChange]:
    """Return the changes, with the same change of several combinations as one."""
    names: dict[SweepChange, list[str]] = {}
    for change in changes:
        names.setdefault(replace(change, axes="", factor=None), []).append(change.axes)
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
        out.print(Text(f"{kind.replace('_', ' ').capitalize()} ({len(found)})", style=_STYLES.get(kind, "bold")))
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


_HEAD = [(name, name == "ratio") for name in ("combination", "metric", "baseline → this", "ratio", "why")]
"""Titles of the texts of a change, each with whether it is a number."""


def change_cells(change: SweepChange) -> tuple[str, ...]:
    """Return a change as texts: the combination, the metric, both values, the ratio, and why there is no verdict."""
    why = REASONS.get(change.reason or "", "") if change.kind in _UNDECIDED else ""
    return (change.axes, change.title, f"{change.before} → {change.now}", change.ratio, why)


def markdown(changes: Changes, title: str, failing: Sequence[str] = ()) -> str:
    """The same as GitHub Markdown, short enough for a comment or the summary of a job."""
    comment = Comment("the file of `--json`")
    gate = gate_text(changes, failing)
    if gate:
        comment.add(f"### {sanitised(gate, 500)}")
    comment.add(f"**{sanitised(changes.answer.finding, 2000)}** {sanitised(changes.answer.rest, 2000)}")
    comment.add(f"{sanitised(title, 300)}: {changes_headline(changes)}.")
    comment.add("\n".join(f"- {sanitised(line, 300)}" for line in changes.lines))
    for line in changes.remarks:
        comment.add(sanitised(line, 1000))
    shown = grouped(changes.changes)
    rows = [(change.kind, *(sanitised(cell, 300) for cell in change_cells(change))) for change in shown]
    comment.table("What changed", [("change", False), *_HEAD], rows, fold=False)
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


# Any comparison as GitHub Markdown: the answer first, what got worse and what failed, the rest folded where it is long.


_MOST = 20
"""Rows of a table that only details what the first lines say."""
_MOST_NAMED = 3
"""Combinations that failed for one reason."""
_FEW = 40
"""Combinations whose tables are not folded."""
_MORE = "Not every figure fits here: `comparison.csv` and `report.html` have them all."


def comparison_markdown(comparison: Comparison, made: Sequence[ReportTable] | None = None) -> str:
    """GitHub Markdown of less than 65,536 characters, however large the sweep: what does not fit is counted.

    For a comment in a pull request, an issue, or the description of a tracker, which folds all but the first paragraph.

    Args:
        comparison: what was measured.
        made: its tables, where they are made already.
    """
    tell = combination_namer(comparison)
    comment = Comment()
    words = answer(comparison)
    comment.add(f"**{sanitised(words.finding, 2000)}** {sanitised(words.rest, 2000)}")
    about = [conditions(comparison), protocol_text(comparison)]
    base = sanitised(baseline_text(comparison))
    if comparison.against or comparison.baseline:
        about.insert(0, f"Compared with {baseline_text(comparison)}")
    comment.add(" · ".join(sanitised(text, 1000) for text in about if text))
    if words.best is not None:
        best = [list(map(sanitised, line)) for line in words.best.lines]
        count = len(best) + words.best.left_out
        comment.table("Best", _left(*map(sanitised, words.best.head)), best, _MOST, fold=False, count=count)
    titles = {info: metric_title(info, comparison.rows) for info in called_metrics(comparison)}
    worse: list[SweepChange] = []
    for row in sorted_rows(comparison):
        found = figure_changes(comparison, row, tell(row.axes), titles)
        worse += [change for change in found if change.kind == "worse"]
    worse.sort(key=lambda change: -_size(change.factor))
    lines = [list(map(sanitised, change_cells(change)[:-1])) for change in grouped(worse)]
    comment.table(f"Worse than {base} ({len(worse)})", _HEAD[:-1], lines, _MOST, fold=False)
    _add_failures(comment, comparison)
    for section in sections(comparison):
        listed = [f"- {sanitised(line, 300)}" for line in section.lines]
        comment.add("\n".join([f"**{sanitised(section.title, 300)}**", "", *listed]))
    # What explains the figures is short, and would be the first to find no room after them.
    comment.add(_explanation(comparison))
    _add_tables(comment, tables(comparison) if made is None else made, len(comparison.rows) > _FEW)
    return comment.text()


def _add_failures(comment: Comment, comparison: Comparison) -> None:
    """Add what was not measured, a line for each cause; the HTML page has the tracebacks."""
    lines = []
    for one in failures(comparison):
        names = sanitised(first_few([name for _, name in one.rows], _MOST_NAMED, "; "), 300)
        log = f" ([log]({quote(one.log)}))" if one.log else ""
        lines.append((one.status, f"{sanitised(one.reason, 300)}{log}", f"{len(one.rows)}: {names}"))
    comment.table("Not measured, or not fully", _left("status", "why", "combinations"), lines, _MOST, fold=False)


def _add_tables(comment: Comment, made: Sequence[ReportTable], are_folded: bool) -> None:
    """Add every combination, a table per model, as far as there is room."""
    are_all_shown = True
    for place, table in enumerate(made):
        columns = [(sanitised(column.title), column.numeric) for column in table.columns]
        has_status = any(line.row.status != "ok" for line in table.lines)
        if has_status:
            columns += _left("status")
        rows = (_cells(line, table, has_status) for line in table.lines)
        title = f"{sanitised(table.title)}: {counted(len(table.lines), 'combination')}"
        if table.captions:
            title += "; " + " · ".join(f"{sanitised(name)} {sanitised(value)}" for name, value in table.captions)
        # What a table leaves of its share is for those after it.
        share = 1 / (len(made) - place)
        are_all_shown &= comment.table(title, columns, rows, fold=are_folded, share=share, count=len(table.lines))
    if not are_all_shown:
        comment.add(_MORE, is_last=True)


def _left(*titles: str) -> list[tuple[str, bool]]:
    return [(title, False) for title in titles]


def _cells(line: TableRow, table: ReportTable, has_status: bool) -> list[str]:
    """Return the cells of a row; of one without values only the axes and the status have texts."""
    cells = []
    for column, entry in zip(table.columns, line.entries, strict=True):
        text = entry.text if column.kind == "axis" or line.failure is None else MISSING
        cell = line.row.cells.get(column.key)
        # Layers and units of one's own are any text, too.
        names_layer = cell is not None and "layer" in cell.measurement.detail
        has_own_unit = cell is not None and not _UNIT.fullmatch(cell.measurement.unit)
        cells.append(sanitised(text) if column.kind == "axis" or names_layer or has_own_unit else text)
    if has_status:
        cells.append("incomplete" if line.row.is_incomplete else line.row.status)
    return cells


def _size(factor: float | None) -> float:
    """How much worse, as a factor of at least 1; rounded, so that what looks equal stays in the order of the tables."""
    return round(max(factor, 1 / factor), 2) if factor is not None and factor > 0 else math.inf


def _explanation(comparison: Comparison) -> str:
    """Return the text about the measurement: remarks, what was excluded, environment, command."""
    lines = []
    for note in footnotes(comparison)[:_MOST]:
        message = " – ".join(sanitised(text, 300) for text in (note.text, note.advice) if text)
        lines.append(f"{sanitised(note.code)} in {counted(note.rows, 'row')}: {message}")
    excluded = [f"{axes_text(item.axes)} ({one_line(item.reason)})" for item in comparison.excluded]
    if excluded:
        lines.append(f"excluded: {sanitised(first_few(excluded, _MOST, '; '), 2000)}")
    items = [f"{sanitised(name)} {sanitised(text)}" for name, text in environment_items(comparison)]
    if items:
        lines.append(" · ".join(items))
    parts = ["\n".join(f"- {line}" for line in lines)]
    if 0 < len(comparison.command) < 2000:
        parts.append(code_block(comparison.command))
    inside = "\n\n".join(filter(None, parts))
    return f"<details><summary>How it was measured</summary>\n\n{inside}\n\n</details>" if inside else ""
