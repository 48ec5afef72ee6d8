"""Notes below the tables: why a verdict is undecided, with advice that is right for the case; constraints and the Pareto front."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.samples import build, chosen, comparison
from sweeprof.report.answer import answer
from sweeprof.report.columns import metric_title, shown_metrics
from sweeprof.report.latex import latex
from sweeprof.report.summary import footnotes, protocol_text
from sweeprof.report.table import whole_table
from sweeprof.results.compared_rows import Comparison, Row, compare_rows, set_against
from sweeprof.results.constraints import dominant, metric_names, with_selection
from sweeprof.results.measurement import Better, Measurement, MetricInfo
from sweeprof.results.verdicts import ALL_ROUNDS

ALIKE = (1.0, 1.3, 0.8, 1.5, 0.9)
FASTER = (0.5, 0.51, 0.49, 0.5, 0.5)


NAME = "latency/forward"


def timed(seconds: Sequence[float], numbers: Sequence[int] | None = None, better: Better = "lower") -> Measurement:
    rounds, value = tuple(seconds), sorted(seconds)[len(seconds) // 2]
    places = tuple(numbers or range(len(rounds)))
    return Measurement(NAME, "s", better, value, estimator="geometric mean", rounds=rounds, round_numbers=places)


def once(value: float, estimator: str) -> Measurement:
    return Measurement(NAME, "s", "lower", value, estimator=estimator)


def sweep(
    own: Measurement,
    base: Measurement,
    threshold: float | None = 0.05,
    planned: Sequence[int] = (5,),
    environments: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
    sessions: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> Comparison:
    """A candidate and its baseline."""
    rows = [
        Row(name, {"backend": name}, "ok", None, {}, "base", environment=environment, sessions=tuple(session))
        for name, environment, session in zip(("base", "own"), environments, sessions, strict=True)
    ]
    info = MetricInfo(NAME, "s", own.better, "Seconds.")
    measured = {"base": {info.name: base}, "own": {info.name: own}}
    return Comparison(
        *("s1", "notes", "2026-11-22T00:00:00+00:00", "", ("backend",), (info,), {"backend": "base"}),
        compare_rows(rows, measured, threshold),
        threshold=threshold,
        protocol={"rounds": list(planned), "interleave": ["rounds"], "kernel": [None]},
    )


def against(own: Measurement, base: Measurement) -> Comparison:
    """The candidate beside the same combination of another sweep."""
    before, now = (sweep(one, one) for one in (base, own))
    return set_against(now, dataclasses.replace(before, sweep_id="s0"), "tag:nightly")


GOVERNORS = ({"governor": "powersave"}, {"governor": "performance"})
CASES: dict[str, Comparison] = {
    "one round each": sweep(timed([1.0]), timed([1.0]), None, [1]),
    "own rounds are missing": sweep(timed([1.0, 1.1]), timed(ALIKE)),
    "the baseline's rounds are missing": sweep(timed(FASTER[:3]), timed([1.0])),
    "the baseline was to be measured once": sweep(timed(FASTER), timed([1.0]), planned=[1, 5]),
    "the other sweep was measured once": against(timed(FASTER), timed([1.0])),
    "rounds on one side only": sweep(timed(FASTER), once(2.0, "exact")),
    "both have three rounds, but not the same": sweep(timed(FASTER[:3]), timed(ALIKE[:3], [2, 3, 4])),
    "no threshold": sweep(timed(FASTER), timed(ALIKE), None),
    "crossing": sweep(timed(ALIKE), timed(sorted(ALIKE))),
    "neither is better": sweep(timed(FASTER, better=None), timed([1.0] * 5, better=None)),
    "a value is zero": sweep(timed(FASTER), timed([0.0, 1.0, 1.0])),
    "incomplete": sweep(once(2.0, "exact"), once(1.0, "lower bound")),
    "all rounds together": sweep(once(2.0, ALL_ROUNDS), once(1.0, ALL_ROUNDS)),
    "another host": sweep(timed(FASTER), timed(ALIKE), environments=({"host": "a"}, {"host": "b"})),
    "another governor": sweep(timed(FASTER), timed(ALIKE), environments=GOVERNORS),
    "run again later": sweep(timed(FASTER), timed(ALIKE), sessions=("ssttt", "sssss")),
}


def test_the_advice_is_right_for_the_case(golden: Callable[[str, str], None]) -> None:
    lines = []
    for name, case in CASES.items():
        cell = case.rows[-1].cells[NAME]
        lines.append(f"{name}: {cell.verdict}, {cell.verdict_reason}")
        lines += [f"  {note.code}: {note.text} → {note.advice}".rstrip("→ ") for note in footnotes(case)]
    golden("notes.txt", "\n".join([*lines, ""]))


def test_rows_with_other_advice_are_a_note_of_their_own() -> None:
    """One is compared with a baseline that lacks rounds; another lacks rounds itself."""
    lacking, lacks = CASES["the baseline's rounds are missing"], CASES["own rounds are missing"]
    rows = (*lacking.rows, *(dataclasses.replace(row, combination_id=f"{row.combination_id}2") for row in lacks.rows))
    notes = [note for note in footnotes(dataclasses.replace(lacking, rows=rows)) if note.code == "too_few_rounds"]
    assert [note.rows for note in notes] == [1, 1]
    assert len({note.advice for note in notes}) == 2


def test_a_note_on_rows_with_different_figures_has_an_example() -> None:
    one = CASES["run again later"]
    others = sweep(timed(FASTER), timed(ALIKE), sessions=("ttttt", "sssss")).rows
    alike = tuple(dataclasses.replace(row, combination_id=f"{row.combination_id}2") for row in one.rows)
    figures = "3 of 5 rounds were timed in another run of the sweep than the baseline's: rounds are not paired"
    for further, text_of_note in ((others, f"{figures}, for example"), (alike, figures)):
        (note,) = [
            note for note in footnotes(dataclasses.replace(one, rows=(*one.rows, *further))) if note.code == "run_apart"
        ]
        assert (note.rows, note.text) == (2, text_of_note)


# What the brackets and bars are: after one round they come from one process

WITHIN = "95% interval of the median within one process, not between processes"
OVER = "95% interval over the rounds"


def of_rounds(*counts: int) -> Comparison:
    """Combinations of as many rounds each, of different batch sizes, without a baseline."""
    rows, measured = [], {}
    for place, count in enumerate(counts):
        one = timed([1.0 + place + 0.01 * number for number in range(count)])
        measured[f"c{place}"] = {NAME: dataclasses.replace(one, interval=(0.9 + place, 1.1 + place))}
        rows.append(Row(f"c{place}", {"batch_size": 2**place}, "ok", None, {}, None))
    empty = sweep(timed([1.0]), timed([1.0]), None, sorted(set(counts)))
    return dataclasses.replace(empty, axes=("batch_size",), baseline={}, rows=compare_rows(rows, measured, None))


@pytest.mark.parametrize(
    ("comparison", "brackets", "caption"),
    [
        (of_rounds(1, 1), WITHIN, "Medians with their 95% intervals within one process"),
        (of_rounds(5, 5), OVER, "Means over the rounds with their 95% intervals;"),
        (of_rounds(1, 5), f"{OVER}; of values with one round", "where there is one round"),
    ],
    ids=["1", "5", "1 and 5"],
)
def test_every_report_says_what_its_intervals_are(comparison: Comparison, brackets: str, caption: str) -> None:
    assert f"[\N{NO-BREAK SPACE}]: {brackets}" in protocol_text(comparison)
    assert caption.replace("%", r"\%") in " ".join(latex(comparison).split())


def test_without_intervals_nothing_is_said_of_them() -> None:
    rows = [dataclasses.replace(row, cells={}, status="failed", reason="no luck") for row in of_rounds(1, 1).rows]
    assert "[\N{NO-BREAK SPACE}]" not in protocol_text(dataclasses.replace(of_rounds(1, 1), rows=tuple(rows)))


# Constraints, the Pareto front, geometric means, and what reports say of them


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
