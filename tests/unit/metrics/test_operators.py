"""The operators' metrics from a table written by hand, and reasons where there is none."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sweeprof.metrics import compute as metrics
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.metric import Estimate, Missing, builtin_metrics
from sweeprof.metrics.select import metric_set, select
from sweeprof.results.measurement import Measurement
from sweeprof.results.operators import OperatorRow, Operators
from sweeprof.results.record import Record

ADDMM = OperatorRow("a", "aten::addmm", "forward", 2.0, 3e-6, 4e-6, None, None, 96, 64)
AGAIN = OperatorRow("b", "aten::addmm", "backward", 1.0, 1e-6, 1e-6, None, None, None, 0)
COPY = OperatorRow("a", "aten::copy_", "forward", 1.0, 1e-6, 1e-6, None, None, None, 0)
FOUND = Operators("training", (ADDMM, COPY, AGAIN), 3, 8e-6)
EMPTY = Operators("inference", (), 3, 8e-6)


def measured(found: Operators) -> dict[str, Measurement]:
    """Every metric of the set, through the record as it is on disk."""
    record = Record("sweep", "combination", "operators", "ok", observations=found.to_dict())
    return evaluate(select(metric_set("operators")), [record], None, 1)


def value(metric: Any, found: Operators) -> Any:
    return metric({"operators": found})


def test_values_of_a_table_by_hand() -> None:
    found = measured(FOUND)
    assert list(found) == [name for name in builtin_metrics() if name.startswith("operators/")]
    assert found["operators/calls"].value == 4
    assert found["operators/kinds"].value == 2
    assert found["operators/self_s"].value == pytest.approx(5e-6)
    assert found["operators/slowest_share"].value == pytest.approx(4 / 5)
    assert found["operators/slowest_share"].detail["operator"] == "aten::addmm"
    assert found["operators/python_share"].value == pytest.approx(3 / 8)
    assert found["operators/self_s"].estimator == "mean of 3 traced steps"


def test_steps_that_differ_have_a_mean() -> None:
    rows = (dataclasses.replace(ADDMM, calls=4 / 3),)
    assert value(metrics.calls, Operators("inference", rows, 3, 1.0)).value == pytest.approx(4 / 3)


def test_on_an_accelerator_the_slowest_is_that_of_its_own_seconds() -> None:
    rows = tuple(dataclasses.replace(row, device_self_s=s) for row, s in ((ADDMM, 1.0), (COPY, 3.0)))
    found = value(metrics.slowest_share, Operators("inference", rows, 1, 9.0))
    assert isinstance(found, Estimate)
    assert (found.value, found.detail["operator"]) == (0.75, "aten::copy_")


def test_operators_of_two_threads_leave_no_negative_share() -> None:
    assert value(metrics.python_share, Operators("training", (ADDMM, COPY), 1, 1e-6)).value == 0


def test_without_operators_there_are_reasons() -> None:
    assert value(metrics.calls, EMPTY).value == 0
    assert value(metrics.kinds, EMPTY).value == 0
    for metric in (metrics.self_s, metrics.slowest_share, metrics.python_share):
        assert value(metric, EMPTY) == Missing("no operator of the framework ran in the step")


def test_operators_too_quick_for_the_clock_have_no_slowest() -> None:
    found = Operators("inference", (dataclasses.replace(ADDMM, self_s=0.0),), 1, 1.0)
    assert value(metrics.slowest_share, found) == Missing("no operator took a time that could be measured")
