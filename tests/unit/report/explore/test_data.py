"""What the scripts of the page are given."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from support.drawn import METRICS, PLANNED, drawn
from support.odd import LONG, build, hostile, with_cells
from support.samples import comparison
from sweeprof.report.answer import answer
from sweeprof.report.explore import embedded, page_data, verdict_lines
from sweeprof.report.table import sorted_rows
from sweeprof.results.compared_rows import Cell, Comparison, Row, set_against
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
        own = data["baselines"][0]["bases"][data["rows"].index(seen)]
        assert data["rows"][own]["id"] == row.baseline_id
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


def test_what_no_row_has_is_not_there() -> None:
    rare = {"within", "noisy", "warnings", "misses", "incomplete", "details", "failures"}
    assert all(not rare & set(row) for row in page_data(drawn(4).comparison())["rows"])
    data = page_data(comparison(), is_whole=True)
    first, second, *_ = data["rows"]
    assert [data["reasons"][place] for place in first["noisy"]] == ["IQR is 31 % of the median"]
    assert "noisy" not in second
    assert int(place_of(data, "latency/forward")) in second["within"]
    assert second["details"][place_of(data, "latency/forward")].startswith("min ")


def cells_of(data: dict[str, Any], baseline: dict[str, Any], metric: str) -> dict[str, Any]:
    """By row the cell that the page has of a metric."""
    column = baseline["cells"].get(place_of(data, metric), [0] * len(data["rows"]))
    return {row["id"]: cell for row, cell in zip(data["rows"], column, strict=True)}


def expect_equal(data: dict[str, Any], seen: Any, cell: Cell, row: Row) -> None:
    """``seen`` is what the page has of the cell; its numbers have six and five digits."""
    if cell.base is None or cell.measurement.value is None or row.is_baseline:
        assert seen == 0
        return
    ratio, verdict, reason, *rest = seen
    assert ratio == (None if cell.ratio is None else pytest.approx(cell.ratio, rel=5e-6))
    assert (data["verdict_names"][verdict] if verdict >= 0 else None) == cell.verdict
    assert (data["verdict_reasons"][reason][0] if reason >= 0 else None) == cell.verdict_reason
    needed = [] if cell.rounds_needed is None else [cell.rounds_needed]
    assert rest == [*(pytest.approx(end, rel=5e-5) for end in cell.ratio_interval or ()), *needed]


@pytest.mark.parametrize("seed", range(6))
def test_the_baseline_has_the_verdicts_of_the_comparison(seed: int) -> None:
    sweep = drawn(seed)
    data = page_data(sweep.comparison())
    (baseline,) = data["baselines"]
    assert (baseline["key"], baseline["text"]) == ("", "b0")
    compared = sweep.against(PLANNED)
    for info in METRICS:
        cells = cells_of(data, baseline, info.name)
        for row in compared:
            expect_equal(data, cells[row.combination_id], row.cells[info.name], row)
    bases = {data["rows"][at]["id"]: base for at, base in enumerate(baseline["bases"])}
    places = {row["id"]: at for at, row in enumerate(data["rows"])}
    assert bases == {row.combination_id: places.get(row.baseline_id or "", -1) for row in compared}
    whole = dataclasses.replace(sweep.comparison(), rows=compared, baseline=PLANNED)
    assert (baseline["finding"], baseline["rest"]) == (answer(whole).finding, answer(whole).rest)
    assert baseline["counts"] == verdict_lines(whole)


def test_outputs_that_differ_are_compared_with_nothing() -> None:
    sample = comparison()
    differing = dataclasses.replace(sample.rows[4], status="failed", reason="its outputs differ", baseline_id=None)
    data = page_data(dataclasses.replace(sample, rows=(*sample.rows[:4], differing, *sample.rows[5:])))
    place = [row["id"] for row in data["rows"]].index(differing.combination_id)
    (baseline,) = data["baselines"]
    assert baseline["bases"][place] == -1
    assert place not in baseline["bases"]


def test_of_another_sweep_the_verdicts_are_there() -> None:
    other = dataclasses.replace(drawn(12).comparison(), sweep_id="s2")
    compared = set_against(drawn(8).comparison(), other, "tag:nightly")
    data = page_data(compared)
    (own,) = data["baselines"]
    assert (own["key"], own["text"], set(own["bases"])) == ("", "tag:nightly", {-1})
    cells = cells_of(data, own, "latency/forward")
    for row in compared.rows:
        expect_equal(data, cells[row.combination_id], row.cells["latency/forward"], row)


def test_a_saved_comparison_is_a_further_baseline() -> None:
    other = dataclasses.replace(drawn(12).comparison(), sweep_id="s2")
    compared = set_against(drawn(8).comparison(), other, "tag:nightly")
    own, saved = page_data(drawn(8).comparison(), saved=[compared])["baselines"]
    assert (own["key"], own["text"]) == ("", "b0")
    assert (saved["key"], saved["text"]) == ("tag:nightly", "tag:nightly")


def test_a_row_has_its_command_and_its_warnings() -> None:
    sample = comparison()
    data = page_data(sample)
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
    # 302 numbers of the tables' metrics; 16 rows with values, 7 of them with ratio, verdict and reason.
    monkeypatch.setattr("sweeprof.report.explore.MOST_NUMBERS", 302 + (16 + 3 * 7) + 16)
    data = page_data(comparison())
    assert [info["name"] for info in data["metrics"][: len(tables)]] == tables
    assert [info["title"] for info in data["metrics"][len(tables) :]] == others[:2]
    assert data["left_out"] == others[2:]
    monkeypatch.setattr("sweeprof.report.explore.MOST_NUMBERS", 0)
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
