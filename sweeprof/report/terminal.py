"""The tables on a terminal: aligned text that keeps to the width, with words where colours say more."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from sweeprof.report.answer import answer, best_of_all
from sweeprof.report.columns import Column
from sweeprof.report.fitting import GAP, fitted_lines, padded, with_rule
from sweeprof.report.summary import (
    MOST_FAILURES,
    FailedRows,
    conditions,
    failures,
    protocol_text,
    sections,
    short_notes,
)
from sweeprof.report.table import ReportTable, TableCell, TableRow, tables
from sweeprof.report.view import first_few
from sweeprof.results.compared_rows import Comparison
from sweeprof.text import axes_text, console, one_line, shortened

_AXIS_LIMIT = 24
"""Cells that one axis value may take; longer names lose their middle."""
_MAIN_FIGURES = 4
"""Columns of figures that are worth more than the intervals of values whose ratio has a column."""
_MOST_CASES = 12
"""Lines of the table of the best; the page has all."""
_MOST_CAUSES, _MOST_NAMED = 2, 2
"""Failures that the first lines tell, and rows of each that are named."""
_LONGEST_REASON = 120
_FIGURES = ("value", "ratio")
_INTERVAL = re.compile(r" \[[^]]*\]")
_NARROWEST = 20
_STYLES = {"better": "green", "worse": "yellow", "unclear": "dim", "not_comparable": "dim", "same": "", None: ""}
_FAILED = "red"
_ASCII = str.maketrans("↓↑×–−µ·…─→✓✗", "v^x--u|~->yn") | {ord("≥"): ">="}
"""What a terminal without Unicode shows; every stand-in that is aligned takes as many cells."""


@dataclass(frozen=True, slots=True)
class Report:
    """A rich renderable: the answer, one table per model, errors with their locations and logs, notes.

    On a terminal that is not high enough for all of it, the answer is repeated at the end.
    """

    comparison: Comparison
    folder: Path | None = None
    """Of the sweep, for the full paths of logs."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width, _NARROWEST)
        height = 0
        for text in self._parts(width):
            height += len(text.wrap(console, options.max_width))
            yield _encodable(text, options)
        if console.is_terminal and height > console.height:
            # The first lines are out of sight.
            yield Text()
            for text in self._answer(width):
                yield _encodable(text, options)

    def _answer(self, width: int) -> Iterator[Text]:
        found = answer(self.comparison)
        yield Text(found.finding, style="bold")
        yield Text(found.rest)
        for one in failures(self.comparison)[:_MOST_CAUSES]:
            yield _failure(one, _LONGEST_REASON)
        for line in filter(None, (conditions(self.comparison), protocol_text(self.comparison))):
            yield Text(line, style="dim")
        row = best_of_all(self.comparison)
        if row is not None and row.command and len(self.comparison.rows) > 1:
            yield Text.assemble(("Repeat one row: ", "bold"), one_line(row.command))
        if found.best is not None:
            yield Text()
            head, *lines = with_rule([found.best.head, *found.best.lines[:_MOST_CASES]], [False] * len(found.best.head))
            yield _cut(Text(head, style="bold"), width)
            yield from (_cut(Text(line), width) for line in lines)
            hidden = found.best.left_out + max(0, len(found.best.lines) - _MOST_CASES)
            if hidden:
                yield Text(f"and {hidden:,} more in report.html", style="dim")

    def _parts(self, width: int) -> Iterator[Text]:
        yield from self._answer(width)
        shown, note = _fitting(tables(self.comparison), width)
        for lines in shown:
            yield Text()
            yield from lines
        if note:
            yield Text(note, style="dim")
        for section in sections(self.comparison):
            yield Text()
            yield Text(section.title, style="bold")
            yield from map(Text, section.lines)
        yield from self._errors()
        excluded = self.comparison.excluded
        notes = short_notes(self.comparison)
        notes += [f"Excluded: {axes_text(item.axes)} ({one_line(item.reason)})" for item in excluded]
        if notes:
            yield Text()
        yield from (Text(note, style="dim") for note in notes)

    def _errors(self) -> Iterator[Text]:
        """Every error in full: in the tables a row ends with the line."""
        found = [one for one in failures(self.comparison) if one.traceback or one.log or one.status == "incomplete"]
        if found:
            yield Text()
        for one in found[:MOST_FAILURES]:
            yield _failure(one)
            if one.log:
                log = one.log if self.folder is None else str(self.folder / one.log)
                yield Text(f"  log: {log}", style="dim", no_wrap=True, overflow="ignore")
        if len(found) > MOST_FAILURES:
            yield Text(f"and {len(found) - MOST_FAILURES} more errors in report.html")


def _failure(one: FailedRows, limit: int | None = None) -> Text:
    """Return which rows failed, and why."""
    names = first_few([name for _, name in one.rows], _MOST_NAMED, "; ")
    return Text.assemble(
        (f"{one.status}: ", f"bold {_FAILED}"), f"{names} – {shortened(one.reason, limit or len(one.reason))}"
    )


def _encodable(text: Text, options: ConsoleOptions) -> Text:
    """Return the text, in ASCII if the terminal has no Unicode."""
    if options.ascii_only:
        text.plain = text.plain.translate(_ASCII).encode("ascii", "replace").decode()
    return text


def text(comparison: Comparison, width: int = 100) -> str:
    """The report as plain text, without colours."""
    out = io.StringIO()
    console(file=out, width=width, color_system=None, legacy_windows=False).print(Report(comparison))
    return out.getvalue()


def _fitting(found: Sequence[ReportTable], width: int) -> tuple[list[list[Text]], str]:
    """Return the lines of each table with the columns that fit all of them, and what is not shown; empty if everything is."""
    columns = found[0].columns if found else ()
    dropped: list[str] = []
    for kind in (None, *_FIGURES):
        if kind is not None:
            found, names = _without_intervals(found, kind)
            dropped += names
        lines = [[column.title for column in columns]]
        for table in found:
            lines += [_texts(line, columns) for line in table.lines]
        places, fitted = fitted_lines(lines, [True] * len(columns), width)  # no text is cut further
        figures = sum(columns[place].kind in _FIGURES for place in places)
        if len(places) == len(columns) or figures >= _MAIN_FIGURES:
            break
    head, *rows = padded(fitted, [columns[place].numeric for place in places])
    left = iter(rows)
    shown = []
    for table in found:
        parts = [_cut(Text(table.title, style="bold"), width)]
        if table.captions:
            parts.append(Text(" · ".join(f"{name} {value}" for name, value in table.captions), style="dim"))
        parts.append(_cut(Text(GAP.join(head), style="bold"), width))
        parts.append(Text("─" * min(width, cell_len(GAP.join(head))), "dim"))
        for line in table.lines:
            text = Text()
            for place, cell in zip(places, next(left), strict=True):
                column = columns[place]
                if line.failure is None or column.kind == "axis":
                    text.append(cell, _style(column, line.entries[place], line))
                    text.append(GAP)
            # A failed one says why where its numbers would stand.
            text.append(line.failure or "", _FAILED)
            text.rstrip()
            parts.append(_cut(text, width))
        shown.append(parts)
    left_out = [_untitled(column) for place, column in enumerate(columns) if place not in places] + dropped
    return shown, f"not shown at this width: {', '.join(left_out)}" if left_out else ""


def _texts(line: TableRow, columns: Sequence[Column]) -> list[str]:
    """Return the cells of a row; of a failed one only those of its axes have texts."""
    texts = []
    for column, entry in zip(columns, line.entries, strict=True):
        if column.kind == "axis":
            texts.append(shortened(entry.text, _AXIS_LIMIT))
        else:
            texts.append("" if line.failure is not None else entry.text)
    return texts


def _untitled(column: Column) -> str:
    """The title of a column without its arrow."""
    return column.title.rstrip(" ↓↑")


def _without_intervals(found: Sequence[ReportTable], kind: str) -> tuple[list[ReportTable], list[str]]:
    """Return the tables without the intervals of values whose ratio has a column, or of ratios, and what is left out."""
    columns = found[0].columns
    compared = {column.key for column in columns if column.kind == "ratio"}
    places = [i for i, column in enumerate(columns) if column.kind == kind and column.key in compared]
    shorter = []
    for table in found:
        lines = []
        for line in table.lines:
            entries = list(line.entries)
            for i in places:
                entries[i] = replace(entries[i], text=_INTERVAL.sub("", entries[i].text))
            lines.append(replace(line, entries=tuple(entries)))
        shorter.append(replace(table, lines=tuple(lines)))
    return shorter, [f"{_untitled(columns[i])} interval" for i in places]


def _style(column: Column, entry: TableCell, line: TableRow) -> str:
    if line.failure is not None:
        return _FAILED
    if column.kind == "rounds" and line.row.is_incomplete:
        return "yellow"
    if column.kind == "ratio":
        return "dim" if line.row.is_baseline else _STYLES[entry.verdict]
    return ""


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    return line
