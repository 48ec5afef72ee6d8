"""A layer table as a GitHub Markdown table."""

from __future__ import annotations

from collections.abc import Sequence

from sweeprof.report.layers import cells
from sweeprof.report.layers.flat import flat
from sweeprof.report.markdown import escaped
from sweeprof.results.layers import LayerTable


def to_markdown(table: LayerTable, columns: Sequence[str] = cells.SHOWN, inclusive: bool = False) -> str:
    """One line per row, then the totals. Path and type come first; ``columns`` are those of the tree.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    lines = flat(table, columns, inclusive)
    marks = [":--", ":--", *("--:" if cells.is_numeric(column) else ":--" for column in columns)]
    body = [[escaped(text) for text in line] for line in lines]
    body[-1] = [f"**{text}**" if text else "" for text in body[-1]]
    return "\n".join(f"| {' | '.join(line)} |" for line in (body[0], marks, *body[1:])) + "\n"
