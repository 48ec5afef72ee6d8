"""Layers: a LayerTable with the ways to look at it, each of them in sweeprof/report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sweeprof.report.aggregate import by_type, top_layers
from sweeprof.report.layers.csv import to_csv
from sweeprof.report.layers.html import to_html
from sweeprof.report.layers.latex import to_latex
from sweeprof.report.layers.markdown import to_markdown
from sweeprof.report.layers.parquet import to_parquet
from sweeprof.report.tree import tree
from sweeprof.results.layers import Bytes, LayerRow, LayerTable


@dataclass(frozen=True, slots=True)
class Layers(LayerTable):
    """The layers of a model, as :attr:`sweeprof.Profile.layers` gives them; printed, their tree."""

    @classmethod
    def of(cls, table: LayerTable) -> Layers:
        """The same table with the ways to look at it."""
        return cls(table.rows, table.uncovered, table.method, table.operator_calls, table.liveness, table.is_inclusive)

    def __str__(self) -> str:
        return self.tree()

    def tree(
        self,
        depth: int | None = None,
        columns: Sequence[str] | None = None,
        unit: str | None = None,
        style: str = "table",
        rows: Sequence[str] = ("type", "name"),
    ) -> str:
        """The module tree as text, see :func:`sweeprof.report.tree.tree`."""
        return tree(self, depth, columns, unit, style, rows)

    def by_type(
        self, depth: int | None = None, top: int | None = None, column: str = "macs"
    ) -> list[tuple[str, Bytes | None, float | None]]:
        """Sums by class name with their shares, see :func:`sweeprof.report.aggregate.by_type`."""
        return by_type(self, depth, top, column)

    def top(self, column: str = "macs", n: int = 3) -> list[tuple[LayerRow, Bytes, float | None]]:
        """The ``n`` largest rows with their shares, see :func:`sweeprof.report.aggregate.top_layers`."""
        return top_layers(self, column, n)

    def to_csv(self, inclusive: bool = False) -> str:
        """See :func:`sweeprof.report.layers.csv.to_csv`."""
        return to_csv(self, inclusive)

    def to_html(self, inclusive: bool = False, title: str = "Layers") -> str:
        """See :func:`sweeprof.report.layers.html.to_html`."""
        return to_html(self, inclusive=inclusive, title=title)

    def to_latex(self, inclusive: bool = False) -> str:
        """See :func:`sweeprof.report.layers.latex.to_latex`."""
        return to_latex(self, inclusive=inclusive)

    def to_markdown(self, inclusive: bool = False) -> str:
        """See :func:`sweeprof.report.layers.markdown.to_markdown`."""
        return to_markdown(self, inclusive=inclusive)

    def to_parquet(self, inclusive: bool = False) -> bytes:
        """See :func:`sweeprof.report.layers.parquet.to_parquet`."""
        return to_parquet(self, inclusive)
