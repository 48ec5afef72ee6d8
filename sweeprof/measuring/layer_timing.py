"""The times of layers, computed in the same way for every framework.

A framework that can mark time at its layers gives the events of steps with probes, which alternate with steps without; the probes'
cost is subtracted. A run-time that records the nodes of its graph gives these instead, each with the path of its layer.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sweeprof.counting.file_graph import NEVER_CALLED, Operator, around, modules_of
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.operators import NOTHING
from sweeprof.measuring.timing import Clock
from sweeprof.results.layer_times import OUTSIDE, ROOT, CallTime, LayerTimes, PhaseTimes
from sweeprof.results.layers import Shapes
from sweeprof.results.observations import OperatorRow, Phase
from sweeprof.results.record import Protocol

LEFT = -1
"""Instead of a module's index: the innermost call has been left."""

FOLLOWED = -2
"""The time since the previous mark was spent on following the backward; it is not counted."""

Event = tuple[int | None, int, Any]
"""The thing that began (a module's index, None for a node of the backward, or one of the above), the newest number that autograd
had given to a node (for a node its own number), and the mark."""
Between = Callable[[Any, Any], float]
Timeline = list[tuple[int, int]]
"""The newest number that autograd had given to a node when a call began to run, or continued; ascending."""
NOT_DIFFERENTIATED = "no gradient is computed in it"
LEAST_KEPT = 0.1
"""Share of an observed window that remains at least: what ran took some time, however little of it was the layer's own."""
MOST_EXCESS = 0.05
"""Share of the subtracted cost that may exceed the windows it is subtracted from. A higher share means that a probe costs less than
was calibrated, as it cannot cost more than the windows that it is part of."""


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """The cost of one probe, in seconds."""

    inside: float = 0.0
    """Within the window of the call that it marks."""
    outside: float = 0.0
    """Within the window of the call around it."""
    backward: float = 0.0
    """Of a node of the backward."""


@dataclass(slots=True)
class ProbeCount:
    """The number of probes that ran within a window, by the cost of each."""

    inside: int = 0
    outside: int = 0
    backward: int = 0

    def seconds(self, cost: ProbeCost) -> float:
        """Return what these probes cost together."""
        return self.inside * cost.inside + self.outside * cost.outside + self.backward * cost.backward


@dataclass(slots=True)
class Span:
    """One call within one step; seconds of its own, without the calls within it."""

    path: str
    type: str
    call: int
    parent: int | None
    forward: float = 0.0
    backward: float = 0.0
    nodes: int = 0
    """Nodes of the backward that belong to it."""
    forward_probes: ProbeCount = field(default_factory=ProbeCount)
    backward_probes: ProbeCount = field(default_factory=ProbeCount)
    is_recomputed: bool = False


@dataclass(slots=True)
class Step:
    """Every call of one step; the first stands for what runs outside any module."""

    spans: list[Span] = field(default_factory=list)

    def has_backward(self) -> list[bool]:
        """Per call, whether it or a call within it took part in the backward."""
        took_part = [span.nodes > 0 or span.is_recomputed for span in self.spans]
        for index, span in reversed(list(enumerate(self.spans))):  # a call comes after the one it was made in
            if span.parent is not None and took_part[index]:
                took_part[span.parent] = True
        return took_part


class Reader:
    """Reads the events of steps of one model.

    Args:
        modules: per index, the paths and the class name of a module.
        between: seconds from one mark to another.
    """

    def __init__(self, modules: Sequence[tuple[list[str], str]], between: Between) -> None:
        self._modules, self._between = modules, between

    def step(self, forward: Sequence[Event], begin: object, end: object) -> tuple[Step, Timeline]:
        """The calls of a forward that lasted from ``begin`` to ``end``, and which call was running as nodes were numbered."""
        step, timeline = Step([Span(OUTSIDE, "", 0, None)]), [(0, 0)]
        spans, between = step.spans, self._between
        times: Counter[str] = Counter()
        current, last = 0, begin
        for what, number, mark in forward:
            spans[current].forward += between(last, mark)
            last = mark
            if what == LEFT:
                current = spans[current].parent or 0
            elif what is not None:
                above = spans[current]
                above.forward_probes.outside += 1
                names, kind = self._modules[what]
                path = path_below(names, above.path)
                spans.append(Span(path, kind, times[path], current or None, forward_probes=ProbeCount(inside=1)))
                times[path] += 1
                current = len(spans) - 1
            timeline.append((number, current))
        spans[current].forward += between(last, end)
        return step, timeline

    def backward(self, step: Step, timeline: Timeline, events: Sequence[Event], begin: object, end: object) -> None:
        """Add the backward of a step that lasted from ``begin`` to ``end``; it includes what was recomputed."""
        spans, between = step.spans, self._between
        recomputed = _Recomputed(spans, self._modules)
        # The call that owns the present node, and within it the calls that are recomputed, the innermost last.
        stack, last = [0], begin
        for what, number, mark in events:
            if what == FOLLOWED:
                last = mark
                continue
            spans[stack[-1]].backward += between(last, mark)
            last = mark
            if what is None:
                stack[0] = timeline[bisect_right(timeline, number, key=lambda entry: entry[0]) - 1][1]
                spans[stack[0]].nodes += 1
                spans[stack[-1]].backward_probes.backward += 1
                continue
            if what == LEFT:
                stack.pop()
                spans[stack[-1]].backward_probes.outside += 1
            else:
                stack.append(recomputed.call(what, stack[-1] if len(stack) > 1 else None))
                spans[stack[-1]].backward_probes.inside += 1
            timeline.append((number, stack[-1]))
        spans[stack[-1]].backward += between(last, end)


def without_probes(step: Step, cost: ProbeCost) -> Step:
    """Return the step with the probes' cost subtracted from each call, as far as the observed windows allow.

    The cost is lowered if it exceeds the windows by more than :data:`MOST_EXCESS`, and a call keeps at least :data:`LEAST_KEPT` of
    its window: a call that took time is never shown with none.
    """
    forward = [(span.forward, span.forward_probes.seconds(cost)) for span in step.spans]
    backward = [(span.backward, span.backward_probes.seconds(cost)) for span in step.spans]
    spans = []
    for span, forward_s, backward_s in zip(step.spans, bounded(forward), bounded(backward), strict=True):
        spans.append(dataclasses.replace(span, forward=forward_s, backward=backward_s))
    return Step(spans)


def bounded(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Return each window less its cost, given in pairs, bounded as in :func:`without_probes`."""
    share = _consistent_share(pairs)
    return [max(window - share * cost, LEAST_KEPT * window) for window, cost in pairs]


def _consistent_share(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the largest share of the costs, at most 1, of which no more than :data:`MOST_EXCESS` exceeds the windows."""
    allowed = MOST_EXCESS * sum(cost for _, cost in pairs)
    if sum(max(0.0, cost - window) for window, cost in pairs) <= allowed:
        return 1.0
    # In the order in which growing costs exceed their windows; `share * (cost - allowed) = window` is where too much does.
    ordered = sorted((window / cost, window, cost) for window, cost in pairs if cost > 0)
    windows = costs = 0.0
    for index, (_, window, cost) in enumerate(ordered):
        windows, costs = windows + window, costs + cost
        following = ordered[index + 1][0] if index + 1 < len(ordered) else math.inf
        if costs > allowed and windows / (costs - allowed) <= following:
            return min(1.0, windows / (costs - allowed))
    return 1.0


def joined(calls: Sequence[tuple[Step, Timeline]]) -> tuple[Step, Timeline]:
    """Several calls of a model, in the order in which they were made, as one step; what runs outside any module is one again."""
    outside = Span(OUTSIDE, "", 0, None)
    spans, timeline = [outside], [(0, 0)]
    times: Counter[str] = Counter()
    for step, entries in calls:
        offset = len(spans) - 1
        outside.forward += step.spans[0].forward
        outside.forward_probes.outside += step.spans[0].forward_probes.outside
        for span in step.spans[1:]:
            parent = None if span.parent is None else span.parent + offset
            spans.append(dataclasses.replace(span, call=times[span.path], parent=parent))
            times[span.path] += 1
        for number, index in entries[1:]:  # without its (0, 0)
            timeline.append((number, index + offset if index else 0))
    return Step(spans), timeline


class _Recomputed:
    """Finds the call of the forward that is computed once more, in a checkpoint."""

    def __init__(self, spans: list[Span], modules: Sequence[tuple[list[str], str]]) -> None:
        self._spans = spans
        module_of: dict[str, int] = {}
        for module, (names, _) in enumerate(modules):
            module_of.update(dict.fromkeys(names, module))
        self._waiting: dict[int, list[int]] = {}
        for index in range(len(spans) - 1, 0, -1):
            self._waiting.setdefault(module_of[spans[index].path], []).append(index)

    def call(self, module: int, within: int | None) -> int:
        """Return the first call within a recomputed call; of top-level calls the most recent, whose backward runs first."""
        waiting = self._waiting.get(module)
        if not waiting:
            return within or 0
        index = waiting[0]
        if within is not None:
            for inner in waiting:
                if self._spans[inner].parent == within:
                    index = inner
        if len(waiting) > 1:
            waiting.remove(index)
        self._spans[index].is_recomputed = True
        return index


def path_below(names: list[str], parent: str) -> str:
    """Return the name by which its caller holds a module that has several: the nearest one below the caller, if there is one."""
    if len(names) == 1:
        return names[0]
    inner = names
    if parent != ROOT:
        inner = [name for name in names if name.startswith(f"{parent}.")]
    return min(inner, key=lambda name: name.count("."), default=names[0])


# ---------------------------------------------------------------------------------------------------------------------
# Steps with probes and without, in turns
# ---------------------------------------------------------------------------------------------------------------------

MOST_ATTEMPTS = 3
"""Calibrations and groups of repeats, should the calls not add up to the step."""
MOST_REPEATS = 200
"""Repeats that are kept at most: a small model takes as many in a fraction of a second."""
LEAST_PAIRS = 8
"""Of real steps, before they may correct the calibration."""
DOUBT = 0.5
"""The relative standard deviation of the calibration."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One step: what it took, and with probes which call took how much, their cost included."""

    forward: float
    backward: float
    step: Step | None = None


T = TypeVar("T")
Pairs = list[tuple[Turn, Turn]]
TakePair = Callable[[int], tuple[Turn, Turn]]
"""Takes the pair of this number: a step without probes and one with them."""


def in_turns(plain: Callable[[], T], probed: Callable[[], T]) -> Callable[[int], tuple[T, T]]:
    """Takes such pairs; which of the two comes first takes turns, as the second finds warmer caches."""

    def pair(number: int) -> tuple[T, T]:
        if number % 2:
            return plain(), probed()
        second = probed()
        return plain(), second

    return pair


def pairs_in_turns(
    pair: Callable[[int], T],
    clock: Clock,
    samples: int,
    seconds: float,
    longest: float,
    fewest: int = 1,
    most: float = math.inf,
) -> list[T]:
    """Take pairs until there are enough.

    Args:
        pair: takes the pair of this number.
        clock: of the steps.
        samples: so many pairs are taken at least, unless that takes longer than ``longest``.
        seconds: for so long pairs are taken at least.
        longest: seconds after which no further pair is taken.
        fewest: so many pairs are taken at least, however long that takes.
        most: so many pairs are taken at most.
    """
    begin = clock.now()
    taken: list[T] = []
    while len(taken) < most:
        spent = clock.now() - begin
        if len(taken) >= fewest and (spent >= longest or (len(taken) >= samples and spent >= seconds)):
            break
        taken.append(pair(len(taken)))
    return taken


def timed_in_turns(
    pair: TakePair, calibrate: Callable[[], ProbeCost], clock: Clock, protocol: Protocol, is_training: bool
) -> LayerTimes:
    """Return the times of every call, of as many repeats as the protocol asks of a round.

    If the calls do not add up to the step without probes, the probes are calibrated again and more repeats are taken, at most
    :data:`MOST_ATTEMPTS` times and within the protocol's longest time.

    Args:
        pair: takes the pairs.
        calibrate: measures what a probe costs.
        clock: of the steps.
        protocol: how long to warm up and to measure.
        is_training: whether a step has a backward.
    """
    costs = [calibrate()]
    fewest, most = protocol.warmup_steps, max(MOST_REPEATS, protocol.warmup_steps)
    warmup = pairs_in_turns(pair, clock, 0, protocol.warmup_s, protocol.max_s, fewest, most)
    kept: Pairs = []
    spent, most = 0.0, max(MOST_REPEATS, protocol.min_samples)
    while True:
        begin, longest = clock.now(), protocol.max_s - spent
        kept += pairs_in_turns(pair, clock, protocol.min_samples, protocol.min_s, longest, most=most)
        spent += clock.now() - begin
        cost = ProbeCost(
            statistics.median(cost.inside for cost in costs),
            statistics.median(cost.outside for cost in costs),
            statistics.median(cost.backward for cost in costs),
        )
        times = _times(warmup, kept, cost, protocol, is_training)
        if not times.warnings or len(costs) == MOST_ATTEMPTS or spent >= protocol.max_s:
            return times
        costs.append(calibrate())


def _times(warmup: Pairs, kept: Pairs, cost: ProbeCost, protocol: Protocol, is_training: bool) -> LayerTimes:
    """Return the times of all pairs but those that only prolonged the warm-up."""
    cost = fitted(cost, [*warmup[protocol.warmup_steps :], *kept])
    shown = warmup[: protocol.warmup_steps]
    plain, probed = zip(*shown, *kept, strict=True)
    steps = [without_probes(turn.step, cost) for turn in probed if turn.step is not None]
    backward = None
    if is_training:
        backward = PhaseTimes(tuple(turn.backward for turn in plain), tuple(turn.backward for turn in probed))
    return LayerTimes(
        mode="training" if is_training else "inference",
        calls=calls_of(steps, is_training, len(shown)),
        warmup=len(shown),
        forward=PhaseTimes(tuple(turn.forward for turn in plain), tuple(turn.forward for turn in probed)),
        backward=backward,
        unmet=(f"min_samples={protocol.min_samples}",) if len(kept) < protocol.min_samples else (),
        probe_s=dataclasses.asdict(cost),
    )


def fitted(cost: ProbeCost, pairs: Pairs) -> ProbeCost:
    """Return the cost, moved towards what probes added to these steps, the further the more certain that is.

    In a small model the probes are much of a step, and what they add is measured well; in a large one it is lost in the noise, and
    the calibration stands. It is never more than what they added, so that the calls add up to no less than the step without probes.
    """
    last = None
    added_forward, added_backward = [], []
    for plain, probed in pairs:
        last = probed.step or last
        added_forward.append(probed.forward - plain.forward)
        added_backward.append(probed.backward - plain.backward)
    if last is None:
        return cost
    forward = _factor(sum(span.forward_probes.seconds(cost) for span in last.spans), added_forward)
    backward = _factor(sum(span.backward_probes.seconds(cost) for span in last.spans), added_backward)
    return ProbeCost(cost.inside * forward, cost.outside * forward, cost.backward * backward)


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
    pair = in_turns(plain, probed)
    taken = [pair(number) for number in range(pairs)]
    return max(0.0, statistics.median(after - before for before, after in taken))


def calls_of(steps: Sequence[Step], is_training: bool, warmup: int = 0) -> tuple[CallTime, ...]:
    """One per call that any step after those for warming up made, in the order in which they were first made.

    A step that did not make it, as where layers are dropped at random, has 0 for it.
    """
    first: dict[tuple[str, int], Span] = {}
    parents: dict[tuple[str, int], int | None] = {}
    positions: dict[tuple[str, int], int] = {}
    differentiated = {(OUTSIDE, 0)}
    for step in steps[warmup:]:
        for span, has_backward in zip(step.spans, step.has_backward(), strict=True):
            key = (span.path, span.call)
            if key not in first:
                first[key], positions[key], parents[key] = span, len(positions), None
                if span.parent is not None:
                    above = step.spans[span.parent]
                    parents[key] = positions[above.path, above.call]
            if has_backward:
                differentiated.add(key)
    forward: dict[tuple[str, int], list[float]] = {key: [0.0] * len(steps) for key in first}
    backward: dict[tuple[str, int], list[float]] = {key: [0.0] * len(steps) for key in first}
    for number, step in enumerate(steps):
        for span in step.spans:
            key = (span.path, span.call)
            if key in first:
                forward[key][number], backward[key][number] = span.forward, span.backward
    calls = []
    for key, span in first.items():
        call = CallTime(span.path, span.type, span.call, parents[key], tuple(forward[key]))
        if is_training and key in differentiated:
            call = dataclasses.replace(call, backward=tuple(backward[key]))
        elif is_training:
            call = dataclasses.replace(call, reason=NOT_DIFFERENTIATED)
        calls.append(call)
    return tuple(calls)


# ---------------------------------------------------------------------------------------------------------------------
# Times from a run-time's record of the nodes of a graph
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One node that ran once."""

    op: str
    path: str
    """Of its module."""
    flops: int | None
    """As counted on the graph before the run-time optimised it; None where that is not known, or it does none."""
    seconds: float
    allocated: int | None
    """Bytes that it took from the allocator, less those that were given back while it ran; None where that is not known."""
    input_shapes: Shapes
    phase: Phase = "forward"
    within: float = 0.0
    """Seconds of the nodes that it called."""


def origin_of(nodes: Sequence[Operator], cost_of: Callable[[Operator], OperatorCost | None]) -> tuple[str, int | None]:
    """Return the module of the most expensive of some nodes, and the FLOPs of all; None if they are not known or 0."""
    heaviest, flops = NOTHING, 0
    path, are_known = nodes[0].path, True
    for node in nodes:
        cost = cost_of(node)
        if cost is None:
            are_known = False
            continue
        flops += cost[1]
        if cost > heaviest:
            heaviest, path = cost, node.path
    return path, flops if flops and are_known else None


StepPair = tuple[float, float]
"""Seconds of a step without the record and of one with it."""


def module_times(
    steps: Sequence[Sequence[NodeRun]],
    seconds: Sequence[float],
    types: Mapping[str, str],
    inside: float = 0.0,
    outside: float = 0.0,
) -> tuple[CallTime, ...]:
    """Return the times of the modules that nodes belong to, and of those around them.

    What a step takes beside its nodes is the root's.

    Args:
        steps: the nodes of each step.
        seconds: of each step.
        types: class name by module path.
        inside: what the record of a node adds to its time.
        outside: what it adds to the step beside that.
    """
    own: dict[str, list[float]] = {}
    for path in modules_of(ran.path for step in steps for ran in step):
        if types.get(path) not in NEVER_CALLED:
            own[path] = []
    for step, lasted in zip(steps, seconds, strict=True):
        windows, costs = dict.fromkeys(own, 0.0), dict.fromkeys(own, 0.0)
        for ran in step:
            windows[ran.path] += ran.seconds
            costs[ran.path] += inside
        windows[ROOT] += max(0.0, lasted - sum(ran.seconds for ran in step))
        costs[ROOT] += outside * len(step)
        values = bounded(list(zip(windows.values(), costs.values(), strict=True)))
        for path, value in zip(own, values, strict=True):
            own[path].append(value)
    position = {path: index for index, path in enumerate(own)}
    times = []
    for path, found in own.items():
        parents = [position[one] for one in around(path)[:-1] if one in position]
        kind = types.get("" if path == ROOT else path, "")
        times.append(CallTime(path, kind, 0, parents[-1] if parents else None, tuple(found)))
    return tuple(times)


@dataclass(slots=True)
class _NodeSums:
    """Sums over all nodes of one row and all steps."""

    calls: int = 0
    seconds: float = 0.0
    within: float = 0.0
    allocated: int | None = 0
    flops: int | None = 0


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def operator_rows(nodes: Iterable[NodeRun], steps: int, *, on_device: bool = False) -> tuple[OperatorRow, ...]:
    """Return one row per path, operator, phase and input shapes, in the order in which they first ran: means over the steps.

    Args:
        nodes: of all steps.
        steps: how many.
        on_device: whether the seconds are those of an accelerator.
    """
    sums: defaultdict[tuple[str, str, Phase, Shapes], _NodeSums] = defaultdict(_NodeSums)
    for ran in nodes:
        row = sums[ran.path, ran.op, ran.phase, ran.input_shapes]
        row.calls += 1
        row.seconds += ran.seconds
        row.within += ran.within
        row.allocated = _sum(row.allocated, ran.allocated)
        row.flops = _sum(row.flops, ran.flops)
    rows = []
    for (path, op, phase, shapes), row in sums.items():
        self_s = row.seconds / steps
        operator = OperatorRow(
            path=path,
            operator=op,
            phase=phase,
            calls=row.calls / steps,
            self_s=self_s,
            total_s=(row.seconds + row.within) / steps,
            device_self_s=self_s if on_device else None,
            device_total_s=self_s if on_device else None,
            flops=None if row.flops is None else row.flops // steps,
            allocated_bytes=None if row.allocated is None else round(row.allocated / steps),
            input_shapes=shapes,
        )
        rows.append(operator)
    return tuple(rows)
