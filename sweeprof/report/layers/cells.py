"""The columns of a layer table, and its cells as exact numbers and as texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sweeprof.errors import UserError, choice_problem
from sweeprof.numbers import MISSING, percent, rounded, scaled, significant
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


def title(column: str) -> str:
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
