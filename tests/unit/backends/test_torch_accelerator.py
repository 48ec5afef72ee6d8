"""Measurements of an accelerator: on one that is simulated through torch's interface for devices, and by a scripted clock."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import sweeprof
from support import simulated_device
from support.simulated_device import COPY_S
from sweeprof.backends.fake import FakeBackend, FakeModel
from sweeprof.backends.torch import weights
from sweeprof.backends.torch.model import EventClock, TorchModel
from sweeprof.backends.torch.training import Steps
from sweeprof.datasets.arrays import Synthetic
from sweeprof.measuring import timing
from sweeprof.measuring.inputs import Inputs, TensorSpec
from sweeprof.measuring.timing import Timing, measure, measure_queued, measure_training
from sweeprof.metrics import latency
from sweeprof.metrics.memory import process_peak
from sweeprof.metrics.metric import Missing
from sweeprof.passes.memory import Memory
from sweeprof.paths import WEIGHTS
from sweeprof.profiling.conformance import CHECKS
from sweeprof.profiling.session import BuiltSession
from sweeprof.results.record import Protocol
from sweeprof.targets import instantiate

KIB = 1024
on_the_simulated_device = pytest.mark.skipif(
    shutil.which("g++") is None, reason="the device is compiled by g++: make compiler"
)


def test_weights_for_an_accelerator_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module has the values that the file has, and what it writes to them is not in the file."""
    monkeypatch.setenv(WEIGHTS, str(tmp_path))
    monkeypatch.setattr(weights, "LONG_S", 0)
    build = partial(instantiate, {"_target_": "torch.nn.BatchNorm1d", "num_features": 5})
    numbers = torch.get_rng_state()
    made = weights.built_once(build, is_mapped=True)
    (file,) = tmp_path.glob("*.bin")
    content = bytearray(file.read_bytes())
    content[:4] = np.float32(3).tobytes()
    file.write_bytes(content)
    torch.set_rng_state(numbers)
    mapped = weights.built_once(build, is_mapped=True)
    expected = {**made.state_dict(), "weight": torch.tensor([3.0, 1, 1, 1, 1])}
    found = mapped.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    with torch.no_grad():
        mapped.weight.fill_(7)  # type: ignore[operator]
    assert mapped.weight.sum() == 35  # type: ignore[operator]
    assert file.read_bytes() == content


def printed(*words: str, **environment: str) -> Any:
    """What a process with the simulated device prints last."""
    command = [sys.executable, *words, str(simulated_device.library())]
    folder, further = simulated_device.SOURCE.parents[1], os.environ | environment
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False, env=further)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def seen() -> Any:
    return printed("-m", "support.simulated_device")


@pytest.mark.slow
@on_the_simulated_device
def test_transfers_take_as_long_as_the_device_takes(seen: Any) -> None:
    times = seen["times"]
    assert COPY_S <= times["latency/h2d"] < 10 * COPY_S
    assert COPY_S <= times["latency/d2h"] < 10 * COPY_S
    assert times["latency/total"] == pytest.approx(
        times["latency/h2d"] + times["latency/forward"] + times["latency/d2h"], rel=0.01
    )


@pytest.mark.slow
@on_the_simulated_device
def test_memory_before_after_and_at_the_peak(seen: Any) -> None:
    memory = {name.removeprefix("memory/cuda_").removesuffix("_bytes"): size for name, size in seen["memory"].items()}
    weights_and_batch = 2 * 64 * KIB
    assert memory["allocated_pre"] == memory["allocated_post"] == weights_and_batch
    assert memory["allocated_peak"] == weights_and_batch + 2 * 64 * KIB  # two results are alive at once
    assert memory["device_peak"] >= memory["allocated_post"]
    # Without the copies of the batch, the buffers and the parameters by which the caller's are kept.
    for by_torch, by_sweeprof in seen["peaks"].values():
        assert by_sweeprof == pytest.approx(by_torch, rel=0.01)
    assert "the driver does not tell" in seen["memory_reason"]
    assert "the step was not queued before the device began" in seen["device_reason"]  # it works while the host waits


@pytest.mark.slow
@on_the_simulated_device
def test_memory_of_each_line(seen: Any) -> None:
    found = {source: (allocated, peak) for source, _, allocated, peak in seen["lines"]}
    assert seen["lines_device"] == "simulated:0"
    assert found["y = x @ self.weight"] == (64 * KIB, 64 * KIB)
    assert found["z = y + y"] == (64 * KIB, 64 * KIB)
    assert found["del y"] == (0, 0)
    assert found["return z * 2"] == (64 * KIB, 64 * KIB)
    decorated = {source: (hits, allocated) for source, hits, allocated in seen["decorated"]}
    assert decorated["y = x * 2"] == decorated["return y + 1"] == (1, 64 * KIB)


@pytest.mark.slow
@on_the_simulated_device
def test_the_doctors_checks_pass(seen: Any) -> None:
    assert seen["devices"] == ["cpu", "simulated", "simulated:0"]
    assert seen["kernel"]["median"] > 0
    assert seen["kernel_bytes"] == 2 * 4 * 64 * 64  # the matrix and its product
    assert 0.5 < seen["layers"] < 2
    assert set(seen["device_times"]) == {None}  # the profiler records no times of such a device
    found = {name: outcome for name, (outcome, _) in seen["conformance"].items()}
    texts = {name: text for name, (_, text) in seen["conformance"].items()}
    impossible = {"times of operators", "memory of the process"}
    assert found == {name: "not possible" if name in impossible else "passed" for name in CHECKS}, texts
    assert "host to device" in texts["times of transfers"]
    assert texts["memory of source lines"].endswith(" by the lines of a forward")
    assert "the driver does not tell" in texts["memory of the process"]


TRIAL = """
import json, sys
from pathlib import Path
from support import simulated_device
device = simulated_device.register(Path(sys.argv[1]))
from sweeprof.backends.torch.adapter import TorchBackend
from sweeprof.datasets.arrays import Synthetic
from sweeprof.profiling.session import BuiltSession
session = BuiltSession(
    backend=TorchBackend(), build=simulated_device.Net, dataset=Synthetic([128]), batch_size=128, device="simulated"
)
print(json.dumps(session.run("memory").to_dict()))
"""


@pytest.mark.slow
@on_the_simulated_device
def test_a_trial_measures_what_the_model_adds_to_the_device_and_not_to_the_host() -> None:
    memory = Memory.from_dict(printed("-c", TRIAL, OPENBLAS_NUM_THREADS="1"))
    assert memory.not_added is None
    assert memory.added_bytes == 4 * 64 * KIB  # the weights, the batch, and two results that are alive at once
    assert memory.device == "simulated"
    peak = process_peak.function(memory)
    assert isinstance(peak, Missing)
    assert peak.reason == (
        "memory: that of the process on simulated is not known: simulated: only the driver of NVIDIA GPUs is read"
    )


# The clock of an accelerator, on a scripted device: work is queued by calls and done later


BARE: dict[str, Any] = {"warmup_steps": 0, "warmup_s": 0, "sample_s": 0, "min_samples": 1, "min_s": 0, "max_s": 1e5}
QUEUEING = 0.25
"""Seconds that a call keeps the host."""


class Device:
    """Host and device have their own time; the device works off what the host queues."""

    def __init__(self) -> None:
        self.host = self.done = 0.0
        self.waits: list[float] = []
        """How long the host waited, once for each time that it did."""

    def queue(self, seconds: float) -> None:
        self.host += QUEUEING
        self.done = max(self.done, self.host) + seconds

    def record(self) -> Event:
        return Event(self, max(self.done, self.host))


class Event:
    """As torch's: reached when the device is; ``begin.elapsed_time(end)`` in milliseconds."""

    def __init__(self, device: Device, at: float) -> None:
        self.device, self.at = device, at

    def query(self) -> bool:
        return self.at <= self.device.host

    def synchronize(self) -> None:
        if self.at > self.device.host:
            self.device.waits.append(self.at - self.device.host)
            self.device.host = self.at

    def elapsed_time(self, end: Event) -> float:
        assert max(self.at, end.at) <= self.device.host, "asked before the device had reached it"
        return 1e3 * (end.at - self.at)


class Step:
    """Forward, backward and update of 2, 8 and 4 seconds."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.waited: list[int] = []

    def forward(self) -> str:
        self.device.queue(2.0)
        return "loss"

    def backward(self, loss: str) -> None:
        assert loss == "loss"
        self.device.queue(8.0)

    def update(self) -> None:
        self.device.queue(4.0)
        self.waited.append(len(self.device.waits))


class DeviceClock(EventClock):
    """With the scripted host's own time; the device is occupied by units of so many seconds."""

    def __init__(self, device: Device, unit_s: float = 0.001) -> None:
        super().__init__(device.record, lambda units: device.queue(units * unit_s), round(1000 / unit_s))
        self.now = lambda: device.host


def test_a_training_step_waits_at_its_end_alone() -> None:
    device = Device()
    step = Step(device)
    timing = measure_training(step, Protocol(**{**BARE, "min_samples": 3}), DeviceClock(device))
    assert timing.phases == {"forward": (2.25,) * 3, "backward": (8.0,) * 3, "update": (4.0,) * 3}
    assert timing.samples == (14.25,) * 3  # the host's own: until the device was done
    assert len(step.waited) == 5  # the first step, one that calibrates, three samples
    assert step.waited == [0, 3, 6, 9, 12]  # before a step's last phase is queued the host never waits


# The time of the device alone: the step is queued while a kernel keeps the device occupied


BUSY_S = 0.05
"""Of each of three kernels, which take the host five times as long to queue."""


def three_kernels(device: Device) -> None:
    for _ in range(3):
        device.queue(BUSY_S)


def queued(
    step: Callable[[Device], object], monkeypatch: pytest.MonkeyPatch, unit_s: float = 0.001
) -> tuple[Device, tuple[float, ...]]:
    """Times of a step, on a device that may be occupied for long."""
    monkeypatch.setattr(timing, "MOST_OCCUPIED_S", 100.0)
    device = Device()
    return device, measure_queued(lambda: step(device), Protocol(**BARE), DeviceClock(device, unit_s))


@pytest.mark.parametrize("unit_s", [0.001, 1000.0])
def test_the_time_of_the_device_has_no_waiting_for_the_host(monkeypatch: pytest.MonkeyPatch, unit_s: float) -> None:
    """Whether a unit of what occupies the device is one cycle or a product that is longer than the step."""
    device = Device()

    def synchronised() -> None:
        three_kernels(device)
        device.record().synchronize()

    wall = measure(synchronised, Protocol(**BARE), DeviceClock(device))
    assert wall.samples == pytest.approx((3 * QUEUEING + BUSY_S,))
    _, seconds = queued(three_kernels, monkeypatch, unit_s)
    assert seconds == pytest.approx((3 * BUSY_S,))


def test_a_kernel_that_is_longer_than_queueing_it_takes_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, seconds = queued(lambda device: device.queue(8.0), monkeypatch)
    assert seconds == pytest.approx((8.0,))


def test_a_step_that_waits_for_the_device_has_no_time_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(device: Device) -> None:
        three_kernels(device)
        device.record().synchronize()

    with pytest.raises(sweeprof.Unsupported, match=r"it waits for the device, as \.item\(\) does"):
        queued(waiting, monkeypatch)


def test_a_step_that_is_slower_to_queue_the_second_time_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def slower(device: Device) -> None:
        calls.append(1)
        for _ in range(3 if len(calls) == 1 else 8):
            device.queue(BUSY_S)

    _, seconds = queued(slower, monkeypatch)
    assert seconds == pytest.approx((8 * BUSY_S,))
    assert len(calls) == 3


class OnDevice(FakeBackend):
    """Its device works for half a second of a step."""

    def device_times(self, model: object, work: object, protocol: Protocol) -> tuple[float, ...]:
        return (0.5, 0.25, 0.5)


@pytest.mark.parametrize(("step_s", "share"), [(1.0, "50%"), (0.625, None)])
def test_a_device_that_waits_for_the_host_is_told_of(step_s: float, share: str | None) -> None:
    model = partial(FakeModel, step_s=step_s)
    session = BuiltSession(backend=OnDevice(), build=model, dataset=Synthetic([4]), batch_size=2, device="cuda")
    found = cast("Timing", session.run("timing"))
    assert found.device_s == (0.5, 0.25, 0.5)
    assert found.median_s == pytest.approx(step_s)
    told = [warning for warning in found.warnings if warning.code == "launch_bound"]
    if share is None:
        assert told == []
        return
    assert f"works in {share} of the step" in told[0].text
    assert told[0].advice.startswith("raise batch_size, compile the model (backend=torch_compile)")
    (shown,) = [w for w in latency.forward.function((found,)).warnings if w.code == "launch_bound"]
    assert shown == told[0]


def test_waiting_and_moving_name_the_models_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two accelerators, waiting for the current one would wait for the wrong one."""
    waited: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device=None: waited.append(device))
    device = torch.device("meta")  # of a kind that is not the host's
    model = TorchModel(nn.Linear(3, 2, device=device), device)
    inputs = Inputs((TensorSpec((4, 3)),))
    with model.stepping(model.put(inputs)) as step:
        outputs = step()
        moves = model.transfers(inputs, outputs)
    assert waited == [device]
    assert list(moves) == ["h2d", "d2h"]
    moves["h2d"]()
    assert waited == [device, device]


# Steps: whole, and done when their own device is


def test_a_whole_step_waits_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device=None: waited.append(device))
    second = torch.device("cuda:1")
    Steps(second, lambda: waited.append("forward")).whole()
    Steps(torch.device("cpu"), lambda: waited.append("on the host")).whole()
    assert waited == ["forward", second, "on the host"]
