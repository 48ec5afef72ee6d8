"""Tidy tables: everything measured is in them once, and reads back as what it was."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support.samples import NOISY, build, comparison, hostile, with_cells
from sweeprof.errors import UserError
from sweeprof.report import csv as csv_tables
from sweeprof.report.csv import CHUNK, Tidy, csv_chunks, measurements, problems, rounds, samples, write_parquet
from sweeprof.results.measurement import Measurement
from sweeprof.results.record import Record


def read(table: Tidy) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO("".join(csv_chunks(table)))))


def typed(table: Tidy) -> pd.DataFrame:
    content = io.BytesIO()
    write_parquet(table, content)
    return pd.read_parquet(io.BytesIO(content.getvalue()), dtype_backend="numpy_nullable")


def test_every_measurement_is_a_row_with_its_axes() -> None:
    sample = comparison()
    found = read(measurements(sample))
    assert len(found) == len(sample.rows) * len(sample.metrics)
    by_key = {(row["combination"], row["metric"]): row for row in found}
    for row in sample.rows:
        for name, cell in row.cells.items():
            one, value = by_key[row.combination_id, name], cell.measurement.value
            assert one["value"] == ("" if value is None else repr(value))
            assert one["reason"] == (cell.measurement.reason or "")
            assert [one[axis] for axis in sample.axes] == [str(row.axes[axis]) for axis in sample.axes]
            assert one["ratio"] == ("" if cell.ratio is None else repr(cell.ratio))
            assert one["verdict"] == (cell.verdict or "")
    detail = json.loads(by_key["c000000000000", "latency/forward"]["detail"])
    assert detail["p99"] == "n<299"


def test_a_missing_value_is_a_reason_and_never_a_number() -> None:
    missing = Measurement("latency/forward", "s", "lower", math.nan, interval=(math.nan, math.inf))
    odd = with_cells(comparison(), "latency/forward", measurement=missing, ratio=math.inf, base=math.nan)
    found = [row for row in read(measurements(odd)) if row["metric"] == "latency/forward"]
    assert {(row["value"], row["low"], row["high"], row["ratio"], row["estimator"]) for row in found} == {("",) * 5}
    assert {row["reason"] for row in found} == {"not a finite number: nan"}
    assert typed(measurements(odd))["value"].dropna().map(math.isfinite).all()


def test_types_survive_parquet() -> None:
    frame = typed(measurements(comparison()))
    kinds = {name: str(frame[name].dtype) for name in ("model", "batch_size", "value", "rounds", "ratio")}
    assert list(kinds.values()) == ["string", "Int64", "Float64", "Int64", "Float64"]
    assert int(frame["rounds"].max()) == 1


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        ([1, 2.5], "number", ["1", "2.5"]),
        ([1, 2**70], "number", ["1", str(2**70)]),
        ([True, False], "truth", ["true", "false"]),
        ([1, "auto"], "text", ["1", "auto"]),
        ([True, 1], "text", ["true", "1"]),
        ([[3, 8, 8], None], "text", ["[3, 8, 8]", ""]),
        ([math.nan, 1.0], "text", ["nan", "1.0"]),
    ],
)
def test_axes_are_typed_by_their_values(values: list[Any], kind: str, shown: list[str]) -> None:
    odd = build([{"a": value} for value in values], {"m": ("s", "lower")}, [{"m": 1.0}] * len(values))
    table = measurements(odd)
    assert table.columns["a"] == kind
    assert [row["a"] for row in read(table)] == shown
    assert len(typed(measurements(odd))) == len(values)


def test_axes_that_are_called_like_columns_or_each_others_columns_keep_apart() -> None:
    point = {"status": "a", "axis.status": 1, "combination": 2, "metric": 3}
    odd = build([point] * 2, {"m": ("s", "lower")}, [{"m": 1.0}, {"m": 2.0}])
    row = read(measurements(odd))[0]
    expected = {"axis.axis.status": "a", "axis.status": "1", "status": "ok", "axis.combination": "2", "metric": "m"}
    assert {name: row[name] for name in expected} == expected


def test_rounds_are_one_row_each() -> None:
    own = Measurement("m", "s", "lower", 2.0, rounds=(1.0, 3.0), round_numbers=(0, 2), paired=(1.5, 2.5))
    odd = with_cells(build([{"a": 1}], {"m": ("s", "lower")}, [{"m": 2.0}]), "m", measurement=own)
    found = [(row["round"], row["estimate"], row["paired"]) for row in read(rounds(odd))]
    assert found == [("0", "1.0", "1.5"), ("2", "3.0", "2.5")]


def test_every_sample_of_every_phase_is_a_row() -> None:
    sample = comparison()
    seen = {"samples": [0.1, 0.2], "loops": 4, "phases": {"backward": [0.05]}, "transfers": {"h2d": [0.01]}}
    records = [
        Record(sample.sweep_id, id, "timing", "ok", round=1, observations=seen)
        for id in (sample.rows[0].combination_id, "of another sweep")
    ]
    found = read(samples(sample, records))
    assert [(row["phase"], row["index"], row["seconds"], row["loops"]) for row in found] == [
        *(("step", "0", "0.1", "4"), ("step", "1", "0.2", "4")),
        *(("backward", "0", "0.05", ""), ("h2d", "0", "0.01", "")),
    ]
    assert {(row["combination"], row["round"], row["model"]) for row in found} == {("c000000000000", "1", "lenet5")}


def test_problems_are_told_once_with_their_advice() -> None:
    sample = comparison()
    twice = Measurement("m", "s", "lower", 1.0, warnings=(NOISY,))
    sample = with_cells(sample, "latency/forward", measurement=twice)
    rows = tuple(dataclasses.replace(row, misses=("latency is 3 s",)) for row in sample.rows[:1]) + sample.rows[1:]
    found = read(problems(dataclasses.replace(sample, rows=rows)))
    first = [row for row in found if row["combination"] == "c000000000000"]
    assert [(row["kind"], row["code"]) for row in first] == [("warning", "spread_high"), ("disqualified", "")]
    assert first[0]["advice"] == NOISY.advice
    failures = [(row["code"], row["text"]) for row in found if row["kind"] == "failure"]
    assert failures == [
        ("crashed", "timing: killed by SIGKILL (signal 9)"),
        ("unsupported", "the model names no builder for tensorflow"),
    ]
    assert found[-1]["kind"] == "excluded"
    assert found[-1]["batch_size"] == "512"


def test_hostile_names_break_no_table() -> None:
    assert len(read(measurements(hostile()))) == 18 * len(comparison().metrics)


def test_no_more_than_a_chunk_is_in_memory() -> None:
    taken = 0

    def rows() -> Any:
        nonlocal taken
        for number in range(3 * CHUNK):
            taken += 1
            yield [number]

    pieces = csv_chunks(Tidy("big", {"n": "whole"}, rows()))
    next(pieces), next(pieces)
    assert taken == CHUNK


def test_without_pyarrow_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_tables, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"need pyarrow: pip install 'sweeprof\[parquet\]'"):
        write_parquet(measurements(comparison()), io.BytesIO())


def test_nothing_measured_is_an_empty_table(tmp_path: Path) -> None:
    nothing = dataclasses.replace(comparison(), rows=(), excluded=())
    assert [len(read(table(nothing))) for table in (measurements, rounds, problems)] == [0, 0, 0]
    assert len(typed(measurements(nothing))) == 0


def test_a_comparison_is_a_frame_of_its_measurements() -> None:
    sample = comparison()
    frame = sample.to_frame()
    assert list(frame.columns) == list(measurements(sample).columns)
    assert len(frame) == len(sample.rows) * len(sample.metrics)
    timed = frame[frame["metric"] == "latency/forward"]
    values = timed.dropna(subset="value").set_index("combination")["value"].to_dict()
    cells = {row.combination_id: row.cells["latency/forward"].measurement.value for row in sample.rows}
    assert values == {id: value for id, value in cells.items() if value is not None}
    assert str(frame["batch_size"].dtype) == "Int64"
    assert build([], {"x": ("s", "lower")}, []).to_frame().empty
