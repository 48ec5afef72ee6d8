"""What changed between two sweeps: a pure function of a sweep that was set against another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeprof.report.cells import one_line, ratio_text, reason_of
from sweeprof.report.columns import metric_title
from sweeprof.report.judged import against_lines, protocol_text, teller, tests_text
from sweeprof.report.table import sorted_rows
from sweeprof.report.units import scaled, text_unit
from sweeprof.results.compare import Cell, Comparison, Row
from sweeprof.results.measurement import MetricInfo
from sweeprof.results.verdicts import WITHOUT_ROUNDS

Kind = Literal["worse", "better", "unclear", "not_comparable", "missing", "new"]
KINDS: tuple[Kind, ...] = ("worse", "missing", "not_comparable", "unclear", "better", "new")
"""In the order of the report; ``same`` is counted, not listed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure, or one combination, that is not called the same."""

    kind: Kind
    axes: str
    """The combination, by the axes that tell it from others."""
    metric: str
    """Canonical name; ``status`` where the whole combination changed."""
    title: str
    before: str
    now: str
    ratio: str = ""
    """With its interval and verdict."""
    reason: str | None = None
    """Code of the verdict's reason."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Everything that a comparison of two sweeps says."""

    lines: tuple[str, ...]
    """What is compared with what, and what changed around it."""
    changes: tuple[Change, ...]
    counts: dict[str, int]
    """Verdicts and kinds of changes, how many of each."""
    remarks: tuple[str, ...]
    """Protocol, thresholds, how many tests, and what to expect of them."""

    def of(self, kinds: Sequence[str]) -> list[Change]:
        """The changes of these kinds."""
        return [change for change in self.changes if change.kind in kinds]


def changes_of(new: Comparison, metrics: Sequence[MetricInfo]) -> Changes:
    """What changed; ``new`` was set against the other sweep, ``metrics`` are those that count."""
    found = sorted(_changes(new, metrics), key=lambda change: KINDS.index(change.kind))
    same = sum(
        1 for row in new.rows for i in metrics if (cell := row.cells.get(i.name)) is not None and cell.verdict == "same"
    )
    counts: Counter[str] = Counter(change.kind for change in found)
    counted = {"same": same, **counts}
    remarks = tuple(text for text in (protocol_text(new, with_intervals=False), tests_text(new)) if text)
    return Changes(tuple(against_lines(new)), tuple(found), counted, remarks)


def _changes(new: Comparison, metrics: Sequence[MetricInfo]) -> Iterator[Change]:
    tell = teller(new)
    titles = {info.name: metric_title(info, new.rows) for info in metrics}
    for row in sorted_rows(new):
        name = tell(row.axes)
        if row.baseline_id is None:
            yield Change("new", name, "status", "status", "not there", row.status)
            continue
        if row.baseline_status != row.status:
            yield _status_change(row, name)
        yield from _metric_changes(new, row, name, metrics, titles)
    for axes in new.against.absent if new.against else ():
        yield Change("missing", tell(axes), "status", "status", "there", "not there")


def _status_change(row: Row, name: str) -> Change:
    """What was measured and no longer is, is worse; what could not be and can, better; of what fails in another way, who knows."""
    kind: Kind = "better" if row.status == "ok" else "worse" if row.baseline_status == "ok" else "unclear"
    now = f"{row.status}: {one_line(row.reason)}" if row.reason else row.status
    return Change(kind, name, "status", "status", str(row.baseline_status), now)


def _is_alike(cell: Cell, threshold: float | None) -> bool:
    """Whether a value without rounds, for which no verdict is possible, differs from the baseline's by the threshold at most."""
    if cell.verdict_reason not in WITHOUT_ROUNDS or cell.ratio is None:
        return False
    return abs(cell.ratio - 1) <= (threshold or 0)


def _metric_changes(
    new: Comparison, row: Row, name: str, metrics: Sequence[MetricInfo], titles: Mapping[str, str]
) -> Iterator[Change]:
    if not row.has_values or not row.baseline_has_values:
        return
    for info in metrics:
        cell = row.cells.get(info.name)
        if cell is None or cell.base is None or _is_alike(cell, new.threshold_of(info.name)):
            continue
        title, unit = titles[info.name], text_unit(info.name, info.unit)
        before = scaled(cell.base, unit)
        if cell.measurement.value is None:
            yield Change("worse", name, info.name, title, before, f"no value: {reason_of(row, info.name)}")
        elif cell.verdict not in (None, "same"):
            assert cell.verdict is not None
            now, ratio = scaled(cell.measurement.value, unit), ratio_text(cell)
            yield Change(cell.verdict, name, info.name, title, before, now, ratio, cell.verdict_reason)  # type: ignore[arg-type]
