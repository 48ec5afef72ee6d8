"""The language of conditions: Python's meaning where Python has one, units, names, and bounds."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.results.constraints import MAX_LENGTH, parse

NAMES = ["batch_size", "model", "model.torch.width", "latency", "latency/forward", "min", "size"]
VALUES = {"batch_size": 64, "model": "mlp", "model.torch.width": 128, "latency": 1, "latency/forward": 0.004, "min": 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch_size * model.torch.width > 4096", True),
        ("latency/forward < 5 ms", True),
        ("latency/forward >= 5ms", False),
        ("latency/batch_size == 1 / 64", True),
        ("model == 'mlp' and batch_size in [1, 64]", True),
        ('model not in ["mlp"] or not batch_size == 8', True),
        ("1 == true or 0 == false or true in [1] or [true] == [1]", False),
        ("1 != true and true not in [0, 1.0] and true in [1, true] and 1 == 1.0 and 'a' in 'ab'", True),
        ("min(batch_size, 3) + max([1, 2]) - abs(-4) * len(model)", 3 + 2 - 4 * 3),
        ("97% < 1 and 50 % == 0.5", True),
        ("7 ms", 0.007),
        ("3 us + 2 µs + 1 ns", 3e-6 + 2e-6 + 1e-9),
        ("2 KiB + 1.5 GiB", 2048 + 1.5 * 2**30),
        ("[1 kB, 1 MB, 1 GB, 1k, 2M, 3G, 4T, 5 B]", [10**3, 10**6, 10**9, 10**3, 2 * 10**6, 3 * 10**9, 4 * 10**12, 5]),
        ('model == "it\'s"', False),
    ],
)
def test_meanings(text: str, expected: Any) -> None:
    found = parse(text, NAMES).value(VALUES)
    assert found == pytest.approx(expected, rel=1e-15)
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lat < 20 ms", True),
        ("lat > 12.4 ms and lat < 12.6", True),
        ("lat > 1 k", False),
        ("mem < 4 MiB", False),
        ("mem * 2 == 12 MiB", True),
        ("pct > 0.9%", True),
        ("latency + lat < 20 ms", True),
    ],
)
def test_values_in_units_with_a_prefix(text: str, expected: bool) -> None:
    values = {"lat": 12.5, "mem": 6, "pct": 0.97, "latency": 0.004}
    units = {"lat": "ms", "mem": "MiB", "pct": "%", "latency": "s"}
    assert parse(text, list(values), units).value(values) is expected
    assert parse("lat < 20 ms", ["lat"], units).excess(values) == pytest.approx(math.log(12.5 / 20))


def test_an_expression_tells_its_names() -> None:
    found = parse("latency/forward < 5 ms and model.torch.width in [1] or latency/forward > 1", NAMES)
    assert found.names == {"latency/forward", "model.torch.width"}
    assert found.text.startswith("latency/forward < 5 ms")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("batchsize > 1", "uses 'batchsize', which is not known. Did you mean 'batch_size'? Known: batch_size, "),
        ("model.torch.widht > 1", "'model.torch.widht', which is not known. Did you mean 'model.torch.width'?"),
        ("model == mlp", "a text stands in quotes: 'mlp'"),
        ("batch_size > 5 sec", "has a number in 'sec', which is not a unit. Known: s, ms"),
        ("batch_size = 1", "cannot be read from '= 1' on; equality is written =="),
        ("batch_size > ", "ends where something should follow"),
        ("(batch_size", "cannot be read at ("),
        ("model('mlp')", "something else than conditions"),
        ("[1][0]", "something else than conditions"),
        ("__import__('os')", "'__import__', which is not known"),
        ("'a'.upper()", "cannot be read from"),
        ("+".join(["1"] * MAX_LENGTH), "is longer than"),
        ("(" * 300 + "1" + ")" * 300, "cannot be read"),
        ("not " * 400 + "true", "nested"),
        ("-" * 900 + "1", "nested"),
        ("9" * 1000, "beyond all bounds"),
        ("1e400", "beyond all bounds"),
    ],
)
def test_what_cannot_be_read(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse(text, NAMES)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model < 1", "compares 'mlp' with 1 by '<', which have no order"),
        ("size < 1", "uses 'size', which has no value here"),
        ("null < 1", "compares null with 1"),
        ("model + 'x'", "has 'mlp' with '+', which takes numbers"),
        ("-model", "has 'mlp' with '-'"),
        ("batch_size == 1 or 8", "has 8 with 'or', which takes conditions"),
        ("1 in 2", "looks for 1 in 2, which is no list"),
        ("1 / (batch_size - 64)", "divides by zero"),
        ("2 ** 5000", "beyond all bounds"),
        ("10.0 ** 400", "beyond all bounds"),
        ("9 ** 300 * 9 ** 300", "beyond all bounds"),
        ("(-8) ** 0.5", "a root of the negative number -8"),
        ("min([])", "neither numbers nor texts"),
        ("len(1)", "neither a list nor a text"),
        ("abs(1, 2)", "takes one"),
    ],
)
def test_what_has_no_value(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse(text, NAMES).value(VALUES)


def test_what_is_not_needed_may_be_missing() -> None:
    assert parse("batch_size == 64 or size > 1", NAMES).value(VALUES) is True


def _numbers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner).map(" ".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"- {text}"),
        st.tuples(inner, inner).map(lambda two: f"max({two[0]}, {two[1]})"),
    )


numbers = st.recursive(st.one_of(st.integers(0, 40).map(str), st.sampled_from("ab")), _numbers, max_leaves=8)
comparisons = st.one_of(
    st.lists(numbers, min_size=2, max_size=4).flatmap(
        lambda parts: st.lists(
            st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), min_size=len(parts) - 1, max_size=len(parts) - 1
        ).map(lambda signs: " ".join([parts[0], *(f"{s} {p}" for s, p in zip(signs, parts[1:], strict=True))]))
    ),
    st.tuples(numbers, st.sampled_from(["in", "not in"]), st.lists(numbers, max_size=3)).map(
        lambda three: f"{three[0]} {three[1]} [{', '.join(three[2])}]"
    ),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"not {text}"),
    ),
    max_leaves=5,
)


@given(text=st.one_of(numbers, conditions), a=st.integers(-9, 9), b=st.floats(-9, 9))
def test_it_means_what_python_means(text: str, a: int, b: float) -> None:
    values = {"a": a, "b": b}
    try:
        mine = parse(text, ["a", "b"]).value(values)
    except ValueError as error:
        if any(reason in str(error) for reason in ("beyond all bounds", "negative number", "divides by zero")):
            return  # Python has an error, a complex number, or takes its time
        raise
    assert mine == pytest.approx(eval(text, {"max": max}, values), rel=0, abs=0, nan_ok=True)


def test_the_excess_of_a_condition() -> None:
    """The logarithm of the ratio of both sides; 1 or -1 where there is none."""
    values = {"latency": 0.02, "size": 4, "name": "a"}
    names = list(values)
    assert parse("latency < 5 ms", names).excess(values) == pytest.approx(math.log(4))
    assert parse("latency < 40 ms", names).excess(values) == pytest.approx(-math.log(2))
    assert parse("size >= 8", names).excess(values) == pytest.approx(math.log(2))
    assert parse("size >= 2", names).excess(values) == pytest.approx(-math.log(2))
    assert parse("size > 4", names).excess(values) == 1
    assert parse("size >= 4", names).excess(values) == -1
    assert parse("size == 5 or latency < 1 ms", names).excess(values) == 1
    assert parse("name == 'a'", names).excess(values) == -1
    assert parse("size < 0", names).excess(values) == 1
