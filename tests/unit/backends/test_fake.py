"""The fake backend does what it is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sweeprof.backends.fake import FakeBackend, FakeModel
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.measuring.inputs import Inputs

BATCH = np.arange(6, dtype=np.float32).reshape(2, 3)


def durations(model: FakeModel, steps: int, **settings: Any) -> list[float]:
    loaded = FakeBackend(**settings).load(lambda: model, "cpu", None)
    seen = []
    with loaded.stepping(loaded.put(Inputs((BATCH,)))) as step:
        for _ in range(steps):
            begin = loaded.clock().now()
            step()
            seen.append(loaded.clock().now() - begin)
    return seen


@pytest.mark.parametrize(
    ("model", "slowdown", "expected"),
    [
        (FakeModel(step_s=[0.5, 0.25]), 1, [0.5, 0.25, 0.5]),
        (FakeModel(step_s=[0.5, 0.25], first_step_s=4.0), 1, [4.0, 0.5, 0.25]),
        (FakeModel(step_s=0.5, per_sample_s=0.25), 1, [1.0, 1.0, 1.0]),
        (FakeModel(step_s=0.5, first_step_s=1.0, per_sample_s=0.25), 2, [3.0, 2.0, 2.0]),
    ],
)
def test_steps_last_as_scripted(model: FakeModel, slowdown: float, expected: list[float]) -> None:
    assert durations(model, 3, slowdown=slowdown) == expected


def test_transfers_last_as_scripted() -> None:
    loaded = FakeBackend().load(lambda: FakeModel(transfer_s=0.125), "cpu", None)
    for move in loaded.transfers(Inputs((BATCH,)), None).values():
        move()
    assert loaded.clock().now() == 0.25
    assert FakeBackend().load(FakeModel, "cpu", None).transfers(Inputs((BATCH,)), None) == {}


def test_events_happen_where_they_are_told_to() -> None:
    model, backend = FakeModel(on_build="raise"), FakeBackend()
    with pytest.raises(ValueError, match="told to raise"):
        backend.load(lambda: model, "cpu", None)
    with pytest.raises(ValueError, match="told to raise"):
        backend.analyze(lambda: model, Inputs((BATCH,)), None, DEFAULTS)
    with pytest.raises(ValueError, match="told to raise"):
        durations(FakeModel(on_step="raise"), 1)
    late = FakeModel(step_s=0.5, on_step="raise", calm_steps=2)
    assert durations(late, 2) == [0.5, 0.5]
    with pytest.raises(ValueError, match="told to raise"):
        durations(late, 3)
