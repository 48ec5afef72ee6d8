"""The tables as plain data."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from support.odd import build, with_cells
from support.samples import comparison
from sweeprof.numbers import ratio_number
from sweeprof.report.columns import detail_text, value_text
from sweeprof.report.summary import best_rows, environment_items, footnotes, headline
from sweeprof.report.table import ReportTable, tables
from sweeprof.results.compared_rows import Cell, Comparison
from sweeprof.results.measurement import Measurement
from sweeprof.text import axis_text, one_line, shortened


def column(table: ReportTable, title: str) -> list[str]:
    place = [c.title for c in table.columns].index(title)
    return [line.entries[place].text for line in table.lines]


def test_one_table_per_model_in_the_order_of_the_sweep() -> None:
    assert [table.title for table in tables(comparison())] == ["lenet5", "mlp", "digits_resnet"]


def test_candidates_stand_beside_their_baselines() -> None:
    table = tables(comparison())[1]
    assert column(table, "batch_size") == ["1", "1", "8", "8", "64", "64"]
    assert column(table, "backend") == ["torch", "tensorflow"] * 3
    assert [line.starts_group for line in table.lines] == [True, False] * 3
    assert column(table, "vs torch ↓") == ["baseline", "×1.90 ~"] * 3


def test_the_baseline_comes_first_wherever_the_sweep_lists_it() -> None:
    table = tables(dataclasses.replace(comparison(), baseline={"backend": "tensorflow"}))[1]
    assert column(table, "backend") == ["tensorflow", "torch"] * 3


def test_what_is_constant_stands_in_the_caption() -> None:
    table = tables(comparison())[0]
    assert table.captions == (
        ("device", "cpu"),
        ("accuracy", "0.9889"),
        ("MACs/sample", "417 kMAC"),
        ("parameters", "61.7 k"),
    )
    assert [c.title for c in table.columns] == [
        "batch_size",
        "backend",
        "latency ↓",
        "vs torch ↓",
        "throughput ↑",
        "peak memory ↓",
        "agreement ↓",
    ]


def test_a_value_that_one_measured_row_lacks_is_not_constant() -> None:
    odd = build(
        [{"n": 1}, {"n": 2}],
        {"quality/accuracy": ("ratio", "higher"), "x/y": ("s", None)},
        [{"quality/accuracy": 1}, {"x/y": 1}],
    )
    assert column(tables(odd)[0], "accuracy ↑") == ["1", "–"]


def test_a_failed_row_says_why_in_one_line() -> None:
    table = tables(comparison())[0]
    assert [line.failure for line in table.lines if line.failure] == ["crashed: timing: killed by SIGKILL (signal 9)"]
    odd = build([{"n": 1}, {"n": 2}], {"latency/forward": ("s", "lower")}, [{"latency/forward": 1.0}, {}])
    assert tables(odd)[0].lines[1].failure == "failed: ValueError: no luck"


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_missing_value_is_a_dash_with_its_reason(value: float | None) -> None:
    reason = "no labels" if value is None else None
    missing = Measurement("quality/accuracy", "ratio", "higher", value, reason)
    odd = with_cells(comparison(broken=False), "quality/accuracy", measurement=missing)
    entry = tables(odd)[0].lines[0].entries[-2]
    assert (entry.text, entry.number) == ("–", None)
    assert entry.note == (reason or f"not a finite number: {value}")
    note = next(note for note in footnotes(odd) if note.code == "missing")
    assert (note.rows, note.text) == (18, f"quality/accuracy: {entry.note}")


def test_models_that_are_the_baseline_share_a_table() -> None:
    (table,) = tables(dataclasses.replace(comparison(), baseline={"model": "mlp"}))
    assert column(table, "model")[:3] == ["mlp", "lenet5", "digits_resnet"]


def test_one_row_has_its_axes_in_the_caption() -> None:
    one = comparison(broken=False)
    (table,) = tables(dataclasses.replace(one, rows=one.rows[:1]))
    assert table.title == "lenet5"
    assert table.captions == (("backend", "torch"), ("device", "cpu"), ("batch_size", "1"))
    assert all(c.kind != "axis" for c in table.columns)
    assert column(table, "latency ↓") == ["128 µs [126–132]"]


def test_without_a_model_axis_the_sweep_names_the_table() -> None:
    points = [{"threads": 4, "fused": True}, {"threads": 1, "fused": False}]
    odd = build(points, {"speed/walk": ("furlongs", None)}, [{"speed/walk": 12.25}, {"speed/walk": 3}])
    (table,) = tables(odd)
    assert table.title == "odd"
    assert [c.title for c in table.columns] == ["threads", "fused", "speed/walk (furlongs)"]
    assert [[e.text for e in line.entries] for line in table.lines] == [["1", "false", "3"], ["4", "true", "12.2"]]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ({"ratio": 0.5263, "verdict": "better", "ratio_interval": (0.51, 0.55)}, "×0.53 [0.51–0.55] better"),
        ({"ratio": 1.9, "verdict": "worse", "ratio_interval": None}, "×1.90 worse"),
        ({"ratio": 1.004, "verdict": "same", "ratio_interval": None}, "×1.00 same"),
        ({"ratio": 1.004, "verdict": "unclear", "ratio_interval": (0.9, 1.1)}, "×1.00 [0.90–1.10] ~"),
        ({"ratio": 250.1, "verdict": None}, "×250"),
        ({"ratio": None, "verdict": None}, "–"),
    ],
)
def test_ratios_carry_their_verdict_in_words(cell: dict[str, Any], text: str) -> None:
    full = comparison(broken=False)
    base = full.rows[0].cells["latency/forward"]
    rows = (
        full.rows[0],
        dataclasses.replace(
            full.rows[3], cells={**full.rows[3].cells, "latency/forward": dataclasses.replace(base, **cell)}
        ),
    )
    table = tables(dataclasses.replace(full, rows=(*rows, full.rows[4])))[0]
    assert column(table, "vs torch ↓")[1] == text


def test_unclear_verdicts_have_a_footnote_that_says_why() -> None:
    notes = {note.code: note for note in footnotes(comparison())}
    assert notes["too_few_rounds"].rows == 7
    assert "1 round cannot" in notes["too_few_rounds"].text
    assert (notes["spread_high"].rows, notes["spread_high"].advice) == (
        1,
        "close other programs, or use protocol=default",
    )
    odd = with_cells(
        comparison(), "latency/forward", ratio=1.0, verdict="unclear", verdict_reason="interval_crosses_threshold"
    )
    assert any("crosses the threshold of 5 %" in n.text for n in footnotes(dataclasses.replace(odd, threshold=0.05)))


def test_headline_counts_every_status() -> None:
    assert headline(comparison()) == "16 of 18 combinations measured; 1 crashed, 1 unsupported"
    assert headline(comparison(broken=False)) == "18 of 18 combinations measured"
    one = comparison(broken=False)
    assert headline(dataclasses.replace(one, rows=one.rows[:1])) == "1 of 1 combination measured"


def test_best_rows_need_a_choice() -> None:
    first, second, *_ = best_rows(comparison())
    assert (first.model, first.what, first.value, first.where) == (
        "lenet5",
        "lowest latency",
        "128 µs",
        "torch, batch_size 1, of the 5 of 6 measured",
    )
    assert (second.what, second.where) == ("highest throughput", "torch, batch_size 64, of the 5 of 6 measured")
    assert best_rows(comparison(broken=False))[0].where == "torch, batch_size 1"
    one = comparison()
    assert best_rows(dataclasses.replace(one, rows=one.rows[:1])) == []


def test_environment_leaves_out_what_was_not_recorded() -> None:
    items = dict(environment_items(comparison()))
    assert items["cpu"] == "AMD EPYC (2 logical, 1 physical cores)"
    assert "cpu governor" not in items
    empty = dataclasses.replace(comparison(), environment={})
    assert environment_items(empty) == []


def test_percentiles_that_the_samples_do_not_support_say_so() -> None:
    assert "p99 not given: n<299" in detail_text(comparison().rows[0].cells["latency/forward"].measurement)
    assert (
        detail_text(Measurement("a", "s", None, 1.0, detail={"p90": math.nan, "p95": None}))
        == "p90 not given, p95 not given"
    )


def test_details_say_what_a_value_is_of() -> None:
    name, detail = "memory/alloc_peak_bytes", {"layer": "fc\n1", "steps": 3}
    peak = Measurement(name, "B", "lower", 2048, interval=(2000, 2100), detail=detail)
    assert detail_text(peak) == "layer fc 1, steps 3"
    odd = build([{"n": 1}, {"n": 2}], {name: ("B", "lower")}, [{name: 1}, {name: 2}])
    (table,) = tables(with_cells(odd, name, measurement=peak))
    assert table.lines[0].entries[-1].note == "layer fc 1"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rate/mfu", 0.0759, "7.59 % [7.50–7.70]"),
        ("operators/python_share", 0.0759, "7.59 % [7.50–7.70]"),
        ("quality/accuracy", 0.0759, "0.07590 [0.07500–0.07700]"),
        ("rate/realtime_factor", 0.0759, "0.07590 [0.07500–0.07700]"),
    ],
)
def test_shares_are_in_percent(name: str, value: float, text: str) -> None:
    shown = value_text(Measurement(name, "ratio", None, value, interval=(0.075, 0.077)))
    assert shown == text


def test_an_interval_names_its_unit_where_it_differs() -> None:
    assert value_text(Measurement("a", "s", None, 1e-3, interval=(0.9e-3, 1.1e-3))) == "1.00 ms [900 µs–1.10 ms]"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.012"), (0.1, "0.10"), (99.99, "99.99"), (99.999, "100"), (12345.0, "12,300")]
)
def test_ratio_numbers(value: float, text: str) -> None:
    assert ratio_number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", "a b"),
        (None, "null"),
        (True, "true"),
        (8, "8"),
        (0.1, "0.1"),
        ([1, "é"], '[1, "é"]'),
        (1 / 3, repr(1 / 3)),
    ],
)
def test_axis_values_read_as_on_the_command_line(value: object, text: str) -> None:
    assert axis_text(value) == text


def test_text_is_cleared_of_escapes_and_shortened_in_its_middle() -> None:
    assert one_line("a\x1b[31m\u202eb\r\n c") == "a [31m b c"
    assert shortened("0123456789", 7) == "012…789"


def test_an_empty_comparison_has_no_table() -> None:
    nothing = dataclasses.replace(comparison(), rows=())
    assert tables(nothing) == []
    assert headline(nothing) == "0 of 0 combinations measured"


def test_a_metric_that_a_row_does_not_know_is_missing() -> None:
    full: Comparison = comparison(broken=False)
    cells: dict[str, Cell] = {k: v for k, v in full.rows[0].cells.items() if k != "latency/forward"}
    (line, *_) = tables(
        dataclasses.replace(full, rows=(dataclasses.replace(full.rows[0], cells=cells), *full.rows[1:]))
    )[0].lines
    assert line.entries[2].text == "–"
