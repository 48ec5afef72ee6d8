"""The reliability of a comparison's verdicts and their summary: plain lines that all reports share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sweeprof.numbers import ratio_number
from sweeprof.report.columns import metric_title, shown_metrics
from sweeprof.results.compare import Cell, Comparison, Row, ValuePair, spelled
from sweeprof.results.measurement import Measurement
from sweeprof.results.statistics import CONFIDENCE, MOST_ROUNDS
from sweeprof.results.verdicts import Verdict, expected_false
from sweeprof.text import axes_text, axis_text, one_line

_MOST = 8
"""Lines of one kind that a report lists."""
_WAYS = {
    "rounds": "interleaved round by round",
    "samples": "interleaved sample by sample",
}


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A title and its lines."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mean:
    """The geometric mean of a metric's ratios over the combinations that have values on both sides."""

    candidate: str
    metric: str
    """The metric's title."""
    ratio: float
    count: int
    of: int
    """Combinations that could have had a ratio."""
    incomplete: int = 0
    """Ratios in which either side has fewer rounds than planned."""


def percent(share: float) -> str:
    """A share in percent, e.g. ``5 %``."""
    return f"{100 * share:g} %"


IntervalKind = Literal["rounds", "process", "both"]


def interval_kind(measurements: Iterable[Measurement]) -> IntervalKind | None:
    """Return the kind of the measurements' intervals: over rounds, within one process, or mixed; None if there are none."""
    found = {one.has_interval_within_process for one in measurements if one.interval is not None}
    if not found:
        return None
    return "both" if len(found) == 2 else "process" if found == {True} else "rounds"


INTERVALS: dict[IntervalKind, str] = {
    "rounds": "95 % interval over the rounds",
    "process": "95 % interval of the median within one process, not between processes",
    "both": "95 % interval over the rounds; of values with one round that of the median within one process",
}


def protocol_text(comparison: Comparison, with_intervals: bool = True) -> str:
    """Rounds, how they were interleaved, the thresholds, and what the brackets are; empty where the comparison does not tell."""
    rounds = comparison.protocol.get("rounds")
    if not rounds:
        return ""
    count = " or ".join(map(str, sorted(rounds)))
    parts = [f"{count} {'round' if rounds == [1] else 'rounds'}"]
    if comparison.protocol.get("decide"):
        parts[0] = f"at most {parts[0]}, until verdicts are decided"
        if budget := comparison.protocol.get("budget"):
            parts[0] += f" or budget={budget[0]} is used up"
    if rounds != [1]:
        parts[0] += ", " + " or ".join(_WAYS.get(way, way) for way in comparison.protocol.get("interleave", ()))
    own = ", ".join(f"{one_line(name)} {percent(value)}" for name, value in comparison.thresholds.items())
    if comparison.threshold is not None:
        parts.append(f"threshold {percent(comparison.threshold)}" + (f" ({own})" if own else ""))
    else:
        parts.append(f"thresholds {own}" if own else "no threshold, so no verdicts")
    kind = interval_kind(cell.measurement for row in comparison.rows for cell in row.cells.values())
    if kind is not None and with_intervals:
        parts.append(f"[ ]: {INTERVALS[kind]}")
    return " · ".join(parts)


def tests_text(comparison: Comparison) -> str:
    """Return how many ratios were tested, their verdicts, and the expected number of false ones; empty if none was tested."""
    tested = [cell for row in comparison.rows for cell in row.cells.values() if cell.ratio_interval is not None]
    if not tested:
        return ""
    found = Counter(cell.verdict for cell in tested)
    message = ", ".join(f"{found[v]} {v}" for v in ("better", "worse", "same", "unclear") if found[v])
    ratios = "ratio was" if len(tested) == 1 else "ratios were"
    repeated = " over all its rounds" if comparison.protocol.get("decide") else ""
    drift = ", not counting a drift of the machine between the sweeps" if comparison.against else ""
    return (
        f"{len(tested)} {ratios} tested, each at {percent(CONFIDENCE)} confidence{repeated}: {message}. "
        f"By chance alone, at most {expected_false(len(tested)):.2g} of them would be better or worse{drift}"
    )


def verdict_counts(counts: Mapping[Verdict, int], once: int, order: Iterable[Verdict]) -> str:
    """Return how often each verdict was reached, e.g. ``2 better, 9 unclear (measured once, which cannot decide)``.

    Args:
        once: how many of the unclear ones were measured once, in a single process.
    """
    parts = []
    for verdict in order:
        note = ""
        if verdict == "unclear" and once:
            which = "" if once == counts[verdict] else f"{once} of them "
            note = f" ({which}measured once, which cannot decide)"
        parts.append(f"{counts.get(verdict, 0)} {verdict.replace('_', ' ')}{note}")
    return ", ".join(parts)


def geometric_means(comparison: Comparison) -> list[Mean]:
    """Per value of the baseline's axes and per metric of the tables.

    Of a single combination there is no mean, and one of ratios that are all 1 is not worth a word.
    """
    groups: dict[str, list[Row]] = {}
    for row in comparison.rows:
        if row.baseline_id is not None and not row.is_baseline:
            groups.setdefault(candidate_name(comparison, row), []).append(row)
    found, infos = [], shown_metrics(comparison)
    for candidate, rows in groups.items():
        for info in infos if len(rows) > 1 else ():
            known = [(row, ratio) for row in rows if (ratio := _usable(row, info.name)) is not None]
            ratios = [ratio for _, ratio in known]
            if len(ratios) > 1 and info.better is not None and set(ratios) != {1.0}:
                mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
                partial = sum(row.is_incomplete or row.baseline_is_incomplete for row, _ in known)
                found.append(Mean(candidate, metric_title(info, rows), mean, len(ratios), len(rows), partial))
    return found


def candidate_name(comparison: Comparison, row: Row) -> str:
    """Return the values by which a row differs from its baseline: ``tensorflow``; ``all`` for the rows of another sweep."""
    varying = comparison.varying_axes()
    if comparison.against is not None:
        return "all"
    named = {axis: row.axes[axis] for axis in comparison.baseline if axis in row.axes and axis in varying}
    return ", ".join(axis_text(v) if isinstance(v, str) else axes_text({k: v}) for k, v in named.items())


def _usable(row: Row, metric: str) -> float | None:
    cell: Cell | None = row.cells.get(metric)
    fine = cell is not None and row.has_values and row.baseline_has_values and cell.verdict != "not_comparable"
    return cell.ratio if cell is not None and fine and cell.ratio is not None and cell.ratio > 0 else None


def means_lines(comparison: Comparison) -> list[str]:
    """The geometric means, a line per candidate."""
    by_candidate: dict[str, list[Mean]] = {}
    for mean in geometric_means(comparison):
        by_candidate.setdefault(mean.candidate, []).append(mean)
    return [f"{candidate}: {', '.join(map(_mean_text, means))}" for candidate, means in by_candidate.items()]


def _mean_text(mean: Mean) -> str:
    incomplete = f", {mean.incomplete} incomplete" if mean.incomplete else ""
    return f"{mean.metric} ×{ratio_number(mean.ratio)} ({mean.count} of {mean.of}{incomplete})"


def against_lines(comparison: Comparison) -> list[str]:
    """Return lines about the other sweep: its name, rows that only one sweep has, and changes since."""
    other = comparison.against
    if other is None:
        return []
    matched = sum(row.baseline_id is not None for row in comparison.rows)
    when = other.created[:16].replace("T", " ")
    lines = [f"{other.name} of {when}, {other.sweep_id}: {matched} of {len(comparison.rows)} combinations are in both"]
    new = [row.axes for row in comparison.rows if row.baseline_id is None]
    tell = combination_namer(comparison)
    lines += _listed("only here", [tell(axes) for axes in new])
    lines += _listed("only there", [tell(axes) for axes in other.absent])
    lines += _listed("only measured there", [metric_title(info, comparison.rows) for info in other.absent_metrics])
    lines += [f"{name}: {_change(change)}" for name, change in other.software.items()]
    lines += [f"{key}: {', '.join(map(_change, changes))}" for key, changes in other.settings.items()]
    return [one_line(line) for line in [*lines, *environment_lines(comparison)]]


def combination_namer(comparison: Comparison) -> Callable[[Mapping[str, object]], str]:
    """Return a function that names a combination of either sweep by the axes whose values differ between rows."""
    constant = {} if len(comparison.rows) == 1 else comparison.rows[0].axes if comparison.rows else {}
    varying = set(comparison.varying_axes())

    def tell(axes: Mapping[str, object]) -> str:
        text = {axis: value for axis, value in axes.items() if axis in varying or constant.get(axis) != value}
        return axes_text(text or axes)

    return tell


def environment_lines(comparison: Comparison) -> Iterator[str]:
    """Fields of the comparable key that differ, with the number of rows."""
    found = Counter(
        f"{field}: {_change(change)}" for row in comparison.rows for field, change in sorted(row.differs.items())
    )
    for line, rows in found.items():
        yield f"{line} (in {rows} {'row' if rows == 1 else 'rows'}; times are not comparable)"


def _listed(what: str, names: list[str]) -> list[str]:
    more = [f"{what}: {len(names) - _MOST} more"] if len(names) > _MOST else []
    return [*(f"{what}: {name}" for name in names[:_MOST]), *more]


def _change(change: ValuePair) -> str:
    before, now = ("not there" if side is None else spelled(side) for side in change)
    return f"{before} → {now}"


def settling_text(comparison: Comparison) -> str:
    """Return how many rounds would decide the ratios whose intervals cross the threshold."""
    infos = shown_metrics(comparison)
    crossing = [
        cell
        for row in comparison.rows
        for info in infos
        if (cell := row.cells.get(info.name)) and cell.verdict_reason == "interval_crosses_threshold"
    ]
    needed = sorted(cell.rounds_needed for cell in crossing if cell.rounds_needed is not None)
    if not needed:
        return f"more than {MOST_ROUNDS} rounds of this spread would settle it"
    span = str(needed[0]) if needed[0] == needed[-1] else f"{needed[0]} to {needed[-1]}"
    rest = f"; more than {MOST_ROUNDS} for some" if len(needed) < len(crossing) else ""
    return f"about {span} rounds of this spread would settle it{rest}"
