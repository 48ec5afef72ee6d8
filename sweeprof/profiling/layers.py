"""Layers: a LayerTable with the ways to look at it, each of them in sweeprof/report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeprof.report.layers.aggregate import by_type, top_layers
from sweeprof.report.layers.by_module import layerwise_summary, namespace_tree, timepool, timings
from sweeprof.report.layers.html import to_html
from sweeprof.report.layers.tables import to_csv, to_latex, to_markdown, to_parquet
from sweeprof.report.layers.text import overview, tree
from sweeprof.results.layers import Bytes, LayerRow, LayerTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Layers(LayerTable):
    """The layers of a model, as :attr:`sweeprof.Profile.layers` gives them; printed, their tree."""

    @classmethod
    def of(cls, table: LayerTable) -> Layers:
        """The same table with the ways to look at it."""
        return cls(**{spec.name: getattr(table, spec.name) for spec in fields(LayerTable)})

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
        """The module tree as text, see :func:`sweeprof.report.layers.text.tree`."""
        return tree(self, depth, columns, unit, style, rows)

    def by_type(
        self, depth: int | None = None, top: int | None = None, column: str = "macs"
    ) -> list[tuple[str, Bytes | None, float | None]]:
        """Sums by class name with their shares, see :func:`sweeprof.report.layers.aggregate.by_type`."""
        return by_type(self, depth, top, column)

    def top(self, column: str = "macs", n: int = 3) -> list[tuple[LayerRow, Bytes, float | None]]:
        """The ``n`` largest rows with their shares, see :func:`sweeprof.report.layers.aggregate.top_layers`."""
        return top_layers(self, column, n)

    def stacked(
        self,
        channels: Sequence[str] = ("forward",),
        direction: str = "vertical",
        path: str | Path | None = None,
        figsize: tuple[float, float] | None = None,
    ) -> tuple[Figure, Axes]:
        """Times as stacked bars per depth, see :func:`sweeprof.report.pictures.layers.stacked`."""
        from sweeprof.report.pictures.layers import (
            stacked,
        )  # with matplotlib, which no other way to look at layers needs

        return stacked(self, channels, direction, path, figsize)

    def to_csv(self, inclusive: bool = False) -> str:
        """See :func:`sweeprof.report.layers.tables.to_csv`."""
        return to_csv(self, inclusive)

    def to_html(self, inclusive: bool = False, title: str = "Layers") -> str:
        """See :func:`sweeprof.report.layers.html.to_html`."""
        return to_html(self, inclusive=inclusive, title=title)

    def to_latex(self, inclusive: bool = False) -> str:
        """See :func:`sweeprof.report.layers.tables.to_latex`."""
        return to_latex(self, inclusive=inclusive)

    def to_markdown(self, inclusive: bool = False) -> str:
        """See :func:`sweeprof.report.layers.tables.to_markdown`."""
        return to_markdown(self, inclusive=inclusive)

    def to_parquet(self, inclusive: bool = False) -> bytes:
        """See :func:`sweeprof.report.layers.tables.to_parquet`."""
        return to_parquet(self, inclusive)

    def summary(self, depth: int | None = None, top: int | None = 3, detailed: bool = True) -> str:
        """Totals, the largest sums at every depth, and the annotated tree as one text.

        ``layers.where(lambda row: row.type != "Dropout").summary()`` leaves modules out. See
        :func:`sweeprof.report.layers.text.overview`.
        """
        return overview(self, depth, top, detailed)

    def layerwise_summary(self, precision: int = 6) -> str:
        """Every module with its milliseconds, see :func:`sweeprof.report.layers.by_module.layerwise_summary`."""
        return layerwise_summary(self, precision)

    def timings(self) -> dict[str, dict[str, Any]]:
        """Seconds of every module by path, see :func:`sweeprof.report.layers.by_module.timings`."""
        return timings(self)

    def timepool(self) -> dict[str, dict[str, Any]]:
        """Milliseconds as a nested dictionary, see :func:`sweeprof.report.layers.by_module.timepool`."""
        return timepool(self)

    def namespace_tree(self, pool: Mapping[str, Any] | None = None) -> str:
        """A nested dictionary as text, by default :meth:`timepool`; see
        :func:`sweeprof.report.layers.by_module.namespace_tree`.
        """
        return namespace_tree(self.timepool() if pool is None else pool)
