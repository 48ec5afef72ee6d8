"""Rules that leave combinations out: by values, by lists, by conditions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sweeprof.plan.shape import read_rules

AXES: dict[str, list[Any]] = {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("rule", "left_out"),
    [
        ({"a": 1}, [(1, "x"), (1, "y")]),
        ({"a": 1, "b": "x"}, [(1, "x")]),
        ({"a": [1, 2], "b": "y"}, [(1, "y"), (2, "y")]),
        ({"c": 1}, []),
        ("a > 1 and b == 'x'", [(2, "x")]),
        ("a * 2 in [2, 3]", [(1, "x"), (1, "y")]),
        ("c > 1", []),
    ],
)
def test_what_a_rule_leaves_out(rule: Any, left_out: list[tuple[int, str]]) -> None:
    (read,), problems = read_rules([rule], AXES, {"c"}, set())
    assert problems == []
    points = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]
    assert [tuple(point.values()) for point in points if read.matches(point)] == left_out


def test_a_rule_tells_itself() -> None:
    rules, _ = read_rules([{"a": 1, "b": ["x", "y"]}, "a > 1"], AXES, (), ())
    assert [rule.text for rule in rules] == ["a=1, b=['x', 'y']", "a > 1"]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"aa": 1}, "exclude: 'aa' is not an axis of this sweep. Did you mean 'a'? Known: a, b."),
        ({"a": 3}, "exclude a: 3 is not a value of that axis. Known: 1, 2."),
        ({"a": "> 1"}, "exclude a: '> 1' is not a value of that axis; write a condition as a string: 'a > 1'."),
        ("aa > 1", "uses 'aa', which is not known. Did you mean 'a'?"),
        ("a >", "ends where something should follow."),
        (3, "exclude: 3 is neither {axis: value or [values]} nor a condition"),
        ({}, "exclude: {} is neither"),
    ],
)
def test_mistakes(rule: Any, told: str) -> None:
    rules, problems = read_rules([rule], AXES, (), ())
    assert rules == []
    assert any(told in str(problem) for problem in problems), problems


def test_a_value_that_the_command_line_took_away_is_no_mistake() -> None:
    assert read_rules([{"a": 3}], AXES, (), {"a"})[1] == []


@pytest.mark.parametrize(
    ("rule", "told"), [("a + 1", "is 2, which is not a condition"), ("b > 1", "which have no order")]
)
def test_conditions_without_an_answer(rule: str, told: str) -> None:
    (read,), _ = read_rules([rule], AXES, (), ())
    with pytest.raises(ValueError, match=told):
        read.matches({"a": 1, "b": "x"})
