"""From marks in time to the seconds of every call: pure bookkeeping, whatever made the marks."""

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
class Span:
    """One call within one step; seconds of its own, without the calls within it, the probes' cost subtracted."""

    path: str
    type: str
    call: int
    parent: int | None
    forward: float = 0.0
    backward: float = 0.0
    nodes: int = 0
    """Nodes of the backward that belong to it."""
    children: int = 0
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
        cost: what to subtract.
    """

    def __init__(self, modules: Sequence[tuple[list[str], str]], between: Between, cost: Cost) -> None:
        self._modules, self._between, self._cost = modules, between, cost

    @property
    def cost_s(self) -> dict[str, float]:
        """What is subtracted, by its name."""
        return dataclasses.asdict(self._cost)

    def step(self, forward: Sequence[Event], begin: Any, end: Any) -> tuple[Step, Timeline]:
        """The calls of a forward that lasted from ``begin`` to ``end``, and which call was running as nodes were numbered."""
        step, timeline = Step([Span(OUTSIDE, "", 0, None)]), [(0, 0)]
        spans, between, cost = step.spans, self._between, self._cost
        times: Counter[str] = Counter()
        current, last = 0, begin
        for what, number, mark in forward:
            spans[current].forward += between(last, mark)
            last = mark
            if what == LEFT:
                current = spans[current].parent or 0
            elif what is not None:
                above = spans[current]
                above.children += 1
                names, kind = self._modules[what]
                path = path_below(names, above.path)
                spans.append(Span(path, kind, times[path], current or None))
                times[path] += 1
                current = len(spans) - 1
            timeline.append((number, current))
        spans[current].forward += between(last, end)
        for index, span in enumerate(spans):
            own = cost.inside if index else 0.0
            span.forward = max(0.0, span.forward - own - cost.outside * span.children)
        return step, timeline

    def backward(self, step: Step, timeline: Timeline, events: Sequence[Event], begin: Any, end: Any) -> None:
        """Add the backward of a step that lasted from ``begin`` to ``end``; what was computed anew meanwhile is part of it."""
        spans, between, cost = step.spans, self._between, self._cost
        again = _Again(spans, self._modules)
        owner, inner, last, extra = 0, list[int](), begin, 0.0
        for what, number, mark in events:
            if what == FOLLOWED:
                last = mark
                continue
            spans[inner[-1] if inner else owner].backward += max(0.0, between(last, mark) - extra)
            last = mark
            if what is None:
                owner = timeline[bisect_right(timeline, number, key=lambda entry: entry[0]) - 1][1]
                spans[owner].nodes += 1
                extra = cost.backward
                continue
            if what == LEFT:
                inner.pop()
                extra = cost.outside
            else:
                inner.append(again.call(what, inner[-1] if inner else None))
                extra = cost.inside
            timeline.append((number, inner[-1] if inner else owner))
        spans[inner[-1] if inner else owner].backward += max(0.0, between(last, end) - extra)


def joined(calls: Sequence[tuple[Step, Timeline]]) -> tuple[Step, Timeline]:
    """Several calls of a model as one step; what runs outside any module is one again."""
    outside = Span(OUTSIDE, "", 0, None)
    spans, timeline = [outside], Timeline()
    times: Counter[str] = Counter()
    for step, entries in calls:
        offset = len(spans) - 1
        outside.forward += step.spans[0].forward
        outside.children += step.spans[0].children
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
