"""From marks in time to the seconds of every call: pure bookkeeping, whatever made the marks.

A reader returns observed windows, which include what the probes cost. :func:`without_probes` subtracts that cost afterwards, when
it is known how far the steps themselves agree with the calibration.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sweeprof.results.paths import OUTSIDE, ROOT

LEFT = -1
"""Instead of a module's index: the innermost call has been left."""

FOLLOWED = -2
"""What has passed since the mark before was spent on following the backward, and counts for nothing."""

Event = tuple[int | None, int, Any]
"""What began (a module's index, None for a node of the backward, or one of the above), how far autograd had numbered its nodes (for
a node its own number), and the mark."""
Between = Callable[[Any, Any], float]
Timeline = list[tuple[int, int]]
"""How far autograd had numbered its nodes when a call began to run, or went on; rising."""
NOT_DIFFERENTIATED = "no gradient is computed in it"
LEAST_KEPT = 0.1
"""Share of an observed window that remains at least: what ran took some time, however little of it was the layer's own."""
MOST_EXCESS = 0.05
"""Share of the subtracted cost that may exceed the windows it is subtracted from. A higher share means that a probe costs less than
was calibrated, as it cannot cost more than the windows that it is part of."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a probe costs; seconds."""

    inside: float = 0.0
    """Within the window of the call that it marks."""
    outside: float = 0.0
    """Within the window of the call around it."""
    backward: float = 0.0
    """Of a node of the backward."""


@dataclass(slots=True)
class ProbeCount:
    """How many probes ran within a window, by what each of them costs."""

    inside: int = 0
    outside: int = 0
    backward: int = 0

    def seconds(self, cost: Cost) -> float:
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
        found = [span.nodes > 0 or span.is_recomputed for span in self.spans]
        for index in range(len(self.spans) - 1, -1, -1):  # a call comes after the one it was made in
            parent = self.spans[index].parent
            if parent is not None and found[index]:
                found[parent] = True
        return found


class Reader:
    """Reads the events of steps of one model.

    Args:
        modules: per index, the paths and the class name of a module.
        between: seconds from one mark to another.
    """

    def __init__(self, modules: Sequence[tuple[list[str], str]], between: Between) -> None:
        self._modules, self._between = modules, between

    def step(self, forward: Sequence[Event], begin: Any, end: Any) -> tuple[Step, Timeline]:
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

    def backward(self, step: Step, timeline: Timeline, events: Sequence[Event], begin: Any, end: Any) -> None:
        """Add the backward of a step that lasted from ``begin`` to ``end``; what was computed anew meanwhile is part of it."""
        spans, between = step.spans, self._between
        again = _Again(spans, self._modules)
        owner, inner, last = 0, list[int](), begin
        for what, number, mark in events:
            if what == FOLLOWED:
                last = mark
                continue
            spans[inner[-1] if inner else owner].backward += between(last, mark)
            last = mark
            if what is None:
                owner = timeline[bisect_right(timeline, number, key=lambda entry: entry[0]) - 1][1]
                spans[owner].nodes += 1
                spans[inner[-1] if inner else owner].backward_probes.backward += 1
                continue
            if what == LEFT:
                inner.pop()
                spans[inner[-1] if inner else owner].backward_probes.outside += 1
            else:
                inner.append(again.call(what, inner[-1] if inner else None))
                spans[inner[-1]].backward_probes.inside += 1
            timeline.append((number, inner[-1] if inner else owner))
        spans[inner[-1] if inner else owner].backward += between(last, end)


def without_probes(step: Step, cost: Cost) -> Step:
    """Return the step with the probes' cost subtracted from each call, as far as the observed windows allow.

    The cost is lowered if it exceeds the windows by more than :data:`MOST_EXCESS`, and a call keeps at least :data:`LEAST_KEPT` of
    its window: a call that took time is never shown with none.
    """
    forward = bounded([span.forward for span in step.spans], [span.forward_probes.seconds(cost) for span in step.spans])
    backward = bounded(
        [span.backward for span in step.spans], [span.backward_probes.seconds(cost) for span in step.spans]
    )
    return Step(
        [
            dataclasses.replace(span, forward=ahead, backward=back)
            for span, ahead, back in zip(step.spans, forward, backward, strict=True)
        ]
    )


def bounded(windows: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Return the windows less the costs, bounded as in :func:`without_probes`."""
    scale = _consistent_share(windows, costs)
    return [max(window - scale * cost, LEAST_KEPT * window) for window, cost in zip(windows, costs, strict=True)]


def _consistent_share(windows: Sequence[float], costs: Sequence[float]) -> float:
    """Return the largest share of the costs, at most 1, of which no more than :data:`MOST_EXCESS` exceeds the windows."""
    allowed = MOST_EXCESS * sum(costs)
    if sum(max(0.0, cost - window) for window, cost in zip(windows, costs, strict=True)) <= allowed:
        return 1.0
    # In the order in which growing costs exceed their windows; `share * (cost - allowed) = window` is where too much does.
    pairs = sorted(((w, c) for w, c in zip(windows, costs, strict=True) if c > 0), key=lambda pair: pair[0] / pair[1])
    window = cost = 0.0
    share = 1.0
    for index, (own_window, own_cost) in enumerate(pairs):
        window, cost = window + own_window, cost + own_cost
        following = pairs[index + 1][0] / pairs[index + 1][1] if index + 1 < len(pairs) else float("inf")
        if cost > allowed and window / (cost - allowed) <= following:
            share = window / (cost - allowed)
            break
    return min(1.0, share)


def joined(calls: Sequence[tuple[Step, Timeline]]) -> tuple[Step, Timeline]:
    """Several calls of a model as one step; what runs outside any module is one again."""
    outside = Span(OUTSIDE, "", 0, None)
    spans, timeline = [outside], Timeline()
    times: Counter[str] = Counter()
    for step, entries in calls:
        offset = len(spans) - 1
        outside.forward += step.spans[0].forward
        outside.forward_probes.outside += step.spans[0].forward_probes.outside
        for span in step.spans[1:]:
            parent = None if span.parent is None else span.parent + offset
            spans.append(dataclasses.replace(span, call=times[span.path], parent=parent))
            times[span.path] += 1
        timeline += [(number, index + offset if index else 0) for number, index in entries]
    return Step(spans), timeline


class _Again:
    """Which call of the forward is computed once more, in a checkpoint."""

    def __init__(self, spans: list[Span], modules: Sequence[tuple[list[str], str]]) -> None:
        self._spans = spans
        module_of = {name: module for module, (names, _) in enumerate(modules) for name in names}
        self._waiting: dict[int, list[int]] = {}
        for index in range(len(spans) - 1, 0, -1):
            self._waiting.setdefault(module_of[spans[index].path], []).append(index)

    def call(self, module: int, within: int | None) -> int:
        """Of the calls within the one that is computed anew the first; of those on top the last, whose backward comes first."""
        waiting = self._waiting.get(module)
        if not waiting:
            return within or 0
        inner = [index for index in waiting if within is not None and self._spans[index].parent == within]
        index = inner[-1] if inner else waiting[0]
        if len(waiting) > 1:
            waiting.remove(index)
        self._spans[index].is_recomputed = True
        return index


def path_below(names: list[str], parent: str) -> str:
    """Of the names of one module that by which its caller holds it: the nearest below it, if there is one."""
    if len(names) == 1:
        return names[0]
    inner = names if parent == ROOT else [name for name in names if name.startswith(f"{parent}.")]
    return min(inner, key=lambda name: name.count("."), default=names[0])
