"""What reports read from a layer table: columns, tree, remarks on its times, sums, times by module, two tables side by side."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeprof.display import Displayed
from sweeprof.errors import Problem, UserError, choice_problem
from sweeprof.numbers import MISSING, ratio_number, rounded, scaled, significant
from sweeprof.report.view import Cells, View, ViewCell, ViewTable, first_few
from sweeprof.report.view import table as view_table
from sweeprof.results.layer_times import OUTSIDE, ROOT
from sweeprof.results.layers import (
    TIMES,
    LayerRow,
    LayerTable,
    Shapes,
    flops_per_s,
    forward_column,
    share_of,
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
    "macs": ("MACs", "MAC"),
    "flops": ("FLOPs", "FLOP"),
    "ops": ("ops", "op"),
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

SHOWN = (
    "forward_s forward_share backward_s params macs output_shapes flops flops_per_s params_share input_shapes trainable"
).split()
"""What a table shows where no columns are chosen, the most important first; times where it has them."""

RECURSIVE = "(recursive)"
"""Stands for weights that stand with an earlier call of the same module, and marks such a call."""

WEIGHTS = frozenset({"params", "trainable", "frozen", "pruned", "params_bytes", "buffers", "buffers_bytes"})
_MOST_SHAPES = 3


def selected_columns(columns: str | Iterable[str] | None, usual: Iterable[str], table: LayerTable) -> list[str]:
    """Return the columns, or, where None are given, the usual ones without times of which the table has no value.

    Raises:
        UserError: one of them does not exist.
    """
    if columns is None:
        present: list[str] = []
        for column in usual:
            present += [column] if time_column(column) is None else timed(table, [column])
        return list(dict.fromkeys(present))
    chosen = listed(columns)
    options = [*FIGURES, *SHARES, *TEXTS]
    problems = [choice_problem("columns", key, "column of layers", options) for key in chosen if key not in options]
    if problems:
        raise UserError(problems)
    return chosen


def timed(table: LayerTable, columns: Iterable[str]) -> list[str]:
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
    """Return a value of a figure as it is shown, e.g. ``417 kMAC``; ``prefix`` forces that of a count."""
    unit = FIGURES[column][1]
    return scaled(value, unit, None if unit in ("B", "s", "FLOP/s") else prefix)


def call_text(row: LayerRow, holds_calls: bool) -> str:
    """Return a remark on the call: ``(recursive)``, ``(never called)`` or nothing."""
    if row.call < 0:
        return "(never called itself)" if holds_calls else "(never called)"
    return RECURSIVE if row.call else ""


def shape_text(shapes: Shapes) -> str:
    """``[1, 6, 28, 28]``; of many the first few; ``–`` where there are none."""
    texts = [f"[{', '.join(map(str, shape))}]" for shape in shapes]
    return first_few(texts, _MOST_SHAPES) or MISSING


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
            value: Number | None = None
            if column in TIMES:
                value = total_seconds(self.table, column)
            elif column == "flops_per_s":
                value = total_flops_per_s(self.table)
            elif column == "frozen":
                value = self.table.params - self.table.trainable
            elif column != "macs" or self.table.uncounted is None:
                value = getattr(self.table, column, None)
            self._totals[column] = value
        return self._totals[column]

    def number(self, row: LayerRow, column: str) -> Number | None:
        """The exact value of a figure, or a share in 0..1; None where it cannot be had or stands with an earlier call."""
        if column in SHARES:
            figure = forward_column(self.table) if column == "forward_share" else SHARES[column]
            part, whole = self.number(row, figure), self.total(figure)
            return share_of(part, whole)
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
        return scaled(value, "share") if column in SHARES else text_of(value, column, prefix)

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
    children: defaultdict[int | None, list[int]] = defaultdict(list)
    holding: set[int | None] = {None}
    for index, parent in enumerate(parents):
        children[parent].append(index)
        around = parent if rows[index].call >= 0 else None
        while around not in holding:
            assert around is not None
            holding.add(around)
            around = parents[around]
    found: list[TreeNode] = []

    stack: list[tuple[int, int | None, int]] = [(index, None, 0) for index in reversed(children[None])]
    while stack:  # calls may be nested deeper than functions of Python
        index, parent, depth = stack.pop()
        row = rows[index]
        label = one_line(row.path)
        if row.path in _LABELS:
            label = _LABELS[row.path]
        elif parent is not None and found[parent].row.path != ROOT:
            label = one_line(row.path.removeprefix(f"{found[parent].row.path}."))
        within = children[index]
        is_last = index == children[parents[index]][-1]
        found.append(TreeNode(row, parent, depth, label, is_last, bool(within), index in holding))
        stack += [(child, len(found) - 1, depth + 1) for child in reversed(within)]
    return found


_LABELS = {ROOT: "", OUTSIDE: "outside any module"}


def place_text(path: str) -> str:
    """The path of a module as a reader knows it."""
    return {ROOT: "the model", OUTSIDE: "no module"}.get(path, one_line(path))


def _parents(rows: Sequence[LayerRow]) -> list[int | None]:
    first: dict[str, int] = {}
    if not any(row.parent is not None for row in rows):
        # Rows that do not tell their callers may stand before the one that owns them; among calls that would be a mistake.
        for index, row in enumerate(rows):
            first.setdefault(row.path, index)
    latest = dict(first)
    parents: list[int | None] = []
    for index, row in enumerate(rows):
        # A module that is never called has one row, below the first call of the module that owns it.
        known = first if row.call < 0 else latest
        owner = _owner(row.path, known)
        parent = None if owner is None else known[owner]
        first.setdefault(row.path, index)
        latest[row.path] = index
        if parent is not None and row.parent is not None and row.call >= 0:
            # In a list of modules that is in this call of the caller, the list is the parent; else the caller is.
            outer: int | None = parent
            while outer is not None and rows[outer].call < 0:
                outer = parents[outer]
            if outer != row.parent:
                parent = row.parent
        parents.append(parent)
    return parents


def _owner(path: str, known: Collection[str]) -> str | None:
    """Return the path of the nearest module around a path; the root is around all."""
    if path in (ROOT, OUTSIDE):
        return None
    while "." in path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return ROOT if ROOT in known else None


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
    if timing.repeats == 1:
        lines = [f"Times are those of one step of {timing.mode}."]
    else:
        lines = [
            f"Times are medians over {timing.repeats} steps of {timing.mode}, scaled by one factor so that they add up."
        ]
    for name, phase in (("forward", timing.forward), ("backward", timing.backward)):
        if phase is None:
            continue
        if phase.plain_s is None or phase.covered is None or phase.overhead is None:
            line = f"Every {name} had probes; their cost is subtracted."
        else:
            coverage = f"the calls cover {rounded(phase.covered, 'share')}"
            if phase.outside_s:
                coverage += f", {rounded(phase.outside_s, 's')} of it outside any module"
                if timing.mode == "training":
                    coverage += ": the loss and whatever else runs there"
            line = (
                f"The {name} takes {rounded(phase.plain_s, 's')} without probes; {coverage}. "
                f"Probes made it take {significant(phase.overhead)} times as long; their cost is subtracted."
            )
        if phase.doubt:
            line += f" Warning: {phase.doubt}."
        lines.append(line)
    if timing.unplaced:
        lines.append(f"Timed, but not seen by the analysis: {_listed(timing.unplaced)}.")
    return lines


def uncounted_lines(table: LayerTable) -> list[str]:
    """Return lines about operators that are not counted; none if all are."""
    lines = []
    if table.uncounted is not None:
        lines.append(f"Not counted: {one_line(table.uncounted)}.")
    if table.uncovered:
        missing = ", ".join(f"{calls} × {one_line(name)}" for name, calls in table.uncovered.items())
        lines.append(f"Not counted, because there is no formula: {missing}.")
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


def missing_lines(table: LayerTable, columns: Iterable[str]) -> list[str]:
    """One line per reason: which times of which calls are missing. A layer that is never called says so by itself."""
    read = {(time_column(column) or "").partition("_")[0]: None for column in columns}
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for phase in filter(None, read):
        for row in table.rows:
            reason = why_missing(table, row, f"{phase}_s") if row.call >= 0 else None
            if reason is not None:
                found[phase, reason].append(row.path)
    return [f"No {phase} time of {_listed(paths)}: {reason}." for (phase, reason), paths in found.items()]


def _listed(paths: Iterable[str]) -> str:
    names = [_NAMES.get(path, one_line(path)) for path in dict.fromkeys(paths)]
    return first_few(names, _MOST_NAMES)


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
        rows = [([one_line(name) or "outside any module"], value, share) for name, value, share in self]
        return _figures_view(["type"], rows, self.column)


class TopRows(Displayed, list[TopRow]):
    """The rows with the largest figures; printed, a table."""

    def __init__(self, rows: Iterable[TopRow], column: str) -> None:
        super().__init__(rows)
        self.column = column

    def __view__(self) -> View:
        rows = [([one_line(row.path), one_line(row.type)], value, share) for row, value, share in self]
        return _figures_view(["layer", "type"], rows, self.column)


def _figures_view(
    names: Sequence[str], rows: Iterable[tuple[list[str], Number | None, float | None]], column: str
) -> View:
    title = column_title(column)
    cells: list[Cells] = []
    for texts, value, share in rows:
        cells.append([*texts, ViewCell(text_of(value, column), value), ViewCell(scaled(share, "share"), share)])
    return View("", (view_table([*names, title, "share"], cells, [title, "share"]),))


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
    sums: dict[str, Number | None] = {}
    for row in figures.table.rows:
        if depth is not None and row.depth != depth:
            continue
        own = getattr(row, column)
        value = figures.number(row, column)
        # A module's weights count in its first call only, and a module that is never called takes no time.
        if value is None and (own is not None or (row.call < 0 and time_column(column))):
            value = 0
        so_far = sums.get(row.type, 0)
        sums[row.type] = None if value is None or so_far is None else so_far + value
    whole = figures.total(column)
    found = [(name, value, share_of(value, whole)) for name, value in sums.items()]
    found.sort(key=lambda item: (item[1] is None, -(item[1] or 0)))
    return TypeSums(found[:top], column)


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
    found: list[TopRow] = []
    for row in table.rows:
        value = figures.number(row, column)
        if value is not None:
            found.append((row, value, None if column in RATES else share_of(value, whole)))
    found.sort(key=lambda item: -item[1])
    return TopRows(found[:top], column)


def summary_lines(table: LayerTable, depth: int | None = 2, top: int | None = 3) -> list[str]:
    """One line per column, e.g. ``MACs: Conv2d 406 kMAC, Linear 10.9 kMAC, Tanh 0 MAC``.

    Arguments and errors are those of :func:`by_type`.
    """
    lines = []
    measured = [column for column in ("forward_s", "backward_s") if timed(table, (column,))]
    for column in (*SUMMARY, *measured):
        title = column_title(own_seconds(column, table) if depth is None else column)
        sums = []
        for name, value, _ in by_type(table, depth, top, column):
            sums.append(f"{one_line(name) or 'outside any module'} {text_of(value, column)}")
        lines.append(f"{title}: {', '.join(sums) or MISSING}")
    return lines


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
    rows: defaultdict[str, list[LayerRow]] = defaultdict(list)
    within_itself: set[int] = set()
    for row in table.rows:
        rows[row.path].append(row)
        above = row.parent
        while above is not None and table.rows[above].path != row.path:
            above = table.rows[above].parent
        if above is not None:
            within_itself.add(id(row))
    children: defaultdict[str | None, list[str]] = defaultdict(list)
    for path in rows:
        children[_owner(path, rows)].append(path)

    def made(path: str, depth: int) -> ModuleTimes:
        calls = rows[path]
        # A call without a backward adds nothing to the sum, nor does one whose time is in that of a call around it.
        outer = [row for row in calls if id(row) not in within_itself]
        forwards = [row.forward_s for row in outer if row.forward_s is not None]
        backwards = [row.backward_s for row in outer if row.backward_s is not None]
        reason = None
        if not forwards or not backwards:
            reason = why_missing(table, calls[0], "backward_s" if forwards else "forward_s")
        within = tuple(made(child, depth + 1) for child in children[path])
        return ModuleTimes(tuple(calls), depth, _total(forwards), _total(backwards), reason, within)

    return [made(path, 0) for path in children[None]]


def _total(seconds: Sequence[float]) -> float | None:
    return sum(seconds) if seconds else None


_COLLECTIONS = {"ModuleList": "list", "ModuleDict": "dict"}
_INDENT = 4


def timings(table: LayerTable) -> dict[str, Json]:
    """Seconds by path: ``{"conv1": {"forward": 0.0012, "backward": 0.0025, "reason": None, "calls": […]}}``.

    They include the modules within; a module called several times has the sum, and under ``calls`` each call by itself. Every
    module is there: a time that cannot be had is None, and ``reason`` says why.
    """
    found: dict[str, Json] = {}

    def add(modules: Iterable[ModuleTimes]) -> None:
        for module in modules:
            found[module.row.path] = _timing(module.forward, module.backward, module.reason)
            calls = found[module.row.path]["calls"] = []
            for row in module.calls:
                reason = why_missing(table, row, "backward_s")
                calls.append(_timing(row.forward_s, row.backward_s, reason))
            add(module.children)

    add(modules(table))
    return found


def _timing(forward: float | None, backward: float | None, reason: str | None) -> Json:
    return {"forward": forward, "backward": backward, "reason": reason}


def timepool(table: LayerTable) -> dict[str, Json]:
    """Milliseconds as a nested dictionary: ``{"MyNet": {"forward_cost": 1.2, …, "children": {"MyNet.linear1": {…}}}}``.

    Every module has ``forward_cost`` and ``backward_cost`` with the modules within it, None where a further key ``reason`` says
    why; ``deepth``, how many modules are around it; ``collect_flag``, ``list`` or ``dict`` for a collection that is never called
    itself and costs what it holds, else ``none``; ``children``. Several calls of a module are summed.

    Raises:
        UserError: the table has no row of the model itself.
    """
    for module in modules(table):
        if module.row.path == ROOT:
            name = one_line(module.row.type)
            return {name: _pool(module, name)}
    raise UserError("the layers have no row of the model itself, which holds all others")


def _pool(module: ModuleTimes, root: str) -> Json:
    row = module.row
    # By the class, and where that is a subclass, by what it holds: a list numbers its modules.
    collection = _COLLECTIONS.get(row.type, "none")
    if collection == "none" and row.call < 0 and module.children:
        collection = "list" if all(child.label.isdecimal() for child in module.children) else "dict"
    pool: Json = {
        "forward_cost": None if module.forward is None else 1e3 * module.forward,
        "backward_cost": None if module.backward is None else 1e3 * module.backward,
    }
    if module.reason:
        pool["reason"] = module.reason
    children = {f"{root}.{one_line(child.row.path)}": _pool(child, root) for child in module.children}
    return {**pool, "deepth": module.depth, "collect_flag": collection, "children": children}


def namespace_tree(pool: Mapping[str, object]) -> str:
    """A nested dictionary as text: a line per key, those within indented by 4, ``key`` padded to 30 and ``---> value``."""
    lines = []
    for key, value in pool.items():
        if isinstance(value, Mapping):
            lines.append(key)
            if value:
                lines.append(textwrap.indent(namespace_tree(value), " " * _INDENT))
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else value
            lines.append(f"{key:30s} ---> {shown}")
    return "\n".join(lines)


def layerwise_summary(table: LayerTable, precision: int = 6) -> str:
    """The module tree like ``repr(model)``, every module with its shapes, parameters and times in milliseconds.

    ``(0): Linear([16, 10] -> [16, 5], 55 params, Forward Time: 0.012345ms | Backward Time: 0.023456ms)``. Figures include the
    modules within; of a module called several times they are the sum, of its shapes the first call's.
    """
    shown, reason = with_figures(table)
    lines: list[str] = []
    for module in modules(shown):
        lines += _summary(module, precision)
    if reason:
        lines.append(reason)
    return "\n".join(lines)


def _summary(module: ModuleTimes, precision: int) -> list[str]:
    row = module.row
    facts = []
    shapes = [shape_text(row.input_shapes), shape_text(row.output_shapes)]
    if shapes != [MISSING, MISSING]:
        facts.append(" -> ".join(shapes))
    if row.params:
        facts.append(f"{scaled(row.params, 'params')} params")
    if len(module.calls) > 1:
        facts.append(f"{len(module.calls)} calls")
    times = []
    for name, seconds in (("Forward", module.forward), ("Backward", module.backward)):
        times.append(f"{name} Time: {MISSING if seconds is None else f'{1e3 * seconds:.{precision}f}ms'}")
    facts.append(" | ".join(times))
    if module.reason:
        facts[-1] += f" ({module.reason})"
    indent = "  " * module.depth
    label = f"({one_line(module.label)}): " if module.label else ""
    opening = f"{indent}{label}{one_line(row.type) or 'outside any module'}("
    if not module.children:
        return [f"{opening}{', '.join(facts)})"]
    lines = [opening, f"{indent}  {', '.join(facts)}"]
    for child in module.children:
        lines += _summary(child, precision)
    return [*lines, f"{indent})"]


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

    def differs(self, column: str) -> bool:
        """True if the tables have different values of a figure."""
        return self.figures[column].left != self.figures[column].right


class SideRows(Displayed, list[SideRow]):
    """The rows of two tables; printed, both values of every figure, with the ratio where they differ."""

    def __view__(self) -> View:
        if not self:
            return View("no layers")
        left, right = self[0].names
        differing = [name for name in self[0].figures if any(row.differs(name) for row in self)]
        headings = ["layer", "call"]
        for column in differing:
            title = column_title(column)
            headings += [f"{title} {left}", f"{title} {right}", f"{title} ratio"]
        rows = []
        for row in self:
            cells = [ViewCell("(model)" if row.path == ROOT else one_line(row.path)), ViewCell(str(row.call))]
            absent = "" if row.is_in_both else f"only {right if row.left is None else left} has this layer"
            for column in differing:
                pair = row.figures[column]
                cells.append(ViewCell(text_of(pair.left, column), pair.left, absent))
                cells.append(ViewCell(text_of(pair.right, column), pair.right, absent))
                if pair.left == pair.right or pair.left is None or pair.right is None:
                    cells.append(ViewCell(""))
                elif pair.ratio is None:
                    cells.append(ViewCell(MISSING, note="no ratio, because the first value is zero"))
                else:
                    cells.append(ViewCell(f"×{ratio_number(pair.ratio)}", pair.ratio))
            rows.append(cells)
        parts: list[str | ViewTable] = [view_table(headings, rows, headings[1:])]
        equal = [column_title(name) for name in self[0].figures if name not in differing]
        if equal:
            parts.append(f"Equal in every layer: {', '.join(equal)}.")
        count = sum(any(row.differs(name) for name in differing) for row in self)
        return View(f"{count} of {len(self)} layers differ", tuple(parts))


def side_by_side(
    left: LayerTable,
    right: LayerTable,
    names: tuple[str, str] = ("left", "right"),
    columns: str | Sequence[str] | None = None,
) -> SideRows:
    """Every row of either table, matched by path and call, in the order of the left one.

    A row that only the right table has comes after the one it follows there. Figures include the rows within, as in the printed
    tree, unless one of the tables does not tell which call was made in which. By default the columns are :data:`COLUMNS` and the
    times that either table has.

    Raises:
        UserError: a column does not exist or is no figure.
    """
    (inclusive_left, left_reason), (inclusive_right, right_reason) = with_figures(left), with_figures(right)
    if left_reason is None and right_reason is None:
        left, right = inclusive_left, inclusive_right
    either = [*COLUMNS, *timed(left, TIMES), *timed(right, TIMES)]
    chosen = [figure(column) for column in (dict.fromkeys(either) if columns is None else listed(columns))]
    lefts = {(row.path, row.call): row for row in left.rows}
    rights = {(row.path, row.call): row for row in right.rows}
    of_left, of_right = Figures(left), Figures(right)
    found = SideRows()
    for key in _merged(list(lefts), list(rights)):
        one, other = lefts.get(key), rights.get(key)
        figures = {}
        for column in chosen:
            value = None if one is None else of_left.number(one, column)
            other_value = None if other is None else of_right.number(other, column)
            figures[column] = FigurePair(value, other_value)
        found.append(SideRow(*key, names, one, other, figures))
    return found


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
