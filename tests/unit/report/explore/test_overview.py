"""What stands at the top of the page."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

import pytest

from support.drawn import drawn
from support.samples import comparison
from sweeprof.report.changes import pull_request
from sweeprof.report.explore import failures, places, verdict_lines
from sweeprof.report.html import html
from sweeprof.results.compared_rows import Comparison, set_against


def test_verdicts_are_counted_by_metric() -> None:
    lines = verdict_lines(comparison())
    assert "peak memory: 7 worse" in lines
    assert "accuracy: 7 same" in lines
    assert verdict_lines(dataclasses.replace(comparison(), rows=comparison().rows[:1])) == []


@pytest.mark.parametrize(
    "sample", [comparison(), drawn(0).comparison(), drawn(1).comparison()], ids=["sample", "0", "1"]
)
def test_the_page_counts_what_the_pull_request_counts(sample: Comparison) -> None:
    pattern = re.compile(r"(\d+) (worse|better|same|unclear|not comparable)")
    counts = Counter[str]()
    for line in verdict_lines(sample):
        counts.update({verdict: int(count) for count, verdict in pattern.findall(line)})
    assert counts.total() > 10
    first, _, _ = pull_request(sample).partition(" – ")
    assert {verdict: int(count) for count, verdict in pattern.findall(first)} == counts


def test_a_figure_is_counted_once_and_the_agreement_only_with_that_of_another_sweep() -> None:
    titles = {line.partition(":")[0] for line in verdict_lines(comparison())}
    assert {"latency", "peak memory", "accuracy"} <= titles
    assert not {"throughput (samples/s)", "throughput", "agreement"} & titles
    other = dataclasses.replace(comparison(), sweep_id="s0")
    lines = verdict_lines(set_against(comparison(), other, "tag:nightly"))
    assert "agreement" in {line.partition(":")[0] for line in lines}


def test_what_was_measured_once_is_said_to_be_so() -> None:
    """The peak memory of tensorflow is larger in all seven pairs, and was measured in a single process in two of them."""
    sample, changed = comparison(), 0
    rows = []
    for row in sample.rows:
        cell = row.cells.get("memory/rss_peak_bytes")
        if cell is not None and cell.verdict == "worse" and changed < 2:
            changed += 1
            unclear = dataclasses.replace(cell, verdict="unclear", verdict_reason="measured_once")
            rows.append(dataclasses.replace(row, cells={**row.cells, "memory/rss_peak_bytes": unclear}))
        else:
            rows.append(row)
    once = dataclasses.replace(sample, rows=tuple(rows))
    assert "peak memory: 5 worse, 2 unclear (measured once, which cannot decide)" in verdict_lines(once)
    assert "9 unclear (2 of them measured once, which cannot decide) – " in pull_request(once)


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
    assert "Verdicts against torch – latency: 7 unclear; peak memory: 7 worse" in page
    assert "<strong>1 crashed</strong> timing: killed by SIGKILL (signal 9)" in page
