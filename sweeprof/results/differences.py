"""Two sets of measurements side by side: explicit about which is the baseline, in base units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeprof.results.measurement import Better, Measurement, Number
from sweeprof.results.verdicts import REASONS, Verdict, compare_cell


@dataclass(frozen=True, slots=True)
class Difference:
    """One metric of a candidate beside the baseline's."""

    name: str
    unit: str
    better: Better
    baseline: Number | None
    candidate: Number | None
    difference: Number | None
    """Candidate minus baseline."""
    ratio: float | None
    """Candidate over baseline; infinite over zero, None where both are zero or either is missing."""
    improvement: float | None
    """Above one where the candidate is better: baseline over candidate where lower is better, the ratio where higher is."""
    verdict: Verdict | None
    reason: str | None = None
    """Why a value is missing, or why the verdict is ``unclear``."""


def differences(baseline: Mapping[str, Measurement], candidate: Mapping[str, Measurement]) -> list[Difference]:
    """Every metric of either, in the order of the baseline; one that only one of them has keeps its row, with a reason."""
    names = [*baseline, *(name for name in candidate if name not in baseline)]
    return [_difference(name, baseline.get(name), candidate.get(name)) for name in names]


def _difference(name: str, base: Measurement | None, own: Measurement | None) -> Difference:
    shown = own or base
    assert shown is not None
    reason = _reason("baseline", base) or _reason("candidate", own)
    if base is None or own is None or base.value is None or own.value is None:
        left, right = base.value if base else None, own.value if own else None
        return Difference(name, shown.unit, shown.better, left, right, None, None, None, None, reason)
    if base.unit != own.unit:
        raise ValueError(f"{name} is in {base.unit!r} and in {own.unit!r}")
    ratio = over(own.value, base.value)
    improvement = {"lower": over(base.value, own.value), "higher": ratio, None: None}[own.better]
    cell = compare_cell(own, base, None)
    return Difference(
        name=name,
        unit=own.unit,
        better=own.better,
        baseline=base.value,
        candidate=own.value,
        difference=own.value - base.value,
        ratio=ratio,
        improvement=improvement,
        verdict=cell.verdict,
        reason=REASONS[cell.verdict_reason] if cell.verdict == "unclear" and cell.verdict_reason else None,
    )


def over(value: Number, by: Number) -> float | None:
    """The ratio of two values; infinite over zero, None for zero over zero."""
    if by:
        return value / by
    return None if not value else float("inf") if value > 0 else float("-inf")


def _reason(which: str, measurement: Measurement | None) -> str | None:
    if measurement is None:
        return f"the {which} has no such metric"
    return None if measurement.value is not None else f"{which}: {measurement.reason}"
