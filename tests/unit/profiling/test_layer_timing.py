"""Steps with probes and steps without, by a scripted clock: every expected figure is exact."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import pytest

from sweeprof.measuring.layer_timing import (
    MOST_ATTEMPTS,
    ProbeCost,
    ProbeCount,
    Span,
    Step,
    Turn,
    in_turns,
    seconds_added,
    timed_in_turns,
)
from sweeprof.results.layer_times import OUTSIDE, ROOT, LayerTimes
from sweeprof.results.record import Protocol

US = 1e-6
PROBE = ProbeCost(inside=1 * US, outside=1 * US, backward=3 * US)
"""What the probes of the scripted steps really cost."""
PROTOCOL = Protocol(warmup_steps=1, warmup_s=0, min_samples=10, min_s=0, max_s=1e5)
LAYER, FORWARD, BACKWARD = 10 * US, 32 * US, 70 * US
"""Seconds of a step: 2 µs of the forward are the root's, and 10 µs each layer's, whose backwards take 20, 20 and 30 µs."""


class Machine:
    """Steps of a root and three layers; ``others`` are seconds that other processes take from each step, in turns."""

    def __init__(self, others: tuple[float, ...] = (0.0,)) -> None:
        self.now = 0.0
        self.steps = 0
        self._others = itertools.cycle(others)

    def plain(self) -> Turn:
        return self._took(Turn(FORWARD, BACKWARD))

    def probed(self) -> Turn:
        count = ProbeCount(inside=1)
        root = Span(ROOT, "Net", 0, None, 2 * US + PROBE.inside + 3 * PROBE.outside, 0, 0, ProbeCount(1, 3))
        layers = [
            Span(
                name,
                "Layer",
                0,
                1,
                LAYER + PROBE.inside,
                seconds + 2 * PROBE.backward,
                2,
                count,
                ProbeCount(backward=2),
            )
            for name, seconds in (("a", 20 * US), ("b", 20 * US), ("c", 30 * US))
        ]
        outside = Span(OUTSIDE, "", 0, None, PROBE.outside, 0, 0, ProbeCount(outside=1))
        spans = [outside, root, *layers]
        step = Step(spans)
        return self._took(Turn(sum(s.forward for s in spans), sum(s.backward for s in spans), step))

    def _took(self, turn: Turn) -> Turn:
        other = next(self._others)
        self.now += turn.forward + turn.backward + other
        self.steps += 1
        if turn.step is not None:  # another process interrupts the last layer, in either direction
            turn.step.spans[-1].forward += other
            turn.step.spans[-1].backward += other
        return dataclasses.replace(turn, forward=turn.forward + other, backward=turn.backward + other)


def timed(machine: Machine, calibrate: Callable[[], ProbeCost], protocol: Protocol = PROTOCOL) -> LayerTimes:
    return timed_in_turns(in_turns(machine.plain, machine.probed), calibrate, lambda: machine.now, protocol, True)


def test_a_correct_calibration_gives_every_layer_what_it_took() -> None:
    times = timed(Machine(), lambda: PROBE)
    seconds = {call.path: (s.forward_self, s.backward_self) for call, s in zip(times.calls, times.seconds, strict=True)}
    assert seconds[ROOT] == pytest.approx((2 * US, 0))
    for name, backward in (("a", 20 * US), ("b", 20 * US), ("c", 30 * US)):
        assert seconds[name] == pytest.approx((LAYER, backward))
    assert times.warnings == ()


@pytest.mark.parametrize("factor", [0.0, 0.3, 3.0, 101 / 3, 1e4])
def test_a_wrong_calibration_is_corrected_by_what_the_probes_added_to_real_steps(factor: float) -> None:
    """As under load, where following a node was calibrated to anything from 2.9 to 101 µs."""
    wrong = ProbeCost(PROBE.inside * factor, PROBE.outside * factor, PROBE.backward * factor)
    times = timed(Machine(), lambda: wrong)
    layers = [s for call, s in zip(times.calls, times.seconds, strict=True) if call.path not in (OUTSIDE, ROOT)]
    assert all(s.forward_self > 0 and s.backward_self is not None and s.backward_self > 0 for s in layers)
    if factor:
        assert times.warnings == ()
        assert sum(s.backward_self or 0 for s in layers) == pytest.approx(BACKWARD, rel=0.1)
    else:
        assert [warning.code for warning in times.warnings] == ["layer_times_off"] * 2, (
            "nothing was calibrated to be scaled"
        )


def test_layers_that_do_not_add_up_are_measured_again_and_then_marked() -> None:
    """Probes that were calibrated to cost nothing leave 125 % of the backward; more repeats cannot change that."""
    machine, calibrations = Machine(), itertools.count()

    def calibrate() -> ProbeCost:
        next(calibrations)
        return ProbeCost()

    times = timed(machine, calibrate)
    assert next(calibrations) == MOST_ATTEMPTS
    assert times.repeats - times.warmup == MOST_ATTEMPTS * PROTOCOL.min_samples
    assert machine.steps == 2 * times.repeats
    assert "126 % of the backward" in times.warnings[-1].text
    assert all(min(call.backward) > 0 for call in times.calls if call.path in "abc")


def test_they_are_measured_again_until_they_add_up() -> None:
    costs = iter([ProbeCost(), PROBE])
    times = timed(Machine(), lambda: next(costs))
    assert times.repeats - times.warmup == 2 * PROTOCOL.min_samples
    assert next(costs, None) is None
    assert times.warnings == ()


def test_nothing_is_measured_again_beyond_the_longest_time_of_the_protocol() -> None:
    machine, calibrations = Machine(), itertools.count()

    def calibrate() -> ProbeCost:
        next(calibrations)
        return ProbeCost()

    times = timed(machine, calibrate, dataclasses.replace(PROTOCOL, max_s=11 * 250 * US))
    assert next(calibrations) == 2
    assert machine.now < 13 * 250 * US
    assert times.unmet == ()
    assert times.warnings != ()


@pytest.mark.parametrize("cost", [PROBE, ProbeCost(PROBE.inside, PROBE.outside, 101 * US)])
def test_other_processes_in_a_third_of_the_steps_make_no_layer_0_and_no_sum_wrong(cost: ProbeCost) -> None:
    times = timed(Machine((0.0, 0.0, 4e-3, 0.0, 0.0)), lambda: cost)
    assert times.warnings == ()
    for call, seconds in zip(times.calls, times.seconds, strict=True):
        if call.path in "abc":
            assert seconds.forward_self > 0
            assert seconds.backward_self is not None
            assert seconds.backward_self == pytest.approx(
                {"a": 20 * US, "b": 20 * US, "c": 30 * US}[call.path], rel=0.1
            )


class Busy:
    """A machine on which every fourth run of 20 µs is interrupted for 4 ms, and which gets slower."""

    def __init__(self) -> None:
        self._other = itertools.cycle([0.0, 0.0, 0.0, 4e-3, 0.0, 0.0, 0.0, 0.0, 4e-3])
        self._trend: Iterator[float] = itertools.count(0, 2e-7)

    def takes(self, seconds: float) -> Callable[[], float]:
        return lambda: seconds + next(self._other) + next(self._trend)


def test_what_probes_add_is_found_between_interruptions_and_in_spite_of_a_trend() -> None:
    busy = Busy()
    assert seconds_added(busy.takes(20 * US), busy.takes(25 * US), 101) == pytest.approx(5 * US, abs=0.3 * US)
    assert seconds_added(lambda: 2.0, lambda: 1.0, 3) == 0, "probes never make a step faster"
