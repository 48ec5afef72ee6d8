"""Rows and sweeps compared: baselines, verdicts, settings that deviate, and comparisons that are read back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.samples import comparison
from sweeprof.results.compared_rows import (
    AS_REQUESTED,
    DEVIATION,
    ComparedSweep,
    Comparison,
    Row,
    common_and_own,
    compare_rows,
    comparison_from,
    deviations_of,
    differing,
    find_baselines,
    key_of,
    set_against,
    unsteady_warnings,
    warnings_of,
)
from sweeprof.results.differences import Cell, Verdict
from sweeprof.results.measurement import Measurement, MetricInfo
from sweeprof.results.statistics import ratio_interval, unpaired_interval

BASE = (1.0, 1.01, 0.99, 1.0, 1.005)


def timed(rounds: tuple[float, ...]) -> Measurement:
    return Measurement("m", "s", "lower", rounds[0], rounds=rounds)


def exact(value: float) -> Measurement:
    return Measurement("m", "params", "lower", value)


POINTS: dict[str, dict[str, Any]] = {
    f"{model}-{backend}-{n}": {"model": model, "backend": backend, "batch_size": n}
    for model in ("a", "b")
    for backend in ("torch", "tensorflow")
    for n in (1, 8)
}


@pytest.mark.parametrize(
    ("baseline", "id", "found"),
    [
        ({"backend": "torch"}, "b-tensorflow-8", "b-torch-8"),  # it differs only in the baseline's axes
        ({"backend": "torch"}, "a-torch-1", "a-torch-1"),
        ({"backend": "torch", "batch_size": 1}, "b-tensorflow-8", "b-torch-1"),
        ({"backend": "onnx"}, "a-torch-1", None),  # which the sweep has not
        ({"device": "cpu"}, "a-torch-1", "a-torch-1"),  # which is no axis
        ({}, "a-torch-1", None),
    ],
)
def test_the_baseline_of_a_combination(baseline: dict[str, Any], id: str, found: str | None) -> None:
    assert find_baselines(baseline, POINTS)[id] == found


def row(id: str, baseline: str | None, **more: Any) -> Row:
    return Row(id, {"backend": id}, "ok", None, {}, baseline, **more)


def test_rows_are_compared_with_their_baselines() -> None:
    rows = (row("base", "base"), row("other", "base"), row("alone", None))
    values = {"base": {"m": exact(10)}, "other": {"m": exact(5), "n": exact(5)}, "alone": {"m": exact(7)}}
    base, other, alone = compare_rows(rows, values, None)
    assert base.cells == {"m": Cell(exact(10))}
    compared = Cell(exact(5), 0.5, None, "better", "unequal", "exact", None, 10)
    assert other.cells == {"m": compared, "n": Cell(exact(5))}  # which the baseline lacks
    assert alone.cells == {"m": Cell(exact(7))}
    assert [r.is_baseline for r in (base, other, alone)] == [True, False, False]


@pytest.mark.parametrize(
    ("sessions", "interval", "warned"),
    [
        (("s1",) * 5, ratio_interval, False),
        (("s1", "s1", "s1", "s2", "s2"), lambda own, base: ratio_interval(own[:3], base[:3]), False),
        (("s1", "s1", "s2", "s2", "s2"), unpaired_interval, True),
        ((), ratio_interval, False),  # of before this was written down
    ],
)
def test_only_rounds_of_one_run_of_the_sweep_form_pairs(
    sessions: tuple[str, ...], interval: Callable[..., tuple[float, float]], warned: bool
) -> None:
    own = (1.2, 1.3, 1.1, 1.25, 1.15)
    first = ("s1",) * 5 if sessions else ()
    rows = [row("base", "base", sessions=first), row("own", "base", sessions=sessions)]
    compared = compare_rows(rows, {"base": {"m": timed(BASE)}, "own": {"m": timed(own)}}, 0.05)[1]
    assert compared.cells["m"].ratio_interval == interval(own, BASE)
    assert [warning.code for warning in compared.warnings] == ["run_apart"] * warned


METRIC = MetricInfo("latency/forward", "s", "lower", "x")
KEY = {"host": "a", "processor": "X"}


def sweep(
    id: str, seconds: dict[str, float], rows: dict[str, dict[str, Any]] | None = None, **fields: Any
) -> Comparison:
    """A sweep of rows by combination id with their axes, by default numbered from 1, and the seconds of each."""
    points = rows or {combination: {"n": number} for number, combination in enumerate(seconds, 1)}
    made = []
    for combination, axes in points.items():
        value = seconds[combination]
        rounds = (value, value * 1.001, value * 0.999)
        measured = Measurement(METRIC.name, "s", "lower", value, estimator="median", rounds=rounds)
        made.append(Row(combination, axes, "ok", None, {METRIC.name: Cell(measured)}, None, environment=KEY))
    names = tuple(dict.fromkeys(name for point in points.values() for name in point))
    known: dict[str, Any] = {"threshold": 0.05, "settings": {"mode": "inference"}, **fields}
    return Comparison(id, "n", "2026-11-20T02:00:00+00:00", "", names, (METRIC,), {}, tuple(made), **known)


def against(own: Comparison, base: Comparison) -> ComparedSweep:
    found = set_against(own, base, "last").against
    assert found is not None
    return found


def verdicts(of: Comparison) -> dict[str, Any]:
    return {row.combination_id: row.cells[METRIC.name].verdict for row in of.rows}


def test_the_same_id_comes_first_then_the_same_axes() -> None:
    base = sweep("s1", {"c1": 1.0, "c2": 1.0, "c3": 1.0})
    own = sweep("s2", {"c1": 1.0, "c9": 2.0, "c4": 1.0}, {"c1": {"n": 1}, "c9": {"n": 2}, "c4": {"n": 4}})
    found = set_against(own, base, "last")
    assert [row.baseline_id for row in found.rows] == ["s1/c1", "s1/c2", None]
    assert verdicts(found) == {"c1": "same", "c9": "worse", "c4": None}
    assert against(own, base).absent == ({"n": 3},)
    assert [row.is_baseline for row in found.rows] == [False] * 3


def test_what_is_an_axis_in_one_sweep_may_be_a_setting_in_the_other() -> None:
    base = sweep("s1", {"c1": 1.0}, settings={"backend.threads": 1})
    points = {id: {"n": 1, "backend.threads": threads} for id, threads in (("c8", 1), ("c9", 2))}
    found = set_against(sweep("s2", {"c8": 1.0, "c9": 1.0}, points), base, "last")
    assert [row.baseline_id for row in found.rows] == ["s1/c1", None]


@pytest.mark.parametrize("values", [("digits", "synthetic"), ({"size": 8}, {"size": 9})], ids=["group", "mapping"])
def test_a_group_or_a_mapping_that_is_an_axis_in_one_sweep_may_be_settings_in_the_other(
    values: tuple[Any, ...],
) -> None:
    base = sweep("s1", {"c1": 1.0}, settings={"mode": "inference", "dataset.size": 8, "dataset.of.name": "d"})
    points = {id: {"n": 1, "dataset": value} for id, value in zip(("c8", "c9"), values, strict=True)}
    own = sweep("s2", {"c8": 1.0, "c9": 1.0}, points, settings={"mode": "inference", "dataset.of.name": "d"})
    settings = [{"dataset.size": 8}, {"dataset.size": 9}]
    rows = [dataclasses.replace(row, settings=of) for row, of in zip(own.rows, settings, strict=True)]
    own = dataclasses.replace(own, rows=tuple(rows))
    assert [row.baseline_id for row in set_against(own, base, "last").rows] == ["s1/c1", None]
    assert [row.baseline_id for row in set_against(base, own, "last").rows] == ["s2/c8"]


def test_settings_that_differ_are_told_where_the_ids_do() -> None:
    base = sweep("s1", {"c1": 1.0}, settings={"protocol.rounds": 5, "backend.preload": ["x"]})
    own = sweep("s2", {"c2": 1.0}, settings={"protocol.rounds": 10, "backend.preload": ["y"], "k": 1})
    assert against(own, base).settings == {"protocol.rounds": ((5, 10),), "k": ((None, 1),)}
    assert against(dataclasses.replace(own, rows=base.rows), base).settings == {}


def test_other_threads_and_hosts_are_not_comparable_and_other_versions_are_only_told() -> None:
    base, own = (
        sweep(id, seconds, settings={"backend.threads": 1}, environment={"versions": {"torch": version}})
        for id, seconds, version in (("s1", {"c1": 1.0}, "2.12"), ("s2", {"c2": 2.0}, "2.13"))
    )
    assert verdicts(set_against(own, base, "last")) == {"c2": "worse"}
    assert against(own, base).software == {"torch": ("2.12", "2.13")}
    threads = set_against(dataclasses.replace(own, settings={"backend.threads": 2}), base, "last")
    assert verdicts(threads) == {"c2": "not_comparable"}
    assert threads.rows[0].differs == {"threads": (1, 2)}
    moved = dataclasses.replace(base, rows=(dataclasses.replace(base.rows[0], environment={**KEY, "host": "b"}),))
    assert verdicts(set_against(moved, base, "last")) == {"c1": "not_comparable"}


OWN_THRESHOLD = {"latency/forward": 0.3}


@pytest.mark.parametrize(
    ("own", "base", "verdict"),
    [
        ({"threshold": None}, {"threshold": 0.2}, "same"),
        ({"thresholds": OWN_THRESHOLD}, {"threshold": 0.2}, "same"),
        ({}, {"threshold": 0.2, "thresholds": OWN_THRESHOLD}, "worse"),
        ({"threshold": None}, {"threshold": 0.2, "thresholds": OWN_THRESHOLD}, "same"),
    ],
)
def test_the_thresholds_are_the_new_sweeps_else_the_old_ones(
    own: dict[str, Any], base: dict[str, Any], verdict: Verdict
) -> None:
    """Of a difference of 10 %; the threshold of the new sweep is 5 % unless it has another."""
    found = set_against(sweep("s2", {"c1": 1.1}, **own), sweep("s1", {"c1": 1.0}, **base), "last")
    assert verdicts(found) == {"c1": verdict}


def test_a_comparison_survives_json() -> None:
    base = sweep("s1", {"c1": 1.0, "c2": 1.0}, settings={"a": 1})
    own = set_against(sweep("s2", {"c1": 1.0}, settings={"a": 2}), base, "last")
    for made in (own, comparison()):
        assert comparison_from(json.loads(json.dumps(made.to_dict()))) == made


def test_a_later_version_is_refused() -> None:
    data = json.loads(json.dumps(comparison().to_dict()))
    with pytest.raises(ValueError, match="newer than this sweeprof"):
        comparison_from({**data, "schema_version": 99})


@pytest.mark.parametrize("data", [{}, 3, {"rows": []}, {"axes": [], "metrics": [1], "rows": []}])
def test_what_is_no_comparison_is_said_to_be_none(data: Any) -> None:
    with pytest.raises(ValueError, match="is not a comparison of sweeprof"):
        comparison_from(data)


values = st.one_of(st.integers(0, 2), st.none(), st.text(max_size=2), st.lists(st.integers(0, 1), max_size=2))
parts = st.dictionaries(st.sampled_from("xy"), values)
configs = st.lists(st.dictionaries(st.sampled_from("abc"), st.one_of(values, parts)), max_size=4)


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


REQUESTED = {"threads": 1, "cudnn.benchmark": False, "device": "cuda", "only requested": 3}


def test_only_what_both_sides_know_and_differs_deviates() -> None:
    actual = {"threads": 2, "cudnn.benchmark": False, "device": "cuda:0", "only actual": 4}
    assert deviations_of(REQUESTED, actual) == {"threads": (1, 2)}
    assert deviations_of(REQUESTED, {}) == deviations_of({}, actual) == {}


@pytest.mark.parametrize(
    ("requested", "actual", "deviates"),
    [("cuda", "cuda:1", False), ("cuda:0", "cuda:1", True), ("cuda", "cpu", True), ("cpu", "cpu", False)],
)
def test_any_gpu_is_a_gpu_but_a_numbered_one_is_that_one(requested: str, actual: str, deviates: bool) -> None:
    assert bool(deviations_of({"device": requested}, {"device": actual})) == deviates


def test_a_warning_names_the_setting_and_both_values() -> None:
    (threads, inductor) = warnings_of({"threads": (1, 2), "inductor": ("", "max_autotune = True")})
    assert threads.text == "threads was 2 while the model ran, and 1 was requested: not comparable"
    assert "backend.threads" in threads.advice
    assert inductor.text.startswith("inductor was max_autotune = True while the model ran, and nothing was requested")
    assert inductor.advice == "keep the model from changing inductor"


def of_host(settings: dict[str, Any], deviations: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"host": "h", "settings": settings, **({"deviations": deviations} if deviations else {})}


def test_what_deviates_is_comparable_with_nothing_not_even_with_what_deviates_alike() -> None:
    clean, changed = key_of([of_host({"threads": 1})]), key_of([of_host({"threads": 2}, {"threads": [1, 2]})])
    assert DEVIATION not in clean
    assert differing(clean, clean) == {}
    assert differing(changed, clean) == {DEVIATION: (AS_REQUESTED, "threads 2 instead of 1")}
    assert differing(clean, changed) == {DEVIATION: ("threads 2 instead of 1", AS_REQUESTED)}
    assert set(differing(changed, changed)) == {DEVIATION}


def test_what_changed_between_rounds_is_comparable_with_nothing_either() -> None:
    rounds = [of_host({"TF32": value, "threads": 1}) for value in (False, True, False)]
    assert key_of(rounds)[DEVIATION] == "TF32 false and true"
    (warning,) = unsteady_warnings(rounds)
    assert warning.text == "TF32 was not the same in all passes and rounds: false, true"
    assert unsteady_warnings(rounds[:1]) == unsteady_warnings([{}, {"settings": None}]) == ()
