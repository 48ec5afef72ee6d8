"""Trials that ask for more threads than there are processors."""

from __future__ import annotations

import dataclasses

import pytest

from support.plans import fake_plan
from sweeprof.results.record import PassName
from sweeprof.run.devices import oversubscription


@pytest.mark.parametrize(
    ("jobs", "threads", "passes", "text", "advice"),
    [
        (1, 8, ["quality"], None, None),
        (
            1,
            64,
            ["timing"],
            "backend.threads=64 asks for more than the 8 processors that this process may use",
            "backend.threads=8",
        ),
        (4, 2, ["quality", "timing"], None, None),
        (
            4,
            3,
            ["quality", "timing"],
            "4 trials of 3 threads ask for 12 of 8 processors",
            "parallel_trials=2, or fewer backend.threads",
        ),
        (
            9,
            1,
            ["quality"],
            "9 trials of 1 threads ask for 9 of 8 processors",
            "parallel_trials=8, or fewer backend.threads",
        ),
        (99, 3, ["timing"], None, None),
    ],
)
def test_more_threads_than_processors(
    jobs: int, threads: int, passes: list[PassName], text: str | None, advice: str | None
) -> None:
    plan = dataclasses.replace(fake_plan({"a": {}, "b": {}}, passes), parallel_trials=jobs)
    plan.combinations[1].config["backend"]["threads"] = threads
    warning = oversubscription(plan, 8)
    assert (warning and warning.text) == text
    assert (warning and warning.advice) == advice
    assert warning is None or warning.code == "oversubscribed"
