"""Constraints, the Pareto front, geometric means, and what reports say of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.samples import build, chosen, comparison
from sweeprof.report.answer import answer
from sweeprof.report.columns import metric_title, shown_metrics
from sweeprof.report.summary import protocol_text
from sweeprof.report.table import whole_table
from sweeprof.results.compared_rows import Comparison
from sweeprof.results.constraints import dominant, metric_names, with_selection


def front(made: Comparison) -> list[str]:
    return [row.axes["model"] for row in made.rows if row.on_front]


def test_what_does_not_qualify_says_why() -> None:
    made = with_selection(chosen(), constraints=["latency < 5 ms and accuracy > 0.95", "parameters <= 20"])
    assert [list(row.misses) for row in made.rows] == [
        ["accuracy > 0.95: 0.9000"],
        [],
        ["latency < 5 ms: 8.00 ms", "accuracy > 0.95: 0.9000", "parameters <= 20: 30"],
        ["failed: ValueError: no luck"],
        ["accuracy > 0.95: accuracy has no value (not measured)"],
    ]


@pytest.mark.parametrize(
    ("constraint", "fitting"),
    [
        ("latency/forward < 5ms", ["fast", "good", "blind"]),
        ("forward < 5 ms or accuracy == 0.9", ["fast", "good", "beaten"]),
        ("not (latency < 5 ms)", ["beaten"]),
        ("model == 'good'", ["good"]),
        ("model in ['good', 'fast'] and total < 15", ["fast"]),
        ("mine/colour == 3", ["fast", "good", "beaten", "blind"]),
        ("latency + 1", []),
    ],
)
def test_constraints_speak_of_metrics_by_any_name_and_of_axes(constraint: str, fitting: list[str]) -> None:
    made = with_selection(chosen(), constraints=[constraint])
    assert [row.axes["model"] for row in made.rows if not row.misses] == fitting


def test_a_generation_is_told_by_its_latency_and_in_short_columns() -> None:
    names = ("generation/time_to_first_token", "generation/time_per_token", "generation/latency")
    metrics: dict[str, Any] = {"memory/added_bytes": ("B", "lower"), **dict.fromkeys(names, ("s", "lower"))}
    metrics["generation/decode_throughput"] = ("tokens/s", "higher")
    values: list[Any] = [dict.fromkeys(metrics, 0.5), dict.fromkeys(metrics, 0.25)]
    made = build([{"generation.num_beams": 2}, {"generation.num_beams": 1}], metrics, values)
    assert answer(made).finding == "Lowest generation latency: 250 ms (num_beams 1)."
    assert [metric_title(info, made.rows) for info in shown_metrics(made)] == [
        *("generation latency", "first token", "time per token", "decode (tokens/s)", "added memory")
    ]


def test_a_short_name_must_be_one_metrics_alone() -> None:
    infos = build([{}], {"a/x": ("s", "lower"), "b/x": ("s", "lower"), "b/y": ("s", "lower")}, [{}]).metrics
    assert metric_names(infos) == {"a/x": "a/x", "b/x": "b/x", "b/y": "b/y", "y": "b/y"}


def test_the_front_has_what_nothing_beats() -> None:
    assert front(with_selection(chosen(), ["latency", "accuracy"])) == ["fast", "good"]
    assert front(with_selection(chosen(), ["latency", "accuracy", "params/total"])) == ["fast", "good"]
    assert front(with_selection(chosen(), ["latency", "params/total"])) == ["blind"]
    assert front(with_selection(chosen(), ["latency", "accuracy"], ["latency > 2 ms"])) == ["good"]


@pytest.mark.parametrize("metrics", [[], ["latency"], ["latency", "colour"], ["latency", "absent"]])
def test_there_is_no_front_of_less_than_two_metrics_with_a_direction(metrics: list[str]) -> None:
    made = with_selection(chosen(), metrics)
    assert (front(made), made.pareto) == ([], ())


points = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=12)


@given(points)
def test_nothing_dominates_a_dominant_point_and_something_every_other(found: list[tuple[int, int, int]]) -> None:
    kept = set(dominant(found, ["lower", "higher", "lower"]))
    for place, (x, y, z) in enumerate(found):
        beaten = any(a <= x and b >= y and c <= z and (a, b, c) != (x, y, z) for a, b, c in found)
        assert beaten == (place not in kept)


def with_interval(made: Comparison, model: str, interval: tuple[float, float]) -> Comparison:
    """The comparison with an interval of a model's latency."""
    rows = []
    for row in made.rows:
        cell = row.cells["latency/forward"]
        measurement = dataclasses.replace(cell.measurement, interval=interval)
        cells = {**row.cells, "latency/forward": dataclasses.replace(cell, measurement=measurement)}
        rows.append(dataclasses.replace(row, cells=cells) if row.axes["model"] == model else row)
    return dataclasses.replace(made, rows=tuple(rows))


@pytest.mark.parametrize(
    ("model", "interval", "mark", "counted"),
    [
        ("good", (0.0039, 0.0041), "✓", "3 of 5 combinations fulfil it."),
        ("good", (0.0029, 0.0052), "✓ ~", "3 of 5 combinations fulfil it, 1 of them not certainly."),
        ("beaten", (0.0045, 0.0123), "✗ ~", "3 of 5 combinations fulfil it."),
    ],
)
def test_a_limit_within_an_interval_is_not_certain(
    model: str, interval: tuple[float, float], mark: str, counted: str
) -> None:
    made = with_selection(with_interval(chosen(), model, interval), [], ["latency < 5 ms"])
    assert fulfils(made)[model] == mark
    assert answer(made).finding.startswith(f"Best latency with latency < 5 ms: blind – 500 µs; {counted}")


def fulfils(made: Comparison) -> dict[str, str]:
    """By model what the column of the constraints says."""
    table = whole_table(made)
    place = [column.kind for column in table.columns].index("fulfils")
    return {line.row.axes["model"]: line.entries[place].text for line in table.lines}


def test_what_misses_another_condition_for_certain_is_certain() -> None:
    made = with_interval(chosen(), "beaten", (0.0045, 0.0123))
    both = with_selection(made, [], ["latency < 5 ms and accuracy > 0.95"])
    assert fulfils(both)["beaten"] == "✗"
    (row,) = (row for row in both.rows if row.axes["model"] == "beaten")
    assert row.misses == ("latency < 5 ms: 8.00 ms", "accuracy > 0.95: 0.9000")


def test_the_header_says_how_it_was_measured() -> None:
    protocol = {"rounds": [5], "interleave": ["samples"]}
    made = dataclasses.replace(comparison(), protocol=protocol, threshold=0.05, thresholds={"latency/forward": 0.03})
    assert protocol_text(made) == (
        "5 rounds, interleaved sample by sample · threshold 5% (latency/forward 3%)"
        " · [\N{NO-BREAK SPACE}]: 95% interval of the median within one process, not between processes"
    )
    quick = dataclasses.replace(made, protocol={"rounds": [1]}, threshold=None, thresholds={})
    assert protocol_text(quick, with_intervals=False) == "1 round · no threshold, so no verdicts"
    assert protocol_text(comparison()) == ""
