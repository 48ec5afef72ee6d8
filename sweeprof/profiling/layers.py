"""Layers: a LayerTable with the ways to look at it, each of them in sweeprof/report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from sweeprof.display import FilePath, written
from sweeprof.profiling import conventions
from sweeprof.report.layers import aggregate, by_module, html, tables, text
from sweeprof.results.frames import Host, with_host
from sweeprof.results.layers import LayerTable

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Layers(LayerTable):
    """The layers of a model, from :attr:`sweeprof.Profile.layers`; ``print`` shows them as a tree."""

    NOT_STORED: ClassVar[tuple[str, ...]] = ("host",)
    host: Host = field(default_factory=dict, repr=False)
    """The host on which they were profiled, by the columns of :meth:`to_frame`."""

    @classmethod
    def of(cls, table: LayerTable, host: Host | None = None) -> Layers:
        """Return the same table with methods to display and export it."""
        return cls(**{spec.name: getattr(table, spec.name) for spec in fields(LayerTable)}, host=host or {})

    def to_frame(self, host: bool = False) -> pandas.DataFrame:
        """Return a row per layer; shares are of the table's total, 0..1.

        Args:
            host: also columns that describe the host, ``host_name``, ``host_cpu``, ``host_threads`` …, the same in each row.
        """
        return with_host(LayerTable.to_frame(self), self.host, host)

    # Each is a function of a LayerTable, documented where it is defined.
    tree = text.tree
    by_type = aggregate.by_type
    top = aggregate.top_layers
    summary = text.overview
    layerwise_summary = by_module.layerwise_summary
    timings = by_module.timings
    compat = conventions.figures_by_layer
    timepool = by_module.timepool

    def stacked(
        self,
        channels: str | Sequence[str] = ("forward",),
        direction: str = "vertical",
        path: str | Path | None = None,
        figsize: tuple[float, float] | None = None,
    ) -> tuple[Figure, Axes]:
        """Times as stacked bars per depth, see :func:`sweeprof.report.pictures.stacked.stacked`."""
        from sweeprof.report.pictures.stacked import stacked  # with matplotlib, which nothing else here needs

        return stacked(self, channels, direction, path, figsize)

    # With a path, each of these also writes the file.

    def to_csv(self, path: FilePath | None = None, *, inclusive: bool = False) -> str:
        """See :func:`sweeprof.report.layers.tables.to_csv`."""
        return written(tables.to_csv(self, inclusive), path)

    def to_html(
        self,
        path: FilePath | None = None,
        *,
        inclusive: bool = False,
        columns: str | Sequence[str] | None = None,
        title: str = "Layers",
    ) -> str:
        """See :func:`sweeprof.report.layers.html.to_html`."""
        return written(html.to_html(self, columns, inclusive, title), path)

    def to_latex(
        self,
        path: FilePath | None = None,
        *,
        inclusive: bool = False,
        columns: str | Sequence[str] | None = None,
        standalone: bool = False,
    ) -> str:
        """See :func:`sweeprof.report.layers.tables.to_latex`."""
        return written(tables.to_latex(self, columns, inclusive, standalone), path)

    def to_markdown(
        self, path: FilePath | None = None, *, inclusive: bool = False, columns: str | Sequence[str] | None = None
    ) -> str:
        """See :func:`sweeprof.report.layers.tables.to_markdown`."""
        return written(tables.to_markdown(self, columns, inclusive), path)

    def to_parquet(self, path: FilePath | None = None, *, inclusive: bool = False) -> bytes:
        """See :func:`sweeprof.report.layers.tables.to_parquet`."""
        return written(tables.to_parquet(self, inclusive), path)

    def namespace_tree(self, pool: Mapping[str, object] | None = None) -> str:
        """A nested dictionary as text, by default :meth:`timepool`; see
        :func:`sweeprof.report.layers.by_module.namespace_tree`.
        """
        return by_module.namespace_tree(self.timepool() if pool is None else pool)
