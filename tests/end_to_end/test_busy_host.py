"""Layer times while two other processes keep the processors busy: no layer is shown with 0, and a sum that is off is marked."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import sweeprof
from support.planning import composed_of
from sweeprof.results.layer_times import OUTSIDE, LayerTimes, PhaseTimes

QUICK = (
    "metrics=layers",
    "batch_size=2",
    "protocol=quick",
    "protocol.warmup_s=0.02",
    "protocol.min_s=0.02",
    "protocol.max_s=1",
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


@dataclass
class Seen:
    """The sums over the whole of every phase, and whether each was marked."""

    ratios: list[float] = field(default_factory=list)
    marked: int = 0

    def add(self, times: LayerTimes) -> None:
        """Check one result."""
        for call, seconds in zip(times.calls, times.seconds, strict=True):
            if call.path != OUTSIDE:
                assert seconds.forward > 0, call.path
                assert seconds.backward is None or seconds.backward > 0, (call.path, call.backward)
        self._add_phase(sum(s.forward_self for s in times.seconds), times.forward, times, "forward")
        if times.backward is not None:
            self._add_phase(sum(s.backward_self or 0 for s in times.seconds), times.backward, times, "backward")

    def _add_phase(self, parts: float, phase: PhaseTimes, times: LayerTimes, name: str) -> None:
        ratio = parts / statistics.median((phase.plain or phase.probed)[times.warmup :])
        is_marked = any(f" of the {name} with" in warning.text for warning in times.warnings)
        assert is_marked or 0.9 <= ratio <= 1.1, (name, ratio)
        self.ratios.append(ratio)
        self.marked += is_marked

    def __str__(self) -> str:
        low, middle, high = min(self.ratios), statistics.median(self.ratios), max(self.ratios)
        off = sum(not 0.9 <= ratio <= 1.1 for ratio in self.ratios)
        return f"{len(self.ratios)} phases: sum over whole {low:.2f}, {middle:.2f}, {high:.2f}; {off} off, {self.marked} marked"


def _sessions(count: int) -> Seen:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 10))
    inputs = torch.rand(8, 64)
    seen = Seen()
    for _ in range(count):
        with sweeprof.session(net) as session:
            net(inputs).sum().backward()
        seen.add(session.times)
    return seen


def _sweeps(count: int, backend: str, models: tuple[str, ...], modes: tuple[str, ...]) -> Seen:
    seen = Seen()
    chosen = [(f"model={model}", f"mode={mode}", f"backend={backend}") for model in models for mode in modes]
    configs = [composed_of(*words, *QUICK) for words in chosen]
    for _ in range(count):
        for config in configs:
            times = sweeprof.Profiler.from_config(config).seen("layer_times")
            assert isinstance(times, LayerTimes)
            seen.add(times)
    return seen


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("sessions", "sweeps", "models"),
    [
        pytest.param(5, 1, ("lenet5",), marks=pytest.mark.slow),
        pytest.param(50, 20, ("lenet5", "mlp", "digits_resnet"), marks=pytest.mark.thorough),
    ],
)
def test_sessions_and_sweeps_show_no_0_and_mark_sums_that_are_off(
    sessions: int, sweeps: int, models: tuple[str, ...]
) -> None:
    print(f"load {os.getloadavg()[0]:.1f}\nsessions:", _sessions(sessions))
    print("sweeps:", _sweeps(sweeps, "torch", models, ("inference", "training")))


@pytest.mark.thorough
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("backend", "modes"), [("tensorflow", ("inference", "training")), ("onnxruntime", ("inference",))]
)
def test_sweeps_of_other_backends_show_no_0_and_mark_sums_that_are_off(backend: str, modes: tuple[str, ...]) -> None:
    # An earlier test may have started TensorFlow in this process, after which it takes no number of threads.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        print(f"{backend}:", process.submit(_sweeps, 3, backend, ("lenet5",), modes).result())
