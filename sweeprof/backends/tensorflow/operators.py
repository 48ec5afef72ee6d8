"""The operators that a step runs, from a few traced steps, by layer and phase.

Times are the profiler's, its own cost included; they say where the time of a step goes, and the timing pass how long it takes. In a
graph an operator is found by its name, so that one which stands for several (``_FusedConv2D``) belongs to the layer of the last of
them. Run one by one, operators belong to the layer whose call, or whose backward, was running when they began.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from sweeprof.backends.tensorflow.model import TensorflowModel, graph_of
from sweeprof.backends.tensorflow.probes import LayerProbes
from sweeprof.backends.tensorflow.steps import taping
from sweeprof.backends.tensorflow.tracing import (
    Attribution,
    AttributionByName,
    GraphPositions,
    HostTimestamps,
    LayerPhase,
    OperatorRun,
    PhaseBoundaries,
    TensorflowTrace,
    traced,
)
from sweeprof.backends.tensorflow.training import StepPhases, step_phases_of
from sweeprof.errors import Unsupported
from sweeprof.measuring.training_config import Work
from sweeprof.results.layers import Shapes
from sweeprof.results.operators import OperatorRow, Operators, Phase

WARMUP_STEPS = 2
TRACED_STEPS = 3
UNCOUNTED = "operators of TensorFlow are not counted one by one: the layer table has the FLOPs of every layer"


def operators(model: TensorflowModel, work: Work) -> Operators:
    """Return the operators that a step runs; a training step changes the weights.

    Raises:
        Unsupported: a profiler of TensorFlow is running, the model has no layers when it runs, is on an accelerator, or the config
            does not fit it.
        Exception: whatever the model raised.
    """
    if model.device != "cpu":
        raise Unsupported("not implemented: the profiler's events of an accelerator are not read")
    task = step_phases_of(model, work)
    with tf.device(model.device):
        step = _Eager(task) if model.variant.mode == "eager" else _Graph(task)
        for _ in range(WARMUP_STEPS):
            step.run()
        traced(step.run, 1)  # the first trace also pays for what the profiler sets up once
        step.forget()
        trace = traced(step.run, TRACED_STEPS)
    return Operators(
        mode="training" if task.trains else "inference",
        rows=_rows(trace, step),
        steps=TRACED_STEPS,
        step_s=trace.step_s,
        flops_reason=UNCOUNTED,
        files={"trace.json.gz": trace.chrome},
    )


class _Eager:
    """A step operator by operator."""

    def __init__(self, task: StepPhases) -> None:
        self._task, self._clock = task, HostTimestamps()
        self._probes = LayerProbes(task.root, self._clock, task.parameters)
        self._steps: list[tuple[PhaseBoundaries, Attribution]] = []

    def run(self) -> None:
        turns = _stepped(self._task, self._task.fed, self._probes, self._clock.now)
        self._steps.append((turns, Attribution(self._probes, turns)))

    def forget(self) -> None:
        """Forget the steps so far."""
        self._steps.clear()
        self._clock.busy.clear()

    def owner(self, ran: OperatorRun) -> LayerPhase | None:
        """Return the layer and phase at the operator's begin; None for a part of another operator, of no step, or of a probe."""
        if ran.name or self._clock.was_busy(ran.begin):
            return None
        found = (owners for turns, owners in self._steps if turns.begin <= ran.begin < turns.end)
        return next((owners.at(ran.begin) for owners in found), None)

    def shapes(self, ran: OperatorRun) -> Shapes:
        """The profiler has none."""
        return ()


class _Graph:
    """A step as a graph."""

    def __init__(self, task: StepPhases) -> None:
        self._task = task
        self._program = graph_of(self._step, autograph=False)
        self._owners: AttributionByName | None = None

    def _step(self, *fed: object) -> object:
        places, results = GraphPositions(), list[tf.Tensor]()
        probes = LayerProbes(self._task.root, places, self._task.parameters)
        turns = _stepped(self._task, fed, probes, places.now, results)
        self._owners = AttributionByName(Attribution(probes, turns), places.graph.get_operations())
        return results

    def run(self) -> None:
        self._program(*self._task.fed)

    def forget(self) -> None:
        """Nothing: a graph stays as it is."""

    def owner(self, ran: OperatorRun) -> LayerPhase | None:
        """Return the layer and phase of the operator of that name; None for the graph itself, which is called like an operator."""
        return None if self._owners is None or not ran.name else self._owners.of(ran.name)

    def shapes(self, ran: OperatorRun) -> Shapes:
        """Return the shapes of the operator's inputs in the graph."""
        return () if self._owners is None else self._owners.shapes(ran.name, ran.type)


def _stepped(
    task: StepPhases,
    fed: Sequence[object],
    probes: LayerProbes,
    now: Callable[[], int],
    results: list[tf.Tensor] | None = None,
) -> PhaseBoundaries:
    """One whole step, its outputs added to ``results``."""
    begin = now()
    with taping(task) as tape, probes.attached(tape):
        outputs = task.forward(*fed)
    turned = now()
    gradients = [] if tape is None else tape.gradient(outputs, task.parameters)
    update = now()
    if task.update is not None:
        task.update(gradients)
    if results is not None:
        results.append(outputs)
    return PhaseBoundaries(begin, turned, update, now())


@dataclass(slots=True)
class _LayerSums:
    """Sums over all calls of one row and all steps; nanoseconds."""

    calls: int = 0
    own: float = 0.0
    total: float = 0.0
    shapes: list[Shapes] = field(default_factory=list)


def _rows(trace: TensorflowTrace, step: _Eager | _Graph) -> tuple[OperatorRow, ...]:
    """One per path, operator, phase and input shapes, in the order in which they first ran."""
    sums: defaultdict[tuple[str, str, Phase, Shapes], _LayerSums] = defaultdict(_LayerSums)
    phase: Phase = "forward"
    for ran in trace.ran:
        owner = step.owner(ran)
        if owner is None:
            continue
        path, phase = (
            owner[0],
            owner[1] or phase,
        )  # what TensorFlow adds to a graph by itself serves what runs beside it
        row = sums[path, ran.type, phase, step.shapes(ran)]
        row.calls += 1
        row.own += ran.own
        row.total += ran.total
    return tuple(
        OperatorRow(
            path=path,
            operator=name,
            phase=phase,
            calls=row.calls / TRACED_STEPS,
            self_s=row.own / TRACED_STEPS / 1e9,
            total_s=row.total / TRACED_STEPS / 1e9,
            device_self_s=None,
            device_total_s=None,
            flops=None,
            allocated_bytes=None,
            input_shapes=shapes,
        )
        for (path, name, phase, shapes), row in sums.items()
    )
