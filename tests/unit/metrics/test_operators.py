"""The operators' metrics from a table written by hand, and reasons where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from sweeprof.metrics import compute as metrics
from sweeprof.metrics.evaluate import evaluate
from sweeprof.metrics.metric import Missing, builtin_metrics
from sweeprof.metrics.select import metric_set, select
from sweeprof.results.measurement import Measurement
from sweeprof.results.observations import OperatorRow, Operators
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
    assert found["operators/self_s"].value == pytest.approx(5e-6)
    assert found["operators/python_share"].value == pytest.approx(3 / 8)
    assert found["operators/self_s"].estimator == "mean of 3 traced steps"


def test_operators_of_two_threads_leave_no_negative_share() -> None:
    assert value(metrics.python_share, Operators("training", (ADDMM, COPY), 1, 1e-6)).value == 0


def test_without_operators_there_are_reasons() -> None:
    for metric in (metrics.self_s, metrics.python_share):
        assert value(metric, EMPTY) == Missing("no operator of the framework ran in the step")
