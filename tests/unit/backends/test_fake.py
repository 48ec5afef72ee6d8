"""The fake backend does what it is told."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from sweeprof.backends import CAPABILITIES, AnyArray
from sweeprof.backends.fake import FakeBackend, FakeClock, FakeMemory, FakeModel, happen
from sweeprof.counting.formulas import DEFAULTS
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import TrainingConfig

BATCH = np.arange(6, dtype=np.float32).reshape(2, 3)


def durations(model: FakeModel, steps: int, backend: FakeBackend | None = None, batch: AnyArray = BATCH) -> list[float]:
    backend = backend or FakeBackend()
    loaded = backend.load(lambda: model, "cpu", None)
    seen = []
    with loaded.stepping(loaded.put(Inputs((batch,)))) as step:
        for _ in range(steps):
            begin = loaded.clock().now()
            step()
            seen.append(loaded.clock().now() - begin)
    return seen


def test_it_has_a_method_or_a_gap_for_every_capability() -> None:
    has = {method for method in CAPABILITIES if FakeBackend.has(method)}
    assert has == {"analyze", "training", "generating"}
    assert has.isdisjoint(FakeBackend.gaps)
    assert has | set(FakeBackend.gaps) == set(CAPABILITIES)
    assert FakeBackend().devices() == ["cpu"]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (FakeModel(step_s=0.5), [0.5, 0.5, 0.5]),
        (FakeModel(step_s=2), [2, 2, 2]),
        (FakeModel(step_s=[0.5, 0.25]), [0.5, 0.25, 0.5]),
        (FakeModel(step_s=0.5, first_step_s=4.0), [4.0, 0.5, 0.5]),
        (FakeModel(step_s=[0.5, 0.25], first_step_s=4.0), [4.0, 0.5, 0.25]),
        (FakeModel(step_s=0.5, per_sample_s=0.25), [1.0, 1.0, 1.0]),
    ],
)
def test_steps_last_as_scripted(model: FakeModel, expected: list[float]) -> None:
    assert durations(model, 3) == expected


def test_a_slow_variant_multiplies_every_step() -> None:
    model = FakeModel(step_s=0.5, first_step_s=1.0, per_sample_s=0.25)
    assert durations(model, 2, FakeBackend(slowdown=2.0)) == [3.0, 2.0]


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


def test_the_clock_stands_still_until_it_is_told() -> None:
    clock = FakeClock()
    assert (clock.now(), clock.now()) == (0.0, 0.0)
    clock.advance(2.5)
    assert clock.now() == 2.5
    assert clock.resolution == 1e-9


def test_memory_has_a_peak() -> None:
    memory = FakeMemory(100)
    memory.allocate(50)
    memory.allocate(-30)
    assert (memory.rss(), memory.rss_peak()) == (120, 150)
    memory.reset_peak()
    assert memory.rss_peak() == 120


def test_loading_takes_the_models_bytes_and_the_batchs() -> None:
    backend = FakeBackend(baseline_bytes=1000)
    backend.load(lambda: FakeModel(bytes=10), "cpu", None).put(Inputs((BATCH,)))
    assert backend.memory_meter().rss() == 1000 + 10 + BATCH.nbytes


def test_two_backends_share_nothing() -> None:
    first, second = FakeBackend(), FakeBackend()
    one, other = (backend.load(FakeModel, "cpu", None) for backend in (first, second))
    one.clock().advance(1.0)
    first.memory_meter().allocate(1)
    assert other.clock().now() == 0.0
    assert second.memory_meter().rss() == second.baseline_bytes + FakeModel().bytes


def outputs(model: FakeModel, batch: Any = BATCH) -> Any:
    loaded = FakeBackend().load(lambda: model, "cpu", None)
    with loaded.stepping(loaded.put(Inputs((batch,)))) as step:
        return loaded.host_outputs(step())


def test_outputs_are_a_linear_function_of_each_sample() -> None:
    found = outputs(FakeModel(classes=4))
    assert (found.shape, found.dtype) == ((2, 4), np.float32)
    np.testing.assert_allclose(outputs(FakeModel(classes=4), 2 * BATCH), 2 * found, rtol=1e-6)
    np.testing.assert_allclose(outputs(FakeModel(classes=4), BATCH[1:]), found[1:], rtol=1e-6)


def test_an_offset_makes_outputs_disagree() -> None:
    np.testing.assert_allclose(outputs(FakeModel(offset=0.5)) - outputs(FakeModel()), 0.5, rtol=1e-5)


@pytest.mark.parametrize("event", ["on_build", "on_step"])
def test_events_happen_where_they_are_told_to(event: str) -> None:
    arguments: dict[str, Any] = {event: "raise"}
    model = FakeModel(**arguments)
    loads = FakeBackend()
    if event == "on_build":
        with pytest.raises(ValueError, match="told to raise"):
            loads.load(lambda: model, "cpu", None)
        with pytest.raises(ValueError, match="told to raise"):
            loads.analyze(lambda: model, Inputs((BATCH,)), None, DEFAULTS)
    else:
        with pytest.raises(ValueError, match="told to raise"):
            durations(model, 1)


def test_running_out_of_memory_is_recognised() -> None:
    with pytest.raises(MemoryError) as raised:
        happen("memory_error")
    assert FakeBackend().is_out_of_memory(raised.value)
    assert not FakeBackend().is_out_of_memory(ValueError("x"))


@pytest.mark.parametrize(("event", "code"), [("exit", 3), ("segfault", -11), ("kill", -9)])
def test_endings_are_real(event: str, code: int) -> None:
    program = f"from sweeprof.backends.fake import happen; happen({event!r})"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == code


def test_allocating_meets_a_limit() -> None:
    program = (
        "import resource; from sweeprof.backends.fake import happen; "
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); happen('allocate')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "MemoryError" in done.stderr


def test_what_is_to_happen_waits_for_its_step() -> None:
    assert durations(FakeModel(step_s=0.5, on_step="raise", calm_steps=2), 2) == [0.5, 0.5]
    with pytest.raises(ValueError, match="told to raise"):
        durations(FakeModel(on_step="raise", calm_steps=2), 3)
