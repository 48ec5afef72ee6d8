"""LayerTable: what a model is made of and what one step of it costs, one row per call site of a module."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sweeprof.display import Displayed, Rows
from sweeprof.errors import Unsupported
from sweeprof.results.files import damaged, validated
from sweeprof.results.layer_times import OUTSIDE, ROOT, LayerTimes, TimingSummary, above, is_below, number_frame
from sweeprof.results.record import Json, Stored

if TYPE_CHECKING:
    import pandas


Shapes = tuple[tuple[int, ...], ...]
Bytes = int | float
"""Whole, but for data types of less than a byte."""

FRAME_COLUMNS = [
    *("path", "type", "depth", "call", "params", "trainable", "macs", "flops", "ops"),
    *("input_shapes", "output_shapes", "act_bytes", "frozen", "is_trainable", "pruned", "params_bytes", "buffers"),
    *("buffers_bytes", "dtypes", "kernel_size", "stride", "groups", "input_dtypes", "output_dtypes"),
    *("forward_s", "forward_self_s", "backward_s", "backward_self_s", "time_reason"),
    *("params_share", "macs_share", "forward_share", "flops_per_s", "count_reason"),
]
FUNCTIONAL = "(functional)"
"""Last part of the path, and type, of a row for what a module does outside its submodules."""
COUNTS = ("macs", "flops", "ops", "act_bytes")
TIMES = ("forward_s", "forward_self_s", "backward_s", "backward_self_s")


@dataclass(slots=True)  # not frozen: thousands are made at once, and a frozen one takes four times as long
class Weights:
    """Parameters and buffers: a module's own, or those of its whole subtree, each tensor once."""

    params: int = 0
    """Elements."""
    trainable: int = 0
    params_bytes: Bytes = 0
    buffers: int = 0
    """Elements of persistent state that no optimizer sees (BatchNorm's moving statistics)."""
    buffers_bytes: Bytes = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    """Parameters per data type, e.g. ``{"float32": 61706}``."""
    pruned: int | None = 0
    """Parameters that a pruning mask sets to zero; they are among ``params``. None where the mask has no values, as on meta."""


@dataclass(slots=True)  # not frozen, like Weights
class OperatorCount:
    """All uses of one operator within one call of a module."""

    name: str
    """The framework's name for it, e.g. ``conv2d``."""
    calls: int
    macs: int
    flops: int
    ops: int
    inputs: int
    """Elements of its first tensor argument."""
    outputs: int
    """Elements of what it returned."""


@dataclass(slots=True)  # not frozen, like Weights
class LayerRow(Displayed):
    """One call of one module. Counts are the module's own, without those of its children, which have rows of their own.

    ``flops``, ``ops`` and ``act_bytes`` are None where the backend does not count them; with ``macs`` also in a table whose
    forward could not be counted (:attr:`LayerTable.uncounted`).
    """

    path: str
    """Dotted path below the root, e.g. ``stage1.conv2``."""
    type: str
    """Class name."""
    depth: int
    """0 for the root."""
    call: int
    """0 for the first call of this module, 1 for the second …; -1 for a module that was never called."""
    params: int
    """Own parameters; a tensor shared by several modules, or a module called twice, counts once, where it comes first."""
    trainable: int
    params_bytes: Bytes
    buffers: int
    """Elements of own persistent state that no optimizer sees (BatchNorm's moving statistics)."""
    macs: int | None
    """Multiply-accumulates of this call, for the whole batch."""
    input_shapes: Shapes = ()
    """Of every tensor among the positional and keyword arguments, containers opened, in their order."""
    output_shapes: Shapes = ()
    flops: int | None = None
    """Floating-point operations of this call, by the table of docs/counting.md."""
    ops: int | None = None
    """Scalar operations as a textbook counts them: multiplications and additions separately, ``exp`` as one."""
    act_bytes: Bytes | None = None
    """Bytes that a call without calls inside returned; 0 for one with calls inside, whose activations are in their rows."""
    input_bytes: Bytes | None = None
    output_bytes: Bytes | None = None
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    buffers_bytes: Bytes = 0
    dtypes: Mapping[str, int] = field(default_factory=dict)
    """Own parameters per data type."""
    subtree: Weights | None = None
    """Parameters and buffers of this module and all below it; None where the backend does not tell."""
    parent: int | None = None
    """Index of the row of the call this one was made in; None for the root and where the backend does not tell."""
    operators: tuple[OperatorCount, ...] = ()
    """Operators that this call ran itself, without those that only view or move data."""
    forward_s: float | None = None
    """Seconds of this call and of the calls within it, whether or not the table is inclusive; None where not measured."""
    forward_self_s: float | None = None
    """Seconds of this call alone."""
    backward_s: float | None = None
    backward_self_s: float | None = None
    time_reason: str | None = None
    """Why a time is missing that the others have."""
    arguments: str = ""
    """Of the constructor, as the framework prints them: ``1, 6, kernel_size=(5, 5)``; empty if it prints none."""
    kernel_size: tuple[int, ...] = ()
    """Of a convolution or pooling; one number if it holds for every axis, empty for other layers."""
    stride: tuple[int, ...] = ()
    """Likewise."""
    groups: int | None = None
    """Of a convolution; None for other layers."""
    declared_flops: int | None = None
    """FLOPs that the module declares by ``compute_module_complexity``; None for others."""
    pruned: int | None = 0
    """Own parameters that a pruning mask sets to zero; they are among ``params``. None where the mask has no values, as on meta."""

    @property
    def frozen(self) -> int:
        return self.params - self.trainable

    @property
    def is_trainable(self) -> str | None:
        """``True``, ``False`` or ``Partial``: whether an optimizer may change the parameters; None for a row without parameters."""
        if not self.params:
            return None
        if not self.trainable:
            return "False"
        return "True" if self.trainable == self.params else "Partial"

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Liveness:
    """Bytes of tensors alive at once, each storage once, from when it is made until nothing refers to it."""

    peak_bytes: int
    """Without parameters, buffers and the model's inputs."""
    peak_at: str
    """Path of the layer that ran when the peak was reached."""
    input_bytes: int
    """Bytes of the model's inputs, which are not in the peak."""


@dataclass(frozen=True, slots=True)
class Training(Stored):
    """One training step: a forward in training mode, the sum of all outputs as loss, and its backward."""

    forward_macs: int
    forward_flops: int
    backward_macs: int
    backward_flops: int
    liveness: Liveness | None
    """Activations kept for the backward, and gradients; None where the backward was estimated."""
    estimated: str | None = None
    """Why the backward is twice the forward instead of counted; None when it was counted."""
    uncovered: Mapping[str, int] = field(default_factory=dict)
    optimizer_states: int | None = 0
    """States of a parameter's size that the step's optimizer keeps for each trainable parameter; None: it is one of the user's
    own."""


@dataclass(frozen=True, slots=True)
class LayerTable(Stored):
    """The layers of a model: one row per call of a module, and how complete the counts are."""

    rows: tuple[LayerRow, ...]
    uncovered: dict[str, int] = field(default_factory=dict)
    """Calls per operator for which no formula is known, so that its cost is missing from ``macs``, ``flops`` and ``ops``."""
    method: str = "shapes"
    """How the counts were made: ``shapes`` (nothing was allocated) or ``real forward``, with the reason after a colon."""
    operator_calls: int = 0
    """Calls of operators altogether, the uncovered ones included."""
    liveness: Liveness | None = None
    is_inclusive: bool = False
    """True if each row includes its child rows, so that the totals are those of the outermost rows."""
    timing: TimingSummary | None = None
    """How accurate the times of the rows are; None if none were measured."""
    uncounted: str | None = None
    """Why the forward could not be counted, so that the rows have parameters and buffers only; None where it was counted."""
    excluded: tuple[str, ...] = ()
    """Paths of modules that were excluded before measuring, without those inside them: they have no rows, and are in no count.
    Their time is part of that of the calls around them, and ``liveness`` is that of the whole forward."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", Rows(self.rows))

    @property
    def params(self) -> int:
        return sum(row.params for row in self._summed_weights)

    @property
    def trainable(self) -> int:
        return sum(row.trainable for row in self._summed_weights)

    @property
    def pruned(self) -> int | None:
        """Parameters that a pruning mask sets to zero; None if a mask has no values."""
        return _total([row.pruned for row in self._summed_weights])

    @property
    def params_bytes(self) -> Bytes:
        return sum(row.params_bytes for row in self._summed_weights)

    @property
    def trainable_bytes(self) -> Bytes:
        """Bytes of the trainable parameters; in a module with frozen ones too, each has the mean size of all its parameters."""
        rows = [row for row in self._summed_weights if row.trainable]
        return sum(row.params_bytes * row.trainable // row.params for row in rows)

    @property
    def buffers(self) -> int:
        return sum(row.buffers for row in self._summed_weights)

    @property
    def buffers_bytes(self) -> Bytes:
        return sum(row.buffers_bytes for row in self._summed_weights)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the whole batch.

        Raises:
            Unsupported: the forward could not be counted.
        """
        total = _total([row.macs for row in self._summed])
        if total is None:
            raise Unsupported(self.uncounted or "this backend does not count multiply-accumulates")
        return total

    @property
    def flops(self) -> int | None:
        return _total([row.flops for row in self._summed])

    @property
    def ops(self) -> int | None:
        return _total([row.ops for row in self._summed])

    @property
    def act_bytes(self) -> Bytes | None:
        return _total([row.act_bytes for row in self._summed])

    @property
    def _summed(self) -> list[LayerRow]:
        """The rows that add up to the whole table: all, or of an inclusive table those that no other row includes."""
        if not self.is_inclusive:
            return list(self.rows)
        paths = {row.path for row in self.rows}
        return [row for row in self.rows if row.parent is None and paths.isdisjoint(above(row.path))]

    @property
    def _summed_weights(self) -> list[LayerRow]:
        """The same, but a module that is called several times once."""
        if not self.is_inclusive:
            return list(self.rows)
        first: dict[str, LayerRow] = {}
        for row in self._summed:
            first.setdefault(row.path, row)
        return list(first.values())

    @property
    def coverage(self) -> float | None:
        """Share of the operator calls whose cost is known; None where calls were not counted."""
        if not self.operator_calls:
            return None
        return 1 - sum(self.uncovered.values()) / self.operator_calls

    def inclusive(self) -> LayerTable:
        """Return the same rows with values and operators that include child layers; weights are those of the subtree.

        A module that is never called itself, such as a list, gets the sum of all calls below it.

        Raises:
            ValueError: the table does not contain which call was made in which.
        """
        if self.is_inclusive:
            return self
        self._check_parents()
        rows = [dataclasses.replace(row) for row in self.rows]
        for row in reversed(rows):  # a call comes after the one it was made in
            if row.parent is not None:
                around = rows[row.parent]
                around.operators = _merged((around.operators, row.operators))
                for name in COUNTS:
                    setattr(around, name, _total([getattr(around, name), getattr(row, name)]))
        for row in rows:
            if row.call < 0:
                below = [other for other in self.rows if other.path.startswith(f"{row.path}.")]
                row.operators = _merged(other.operators for other in below)
                for name in COUNTS:
                    total = None if self.uncounted is not None else _total([getattr(other, name) for other in below])
                    setattr(row, name, total)
            if row.subtree is not None:
                for spec in dataclasses.fields(Weights):
                    setattr(row, spec.name, getattr(row.subtree, spec.name))
        return dataclasses.replace(self, rows=tuple(rows), is_inclusive=True)

    def _check_parents(self) -> None:
        """Raise ValueError if the table does not contain which call was made in which."""
        called = {row.path for row in self.rows if row.call >= 0}
        has_inner = any(row.call >= 0 and not called.isdisjoint(above(row.path)) for row in self.rows)
        if has_inner and all(row.parent is None for row in self.rows):
            raise ValueError("this backend does not tell which call was made within which")

    def with_functional(self) -> LayerTable:
        """Return the same table with what modules do outside their submodules, such as additions, in rows ``(functional)``.

        Such a row stands first among the calls within a call, and has its operators and counts; the call keeps the rest. Times stay
        with the call.

        Raises:
            ValueError: the rows include one another already, or do not contain which call was made in which.
        """
        if self.is_inclusive:
            raise ValueError("the figures include one another; split the table before inclusive()")
        self._check_parents()
        holding = {row.parent for row in self.rows}
        rows: list[LayerRow] = []
        places: list[int] = []  # of the rows so far, in the new table
        for index, before in enumerate(self.rows):
            place = len(rows)
            places.append(place)
            row = dataclasses.replace(before, parent=None if before.parent is None else places[before.parent])
            rows.append(row)
            if index not in holding or not (row.operators or row.macs or row.flops or row.ops):
                continue
            functional = LayerRow(
                path=FUNCTIONAL if row.path == ROOT else f"{row.path}.{FUNCTIONAL}",
                type=FUNCTIONAL,
                depth=row.depth + 1,
                call=row.call,
                params=0,
                trainable=0,
                params_bytes=0,
                buffers=0,
                macs=row.macs,
                flops=row.flops,
                ops=row.ops,
                act_bytes=None if row.act_bytes is None else 0,
                parent=place,
                operators=row.operators,
                subtree=None if row.subtree is None else Weights(),
            )
            rows.append(functional)
            row.operators = ()
            for name in ("macs", "flops", "ops"):
                if getattr(row, name) is not None:
                    setattr(row, name, 0)
        return dataclasses.replace(self, rows=tuple(rows))

    def where(self, keep: Callable[[LayerRow], bool]) -> LayerTable:
        """Return the rows for which ``keep`` is true; calls within a dropped row become children of the next kept row above.

        The time, counts and weights of a dropped row are not part of the rows above it, also in :meth:`inclusive`. The rows of a
        table that is already inclusive keep their figures, which include child layers: ``inclusive().where(...)`` shows whole
        modules, ``where(...).inclusive()`` leaves layers out.
        """
        rows = [dataclasses.replace(row) for row in self.rows]
        by_path: dict[str, list[LayerRow]] = {}
        for row in rows:
            by_path.setdefault(row.path, []).append(row)
        position: dict[int, int] = {}  # of the kept rows, in the new table
        for index, row in enumerate(self.rows):
            if keep(row):
                position[index] = len(position)
            elif not self.is_inclusive:
                _subtract_weights(by_path, row)
                if self.timing is not None:
                    _subtract_times(rows, row)
        kept = []
        for index in position:
            parent = self.rows[index].parent
            while parent is not None and parent not in position:
                parent = self.rows[parent].parent
            rows[index].parent = None if parent is None else position[parent]
            kept.append(rows[index])
        return dataclasses.replace(self, rows=tuple(kept))

    def with_times(self, times: LayerTimes) -> LayerTable:
        """Return the same rows with what was measured of each; a list of modules has the sum of the calls below it."""
        unplaced = {(call.path, call.call): seconds for call, seconds in zip(times.calls, times.seconds, strict=True)}
        rows = []
        for before in self.rows:
            row = dataclasses.replace(before)
            seconds = unplaced.pop((row.path, row.call), None)
            if seconds is None and row.call < 0:
                seconds = times.below(row.path)
            if seconds is None:
                row.time_reason = "it was not called as a Python module in the steps that were timed"
            else:
                row.forward_s, row.forward_self_s = seconds.forward, seconds.forward_self
                row.backward_s, row.backward_self_s = seconds.backward, seconds.backward_self
                row.time_reason = seconds.reason
            rows.append(row)
        paths = tuple(dict.fromkeys(path for path, _ in unplaced if path != OUTSIDE))
        return dataclasses.replace(self, rows=tuple(rows), timing=dataclasses.replace(times.summary, unplaced=paths))

    def to_frame(self) -> pandas.DataFrame:
        """Return a line per row, in the columns of :data:`FRAME_COLUMNS`; shares are of the table's total, 0..1."""
        return number_frame(records(self), FRAME_COLUMNS, _NUMBERS)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> LayerTable:
        """Return the table that :meth:`to_dict` wrote."""
        table = validated(cls, data)
        for place, row in enumerate(table.rows):
            if row.parent is not None and not 0 <= row.parent < place:
                raise damaged(row.parent, "the position of an earlier row", ["rows", place, "parent"])
        return table


def _merged(parts: Iterable[tuple[OperatorCount, ...]]) -> tuple[OperatorCount, ...]:
    """Return the sums of operators by their names."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    sums: dict[str, OperatorCount] = {}
    for part in parts:
        for operator in part:
            if operator.name not in sums:
                sums[operator.name] = dataclasses.replace(operator)
                continue
            total = sums[operator.name]
            total.calls += operator.calls
            total.macs += operator.macs
            total.flops += operator.flops
            total.ops += operator.ops
            total.inputs += operator.inputs
            total.outputs += operator.outputs
    return tuple(sums.values())


_Number = TypeVar("_Number", int, int | float)


def _total(values: Sequence[_Number | None]) -> _Number | None:
    """Return the sum; None if any value is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


_NUMBERS = (
    *("depth", "call", "params", "trainable", "frozen", "pruned", "groups", "macs", "flops", "ops"),
    *("forward_s", "forward_self_s", "backward_s", "backward_self_s"),
    *("params_share", "macs_share", "forward_share", "flops_per_s"),
)


def records(table: LayerTable) -> list[Json]:
    """Return a dictionary per row, in :data:`sweeprof.results.layers.FRAME_COLUMNS`."""
    macs = table.macs if table.uncounted is None else None
    params, forward = table.params, total_seconds(table, forward_column(table))
    lines = []
    for row in table.rows:
        line: Json = {name: getattr(row, name, None) for name in FRAME_COLUMNS}
        line["params_share"] = share_of(row.params, params)
        line["macs_share"] = share_of(row.macs, macs)
        line["forward_share"] = share_of(getattr(row, forward_column(table)), forward)
        line["flops_per_s"] = flops_per_s(table, row)
        untimed = dict.fromkeys(why_untimed(table, row, column) for column in TIMES)
        line["time_reason"] = "; ".join(filter(None, untimed)) or None
        uncounted = []
        missing = [name for name in COUNTS if getattr(row, name) is None]
        if missing:
            uncounted.append(table.uncounted or f"this backend does not count {', '.join(missing)}")
        if row.pruned is None:
            uncounted.append("pruned: the mask has no values")
        if _has_excluded(table, row):
            uncounted.append("flops_per_s: excluded modules are part of the time")
        line["count_reason"] = "; ".join(uncounted) or None
        lines.append(line)
    return lines


def why_untimed(table: LayerTable, row: LayerRow, column: str) -> str | None:
    """Return the reason why one of :data:`TIMES` has no value in the row; None if it has one."""
    if getattr(row, column) is not None:
        return None
    if row.time_reason is not None:
        return row.time_reason
    if table.timing is None:
        return "no times were measured"
    return f"the {column.partition('_')[0]} was not measured"


def _has_excluded(table: LayerTable, row: LayerRow) -> bool:
    """Return True if modules that were excluded before measuring are part of the row's time."""
    return any(is_below(path, row.path) for path in table.excluded)


def forward_column(table: LayerTable) -> str:
    """The seconds that go with the table's FLOPs: of a call with the calls within it, or its own."""
    return "forward_s" if table.is_inclusive else "forward_self_s"


def flops_per_s(table: LayerTable, row: LayerRow) -> float | None:
    """Return FLOPs of a row over its seconds of the forward.

    None if either is unknown, if the time is zero, or if excluded modules are part of it.
    """
    if _has_excluded(table, row):
        return None
    return share_of(row.flops, getattr(row, forward_column(table)))


def total_flops_per_s(table: LayerTable) -> float | None:
    """Return the same of the whole table."""
    if any(_has_excluded(table, row) for row in table.rows):
        return None
    return share_of(table.flops, total_seconds(table, forward_column(table)))


def total_seconds(table: LayerTable, column: str) -> float | None:
    """Return the sum of the known own seconds, or of the inclusive ones of the outermost calls; None if none is known.

    The outermost calls were not made within another one of the table, and do not belong to a module that was.
    """
    called = {row.path for row in table.rows if row.call >= 0}
    known = []
    for row in table.rows:
        if not column.endswith("_self_s") and (
            row.call < 0 or row.parent is not None or not called.isdisjoint(above(row.path))
        ):
            continue
        if getattr(row, column) is not None:
            known.append(getattr(row, column))
    return sum(known) if known else None


def _subtract_times(rows: Sequence[LayerRow], dropped: LayerRow) -> None:
    """Subtract the own seconds of a dropped call from the inclusive ones of the calls and lists around it."""
    if dropped.call < 0 or dropped.forward_self_s is None:
        return
    around = [row for row in rows if row.call < 0 and dropped.path.startswith(f"{row.path}.")]
    parent = dropped.parent
    while parent is not None:
        around.append(rows[parent])
        parent = rows[parent].parent
    for row in around:
        # Sums of fractions are not exact: the rest of nothing may be below zero.
        if row.forward_s is not None:
            row.forward_s = max(0.0, row.forward_s - dropped.forward_self_s)
        if row.backward_s is not None:
            row.backward_s = max(0.0, row.backward_s - (dropped.backward_self_s or 0.0))


def _subtract_weights(rows: Mapping[str, Sequence[LayerRow]], dropped: LayerRow) -> None:
    """Subtract the own weights of a dropped row from the subtrees of its module and of those above it; ``rows`` are by path."""
    for row in itertools.chain.from_iterable(rows.get(path, ()) for path in (dropped.path, *above(dropped.path))):
        subtree = row.subtree
        if subtree is None:
            continue
        dtypes = {}
        for dtype, count in subtree.dtypes.items():
            if count > dropped.dtypes.get(dtype, 0):
                dtypes[dtype] = count - dropped.dtypes.get(dtype, 0)
        pruned = None
        if subtree.pruned is not None and dropped.pruned is not None:
            pruned = subtree.pruned - dropped.pruned
        row.subtree = Weights(
            params=subtree.params - dropped.params,
            trainable=subtree.trainable - dropped.trainable,
            params_bytes=subtree.params_bytes - dropped.params_bytes,
            buffers=subtree.buffers - dropped.buffers,
            buffers_bytes=subtree.buffers_bytes - dropped.buffers_bytes,
            pruned=pruned,
            dtypes=dtypes,
        )


def share_of(part: float | None, whole: float | None) -> float | None:
    """Return a part over the whole; None where one is not known, or there is nothing."""
    if part is None or whole is None or whole <= 0:
        return None
    return part / whole
