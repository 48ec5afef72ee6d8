"""Notes below the tables: why a verdict is undecided, and advice that is right for the case at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sweeprof.report.changes import pull_request
from sweeprof.report.html import html
from sweeprof.report.markdown import markdown
from sweeprof.report.summary import footnotes
from sweeprof.report.terminal import text
from sweeprof.results.compared_rows import Comparison, Row, compare_rows, set_against
from sweeprof.results.measurement import Better, Measurement, MetricInfo
from sweeprof.results.verdicts import ALL_ROUNDS, REASONS

MEASURE = "measure at least 3 rounds, e.g. protocol=default"
ALIKE = (1.0, 1.3, 0.8, 1.5, 0.9)
FASTER = (0.5, 0.51, 0.49, 0.5, 0.5)


def timed(seconds: Sequence[float], numbers: Sequence[int] | None = None, **given: Any) -> Measurement:
    rounds = tuple(seconds)
    better: Better = given.pop("better", "lower")
    estimator = given.pop("estimator", "geometric mean")
    return Measurement(
        *("latency/forward", "s", better, sorted(rounds)[len(rounds) // 2]),
        estimator=estimator,
        rounds=() if given.pop("once", False) else rounds,
        round_numbers=tuple(numbers or range(len(rounds))),
        **given,
    )


def once(value: float, estimator: str) -> Measurement:
    return Measurement("latency/forward", "s", "lower", value, estimator=estimator)


def sweep(
    own: Measurement,
    base: Measurement,
    threshold: float | None = 0.05,
    planned: Sequence[int] = (5,),
    environments: tuple[dict[str, Any], dict[str, Any]] = ({}, {}),
    sessions: tuple[Sequence[str], Sequence[str]] = ((), ()),
    kernel: str | None = None,
) -> Comparison:
    """A candidate and its baseline."""
    rows = [
        Row(name, {"backend": name}, "ok", None, {}, "base", environment=environment, sessions=tuple(session))
        for name, environment, session in zip(("base", "own"), environments, sessions, strict=True)
    ]
    info = MetricInfo("latency/forward", "s", own.better, "Seconds.")
    measured = {"base": {info.name: base}, "own": {info.name: own}}
    return Comparison(
        *("s1", "notes", "2026-11-22T00:00:00+00:00", "", ("backend",), (info,), {"backend": "base"}),
        compare_rows(rows, measured, threshold),
        threshold=threshold,
        protocol={"rounds": list(planned), "interleave": ["rounds"], "kernel": [kernel]},
    )


def against(own: Measurement, base: Measurement) -> Comparison:
    """The candidate beside the same combination of another sweep."""
    before, now = (sweep(one, one) for one in (base, own))
    return set_against(now, dataclasses.replace(before, sweep_id="s0"), "tag:nightly")


HOST_A, HOST_B = {"host": "a"}, {"host": "b"}
CASES: dict[str, tuple[Comparison, str, str, str]] = {
    "one round each": (
        sweep(timed([1.0]), timed([1.0]), None, [1]),
        *("too_few_rounds", "1 round cannot distinguish a difference from chance", MEASURE),
    ),
    "own rounds are missing": (
        sweep(timed([1.0, 1.1]), timed(ALIKE)),
        *(
            "too_few_rounds",
            "2 rounds cannot distinguish a difference from chance",
            "measure the missing rounds: resume=DIR",
        ),
    ),
    "the baseline's rounds are missing": (
        sweep(timed(FASTER[:3]), timed([1.0])),
        *("too_few_rounds", "the baseline has only 1 round", "measure the baseline's missing rounds: resume=DIR"),
    ),
    "the baseline was to be measured once": (
        sweep(timed(FASTER), timed([1.0]), planned=[1, 5]),
        *(
            "too_few_rounds",
            "the baseline has only 1 round",
            f"measure the baseline with {MEASURE.removeprefix('measure ')}",
        ),
    ),
    "the other sweep was measured once": (
        against(timed(FASTER), timed([1.0])),
        *(
            "too_few_rounds",
            "the other sweep has only 1 round",
            f"measure the other sweep again with {MEASURE.removeprefix('measure ')}",
        ),
    ),
    "both have three rounds, but not the same": (
        sweep(timed(FASTER[:3]), timed(ALIKE[:3], [2, 3, 4])),
        "too_few_rounds",
        "fewer than 3 of its rounds were measured together with the baseline's",
        "measure both again, in a sweep of their own",
    ),
    "no threshold": (
        sweep(timed(FASTER), timed(ALIKE), None),
        "no_threshold",
        "undecided: there is no threshold",
        "set compare.thresholds, or use protocol=default",
    ),
    "crossing": (
        sweep(timed(ALIKE), timed(sorted(ALIKE))),
        "interval_crosses_threshold",
        "the 95 % interval of the ratio crosses the threshold of 5 %",
        "about ",
    ),
    "neither is better": (
        sweep(timed(FASTER, better=None), timed([1.0] * 5, better=None)),
        *("neither_is_better", REASONS["neither_is_better"], ""),
    ),
    "a value is zero": (
        sweep(timed(FASTER), timed([0.0, 1.0, 1.0])),
        *("test_failed", REASONS["test_failed"], ""),
    ),
    "incomplete": (
        sweep(once(2.0, "exact"), once(1.0, "lower bound")),
        "incomplete_count",
        REASONS["incomplete_count"],
        "give these operators a formula: sweeprof.operator_formula",
    ),
    "all rounds together": (
        sweep(once(2.0, ALL_ROUNDS), once(1.0, ALL_ROUNDS)),
        *("not_by_round", REASONS["not_by_round"], "return a value that can be computed from one round"),
    ),
    "another host": (
        sweep(timed(FASTER), timed(ALIKE), environments=(HOST_A, HOST_B)),
        "different_environment",
        "not comparable with the baseline: host a → b",
        "measure both on one host",
    ),
    "another governor": (
        sweep(timed(FASTER), timed(ALIKE), environments=({"governor": "powersave"}, {"governor": "performance"})),
        "different_environment",
        "not comparable with the baseline: governor powersave → performance",
        "measure both with the same governor",
    ),
    "a host of another kind": (
        sweep(timed(FASTER), timed(ALIKE), environments=({**HOST_A, "processor": "x"}, {**HOST_B, "processor": "y"})),
        "different_environment",
        "host a → b, processor x → y",
        "measure both on one host",
    ),
    "run again later": (
        sweep(timed(FASTER), timed(ALIKE), sessions=("ssttt", "sssss")),
        "run_apart",
        "3 of 5 rounds were timed in another run of the sweep than the baseline's",
        "measure both again, in a sweep of their own",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_advice_is_right_for_the_case(name: str) -> None:
    comparison, code, seen, advice = CASES[name]
    found = [note for note in footnotes(comparison) if note.code == code]
    (note,) = found if len(found) == 1 else [note for note in found if seen in note.text]
    assert seen in note.text
    assert note.advice == advice or (code == "interval_crosses_threshold" and note.advice.startswith(advice))


@pytest.mark.parametrize("render", [markdown, pull_request, text, html])
def test_every_report_gives_it(render: Callable[[Comparison], str]) -> None:
    comparison, _, seen, advice = CASES["the baseline's rounds are missing"]
    report = " ".join(render(comparison).replace("&#39;", "'").split())
    assert seen in report
    assert advice in report
    assert "3 rounds cannot tell" not in report


def test_every_code_of_a_value_that_is_not_called_has_a_case() -> None:
    intervals = {"interval_within_threshold", "interval_beyond_threshold"}
    called = {"equal", "unequal", "rounding", "difference_within_threshold", "difference_beyond_threshold"} | intervals
    silent = {"measured_once"}  # stands beside the value instead
    silent |= {"different_data", "different_unit"}  # between sweeps
    assert {code for _, code, _, _ in CASES.values()} >= set(REASONS) - called - silent


def test_rows_with_other_advice_are_a_note_of_their_own() -> None:
    """One is compared with a baseline that lacks rounds; another lacks rounds itself."""
    lacking, _, _, _ = CASES["the baseline's rounds are missing"]
    lacks, _, _, _ = CASES["own rounds are missing"]
    rows = (*lacking.rows, *(dataclasses.replace(row, combination_id=f"{row.combination_id}2") for row in lacks.rows))
    notes = [note for note in footnotes(dataclasses.replace(lacking, rows=rows)) if note.code == "too_few_rounds"]
    assert [note.rows for note in notes] == [1, 1]
    assert len({note.advice for note in notes}) == 2
