"""Sums of a layer table by class name, and its largest rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeprof.display import Displayed
from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.numbers import MISSING, percent, ratio_number, rounded, scaled, significant
from sweeprof.report.view import Cells, View, ViewCell, table
from sweeprof.report.view import table as view_table
from sweeprof.results.layer_times import OUTSIDE, ROOT, Mode, PhaseSummary
from sweeprof.results.layers import (
    TIMES,
    LayerRow,
    LayerTable,
    Shapes,
    flops_per_s,
    forward_column,
    total_flops_per_s,
    total_seconds,
    why_untimed,
)
from sweeprof.results.measurement import Number
from sweeprof.results.record import Json
from sweeprof.text import listed, one_line

FIGURES: dict[str, tuple[str, str]] = {
    "params": ("params", "params"),
    "trainable": ("trainable", "params"),
    "frozen": ("frozen", "params"),
    "pruned": ("pruned", "params"),
    "params_bytes": ("params size", "B"),
    "buffers": ("buffers", "elements"),
    "buffers_bytes": ("buffers size", "B"),
    "macs": ("MACs", "MACs"),
    "flops": ("FLOPs", "FLOPs"),
    "ops": ("ops", "ops"),
    "act_bytes": ("activations", "B"),
    "input_bytes": ("input size", "B"),
    "output_bytes": ("output size", "B"),
    "forward_s": ("forward", "s"),
    "forward_self_s": ("forward self", "s"),
    "backward_s": ("backward", "s"),
    "backward_self_s": ("backward self", "s"),
    "flops_per_s": ("FLOP/s", "FLOP/s"),
}
"""Numeric columns: title and unit of :func:`sweeprof.numbers.scaled`."""

SHARES = {
    **{f"{key}_share": key for key in ("params", "macs", "flops", "act_bytes")},
    "forward_share": "forward_s",
}
"""Share columns, each with the figure it is a share of; of the forward it is own seconds where the table is not inclusive."""

TEXTS = {
    "input_shapes": "input shape",
    "output_shapes": "output shape",
    "kernel_size": "kernel",
    "stride": "stride",
    "groups": "groups",
    "dtypes": "param types",
    "input_dtypes": "input types",
    "output_dtypes": "output types",
}

RATES = frozenset({"flops_per_s"})
"""Figures that do not add up."""

SHOWN = "input_shapes output_shapes params params_share macs flops trainable".split()
"""What a table shows where no columns are chosen, besides the times where it has them."""

SHOWN_TIMES = "forward_s forward_share flops_per_s backward_s".split()
"""The times that it shows; own seconds where the table is not inclusive."""

RECURSIVE = "(recursive)"
"""Stands for weights that stand with an earlier call of the same module, and marks such a call."""

WEIGHTS = frozenset({"params", "trainable", "frozen", "pruned", "params_bytes", "buffers", "buffers_bytes"})
_MOST_SHAPES = 3


def known(columns: Iterable[str]) -> list[str]:
    """The columns as a list.

    Raises:
        UserError: one of them does not exist.
    """
    chosen = list(columns)
    options = [*FIGURES, *SHARES, *TEXTS]
    problems = [choice_problem("columns", key, "column of layers", options) for key in chosen if key not in options]
    if problems:
        raise UserError(problems)
    return chosen


def selected_columns(
    columns: str | Iterable[str] | None, usual: Iterable[str], table: LayerTable, times: Iterable[str] = SHOWN_TIMES
) -> list[str]:
    """The columns, or, where None are given, the usual ones and those of ``times`` of which the table has any value.

    Raises:
        UserError: one of them does not exist.
    """
    return known(listed(columns)) if columns is not None else [*usual, *timed(table, times)]


def timed(table: LayerTable, columns: Iterable[str] = SHOWN_TIMES) -> list[str]:
    """The time columns of which the table has any value; own seconds instead of inclusive ones where it is not inclusive."""
    measured = {name for name in TIMES if any(getattr(row, name) is not None for row in table.rows)}
    found = [own_seconds(column, table) for column in columns if time_column(column) in measured]
    return list(dict.fromkeys(found))


def own_seconds(column: str, table: LayerTable) -> str:
    """The column of own seconds that stands for one of inclusive seconds where the table is not inclusive."""
    is_inclusive = column not in ("forward_s", "backward_s") or table.is_inclusive
    return column if is_inclusive else f"{column.removesuffix('_s')}_self_s"


def time_column(column: str) -> str | None:
    """The seconds that a column reads; None for one that has nothing to do with time."""
    if column in RATES:
        return "forward_s"
    read = SHARES.get(column, column)
    return read if read in TIMES else None


def why_missing(table: LayerTable, row: LayerRow, column: str) -> str | None:
    """Return the reason why a column of times has no value in the row; None if it has one, or is not a time."""
    read = time_column(column)
    reason = None if read is None else why_untimed(table, row, read)
    return None if reason is None else one_line(reason)


def figure(column: str) -> str:
    """The column, which has to be numeric.

    Raises:
        UserError: it is not, or does not exist.
    """
    if column not in FIGURES:
        raise UserError([choice_problem("column", column, "figure of layers", FIGURES)])
    return column


def column_title(column: str) -> str:
    """The header of a column, e.g. ``MACs`` or ``params %``."""
    if column in SHARES:
        return f"{FIGURES[SHARES[column]][0]} %"
    return FIGURES[column][0] if column in FIGURES else TEXTS[column]


def is_numeric(column: str) -> bool:
    """True if the column's entries are right-aligned and sorted by value."""
    return column in FIGURES or column in SHARES


def is_repeated(row: LayerRow) -> bool:
    """True if the row's parameters and buffers are listed at an earlier call of the same module."""
    if row.call < 1:
        return False
    return row.subtree is None or bool(row.subtree.params or row.subtree.buffers)


def text_of(value: Number | None, column: str, prefix: str | None = None) -> str:
    """A value of a figure as it is shown, e.g. ``416.52 KMACs``; what is measured has three significant digits."""
    unit = FIGURES[column][1]
    if value is not None and time_column(column):
        return rounded(value, unit) if unit == "s" else scaled(float(f"{value:.3g}"), unit)
    return scaled(value, unit, None if unit == "B" else prefix)


def call_text(row: LayerRow, holds_calls: bool) -> str:
    """Return a remark on the call: ``(recursive)``, ``(never called)`` or nothing."""
    if row.call < 0:
        return "(never called itself)" if holds_calls else "(never called)"
    return RECURSIVE if row.call else ""


def shape_text(shapes: Shapes) -> str:
    """``[1, 6, 28, 28]``; of many the first few; ``–`` where there are none."""
    shown = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes[:_MOST_SHAPES])
    more = len(shapes) - _MOST_SHAPES
    return f"{shown} and {more} more" if more > 0 else shown or MISSING


def with_figures(table: LayerTable) -> tuple[LayerTable, str | None]:
    """The table with inclusive figures, or, where it cannot have them, as it is with the reason."""
    try:
        return table.inclusive(), None
    except ValueError as error:
        return table, f"Values are each layer's own, without child layers: {error}."


def words(value: Any) -> str:
    """Shapes or data types as a text; ``–`` where there are none."""
    if not value:
        return MISSING
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Sequence) and isinstance(value[0], int):
        return "×".join(map(str, value))
    if isinstance(value, Sequence) and isinstance(value[0], Sequence) and not isinstance(value[0], str):
        return shape_text(tuple(tuple(shape) for shape in value))
    return one_line(", ".join(dict.fromkeys(map(str, value))))


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
        if column in SHARES:
            figure = forward_column(self.table) if column == "forward_share" else SHARES[column]
            part, whole = self.number(row, figure), self.total(figure)
            return None if part is None or not whole else part / whole
        if column == "flops_per_s":
            return flops_per_s(self.table, row)
        if column in WEIGHTS and is_repeated(row):
            return None
        value: Number | None = getattr(row, column)
        return value

    def text(self, row: LayerRow, column: str, prefix: str | None = None) -> str:
        """Return the text of a cell; ``prefix`` forces the unit prefix of counts, as in :func:`sweeprof.numbers.scaled`."""
        if column in TEXTS:
            return words(getattr(row, column))
        if SHARES.get(column, column) in WEIGHTS and is_repeated(row):
            return RECURSIVE
        if column == "trainable":
            return row.is_trainable or MISSING
        value = self.number(row, column)
        if column == "forward_share":
            return percent(value, precision=1)  # what is measured is not known to more
        return percent(value) if column in SHARES else text_of(value, column, prefix)

    def total_text(self, column: str) -> str:
        """The total as it is shown; empty for a column that has none by its nature."""
        if column not in FIGURES or column == "trainable":
            return ""
        return text_of(self.total(column), column)


# The nesting of a layer table's rows: the order and the depth of every tree.


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One row in its place."""

    row: LayerRow
    parent: int | None
    """Position of the node that this one is drawn in, among the nodes; None for the outermost."""
    depth: int
    """How many nodes are around this one; differs from the row's where a module is called by another than its owner."""
    label: str
    """The path as seen from the parent: the last part of it, or all of it where another module owns the row."""
    is_last: bool
    """True if no sibling follows."""
    has_children: bool
    holds_calls: bool
    """True if a layer within it was called."""


def nodes(table: LayerTable) -> list[TreeNode]:
    """Every row, each before the rows within it. Calls stand in the call they were made in.

    A module that is never called itself, such as a list, stands around the calls of what it holds. Where the table does not
    tell which call was made in which, the paths do.
    """
    rows = table.rows
    parents = _parents(rows)
    children: dict[int | None, list[int]] = defaultdict(list)
    for index, parent in enumerate(parents):
        children[parent].append(index)
    holding: set[int] = set()
    for index, row in enumerate(rows):
        around = parents[index] if row.call >= 0 else None
        while around is not None and around not in holding:
            holding.add(around)
            around = parents[around]
    found: list[TreeNode] = []
    stack: list[tuple[int, int | None, int]] = [(index, None, 0) for index in reversed(children[None])]
    while stack:
        index, place, depth = stack.pop()
        siblings = children[parents[index]]
        label = _label(rows[index], None if place is None else found[place].row)
        is_last = index == siblings[-1]
        found.append(TreeNode(rows[index], place, depth, label, is_last, bool(children[index]), index in holding))
        own = len(found) - 1
        stack += [(child, own, depth + 1) for child in reversed(children[index])]
    return found


def place_text(path: str) -> str:
    """The path of a module as a reader knows it."""
    return {ROOT: "the model", OUTSIDE: "no module"}.get(path, one_line(path))


def _parents(rows: Sequence[LayerRow]) -> list[int | None]:
    tells = any(row.parent is not None for row in rows)
    # Rows that tell nothing may stand before the one that owns them; among calls that would be a mistake.
    first = {} if tells else {row.path: index for index, row in reversed(list(enumerate(rows)))}
    latest = dict(first)
    parents: list[int | None] = []
    for index, row in enumerate(rows):
        # A module that is never called has one row, below the first call of the module that owns it.
        around = None if row.path in (ROOT, OUTSIDE) else _around(row.path, first if row.call < 0 else latest)
        first.setdefault(row.path, index)
        latest[row.path] = index
        if around is None or row.parent is None or row.call < 0:
            parents.append(around)
        else:
            parents.append(_list_between(rows, parents, around, row.parent))
    return parents


def _list_between(rows: Sequence[LayerRow], parents: list[int | None], around: int, caller: int) -> int:
    """The list of modules between a call and its caller, where there is one in this call of the caller; else the caller."""
    outer: int | None = around
    while outer is not None and rows[outer].call < 0:
        outer = parents[outer]
    return around if outer == caller else caller


def _around(path: str, known: dict[str, int]) -> int | None:
    """The row of the nearest path above; the root is above all."""
    while "." in path:
        path = path.rpartition(".")[0]
        if path in known:
            return known[path]
    return known.get(ROOT)


def _label(row: LayerRow, parent: LayerRow | None) -> str:
    if row.path in (ROOT, OUTSIDE):
        return "" if row.path == ROOT else "outside any module"
    prefix = "" if parent is None or parent.path == ROOT else f"{parent.path}."
    return one_line(row.path.removeprefix(prefix))


# Remarks on the times of a layer table: their quality, and why some are missing.


_MOST_NAMES = 3
_NAMES = {ROOT: "the model", OUTSIDE: "what runs outside any module"}


def remarks_on(table: LayerTable, columns: Iterable[str]) -> list[str]:
    """Both, where times are among the columns."""
    shown = list(columns)
    if not any(time_column(column) for column in shown):
        return excluded_lines(table)
    return [*timing_lines(table), *excluded_lines(table), *missing_lines(table, shown)]


def timing_lines(table: LayerTable) -> list[str]:
    """Return lines on how the times were measured, and on coverage and overhead of each phase; none for a table without times."""
    timing = table.timing
    if timing is None:
        return []
    lines = [_how(timing.repeats, timing.mode), _phase("forward", timing.forward, timing.mode)]
    lines += [_phase("backward", timing.backward, timing.mode)] if timing.backward else []
    if timing.unplaced:
        lines.append(f"Timed, but not seen by the analysis: {_listed(timing.unplaced)}.")
    return lines


def excluded_lines(table: LayerTable) -> list[str]:
    """Return lines about the modules that were excluded before measuring; none if there are none."""
    if not table.excluded:
        return []
    named = [path for path in table.excluded if path != ROOT]
    lines = []
    if len(named) < len(table.excluded):
        where = "" if table.timing is None else "; the time of all others runs outside any module"
        lines.append(f"Only these modules are counted{where}.")
    if named:
        where = "" if table.timing is None else "; their time is part of that of the calls around them"
        lines.append(f"Excluded, and not counted: {_listed(named)}{where}.")
    return lines


def _how(steps: int, mode: Mode) -> str:
    if steps == 1:
        return f"Times are those of one step of {mode}."
    return f"Times are medians over {steps} steps of {mode}, scaled by one factor so that they add up."


def _phase(name: str, phase: PhaseSummary, mode: Mode) -> str:
    explained = _explained(name, phase, mode)
    return f"{explained} Warning: {phase.doubt}." if phase.doubt else explained


def _explained(name: str, phase: PhaseSummary, mode: Mode) -> str:
    if phase.plain_s is None or phase.covered is None or phase.overhead is None:
        return f"Every {name} had probes; their cost is subtracted."
    what = ": the loss and whatever else runs there" if mode == "training" else ""
    outside = f", {rounded(phase.outside_s, 's')} of it outside any module{what}" if phase.outside_s else ""
    return (
        f"The {name} takes {rounded(phase.plain_s, 's')} without probes; the calls cover {percent(phase.covered, 1)}{outside}. "
        f"Probes made it take {significant(phase.overhead)} times as long; their cost is subtracted."
    )


def missing_lines(table: LayerTable, columns: Iterable[str]) -> list[str]:
    """One line per reason: which times of which calls are missing. A layer that is never called says so by itself."""
    found: dict[tuple[str, str], list[str]] = {}
    phases = dict.fromkeys(read.partition("_")[0] for column in columns if (read := time_column(column)))
    for phase in phases:
        for row in table.rows:
            reason = why_missing(table, row, f"{phase}_s") if row.call >= 0 else None
            if reason is not None:
                found.setdefault((phase, reason), []).append(row.path)
    return [f"No {phase} time of {_listed(paths)}: {reason}." for (phase, reason), paths in found.items()]


def _listed(paths: Iterable[str]) -> str:
    names = [_NAMES.get(path, one_line(path)) for path in dict.fromkeys(paths)]
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


# Sums of a layer table by class name, and its largest rows.


SUMMARY = ("params", "macs", "flops", "act_bytes")
"""Columns of :func:`summary_lines`; the times come after them where the table has any."""

TypeSum = tuple[str, Number | None, float | None]
"""Class name, sum in base units, share of the table's total in 0..1; None where it cannot be had."""
TopRow = tuple[LayerRow, Number, float | None]
"""Row, its figure in base units, its share of the table's total; None for a rate."""


class TypeSums(Displayed, list[TypeSum]):
    """Sums of a figure by class name; printed, a table."""

    def __init__(self, sums: Iterable[TypeSum], column: str) -> None:
        super().__init__(sums)
        self.column = column

    def __view__(self) -> View:
        title = column_title(self.column)
        rows: list[Cells] = [
            [one_line(name) or "outside any module", _figure_cell(value, self.column), _share_cell(share)]
            for name, value, share in self
        ]
        return View("", (view_table(["type", title, "share"], rows, [title, "share"]),))


class TopRows(Displayed, list[TopRow]):
    """The rows with the largest figures; printed, a table."""

    def __init__(self, rows: Iterable[TopRow], column: str) -> None:
        super().__init__(rows)
        self.column = column

    def __view__(self) -> View:
        title = column_title(self.column)
        rows: list[Cells] = [
            [one_line(row.path), one_line(row.type), _figure_cell(value, self.column), _share_cell(share)]
            for row, value, share in self
        ]
        return View("", (view_table(["layer", "type", title, "share"], rows, [title, "share"]),))


def _figure_cell(value: Number | None, column: str) -> ViewCell:
    return ViewCell(text_of(value, column), value)


def _share_cell(share: float | None) -> ViewCell:
    return ViewCell(percent(share), share)


def by_type(table: LayerTable, depth: int | None = None, top: int | None = None, column: str = "macs") -> TypeSums:
    """Sums by class name, the largest first, and among equals the one that comes first in the model.

    Args:
        table: the layers.
        depth: sums the figures that include what is within, over the rows of exactly this depth, as the profilers of this
            field do; a row within another row of that depth counts in both. -1 is the deepest level, as in DeepSpeed's profiler.
            None sums every row's own figures, so that the shares make 1.
        top: how many to return, the largest first; None returns all.
        column: a figure of :data:`sweeprof.report.layer_table.FIGURES` that adds up; without a depth, ``forward_s`` and
            ``backward_s`` are own seconds.

    Raises:
        ValueError: a depth is given, and the table does not tell which call was made in which.
        UserError: the column does not exist, is no figure, or is a rate; the depth is below -1, or ``top`` below 0.
    """
    figure(column)
    depth = level(table, depth)
    if top is not None and top < 0:
        raise UserError([Problem("top", top, "must be at least 0, or None for all.")])
    if column in RATES:
        raise UserError([Problem("column", column, "is a rate: rates do not add up.")])
    if depth is None and table.is_inclusive:
        raise ValueError("these figures include one another; give a depth, or the table before inclusive()")
    figures = Figures(table if depth is None else table.inclusive())
    column = own_seconds(column, figures.table)
    groups: dict[str, list[Number | None]] = {}
    for row in figures.table.rows:
        if depth is None or row.depth == depth:
            groups.setdefault(row.type, []).append(_counted(figures, row, column))
    whole = figures.total(column)
    found = [(name, value, _share(value, whole)) for name, values in groups.items() for value in (_sum(values),)]
    return TypeSums(sorted(found, key=lambda item: _order(item[1]))[:top], column)


def level(table: LayerTable, depth: int | None) -> int | None:
    """The depth that ``depth`` stands for in this table: -1 is the deepest level.

    Raises:
        UserError: it is below -1.
    """
    if depth is None or depth >= 0:
        return depth
    if depth < -1:
        raise UserError([Problem("depth", depth, "must be at least 0, -1 for the deepest level, or None.")])
    return max((row.depth for row in table.rows), default=0)


def top_layers(table: LayerTable, column: str = "macs", top: int = 3) -> TopRows:
    """The rows with the largest figures, the largest first: row, value in base units, share of the table's total.

    ``forward_s`` and ``backward_s`` include the calls within a row in any table. A rate has no share. Rows
    without that figure are left out, and so are weights that stand with an earlier call of the same module.

    Raises:
        UserError: the column does not exist or is no figure.
    """
    figure(column)
    figures = Figures(table)
    whole = figures.total(column)
    known = [(row, value) for row in table.rows if (value := figures.number(row, column)) is not None]
    known.sort(key=lambda item: -item[1])
    is_rate = column in RATES
    return TopRows([(row, value, None if is_rate else _share(value, whole)) for row, value in known[:top]], column)


def summary_lines(table: LayerTable, depth: int | None = 2, top: int | None = 3) -> list[str]:
    """One line per column, e.g. ``MACs: Conv2d 405.6 KMACs, Linear 10.92 KMACs, Tanh 0 MACs``.

    Arguments and errors are those of :func:`by_type`.
    """
    lines = []
    measured = [column for column in ("forward_s", "backward_s") if timed(table, (column,))]
    for column in (*SUMMARY, *measured):
        title = column_title(own_seconds(column, table) if depth is None else column)
        sums = [
            f"{one_line(name) or 'outside any module'} {text_of(value, column)}"
            for name, value, _ in by_type(table, depth, top, column)
        ]
        lines.append(f"{title}: {', '.join(sums) or MISSING}")
    return lines


def _counted(figures: Figures, row: LayerRow, column: str) -> Number | None:
    """Return the row's contribution to a sum: a module's weights count in its first call only; an uncalled module takes no time."""
    if row.call < 0 and time_column(column) and getattr(row, column) is None:
        return 0
    value = figures.number(row, column)
    return 0 if value is None and getattr(row, column) is not None else value


def _sum(values: Iterable[Number | None]) -> Number | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _share(value: Number | None, whole: Number | None) -> float | None:
    return None if value is None or not whole else value / whole


def _order(value: Number | None) -> tuple[bool, Number]:
    return (value is None, -(value or 0))


# Times by module, in the three forms of the package nnprofiler: a summary like ``repr(model)``, timings, a pool of costs.


@dataclass(frozen=True, slots=True)
class ModuleTimes:
    """One module; seconds include the modules within it."""

    calls: tuple[LayerRow, ...]
    """Its rows; one for a module that is never called."""
    depth: int
    """How many modules are around it."""
    forward: float | None
    backward: float | None
    reason: str | None
    """Why one of them is None."""
    children: tuple[ModuleTimes, ...]

    @property
    def row(self) -> LayerRow:
        """Its first call, where its parameters stand."""
        return self.calls[0]

    @property
    def label(self) -> str:
        """The module's name in its parent, e.g. ``0`` in a list; empty for the model."""
        return "" if self.row.path in (ROOT, OUTSIDE) else self.row.name


def modules(table: LayerTable) -> list[ModuleTimes]:
    """The outermost modules, each with those within it: the model, and what runs outside any module where there is such."""
    rows: dict[str, list[LayerRow]] = defaultdict(list)
    for row in table.rows:
        rows[row.path].append(row)
    children: dict[str | None, list[str]] = defaultdict(list)
    for path in rows:
        children[_owner(path, rows)].append(path)

    def made(path: str, depth: int) -> ModuleTimes:
        calls = rows[path]
        forward, backward = (_sum_of_calls(getattr(row, name) for row in calls) for name in ("forward_s", "backward_s"))
        missing = "forward_s" if forward is None else "backward_s"
        reason = why_missing(table, calls[0], missing) if None in (forward, backward) else None
        within = tuple(made(child, depth + 1) for child in children[path])
        return ModuleTimes(tuple(calls), depth, forward, backward, reason, within)

    return [made(path, 0) for path in children[None]]


def _owner(path: str, known: Iterable[str]) -> str | None:
    """The nearest module around it."""
    if path in (ROOT, OUTSIDE):
        return None
    around = path
    while "." in around:
        around = around.rpartition(".")[0]
        if around in known:
            return around
    return ROOT if ROOT in known else None


def _sum_of_calls(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values: a call without a backward adds nothing to it."""
    found = [value for value in values if value is not None]
    return sum(found) if found else None


_COLLECTIONS = {"ModuleList": "list", "ModuleDict": "dict"}
_INDENT = 4


def timings(table: LayerTable) -> dict[str, Json]:
    """Seconds by path: ``{"conv1": {"forward": 0.0012, "backward": 0.0025, "reason": None, "calls": […]}}``.

    They include the modules within; a module called several times has the sum, and under ``calls`` each call by itself. Every
    module is there: a time that cannot be had is None, and ``reason`` says why.
    """
    found: dict[str, Json] = {}
    waiting = modules(table)[::-1]
    while waiting:
        module = waiting.pop()
        calls = [_timing(row.forward_s, row.backward_s, why_missing(table, row, "backward_s")) for row in module.calls]
        found[module.row.path] = {**_timing(module.forward, module.backward, module.reason), "calls": calls}
        waiting += module.children[::-1]
    return found


def _timing(forward: float | None, backward: float | None, reason: str | None) -> dict[str, object]:
    return {"forward": forward, "backward": backward, "reason": reason}


def timepool(table: LayerTable) -> dict[str, Json]:
    """Milliseconds as a nested dictionary: ``{"MyNet": {"forward_cost": 1.2, …, "children": {"MyNet.linear1": {…}}}}``.

    Every module has ``forward_cost`` and ``backward_cost`` with the modules within it, None where a further key ``reason`` says
    why; ``deepth``, how many modules are around it; ``collect_flag``, ``list`` or ``dict`` for a collection that is never called
    itself and costs what it holds, else ``none``; ``children``. Several calls of a module are summed.

    Raises:
        UserError: the table has no row of the model itself.
    """
    root = _root(table)
    name = one_line(root.row.type)
    return {name: _pool(root, name)}


def _root(table: LayerTable) -> ModuleTimes:
    root = next((module for module in modules(table) if module.row.path == ROOT), None)
    if root is None:
        raise UserError("the layers have no row of the model itself, which holds all others")
    return root


def _pool(module: ModuleTimes, root: str) -> dict[str, object]:
    return {
        "forward_cost": _milliseconds(module.forward),
        "backward_cost": _milliseconds(module.backward),
        **({"reason": module.reason} if module.reason else {}),
        "deepth": module.depth,
        "collect_flag": _collection(module),
        "children": {f"{root}.{one_line(child.row.path)}": _pool(child, root) for child in module.children},
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _collection(module: ModuleTimes) -> str:
    """By the class, and where that is a subclass, by what it holds: a list numbers its modules."""
    row = module.row
    if row.call >= 0 or not module.children:
        return _COLLECTIONS.get(row.type, "none")
    numbered = all(child.label.isdecimal() for child in module.children)
    return _COLLECTIONS.get(row.type, "list" if numbered else "dict")


def namespace_tree(pool: Mapping[str, object]) -> str:
    """A nested dictionary as text: a line per key, those within indented by 4, ``key`` padded to 30 and ``---> value``."""
    return "\n".join(_namespace(pool, 0))


def _namespace(pool: Mapping[str, object], indent: int) -> list[str]:
    lines: list[str] = []
    for key, value in pool.items():
        if isinstance(value, Mapping):
            lines += [" " * indent + key, *_namespace(value, indent + _INDENT)]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else value
            lines.append(f"{' ' * indent}{key:30s} ---> {shown}")
    return lines


def layerwise_summary(table: LayerTable, precision: int = 6) -> str:
    """The module tree like ``repr(model)``, every module with its shapes, parameters and times in milliseconds.

    ``(0): Linear([16, 10] -> [16, 5], 55 params, Forward Time: 0.012345ms | Backward Time: 0.023456ms)``. Figures include the
    modules within; of a module called several times they are the sum, of its shapes the first call's.
    """
    shown, reason = with_figures(table)
    lines = [line for module in modules(shown) for line in _summary(module, precision)]
    return "\n".join([*lines, *([reason] if reason else [])])


def _summary(module: ModuleTimes, precision: int) -> list[str]:
    indent = "  " * module.depth
    label = f"({one_line(module.label)}): " if module.label else ""
    opening = f"{indent}{label}{one_line(module.row.type) or 'outside any module'}("
    message = ", ".join([*_described(module.calls), _times(module, precision)])
    if not module.children:
        return [f"{opening}{message})"]
    inner = [line for child in module.children for line in _summary(child, precision)]
    return [opening, f"{indent}  {message}", *inner, f"{indent})"]


def _described(calls: tuple[LayerRow, ...]) -> list[str]:
    row = calls[0]
    shapes = [shape_text(row.input_shapes), shape_text(row.output_shapes)]
    message = [] if shapes == [MISSING, MISSING] else [" -> ".join(shapes)]
    message += [f"{scaled(row.params, 'params')} params"] if row.params else []
    return [*message, *([f"{len(calls)} calls"] if len(calls) > 1 else [])]


def _times(module: ModuleTimes, precision: int) -> str:
    def text(seconds: float | None) -> str:
        return MISSING if seconds is None else f"{1e3 * seconds:.{precision}f}ms"

    why = f" ({module.reason})" if module.reason else ""
    return f"Forward Time: {text(module.forward)} | Backward Time: {text(module.backward)}{why}"


# Two layer tables row by row: what differs, by how much.


COLUMNS = ("params", "macs", "flops", "act_bytes")


@dataclass(frozen=True, slots=True)
class FigurePair:
    """One figure of a row in both tables, in base units; None where it cannot be had."""

    left: Number | None
    right: Number | None

    @property
    def difference(self) -> Number | None:
        """Right minus left."""
        return None if self.left is None or self.right is None else self.right - self.left

    @property
    def ratio(self) -> float | None:
        """Right over left; None where left is zero."""
        return None if self.left is None or self.right is None or not self.left else self.right / self.left


@dataclass(frozen=True, slots=True)
class SideRow:
    """One call of a module in either table or in both."""

    path: str
    call: int
    names: tuple[str, str]
    """The names of the tables."""
    left: LayerRow | None
    """None where only the other table has the row."""
    right: LayerRow | None
    figures: dict[str, FigurePair]
    """By column; a row that one table lacks has no figure there."""

    @property
    def is_in_both(self) -> bool:
        return self.left is not None and self.right is not None


class SideRows(Displayed, list[SideRow]):
    """The rows of two tables; printed, both values of every figure, with the ratio where they differ."""

    def __view__(self) -> View:
        if not self:
            return View("no layers")
        left, right = self[0].names
        differing = [name for name in self[0].figures if any(_differs(row, name) for row in self)]
        equal = [column_title(name) for name in self[0].figures if name not in differing]
        headings = ["layer", "call"]
        for column in differing:
            title = column_title(column)
            headings += [f"{title} {left}", f"{title} {right}", f"{title} ratio"]
        rows = []
        for row in self:
            found = [ViewCell("(model)" if row.path == ROOT else one_line(row.path)), ViewCell(str(row.call))]
            absent = "" if row.is_in_both else f"only {right if row.left is None else left} has this layer"
            for column in differing:
                pair = row.figures[column]
                found += [ViewCell(text_of(value, column), value, absent) for value in (pair.left, pair.right)]
                found.append(_ratio_cell(pair))
            rows.append(found)
        count = sum(any(_differs(row, name) for name in differing) for row in self)
        lines = [f"Equal in every layer: {', '.join(equal)}."] if equal else []
        return View(f"{count} of {len(self)} layers differ", (table(headings, rows, headings[1:]), *lines))


def _ratio_cell(pair: FigurePair) -> ViewCell:
    if pair.left == pair.right or pair.left is None or pair.right is None:
        return ViewCell("")
    if pair.ratio is None:
        return ViewCell(MISSING, note="no ratio, because the first value is zero")
    return ViewCell(f"×{ratio_number(pair.ratio)}", pair.ratio)


def _differs(row: SideRow, column: str) -> bool:
    return row.figures[column].left != row.figures[column].right


def side_by_side(
    left: LayerTable,
    right: LayerTable,
    names: tuple[str, str] = ("left", "right"),
    columns: str | Sequence[str] | None = None,
) -> SideRows:
    """Every row of either table, matched by path and call, in the order of the left one.

    A row that only the right table has comes after the one it follows there. The figures are those of the tables as they are;
    give ``inclusive()`` tables for figures that include the rows within; ``forward_s`` and ``backward_s`` always do. By default
    the columns are :data:`COLUMNS` and the times that either table has.

    Raises:
        UserError: a column does not exist or is no figure.
    """
    either = [*COLUMNS, *timed(left, TIMES), *timed(right, TIMES)]
    chosen = [figure(column) for column in (dict.fromkeys(either) if columns is None else listed(columns))]
    lefts = {(row.path, row.call): row for row in left.rows}
    rights = {(row.path, row.call): row for row in right.rows}
    of_left, of_right = Figures(left), Figures(right)
    found = []
    for key in _merged(list(lefts), list(rights)):
        one, other = lefts.get(key), rights.get(key)
        figures = {
            column: FigurePair(
                None if one is None else of_left.number(one, column),
                None if other is None else of_right.number(other, column),
            )
            for column in chosen
        }
        found.append(SideRow(*key, names, one, other, figures))
    return SideRows(found)


def _merged(lefts: list[tuple[str, int]], rights: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The union in the order of the first; what only the second has follows its predecessor there."""
    here = set(lefts)
    after: dict[tuple[str, int] | None, list[tuple[str, int]]] = {}
    previous: tuple[str, int] | None = None
    for key in rights:
        if key in here:
            previous = key
        else:
            after.setdefault(previous, []).append(key)
    merged = after.get(None, [])
    for key in lefts:
        merged += [key, *after.get(key, [])]
    return merged
