"""Jobs that ask for more threads than there are processors."""

from __future__ import annotations

import dataclasses

import pytest

from support.plans import fake_plan
from sweeprof.results.record import PassName
from sweeprof.run.devices import oversubscription


@pytest.mark.parametrize(
    ("jobs", "threads", "passes", "text"),
    [
        (1, 64, ["quality"], None),
        (4, 2, ["quality", "timing"], None),
        (4, 3, ["quality", "timing"], "4 trials of 3 threads ask for 12 of 8 processors"),
        (9, 1, ["quality"], "9 trials of 1 threads ask for 9 of 8 processors"),
        (99, 3, ["timing"], None),
    ],
)
def test_crowding(jobs: int, threads: int, passes: list[PassName], text: str | None) -> None:
    plan = dataclasses.replace(fake_plan({"a": {}, "b": {}}, passes), parallel_trials=jobs)
    plan.combinations[1].config["backend"]["threads"] = threads
    warning = oversubscription(plan, 8)
    assert (warning and warning.text) == text
    if warning:
        assert warning.code == "oversubscribed"
        assert warning.advice == f"parallel_trials={8 // threads}, or fewer backend.threads"
