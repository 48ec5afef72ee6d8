"""Templates and their JSON; views, the content of printed objects, as aligned text and as HTML; fields of dataclasses as tables."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sweeprof.numbers import MISSING, rounded, significant
from sweeprof.results.measurement import Number
from sweeprof.text import axis_text, one_line, printable, shortened

_ESCAPES = re.compile(
    r"""\\\\ | \\ud[89ab]..\\ud[c-f]..                                    # a backslash, a pair of surrogates
    | (?P<unprintable>\\u(?:00[01].|007f|00[89].|061c|200[ef]|202[89a-e]|206[6-9]|feff|d[89a-f]..))""",
    re.VERBOSE,
)
"""Escapes in JSON that :func:`json.dumps` wrote."""


def render(template: str, **values: object) -> str:
    """The page that a template makes of the values."""
    return _environment().get_template(template).render(values)


def compile_templates() -> None:
    """Compile every template, which takes longer than to make a page."""
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


@cache  # a template is compiled once, however many pages are made of it
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sweeprof.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters.update(axis_text=axis_text, one_line=one_line, shortened=shortened, script_json=script_json)
    return environment


def _finalized(value: object) -> Any:
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def script_json(data: object) -> Markup:
    """JSON that cannot end the ``script`` element it stands in, and whose texts are printable."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    text = _ESCAPES.sub(lambda found: ("\\" if found["unprintable"] else "") + found[0], text)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


class StringTable:
    """Different things in the order they came, each with its position."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def place(self, thing: Hashable) -> int:
        """The position of a thing, a new one at the end."""
        return self._places.setdefault(thing, len(self._places))

    @property
    def values(self) -> list[Any]:
        """The things by their positions."""
        return list(self._places)


# Views: paragraphs and tables

MOST_ROWS = 200
"""Rows of a table that are printed."""
LONGEST_CELL = 120
"""Characters of a cell as text; HTML has all of them."""


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
        return f"and {counted(count, 'more row')}" if count else ""


@dataclass(frozen=True, slots=True)
class View:
    """A title, then paragraphs and tables in their order."""

    title: str
    parts: tuple[str | ViewTable, ...] = ()


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, e.g. ``1 row``, ``1,200 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_few(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first of some texts, e.g. ``a, b and 3 more``."""
    text = separator.join(texts[:most])
    return f"{text} and {len(texts) - most:,} more" if len(texts) > most else text


def quantity_cell(value: Number | None, unit: str, missing: str = MISSING) -> ViewCell:
    """Return a measured value with its unit as a cell; ``missing`` is the text where there is none."""
    if value is None or not math.isfinite(value):
        return ViewCell(missing)
    return ViewCell(rounded(value, unit), value)


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
    found = []
    for row in rows:
        cells = [ViewCell(cell) if isinstance(cell, str) else cell for cell in row]
        found.append(ViewRow(tuple(cells)))
    return ViewTable(tuple(Heading(name, name in numeric) for name in headings), tuple(found), title)


def as_html(view: View) -> str:
    """Return the view as an HTML fragment that takes its colours from the page around it."""
    return render("display.html.j2", view=view).strip()


# The fields of a dataclass: what a value is measured in follows from the name of its field.

_ENDINGS = (
    ("flops_per_s", "FLOP/s"),
    ("bytes_per_s", "B/s"),
    ("bytes", "B"),
    ("seconds", "s"),
    ("_s", "s"),
    ("macs", "MAC"),
    ("flops", "FLOP"),
)
"""The unit of a field by the end of its name; fields are in base units."""
_MOST_ITEMS, _LONGEST = 8, 300


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number_text(value: Number, unit: str) -> str:
    """Return a number with its unit, e.g. ``1.23 ms``, ``417 kMAC``."""
    if not math.isfinite(value):
        return f"{MISSING} (not a finite number: {value})"
    return rounded(value, unit) if unit else significant(value)


def cell_of(name: str, value: Any) -> ViewCell:
    """Return the value of a field as a cell."""
    return ViewCell(value_line(name, value), value if _is_number(value) and math.isfinite(value) else None)


def value_line(name: str, value: Any) -> str:  # noqa: PLR0911  # one for each kind of value
    """Return the value of a field as one line; of many numbers their count and median."""
    unit = next((unit for ending, unit in _ENDINGS if name.endswith(ending)), "")
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_number(value):
        return number_text(value, unit)
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, bytes):
        return number_text(len(value), "B")
    if isinstance(value, Mapping):
        return _listed([f"{key} {value_line(name if unit else str(key), one)}" for key, one in value.items()])
    if isinstance(value, Sequence | Set):
        items = list(value)
        if items and all(_is_number(item) for item in items):
            if "shape" in name:
                return "×".join(map(str, items))
            if len(items) > 2:
                known = [item for item in items if math.isfinite(item)]
                middle = f", median {number_text(statistics.median(known), unit)}" if known else ""
                return f"{len(items):,} values{middle}"
        return _listed([value_line(name, item) for item in items])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _listed([f"{field.name} {value_line(field.name, getattr(value, field.name))}" for field in fields])
    return shortened(one_line(getattr(value, "__qualname__", None) or repr(value)), _LONGEST)


def _listed(parts: Sequence[str]) -> str:
    return shortened(first_few(parts, _MOST_ITEMS), _LONGEST) or MISSING


def fields_table(thing: Any, leave_out: Sequence[str] = ()) -> ViewTable:
    """Return the fields of a dataclass, a row each; those that are not for printing, and optional empty ones, are left out."""
    rows: list[Cells] = []
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if field.repr and field.name not in leave_out and not (_is_empty(value) and _is_optional(field)):
            rows.append([field.name, cell_of(field.name, value)])
    return table(["field", "value"], rows)


def _is_optional(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _is_empty(value: object) -> bool:
    return value is None or value in ("", (), {}, [])


def rows_table(rows: Sequence[Any], columns: Sequence[str] = ()) -> ViewTable:
    """Return dataclasses of one kind as a table.

    Args:
        rows: at least one.
        columns: names of fields; by default all fields of which any row has a value.
    """
    names = list(columns)
    if not columns:
        for field in dataclasses.fields(rows[0]):
            is_empty = _is_optional(field) and all(_is_empty(getattr(row, field.name)) for row in rows)
            if field.repr and not is_empty:
                names.append(field.name)
    numeric = []
    for name in names:
        values = [getattr(row, name) for row in rows]
        if any(map(_is_number, values)) and all(value is None or _is_number(value) for value in values):
            numeric.append(name)
    return table(names, [[cell_of(name, getattr(row, name)) for name in names] for row in rows], numeric)
