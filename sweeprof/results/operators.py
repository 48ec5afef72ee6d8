"""Operators: what the framework ran in one step, by module and operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sweeprof.display import Displayed, Rows
from sweeprof.results.layer_times import Mode
from sweeprof.results.record import Stored

if TYPE_CHECKING:
    import pandas


Phase = Literal["forward", "backward", "update"]

FRAME_COLUMNS = (
    "path operator phase calls self_s total_s device_self_s device_total_s flops allocated_bytes input_shapes"
).split()


@dataclass(frozen=True, slots=True)
class OperatorRow(Displayed):
    """One operator in one module with one set of input shapes: of one step, means over the steps that were traced."""

    path: str
    """Of the module that ran it, or whose backward did; ``__outside__`` for none."""
    operator: str
    """The framework's name, e.g. ``aten::addmm``."""
    phase: Phase
    calls: float
    self_s: float
    """Seconds on the host, without the operators that it called."""
    total_s: float
    """Seconds on the host, with them."""
    device_self_s: float | None
    """Seconds on the accelerator; None where there is none."""
    device_total_s: float | None
    flops: int | None
    """By the formulas of docs/counting.md, at the operator that has the formula; None where it is not known."""
    allocated_bytes: int | None
    """Bytes that it allocated itself, without the operators that it called, less those that it freed: rows add up. On an
    accelerator those of the accelerator. None where it is not known."""
    input_shapes: tuple[tuple[int, ...], ...] = ()
    """Of the tensors that have dimensions, those in lists too, in the order of the arguments."""


@dataclass(frozen=True, slots=True)
class OperatorTotal:
    """One operator in all of its rows: of one step."""

    operator: str
    calls: float
    self_s: float
    device_self_s: float | None
    """None if it is not known of one of the rows."""


@dataclass(frozen=True, slots=True)
class Operators(Stored):
    """The operators of a step, by module and shapes."""

    NOT_STORED = ("files",)

    mode: Mode
    rows: tuple[OperatorRow, ...]
    steps: int
    """Steps that were traced."""
    step_s: float
    """Seconds of one traced step, the tracer's own cost included."""
    flops_reason: str | None = None
    """Why no row has FLOPs, where the step could not be counted."""
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Files that are stored beside the record, by name: ``trace.json.gz`` opens in Perfetto."""

    def top(self, n: int = 10, column: str = "self_s") -> Rows[OperatorRow]:
        """The ``n`` largest rows of a column."""
        known = [row for row in self.rows if getattr(row, column) is not None]
        return Rows(sorted(known, key=lambda row: getattr(row, column), reverse=True)[:n])

    def totals(self) -> Rows[OperatorTotal]:
        """One per operator, the one with the most seconds of its own on the host first."""
        rows: dict[str, list[OperatorRow]] = {}
        for row in self.rows:
            rows.setdefault(row.operator, []).append(row)
        totals = []
        for name, same in rows.items():
            device = [row.device_self_s for row in same if row.device_self_s is not None]
            device_self_s = sum(device) if len(device) == len(same) else None
            totals.append(
                OperatorTotal(name, sum(row.calls for row in same), sum(row.self_s for row in same), device_self_s)
            )
        return Rows(sorted(totals, key=lambda total: total.self_s, reverse=True))

    def to_frame(self) -> pandas.DataFrame:
        """One line per row, in the columns of :data:`FRAME_COLUMNS`."""
        import pandas

        lines = [{name: getattr(row, name) for name in FRAME_COLUMNS} for row in self.rows]
        return pandas.DataFrame(lines, columns=FRAME_COLUMNS)


@dataclass(frozen=True, slots=True)
class OwnCounts(Stored):
    """Counts of one forward of the whole batch, each in the unit and by the rules of whoever counted."""

    counts: Mapping[str, int]
    """By the name of the counter, e.g. ``{"tfprof": 845_862}``."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Of counters that gave nothing."""
