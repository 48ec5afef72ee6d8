"""What is wrong with what a sweep says of comparing, told before anything is measured."""

from __future__ import annotations

import pytest

from sweeprof.plan.comparing import compare_problems
from sweeprof.results.measurement import MetricInfo

METRICS = (
    MetricInfo("latency/forward", "s", "lower", "x"),
    MetricInfo("quality/accuracy", "ratio", "higher", "x"),
)


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
