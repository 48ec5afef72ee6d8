"""The fields of any dataclass as cells: what a value is measured in follows from the name of its field."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence, Set
from typing import Any

from sweeprof.numbers import MISSING, rounded, significant
from sweeprof.report.display.view import Cells, ViewCell, ViewTable, table
from sweeprof.results.measurement import Number
from sweeprof.text import one_line, shortened

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
_NUMERIC = (int, float)


def unit_of(name: str) -> str:
    """Return the base unit of a field; empty for a plain number."""
    return next((unit for ending, unit in _ENDINGS if name.endswith(ending)), "")


def number_text(value: Number, unit: str) -> str:
    """Return a number with its unit, e.g. ``1.23 ms``, ``417 kMAC``."""
    if not math.isfinite(value):
        return f"{MISSING} (not a finite number: {value})"
    return rounded(value, unit) if unit else significant(value)


def cell_of(name: str, value: object) -> ViewCell:
    """Return the value of a field as a cell."""
    is_number = isinstance(value, _NUMERIC) and not isinstance(value, bool)
    return ViewCell(value_line(name, value), value if is_number and math.isfinite(value) else None)  # type: ignore[arg-type]


def value_line(name: str, value: object) -> str:  # noqa: PLR0911  # one for each kind of value
    """Return the value of a field as one line; of many numbers their count and median."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, _NUMERIC):
        return number_text(value, unit_of(name))
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, bytes):
        return number_text(len(value), "B")
    if isinstance(value, Mapping):
        return _listed(
            [f"{key} {value_line(f'{key}' if not unit_of(name) else name, one)}" for key, one in value.items()]
        )
    if isinstance(value, Sequence | Set):
        return _items_text(name, list(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [
            f"{spec.name} {value_line(spec.name, getattr(value, spec.name))}" for spec in dataclasses.fields(value)
        ]
        return shortened(_listed(parts), _LONGEST)
    return shortened(one_line(getattr(value, "__qualname__", None) or repr(value)), _LONGEST)


def _items_text(name: str, items: list[Any]) -> str:
    if not items:
        return MISSING
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items) and "shape" in name:
        return "×".join(map(str, items))
    if all(isinstance(item, _NUMERIC) for item in items) and len(items) > 2:
        known = [item for item in items if math.isfinite(item)]
        middle = f", median {number_text(statistics.median(known), unit_of(name))}" if known else ""
        return f"{len(items):,} values{middle}"
    return _listed([value_line(name, item) for item in items])


def _listed(parts: Sequence[str]) -> str:
    more = len(parts) - _MOST_ITEMS
    text = ", ".join(parts[:_MOST_ITEMS]) + (f" and {more:,} more" if more > 0 else "")
    return shortened(text, _LONGEST) or MISSING


def fields_table(thing: Any, leave_out: Sequence[str] = ()) -> ViewTable:
    """Return the fields of a dataclass, a row each; those that are not for printing, and texts that are empty, are left out."""
    rows: list[Cells] = []
    for spec in dataclasses.fields(thing):
        value = getattr(thing, spec.name)
        is_empty = value is None or value in ("", (), {}, [])
        if spec.repr and spec.name not in leave_out and not (is_empty and _is_optional(spec)):
            rows.append([spec.name, cell_of(spec.name, value)])
    return table(["field", "value"], rows)


def _is_optional(spec: dataclasses.Field[Any]) -> bool:
    return spec.default is not dataclasses.MISSING or spec.default_factory is not dataclasses.MISSING


def rows_table(rows: Sequence[Any], title: str = "") -> ViewTable:
    """Return dataclasses of one kind as a table with a column per field; a column in which no row has a value is left out."""
    specs = [spec for spec in dataclasses.fields(rows[0]) if spec.repr]
    names = []
    for spec in specs:
        values = [getattr(row, spec.name) for row in rows]
        if not _is_optional(spec) or any(value is not None and value not in ("", (), {}, []) for value in values):
            names.append(spec.name)
    numeric = [
        name
        for name in names
        if all(value is None or _is_number(value) for row in rows for value in [getattr(row, name)])
    ]
    return table(names, [[cell_of(name, getattr(row, name)) for name in names] for row in rows], numeric, title)


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMERIC) and not isinstance(value, bool)
