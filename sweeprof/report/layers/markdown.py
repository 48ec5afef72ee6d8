"""A layer table as a GitHub Markdown table."""

from __future__ import annotations

from collections.abc import Sequence

from sweeprof.report.layers import cells
from sweeprof.report.layers.flat import flat
from sweeprof.report.markdown import escaped
from sweeprof.report.times.notes import notes_of
from sweeprof.results.layers import LayerTable


def to_markdown(table: LayerTable, columns: Sequence[str] | None = None, inclusive: bool = False) -> str:
    """One line per row, then the totals, and below the table what is to be known of the times where it has any.

    Path and type come first; ``columns`` are those of the tree.

    Raises:
        UserError: a column does not exist.
        ValueError: inclusive figures are asked of a table that does not tell which call was made in which.
    """
    table = table.inclusive() if inclusive else table
    chosen = cells.chosen(columns, cells.SHOWN, table)
    lines = flat(table, chosen)
    marks = [":--", ":--", *("--:" if cells.is_numeric(column) else ":--" for column in chosen)]
    body = [[escaped(text) for text in line] for line in lines]
    body[-1] = [f"**{text}**" if text else "" for text in body[-1]]
    drawn = [f"| {' | '.join(line)} |" for line in (body[0], marks, *body[1:])]
    notes = [escaped(note) for note in notes_of(table, chosen)]
    return "\n".join([*drawn, *([""] if notes else []), *notes]) + "\n"
