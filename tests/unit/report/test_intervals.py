"""What the brackets and bars of a report are: after one round they come from one process, and every report says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from sweeprof.report.changes import pull_request
from sweeprof.report.html import html
from sweeprof.report.latex import latex
from sweeprof.report.markdown import markdown
from sweeprof.report.summary import protocol_text
from sweeprof.report.terminal import text
from sweeprof.results.compared_rows import Comparison, Row, compare_rows
from sweeprof.results.measurement import Measurement, MetricInfo

INFO = MetricInfo("latency/forward", "s", "lower", "Seconds.")
WITHIN = "95 % interval of the median within one process, not between processes"
OVER = "95 % interval over the rounds"


def sweep(rounds: Sequence[int]) -> Comparison:
    """Combinations of as many rounds each, of different batch sizes."""
    rows, measured = [], {}
    for place, count in enumerate(rounds):
        seconds = tuple(1.0 + place + 0.01 * number for number in range(count))
        one = Measurement(
            *(INFO.name, INFO.unit, INFO.better, seconds[0]), interval=(0.9 + place, 1.1 + place), rounds=seconds
        )
        rows.append(Row(f"c{place}", {"batch_size": 2**place}, "ok", None, {}, None))
        measured[f"c{place}"] = {INFO.name: one}
    return Comparison(
        *("s1", "intervals", "2026-11-22T00:00:00+00:00", "", ("batch_size",), (INFO,), {}),
        compare_rows(rows, measured, None),
        protocol={"rounds": sorted(set(rounds)), "interleave": ["rounds"], "kernel": []},
    )


CASES = [
    ([1, 1], WITHIN, "Medians with their 95 % intervals within one process"),
    ([5, 5], OVER, "Means over the rounds with their 95 % intervals;"),
    ([1, 5], f"{OVER}; of values with one round", "where there is one round"),
]


@pytest.mark.parametrize(("rounds", "brackets", "caption"), CASES)
def test_every_report_says_what_its_intervals_are(rounds: list[int], brackets: str, caption: str) -> None:
    comparison = sweep(rounds)
    assert f"[ ]: {brackets}" in protocol_text(comparison)
    for report in (text(comparison), html(comparison), markdown(comparison), pull_request(comparison)):
        plain = " ".join(report.replace("\\", "").split())
        assert brackets in plain
    assert caption.replace("%", r"\%") in " ".join(latex(comparison).split())


def test_without_intervals_nothing_is_said_of_them() -> None:
    comparison = sweep([1, 1])
    rows = tuple(dataclasses.replace(row, cells={}, status="failed", reason="no luck") for row in comparison.rows)
    assert "[ ]" not in protocol_text(dataclasses.replace(comparison, rows=rows))
