"""The overview at the top of the page: host and versions, a summary of the verdicts, and failures with their reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from sweeprof.report.columns import called_metrics, metric_title
from sweeprof.report.summary import environment_items
from sweeprof.report.table import sorted_rows
from sweeprof.report.verdict_summary import combination_namer, verdict_counts
from sweeprof.results.compare import Comparison, Row
from sweeprof.results.record import Failure, Status
from sweeprof.results.verdicts import Verdict
from sweeprof.text import one_line

_VERDICTS: tuple[Verdict, ...] = ("better", "worse", "same", "unclear", "not_comparable")

RowOutcome = Status | Literal["incomplete"]
"""``incomplete``: measured, but for a metric that raised."""
MOST_FAILURES = 20
"""Different failures that the terminal and Markdown list."""
_PLACE = ("cpu", "memory", "gpu")
_NOT_SOFTWARE = (*_PLACE, "host", "submitted from", "cpu governor", "cpu quota", "load", "git")


@dataclass(frozen=True, slots=True)
class FailedRows:
    """Combinations that failed for one reason."""

    status: RowOutcome
    reason: str
    rows: tuple[tuple[str, str], ...]
    """Combination id and name of each."""
    traceback: str | None = None
    log: str | None = None
    """Of the first of them, below the sweep's folder."""


def rows_text(count: int) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count} {'row' if count == 1 else 'rows'}"


def places(comparison: Comparison) -> list[tuple[str, str]]:
    """On what the sweep ran and with what software, each as one text; nothing that was not recorded."""
    items = environment_items(comparison)
    place = [text for name, text in items if name in _PLACE]
    software = [text if name == "os" else f"{name} {text}" for name, text in items if name not in _NOT_SOFTWARE]
    found = [("on", " · ".join(place)), ("with", ", ".join(software))]
    return [(name, text) for name, text in found if text]


def verdict_lines(comparison: Comparison) -> list[str]:
    """The verdicts of each metric of :func:`called_metrics` that has any, e.g. ``latency: 2 better, 1 unclear``.

    Rows count where both they and their baselines have values.
    """
    held = [row for row in comparison.rows if row.has_values and row.baseline_has_values]
    lines = []
    for info in called_metrics(comparison):
        cells = [row.cells[info.name] for row in held if info.name in row.cells]
        counts = Counter(cell.verdict for cell in cells if cell.verdict is not None)
        if counts:
            once = sum(cell.verdict_reason == "measured_once" for cell in cells)
            text = verdict_counts(counts, once, [verdict for verdict in _VERDICTS if counts[verdict]])
            lines.append(f"{metric_title(info, comparison.rows)}: {text}")
    return lines


def failures(comparison: Comparison) -> list[FailedRows]:
    """Combinations without a full measurement by status and reason, the most frequent first.

    Combinations with values that lack rounds are listed by :func:`footnotes`, and here where something raised.
    """
    groups: dict[tuple[RowOutcome, str], list[tuple[Row, Failure]]] = {}
    for row in sorted_rows(comparison):
        status: RowOutcome = "incomplete" if row.has_values else row.status
        for failure in row.failures:
            groups.setdefault((status, one_line(f"{failure.source}: {failure.message}")), []).append((row, failure))
        if not row.has_values and not row.failures:
            reason = one_line(row.reason or "no reason was given")
            groups.setdefault((status, reason), []).append((row, Failure("", reason)))
    tell = combination_namer(comparison)
    found = []
    for (ending, reason), failed in groups.items():
        rows = tuple((row.combination_id, tell(row.axes)) for row, _ in failed)
        traceback = next((failure.traceback for _, failure in failed if failure.traceback), None)
        found.append(FailedRows(ending, reason, rows, traceback, failed[0][1].log))
    return sorted(found, key=lambda failure: -len(failure.rows))
