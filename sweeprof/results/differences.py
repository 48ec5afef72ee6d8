"""What the difference of two values is: a cell of a compared sweep beside the baseline's, and a metric of two profiles.

:mod:`sweeprof.results.verdicts` decides what a difference means.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sweeprof.display import Displayed
from sweeprof.results.measurement import Better, Measurement, Number, shown_names

if TYPE_CHECKING:
    import pandas

Verdict = Literal["better", "worse", "same", "unclear", "not_comparable"]
Used = Literal["exact", "rounds", "paired"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A measurement beside the baseline's."""

    measurement: Measurement
    ratio: float | None = None
    """This value over the baseline's; None for the baseline itself, or where either is missing or both are zero."""
    ratio_interval: tuple[float, float] | None = None
    """95%; paired by round where the rounds were run together."""
    verdict: Verdict | None = None
    verdict_reason: str | None = None
    """One of :data:`sweeprof.results.verdicts.REASONS`."""
    used: Used | None = None
    """The compared values: ``paired`` samples of interleaved runs, estimates of ``rounds``, ``exact``."""
    rounds_needed: int | None = None
    """Where the interval crosses the threshold: about how many rounds of this spread settle it; None: more than 1000."""
    base: Number | None = None
    """The baseline's value."""
    base_rounds: int | None = None
    """Where there are too few rounds: how many the baseline has."""


@dataclass(frozen=True, slots=True)
class Difference(Displayed):
    """One metric of a candidate, compared with the baseline's."""

    name: str
    unit: str
    better: Better
    baseline: Number | None
    candidate: Number | None
    difference: Number | None
    """Candidate minus baseline."""
    ratio: float | None
    """Candidate over baseline; infinite over zero, None where both are zero, or either is missing or not a finite number."""
    improvement: float | None
    """Above 1 if the candidate is better: baseline over candidate if lower is better, the ratio if higher is better."""
    verdict: Verdict | None
    reason: str | None = None
    """Why a value is missing, why the ratio is infinite or missing, or why the verdict is ``unclear``."""


class Differences(Displayed, list[Difference]):
    """The metrics of two sides; printed, a table that begins with the answer in words."""

    def __init__(
        self,
        found: Iterable[Difference],
        baseline: Mapping[str, Measurement],
        candidate: Mapping[str, Measurement],
        definitions: Mapping[str, str] | None = None,
        names: tuple[str | None, str | None] = (None, None),
        *,
        has_notes: bool = False,
    ) -> None:
        super().__init__(found)
        self.baseline, self.candidate = baseline, candidate
        """The measurements, by metric name."""
        self.definitions = definitions or {}
        """What the metrics are, by name."""
        self.names = names
        """The names that the user gave to the baseline and to the candidate; None for a side without one."""
        self.has_notes = has_notes
        """True if the definitions are printed, too."""

    def shown(
        self, order: str | Sequence[str] = (), exclude: str | Sequence[str] = (), *, notes: bool = False
    ) -> Differences:
        """Return the differences to be printed or shown as HTML; see :meth:`sweeprof.Profile.shown`."""
        rows = {one.name: one for one in self}
        chosen = [rows[name] for name in shown_names(rows, order, exclude)]
        return Differences(chosen, self.baseline, self.candidate, self.definitions, self.names, has_notes=notes)

    def to_frame(self) -> pandas.DataFrame:
        """One line per metric, in the columns of :class:`Difference`; ``reason`` also says why there is no verdict."""
        import pandas

        lines = []
        for one in self:
            line = dataclasses.asdict(one)
            if one.better is None and one.reason is None:
                line["reason"] = "neither direction is better"
            lines.append(line)
        columns = [spec.name for spec in dataclasses.fields(Difference)]
        return pandas.DataFrame(lines, columns=columns, dtype=object)  # counts stay whole, missing values stay None


def over(value: Number, by: Number) -> float | None:
    """Return the ratio of two values; infinite over zero, None for zero over zero or if a value is not finite."""
    if not (math.isfinite(value) and math.isfinite(by)):
        return None
    if by:
        return value / by
    return math.copysign(math.inf, value) if value else None
