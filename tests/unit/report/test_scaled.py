"""Counts, bytes and seconds as texts."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof import numbers
from sweeprof.errors import UserError
from sweeprof.numbers import percent, scaled


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (429_248, "MAC", "429 kMAC"),
        (61_706, "params", "61.7 k"),
        (6_304, "FLOP", "6.30 kFLOP"),
        (1_814_073_344, "FLOP", "1.81 GFLOP"),
        (0, "params", "0"),
        (999_999, "params", "1.00 M"),
        (-2_500, "MAC", "-2.50 kMAC"),
        (246_824, "B", "241 KiB"),
        (1_048_575, "B", "1.00 MiB"),
        (1_023, "B", "1,023 B"),
        (0.5, "B", "0.500 B"),
        (0.001234, "s", "1.23 ms"),
        (0.8215084, "share", "82.2%"),
        (1e-7, "share", "1.0e-05%"),
        (0.0, "share", "0%"),
        (64.2, "samples/s", "64.2 /s"),
        (None, "MAC", "–"),
        (math.nan, "s", "–"),
    ],
)
def test_the_prefix_suits_the_value(value: float | None, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "prefix", "text"),
    [
        (61_706, "params", "M", "0.0617 M"),
        (61_706, "params", "", "61,706"),
        (555_468_800, "MAC", "G", "0.555 GMAC"),
        (44_880_528, "B", "Mi", "42.8 MiB"),
        (0.25, "s", "u", "250,000 µs"),
    ],
)
def test_a_prefix_can_be_forced(value: float, unit: str, prefix: str, text: str) -> None:
    assert scaled(value, unit, prefix) == text


@pytest.mark.parametrize(
    ("unit", "prefix", "message"),
    [
        ("MAC", "Mi", "prefix: 'Mi' is not a prefix of MAC. .*Known: G, M, T, k."),
        ("s", "k", "is not a prefix of s"),
        ("share", "m", "is not a prefix of share"),
        ("MACs", None, "unit: 'MACs' is not a known unit. Did you mean 'MAC'"),
    ],
)
def test_an_unknown_prefix_or_unit_is_an_error_that_names_the_known_ones(
    unit: str, prefix: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        scaled(1, unit, prefix)


def test_the_number_of_digits_can_be_chosen() -> None:
    assert [scaled(429_248, "MAC", digits=d) for d in (1, 4, 6)] == ["400 kMAC", "429.2 kMAC", "429.248 kMAC"]
    assert scaled(480, "params", digits=1) == "480"


def test_percent() -> None:
    assert [percent(share) for share in (0.8215084, 1.0, 0.0, 0.05)] == ["82.151%", "100%", "0%", "5%"]
    assert percent(1e-7) == "1e-05%"


@given(st.integers(1, 9 * 10**14))
def test_no_value_is_further_off_than_its_digits_or_reads_thousand(value: int) -> None:
    found = re.fullmatch(r"([\d.]+) ([kMGT]?)MAC", scaled(value, "MAC"))
    assert found is not None
    unit = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[found[2]]
    assert abs(float(found[1]) * unit - value) <= 0.00501 * value
    assert float(found[1]) < 1000


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3744, "bit", "3,744"),
        (2_240_000_000_001, "bit", "2,240,000,000,001"),
        (1023, "B", "1,023 B"),
        (10**15, "bit", "1.0e+15"),
        (3744.4, "kernels", "3,740"),
        (0.999_4e-3, "s", "999 µs"),
        (0.999_6e-3, "s", "1.00 ms"),
        (999_600.0, "FLOP/s", "1.00 MFLOP/s"),
    ],
)
def test_a_measurement_is_rounded_unless_it_is_an_exact_number_and_1000_takes_the_next_prefix(
    value: float, unit: str, text: str
) -> None:
    assert numbers.rounded(value, unit) == text


def test_an_exact_number_is_tracked_in_full() -> None:
    assert numbers.fixed_value(11_173_962, "params") == 11_173.962
    assert numbers.fixed_value(123_456_789, "bit") == 123_456_789
    assert numbers.fixed_value(0.123456789, "s") == 123.46
