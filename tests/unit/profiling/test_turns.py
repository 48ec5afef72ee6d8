"""Samples in turn, with a scripted clock: every figure is exact."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sweeprof.backends.fake import FakeBackend, FakeClock, FakeModel
from sweeprof.datasets.arrays import Synthetic
from sweeprof.measuring.timing import InterleavedRun, State, Timing, measure
from sweeprof.profiling.session import BuiltSession
from sweeprof.results.record import Protocol

BARE: dict[str, Any] = {"warmup_steps": 0, "warmup_s": 0, "sample_s": 0, "min_samples": 3, "min_s": 0, "max_s": 1e5}

BATCH = np.zeros((1, 3), np.float32)


class Scripted:
    """A step that takes the scripted seconds."""

    def __init__(self, steps: Sequence[float]) -> None:
        self.clock, self._steps = FakeClock(), self._last_for_ever(steps)

    @staticmethod
    def _last_for_ever(values: Sequence[float]) -> Iterator[float]:
        yield from values
        while True:
            yield values[-1]

    def step(self) -> None:
        self.clock.advance(next(self._steps))


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


def test_before_each_sample_of_an_interleaved_run_comes_a_step_that_does_not_count() -> None:
    """A first step, one to find the loops, then leading step and sample in turn."""
    script = Scripted([8.0, 0.5, 64.0, 0.25, 64.0, 0.5, 64.0, 0.75])
    timing = measure(script.step, Protocol(**BARE), script.clock, Table([0, 1, 2]))
    assert timing.samples == (0.25, 0.5, 0.75)
    alone = Scripted([8.0, 0.5, 0.25, 0.5, 0.75])
    assert measure(alone.step, Protocol(**BARE), alone.clock).samples == (0.25, 0.5, 0.75)


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


def test_the_phases_of_a_training_step_are_those_of_its_samples() -> None:
    """The steps that lead to a sample are of another length, and in none of its phases."""
    model = FakeModel(step_s=[9.0, 0.25], first_step_s=0.5, backward_s=2.0, update_s=0.25)
    measured = session(model, protocol=Protocol(**{**BARE, "warmup_steps": 1}), mode="training")
    measured.participant = Table([0, 1, 2])
    timing = measured.run("timing")
    assert isinstance(timing, Timing)
    # first (0.5), warm-up (9), loops (0.25), then leading (9) and sample (0.25) in turn
    assert timing.phases == {"forward": (0.25,) * 3, "backward": (2.0,) * 3, "update": (0.25,) * 3}
    assert timing.samples == (2.5,) * 3


def test_a_record_keeps_the_interleaved_run() -> None:
    timing = Timing(
        1.0,
        2,
        3,
        (0.5, 0.25),
        interleaved_run=InterleavedRun("d1", ("ca", "cb"), (0, 2)),
    )
    data = json.loads(json.dumps(replace(timing, baseline=timing).to_dict()))
    assert "baseline" not in data
    assert Timing.from_dict(data) == timing
