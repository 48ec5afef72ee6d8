"""The fake backend does what it is told."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from sweeprof.backends.fake import FakeBackend, FakeModel
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig

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
        (FakeModel(step_s=0.5), 1, [0.5, 0.5, 0.5]),
        (FakeModel(step_s=2), 1, [2, 2, 2]),
        (FakeModel(step_s=[0.5, 0.25]), 1, [0.5, 0.25, 0.5]),
        (FakeModel(step_s=0.5, first_step_s=4.0), 1, [4.0, 0.5, 0.5]),
        (FakeModel(step_s=[0.5, 0.25], first_step_s=4.0), 1, [4.0, 0.5, 0.25]),
        (FakeModel(step_s=0.5, per_sample_s=0.25), 1, [1.0, 1.0, 1.0]),
        (FakeModel(step_s=0.5, first_step_s=1.0, per_sample_s=0.25), 2, [3.0, 2.0, 2.0]),
    ],
)
def test_steps_last_as_scripted(model: FakeModel, slowdown: float, expected: list[float]) -> None:
    assert durations(model, 3, slowdown=slowdown) == expected


def test_the_phases_of_a_training_step_last_as_scripted() -> None:
    backend = FakeBackend(slowdown=2.0)
    loaded = backend.load(lambda: FakeModel(step_s=0.5, backward_s=1.0, update_s=0.25), "cpu", None)
    clock, seen = loaded.clock(), []
    with backend.training(loaded, loaded.put(Inputs((BATCH,))), None, TrainingConfig()) as step:
        for phase in (step.forward, lambda: step.backward(None), step.update):
            begin = clock.mark()
            phase()
            seen.append(clock.between(begin, clock.mark()))
    assert seen == [1.0, 2.0, 0.5]


def test_transfers_last_as_scripted() -> None:
    loaded = FakeBackend().load(lambda: FakeModel(transfer_s=0.125), "cpu", None)
    for move in loaded.transfers(Inputs((BATCH,)), None).values():
        move()
    assert loaded.clock().now() == 0.25
    assert FakeBackend().load(FakeModel, "cpu", None).transfers(Inputs((BATCH,)), None) == {}


def test_loading_takes_the_models_bytes_and_the_batchs_of_one_backend() -> None:
    backend, other = FakeBackend(baseline_bytes=1000), FakeBackend()
    loaded, beside = backend.load(lambda: FakeModel(bytes=10), "cpu", None), other.load(FakeModel, "cpu", None)
    loaded.put(Inputs((BATCH,)))
    loaded.clock().advance(1.0)
    assert backend.memory_meter().rss() == 1000 + 10 + BATCH.nbytes
    assert other.memory_meter().rss() == other.baseline_bytes + FakeModel().bytes
    assert beside.clock().now() == 0.0


def outputs(model: FakeModel, batch: Any = BATCH) -> Any:
    loaded = FakeBackend().load(lambda: model, "cpu", None)
    with loaded.stepping(loaded.put(Inputs((batch,)))) as step:
        return loaded.host_outputs(step())


def test_outputs_are_a_linear_function_of_each_sample() -> None:
    found = outputs(FakeModel(classes=4))
    assert (found.shape, found.dtype) == ((2, 4), np.float32)
    np.testing.assert_allclose(outputs(FakeModel(classes=4), 2 * BATCH), 2 * found, rtol=1e-6)
    np.testing.assert_allclose(outputs(FakeModel(classes=4), BATCH[1:]), found[1:], rtol=1e-6)
    np.testing.assert_allclose(outputs(FakeModel(offset=0.5)) - outputs(FakeModel()), 0.5, rtol=1e-5)


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


@pytest.mark.parametrize(("event", "code"), [("exit", 3), ("segfault", -11), ("kill", -9), ("allocate", 1)])
def test_endings_are_real(event: str, code: int) -> None:
    """Allocating meets a limit."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); "
    program = f"{limit}from sweeprof.backends.fake import happen; happen({event!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert ("MemoryError" in done.stderr) == (event == "allocate")
