"""Shapes of sweeps as plain data, what the command line narrows, and rules and conditions that leave combinations out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from sweeprof.plan.comparing import compare_problems
from sweeprof.plan.shape import Grid, SweepShape, distinct, read_rules, read_shape
from sweeprof.results.measurement import MetricInfo


def expand(key: str, values: Any) -> list[Any]:
    if values == "bad":
        raise ValueError("cannot be read.")
    return values if isinstance(values, list) else [values]


def read(**config: Any) -> SweepShape:
    shape, problems = read_shape(config, expand)
    assert problems == []
    return shape


def points(shape: SweepShape) -> list[tuple[Any, ...]]:
    return [tuple(p.values()) for grid in shape.grids for p in (*grid.product(), *grid.include)]


def test_the_last_axis_varies_fastest() -> None:
    assert list(Grid({"a": [1, 2], "b": ["x", "y"]}).product()) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_no_axes_are_one_point_and_an_empty_axis_is_none() -> None:
    assert list(Grid({}).product()) == [{}]
    assert list(Grid({"a": [1], "b": []}).product()) == []


def test_tied_axes_step_together() -> None:
    shape = read(axes={"a": [1, 2]}, zip=[{"b": [3, 4], "c": ["x", "y"]}])
    assert points(shape) == [(1, 3, "x"), (1, 4, "y"), (2, 3, "x"), (2, 4, "y")]
    assert shape.values() == {"a": [1, 2], "b": [3, 4], "c": ["x", "y"]}
    assert not shape.is_product


def test_variants_are_an_axis_whose_values_set_keys() -> None:
    shape = read(axes={"a": [1]}, variants={"size": {"small": {"x": 1, "y": 2}, "large": {"x": 3}}})
    assert [shape.settings(p) for p in shape.grids[0].product()] == [{"x": 1, "y": 2, "a": 1}, {"x": 3, "a": 1}]
    assert points(read(variants={"size": {"s": {}, "l": {}}}, axes={"size": ["l"]})) == [("l",)]
    assert points(read(variants={"size": {"s": {}, "l": {}}}, zip=[{"size": ["l", "s"], "b": [1, 2]}])) == [
        ("l", 1),
        ("s", 2),
    ]


def test_grids_share_what_stands_beside_them() -> None:
    shape = read(
        axes={"a": [1, 2]},
        exclude=[{"a": 1}],
        grids=[{"axes": {"b": [3]}, "exclude": ["b > 1"]}, {"axes": {"a": [9], "c": [4, 5]}, "include": [{"d": 0}]}],
    )
    assert points(shape) == [(1, 3), (2, 3), (9, 4), (9, 5), (0,)]
    assert [grid.exclude for grid in shape.grids] == [({"a": 1}, "b > 1"), ({"a": 1},)]
    assert shape.values() == {"a": [1, 2, 9], "b": [3], "c": [4, 5], "d": [0]}


def test_ties_of_which_the_command_line_leaves_nothing_are_no_axes() -> None:
    shape = read(grids=[{"zip": [{"a": [1, 2], "b": [3, 4]}]}, {"zip": [{"a": [8, 9], "c": [5, 6]}]}])
    left = shape.narrowed({"a": [8]})
    assert points(left) == [(8, 5)]
    assert left.values() == {"a": [8], "c": [5]}


def test_the_command_line_replaces_axes_and_chooses_from_the_rest() -> None:
    shape = read(axes={"a": [1, 2]}, zip=[{"b": [3, 4], "c": ["x", "y"]}], include=[{"a": 7}, {"b": 4, "c": "z"}])
    assert points(shape.narrowed({"a": [9]})) == [(9, 3, "x"), (9, 4, "y"), (4, "z", 9)]
    assert points(shape.narrowed({"b": [4]})) == [(1, 4, "y"), (2, 4, "y"), (7, 4), (4, "z")]
    assert points(shape.narrowed({"b": [8]})) == [(7, 8)]
    assert points(shape.narrowed({"e": [0, 1]}))[:2] == [(1, 0, 3, "x"), (1, 0, 4, "y")]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"axes": [1]}, "axes: [1] is not {axis: [values]}."),

        ({"axes": {"a": "bad"}}, "axes.a: 'bad' cannot be read."),
        ({"zip": {"a": [1]}}, "zip: {'a': [1]} is not a list."),

        ({"zip": [{"a": [1, 2], "b": [1]}]}, "ties axes with different numbers of values: a has 2, b has 1."),
        ({"zip": [{"a": [1]}], "axes": {"a": [2]}}, "zip: 'a' is tied here and also an axis elsewhere; name it only once."),
        ({"variants": {"s": [1]}}, "variants.s: [1] is not {name: {key: value}}."),
        ({"variants": {"s": {"a": 1}}}, "variants.s.a: 1 is not {key: value}."),
        ({"variants": {"s": {"a": {"x": 1}}}, "axes": {"x": [1]}}, "variants: 'x' is set twice: an axis of its own and"),
        ({"variants": {"s": {"a": {"x": 1}}, "t": {"a": {"x": 1}}}}, "variants: 'x' is set twice: variants.s and var"),
        ({"variants": {"s": {"small": {}}}, "axes": {"s": ["smal"]}}, "s: 'smal' is not a name in variants.s."),
        ({"include": [1]}, "include[0]: 1 is not {axis: value}."),
        ({"include": {"a": 1}}, "include: {'a': 1} is not a list."),
        ({"exclude": "a > 1"}, "exclude: 'a > 1' is not a list"),
        ({"grids": [1]}, "grids[0]: 1 is not a mapping of axes, zip, include, exclude."),
        ({"grids": [{"axis": {}}]}, "grids[0]: 'axis' is not a key of a grid."),
        ({"grids": [{"zip": [{"a": [1], "b": [1, 2]}]}]}, "grids[0].zip[0]: "),
    ],
)  # fmt: skip
def test_mistakes(config: dict[str, Any], told: str) -> None:
    _, problems = read_shape(config, expand)
    assert any(told in str(problem) for problem in problems), problems


def test_all_mistakes_at_once() -> None:
    _, problems = read_shape({"axes": {"a": []}, "zip": [1], "include": [1], "grids": [{"axs": 1}]}, expand)
    assert len(problems) == 4
    assert problems[-1].nearest == "axes"


@pytest.mark.parametrize("given", [{}, {"a": [1, 2, 3]}, {"b": [4]}, {"b": [4], "d": [1, 2]}, {"a": [], "d": [1, 2]}])
def test_the_size_is_known_without_the_points(given: dict[str, list[int]]) -> None:
    grid = Grid({"a": [1, 2], "e": [5]}, ({"b": [3, 4], "c": [5, 6]},), ({"a": 1}, {"b": 4, "d": 2}))
    narrowed = grid.narrowed(given)
    assert grid.narrowed_size(given)[0] == len(list(narrowed.product())) + len(narrowed.include)


def test_values_are_told_apart_by_kind() -> None:
    assert distinct([1, True, 1.0, 1, "1", [1], [1], {"a": 1}, {"a": 1}]) == [1, True, 1.0, "1", [1], {"a": 1}]


# Rules


AXES: dict[str, list[Any]] = {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("rule", "left_out"),
    [
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
        (3, "exclude: 3 is neither {axis: value or [values]} nor a condition"),
    ],
)
def test_mistakes_in_rules(rule: Any, told: str) -> None:
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


# Conditions


METRICS = (MetricInfo("latency/forward", "s", "lower", "x"), MetricInfo("quality/accuracy", "ratio", "higher", "x"))


@pytest.mark.parametrize(
    ("constraint", "told"),
    [
        ("latency < 5 ms and accuracy", "has 'accuracy', which is not a condition: compare it with a value."),
        ("latency + 1 ms", "has 'latency + 1 ms', which is not a condition: compare it with a value."),
        ("latency < 5 ms and", "ends where something should follow."),
        ("latency < 5 ms and batch_size == 1", None),
        ("backend.compile", None),
        ("not (accuracy < 0.9 or latency > 5 ms)", None),
    ],
)
def test_a_constraint_that_nothing_fulfils_is_a_mistake(constraint: str, told: str | None) -> None:
    found = compare_problems({"constraints": [constraint]}, METRICS, ["batch_size", "backend.compile"])
    assert [problem.allowed for problem in found] == ([] if told is None else [told])
