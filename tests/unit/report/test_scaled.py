"""Counts, bytes and seconds as texts."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof import numbers
from sweeprof.numbers import percent, scaled


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (429_248, "MACs", "429.25 KMACs"),
        (61_706, "params", "61.71 k"),
        (412_024, "MACs", "412.02 KMACs"),
        (6_304, "FLOPs", "6.3 KFLOPs"),
        (1_814_073_344, "FLOPs", "1.81 GFLOPs"),
        (109_482_240, "params", "109.48 M"),
        (11_174_215_680, "MACs", "11.17 GMACs"),
        (0, "params", "0"),
        (0, "MACs", "0 MACs"),
        (999, "params", "999"),
        (999_999, "params", "1 M"),
        (999_994, "params", "999.99 k"),
        (-2_500, "MACs", "-2.5 KMACs"),
        (512, "ops", "512 ops"),
        (246_824, "B", "241.04 KiB"),
        (1_048_576, "B", "1 MiB"),
        (1_048_575, "B", "1 MiB"),
        (1_023, "B", "1023 B"),
        (0.5, "B", "0.5 B"),
        (0, "B", "0 B"),
        (0.001234, "s", "1.23 ms"),
        (12.5e-6, "s", "12.5 us"),
        (3, "s", "3 s"),
        (0, "s", "0 s"),
        (None, "MACs", "–"),
        (math.nan, "s", "–"),
        (math.inf, "B", "–"),
    ],
)
def test_the_prefix_suits_the_value(value: float | None, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "prefix", "text"),
    [
        (61_706, "params", "M", "0.06 M"),
        (61_706, "params", "", "61706"),
        (61_706, "params", "K", "61.71 k"),
        (555_468_800, "MACs", "G", "0.56 GMACs"),
        (44_880_528, "B", "M", "44.88 MB"),
        (44_880_528, "B", "Mi", "42.8 MiB"),
        (44_880_528, "B", "k", "44880.53 kB"),
        (0.25, "s", "m", "250 ms"),
        (0.25, "s", "u", "250000 us"),
        (156, "params", "M", "0.00016 M"),
    ],
)
def test_a_prefix_can_be_forced(value: float, unit: str, prefix: str, text: str) -> None:
    assert scaled(value, unit, prefix) == text


@pytest.mark.parametrize(("unit", "prefix"), [("MACs", "Mi"), ("s", "k"), ("B", "x"), ("params", "m")])
def test_a_prefix_that_the_unit_has_not(unit: str, prefix: str) -> None:
    with pytest.raises(ValueError, match="is no prefix of"):
        scaled(1, unit, prefix)


def test_decimals_can_be_chosen() -> None:
    assert [scaled(429_248, "MACs", precision=p) for p in (0, 1, 3)] == ["429 KMACs", "429.2 KMACs", "429.248 KMACs"]
    assert scaled(480, "params", precision=0) == "480"


def test_percent() -> None:
    assert [percent(share) for share in (0.8215084, 1.0, 0.0, None)] == ["82.151 %", "100 %", "0 %", "–"]
    assert percent(1e-7) == "1e-05 %"


@given(st.integers(1, 10**18))
def test_no_value_is_more_than_half_a_hundredth_off_or_reads_thousand(value: int) -> None:
    found = re.fullmatch(r"([\d.]+) ([KMGTP]?)MACs", scaled(value, "MACs"))
    assert found is not None
    unit = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[found[2]]
    assert abs(float(found[1]) * unit - value) <= 0.00501 * unit
    assert found[2] == "P" or float(found[1]) < 1000


@pytest.mark.parametrize(("unit", "text"), [("MAC", "429.25 KMACs"), ("FLOP", "429.25 KFLOPs"), ("op", "429.25 Kops")])
def test_the_unit_of_a_metric_is_written_in_the_plural(unit: str, text: str) -> None:
    assert scaled(429_248, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3744, "bit", "3,744"),
        (123_456, "bit", "123,456"),
        (2_240_000_000_001, "bit", "2,240,000,000,001"),
        (1023, "B", "1,023 B"),
        (1023, "calls", "1,023"),
        (10**15, "bit", "1.0e+15"),
        (3744.4, "kernels", "3,740"),
        (61_706, "params", "61.7 k"),
    ],
)
def test_a_measurement_that_is_an_exact_number_is_not_rounded(value: float, unit: str, text: str) -> None:
    assert numbers.rounded(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.999_4e-3, "s", "999 µs"),
        (0.999_6e-3, "s", "1.00 ms"),
        (999.6, "samples/s", "1.00 k/s"),
        (999_600.0, "FLOP/s", "1.00 MFLOP/s"),
    ],
)
def test_a_measurement_that_rounds_up_to_1000_takes_the_next_prefix(value: float, unit: str, text: str) -> None:
    assert numbers.rounded(value, unit) == text


def test_an_exact_number_is_tracked_in_full() -> None:
    assert numbers.fixed_value(11_173_962, "params") == 11_173.962
    assert numbers.fixed_value(123_456_789, "bit") == 123_456_789
    assert numbers.fixed_value(0.123456789, "s") == 123.46
