"""Single values of a comparison as text and as numbers; what every report says the same way."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweeprof.numbers import MISSING, ratio_number, rounded, text_unit
from sweeprof.results.comparison import Cell, Row, value_of
from sweeprof.results.measurement import Measurement
from sweeprof.results.statistics import MOST_ROUNDS
from sweeprof.results.verdicts import REASONS
from sweeprof.text import one_line

UNCLEAR = "~"
"""Marks a ratio whose verdict is undecided; the footnotes give the reason."""

_NAMES = ("layer", "operator", "line")
"""Details that name what a value is of."""
_COUNTS = ("n", "steps", "steps per sample")
_HAS_PREFIX = frozenset({"s", "B", "MAC", "FLOP", "params", "samples/s", "ratio", "abs", ""})
"""Units whose values read right without naming the unit in the header."""


def measured_of(candidates: Sequence[Row], metrics: Sequence[str]) -> str:
    """Return how much of a ranking was measured, e.g. ``of the 5 of 6 measured, 2 incomplete``; empty if all were, completely.

    Args:
        candidates: the rows that the ranking is about; unsupported ones cannot be measured and are not counted.
        metrics: names of the metrics that a row needs a value of.
    """
    possible = [row for row in candidates if row.status != "unsupported"]
    known = [row for row in possible if row.has_values and all(value_of(row, name) is not None for name in metrics)]
    incomplete = sum(row.is_incomplete for row in known)
    if len(known) == len(possible) and not incomplete:
        return ""
    return f"of the {len(known)} of {len(possible)} measured" + (f", {incomplete} incomplete" if incomplete else "")


def rounds_text(row: Row) -> str:
    """Return the number of measured rounds, e.g. ``2 of 3 rounds``; a row may also be incomplete because of another pass."""
    text = f"{row.rounds_complete} of {row.rounds_planned} rounds"
    return f"{text}, incomplete" if row.is_incomplete and row.rounds_complete == row.rounds_planned else text


def named_text(measurement: Measurement) -> str:
    """Return the part of the model that a value describes, e.g. ``layer features.0``; empty for the whole model."""
    return ", ".join(f"{name} {one_line(str(of))}" for name, of in measurement.detail.items() if name in _NAMES)


def unit_suffix(unit: str) -> str:
    """``" (furlongs)"``: what a header adds for a unit that the values themselves do not show."""
    return "" if unit in _HAS_PREFIX else f" ({one_line(unit)})"


def value_text(measurement: Measurement, with_interval: bool = True) -> str:
    """A value with its 95 % interval, e.g. ``1.23 ms [1.2–1.27]``; the interval names a unit only where it differs."""
    if measurement.value is None or not math.isfinite(measurement.value):
        return MISSING
    unit = text_unit(measurement.name, measurement.unit)
    text = rounded(measurement.value, unit)
    if measurement.interval is None or not with_interval:
        return text
    ends = [rounded(end, unit) for end in measurement.interval]
    units = {end.partition(" ")[2] for end in (text, *ends)}
    if len(units) == 1:
        ends = [end.partition(" ")[0] for end in ends]
    return f"{text} [{ends[0]}–{ends[1]}]"


def ratio_text(cell: Cell) -> str:
    """A ratio to the baseline with its verdict in words, e.g. ``×1.90 [1.85–1.95] worse``, ``×1.90 ~``; ``– worse`` than zero."""
    mark = {"unclear": UNCLEAR, "not_comparable": UNCLEAR, None: ""}.get(cell.verdict, cell.verdict or "")
    if cell.ratio is None or not math.isfinite(cell.ratio):
        return f"{MISSING} {mark}".rstrip()
    interval = ""
    if cell.ratio_interval:
        low, high = cell.ratio_interval
        interval = f" [{ratio_number(low)}–{ratio_number(high)}]"
    return f"×{ratio_number(cell.ratio)}{interval} {mark}".rstrip()


def verdict_note(cell: Cell) -> str:
    """Return the reason of a verdict, e.g. ``the interval of the ratio crosses the threshold; about 12 rounds would settle it``."""
    why = REASONS.get(cell.verdict_reason or "", cell.verdict_reason or "")
    if cell.verdict_reason == "interval_crosses_threshold":
        needed = f"more than {MOST_ROUNDS}" if cell.rounds_needed is None else f"about {cell.rounds_needed}"
        why += f"; {needed} rounds would settle it"
    if cell.base == 0 and cell.measurement.value is not None:
        why = "; ".join(text for text in ("no ratio, because the baseline is zero", why) if text)
    return f"{why} ({cell.used})" if cell.used == "paired" else why


def detail_text(measurement: Measurement) -> str:
    """The further figures of a measurement, e.g. ``min 1.2 ms, p90 1.5 ms, p99 not given: n<299``, ``layer fc1``."""
    parts = []
    unit = text_unit(measurement.name, measurement.unit)
    for name, figure in measurement.detail.items():
        if name in _NAMES:
            parts.append(f"{name} {one_line(str(figure))}")
        elif isinstance(figure, bool) or not isinstance(figure, (int, float)):
            parts.append(f"{name} not given: {one_line(str(figure))}" if figure is not None else f"{name} not given")
        elif not math.isfinite(figure):
            parts.append(f"{name} not given")
        elif name in _COUNTS:
            parts.append(f"{name} {figure:,.0f}")
        elif name == "spread":
            parts.append(f"spread {100 * figure:.0f} %")
        else:
            parts.append(f"{name} {rounded(figure, unit)}")
    return ", ".join(parts)
