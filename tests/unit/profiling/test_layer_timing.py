"""Steps with probes and steps without, by a scripted clock: every expected figure is exact."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeprof.measuring.layer_timing import (
    FOLLOWED,
    LEFT,
    MOST_ATTEMPTS,
    Event,
    ProbeCost,
    ProbeCount,
    Reader,
    Span,
    Step,
    Turn,
    bounded,
    in_turns,
    path_below,
    seconds_added,
    timed_in_turns,
    without_probes,
)
from sweeprof.results.layer_times import OUTSIDE, ROOT, LayerTimes
from sweeprof.results.record import Protocol

US = 1e-6
PROBE = ProbeCost(inside=1 * US, outside=1 * US, backward=3 * US)
"""What the probes of the scripted steps really cost."""
PROTOCOL = Protocol(warmup_steps=1, warmup_s=0, min_samples=10, min_s=0, max_s=1e5)
LAYER, FORWARD, BACKWARD = 10 * US, 32 * US, 70 * US
"""Seconds of a step: 2 µs of the forward are the root's, and 10 µs each layer's."""
BACKWARDS = {"a": 20 * US, "b": 20 * US, "c": 30 * US}
"""Of the layers."""


class Machine:
    """Steps of a root and three layers; ``others`` are seconds that other processes take from each step, in turns."""

    def __init__(self, others: tuple[float, ...] = (0.0,)) -> None:
        self.now = 0.0
        self.steps = 0
        self._others = itertools.cycle(others)

    def plain(self) -> Turn:
        return self._took(Turn(FORWARD, BACKWARD))

    def probed(self) -> Turn:
        outside = Span(OUTSIDE, "", 0, None, PROBE.outside, 0, 0, ProbeCount(outside=1))
        root = Span(ROOT, "Net", 0, None, 2 * US + PROBE.inside + 3 * PROBE.outside, 0, 0, ProbeCount(1, 3))
        spans = [outside, root]
        for name, seconds in BACKWARDS.items():
            forward, backward = LAYER + PROBE.inside, seconds + 2 * PROBE.backward
            spans.append(Span(name, "Layer", 0, 1, forward, backward, 2, ProbeCount(1), ProbeCount(backward=2)))
        return self._took(Turn(sum(s.forward for s in spans), sum(s.backward for s in spans), Step(spans)))

    def _took(self, turn: Turn) -> Turn:
        other = next(self._others)
        self.now += turn.forward + turn.backward + other
        self.steps += 1
        if turn.step is not None:  # another process interrupts the last layer, in either direction
            turn.step.spans[-1].forward += other
            turn.step.spans[-1].backward += other
        return dataclasses.replace(turn, forward=turn.forward + other, backward=turn.backward + other)


def timed(machine: Machine, calibrate: Callable[[], ProbeCost], protocol: Protocol = PROTOCOL) -> LayerTimes:
    clock: Any = SimpleNamespace(now=lambda: machine.now)
    return timed_in_turns(in_turns(machine.plain, machine.probed), calibrate, clock, protocol, True)


def test_a_correct_calibration_gives_every_layer_what_it_took() -> None:
    times = timed(Machine(), lambda: PROBE)
    seconds = {call.path: (s.forward_self, s.backward_self) for call, s in zip(times.calls, times.seconds, strict=True)}
    assert seconds[ROOT] == pytest.approx((2 * US, 0))
    for name, backward in BACKWARDS.items():
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
    """Probes that were calibrated to cost nothing leave 125% of the backward; more repeats cannot change that."""
    machine, calibrated = Machine(), Mock(return_value=ProbeCost())
    times = timed(machine, calibrated)
    assert calibrated.call_count == MOST_ATTEMPTS
    assert times.repeats - times.warmup == MOST_ATTEMPTS * PROTOCOL.min_samples
    assert machine.steps == 2 * times.repeats
    assert "126% of the backward" in times.warnings[-1].text
    assert all(min(call.backward) > 0 for call in times.calls if call.path in "abc")


def test_they_are_measured_again_until_they_add_up() -> None:
    costs = iter([ProbeCost(), PROBE])
    times = timed(Machine(), lambda: next(costs))
    assert times.repeats - times.warmup == 2 * PROTOCOL.min_samples
    assert next(costs, None) is None
    assert times.warnings == ()


def test_nothing_is_measured_again_beyond_the_longest_time_of_the_protocol() -> None:
    machine, calibrated = Machine(), Mock(return_value=ProbeCost())
    times = timed(machine, calibrated, dataclasses.replace(PROTOCOL, max_s=11 * 250 * US))
    assert calibrated.call_count == 2
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
            assert seconds.backward_self == pytest.approx(BACKWARDS[call.path], rel=0.1)


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


# From marks to seconds, on marks that are whole numbers: every expected figure is exact


NET, A, B = range(3)
MODULES = [([ROOT], "Net"), (["a"], "A"), (["a.b"], "B")]


def reader(modules: Sequence[tuple[list[str], str]] = MODULES) -> Reader:
    return Reader(modules, lambda begin, end: end - begin)


def forward_of(step: Step) -> dict[tuple[str, int], float]:
    return {(span.path, span.call): span.forward for span in step.spans}


def backward_of(step: Step) -> dict[tuple[str, int], float]:
    return {(span.path, span.call): span.backward for span in step.spans}


def both(
    forward: Sequence[Event],
    backward: Sequence[Event],
    modules: Sequence[tuple[list[str], str]] = MODULES,
    cost: ProbeCost | None = None,
) -> Step:
    """A forward from 0 to 100 and a backward from 100 to 200."""
    read = reader(modules)
    step, timeline = read.step(forward, 0, 100)
    read.backward(step, timeline, backward, 100, 200)
    return without_probes(step, cost or ProbeCost())


# Forward

NESTED: list[Event] = [(NET, 0, 3), (A, 0, 10), (B, 0, 14), (LEFT, 0, 30), (LEFT, 0, 31), (LEFT, 0, 95)]


def test_a_module_that_calls_itself_is_within_itself() -> None:
    events: list[Event] = [(A, 0, 0), (A, 0, 1), (LEFT, 0, 5), (LEFT, 0, 7)]
    step, _ = reader().step(events, 0, 7)
    assert [(span.path, span.call, span.parent, span.forward) for span in step.spans[1:]] == [
        ("a", 0, None, 3),
        ("a", 1, 1, 4),
    ]


def test_a_probe_costs_its_call_and_the_call_around_it() -> None:
    step, _ = reader().step(NESTED, 0, 100)
    assert forward_of(without_probes(step, ProbeCost(inside=1.5, outside=2))) == {
        (OUTSIDE, 0): 8 - 2,
        (ROOT, 0): 71 - 1.5 - 2,
        ("a", 0): 5 - 1.5 - 2,
        ("a.b", 0): 16 - 1.5,
    }


def test_a_cost_that_exceeds_one_short_window_leaves_a_tenth_of_it() -> None:
    """Layers a and b take 5 and 16 s, the others 8 and 71 s: 5.2 s is little too much for one of them."""
    step, _ = reader().step(NESTED, 0, 100)
    corrected = forward_of(without_probes(step, ProbeCost(inside=5.2)))
    assert corrected == pytest.approx({(OUTSIDE, 0): 8, (ROOT, 0): 71 - 5.2, ("a", 0): 0.5, ("a.b", 0): 16 - 5.2})


def test_a_cost_that_the_windows_contradict_is_lowered_until_it_fits() -> None:
    """A calibration that another process slowed down: 101 s for each of five nodes that took 10 to 40 s with it."""
    nodes: list[Event] = [(None, 16, 100), (None, 16, 110), (None, 16, 125), (None, 13, 140), (None, 10, 160)]
    corrected = backward_of(both(NUMBERED, nodes, cost=ProbeCost(backward=101)))
    # b has three nodes in 40 s, so that one costs at most 13.3 s, and a little more where that contradicts nobody else.
    assert corrected[ROOT, 0] == pytest.approx(40 - 13.8, abs=2)
    assert corrected["a", 0] == pytest.approx(20 - 13.8, abs=2)
    assert corrected["a.b", 0] == pytest.approx(0.1 * 40)
    assert sum(corrected.values()) > 100 / 3


def test_windows_that_a_clock_shows_as_nothing_stay_nothing() -> None:
    assert bounded([(0.0, 1.0), (10.0, 1.0)]) == [0.0, pytest.approx(10.0, abs=1)]
    assert bounded([]) == []
    assert bounded([(0.0, 1.0), (0.0, 0.0)]) == [0.0, 0.0]


@given(st.lists(st.tuples(st.floats(1e-9, 1), st.floats(0, 10)), min_size=1))
def test_what_took_time_keeps_some_of_it_whatever_the_probes_are_said_to_cost(rows: list[tuple[float, float]]) -> None:
    windows, costs = [window for window, _ in rows], [cost for _, cost in rows]
    for window, cost, kept in zip(windows, costs, bounded(list(zip(windows, costs, strict=True))), strict=True):
        assert max(0.1 * window, window - cost) * (1 - 1e-9) <= kept <= window


SHARED = [([ROOT], "Net"), (["a"], "A"), (["b"], "B"), (["a.s", "b.s"], "Shared")]


@pytest.mark.parametrize(
    ("names", "caller", "path"),
    [
        (["a.s"], "b", "a.s"),
        (["a.s", "b.s"], "b", "b.s"),
        (["a.s", "b.s"], "c", "a.s"),
        (["a.s", "b.s"], "", "a.s"),
        (["a.s", "s"], ROOT, "s"),
        (["a.inner.s", "a.s"], "a", "a.s"),
        (["ab.s", "a.s"], "a", "a.s"),
    ],
)
def test_the_name_is_the_nearest_below_the_caller(names: list[str], caller: str, path: str) -> None:
    assert path_below(names, caller) == path


# Backward

NUMBERED: list[Event] = [(NET, 10, 3), (A, 12, 10), (B, 15, 14), (LEFT, 20, 30), (LEFT, 21, 31), (LEFT, 25, 95)]
"""The nodes 10 and 11 are the root's, 12 to 14 those of a, 15 to 19 those of b, 20 again of a, 21 to 24 of the root, the rest
of the loss."""


def test_the_cost_of_a_node_is_subtracted_from_that_node() -> None:
    step = both(NUMBERED, [(None, 16, 110), (None, 13, 130)], cost=ProbeCost(inside=50, outside=50, backward=3))
    assert backward_of(step) == {(OUTSIDE, 0): 10, (ROOT, 0): 0, ("a", 0): 70 - 3, ("a.b", 0): 20 - 3}


def test_a_call_took_part_in_the_backward_if_a_node_is_its_own_or_of_a_call_within_it() -> None:
    assert both(NUMBERED, [(None, 16, 110)]).has_backward() == [False, True, True, True]
    assert both(NUMBERED, [(None, 13, 110)]).has_backward() == [False, True, True, False]
    assert both(NUMBERED, [(None, 10, 110)]).has_backward() == [False, True, False, False]
    assert both(NUMBERED, []).has_backward() == [False] * 4


# Computed once more

CHECKPOINT = 11
"""A node of the root's: a checkpoint of a, which made no nodes in the forward."""
WITHOUT_NODES: list[Event] = [(NET, 10, 0), (A, 12, 10), (B, 12, 14), (LEFT, 12, 30), (LEFT, 12, 31), (LEFT, 12, 90)]


def test_what_is_computed_once_more_belongs_to_the_call_that_is_repeated() -> None:
    again: list[Event] = [(None, CHECKPOINT, 101), (A, 50, 103), (B, 52, 110), (LEFT, 57, 115), (LEFT, 58, 120)]
    step = both(WITHOUT_NODES, [*again, (None, 54, 140), (None, 51, 170)])
    assert backward_of(step) == {
        (OUTSIDE, 0): 1,
        (ROOT, 0): (103 - 101) + (140 - 120),
        ("a", 0): (110 - 103) + (120 - 115) + (200 - 170),
        ("a.b", 0): (115 - 110) + (170 - 140),
    }
    assert step.has_backward() == [False, True, True, True]


def test_a_call_that_is_repeated_without_nodes_of_its_own_took_part_in_the_backward() -> None:
    step = both(WITHOUT_NODES, [(None, CHECKPOINT, 101), (A, 50, 103), (LEFT, 50, 120)])
    assert step.has_backward() == [False, True, True, False]


def test_what_following_the_backward_took_counts_for_nothing() -> None:
    again: list[Event] = [(None, CHECKPOINT, 101), (A, 50, 103), (LEFT, 58, 120), (FOLLOWED, 0, 160), (None, 51, 170)]
    step = both(WITHOUT_NODES, again)
    assert backward_of(step) == {(OUTSIDE, 0): 1, (ROOT, 0): 2 + 10, ("a", 0): 17 + 30, ("a.b", 0): 0}


def test_the_probes_of_what_is_repeated_cost_their_call_and_the_one_around_it() -> None:
    again: list[Event] = [(None, CHECKPOINT, 110), (A, 50, 120), (B, 52, 130), (LEFT, 57, 140), (LEFT, 58, 150)]
    step = both(WITHOUT_NODES, again, cost=ProbeCost(inside=1, outside=2, backward=4))
    assert backward_of(step) == {
        (OUTSIDE, 0): 10,
        (ROOT, 0): (10 - 4) + (50 - 2),
        ("a", 0): (10 - 1) + (10 - 2),
        ("a.b", 0): 10 - 1,
    }


def test_of_several_checkpoints_the_last_is_repeated_first() -> None:
    twice: list[Event] = [(NET, 0, 0), (A, 1, 1), (LEFT, 1, 2), (A, 2, 3), (LEFT, 2, 4), (LEFT, 2, 5)]
    step = both(twice, [(A, 9, 100), (LEFT, 9, 103), (A, 9, 103), (LEFT, 9, 110)])
    assert {key: seconds for key, seconds in backward_of(step).items() if key[0] == "a"} == {("a", 1): 3, ("a", 0): 7}


def test_what_is_called_twice_within_a_checkpoint_is_repeated_in_its_order() -> None:
    block: list[Event] = [(A, 0, 1), (B, 0, 2), (LEFT, 0, 3), (B, 0, 4), (LEFT, 0, 5), (LEFT, 0, 6)]
    forward: list[Event] = [(NET, 0, 0), *block, *block, (LEFT, 0, 7)]
    last: list[Event] = [(A, 9, 100), (B, 9, 100), (LEFT, 9, 101), (B, 9, 101), (LEFT, 9, 103), (LEFT, 9, 103)]
    first: list[Event] = [(A, 9, 103), (B, 9, 103), (LEFT, 9, 107), (B, 9, 107), (LEFT, 9, 115), (LEFT, 9, 115)]
    found = backward_of(both(forward, [*last, *first]))
    assert [found["a.b", call] for call in range(4)] == [4, 8, 1, 2]


def test_a_shared_module_is_repeated_under_the_name_it_had() -> None:
    forward: list[Event] = [(0, 0, 0), (2, 0, 1), (3, 0, 2), (LEFT, 0, 3), (LEFT, 0, 4), (LEFT, 0, 5)]
    step = both(forward, [(3, 0, 110), (LEFT, 0, 130)], SHARED)
    assert backward_of(step) == {(OUTSIDE, 0): 80, (ROOT, 0): 0, ("b", 0): 0, ("b.s", 0): 20}


def test_a_call_that_the_forward_did_not_make_belongs_to_the_one_around_it() -> None:
    forward: list[Event] = [(NET, 0, 0), (A, 0, 1), (LEFT, 0, 3), (LEFT, 0, 5)]
    step = both(forward, [(A, 9, 110), (B, 9, 120), (LEFT, 9, 150), (LEFT, 9, 160), (B, 9, 170), (LEFT, 9, 190)])
    assert backward_of(step) == {(OUTSIDE, 0): 50, (ROOT, 0): 0, ("a", 0): 50}


def test_a_checkpoint_that_is_repeated_again_and_again_adds_up() -> None:
    once: list[Event] = [(NET, 0, 0), (A, 0, 1), (LEFT, 0, 3), (LEFT, 0, 5)]
    step = both(once, [(A, 9, 110), (LEFT, 9, 120), (A, 9, 130), (LEFT, 9, 150)])
    assert backward_of(step)["a", 0] == 30


# Any tree of calls

Pieces = list[Any]
"""What a call does, in order: run for some seconds and make some nodes, or call (a list of pieces)."""

RUN = st.tuples(st.integers(0, 9), st.integers(0, 3))
PIECES = st.recursive(st.lists(RUN, max_size=3), lambda inner: st.lists(RUN | inner, max_size=4), max_leaves=12)


class Script:
    """Plays the pieces and keeps books of its own."""

    def __init__(self, pieces: Pieces) -> None:
        self.now = self.nodes = 0
        self.events: list[Event] = []
        self.seconds = [0]
        self.callers: list[int | None] = [None]
        """Per call the position of the one around it."""
        self.owners: list[int] = []
        """Per node the position of the call that made it; 0 is outside."""
        self._play(pieces, 0)

    def _play(self, pieces: Pieces, position: int) -> None:
        for piece in pieces:
            if isinstance(piece, list):
                self.seconds.append(0)
                self.callers.append(position or None)
                inner = len(self.seconds) - 1
                self.events.append((inner - 1, self.nodes, self.now))
                self._play(piece, inner)
                self.events.append((LEFT, self.nodes, self.now))
            else:
                self.now += piece[0]
                self.seconds[position] += piece[0]
                self.nodes += piece[1]
                self.owners += [position] * piece[1]

    @property
    def modules(self) -> list[tuple[list[str], str]]:
        return [([f"m{position}"], "M") for position in range(len(self.seconds))]


@given(PIECES)
def test_the_parts_of_a_forward_are_what_was_played_and_add_up_to_it(pieces: Pieces) -> None:
    script = Script(pieces)
    step, _ = reader(script.modules).step(script.events, 0, script.now)
    assert [span.forward for span in step.spans] == script.seconds
    assert sum(span.forward for span in step.spans) == script.now
    assert [span.parent for span in step.spans] == script.callers


@given(PIECES, st.data())
def test_the_parts_of_a_backward_are_what_was_played_and_add_up_to_it(pieces: Pieces, data: st.DataObject) -> None:
    script = Script(pieces)
    read = reader(script.modules)
    step, timeline = read.step(script.events, 0, script.now)
    order = data.draw(st.permutations(range(script.nodes)))
    lasted = data.draw(st.lists(st.integers(0, 9), min_size=script.nodes, max_size=script.nodes))
    expected, now, events = [0] * len(script.seconds), 0, list[Event]()
    for node, seconds in zip(order, lasted, strict=True):
        events.append((None, node, now))
        now += seconds
        expected[script.owners[node]] += seconds
    read.backward(step, timeline, events, 0, now)
    assert [span.backward for span in step.spans] == expected
    assert sum(span.backward for span in step.spans) == now
    assert [span.nodes for span in step.spans] == [script.owners.count(position) for position in range(len(step.spans))]
