"""What stands at the top of the page."""

from __future__ import annotations

import dataclasses

from support.drawn import drawn
from support.samples import comparison
from sweeprof.report.explore.overview import failures, places, verdict_counts
from sweeprof.report.html import html


def test_verdicts_are_counted_by_metric() -> None:
    counted = {one.title: one.counts for one in verdict_counts(comparison())}
    assert counted["peak memory"] == {"worse": 7}
    assert counted["accuracy"] == {"same": 7}
    assert verdict_counts(dataclasses.replace(comparison(), rows=comparison().rows[:1])) == []


def test_failures_are_grouped_by_their_reason() -> None:
    sample = drawn(4, models=4).comparison()
    (failed,) = failures(sample)
    ids = {row.combination_id for row in sample.rows if row.status != "ok"}
    assert len(ids) > 1
    assert (failed.status, failed.reason) == ("failed", "no luck")
    assert {id for id, _ in failed.rows} == ids
    assert all(name.startswith("model=m") for _, name in failed.rows)
    assert [(one.status, len(one.rows)) for one in failures(comparison())] == [("crashed", 1), ("unsupported", 1)]


def test_it_says_where_and_with_what() -> None:
    found = dict(places(comparison()))
    assert found["on"] == "AMD EPYC (2 logical, 1 physical cores) · 23.3 GiB"
    assert (
        found["with"] == "Linux 6.1, python 3.11.7, keras 3.15.1, sweeprof 0.1.0, tensorflow 2.21.0, torch 2.13.0+cpu"
    )
    assert places(dataclasses.replace(comparison(), environment={})) == []


def test_the_page_has_it_without_scripts() -> None:
    page = html(comparison(), False)
    assert '<h2 id="verdicts">Against torch</h2>' in page
    assert "<strong>1 crashed</strong> timing: killed by SIGKILL (signal 9)" in page
    assert "not comparable</th>" not in page
