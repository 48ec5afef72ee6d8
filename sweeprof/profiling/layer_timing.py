"""Steps with probes and steps without, in turns: what is the same for every framework that can mark time at its layers."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweeprof.profiling.spans import NOT_DIFFERENTIATED, Cost, Span, Step, without_probes
from sweeprof.profiling.timing import Protocol
from sweeprof.results.layer_times import CallTime, LayerTimes, PhaseTimes
from sweeprof.results.paths import OUTSIDE

MOST_ATTEMPTS = 3
"""Calibrations and groups of repeats, should the calls not add up to the step."""
MOST_REPEATS = 200
"""Repeats that are kept at most: a small model takes as many in a fraction of a second."""
LEAST_PAIRS = 8
"""Of real steps, before they may correct the calibration."""
DOUBT = 0.5
"""How wrong the calibration may be: a standard deviation, as a share of it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step: what it took, and with probes which call took how much, their cost included."""

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
    pair: TakePair, calibrate: Callable[[], Cost], now: Callable[[], float], protocol: Protocol, is_training: bool
) -> LayerTimes:
    """Return the times of every call, of as many repeats as the protocol asks of a round.

    If the calls do not add up to the step without probes, the probes are calibrated again and more repeats are taken, at most
    :data:`MOST_ATTEMPTS` times and within the protocol's longest time.

    Args:
        pair: takes the pairs.
        calibrate: measures what a probe costs.
        now: seconds since any fixed point.
        protocol: how long to warm up and to measure.
        is_training: whether a step has a backward.
    """
    costs = [calibrate()]
    warmup = _warmed_up(pair, now, protocol)
    kept: Pairs = []
    spent = 0.0
    while True:
        begin = now()
        kept += _measured(pair, now, protocol, protocol.max_s - spent)
        spent += now() - begin
        times = _times(warmup, kept, _middle(costs), protocol, is_training)
        if not times.warnings or len(costs) == MOST_ATTEMPTS or spent >= protocol.max_s:
            return times
        costs.append(calibrate())


def _times(warmup: Pairs, kept: Pairs, cost: Cost, protocol: Protocol, is_training: bool) -> LayerTimes:
    """Return the times of all pairs but those that only prolonged the warm-up."""
    cost = fitted(cost, [*warmup[protocol.warmup_steps :], *kept])
    shown = warmup[: protocol.warmup_steps]
    plain, probed = zip(*shown, *kept, strict=True)
    backward = PhaseTimes(tuple(turn.backward for turn in plain), tuple(turn.backward for turn in probed))
    steps = [without_probes(turn.step, cost) for turn in probed if turn.step is not None]
    return LayerTimes(
        mode="training" if is_training else "inference",
        calls=calls_of(steps, is_training, len(shown)),
        warmup=len(shown),
        forward=PhaseTimes(tuple(turn.forward for turn in plain), tuple(turn.forward for turn in probed)),
        backward=backward if is_training else None,
        unmet=(f"min_samples={protocol.min_samples}",) if len(kept) < protocol.min_samples else (),
        probe_s=dataclasses.asdict(cost),
    )


def _middle(costs: Sequence[Cost]) -> Cost:
    """Return the median of several calibrations."""
    return Cost(*map(statistics.median, zip(*map(dataclasses.astuple, costs), strict=True)))


def _warmed_up(pair: TakePair, now: Callable[[], float], protocol: Protocol) -> Pairs:
    begin = now()
    pairs: Pairs = []
    while len(pairs) < protocol.warmup_steps or (
        now() - begin < min(protocol.warmup_s, protocol.max_s) and len(pairs) < MOST_REPEATS
    ):
        pairs.append(pair(len(pairs)))
    return pairs


def _measured(pair: TakePair, now: Callable[[], float], protocol: Protocol, max_s: float) -> Pairs:
    """Return the repeats that count."""
    begin = now()

    def elapsed() -> float:
        return now() - begin

    kept: Pairs = []
    while not kept or (
        (len(kept) < protocol.min_samples or (elapsed() < protocol.min_s and len(kept) < MOST_REPEATS))
        and elapsed() < max_s
    ):
        kept.append(pair(len(kept)))
    return kept


def fitted(cost: Cost, pairs: Pairs) -> Cost:
    """Return the cost, moved towards what probes added to these steps, the further the more certain that is.

    In a small model the probes are much of a step, and what they add is measured well; in a large one it is lost in the noise, and
    the calibration stands. It is never more than what they added, so that the calls add up to no less than the step without probes.
    """
    steps = [probed.step for _, probed in pairs if probed.step is not None]
    if not steps:
        return cost
    spans = steps[-1].spans
    forward = _factor(
        sum(span.forward_probes.seconds(cost) for span in spans),
        [probed.forward - plain.forward for plain, probed in pairs],
    )
    backward = _factor(
        sum(span.backward_probes.seconds(cost) for span in spans),
        [probed.backward - plain.backward for plain, probed in pairs],
    )
    return Cost(cost.inside * forward, cost.outside * forward, cost.backward * backward)


def _factor(calibrated: float, added: Sequence[float]) -> float:
    """Return the factor for the calibrated cost: the mean of it and of what was added, weighted by how certain they are."""
    if calibrated <= 0:
        return 1.0
    observed = max(0.0, statistics.median(added)) / calibrated
    if len(added) < LEAST_PAIRS:
        return min(1.0, observed)
    low, _, high = statistics.quantiles(added, n=4)
    error = 0.93 * (high - low) / math.sqrt(len(added))  # of a median, where the values are normally distributed
    doubt = DOUBT * calibrated
    weight = doubt**2 / (doubt**2 + error**2)
    return min(observed, 1 + weight * (observed - 1))


def seconds_added(plain: Callable[[], float], probed: Callable[[], float], pairs: int) -> float:
    """Return how much longer ``probed`` takes than ``plain``: the median of paired differences, never less than 0.

    Both return the seconds that they took. Which of them comes first alternates, and a difference is of two runs that follow each
    other, so that neither a trend nor a machine that is busy for a while looks like a cost. Keep them short: what another process
    takes is then in few of the runs, which a median ignores.
    """
    differences = []
    for number in range(pairs):
        if number % 2:
            before = plain()
            differences.append(probed() - before)
        else:
            after = probed()
            differences.append(after - plain())
    return max(0.0, statistics.median(differences))


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
