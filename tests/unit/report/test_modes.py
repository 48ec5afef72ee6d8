"""Reports of sweeps that train, and of sweeps that measure little."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from support.odd import build
from sweeprof.report.summary import best_rows, footnotes
from sweeprof.report.table import ReportTable, tables
from sweeprof.results.compared_rows import Comparison, Row, compare_rows
from sweeprof.results.measurement import Better

METRICS: dict[str, tuple[str, Better]] = {
    "latency/iteration": ("s", "lower"),
    "latency/forward": ("s", "lower"),
    "latency/per_sample": ("s", "lower"),
    "throughput/samples_per_s": ("samples/s", "higher"),
    "quality/accuracy": ("ratio", "higher"),
}


def values(forward: float, step: float | None, accuracy: float) -> dict[str, float]:
    known = {"latency/forward": forward, "latency/per_sample": forward, "quality/accuracy": accuracy}
    known["throughput/samples_per_s"] = 1 / (step or forward)
    return known if step is None else {**known, "latency/iteration": step}


def sweep(*modes: str) -> Comparison:
    """Two batch sizes per mode, each compared with the smaller; the forward of training is the fastest of all."""
    points: list[dict[str, Any]] = [{"mode": mode, "threads": n} for mode in modes for n in (1, 2)]
    found = []
    for place, point in enumerate(points):
        threads, accuracy = point["threads"], 0.9 + place / 100
        trains = point["mode"] == "training"
        found.append(
            values(1e-3 * threads, 4e-3 * threads, accuracy) if trains else values(5e-3 * threads, None, accuracy)
        )
    plain = build(points, METRICS, found)
    ids = [row.combination_id for row in plain.rows]
    rows = [dataclasses.replace(row, baseline_id=ids[place - place % 2]) for place, row in enumerate(plain.rows)]
    measured = {row.combination_id: {name: cell.measurement for name, cell in row.cells.items()} for row in rows}
    return dataclasses.replace(plain, rows=compare_rows(rows, measured, 0.05), baseline={"threads": 1})


def shown(table: ReportTable) -> list[str]:
    return [column.title for column in table.columns]


def entry(table: ReportTable, row: int, title: str) -> str:
    return table.lines[row].entries[shown(table).index(title)].text


def test_inference_and_training_have_each_their_ratio() -> None:
    (table,) = tables(sweep("inference", "training"))
    step, forward = "training step vs threads=1 ↓", "forward vs threads=1 ↓"
    assert shown(table)[2:6] == ["training step ↓", step, "forward ↓", forward]
    assert [entry(table, row, step) for row in range(4)] == ["–", "–", "baseline", "×2.00 worse"]
    assert [entry(table, row, forward) for row in range(4)] == ["baseline", "×2.00 worse"] * 2


def test_a_training_sweep_is_compared_by_its_step_alone() -> None:
    (table,) = tables(sweep("training"))
    assert [title for title in shown(table) if "vs" in title] == ["vs threads=1 ↓"]
    assert shown(table)[1:4] == ["training step ↓", "vs threads=1 ↓", "forward ↓"]


def test_an_inference_sweep_has_a_latency() -> None:
    (table,) = tables(sweep("inference"))
    assert shown(table)[1:3] == ["latency ↓", "vs threads=1 ↓"]
    assert not any("training" in title for title in shown(table))


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (("inference",), [("lowest latency", "5.00 ms"), ("highest throughput", "200 /s")]),
        (("training",), [("shortest training step", "4.00 ms"), ("highest throughput", "250 /s")]),
        (
            ("inference", "training"),
            [("shortest training step", "4.00 ms"), ("lowest latency", "5.00 ms"), ("highest throughput", "200 /s")],
        ),
    ],
)
def test_inference_and_training_are_no_rivals(modes: tuple[str, ...], expected: list[tuple[str, str]]) -> None:
    assert [(best.what, best.value) for best in best_rows(sweep(*modes))] == expected


def test_a_training_row_is_told_by_its_mode_too() -> None:
    found = sweep("inference", "training")
    kept = {"latency/forward", "throughput/samples_per_s"}
    rows = tuple(
        dataclasses.replace(row, cells={name: cell for name, cell in row.cells.items() if name in kept})
        for row in found.rows
    )
    assert [best.value for best in best_rows(dataclasses.replace(found, rows=rows))] == ["5.00 ms", "200 /s"]


def test_a_set_with_few_headline_metrics_shows_all_that_have_values() -> None:
    metrics: dict[str, tuple[str, Better]] = {
        "compute/coverage": ("ratio", None),
        "operators/python_share": ("ratio", "lower"),
        "layers/slowest_self_s": ("s", "lower"),
    }
    rows: list[dict[str, Any]] = [
        {"compute/coverage": 1.01, "operators/python_share": 0.2, "layers/slowest_self_s": seconds}
        for seconds in (1e-3, 2e-3)
    ]
    (table,) = tables(build([{"n": 1}, {"n": 2}], metrics, rows))
    assert shown(table) == ["n", "slowest layer ↓"]
    assert table.captions == (("compute/coverage", "1.010"), ("outside operators", "20.0 %"))


def test_a_set_with_many_headline_metrics_shows_those() -> None:
    metrics = {**METRICS, "latency/first_step": METRICS["latency/forward"]}
    rows = [{**values(1e-3 * n, 4e-3 * n, 0.9), "latency/first_step": 1.0 * n} for n in (1, 2)]
    (table,) = tables(build([{"n": 1}, {"n": 2}], metrics, rows))
    assert not any("first step" in title or "per sample" in title for title in shown(table))


def test_a_share_of_the_peak_of_training_is_shown_where_there_is_one() -> None:
    metrics = {**METRICS, "rate/mfu_train": ("ratio", "higher")}
    points = [{"n": 1}, {"n": 2}]
    rows = [values(1e-3 * n, 4e-3 * n, 0.9) for n in (1, 2)]
    title = "training share of peak FLOP/s ↑"
    (with_it,) = tables(
        build(points, metrics, [{**row, "rate/mfu_train": 0.0761 * i} for i, row in enumerate(rows, 1)])
    )
    assert entry(with_it, 0, title) == "7.61 %"
    assert title not in shown(tables(build(points, metrics, rows))[0])


def test_what_nobody_expects_is_not_missing_and_one_reason_is_said_once() -> None:
    metrics: dict[str, tuple[str, Better]] = {
        **METRICS,
        "quality/agreement": ("abs", "lower"),
        "memory/cuda_allocated_peak_bytes": ("B", "lower"),
    }
    both = {**values(1e-3, 4e-3, 0.9), "quality/agreement": 0, "memory/cuda_allocated_peak_bytes": 5}
    rows = [
        both,
        {"latency/forward": 1e-3, "throughput/samples_per_s": 9},
        {"latency/forward": 1e-3, "quality/agreement": 1},
    ]
    notes = footnotes(build([{"n": n} for n in range(3)], metrics, rows))
    assert [(note.code, note.rows, note.text) for note in notes] == [
        ("missing", 2, "quality/accuracy, quality/agreement, throughput/samples_per_s: not measured")
    ]


def test_a_failed_row_misses_nothing() -> None:
    found = build([{"n": 1}, {"n": 2}], METRICS, [values(1e-3, None, 0.9), {}])
    row: Row = found.rows[1]
    assert row.status == "failed"
    assert footnotes(found) == []
