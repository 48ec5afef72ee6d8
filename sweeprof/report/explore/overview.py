"""What a reader wants to know first: where and with what it was measured, what the verdicts come to, what failed and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sweeprof.report.cells import one_line
from sweeprof.report.columns import called_metrics, metric_title
from sweeprof.report.judged import teller
from sweeprof.report.summary import environment_items
from sweeprof.report.table import sorted_rows
from sweeprof.results.compare import Comparison
from sweeprof.results.record import Status
from sweeprof.results.verdicts import Verdict

_VERDICTS: tuple[Verdict, ...] = ("better", "worse", "same", "unclear", "not_comparable")

_PLACE = ("cpu", "memory", "gpu")
_NOT_SOFTWARE = (*_PLACE, "host", "submitted from", "cpu governor", "cpu quota", "load", "git")


@dataclass(frozen=True, slots=True)
class Counts:
    """How often a metric was called what, against the baseline."""

    title: str
    counts: Counter[Verdict]


@dataclass(frozen=True, slots=True)
class Failure:
    """Combinations that failed for one reason."""

    status: Status
    reason: str
    rows: tuple[tuple[str, str], ...]
    """Combination id and name of each."""


def places(comparison: Comparison) -> list[tuple[str, str]]:
    """On what the sweep ran and with what software, each as one text; nothing that was not recorded."""
    items = environment_items(comparison)
    place = [text for name, text in items if name in _PLACE]
    software = [text if name == "os" else f"{name} {text}" for name, text in items if name not in _NOT_SOFTWARE]
    found = [("on", " · ".join(place)), ("with", ", ".join(software))]
    return [(name, text) for name, text in found if text]


def verdict_counts(comparison: Comparison) -> list[Counts]:
    """The verdicts of each metric of :func:`called_metrics` that has any, where both combination and baseline have values."""
    held = [row for row in comparison.rows if row.has_values and row.baseline_has_values]
    found: list[Counts] = []
    for info in called_metrics(comparison):
        cells = [row.cells[info.name] for row in held if info.name in row.cells]
        counts = Counter(cell.verdict for cell in cells if cell.verdict is not None)
        if counts:
            found.append(Counts(metric_title(info, comparison.rows), counts))
    return found


def verdicts(counted: Sequence[Counts]) -> list[Verdict]:
    """The verdicts that a table of them has a column for; that of rows of another host only where there is one."""
    return [
        verdict for verdict in _VERDICTS if verdict != "not_comparable" or any(one.counts[verdict] for one in counted)
    ]


def failures(comparison: Comparison) -> list[Failure]:
    """Combinations without values by status and reason, the most frequent first; :func:`footnotes` lists incomplete ones."""
    groups: dict[tuple[Status, str], list[tuple[str, str]]] = {}
    tell = teller(comparison)
    for row in sorted_rows(comparison):
        if not row.has_values:
            key = (row.status, one_line(row.reason or "no reason was given"))
            groups.setdefault(key, []).append((row.combination_id, tell(row.axes)))
    found: Iterator[Failure] = (Failure(*key, tuple(rows)) for key, rows in groups.items())
    return sorted(found, key=lambda failure: -len(failure.rows))
