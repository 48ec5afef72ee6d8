"""The content of a printed object, paragraphs and tables, and the two forms of it: aligned text and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from sweeprof.report.pages import render
from sweeprof.results.measurement import Number
from sweeprof.text import one_line, printable, shortened

MOST_ROWS = 200
"""Rows of a table that are printed."""
LONGEST_CELL = 120
"""Characters of a cell as text; HTML has all of them."""
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Heading:
    """The header of a column."""

    title: str
    is_numeric: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ViewCell:
    """A value as it is shown."""

    text: str
    value: Number | None = None
    """The exact number in base units."""
    note: str = ""
    """What a reader may want to know besides; HTML shows it when the pointer is on the cell."""
    is_strong: bool = False
    is_code: bool = False
    """True for a source line, whose spaces count."""


Cells = list[ViewCell | str]
"""A row; a string is a cell without a number."""


@dataclass(frozen=True, slots=True)
class ViewRow:
    """The cells of a row; the last one of a row with too few takes the remaining columns."""

    cells: tuple[ViewCell, ...]
    depth: int = 0
    """How far the first cell is indented."""


@dataclass(frozen=True, slots=True)
class ViewTable:
    """A table; of more than :data:`MOST_ROWS` rows the first are shown."""

    headings: tuple[Heading, ...]
    rows: tuple[ViewRow, ...]
    title: str = ""
    total: int | None = None
    """The number of rows if ``rows`` has only the first of them."""

    @property
    def shown(self) -> tuple[ViewRow, ...]:
        return self.rows[:MOST_ROWS]

    @property
    def omitted(self) -> str:
        """Text with the number of rows that are not shown; empty if all are."""
        count = (len(self.rows) if self.total is None else self.total) - len(self.shown)
        return f"and {count:,} more {'row' if count == 1 else 'rows'}" if count else ""


@dataclass(frozen=True, slots=True)
class View:
    """A title, then paragraphs and tables in their order."""

    title: str
    parts: tuple[str | ViewTable, ...] = ()


def table(
    headings: Sequence[str], rows: Sequence[Sequence[ViewCell | str]], numeric: Sequence[str] = (), title: str = ""
) -> ViewTable:
    """Return a table of cells; a string is a cell without a number.

    Args:
        headings: titles of the columns.
        rows: of cells.
        numeric: the titles of the columns that are aligned on the right.
        title: above the table.
    """
    found = [ViewRow(tuple(ViewCell(cell) if isinstance(cell, str) else cell for cell in row)) for row in rows]
    return ViewTable(tuple(Heading(name, name in numeric) for name in headings), tuple(found), title)


def as_text(view: View) -> str:
    """Return the view as lines for a terminal, without a line break at the end."""
    lines = [one_line(view.title)] if view.title else []
    for part in view.parts:
        lines += [one_line(part)] if isinstance(part, str) else _table_lines(part)
    return "\n".join(lines)


def _table_lines(shown: ViewTable) -> list[str]:
    lines = [[one_line(heading.title) for heading in shown.headings]]
    for row in shown.shown:
        first, *others = [_short(cell) for cell in row.cells]
        lines.append([_GAP * row.depth + first, *others])
    width_of = [0] * len(shown.headings)
    for line in lines:
        for place, text in enumerate(line):
            if place + 1 < len(line) or len(line) == len(width_of):  # a cell that takes several columns widens none
                width_of[place] = max(width_of[place], cell_len(text))
    body = [_aligned(line, width_of, shown.headings) for line in lines]
    rule = "─" * (sum(width_of) + len(_GAP) * (len(width_of) - 1))
    title = [one_line(shown.title)] if shown.title else []
    return [*title, body[0], rule, *body[1:], *([shown.omitted] if shown.omitted else [])]


def _short(cell: ViewCell) -> str:
    text = " ".join(printable(cell.text).splitlines()) if cell.is_code else one_line(cell.text)
    return shortened(text, LONGEST_CELL)


def _aligned(line: Sequence[str], widths: Sequence[int], headings: Sequence[Heading]) -> str:
    cells = []
    for text, width, heading in zip(line, widths, headings, strict=False):
        pad = " " * (width - cell_len(text))
        cells.append(pad + text if heading.is_numeric and len(line) == len(widths) else text + pad)
    return _GAP.join(cells).rstrip()


def as_html(view: View) -> str:
    """Return the view as an HTML fragment that takes its colours from the page around it."""
    return render("display.html.j2", view=view).strip()
