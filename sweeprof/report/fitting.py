"""Tables and views as aligned text within the width of a terminal: texts are cut, last columns left out, paragraphs broken."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len

from sweeprof.report.view import LONGEST_CELL, View, ViewRow, ViewTable
from sweeprof.text import one_line, printable, shortened

GAP = "  "
"""Between two columns."""
_NOTE = "note"
"""The title of a last column whose texts stand below the table where less than half of them would fit."""
_NARROWEST = 12
"""Characters that a column of text is cut to before columns are left out; the first column keeps half of the line."""


def terminal_width() -> int:
    """Return the characters of a line of the terminal; 80 where the output is none, as for a file or a notebook."""
    return shutil.get_terminal_size((80, 24)).columns


def wrapped(text: str, width: int | None) -> list[str]:
    """Return a paragraph as lines; one line if ``width`` is None. Words that are longer than a line stay whole."""
    if width is None:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def natural_width(lines: Sequence[Sequence[str]]) -> int:
    """Return the characters that the longest line of a table takes in full; its first line is the header."""
    return _total(_widths(lines))


def padded(lines: Sequence[Sequence[str]], is_numeric: Sequence[bool]) -> list[list[str]]:
    """Return cells with spaces, so that columns are aligned, numbers on the right.

    The last cell of a line with fewer cells than columns takes the remaining ones.
    """
    widths = _widths(lines, len(is_numeric))
    found = []
    for line in lines:
        cells = []
        for place, text in enumerate(line):
            pad = " " * (widths[place] - cell_len(text))
            is_right = is_numeric[place] and len(line) == len(widths)
            cells.append(pad + text if is_right else text + pad)
        found.append(cells)
    return found


def aligned(lines: Sequence[Sequence[str]], is_numeric: Sequence[bool]) -> list[str]:
    """Return the lines of :func:`padded` as text."""
    return [GAP.join(cells).rstrip() for cells in padded(lines, is_numeric)]


def with_rule(lines: Sequence[Sequence[str]], is_numeric: Sequence[bool]) -> list[str]:
    """Return the aligned lines of a table with a rule below the first."""
    header, *body = aligned(lines, is_numeric)
    return [header, "─" * _total(_widths(lines, len(is_numeric))), *body]


def left_out(names: Sequence[str], width: int, natural: int) -> str:
    """Return the line that says which columns are not shown, or that texts are cut, and how to see everything."""
    advice = f"to_text(width={natural}) shows all."
    if names:
        return f"Not shown in {width} characters a line: {', '.join(names)}; {advice}"
    return f"Texts with … are cut to {width} characters a line; {advice}"


def fitted_lines(
    lines: Sequence[Sequence[str]], is_numeric: Sequence[bool], width: int, keeps_last: bool = False
) -> tuple[list[int], list[list[str]]]:
    """Return which columns of a table fit, and its lines with these columns and with cut texts; numbers are never cut.

    Args:
        lines: of cells; the header first. The last cell of a line with fewer cells takes the remaining columns.
        is_numeric: by column.
        width: characters of a line.
        keeps_last: whether the last column stays and those before it are left out.
    """
    natural = _widths(lines)
    if not natural:
        return [], [[] for _ in lines]
    last = len(natural) - 1
    places = list(range(len(natural)))
    while True:
        widths = _cut_widths([natural[i] for i in places], lines[0], [is_numeric[i] for i in places], width)
        if len(places) == 1 or _total(widths) <= width:
            break
        del places[-2 if keeps_last and len(places) > 2 else -1]
    fitted = []
    for line in lines:
        if len(line) <= last and len(line) <= len(places):
            before = sum(widths[: len(line) - 1]) + len(GAP) * (len(line) - 1)
            limits = [*widths[: len(line) - 1], max(width - before, _NARROWEST)]
            fitted.append(_cut(line, limits))
        else:
            fitted.append(_cut([line[i] for i in places if i < len(line)], widths))
    return places, fitted


def _cut(texts: Sequence[str], limits: Sequence[int]) -> list[str]:
    """Return cells that keep to their widths: names, in the first column, without their middle, other texts without their end."""
    cells = [shortened(texts[0], limits[0])]
    for text, limit in zip(texts[1:], limits[1:], strict=False):
        cells.append(text if len(text) <= limit else f"{text[: limit - 1]}…")
    return cells


def _cut_widths(widths: Sequence[int], titles: Sequence[str], is_numeric: Sequence[bool], width: int) -> list[int]:
    """Return the widths after columns of text have been cut, the widest first, as far as that is needed and allowed."""
    cut = list(widths)
    least = [max(_NARROWEST, cell_len(title)) for title in titles[: len(cut)]]
    least[0] = max(_NARROWEST, width // 2) if len(cut) > 1 else width
    while _total(cut) > width:
        places = [place for place, size in enumerate(cut) if not is_numeric[place] and size > least[place]]
        if not places:
            break
        cut[max(places, key=lambda place: cut[place])] -= 1
    return cut


def _widths(lines: Sequence[Sequence[str]], columns: int | None = None) -> list[int]:
    widths = [0] * (len(lines[0]) if columns is None else columns)
    for line in lines:
        for place, text in enumerate(line):
            if place + 1 < len(line) or len(line) == len(widths):  # a cell that takes several columns widens none
                widths[place] = max(widths[place], cell_len(text))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def as_text(view: View) -> str:
    """Return the view as lines for a terminal, without a line break at the end."""
    lines = [one_line(view.title)] if view.title else []
    for part in view.parts:
        if isinstance(part, str):
            lines.append(one_line(part))
            continue
        cells = [[one_line(heading.title) for heading in part.headings]]
        for row in part.shown:
            texts = []
            for cell in row.cells:
                text = " ".join(printable(cell.text).splitlines()) if cell.is_code else one_line(cell.text)
                texts.append(shortened(text, LONGEST_CELL))
            texts[0] = GAP * row.depth + texts[0]
            cells.append(texts)
        if part.title:
            lines.append(one_line(part.title))
        lines += with_rule(cells, [heading.is_numeric for heading in part.headings])
        if part.omitted:
            lines.append(part.omitted)
    return "\n".join(lines)


def fitted(view: View, width: int) -> View:
    """Return a view whose text keeps to the width; its last line says what is not shown. A title alone stays one line."""
    if not view.parts:
        return view
    title, *rest = wrapped(one_line(view.title), width)
    parts: list[str | ViewTable] = list(rest)
    names: dict[str, None] = {}
    natural = 0
    for part in view.parts:
        if isinstance(part, str):
            parts += wrapped(one_line(part), width)
            continue
        parts += wrapped(one_line(part.title), width) if part.title else []
        table, needed = _fitted_table(part, width)
        notes: list[str] = []
        if part.headings[-1].title == _NOTE and needed > width and _longest(table) < _longest(part) / 2:
            notes = _notes(part)
            rows = tuple(dataclasses.replace(row, cells=row.cells[:-1]) for row in part.shown)
            total = len(part.rows) if part.total is None else part.total
            shorter = dataclasses.replace(part, headings=part.headings[:-1], rows=rows, total=total)
            table, needed = _fitted_table(shorter, width)
        parts.append(table)
        for note in notes:
            parts += wrapped(note, width)
        natural = max(natural, needed)
        shown = [*table.headings, part.headings[-1]] if notes else table.headings
        names.update({heading.title: None for heading in part.headings if heading not in shown})
    if natural > width:
        parts += wrapped(left_out(list(names), width, natural), width)
    return View(title, tuple(parts))


def _longest(table: ViewTable) -> int:
    """Return the length of the longest note in the last column; 0 if that is another column."""
    if table.headings[-1].title != _NOTE:
        return 0
    return max((cell_len(row.cells[-1].text) for row in table.shown), default=0)


def _notes(table: ViewTable) -> list[str]:
    """Return a line for each note of the last column, after the names of its rows."""
    names: dict[str, list[str]] = {}
    for row in table.shown:
        if row.cells[-1].text:
            names.setdefault(one_line(row.cells[-1].text), []).append(one_line(row.cells[0].text))
    return [f"{', '.join(rows)}: {note}" for note, rows in names.items()]


def _fitted_table(table: ViewTable, width: int) -> tuple[ViewTable, int]:
    """Return the table without its title as it fits, and the width that it needs in full."""
    lines = [[one_line(heading.title) for heading in table.headings]]
    for row in table.shown:
        texts = [printable(cell.text) if cell.is_code else one_line(cell.text) for cell in row.cells]
        lines.append([shortened(text, LONGEST_CELL) for text in texts])
    table = dataclasses.replace(table, title="", total=len(table.rows) if table.total is None else table.total)
    natural = natural_width(lines)
    if natural <= width:
        return table, natural
    has_code = any(row.cells[-1].is_code for row in table.shown)
    is_numeric = [heading.is_numeric for heading in table.headings]
    places, (_, *cut_rows) = fitted_lines(lines, is_numeric, width, keeps_last=has_code)
    rows = []
    for row, cut_row in zip(table.shown, cut_rows, strict=True):
        cells = []
        for place, text in zip(places, cut_row, strict=False):
            cells.append(dataclasses.replace(row.cells[place], text=text))
        rows.append(ViewRow(tuple(cells)))
    return dataclasses.replace(
        table, headings=tuple(table.headings[place] for place in places), rows=tuple(rows)
    ), natural
