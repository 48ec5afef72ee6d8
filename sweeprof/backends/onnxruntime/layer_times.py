"""The time of every module's nodes: steps with and without ONNX Runtime's profiler alternate, each kind in its own session.

The graph is the one that the run-time has optimised, as it runs without the profiler: a module whose nodes are fused into another's
has no time of its own. What a step takes beside its nodes, the run-time's own walk over the graph, is the root's. What the profiler
costs for each node is calibrated (``profiler.py``), corrected by what it added to the steps, and subtracted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from sweeprof.backends.onnxruntime.files import Exported
from sweeprof.backends.onnxruntime.model import OnnxModel, SessionFeed
from sweeprof.backends.onnxruntime.profiler import NodeRun, Profiled, ProfilerOverhead, calibrated, profiled
from sweeprof.counting.graph import NEVER_CALLED, ordered
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import MOST_ATTEMPTS, bounded
from sweeprof.measuring.timing import Clock, without_collection
from sweeprof.results.layer_times import ROOT, CallTime, LayerTimes, PhaseTimes, above, disagreement
from sweeprof.results.protocol import Protocol

MOST_REPEATS = 200
MOST_EVENTS = 60_000
"""Nodes in a trace: the profiler keeps them in memory, and writes about 600 bytes each."""
FEWEST_REPEATS = 3
"""After warming up, however large the model."""

RunStep = Callable[[], object]
StepPair = tuple[float, float]
"""Seconds of a step without the profiler and of one under it."""


def layer_times(model: OnnxModel, batch: SessionFeed, protocol: Protocol) -> LayerTimes:
    """The modules' times of inference; as many repeats as the protocol asks of a round.

    Raises:
        Unsupported: the graph has no nodes.
        Exception: whatever ONNX Runtime raised.
    """
    with model.stepping(batch) as plain, without_collection(), profiled(model, batch) as seen:
        if not seen.nodes:
            raise Unsupported("the optimised graph has no nodes: its results are constants")
        warmup, kept = _taken(plain, seen, model.clock(), protocol)
        cost = calibrated(model)
    cost = cost.refined(_added([*warmup[protocol.warmup_steps :], *kept]) / max(1, len(seen.steps[0])))
    warmup_kept = warmup[: protocol.warmup_steps]
    pairs = [*warmup_kept, *kept]
    steps = [*seen.steps[: len(warmup_kept)], *seen.steps[len(warmup) :]]
    return LayerTimes(
        mode="inference",
        calls=_calls(steps, [probed for _, probed in pairs], cost, model.file),
        warmup=len(warmup_kept),
        forward=PhaseTimes(tuple(plain for plain, _ in pairs), tuple(probed for _, probed in pairs)),
        probe_s={"inside": cost.inside, "outside": cost.outside},
        unmet=(f"min_samples={protocol.min_samples}",) if len(kept) < protocol.min_samples else (),
    )


def _taken(plain: RunStep, seen: Profiled, clock: Clock, protocol: Protocol) -> tuple[list[StepPair], list[StepPair]]:
    """The pairs of steps for warming up, and those that count.

    More are taken, at most :data:`MOST_ATTEMPTS` times as many, while steps less what the profiler adds to them differ from steps
    without it.
    """
    most = max(FEWEST_REPEATS, min(MOST_REPEATS, MOST_EVENTS // seen.nodes // 2))
    spent = 0.0

    def pairs(fewest: int, seconds: float) -> list[StepPair]:
        nonlocal spent
        begin = clock.now()
        taken: list[StepPair] = []
        while len(taken) < most and (
            not taken
            or ((len(taken) < fewest or clock.now() - begin < seconds) and spent + clock.now() - begin < protocol.max_s)
        ):
            taken.append(_pair(plain, seen, clock, len(taken)))
        spent += clock.now() - begin
        return taken

    warmup = pairs(protocol.warmup_steps, protocol.warmup_s)
    spent = 0.0
    kept = pairs(protocol.min_samples, protocol.min_s)
    for _ in range(MOST_ATTEMPTS - 1):
        if spent >= protocol.max_s or _agree(kept):
            break
        kept += pairs(protocol.min_samples, protocol.min_s)
    return warmup, kept


def _agree(pairs: Sequence[StepPair]) -> bool:
    plain, probed = zip(*pairs, strict=True)
    return disagreement(plain, [seconds - _added(pairs) for seconds in probed]) is None


def _pair(plain: RunStep, seen: Profiled, clock: Clock, number: int) -> StepPair:
    """Run a step of each kind; their order alternates, because the second finds warmer caches."""
    if number % 2:
        return _lasting(plain, clock), _lasting(seen.step, clock)
    probed = _lasting(seen.step, clock)
    return _lasting(plain, clock), probed


def _lasting(step: RunStep, clock: Clock) -> float:
    begin = clock.mark()
    step()
    return clock.between(begin, clock.mark())


def _added(pairs: Sequence[StepPair]) -> float:
    """Return what the profiler adds to a step, in seconds; never less than nothing."""
    return max(0.0, statistics.median(probed - plain for plain, probed in pairs))


def _calls(
    steps: Sequence[Sequence[NodeRun]], seconds: Sequence[float], cost: ProfilerOverhead, file: Exported
) -> tuple[CallTime, ...]:
    """One per module that nodes belong to, and those around it."""
    paths = ordered(ran.path for step in steps for ran in step)
    own: dict[str, list[float]] = {path: [] for path in paths if file.types.get(path) not in NEVER_CALLED}
    for step, lasted in zip(steps, seconds, strict=True):
        windows, costs = dict.fromkeys(own, 0.0), dict.fromkeys(own, 0.0)
        for ran in step:
            windows[ran.path] += ran.seconds
            costs[ran.path] += cost.inside
        windows[ROOT] += max(0.0, lasted - sum(ran.seconds for ran in step))
        costs[ROOT] += cost.outside * len(step)
        for path, value in zip(own, bounded(list(windows.values()), list(costs.values())), strict=True):
            own[path].append(value)
    position = {path: index for index, path in enumerate(own)}
    return tuple(
        CallTime(
            path=path,
            type=file.types.get("" if path == ROOT else path, ""),
            call=0,
            parent=next((position[one] for one in reversed(above(path)) if one in position), None),
            forward=tuple(values),
        )
        for path, values in own.items()
    )
