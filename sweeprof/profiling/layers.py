"""Layers: a LayerTable with the ways to look at it, each in sweeprof/report; and what other profilers count for each layer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sweeprof.display import Displayed, FilePath, written
from sweeprof.errors import Unsupported, UserError, choice_problem
from sweeprof.metrics.metric import Estimate, Missing, builtin_metrics
from sweeprof.report import layer_formats, layer_table
from sweeprof.results.layer_times import ROOT, Host, above, with_host
from sweeprof.results.layers import LayerRow, LayerTable, Weights
from sweeprof.results.measurement import Number

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sweeprof.report.view import View


PREFIX = "compat/"


@dataclass(frozen=True, slots=True)
class ConventionFigures(Displayed):
    """What another profiler counts for every call."""

    name: str
    """Of the convention, e.g. ``ptflops``."""
    unit: str
    rows: tuple[tuple[LayerRow, Number], ...]
    """Every row with its own figure, without those of the calls within it."""
    total: Number
    """The metric: the sum of the rows and the rest."""
    rest: Number
    """What belongs to no layer, such as the bytes of the inputs in a footprint."""

    def by_type(self) -> dict[str, Number]:
        """Return sums by class name, the largest first."""
        sums: dict[str, Number] = {}
        for row, value in self.rows:
            sums[row.type] = sums.get(row.type, 0) + value
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def within(self, path: str) -> Number:
        """Return the sum of a module and everything below it.

        Raises:
            UserError: there is no such module.
        """
        paths = {row.path for row, _ in self.rows}
        if path not in paths:
            raise UserError([choice_problem("path", path, "layer", paths)])
        return sum(value for row, value in self.rows if row.path == path or path in above(row.path))

    def to_frame(self) -> pandas.DataFrame:
        """Return a line per row: path, type, call, the figure, its share of the total, and the reason why there is no share."""
        import pandas

        lines = []
        for row, value in self.rows:
            share, reason = (value / self.total, None) if self.total else (None, "the total is zero")
            lines.append((row.path, row.type, row.call, value, share, reason))
        columns = ["path", "type", "call", f"{PREFIX}{self.name}", "share", "reason"]
        return pandas.DataFrame(lines, columns=columns, dtype=object)

    def __view__(self) -> View:
        from sweeprof.numbers import scaled
        from sweeprof.report.view import View, table

        figures = [(row.path, row.type, value) for row, value in self.rows if value]
        if self.rest:
            figures.append(("no layer", "", self.rest))
        figures.append(("total", "", self.total))
        lines = []
        for path, kind, value in figures:
            share = value / self.total if self.total else None
            lines.append([path, kind, scaled(value, self.unit), scaled(share, "share")])
        title = f"{PREFIX}{self.name}"
        return View(title, (table(["layer", "type", self.unit, "share"], lines, [self.unit, "share"]),))


def figures_by_layer(table: LayerTable, name: str, **options: object) -> ConventionFigures:
    """Return what the metric ``compat/NAME`` counts for every call; with the rest, they add up to the metric.

    Args:
        table: the layers of a model, not inclusive.
        name: of a convention, e.g. ``ptflops``.
        options: of the metric.

    Raises:
        UserError: there is no such convention.
        Unsupported: it does not count this model, or its figure is not a sum over layers.
    """
    known = {}
    for full, metric in builtin_metrics().items():
        if full.startswith(PREFIX) and "layers" in metric.reads:
            known[full.removeprefix(PREFIX)] = metric
    if name not in known:
        raise UserError([choice_problem("compat", name, "convention by layer", known)])
    if table.is_inclusive:
        raise Unsupported("the figures of an inclusive table include one another; use the table before inclusive()")

    def figure(rows: Sequence[LayerRow]) -> Number:
        result = known[name].function(layers=dataclasses.replace(table, rows=tuple(rows)), **options)
        if isinstance(result, Missing):
            raise Unsupported(result.reason)
        return result.value if isinstance(result, Estimate) else result

    total = figure(table.rows)
    around = [_without_counts(row) for row in table.rows if row.path == ROOT][:1]
    nothing = figure(around)
    last = {row.path: index for index, row in enumerate(table.rows) if row.call >= 0}
    holding: set[str] = set()
    for row in table.rows:
        holding.update(above(row.path))
    values: list[Number] = []
    for index, row in enumerate(table.rows):
        rows = [row] if row.path == ROOT else [*around, row]
        if row.path in holding:  # it stays a module that holds others
            inner = "inner" if row.path == ROOT else f"{row.path}.inner"
            rows.append(dataclasses.replace(_without_counts(row), path=inner, call=-1))
        if last.get(row.path, index) != index:  # it stays a call that is not the last
            rows.append(_without_counts(row))
        try:
            values.append(figure(rows) - nothing)
        except Unsupported:  # none of its operators is known to the convention
            values.append(0)
    if not math.isclose(sum(values) + nothing, total, rel_tol=1e-12):
        raise Unsupported(f"{PREFIX}{name} is not a sum over layers")
    return ConventionFigures(name, known[name].info.unit, tuple(zip(table.rows, values, strict=True)), total, nothing)


_NOTHING: dict[str, Any] = {
    "type": "",
    "operators": (),
    "output_shapes": (),
    "subtree": Weights(),
    "dtypes": {},
    "declared_flops": None,
    **dict.fromkeys(("params", "trainable", "params_bytes", "buffers", "buffers_bytes"), 0),
    **dict.fromkeys(("macs", "flops", "ops", "act_bytes"), 0),
}


def _without_counts(row: LayerRow) -> LayerRow:
    """Return a row in the same place, of a module that has and does nothing; the model keeps the shapes of its inputs."""
    return dataclasses.replace(row, **_NOTHING)


@dataclass(frozen=True, slots=True)
class Layers(LayerTable):
    """The layers of a model, from :attr:`sweeprof.Profile.layers`; ``print`` shows them as a tree."""

    NOT_STORED: ClassVar[tuple[str, ...]] = ("host",)
    host: Host = field(default_factory=dict, repr=False)
    """The host on which they were profiled, by the columns of :meth:`to_frame`."""

    @classmethod
    def of(cls, table: LayerTable, host: Host | None = None) -> Layers:
        """Return the same table with methods to display and export it."""
        values = {spec.name: getattr(table, spec.name) for spec in fields(LayerTable)}
        return cls(**values, host=host or {})

    def to_frame(self, host: bool = False) -> pandas.DataFrame:
        """Return a row per layer; shares are of the table's total, 0..1.

        Args:
            host: also columns that describe the host, ``host_name``, ``host_cpu``, ``host_threads`` …, the same in each row.
        """
        return with_host(LayerTable.to_frame(self), self.host, host)

    # Each is a function of a LayerTable, documented where it is defined.
    tree = layer_formats.tree
    by_type = layer_table.by_type
    top = layer_table.top_layers
    summary = layer_formats.overview
    layerwise_summary = layer_table.layerwise_summary
    timings = layer_table.timings
    compat = figures_by_layer
    timepool = layer_table.timepool

    def stacked(
        self,
        channels: str | Sequence[str] = ("forward",),
        direction: str = "vertical",
        path: str | Path | None = None,
        figsize: tuple[float, float] | None = None,
    ) -> tuple[Figure, Axes]:
        """Draw the times as stacked bars per depth, see :func:`sweeprof.report.stacked_layers.stacked`."""
        from sweeprof.report.stacked_layers import stacked  # with matplotlib, which nothing else here needs

        return stacked(self, channels, direction, path, figsize)

    # With a path, each of these also writes the file.

    def to_csv(self, path: FilePath | None = None, *, inclusive: bool = False) -> str:
        """See :func:`sweeprof.report.layer_formats.to_csv`."""
        return written(layer_formats.to_csv(self, inclusive), path)

    def to_html(
        self,
        path: FilePath | None = None,
        *,
        inclusive: bool = False,
        columns: str | Sequence[str] | None = None,
        title: str = "Layers",
    ) -> str:
        """See :func:`sweeprof.report.layer_formats.to_html`."""
        return written(layer_formats.to_html(self, columns, inclusive, title), path)

    def to_latex(
        self,
        path: FilePath | None = None,
        *,
        inclusive: bool = False,
        columns: str | Sequence[str] | None = None,
        standalone: bool = False,
    ) -> str:
        """See :func:`sweeprof.report.layer_formats.to_latex`."""
        return written(layer_formats.to_latex(self, columns, inclusive, standalone), path)

    def to_markdown(
        self, path: FilePath | None = None, *, inclusive: bool = False, columns: str | Sequence[str] | None = None
    ) -> str:
        """See :func:`sweeprof.report.layer_formats.to_markdown`."""
        return written(layer_formats.to_markdown(self, columns, inclusive), path)

    def namespace_tree(self, pool: Mapping[str, object] | None = None) -> str:
        """A nested dictionary as text, by default :meth:`timepool`; see
        :func:`sweeprof.report.layer_table.namespace_tree`.
        """
        return layer_table.namespace_tree(self.timepool() if pool is None else pool)
