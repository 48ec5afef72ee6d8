"""How long every call of every layer takes, forward and backward: steps with probes and steps without, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sweeprof.backends.torch.calibration import calibrated, refined
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.probes import Probes
from sweeprof.backends.torch.state import is_compiled
from sweeprof.backends.torch.steps import Steps, stepping
from sweeprof.errors import Unsupported
from sweeprof.profiling.recipe import Work
from sweeprof.profiling.spans import NOT_DIFFERENTIATED, Cost, Event, Reader, Span, Step
from sweeprof.profiling.timing import Clock, Protocol, without_collection
from sweeprof.results.layer_times import CallTime, LayerTimes, PhaseTimes
from sweeprof.results.paths import OUTSIDE

MOST_REPEATS = 200
"""Repeats that are kept at most: a small model takes as many in a fraction of a second."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """One step: what it took, and with probes which call took how much."""

    forward: float
    backward: float
    step: Step | None = None


def layer_times(model: TorchModel, work: Work, protocol: Protocol) -> LayerTimes:
    """The layers' times of inference, or with a recipe of training; as many repeats as the protocol asks of a round.

    Raises:
        Unsupported: the model is compiled or scripted, so that it has no layers when it runs.
        Exception: whatever the model raised.
    """
    if is_compiled(model.module):
        raise Unsupported("a compiled model has no layers when it runs; backend=torch has the same model with them")
    is_training, clock = work.recipe is not None, model.clock()
    probes = Probes(model.module, clock.mark, with_backward=is_training)
    with stepping(model, work) as steps, without_collection():
        cost = calibrated(clock, model.device, with_backward=is_training)
        reader = Reader(probes.described(), clock.between, cost)
        measuring = _Measuring(steps, probes, reader, clock)
        warmup, cost = _warmed_up(measuring, cost, protocol)
        reader = Reader(probes.described(), clock.between, cost)
        kept = _measured(replace(measuring, reader=reader), protocol)
    plain, probed = zip(*warmup, *kept, strict=True)
    calls = calls_of([turn.step for turn in probed if turn.step is not None], is_training, len(warmup))
    if len(calls) < 2:
        raise Unsupported("no Python module of the model was called: a scripted model has no layers when it runs")
    return LayerTimes(
        mode="training" if is_training else "inference",
        calls=calls,
        warmup=len(warmup),
        forward=PhaseTimes(tuple(turn.forward for turn in plain), tuple(turn.forward for turn in probed)),
        backward=(
            PhaseTimes(tuple(turn.backward for turn in plain), tuple(turn.backward for turn in probed))
            if is_training
            else None
        ),
        unmet=(f"min_samples={protocol.min_samples}",) if len(kept) < protocol.min_samples else (),
        probe_s=reader.cost_s,
    )


@dataclass(frozen=True, slots=True)
class _Measuring:
    """Takes one turn after the other."""

    steps: Steps
    probes: Probes
    reader: Reader
    clock: Clock

    def pair(self, number: int) -> tuple[_Turn, _Turn]:
        """A step without probes and one with them; which comes first takes turns, as the second finds warmer caches."""
        if number % 2:
            return self._turn(None), self._probed_turn()
        probed = self._probed_turn()
        return self._turn(None), probed

    def _probed_turn(self) -> _Turn:
        with self.probes.attached():
            return self._turn(self.probes)

    def _turn(self, probes: Probes | None) -> _Turn:
        """One step; no mark is read before it is over, as reading waits for the device, which then has nothing to do."""
        mark, between, backward = self.clock.mark, self.clock.between, self.steps.backward
        begin = mark()
        outputs = self.steps.forward()
        end = mark()
        if backward is None:
            step = None if probes is None else self.reader.step(probes.events, begin, end)[0]
            return _Turn(between(begin, end), 0.0, step)
        forward_events = [] if probes is None else _turned_back(probes, outputs)
        backward_begin = mark()
        backward(outputs)
        backward_end = mark()
        step = None
        if probes is not None:
            step, timeline = self.reader.step(forward_events, begin, end)
            self.reader.backward(step, timeline, probes.events, backward_begin, backward_end)
        return _Turn(between(begin, end), between(backward_begin, backward_end), step)


def _turned_back(probes: Probes, outputs: Any) -> list[Event]:
    """The events of the forward; from now on the probes follow its backward."""
    events = list(probes.events)
    probes.events.clear()
    probes.follow(outputs)
    probes.is_in_backward = True
    return events


Pairs = list[tuple[_Turn, _Turn]]


def _warmed_up(measuring: _Measuring, cost: Cost, protocol: Protocol) -> tuple[Pairs, Cost]:
    """The protocol's first steps, which are kept, and what the probes cost as all of its warming up shows."""
    begin = measuring.clock.now()
    pairs: Pairs = []
    while len(pairs) < protocol.warmup_steps or (
        measuring.clock.now() - begin < min(protocol.warmup_s, protocol.max_s) and len(pairs) < MOST_REPEATS
    ):
        pairs.append(measuring.pair(len(pairs)))
    steps = [probed.step for _, probed in pairs if probed.step is not None]
    if not steps:
        return [], cost
    forward = [probed.forward - plain.forward for plain, probed in pairs]
    backward = [probed.backward - plain.backward for plain, probed in pairs]
    nodes = sum(span.nodes for span in steps[-1].spans)
    return pairs[: protocol.warmup_steps], refined(cost, len(steps[-1].spans) - 1, forward, nodes, backward)


def _measured(measuring: _Measuring, protocol: Protocol) -> Pairs:
    """The repeats that count."""
    begin = measuring.clock.now()

    def elapsed() -> float:
        return measuring.clock.now() - begin

    kept: Pairs = []
    while not kept or (
        (len(kept) < protocol.min_samples or (elapsed() < protocol.min_s and len(kept) < MOST_REPEATS))
        and elapsed() < protocol.max_s
    ):
        kept.append(measuring.pair(len(kept)))
    return kept


def calls_of(steps: Sequence[Step], is_training: bool, warmup: int = 0) -> tuple[CallTime, ...]:
    """One per call that any step after those for warming up made, in the order in which they were first made.

    A step that did not make it, as where layers are dropped at random, has 0 for it.
    """
    found = [{(span.path, span.call): span for span in step.spans} for step in steps]
    first: dict[tuple[str, int], Span] = {}
    parents: dict[tuple[str, int], int | None] = {}
    positions: dict[tuple[str, int], int] = {}
    differentiated = {(OUTSIDE, 0)}
    for step in steps[warmup:]:
        for span, has_backward in zip(step.spans, step.has_backward(), strict=True):
            key = (span.path, span.call)
            if key not in first:
                above = None if span.parent is None else step.spans[span.parent]
                first[key], positions[key] = span, len(positions)
                parents[key] = None if above is None else positions[above.path, above.call]
            if has_backward:
                differentiated.add(key)
    return tuple(
        _call(span, parents[key], [spans.get(key) for spans in found], is_training, key in differentiated)
        for key, span in first.items()
    )


def _call(
    span: Span, parent: int | None, same: Sequence[Span | None], is_training: bool, is_differentiated: bool
) -> CallTime:
    with_backward = is_training and is_differentiated
    return CallTime(
        path=span.path,
        type=span.type,
        call=span.call,
        parent=parent,
        forward=tuple(0.0 if one is None else one.forward for one in same),
        backward=tuple(0.0 if one is None else one.backward for one in same) if with_backward else (),
        reason=NOT_DIFFERENTIATED if is_training and not is_differentiated else None,
    )
