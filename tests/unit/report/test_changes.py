"""What is told of two sweeps."""

from __future__ import annotations

import dataclasses

import pytest

from support.samples import build
from sweeprof.report.changes import changes_of
from sweeprof.results.compared_rows import Comparison, set_against
from sweeprof.results.measurement import Better
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


def test_a_threshold_of_its_own_is_a_tolerance_of_accuracy_and_of_a_peak() -> None:
    def night(accuracy: float, peak: int) -> Comparison:
        made = build(
            [{"model": "a"}],
            {"quality/accuracy": ("ratio", "higher"), PEAK: ("B", "lower")},
            [{"quality/accuracy": accuracy, PEAK: peak}],
            threshold=0.05,
        )
        cell = made.rows[0].cells[PEAK]
        once = dataclasses.replace(cell, measurement=dataclasses.replace(cell.measurement, estimator="high-water mark"))
        row = dataclasses.replace(made.rows[0], cells={**made.rows[0].cells, PEAK: once})
        return dataclasses.replace(made, rows=(row,))

    def told(now: Comparison, **thresholds: float) -> dict[str, str]:
        names = {"accuracy": "quality/accuracy", "peak": PEAK}
        own = dataclasses.replace(now, thresholds={names[name]: value for name, value in thresholds.items()})
        compared = set_against(own, night(0.98, 100), "last")
        return {change.metric: change.kind for change in changes_of(compared, compared.metrics).changes}

    assert told(night(0.979, 150)) == {"quality/accuracy": "worse", PEAK: "unclear"}
    assert told(night(0.979, 150), accuracy=0.01, peak=0.6) == {}
    assert told(night(0.94, 150), accuracy=0.01, peak=0.2) == {"quality/accuracy": "worse", PEAK: "worse"}


def test_quality_on_other_test_data_is_not_comparable() -> None:
    def night(accuracy: float, test_data: str | None) -> Comparison:
        metrics: dict[str, tuple[str, Better]] = {
            "quality/accuracy": ("ratio", "higher"),
            "params/total": ("", "lower"),
        }
        made = build([{"model": "a"}], metrics, [{"quality/accuracy": accuracy, "params/total": 1 / accuracy}])
        return dataclasses.replace(made, rows=(dataclasses.replace(made.rows[0], test_data=test_data),))

    def told(before: str | None, now: str | None) -> tuple[dict[str, str], list[str]]:
        compared = set_against(night(0.5, now), night(1, before), "last")
        changes = changes_of(compared, compared.metrics)
        assert ("(different test data)" in str(changes.answer)) == (None not in (before, now) and before != now)
        return {change.metric: change.kind for change in changes.changes}, list(changes.lines)

    kinds, lines = told("360 samples with targets aa", "400 samples with targets bb")
    assert kinds == {"params/total": "worse", "quality/accuracy": "not_comparable"}
    assert "test data: 360 samples with targets aa → 400 samples with targets bb" in lines
    for before, now in (("360 samples", "360 samples"), (None, "360 samples"), ("360 samples", None)):
        kinds, lines = told(before, now)
        assert kinds["quality/accuracy"] == "worse"
        assert not any("test data" in line for line in lines)
