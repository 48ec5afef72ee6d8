"""Measurements of an accelerator, on one that is simulated through torch's interface for devices: allocator, events, copies."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from support import simulated_device
from support.simulated_device import COPY_S
from sweeprof.profiling.conformance import CHECKS

KIB = 1024
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the device is compiled by g++: make compiler"),
]


@pytest.fixture(scope="module")
def seen() -> Any:
    command = [sys.executable, "-m", "support.simulated_device", str(simulated_device.library())]
    folder = simulated_device.SOURCE.parents[1]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_a_device_of_the_backend(seen: Any) -> None:
    assert seen["devices"] == ["cpu", "simulated", "simulated:0"]


def test_transfers_take_as_long_as_the_device_takes(seen: Any) -> None:
    times = seen["times"]
    assert COPY_S <= times["latency/h2d"] < 10 * COPY_S
    assert COPY_S <= times["latency/d2h"] < 10 * COPY_S
    assert times["latency/total"] == pytest.approx(
        times["latency/h2d"] + times["latency/forward"] + times["latency/d2h"], rel=0.01
    )


def test_memory_before_after_and_at_the_peak(seen: Any) -> None:
    memory = {name.removeprefix("memory/cuda_").removesuffix("_bytes"): size for name, size in seen["memory"].items()}
    weights_and_batch = 2 * 64 * KIB
    assert memory["allocated_pre"] == memory["allocated_post"] == weights_and_batch
    assert memory["allocated_peak"] == weights_and_batch + 2 * 64 * KIB  # two results are alive at once
    assert memory["device_peak"] >= memory["allocated_post"]
    assert "the driver does not tell" in seen["memory_reason"]


def test_memory_of_each_line(seen: Any) -> None:
    found = {source: (allocated, peak) for source, _, allocated, peak in seen["lines"]}
    assert seen["lines_device"] == "simulated:0"
    assert found["y = x @ self.weight"] == (64 * KIB, 64 * KIB)
    assert found["z = y + y"] == (64 * KIB, 64 * KIB)
    assert found["del y"] == (0, 0)
    assert found["return z * 2"] == (64 * KIB, 64 * KIB)
    decorated = {source: (hits, allocated) for source, hits, allocated in seen["decorated"]}
    assert decorated["y = x * 2"] == decorated["return y + 1"] == (1, 64 * KIB)


def test_times_of_layers_and_operators(seen: Any) -> None:
    assert 0.5 < seen["layers"] < 2
    assert set(seen["device_times"]) == {None}  # the profiler records no times of such a device


def test_the_doctors_checks_pass(seen: Any) -> None:
    found = {name: outcome for name, (outcome, _) in seen["conformance"].items()}
    texts = {name: text for name, (_, text) in seen["conformance"].items()}
    impossible = {name for name, outcome in found.items() if outcome == "not possible"}
    assert impossible == {"times of operators", "memory of the process"}
    assert {found[name] for name in set(found) - impossible} == {"passed"}, texts
    assert set(found) == set(CHECKS)
    assert "host to device" in texts["times of transfers"]
    assert texts["memory of source lines"].endswith(" by the lines of a forward")
    assert "the driver does not tell" in texts["memory of the process"]
