"""Timing with a scripted clock. Every duration is a multiple of a power of two, so that sums and differences are exact."""

from __future__ import annotations

import gc
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.backends.fake import FakeBackend, FakeClock, FakeModel
from sweeprof.datasets.arrays import Synthetic
from sweeprof.errors import Damaged, Unsupported
from sweeprof.measuring import timing
from sweeprof.measuring.timing import (
    Alone,
    FusedStep,
    InterleavedRun,
    State,
    Timing,
    become_quiet,
    measure,
    measure_fused,
    measure_generation,
    measure_training,
)
from sweeprof.profiling.session import BuiltSession
from sweeprof.results.record import Protocol

BARE: dict[str, Any] = {"warmup_steps": 0, "warmup_s": 0, "sample_s": 0, "min_samples": 1, "min_s": 0, "max_s": 1e5}
"""One sample and nothing else: a step is first, one calibrates, one is sampled."""


@pytest.fixture(scope="module", autouse=True)
def _no_full_collections() -> Iterator[None]:
    """A full collection takes a tenth of a second once the frameworks are imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda: 0)
        yield


class Script:
    """A step that takes the scripted seconds, and then the last of them for ever."""

    def __init__(self, durations: Iterable[float], clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.steps = 0
        self._durations: Iterator[float] = iter(durations)
        self._last = 0.0

    def __call__(self) -> None:
        self.steps += 1
        self._last = next(self._durations, self._last)
        self.clock.advance(self._last)


def run(durations: Iterable[float], **protocol: Any) -> Timing:
    script = Script(durations)
    return measure(script, Protocol(**{**BARE, **protocol}), script.clock)


def of_samples(*samples: float, **protocol: Any) -> Timing:
    """The timing whose samples are these: a first step and a calibrating one come before."""
    return run([1.0, 1.0, *samples], min_samples=len(samples), **protocol)


def codes(timing: Timing) -> list[str]:
    return [warning.code for warning in timing.warnings]


@pytest.mark.parametrize(
    ("steps", "protocol", "samples"),
    [
        ([64.0, 2.0], {"min_samples": 3}, (2.0,) * 3),
        ([1.0, 32.0, 32.0, 32.0, 1.0], {"warmup_steps": 3, "min_samples": 2}, (1.0,) * 2),
        pytest.param(
            # first 1, calibration 1 then 1+1, samples of 2 loops: (1+3)/2 and (2+4)/2
            *([1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 2.0, 4.0], {"sample_s": 2.0, "min_samples": 2}, (2.0, 3.0)),
            id="the mean of its loops",
        ),
        pytest.param([16.0], {"max_s": 1.0, "min_samples": 3}, (16.0,), id="at least one whatever the maximum"),
    ],
)
def test_warm_up_steps_are_in_no_sample(
    steps: list[float], protocol: dict[str, Any], samples: tuple[float, ...]
) -> None:
    timing = run(steps, **protocol)
    assert (timing.first_step_s, timing.samples) == (steps[0], samples)
    assert timing.loops == (2 if "sample_s" in protocol else 1)
    assert (timing.unmet == ()) == ("max_s" not in protocol)


def test_every_step_is_accounted_for() -> None:
    script = Script([1.0])
    measure(script, Protocol(**{**BARE, "warmup_steps": 4, "sample_s": 4.0, "min_samples": 5}), script.clock)
    assert script.steps == 1 + 4 + (1 + 2 + 4) + 5 * 4


@pytest.mark.parametrize(
    ("warmup_steps", "warmup_s", "taken"),
    [(0, 0.0, 0), (3, 0.0, 3), (0, 4.0, 8), (3, 4.0, 8), (20, 4.0, 20), (1, 0.75, 2)],
)
def test_warm_up_takes_both_steps_and_seconds(warmup_steps: int, warmup_s: float, taken: int) -> None:
    assert run([0.5], warmup_steps=warmup_steps, warmup_s=warmup_s).warmup_steps == taken


def test_warm_up_ends_at_the_maximum() -> None:
    timing = run([1.0], warmup_steps=1000, max_s=8.0)
    assert timing.warmup_steps == 8


@pytest.mark.parametrize(
    ("min_samples", "min_s", "taken"), [(5, 0.0, 5), (1, 4.0, 8), (5, 4.0, 8), (10, 4.0, 10), (1, 3.75, 8)]
)
def test_both_minimums_are_met(min_samples: int, min_s: float, taken: int) -> None:
    timing = run([0.5], min_samples=min_samples, min_s=min_s)
    assert len(timing.samples) == taken
    assert timing.unmet == ()


@pytest.mark.parametrize(
    ("protocol", "unmet"),
    [
        ({"min_samples": 100}, ("min_samples=100",)),
        ({"min_s": 100.0}, ("min_s=100",)),
        ({"target_spread": 0.01}, ("target_spread=0.01",)),
        ({"min_samples": 100, "min_s": 50.5, "target_spread": 0.01}, None),
    ],
)
def test_the_maximum_names_what_was_not_met(protocol: dict[str, Any], unmet: tuple[str, ...] | None) -> None:
    samples = [2.0 ** (i % 4 - i // 4) for i in range(100)]  # whose spread neither falls below 1 % nor settles
    timing = run([1.0, 1.0, *samples], **{"min_samples": 2, **protocol}, max_s=4.0)
    expected = ("min_samples=100", "min_s=50.5", "target_spread=0.01") if unmet is None else unmet
    assert timing.unmet == expected
    (warning,) = [w for w in timing.warnings if w.code == "max_time"]
    assert warning.text == f"protocol.max_s=4 ended the round before {', '.join(expected)}"


@pytest.mark.parametrize(("min_samples", "unmet"), [(100, ("min_samples=100",)), (8, ())])
def test_the_maximum_is_reached_but_not_far_passed(min_samples: int, unmet: tuple[str, ...]) -> None:
    timing = run([0.5], min_samples=min_samples, max_s=4.0)
    assert (len(timing.samples), timing.unmet) == (8, unmet)
    assert codes(timing) == ["max_time"] * bool(unmet)


def test_sampling_goes_on_until_the_spread_is_low() -> None:
    noisy = [1.0, 2.0, 1.0, 2.0]
    timing = run([1.0, 1.0, *noisy, 1.0], min_samples=4, target_spread=0.1)
    # With the four noisy ones the upper quartile leaves 2.0 when three quarters of n - 1 lie at 1.0.
    n = len(timing.samples)
    assert n == 9
    assert sorted(timing.samples)[int(0.75 * (n - 1))] == 1.0
    assert timing.unmet == ()


def test_a_low_spread_does_not_cut_the_minimums_short() -> None:
    assert len(run([1.0], min_samples=7, min_s=12.0, target_spread=0.5).samples) == 12


def test_sampling_ends_when_the_noise_has_settled() -> None:
    """Three low samples in five keep the median low, two high ones the upper quartile high: the spread is always 1."""
    timing = run([1.0, 1.0, *[4.0, 4.0, 4.0, 8.0, 8.0] * 100], min_samples=16, target_spread=0.01)
    assert len(timing.samples) == 16 + 4  # five looks
    assert timing.unmet == ()
    assert codes(timing) == ["spread_severe"]


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([1.0] * 20, [], id="quiet"),
        pytest.param([5.0, 4.5, 4.75, 5.25, 5.5], [], id="IQR 0.5 of 5: exactly 10 %"),
        ([5.0, 4.5, 4.6875, 5.25, 5.5], ["spread_high"]),
        pytest.param([4.0, 3.0, 3.5, 4.5, 5.0], ["spread_high"], id="1 of 4: exactly 25 %"),
        ([4.0, 3.0, 3.5, 4.5625, 5.0], ["spread_severe"]),
        ([6.0, 4.0, 4.0, 4.0, 4.0], []),
        ([6.25, 4.0, 4.0, 4.0, 4.0], ["first_sample_slow"]),
        pytest.param([6.0], [], id="one sample alone is never slow"),
        ([*[1.0] * 5, *[0.9375] * 5], []),
        ([*[1.0] * 5, *[1.0625] * 5], []),
        ([*[1.0] * 5, *[0.875] * 5], ["spread_high", "drift"]),
        ([*[1.0] * 5, *[1.125] * 5], ["spread_high", "drift"]),
        pytest.param([*[1.0] * 4, *[2.0] * 5], ["spread_severe"], id="few samples show no drift"),
        pytest.param([1.0, *[0.0] * 5, *[0.5] * 6], ["spread_severe", "first_sample_slow"], id="none after zero"),
        pytest.param([*[1.0] * 5, 64.0, *[1.0] * 5], [], id="the middle sample is in neither half"),
    ],
)
def test_warnings_at_their_thresholds(samples: list[float], expected: list[str]) -> None:
    assert codes(of_samples(*samples)) == expected


def test_warnings_have_their_figures() -> None:
    (warning,) = of_samples(4.0, 3.0, 3.5, 4.5, 5.0).warnings
    assert warning.text == "IQR is 25% of the median over 5 samples"
    warnings = {w.code: w for w in of_samples(*[1.0] * 5, *[2.0] * 5).warnings}
    assert warnings["drift"].text == "samples drifted: the second half is 100% slower than the first"


class CoarseClock(FakeClock):
    resolution = 2.0**-10


@pytest.mark.parametrize(
    ("ticks", "sample_ticks", "expected"), [(1000, 0, []), (999, 0, ["timer_coarse"]), (500, 1000, [])]
)
def test_timer_coarse_at_its_threshold(ticks: int, sample_ticks: int, expected: list[str]) -> None:
    """Loops make a coarse clock fine."""
    tick, clock = CoarseClock.resolution, CoarseClock()
    protocol = Protocol(**{**BARE, "sample_s": sample_ticks * tick})
    assert codes(measure(Script([ticks * tick], clock), protocol, clock)) == expected


def test_garbage_is_not_collected_within_samples() -> None:
    seen: list[bool] = []
    clock = FakeClock()

    def step() -> None:
        seen.append(gc.isenabled())
        clock.advance(1.0)

    assert gc.isenabled()
    measure(step, Protocol(**{**BARE, "warmup_steps": 1, "min_samples": 3}), clock)
    assert seen == [True, True, False, False, False, False]
    assert gc.isenabled()


def test_garbage_is_collected_once_before_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([1.0])
    collected_at: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collected_at.append(script.steps))
    measure(script, Protocol(**{**BARE, "warmup_steps": 2, "min_samples": 3}), script.clock)
    assert collected_at == [1 + 2]


@pytest.mark.parametrize("was_on", [True, False])
@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_the_collector_is_as_it_was_after_an_exception(fails_at: int, was_on: bool) -> None:
    script = Script([1.0])

    def step() -> None:
        script()
        if script.steps == fails_at:
            raise RuntimeError("no luck")

    try:
        if not was_on:
            gc.disable()
        with pytest.raises(RuntimeError, match="no luck"):
            measure(step, Protocol(**{**BARE, "min_samples": 5}), script.clock)
        assert gc.isenabled() == was_on
    finally:
        gc.enable()


@given(
    step=st.sampled_from([2.0**-i for i in range(8)]),
    protocol=st.fixed_dictionaries(
        {
            "warmup_steps": st.integers(0, 20),
            "warmup_s": st.integers(0, 8),
            "sample_s": st.integers(0, 16).map(lambda n: n / 8),
            "min_samples": st.integers(1, 30),
            "min_s": st.integers(0, 16),
            "target_spread": st.none() | st.just(0.05),
        }
    ),
)
def test_a_steady_step_meets_every_protocol(step: float, protocol: dict[str, Any]) -> None:
    timing = run([step], **protocol)
    assert set(timing.samples) == {step}
    assert len(timing.samples) >= protocol["min_samples"]
    assert len(timing.samples) * timing.loops * step >= protocol["min_s"]
    assert timing.loops * step >= protocol["sample_s"]
    assert timing.loops == 1 or timing.loops / 2 * step < protocol["sample_s"]
    assert timing.warmup_steps >= protocol["warmup_steps"]
    assert timing.warmup_steps * step >= protocol["warmup_s"]
    assert (timing.unmet, timing.warnings) == ((), ())


class ScriptedTraining:
    """Forward, backward and update of scripted seconds, then the last of them for ever."""

    def __init__(self, forward: list[float], backward: list[float], update: list[float]) -> None:
        self.clock = FakeClock()
        self._forward, self._backward = Script(forward, self.clock), Script(backward, self.clock)
        self.update = Script(update, self.clock)

    def forward(self) -> str:
        self._forward()
        return "loss"

    def backward(self, loss: str) -> None:
        assert loss == "loss"
        self._backward()


def train(step: ScriptedTraining, **protocol: Any) -> Timing:
    return measure_training(step, Protocol(**{**BARE, **protocol}), step.clock)


def test_every_phase_has_its_time() -> None:
    step = ScriptedTraining([64.0, 1.0], [128.0, 4.0], [32.0, 0.5])
    timing = train(step, min_samples=3)
    assert timing.first_step_s == 224.0
    assert timing.phases == {"forward": (1.0,) * 3, "backward": (4.0,) * 3, "update": (0.5,) * 3}
    assert timing.samples == (5.5,) * 3
    assert timing.is_training


@given(
    forward=st.lists(st.integers(1, 64).map(lambda n: n / 8), min_size=1),
    backward=st.lists(st.integers(1, 64).map(lambda n: n / 8), min_size=1),
    update=st.lists(st.integers(0, 64).map(lambda n: n / 8), min_size=1),
    sample_s=st.sampled_from([0.0, 4.0, 32.0]),
    warmup_steps=st.integers(0, 9),
)
def test_phases_sum_to_the_iteration(
    forward: list[float], backward: list[float], update: list[float], sample_s: float, warmup_steps: int
) -> None:
    step = ScriptedTraining(forward, backward, update)
    timing = train(step, sample_s=sample_s, min_samples=4, warmup_steps=warmup_steps)
    assert {len(samples) for samples in timing.phases.values()} == {len(timing.samples)}
    assert tuple(map(sum, zip(*timing.phases.values(), strict=True))) == timing.samples


def test_slow_warm_ups_are_in_no_phase() -> None:
    """moduleprofiler kept the steps that it was told to drop: five slow ones of ten made 25 ms of 0.02 ms."""
    slow, quick = [32.0] * 6, [1.0]
    timing = train(ScriptedTraining(slow + quick, slow + quick, slow + quick), warmup_steps=5, min_samples=10)
    assert timing.warmup_steps == 5
    assert timing.samples == (3.0,) * 10
    assert set(timing.phases.values()) == {(1.0,) * 10}


def test_a_training_step_is_plain_data() -> None:
    timing = train(ScriptedTraining([1.0], [4.0], [0.5]), min_samples=2)
    run = InterleavedRun("d1", ("ca", "cb"), (0, 2))
    timing = replace(timing, transfers={"h2d": (1.0, 2.0)}, compiles=True, warnings=(), interleaved_run=run)
    data = json.loads(json.dumps(replace(timing, baseline=timing).to_dict()))
    assert "baseline" not in data
    assert Timing.from_dict(data) == timing


class ScriptedGeneration:
    """A generation whose tokens take the scripted seconds: of the first generation, of the second …, and then the last for ever."""

    prompt_tokens = 7
    sequences_per_prompt = 1

    def __init__(self, *generations: Sequence[float], new_tokens: int = 3) -> None:
        self.clock = FakeClock()
        self.new_tokens = new_tokens
        self.generations = 0
        self._scripted = list(generations)

    def generate(self, on_token: Callable[[], object]) -> None:
        seconds = self._scripted[min(self.generations, len(self._scripted) - 1)]
        self.generations += 1
        for lasts in seconds:
            self.clock.advance(lasts)
            on_token()
        self.clock.advance(0.5)

    def cache_bytes(self) -> int:
        return 1234


def generated(step: ScriptedGeneration, **protocol: Any) -> Timing:
    return measure_generation(step, Protocol(**{**BARE, **protocol}), step.clock)


def test_every_token_of_every_sample_has_its_time() -> None:
    step = ScriptedGeneration([64.0] * 3, [32.0] * 3, [4.0, 2.0, 1.0], [8.0, 1.0, 0.5])
    timing = generated(step, min_samples=3)
    assert timing.generation is not None
    assert timing.first_step_s == 3 * 64.0 + 0.5
    assert timing.samples == (7.5, 10.0, 10.0)
    assert timing.generation.seconds == ((4.0, 2.0, 1.0), (8.0, 1.0, 0.5), (8.0, 1.0, 0.5))
    assert (timing.generation.prompt_tokens, timing.generation.new_tokens) == (7, 3)
    assert timing.generation.cache_bytes == 1234
    assert not timing.is_training
    assert timing.generated == [((4.0, 2.0, 1.0),), ((8.0, 1.0, 0.5),), ((8.0, 1.0, 0.5),)]
    assert Timing.from_dict(json.loads(json.dumps(timing.to_dict()))) == replace(timing, warnings=())


def test_a_sample_may_have_several_generations() -> None:
    # One that is first, one and then two that calibrate, two of each sample.
    step = ScriptedGeneration(*[[2.0, 1.0]] * 4, [1.0, 1.0], [3.0, 1.0], [5.0, 1.0], [7.0, 1.0], new_tokens=2)
    timing = generated(step, sample_s=4.0, min_samples=2)
    assert timing.loops == 2
    assert timing.generated == [((1.0, 1.0), (3.0, 1.0)), ((5.0, 1.0), (7.0, 1.0))]
    assert timing.samples == (3.5, 7.5)


def test_a_generation_that_tells_of_no_token_is_unsupported() -> None:
    with pytest.raises(Unsupported, match=r"it never called on_token\(\)"):
        generated(ScriptedGeneration([]))


def test_a_step_that_is_undone_is_no_token() -> None:
    """On an accelerator transformers may look late whether it has finished."""
    timing = generated(ScriptedGeneration([1.0, 1.0, 1.0, 16.0]))
    assert timing.generation is not None
    assert timing.generation.seconds == ((1.0, 1.0, 1.0),)


@pytest.mark.parametrize("seconds", [[], [[1.0, 2.0, 3.0]] * 2, [[]], [[1.0, -2.0, 3.0]], [["1", 2.0, 3.0]]], ids=repr)
def test_damaged_times_of_tokens(seconds: object) -> None:
    data = generated(ScriptedGeneration([1.0, 2.0, 3.0])).to_dict()
    with pytest.raises(Damaged):
        Timing.from_dict({**data, "generation": {**data["generation"], "seconds": seconds}})


# Samples in turn, with a scripted clock: every figure is exact


THREE: dict[str, Any] = {**BARE, "min_samples": 3}


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
    script = Script([8.0, 0.5, 64.0, 0.25, 64.0, 0.5, 64.0, 0.75])
    timing = measure(script, Protocol(**THREE), script.clock, Table([0, 1, 2]))
    assert timing.samples == (0.25, 0.5, 0.75)
    alone = Script([8.0, 0.5, 0.25, 0.5, 0.75])
    assert measure(alone, Protocol(**THREE), alone.clock).samples == (0.25, 0.5, 0.75)


def test_a_sample_has_the_number_of_its_turn() -> None:
    table, script = Table([0, 1, 4]), Script([1.0])
    timing = measure(script, Protocol(**THREE), script.clock, table)
    assert timing.interleaved_run == InterleavedRun("d1", ("cb",), (0, 1, 4))
    assert len(timing.samples) == 3
    assert table.heard == [1.0, "going", "going", "met"]


def test_interleaved_samples_all_last_about_as_long() -> None:
    table, script = Table([0], sample_s=1.0), Script([0.125])
    timing = measure(script, Protocol(**{**THREE, "sample_s": 0.25}), script.clock, table)
    assert table.heard[0] == 0.25
    assert timing.loops == 8


def test_what_has_been_met_stays_met_while_others_go_on() -> None:
    """The spread grows again; the round is over for this process all the same."""
    table, script = Table(range(5)), Script([1.0] * 7 + [1.0, 64.0, 1.0, 64.0])
    timing = measure(script, Protocol(**{**THREE, "target_spread": 0.05}), script.clock, table)
    assert table.heard[1:] == ["going", "going", "met", "met", "met"]
    assert timing.unmet == ()


def test_who_has_used_up_its_time_says_so() -> None:
    table, script = Table(range(2)), Script([1.0])
    timing = measure(script, Protocol(**{**THREE, "max_s": 2.0}), script.clock, table)
    assert table.heard[1:] == ["going", "spent"]
    assert timing.unmet == ("min_samples=3",)


def test_the_phases_of_a_training_step_are_those_of_its_samples() -> None:
    """The steps that lead to a sample are of another length, and in none of its phases."""
    model = FakeModel(step_s=[9.0, 0.25], first_step_s=0.5, backward_s=2.0, update_s=0.25)
    protocol, data = Protocol(**{**THREE, "warmup_steps": 1}), Synthetic((3, 4), samples=10)
    measured = BuiltSession(
        backend=FakeBackend(), dataset=data, build=lambda: model, protocol=protocol, mode="training"
    )
    measured.participant = Table([0, 1, 2])
    timing = measured.run("timing")
    assert isinstance(timing, Timing)
    # first (0.5), warm-up (9), loops (0.25), then leading (9) and sample (0.25) in turn
    assert timing.phases == {"forward": (0.25,) * 3, "backward": (2.0,) * 3, "update": (0.25,) * 3}
    assert timing.samples == (2.5,) * 3


# A training step that is one program, with a scripted clock: every share can be told by heart


PROTOCOL = Protocol(warmup_steps=2, warmup_s=0, sample_s=0, min_samples=3, min_s=0, max_s=1e5)


class Programs:
    """Programs that take so many seconds, and as much longer the first time; tracing takes its own."""

    def __init__(self, forward: float, backward: float, whole: float, first: float = 32.0, trace: float = 8.0) -> None:
        self.clock = FakeClock()
        self._seconds = {"forward": forward, "backward": backward, "whole": whole}
        self._first, self._trace = dict.fromkeys(self._seconds, first), trace

    def trace(self) -> None:
        self.clock.advance(self._trace)

    def forward_alone(self) -> None:
        self._run("forward")

    def forward_and_backward(self) -> None:
        self._run("backward")

    def whole(self) -> None:
        self._run("whole")

    def _run(self, name: str) -> None:
        self.clock.advance(self._seconds[name] + self._first.pop(name, 0.0))


def fused(step: Programs) -> Timing:
    assert isinstance(step, FusedStep)
    return measure_fused(step, PROTOCOL, step.clock, Alone())


def test_a_phase_is_what_it_makes_the_program_longer_by() -> None:
    step = Programs(1.0, 3.0, 4.0)
    timing = fused(step)
    assert (timing.trace_s, timing.first_step_s) == (8.0, 8.0 + 32.0 + 4.0)
    assert timing.samples == (4.0,) * 3
    assert timing.phases == {"forward": (1.0,) * 3, "backward": (2.0,) * 3, "update": (1.0,) * 3}
    assert Timing.from_dict(json.loads(json.dumps(timing.to_dict()))) == timing


@pytest.mark.parametrize(
    ("seconds", "phases"),
    [
        ((1.0, 4.0, 4.0), {"forward": 1.0, "backward": 3.0}),
        ((1.0, 4.5, 4.0), {"forward": 1.0, "backward": 3.0}),
        ((1.0, 1.0, 4.0), {"forward": 1.0, "update": 3.0}),
        ((5.0, 6.0, 4.0), {"forward": 4.0}),
    ],
)
def test_a_phase_that_adds_nothing_is_none(seconds: tuple[float, float, float], phases: dict[str, float]) -> None:
    """It is not there, rather than nothing or less; what is there adds up to the whole."""
    timing = fused(Programs(*seconds))
    assert timing.phases == {name: (share,) * 3 for name, share in phases.items()}
    assert timing.is_training


# A process is quiet when none of its other threads runs


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "AT_MOST_S", 60.0)


def test_it_waits_for_a_thread_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    own, seen, look = str(threading.get_native_id()), list[bool](), timing._others_run
    worker = threading.Thread(target=hashlib.pbkdf2_hmac, args=("sha256", b"", b"", 500_000))  # without the lock
    worker.start()
    while not look(own):
        assert worker.is_alive()

    def noted(task: str) -> bool:
        seen.append(look(task))
        return seen[-1]

    monkeypatch.setattr(timing, "_others_run", noted)
    become_quiet()
    assert seen[0]
    assert not seen[-1]
    worker.join()


def test_it_does_not_wait_for_threads_that_wait() -> None:
    end = threading.Event()
    waiting = threading.Thread(target=end.wait)
    waiting.start()
    become_quiet()
    assert waiting.is_alive()
    end.set()
    waiting.join()


def test_it_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_others_run", lambda own: True)
    monkeypatch.setattr(timing, "AT_MOST_S", 0.01)
    become_quiet()


def test_where_the_system_does_not_tell_nobody_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TASKS", tmp_path / "absent")
    assert not timing._others_run("1")
    (tmp_path / "7").mkdir()
    monkeypatch.setattr(timing, "TASKS", tmp_path)
    assert not timing._others_run("1"), "it ended meanwhile"
    (tmp_path / "7" / "stat").write_text("7 (a) b (R) S 1 2")
    assert not timing._others_run("1")
    (tmp_path / "7" / "stat").write_text("7 (a) b (S) R 1 2")
    assert timing._others_run("1")
    assert not timing._others_run("7")
