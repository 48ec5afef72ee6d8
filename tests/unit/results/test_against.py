"""A sweep beside another one, and comparisons that are read back."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.samples import comparison
from sweeprof.results.compared_rows import Comparison, Row, common_and_own, comparison_from, find_baselines, set_against
from sweeprof.results.differences import Cell
from sweeprof.results.measurement import Measurement, MetricInfo

METRIC = MetricInfo("latency/forward", "s", "lower", "x")
KEY = {"host": "a", "processor": "X"}


def sweep(id: str, seconds: dict[str, float], rows: dict[str, dict[str, Any]], **fields: Any) -> Comparison:
    """A sweep of rows by combination id with their axes, and the seconds of each."""
    made = []
    for combination, axes in rows.items():
        value = seconds.get(combination)
        measured = Measurement(
            METRIC.name,
            "s",
            "lower",
            value,
            None if value else "crashed",
            estimator="median",
            rounds=(value, value * 1.001, value * 0.999) if value else (),
        )
        status: Any = "ok" if value else "crashed"
        made.append(Row(combination, axes, status, None, {METRIC.name: Cell(measured)}, None, environment=KEY))
    names = tuple(dict.fromkeys(axis for point in rows.values() for axis in point))
    known: dict[str, Any] = {"threshold": 0.05, "settings": {"mode": "inference"}, **fields}
    return Comparison(id, "n", "2026-11-20T02:00:00+00:00", "", names, (METRIC,), {}, tuple(made), **known)


def verdicts(of: Comparison) -> dict[str, Any]:
    return {row.combination_id: row.cells[METRIC.name].verdict for row in of.rows}


def test_the_same_id_comes_first_then_the_same_axes() -> None:
    base = sweep("s1", {"c1": 1.0, "c2": 1.0, "c3": 1.0}, {"c1": {"n": 1}, "c2": {"n": 2}, "c3": {"n": 3}})
    own = sweep("s2", {"c1": 1.0, "c9": 2.0, "c4": 1.0}, {"c1": {"n": 1}, "c9": {"n": 2}, "c4": {"n": 4}})
    found = set_against(own, base, "last")
    assert [row.baseline_id for row in found.rows] == ["s1/c1", "s1/c2", None]
    assert verdicts(found) == {"c1": "same", "c9": "worse", "c4": None}
    assert found.against is not None
    assert found.against.absent == ({"n": 3},)
    assert [row.is_baseline for row in found.rows] == [False] * 3


def test_what_is_an_axis_in_one_sweep_may_be_a_setting_in_the_other() -> None:
    base = sweep("s1", {"c1": 1.0}, {"c1": {"n": 1}}, settings={"backend.threads": 1})
    own = sweep(
        "s2", {"c8": 1.0, "c9": 1.0}, {"c8": {"n": 1, "backend.threads": 1}, "c9": {"n": 1, "backend.threads": 2}}
    )
    found = set_against(own, base, "last")
    assert [row.baseline_id for row in found.rows] == ["s1/c1", None]


def test_settings_that_differ_are_told_where_the_ids_do() -> None:
    base = sweep("s1", {"c1": 1.0}, {"c1": {"n": 1}}, settings={"protocol.rounds": 5, "backend.preload": ["x"]})
    own = sweep("s2", {"c2": 1.0}, {"c2": {"n": 1}}, settings={"protocol.rounds": 10, "backend.preload": ["y"], "k": 1})
    against = set_against(own, base, "last").against
    assert against is not None
    assert against.settings == {"protocol.rounds": ((5, 10),), "k": ((None, 1),)}
    same = set_against(dataclasses.replace(own, rows=base.rows), base, "last").against
    assert same is not None
    assert same.settings == {}


def test_other_threads_are_not_comparable_and_other_versions_are_only_told() -> None:
    rows = {"c1": {"n": 1}}
    base = sweep("s1", {"c1": 1.0}, rows, settings={"backend.threads": 1}, environment={"versions": {"torch": "2.12"}})
    own = sweep(
        "s2",
        {"c2": 2.0},
        {"c2": {"n": 1}},
        settings={"backend.threads": 1},
        environment={"versions": {"torch": "2.13"}},
    )
    found = set_against(own, base, "last")
    assert verdicts(found) == {"c2": "worse"}
    assert found.against is not None
    assert found.against.software == {"torch": ("2.12", "2.13")}
    threads = set_against(dataclasses.replace(own, settings={"backend.threads": 2}), base, "last")
    assert verdicts(threads) == {"c2": "not_comparable"}
    assert threads.rows[0].differs == {"threads": (1, 2)}


def test_another_host_is_not_comparable() -> None:
    base = sweep("s1", {"c1": 1.0}, {"c1": {"n": 1}})
    moved = dataclasses.replace(base, rows=(dataclasses.replace(base.rows[0], environment={**KEY, "host": "b"}),))
    assert verdicts(set_against(moved, base, "last")) == {"c1": "not_comparable"}


def test_the_thresholds_are_the_new_sweeps_else_the_old_ones() -> None:
    base = sweep("s1", {"c1": 1.0}, {"c1": {"n": 1}}, threshold=0.2)
    own = sweep("s2", {"c1": 1.1}, {"c1": {"n": 1}})
    assert verdicts(set_against(own, base, "last")) == {"c1": "worse"}
    assert verdicts(set_against(dataclasses.replace(own, threshold=None), base, "last")) == {"c1": "same"}
    one = dataclasses.replace(own, thresholds={METRIC.name: 0.3})
    assert verdicts(set_against(one, base, "last")) == {"c1": "same"}
    loose = dataclasses.replace(base, thresholds={METRIC.name: 0.3})
    assert verdicts(set_against(own, loose, "last")) == {"c1": "worse"}
    assert verdicts(set_against(dataclasses.replace(own, threshold=None), loose, "last")) == {"c1": "same"}
    strict = dataclasses.replace(own, threshold=None, thresholds={METRIC.name: 0.05})
    assert verdicts(set_against(strict, loose, "last")) == {"c1": "worse"}


def test_a_comparison_survives_json() -> None:
    base = sweep("s1", {"c1": 1.0, "c2": 1.0}, {"c1": {"n": 1}, "c2": {"n": 2}}, settings={"a": 1})
    own = set_against(sweep("s2", {"c1": 1.0}, {"c1": {"n": 1}}, settings={"a": 2}), base, "last")
    for made in (own, comparison()):
        assert comparison_from(json.loads(json.dumps(made.to_dict()))) == made


def test_a_later_version_is_refused() -> None:
    data = json.loads(json.dumps(comparison().to_dict()))
    with pytest.raises(ValueError, match="newer than this sweeprof"):
        comparison_from({**data, "schema_version": 99})


@pytest.mark.parametrize("data", [{}, [], 3, {"rows": []}, {"axes": None}, {"axes": [], "metrics": [1], "rows": []}])
def test_what_is_no_comparison_is_said_to_be_none(data: Any) -> None:
    with pytest.raises(ValueError, match="is not a comparison of sweeprof"):
        comparison_from(data)


values = st.one_of(st.integers(0, 2), st.none(), st.text(max_size=2), st.lists(st.integers(0, 1), max_size=2))
parts = st.dictionaries(st.sampled_from("xy"), values)
configs = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.one_of(values, parts)),
    max_size=4,
)


@given(configs)
def test_common_and_own_settings_are_all_settings(found: list[dict[str, Any]]) -> None:
    common, own = common_and_own(found)
    for config, rest in zip(found, own, strict=True):
        assert not common.keys() & rest.keys()
        for key, value in {**common, **rest}.items():
            first, _, second = key.partition(".")
            assert (config[first][second] if second else config[first]) == value


def test_a_baseline_that_names_all_axes_is_everyones() -> None:
    rows = {"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 2, "m": 3}}
    assert find_baselines({"n": 2}, rows) == {"a": "b", "b": "b", "c": "b"}


def test_baselines_of_ten_thousand_are_found_by_looking_once() -> None:
    rows = {f"c{i}-{b}": {"i": i, "b": b} for i in range(5000) for b in ("x", "y")}
    found = find_baselines({"b": "x"}, rows)
    assert all(found[f"c{i}-{b}"] == f"c{i}-x" for i in range(5000) for b in ("x", "y"))
