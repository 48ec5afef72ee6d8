"""What is told of two sweeps."""

from __future__ import annotations

import dataclasses

import pytest

from support.samples import build
from sweeprof.report.changes import Changes, changes_of
from sweeprof.results.compared_rows import Comparison, set_against
from sweeprof.results.measurement import Better, Number
from sweeprof.results.record import Status
from sweeprof.results.verdicts import NO_BASELINE

ACCURACY, PARAMS, PEAK = "quality/accuracy", "params/total", "memory/rss_peak_bytes"
INFOS: dict[str, tuple[str, Better]] = {ACCURACY: ("ratio", "higher"), PARAMS: ("", "lower"), PEAK: ("B", "lower")}


def night(
    values: dict[str, Number], threshold: float | None = 0.05, status: Status = "ok", test_data: str | None = None
) -> Comparison:
    """A sweep of one combination; a peak is measured once."""
    made = build([{"model": "a"}], {name: INFOS[name] for name in values}, [values], threshold=threshold)
    cells = dict(made.rows[0].cells)
    if PEAK in cells:
        once = dataclasses.replace(cells[PEAK].measurement, estimator="high-water mark")
        cells[PEAK] = dataclasses.replace(cells[PEAK], measurement=once)
    row = dataclasses.replace(made.rows[0], cells=cells, status=status, test_data=test_data)
    return dataclasses.replace(made, rows=(row,))


def changed(now: Comparison, before: Comparison) -> Changes:
    compared = set_against(now, before, "last")
    return changes_of(compared, compared.metrics)


def kinds(changes: Changes) -> dict[str, str]:
    return {change.metric: change.kind for change in changes.changes}


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [("ok", "oom", ["worse"]), ("oom", "ok", ["better"]), ("failed", "oom", ["unclear"]), ("failed", "failed", [])],
)
def test_only_what_was_measured_gets_worse(before: Status, now: Status, kind: list[str]) -> None:
    old, new = (night({PEAK: 100}, None, status) for status in (before, now))
    assert [change.kind for change in changed(new, old).changes] == kind


@pytest.mark.parametrize(
    ("peak", "threshold", "told"),
    [
        (100, None, {}),
        (104, 0.05, {}),
        (96, 0.05, {}),
        (104, None, {PEAK: "unclear"}),
        (110, 0.05, {PEAK: "unclear"}),
        (90, 0.05, {PEAK: "unclear"}),
    ],
)
def test_what_is_measured_once_is_told_only_where_it_differs(
    peak: int, threshold: float | None, told: dict[str, str]
) -> None:
    assert kinds(changed(night({PEAK: peak}, threshold), night({PEAK: 100}, None))) == told
    assert kinds(changed(night({PEAK: 0}, threshold), night({PEAK: 0}, None))) == {}


@pytest.mark.parametrize(
    ("accuracy", "thresholds", "told"),
    [
        (0.979, {}, {ACCURACY: "worse", PEAK: "unclear"}),
        (0.979, {ACCURACY: 0.01, PEAK: 0.6}, {}),
        (0.94, {ACCURACY: 0.01, PEAK: 0.2}, {ACCURACY: "worse", PEAK: "worse"}),
    ],
)
def test_a_threshold_of_its_own_is_a_tolerance_of_accuracy_and_of_a_peak(
    accuracy: float, thresholds: dict[str, float], told: dict[str, str]
) -> None:
    now = dataclasses.replace(night({ACCURACY: accuracy, PEAK: 150}), thresholds=thresholds)
    assert kinds(changed(now, night({ACCURACY: 0.98, PEAK: 100}))) == told


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        ("360 samples with targets aa", "400 samples with targets bb", "not_comparable"),
        ("360 samples", "360 samples", "worse"),
        (None, "360 samples", "worse"),
        ("360 samples", None, "worse"),
    ],
)
def test_quality_on_other_test_data_is_not_comparable(before: str | None, now: str | None, kind: str) -> None:
    old, new = night({ACCURACY: 1, PARAMS: 1}, test_data=before), night({ACCURACY: 0.5, PARAMS: 2}, test_data=now)
    changes, differ = changed(new, old), kind == "not_comparable"
    assert kinds(changes) == {PARAMS: "worse", ACCURACY: kind}
    assert ("(different test data)" in str(changes.answer)) == differ
    assert (f"test data: {before} → {now}" in changes.lines) == differ
    assert any("test data" in line for line in changes.lines) == differ


@pytest.mark.parametrize(("reason", "kind"), [("ValueError: no", "worse"), (NO_BASELINE, "not_comparable")])
def test_a_value_that_is_lost_is_worse_unless_the_sweep_was_asked_for_less(reason: str, kind: str) -> None:
    old, new = night({ACCURACY: 1}), night({ACCURACY: 1})
    cell = new.rows[0].cells[ACCURACY]
    lost = dataclasses.replace(cell, measurement=dataclasses.replace(cell.measurement, value=None, reason=reason))
    new = dataclasses.replace(new, rows=(dataclasses.replace(new.rows[0], cells={ACCURACY: lost}),))
    assert kinds(changed(new, old)) == {ACCURACY: kind}
