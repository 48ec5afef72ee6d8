"""The cells of one layer table: exact numbers, and texts."""

from __future__ import annotations

from sweeprof.report.layers import cells
from sweeprof.report.scaled import percent
from sweeprof.results.layers import (
    TIMES,
    LayerRow,
    LayerTable,
    flops_per_s,
    forward_column,
    total_flops_per_s,
    total_seconds,
)
from sweeprof.results.measurement import Number


class Figures:
    """Reads the cells of a table; sums each column once."""

    def __init__(self, table: LayerTable) -> None:
        self.table = table
        self._totals: dict[str, Number | None] = {}

    def total(self, column: str) -> Number | None:
        """A figure of the whole table; None where it cannot be had, or where rows do not add up to one (inputs, outputs)."""
        if column not in self._totals:
            self._totals[column] = self._total(column)
        return self._totals[column]

    def _total(self, column: str) -> Number | None:
        table = self.table
        if column in TIMES:
            return total_seconds(table, column)
        if column == "flops_per_s":
            return total_flops_per_s(table)
        if column == "macs" and table.uncounted is not None:
            return None
        value: Number | None = table.params - table.trainable if column == "frozen" else getattr(table, column, None)
        return value

    def number(self, row: LayerRow, column: str) -> Number | None:
        """The exact value of a figure, or a share in 0..1; None where it cannot be had or stands with an earlier call."""
        if column in cells.SHARES:
            figure = forward_column(self.table) if column == "forward_share" else cells.SHARES[column]
            part, whole = self.number(row, figure), self.total(figure)
            return None if part is None or not whole else part / whole
        if column == "flops_per_s":
            return flops_per_s(self.table, row)
        if column in cells.WEIGHTS and cells.is_repeated(row):
            return None
        value: Number | None = getattr(row, column)
        return value

    def text(self, row: LayerRow, column: str, prefix: str | None = None) -> str:
        """Return the text of a cell; ``prefix`` forces the unit prefix of counts, as in :func:`sweeprof.report.scaled.scaled`."""
        if column in cells.TEXTS:
            return cells.words(getattr(row, column))
        if cells.SHARES.get(column, column) in cells.WEIGHTS and cells.is_repeated(row):
            return cells.RECURSIVE
        if column == "trainable":
            return cells.trainable_text(row)
        value = self.number(row, column)
        if column == "forward_share":
            return percent(value, precision=1)  # what is measured is not known to more
        return percent(value) if column in cells.SHARES else cells.text_of(value, column, prefix)

    def total_text(self, column: str) -> str:
        """The total as it is shown; empty for a column that has none by its nature."""
        if column not in cells.FIGURES or column == "trainable":
            return ""
        return cells.text_of(self.total(column), column)
