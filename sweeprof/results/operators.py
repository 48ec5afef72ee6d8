"""Operators: what the framework ran in one step, by module and operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from sweeprof.display import Displayed, Rows
from sweeprof.errors import UserError, choice_problem
from sweeprof.results.layer_times import Host, Mode, with_host
from sweeprof.results.record import Stored

if TYPE_CHECKING:
    import pandas


Phase = Literal["forward", "backward", "update"]

SortKey = Literal["self_s", "total_s", "average_s", "calls", "device_self_s", "device_total_s"]
"""Columns by which totals are sorted."""

FRAME_COLUMNS = (
    "path operator phase calls self_s total_s device_self_s device_total_s flops allocated_bytes input_shapes"
).split()
_NUMBERS = "calls self_s total_s device_self_s device_total_s flops allocated_bytes".split()


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
class OperatorTotal(Displayed):
    """One operator in all of its rows: of one step."""

    operator: str
    calls: float
    self_s: float
    device_self_s: float | None
    """None if it is not known of one of the rows."""
    total_s: float = 0.0
    """Seconds on the host with the operators that it called; an operator that calls itself has both calls in it."""
    device_total_s: float | None = None
    step_self_s: float = 0.0
    """Own seconds on the host of all operators of the step together, of which this one has a share."""

    @property
    def average_s(self) -> float:
        """Seconds of one call on the host, with the operators that it called."""
        return self.total_s / self.calls

    @property
    def self_share(self) -> float | None:
        """Own seconds as a share of those of all operators; None if these took no time."""
        return self.self_s / self.step_self_s if self.step_self_s else None

    @property
    def total_share(self) -> float | None:
        """Seconds with the operators that it called, as a share of the own seconds of all operators."""
        return self.total_s / self.step_self_s if self.step_self_s else None


@dataclass(frozen=True, slots=True)
class Operators(Stored):
    """The operators of a step, by module and shapes."""

    NOT_STORED = ("files", "host")

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
    host: Host = field(default_factory=dict, repr=False, compare=False)
    """The host on which they were traced, by the columns of :meth:`to_frame`; empty if it is not known."""

    def top(self, n: int = 10, column: str = "self_s") -> Rows[OperatorRow]:
        """The ``n`` largest rows of a column."""
        known = [row for row in self.rows if getattr(row, column) is not None]
        return Rows(sorted(known, key=lambda row: getattr(row, column), reverse=True)[:n])

    def totals(self, sort_by: SortKey = "self_s", top: int | None = None) -> Rows[OperatorTotal]:
        """Return one row per operator, printed like ``key_averages().table()`` of torch.profiler.

        Args:
            sort_by: the largest comes first.
            top: so many of the first rows; None: all.

        Raises:
            UserError: there is no such column.
        """
        if sort_by not in get_args(SortKey):
            raise UserError([choice_problem("sort_by", sort_by, "column of operators", get_args(SortKey))])
        rows: dict[str, list[OperatorRow]] = {}
        for row in self.rows:
            rows.setdefault(row.operator, []).append(row)
        whole = sum(row.self_s for row in self.rows)
        totals = [
            OperatorTotal(
                operator=name,
                calls=sum(row.calls for row in same),
                self_s=sum(row.self_s for row in same),
                device_self_s=_known_sum([row.device_self_s for row in same]),
                total_s=sum(row.total_s for row in same),
                device_total_s=_known_sum([row.device_total_s for row in same]),
                step_self_s=whole,
            )
            for name, same in rows.items()
        ]
        return Rows(sorted(totals, key=lambda total: getattr(total, sort_by) or 0.0, reverse=True)[:top])

    def to_frame(self, host: bool = False) -> pandas.DataFrame:
        """Return a line per row, in the columns of :data:`FRAME_COLUMNS`, and the ``reason`` why a value is missing.

        Args:
            host: also columns that describe the host, ``host_name``, ``host_cpu``, ``host_threads`` …, the same in each row.
        """
        import pandas

        lines = [
            {**{name: getattr(row, name) for name in FRAME_COLUMNS}, "reason": self._missing(row)} for row in self.rows
        ]
        # What is missing stays None.
        frame = pandas.DataFrame(lines, columns=[*FRAME_COLUMNS, "reason"], dtype=object)
        known = [name for name in _NUMBERS if lines and all(line[name] is not None for line in lines)]
        return with_host(frame.astype({name: type(lines[0][name]) for name in known}), self.host, host)

    def _missing(self, row: OperatorRow) -> str | None:
        """Return why figures of a row are missing; None if it has all."""
        reasons = []
        if row.flops is None:
            reasons.append(f"FLOPs: {self.flops_reason or 'the operator that has the formula has them'}")
        if row.device_self_s is None:
            reasons.append("device: its time on an accelerator is not known, or there is none")
        if row.allocated_bytes is None:
            reasons.append("allocated: not traced")
        return "; ".join(reasons) or None


def _known_sum(values: Sequence[float | None]) -> float | None:
    """Return the sum; None if a value is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class OwnCounts(Stored):
    """Counts of one forward of the whole batch, each in the unit and by the rules of whoever counted."""

    counts: Mapping[str, int]
    """By the name of the counter, e.g. ``{"tfprof": 845_862}``."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Of counters that gave nothing."""
