"""Trials that ask for more threads than there are processors."""

from __future__ import annotations

import pytest

from support.plans import fake_plan
from sweeprof.run.locks import oversubscription


@pytest.mark.parametrize(
    ("threads", "text", "advice"),
    [
        (8, None, None),
        (64, "backend.threads=64 asks for more than the 8 processors that this process may use", "backend.threads=8"),
    ],
)
def test_more_threads_than_processors(threads: int, text: str | None, advice: str | None) -> None:
    plan = fake_plan({"a": {}, "b": {}}, ["timing"])
    plan.combinations[1].config["backend"]["threads"] = threads
    warning = oversubscription(plan, 8)
    assert (warning and warning.text) == text
    assert (warning and warning.advice) == advice
    assert warning is None or warning.code == "oversubscribed"
