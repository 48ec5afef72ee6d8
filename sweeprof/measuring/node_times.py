"""Times of modules and operators from a run-time's own record of the nodes of a graph that ran."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeprof.counting.file_graph import NEVER_CALLED, around, modules_of
from sweeprof.counting.formulas import OperatorCost
from sweeprof.counting.mapping import Operator
from sweeprof.counting.operators import NOTHING
from sweeprof.measuring.layer_timing import bounded
from sweeprof.measuring.timing import Clock
from sweeprof.results.layer_times import ROOT, CallTime
from sweeprof.results.layers import Shapes
from sweeprof.results.operators import OperatorRow, Phase


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
    costs = [cost_of(node) for node in nodes]
    heaviest = max(range(len(nodes)), key=lambda index: costs[index] or NOTHING)
    known = [cost[1] for cost in costs if cost is not None]
    return nodes[heaviest].path, (sum(known) or None) if len(known) == len(costs) else None


StepPair = tuple[float, float]
"""Seconds of a step without the record and of one with it."""


def pairs_in_turns(
    pair: Callable[[int], StepPair],
    clock: Clock,
    samples: int,
    seconds: float,
    longest: float,
    fewest: int = 1,
    most: float = math.inf,
) -> list[StepPair]:
    """Take pairs until there are enough.

    Args:
        pair: takes the pair of this number.
        clock: of the steps.
        samples: as many at least, and for so many ``seconds`` at least.
        seconds: see there.
        longest: seconds at most.
        fewest: as many at least, however long they take.
        most: as many at most.
    """
    begin = clock.now()
    taken: list[StepPair] = []
    while len(taken) < most:
        spent = clock.now() - begin
        if len(taken) >= fewest and (spent >= longest or (len(taken) >= samples and spent >= seconds)):
            break
        taken.append(pair(len(taken)))
    return taken


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
    paths = modules_of(ran.path for step in steps for ran in step)
    own: dict[str, list[float]] = {path: [] for path in paths if types.get(path) not in NEVER_CALLED}
    for step, lasted in zip(steps, seconds, strict=True):
        windows, costs = dict.fromkeys(own, 0.0), dict.fromkeys(own, 0.0)
        for ran in step:
            windows[ran.path] += ran.seconds
            costs[ran.path] += inside
        windows[ROOT] += max(0.0, lasted - sum(ran.seconds for ran in step))
        costs[ROOT] += outside * len(step)
        for path, value in zip(own, bounded(list(windows.values()), list(costs.values())), strict=True):
            own[path].append(value)
    position = {path: index for index, path in enumerate(own)}
    return tuple(
        CallTime(
            path=path,
            type=types.get("" if path == ROOT else path, ""),
            call=0,
            parent=next((position[one] for one in reversed(around(path)[:-1]) if one in position), None),
            forward=tuple(values),
        )
        for path, values in own.items()
    )


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
    return tuple(
        OperatorRow(
            path=path,
            operator=op,
            phase=phase,
            calls=row.calls / steps,
            self_s=row.seconds / steps,
            total_s=(row.seconds + row.within) / steps,
            device_self_s=row.seconds / steps if on_device else None,
            device_total_s=row.seconds / steps if on_device else None,
            flops=None if row.flops is None else row.flops // steps,
            allocated_bytes=None if row.allocated is None else round(row.allocated / steps),
            input_shapes=shapes,
        )
        for (path, op, phase, shapes), row in sums.items()
    )
