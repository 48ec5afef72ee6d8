"""What the scripts of the page are given."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from support.drawn import drawn
from support.odd import LONG, build, hostile, with_cells
from support.samples import comparison
from sweeprof.report.explore.data import embedded, page_data
from sweeprof.report.table import sorted_rows
from sweeprof.results.compare import Comparison
from sweeprof.results.cross_sweep import set_against
from sweeprof.results.measurement import Measurement


def rows_of(sample: Comparison, **options: Any) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in page_data(sample, **options)["rows"]}


def place_of(data: dict[str, Any], metric: str) -> str:
    return str([info["name"] for info in data["metrics"]].index(metric))


def measured(name: str, value: float, **fields: Any) -> Measurement:
    return Measurement(name, "s", "lower", value, estimator="median", **fields)


def test_a_row_is_its_axes_its_baseline_and_its_values() -> None:
    sample = comparison()
    data = page_data(sample)
    assert [row["id"] for row in data["rows"]] == [row.combination_id for row in sorted_rows(sample)]
    assert [(axis["key"], axis["numbers"], axis["varies"]) for axis in data["axes"]] == [
        ("model", None, True),
        ("backend", None, True),
        ("device", None, False),
        ("batch_size", [1, 8, 64], True),
    ]
    for row, seen in zip(sorted_rows(sample), data["rows"], strict=True):
        texts = [axis["values"][at] for axis, at in zip(data["axes"], seen["at"], strict=True)]
        assert texts == [str(value) for value in row.axes.values()]
        assert data["rows"][seen["base"]]["id"] == row.baseline_id
        assert (seen["reason"] == -1) == (row.status == "ok")
    first = data["rows"][0]
    assert first["values"][place_of(data, "latency/forward")] == pytest.approx([0.12833, 0.12576, 0.13218], rel=1e-4)
    assert first["values"][place_of(data, "params/total")] == [61.706]
    assert (data["metrics"][0]["unit"], data["metrics"][0]["base"], data["metrics"][0]["factor"]) == ("ms", "s", 1e3)


def test_a_row_that_misses_a_constraint_is_marked() -> None:
    sample = comparison()
    missing = dataclasses.replace(sample.rows[0], misses=("latency < 0.1 ms: 0.128 ms",))
    rows = rows_of(dataclasses.replace(sample, rows=(missing, *sample.rows[1:])))
    assert [id for id, row in rows.items() if row.get("misses")] == [missing.combination_id]


def test_what_failed_says_why() -> None:
    data = page_data(comparison())
    crashed = next(row for row in data["rows"] if row["status"] == "crashed")
    assert data["reasons"][crashed["reason"]] == "timing: killed by SIGKILL (signal 9)"
    assert crashed["values"] == {}
    assert {data["reasons"][place] for place in crashed["why"].values()} == {"timing: killed by SIGKILL (signal 9)"}
    assert place_of(data, "latency/forward") in crashed["why"]


def test_exact_values_are_not_rounded_and_measured_ones_are() -> None:
    points = [{"n": 1}, {"n": 2}]
    exact = build(
        points, {"params/total": ("params", "lower")}, [{"params/total": 61_706_123}, {"params/total": 61_706_124}]
    )
    assert [row["values"]["0"] for row in page_data(exact)["rows"]] == [[61706.123], [61706.124]]
    timed = measured("latency/forward", 1.23456789e-3, interval=(1.2e-3, 1.3e-3))
    rounded = page_data(with_cells(comparison(), "latency/forward", measurement=timed))
    assert rounded["rows"][0]["values"]["0"] == [1.23457, 1.2, 1.3]


def test_rounds_are_by_their_number() -> None:
    timed = measured(
        "latency/forward", 1e-3, rounds=(1e-3, 2e-3, math.inf), round_numbers=(0, 2, 3), paired=(4e-3, 5e-3, 6e-3)
    )
    row = page_data(with_cells(comparison(), "latency/forward", measurement=timed))["rows"][0]
    assert row["rounds"]["0"] == [1, None, 2, "?"]
    assert row["paired"]["0"] == [4, None, 5, 6]


def test_what_no_row_has_is_not_there() -> None:
    rare = {
        "uncertain",
        "paired",
        "calibrated",
        "kernel",
        "env",
        "sessions",
        "alone",
        "cells",
        "command",
        "wall_s",
        "warnings",
    }
    assert all(not rare & set(row) for row in page_data(drawn(4).comparison())["rows"] if not row["values"])
    hosts = page_data(drawn(1).comparison())
    assert {json.loads(hosts["environments"][row["env"]]["host"]) for row in hosts["rows"]} == {"h0", "h1"}
    sessions = page_data(drawn(2).comparison())["rows"]
    assert {session for row in sessions for session in row["sessions"]} == {0, 1, None}
    assert any(row.get("uncertain") for row in sessions)


def test_one_session_is_not_told_of() -> None:
    sample = comparison()
    once = dataclasses.replace(sample, rows=tuple(dataclasses.replace(row, sessions=("s", "s")) for row in sample.rows))
    assert page_data(once) == page_data(sample)


def test_outputs_that_differ_are_compared_with_nothing() -> None:
    sample = comparison()
    judged = dataclasses.replace(sample.rows[4], status="failed", reason="its outputs differ", baseline_id=None)
    rows = rows_of(dataclasses.replace(sample, rows=(*sample.rows[:4], judged, *sample.rows[5:])))
    assert [id for id, row in rows.items() if row.get("alone")] == [judged.combination_id]


def test_of_another_sweep_the_verdicts_are_there() -> None:
    other = dataclasses.replace(drawn(12).comparison(), sweep_id="s2")
    compared = set_against(drawn(8).comparison(), other, "tag:nightly")
    data = page_data(compared)
    assert data["against"] == data["baseline_text"] == "tag:nightly"
    place = place_of(data, "latency/forward")
    for row in compared.rows:
        cell = row.cells["latency/forward"]
        if cell.ratio is not None:
            seen = next(one for one in data["rows"] if one["id"] == row.combination_id)
            assert seen["base"] == -1
            assert seen["cells"][place][0] == pytest.approx(cell.ratio, rel=1e-5)
            assert seen["cells"][place][3:] == [cell.verdict, cell.verdict_reason, cell.rounds_needed]


def test_commands_where_they_are_asked_for() -> None:
    sample = comparison()
    data = page_data(sample, with_commands=True)
    told = {row["id"]: row for row in data["rows"]}
    for row in sample.rows:
        assert data["command_start"] + told[row.combination_id]["command"] == row.command
        assert told[row.combination_id]["wall_s"] == row.wall_s
    warned = told[sample.rows[0].combination_id]
    assert [data["reasons"][place] for place in warned["warnings"]] == [
        "IQR is 31 % of the median → close other programs, or use protocol=default"
    ]


def test_metrics_beyond_the_room_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables' own stay, however many rows there are."""
    whole = page_data(comparison())
    tables = [info["name"] for info in whole["metrics"] if info["headline"]]
    others = [info["title"] for info in whole["metrics"] if not info["headline"]]
    monkeypatch.setattr(
        "sweeprof.report.explore.data.MOST_NUMBERS", 248
    )  # 16 rows with 208 numbers of the tables' metrics
    data = page_data(comparison())
    assert [info["name"] for info in data["metrics"][: len(tables)]] == tables
    assert [info["title"] for info in data["metrics"][len(tables) :]] == others[:2]
    assert data["left_out"] == others[2:]
    monkeypatch.setattr("sweeprof.report.explore.data.MOST_NUMBERS", 0)
    assert [info["name"] for info in page_data(comparison())["metrics"]] == tables


def test_it_is_json_whatever_the_names() -> None:
    data = page_data(hostile())
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text) == data
    assert LONG in data["axes"][0]["values"]
    assert "\x1b" not in text


def test_embedded_rows_are_the_same_rows() -> None:
    data = page_data(drawn(3).comparison())
    columns = embedded(data)["rows"]
    back = [
        {key: values[place] for key, values in columns.items() if values[place] is not None}
        for place in range(len(data["rows"]))
    ]
    assert back == data["rows"]


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows: int) -> None:
    sample = comparison()
    data = page_data(dataclasses.replace(sample, rows=sample.rows[:rows]))
    assert len(data["rows"]) == rows
    assert not any(axis["varies"] for axis in data["axes"])
