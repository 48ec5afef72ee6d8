"""The tables as plain data, and the summary around them; ``golden/reports`` has whole reports."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from support.samples import TRAINING_METRICS, build, comparison, training_values, with_cells
from sweeprof.numbers import ratio_number
from sweeprof.report.columns import detail_text, value_text
from sweeprof.report.summary import conditions, footnotes, headline
from sweeprof.report.table import ReportTable, tables
from sweeprof.results.measurement import Better, Measurement, Number
from sweeprof.text import axis_text, one_line, shortened


def shown(table: ReportTable) -> list[str]:
    return [column.title for column in table.columns]


def column(table: ReportTable, title: str) -> list[str]:
    place = shown(table).index(title)
    return [line.entries[place].text for line in table.lines]


def test_candidates_stand_beside_their_baselines_which_come_first() -> None:
    table = tables(comparison())[1]
    assert column(table, "backend") == ["torch", "tensorflow"] * 3
    assert [line.starts_group for line in table.lines] == [True, False] * 3
    other = tables(dataclasses.replace(comparison(), baseline={"backend": "tensorflow"}))[1]
    assert column(other, "backend") == ["tensorflow", "torch"] * 3
    (shared,) = tables(dataclasses.replace(comparison(), baseline={"model": "mlp"}))
    assert column(shared, "model")[:3] == ["mlp", "lenet5", "digits_resnet"]


def test_values_that_differ_in_type_only_are_told_apart() -> None:
    values = [1, 1.0, True, "1", "true", None, "null", 0.0, -0.0]
    odd = build([{"n": value} for value in values], {"x/y": ("s", None)}, [{"x/y": 1}] * len(values))
    assert odd.varying_axes() == ("n",)
    assert column(tables(odd)[0], "n") == ["0.0", "-0.0", "1", "1.0", "true", "'1'", "'true'", "null", "'null'"]
    assert dataclasses.replace(odd, rows=(odd.rows[0], odd.rows[3])).varying_axes() == ("n",)


def test_a_value_that_one_measured_row_lacks_is_not_constant() -> None:
    metrics: dict[str, tuple[str, Better]] = {"quality/accuracy": ("ratio", "higher"), "x/y": ("s", None)}
    odd = build([{"n": 1}, {"n": 2}], metrics, [{"quality/accuracy": 1}, {"x/y": 1}])
    assert column(tables(odd)[0], "accuracy ↑") == ["1", "–"]


def test_the_memory_of_a_device_is_shown_and_not_that_of_its_host() -> None:
    names = ("process_peak", "rss_peak", "added")
    metrics: dict[str, tuple[str, Better]] = {f"memory/{name}_bytes": ("B", "lower") for name in names}
    rows: list[dict[str, Number]] = [
        dict(zip(metrics, peaks, strict=True)) for peaks in ((700, 700, 80), (600, 3000, 90))
    ]
    table = tables(build([{"device": "cpu"}, {"device": "cuda"}], metrics, rows))[0]
    assert shown(table).count("peak memory ↓") == 1
    assert column(table, "peak memory ↓") == ["700 B", "600 B"]
    host_alone = {name: metrics[name] for name in list(metrics)[1:]}
    (table, *_) = tables(build([{"n": 1}, {"n": 2}], host_alone, [{"memory/rss_peak_bytes": 1}, rows[0]]))
    assert column(table, "peak memory ↓") == ["1 B", "700 B"]  # of a sweep before there was the other


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_missing_value_is_a_dash_with_its_reason(value: float | None) -> None:
    reason = "no labels" if value is None else None
    missing = Measurement("quality/accuracy", "ratio", "higher", value, reason)
    full = comparison(broken=False)
    changed = with_cells(full, "quality/accuracy", measurement=missing).rows[0]
    odd = dataclasses.replace(full, rows=(changed, *full.rows[1:]))
    (table, *_) = tables(odd)
    entry = table.lines[0].entries[shown(table).index("accuracy ↑")]
    assert (entry.text, entry.number) == ("–", None)
    assert entry.note == (reason or f"not a finite number: {value}")
    note = next(note for note in footnotes(odd) if note.code == "missing")
    assert (note.rows, note.text) == (1, f"accuracy: {entry.note}")


def test_one_row_has_its_axes_in_the_conditions() -> None:
    one = comparison(broken=False)
    settings = {"backend.threads": 1, "backend.precision": "fp32", "mode": "inference", "dataset._target_": "a.Digits"}
    one = dataclasses.replace(one, rows=one.rows[:1], settings=settings)
    assert (
        conditions(one) == "CPU AMD EPYC · torch · lenet5 · 1 thread · fp32 · inference · dataset digits · batch_size 1"
    )
    (table,) = tables(one)
    assert table.title == "lenet5"
    assert all(c.kind != "axis" for c in table.columns)
    assert column(table, "latency ↓") == ["128 µs [126–132]"]
    assert headline(one) == "1 of 1 combination measured"
    nothing = dataclasses.replace(one, rows=())
    assert (tables(nothing), headline(nothing)) == ([], "0 of 0 combinations measured")


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ({"ratio": 0.5263, "verdict": "better", "ratio_interval": (0.51, 0.55)}, "×0.53 [0.51–0.55] better"),
        ({"ratio": 1.004, "verdict": "same", "ratio_interval": None}, "×1.00 same"),
        ({"ratio": 1.004, "verdict": "unclear", "ratio_interval": (0.9, 1.1)}, "×1.00 [0.90–1.10] ~"),
        ({"ratio": 250.1, "verdict": None}, "×250"),
        ({"ratio": None, "verdict": None}, "–"),
    ],
)
def test_ratios_carry_their_verdict_in_words(cell: dict[str, Any], text: str) -> None:
    full = comparison(broken=False)
    changed = with_cells(full, "latency/forward", **cell).rows[3]  # the first of tensorflow
    odd = dataclasses.replace(full, rows=(*full.rows[:3], changed, *full.rows[4:]))
    assert column(tables(odd)[0], "vs torch ↓")[1] == text


# Inference and training


def test_a_set_with_few_headline_metrics_shows_all_that_have_values() -> None:
    metrics: dict[str, tuple[str, Better]] = {
        "compute/coverage": ("ratio", None),
        "operators/python_share": ("ratio", "lower"),
        "layers/slowest_self_s": ("s", "lower"),
    }
    rows: list[dict[str, Number]] = [dict(zip(metrics, (1.01, 0.2, seconds), strict=True)) for seconds in (1e-3, 2e-3)]
    (table,) = tables(build([{"n": 1}, {"n": 2}], metrics, rows))
    assert shown(table) == ["n", "slowest layer ↓"]
    assert table.captions == (("compute/coverage", "1.010"), ("outside operators", "20.0%"))


def test_a_row_that_is_incomplete_has_its_own_value() -> None:
    metrics: dict[str, tuple[str, Better]] = {
        "latency/forward": ("s", "lower"),
        "quality/accuracy": ("ratio", "higher"),
    }
    rows: list[dict[str, Number]] = [dict(zip(metrics, (1e-3, share), strict=True)) for share in (0.9, 0.9, 0.5)]
    made = build([{"n": 1}, {"n": 2}, {"n": 3}], metrics, rows)
    ended = dataclasses.replace(made.rows[2], status="timeout", is_incomplete=True)
    (table,) = tables(dataclasses.replace(made, rows=(*made.rows[:2], ended)))
    assert "accuracy ↑" in shown(table)


def test_a_set_with_many_headline_metrics_shows_those() -> None:
    metrics = {**TRAINING_METRICS, "latency/first_step": TRAINING_METRICS["latency/forward"]}
    rows = [{**training_values(1e-3 * n, 4e-3 * n, 0.9), "latency/first_step": 1.0 * n} for n in (1, 2)]
    (table,) = tables(build([{"n": 1}, {"n": 2}], metrics, rows))
    assert not any("first step" in title or "per sample" in title for title in shown(table))


def test_a_share_of_the_peak_of_training_is_shown_where_there_is_one() -> None:
    metrics: dict[str, tuple[str, Better]] = {**TRAINING_METRICS, "rate/mfu_train": ("ratio", "higher")}
    points = [{"n": 1}, {"n": 2}]
    rows = [training_values(1e-3 * n, 4e-3 * n, 0.9) for n in (1, 2)]
    title = "training share of peak FLOP/s ↑"
    assert title not in shown(tables(build(points, metrics, rows))[0])
    for row, share in zip(rows, (0.0761, 0.1522), strict=True):
        row["rate/mfu_train"] = share
    assert column(tables(build(points, metrics, rows))[0], title)[0] == "7.61%"


def test_what_nobody_expects_is_not_missing_and_one_reason_is_said_once() -> None:
    metrics: dict[str, tuple[str, Better]] = {
        **TRAINING_METRICS,
        "quality/agreement": ("abs", "lower"),
        "memory/cuda_allocated_peak_bytes": ("B", "lower"),
    }
    both: dict[str, Number] = {"quality/agreement": 0, "memory/cuda_allocated_peak_bytes": 5}
    rows: list[dict[str, Number]] = [
        {**training_values(1e-3, 4e-3, 0.9), **both},
        {"latency/forward": 1e-3, "throughput/samples_per_s": 9},
        {"latency/forward": 1e-3, "quality/agreement": 1},
    ]
    (note,) = footnotes(build([{"n": n} for n in range(3)], metrics, rows))
    text = "throughput, accuracy, agreement: not measured"
    assert (note.code, note.rows, note.text) == ("missing", 2, text)
    failed = build([{"n": 1}, {"n": 2}], TRAINING_METRICS, [training_values(1e-3, None, 0.9), {}])
    assert (failed.rows[1].status, footnotes(failed)) == ("failed", [])


# Texts of values


def test_details_say_what_a_value_is_of_and_which_percentiles_have_too_few_samples() -> None:
    assert "p99 not given: n<299" in detail_text(comparison().rows[0].cells["latency/forward"].measurement)
    without = Measurement("a", "s", None, 1.0, detail={"p90": math.nan, "p95": None})
    assert detail_text(without) == "p90 not given, p95 not given"
    name, detail = "memory/alloc_peak_bytes", {"layer": "fc\n1", "steps": 3}
    peak = Measurement(name, "B", "lower", 2048, interval=(2000, 2100), detail=detail)
    assert detail_text(peak) == "layer fc 1, steps 3"
    odd = build([{"n": 1}, {"n": 2}], {name: ("B", "lower")}, [{name: 1}, {name: 2}])
    (table,) = tables(with_cells(odd, name, measurement=peak))
    assert table.lines[0].entries[-1].note == "layer fc 1"


@pytest.mark.parametrize(
    ("name", "unit", "value", "interval", "text"),
    [
        ("rate/mfu", "ratio", 0.0759, (0.075, 0.077), "7.59% [7.50%–7.70%]"),
        ("operators/python_share", "ratio", 0.0759, (0.075, 0.077), "7.59% [7.50%–7.70%]"),
        ("rate/realtime_factor", "ratio", 0.0759, (0.075, 0.077), "0.07590 [0.07500–0.07700]"),
        ("a", "s", 1e-3, (0.9e-3, 1.1e-3), "1.00 ms [900 µs–1.10 ms]"),
    ],
)
def test_shares_are_in_percent_and_an_interval_names_its_unit_where_it_differs(
    name: str, unit: str, value: float, interval: tuple[float, float], text: str
) -> None:
    assert value_text(Measurement(name, unit, None, value, interval=interval)) == text


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
        (8.0, "8.0"),
        (-0.0, "-0.0"),
        ("8", "'8'"),
        ("-1e5", "'-1e5'"),
        ("[1]", "'[1]'"),
        ("1.2.3", "1.2.3"),
        ([1, "é"], '[1, "é"]'),
        (1 / 3, repr(1 / 3)),
    ],
)
def test_axis_values_read_as_on_the_command_line(value: object, text: str) -> None:
    assert axis_text(value) == text


def test_text_is_cleared_of_escapes_and_shortened_in_its_middle() -> None:
    assert one_line("a\x1b[31m\u202eb\r\n c") == "a [31m b c"
    assert shortened("0123456789", 7) == "012…789"
