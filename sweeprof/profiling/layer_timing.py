"""Steps with probes and steps without, in turns: what is the same for every framework that can mark time at its layers."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeprof.profiling.spans import NOT_DIFFERENTIATED, Cost, Span, Step
from sweeprof.profiling.timing import Protocol
from sweeprof.results.layer_times import CallTime, LayerTimes, PhaseTimes
from sweeprof.results.paths import OUTSIDE

MOST_REPEATS = 200
"""Repeats that are kept at most: a small model takes as many in a fraction of a second."""
LEAST_PAIRS = 8
"""Of real steps, before they may correct the calibration."""
DOUBT = 0.5
"""How wrong the calibration may be: a standard deviation, as a share of it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step: what it took, and with probes which call took how much."""

    forward: float
    backward: float
    step: Step | None = None


Pairs = list[tuple[Turn, Turn]]
TakePair = Callable[[int], tuple[Turn, Turn]]
"""Takes the pair of this number: a step without probes and one with them."""


def in_turns(plain: Callable[[], Turn], probed: Callable[[], Turn]) -> TakePair:
    """Takes such pairs; which of the two comes first takes turns, as the second finds warmer caches."""

    def pair(number: int) -> tuple[Turn, Turn]:
        if number % 2:
            return plain(), probed()
        second = probed()
        return plain(), second

    return pair


def timed_in_turns(
    pairs_at: Callable[[Cost], TakePair], cost: Cost, now: Callable[[], float], protocol: Protocol, is_training: bool
) -> LayerTimes:
    """The times of every call, of as many repeats as the protocol asks of a round.

    Args:
        pairs_at: what takes the pairs, of which this much is taken off for the probes.
        cost: of a probe, as calibrated; warming up refines it.
        now: seconds since any fixed point.
        protocol: how long to warm up and to measure.
        is_training: whether a step has a backward.
    """
    warmup, cost = _warmed_up(pairs_at(cost), now, cost, protocol)
    kept = _measured(pairs_at(cost), now, protocol)
    plain, probed = zip(*warmup, *kept, strict=True)
    backward = PhaseTimes(tuple(turn.backward for turn in plain), tuple(turn.backward for turn in probed))
    return LayerTimes(
        mode="training" if is_training else "inference",
        calls=calls_of([turn.step for turn in probed if turn.step is not None], is_training, len(warmup)),
        warmup=len(warmup),
        forward=PhaseTimes(tuple(turn.forward for turn in plain), tuple(turn.forward for turn in probed)),
        backward=backward if is_training else None,
        unmet=(f"min_samples={protocol.min_samples}",) if len(kept) < protocol.min_samples else (),
        probe_s=dataclasses.asdict(cost),
    )


def _warmed_up(pair: TakePair, now: Callable[[], float], cost: Cost, protocol: Protocol) -> tuple[Pairs, Cost]:
    """The protocol's first steps, which are kept, and what the probes cost as all of its warming up shows."""
    begin = now()
    pairs: Pairs = []
    while len(pairs) < protocol.warmup_steps or (
        now() - begin < min(protocol.warmup_s, protocol.max_s) and len(pairs) < MOST_REPEATS
    ):
        pairs.append(pair(len(pairs)))
    steps = [probed.step for _, probed in pairs if probed.step is not None]
    if not steps:
        return [], cost
    forward = [probed.forward - plain.forward for plain, probed in pairs]
    backward = [probed.backward - plain.backward for plain, probed in pairs]
    nodes = sum(span.nodes for span in steps[-1].spans)
    return pairs[: protocol.warmup_steps], refined(cost, len(steps[-1].spans) - 1, forward, nodes, backward)


def _measured(pair: TakePair, now: Callable[[], float], protocol: Protocol) -> Pairs:
    """The repeats that count."""
    begin = now()

    def elapsed() -> float:
        return now() - begin

    kept: Pairs = []
    while not kept or (
        (len(kept) < protocol.min_samples or (elapsed() < protocol.min_s and len(kept) < MOST_REPEATS))
        and elapsed() < protocol.max_s
    ):
        kept.append(pair(len(kept)))
    return kept


def refined(cost: Cost, calls: int, forward: Sequence[float], nodes: int, backward: Sequence[float]) -> Cost:
    """The cost, moved towards what probes added to real steps, the further the more certain that is.

    In a small model the probes are much of a step, and what they add is measured well; in a large one it is lost in the noise, and
    the calibration stands.

    Args:
        cost: as calibrated.
        calls: of modules in a step.
        forward: seconds that the forward of a step took longer with probes than without, one value per pair of steps.
        nodes: of the backward of a step.
        backward: the same of the backward.
    """
    grown = _factor(calls * (cost.inside + cost.outside), forward)
    return Cost(cost.inside * grown, cost.outside * grown, cost.backward * _factor(nodes * cost.backward, backward))


def _factor(calibrated: float, added: Sequence[float]) -> float:
    """The mean of both figures, weighted by how certain they are, over the calibrated one."""
    if calibrated <= 0 or len(added) < LEAST_PAIRS:
        return 1.0
    low, median, high = statistics.quantiles(added, n=4)
    error = 0.93 * (high - low) / math.sqrt(len(added))  # of a median, where the values are normally distributed
    doubt = DOUBT * calibrated
    weight = doubt**2 / (doubt**2 + error**2)
    return max(0.0, 1 + weight * (median / calibrated - 1))


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
