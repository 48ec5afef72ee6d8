"""Samples in turn and beside a calibration kernel, with a scripted clock: every figure is exact."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sweeprof.backends.fake import FakeBackend, FakeClock, FakeModel
from sweeprof.datasets.synthetic import Synthetic
from sweeprof.measuring.calibration import Kernel, KernelTimes, resembling
from sweeprof.measuring.timing import InterleavedRun, State, Timing, measure
from sweeprof.profiling.profiler import Profiler
from sweeprof.profiling.session import BuiltSession
from sweeprof.results.protocol import Protocol

BARE: dict[str, Any] = {"warmup_steps": 0, "warmup_s": 0, "sample_s": 0, "min_samples": 3, "min_s": 0, "max_s": 1e5}

BATCH = np.zeros((1, 3), np.float32)


class Scripted:
    """A step that takes the scripted seconds, and a kernel beside it, on one clock; notes what ran."""

    def __init__(self, steps: Sequence[float], kernels: Sequence[float] = (1.0,)) -> None:
        self.clock, self.ran = FakeClock(), ""
        self._steps, self._kernels = self._last_for_ever(steps), self._last_for_ever(kernels)

    @staticmethod
    def _last_for_ever(values: Sequence[float]) -> Iterator[float]:
        yield from values
        while True:
            yield values[-1]

    def step(self) -> None:
        self.ran += "s"
        self.clock.advance(next(self._steps))

    def run_kernel(self) -> None:
        self.ran += "k"
        self.clock.advance(next(self._kernels))

    @property
    def kernel(self) -> Kernel:
        return Kernel("matmul", self.run_kernel)


class Table:
    """Gives the turns that it is told to, and notes what it hears."""

    interleaved_run = InterleavedRun("d1", ("cb",))

    def __init__(self, turns: Sequence[int], sample_s: float | None = None) -> None:
        self._turns, self._sample_s = iter(turns), sample_s
        self.heard: list[float | State] = []

    def ready(self, sample_s: float) -> float:
        self.heard.append(sample_s)
        return sample_s if self._sample_s is None else self._sample_s

    def take(self) -> int | None:
        return next(self._turns, None)

    def leave(self, state: State) -> None:
        self.heard.append(state)


def test_before_each_sample_the_kernel_runs_and_a_step_that_does_not_count() -> None:
    """A first step, one to find the loops, the kernel likewise, then kernel, leading step, sample."""
    script = Scripted([8.0, 0.5, 64.0, 0.25, 64.0, 0.5, 64.0, 0.75], kernels=[16.0, 2.0, 1.0, 4.0])
    timing = measure(script.step, Protocol(**BARE), script.clock, kernel=script.kernel)
    assert script.ran == "ss" + "k" + "kss" * 3
    assert timing.samples == (0.25, 0.5, 0.75)
    assert timing.kernel == KernelTimes("matmul", 1, (2.0, 1.0, 4.0))


def test_the_kernels_sample_is_as_long_as_the_models() -> None:
    script = Scripted([0.5], kernels=[0.125])
    timing = measure(script.step, Protocol(**{**BARE, "sample_s": 1.0}), script.clock, kernel=script.kernel)
    assert timing.loops == 2
    assert timing.kernel == KernelTimes("matmul", 8, (0.125,) * 3)


def test_a_sample_has_the_number_of_its_turn() -> None:
    table, script = Table([0, 1, 4]), Scripted([1.0])
    timing = measure(script.step, Protocol(**BARE), script.clock, table)
    assert timing.interleaved_run == InterleavedRun("d1", ("cb",), (0, 1, 4))
    assert len(timing.samples) == 3
    assert table.heard == [1.0, "going", "going", "met"]


def test_interleaved_samples_all_last_about_as_long() -> None:
    table, script = Table([0], sample_s=1.0), Scripted([0.125])
    timing = measure(script.step, Protocol(**{**BARE, "sample_s": 0.25}), script.clock, table)
    assert table.heard[0] == 0.25
    assert timing.loops == 8


def test_what_has_been_met_stays_met_while_others_go_on() -> None:
    """The spread grows again; the round is over for this process all the same."""
    table, script = Table(range(5)), Scripted([1.0] * 7 + [1.0, 64.0, 1.0, 64.0])
    timing = measure(script.step, Protocol(**{**BARE, "target_spread": 0.05}), script.clock, table)
    assert table.heard[1:] == ["going", "going", "met", "met", "met"]
    assert timing.unmet == ()


def test_who_has_used_up_its_time_says_so() -> None:
    table, script = Table(range(2)), Scripted([1.0])
    timing = measure(script.step, Protocol(**{**BARE, "max_s": 2.0}), script.clock, table)
    assert table.heard[1:] == ["going", "spent"]
    assert timing.unmet == ("min_samples=3",)


def session(model: FakeModel, **fields: Any) -> BuiltSession:
    given: dict[str, Any] = {"backend": FakeBackend(), "dataset": Synthetic((3, 4), samples=10), **fields}
    return BuiltSession(build=lambda: model, **given)


@pytest.mark.parametrize("wanted", ["auto", "convolution", "matmul"])
def test_the_kernel_that_the_protocol_asks_for(wanted: Any) -> None:
    timing = session(FakeModel(step_s=0.5, kernel_s=0.25), protocol=Protocol(**BARE, kernel=wanted)).run("timing")
    assert isinstance(timing, Timing)
    assert timing.kernel == KernelTimes("matmul" if wanted == "auto" else wanted, 1, (0.25,) * 3)
    assert timing.warnings == ()


def test_the_phases_of_a_training_step_are_those_of_its_samples() -> None:
    """The steps that lead to a sample are of another length, and in none of its phases."""
    model = FakeModel(step_s=[9.0, 0.25], first_step_s=0.5, backward_s=2.0, update_s=0.25)
    timing = session(model, protocol=Protocol(**{**BARE, "warmup_steps": 1}, kernel="auto"), mode="training").run(
        "timing"
    )
    assert isinstance(timing, Timing)
    # first (0.5), warm-up (9), loops (0.25), then leading (9) and sample (0.25) in turn
    assert timing.phases == {"forward": (0.25,) * 3, "backward": (2.0,) * 3, "update": (0.25,) * 3}
    assert timing.samples == (2.5,) * 3


def test_of_a_model_in_hands() -> None:
    profiler = Profiler(FakeModel(step_s=0.5, kernel_s=0.25), inputs=BATCH, protocol=Protocol(**BARE, kernel="auto"))
    assert profiler.compute("latency/calibrated").value == pytest.approx(2.0)
    assert profiler.compute("latency/forward").calibrated == (2.0,)


class WithoutKernel:
    """The fake backend without that capability."""

    def __init__(self) -> None:
        inner = FakeBackend()
        self.load, self.configure = inner.load, inner.configure


def test_a_backend_without_a_kernel_says_so() -> None:
    protocol = Protocol(**BARE, kernel="auto")
    timing = session(FakeModel(), backend=WithoutKernel(), protocol=protocol).run("timing")
    assert isinstance(timing, Timing)
    assert len(timing.samples) == 3
    assert timing.kernel == KernelTimes(None, reason="this backend cannot run a calibration kernel")
    assert [(w.code, w.text) for w in timing.warnings] == [
        ("no_kernel", "this backend cannot run a calibration kernel")
    ]


def test_a_record_keeps_the_interleaved_run_and_the_kernel() -> None:
    timing = Timing(
        1.0,
        2,
        3,
        (0.5, 0.25),
        interleaved_run=InterleavedRun("d1", ("ca", "cb"), (0, 2)),
        kernel=KernelTimes("convolution", 4, (0.5, 1.0)),
    )
    data = json.loads(json.dumps(replace(timing, baseline=timing).to_dict()))
    assert "baseline" not in data
    assert Timing.from_dict(data) == timing


@pytest.mark.parametrize(
    ("convolutions", "linears", "name"),
    [
        (0, 0, "matmul"),
        (0, 3, "matmul"),
        (1, 0, "convolution"),
        (3, 2, "convolution"),
        (1, 2, "convolution"),
        (1, 3, "matmul"),
    ],
)
def test_which_kernel_resembles_a_model(convolutions: int, linears: int, name: str) -> None:
    assert resembling(convolutions, linears) == name
