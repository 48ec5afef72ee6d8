"""What is told of two sweeps."""

from __future__ import annotations

import dataclasses

import pytest

from support.odd import build
from sweeprof.report.changes import changes_of
from sweeprof.results.compare import Comparison
from sweeprof.results.cross_sweep import set_against
from sweeprof.results.record import Status

PEAK = "memory/rss_peak_bytes"


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        ("ok", "oom", ["worse"]),
        ("oom", "ok", ["better"]),
        ("failed", "oom", ["unclear"]),
        ("failed", "failed", []),
    ],
)
def test_only_what_was_measured_gets_worse(before: Status, now: Status, kind: list[str]) -> None:
    old, new = (
        dataclasses.replace(once(100, None), rows=(dataclasses.replace(once(100, None).rows[0], status=status),))
        for status in (before, now)
    )
    assert [change.kind for change in changes_of(set_against(new, old, "last"), new.metrics).changes] == kind


def once(peak: int, threshold: float | None) -> Comparison:
    """A sweep of one combination whose peak was measured once."""
    made = build([{"model": "a"}], {PEAK: ("B", "lower")}, [{PEAK: peak}], threshold=threshold)
    cell = made.rows[0].cells[PEAK]
    measured = dataclasses.replace(cell.measurement, estimator="high-water mark")
    row = dataclasses.replace(made.rows[0], cells={PEAK: dataclasses.replace(cell, measurement=measured)})
    return dataclasses.replace(made, rows=(row,))


@pytest.mark.parametrize(
    ("peak", "threshold", "told"),
    [
        (100, None, []),
        (104, 0.05, []),
        (96, 0.05, []),
        (104, None, ["unclear"]),
        (110, 0.05, ["unclear"]),
        (90, 0.05, ["unclear"]),
    ],
)
def test_what_is_measured_once_is_told_only_where_it_differs(
    peak: int, threshold: float | None, told: list[str]
) -> None:
    new = set_against(once(peak, threshold), once(100, None), "last")
    assert [change.kind for change in changes_of(new, new.metrics).changes] == told
