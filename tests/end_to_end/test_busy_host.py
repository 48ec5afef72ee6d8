"""Layer times while two other processes keep the processors busy: no layer is shown with 0, and a sum that is off is marked."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import sweeprof
from support.planning import composed_of
from sweeprof.results.layer_times import OUTSIDE, LayerTimes, PhaseTimes

QUICK = (
    *("model=lenet5", "metrics=layers", "batch_size=2", "protocol=quick", "protocol.warmup_s=0.02"),
    *("protocol.min_s=0.02", "protocol.max_s=1"),
)


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes that never rest."""
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def check(times: LayerTimes) -> None:
    for call, seconds in zip(times.calls, times.seconds, strict=True):
        if call.path != OUTSIDE:
            assert seconds.forward > 0, call.path
            assert seconds.backward is None or seconds.backward > 0, (call.path, call.backward)
    check_phase(sum(s.forward_self for s in times.seconds), times.forward, times, "forward")
    if times.backward is not None:
        check_phase(sum(s.backward_self or 0 for s in times.seconds), times.backward, times, "backward")


def check_phase(parts: float, phase: PhaseTimes, times: LayerTimes, name: str) -> None:
    ratio = parts / statistics.median((phase.plain or phase.probed)[times.warmup :])
    is_marked = any(f" of the {name} with" in warning.text for warning in times.warnings)
    assert is_marked or 0.9 <= ratio <= 1.1, (name, ratio)


@pytest.mark.slow
@pytest.mark.usefixtures("busy")
def test_sessions_and_sweeps_show_no_0_and_mark_sums_that_are_off() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 10))
    inputs = torch.rand(8, 64)
    for _ in range(5):
        with sweeprof.session(net) as session:
            net(inputs).sum().backward()
        check(session.times)
    for mode in ("inference", "training"):
        times = sweeprof.Profiler.from_config(composed_of(f"mode={mode}", *QUICK)).seen("layer_times")
        assert isinstance(times, LayerTimes)
        check(times)
