"""Remarks on the times of a layer table: their quality, and why some are missing."""

from __future__ import annotations

from collections.abc import Iterable

from sweeprof.numbers import percent, rounded, significant
from sweeprof.report.layers import cells
from sweeprof.results.layer_times import OUTSIDE, ROOT, Mode, PhaseSummary
from sweeprof.results.layers import LayerTable
from sweeprof.text import one_line

_MOST_NAMES = 3
_NAMES = {ROOT: "the model", OUTSIDE: "what runs outside any module"}


def remarks_on(table: LayerTable, columns: Iterable[str]) -> list[str]:
    """Both, where times are among the columns."""
    shown = list(columns)
    if not any(cells.time_column(column) for column in shown):
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
    phases = dict.fromkeys(read.partition("_")[0] for column in columns if (read := cells.time_column(column)))
    for phase in phases:
        for row in table.rows:
            reason = cells.why_missing(table, row, f"{phase}_s") if row.call >= 0 else None
            if reason is not None:
                found.setdefault((phase, reason), []).append(row.path)
    return [f"No {phase} time of {_listed(paths)}: {reason}." for (phase, reason), paths in found.items()]


def _listed(paths: Iterable[str]) -> str:
    names = [_NAMES.get(path, one_line(path)) for path in dict.fromkeys(paths)]
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
