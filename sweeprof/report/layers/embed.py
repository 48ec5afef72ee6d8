"""Many layer tables in one page, each list of values once: combinations of one model share nearly all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeprof.report.cells import one_line
from sweeprof.report.layers import cells
from sweeprof.report.layers.figures import Figures
from sweeprof.report.layers.nesting import nodes
from sweeprof.results.layers import LayerTable
from sweeprof.results.measurement import Number

COLUMNS = ("macs", "flops", "params", "act_bytes")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def embedded(tables: Mapping[str, LayerTable]) -> dict[str, Any]:
    """What ``templates/layers.js`` reads.

    ``tables`` has for each combination its label, its totals, a note or null, and positions in ``vectors``: the label, type,
    depth, call and output shape of every node in the order of the tree, then the figures of ``columns``. Labels, types and
    shapes are positions in ``strings``. A vector of whole numbers is a text, see :func:`packed`.
    """
    strings, vectors = _Interned(), _Interned()
    found = []
    for label, table in tables.items():
        shown, reason = cells.with_figures(table)
        figures, drawn = Figures(shown), nodes(shown)
        lists: list[list[Number | None]] = [
            [strings.place(node.label) for node in drawn],
            [strings.place(one_line(node.row.type)) for node in drawn],
            [node.depth for node in drawn],
            [node.row.call for node in drawn],
            [strings.place(cells.shape_text(node.row.output_shapes)) for node in drawn],
            *([figures.number(node.row, column) for node in drawn] for column in COLUMNS),
        ]
        found.append(
            {
                "label": one_line(label),
                "vectors": [vectors.place(packed(values)) for values in lists],
                "totals": [figures.total(column) for column in COLUMNS],
                "note": reason,
            }
        )
    columns = [{"title": cells.FIGURES[column][0], "unit": cells.FIGURES[column][1]} for column in COLUMNS]
    return {"columns": columns, "strings": strings.values, "vectors": vectors.values, "tables": found}


def packed(values: Sequence[Number | None]) -> str | tuple[Number | None, ...]:
    """Whole numbers as one text, base 36, ``_`` for None: a third smaller than JSON. Other numbers as they are."""
    if any(value is not None and not isinstance(value, int) for value in values):
        return tuple(values)
    return ",".join("_" if value is None else _base36(int(value)) for value in values)


def _base36(value: int) -> str:
    sign, rest, text = "-" if value < 0 else "", abs(value), ""
    while rest >= 36:
        rest, digit = divmod(rest, 36)
        text = _DIGITS[digit] + text
    return sign + _DIGITS[rest] + text


class _Interned:
    """Different values in the order they came, each with its position."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def place(self, value: Any) -> int:
        return self._places.setdefault(value, len(self._places))

    @property
    def values(self) -> list[Any]:
        return list(self._places)
