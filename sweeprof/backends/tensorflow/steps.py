"""One step after the other of a task, with marks in time: operator by operator, or as a graph."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from sweeprof.backends.tensorflow.model import graph_of
from sweeprof.backends.tensorflow.probes import LayerProbes
from sweeprof.backends.tensorflow.training import StepPhases
from sweeprof.measuring.layer_timing import Event

UNORDERED = {"Placeholder", "Const", "VarHandleOp"}
"""Operators that do nothing when they run."""


class Timestamps:
    """The timestamps of the graph that is being made, in the order in which they will be taken."""

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self.taken: list[tf.Tensor] = []

    def is_here(self) -> bool:
        return tf.compat.v1.get_default_graph() is self._graph

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool = False) -> tuple[int, list[tf.Tensor]]:
        """The mark is the timestamp's index."""
        # What made a tensor can be fused with what is before it only if no timestamp waits for it directly.
        before = [tf.identity(tensor) for tensor in tensors]
        with tf.control_dependencies([*before, *self.taken[-1:]]):
            stamp = tf.timestamp()
        with tf.control_dependencies([stamp]):
            after = [tf.identity(tensor) for tensor in before]
        self.taken.append(stamp)
        return len(self.taken) - 1, after

    def hold(self, results: object, from_both_sides: bool) -> None:
        """Hold everything that ``results`` or the state of a variable depend on to its stretch.

        Args:
            results: what the graph returns.
            from_both_sides: whether also what waits for no other operator of its stretch waits for the timestamp before it.
        """
        operators = list(self._graph.get_operations())
        stamps = [stamp.op for stamp in self.taken]
        needed = _needed(operators, [leaf.op for leaf in tf.nest.flatten(results) if isinstance(leaf, tf.Tensor)])
        stretches: list[set[tf.Operation]] = [set() for _ in range(len(stamps) + 1)]
        for operator, number in _numbered(operators, stamps, needed).items():
            stretches[number].add(operator)
        for stretch, before, after in zip(stretches, [None, *stamps], [*stamps, None], strict=True):
            _hold(stretch, before if from_both_sides else None, after)


def _needed(operators: Sequence[tf.Operation], results: Sequence[tf.Operation]) -> set[tf.Operation]:
    """Return the operators that the results need; timestamps must not make others run, such as unused gradients."""
    waiting = [*results, *(operator for operator in operators if operator.op_def.is_stateful)]
    needed = set()
    while waiting:
        operator = waiting.pop()
        if operator not in needed:
            needed.add(operator)
            waiting += _sources(operator)
    return {operator for operator in needed if operator.type not in UNORDERED}


def _numbered(
    operators: Sequence[tf.Operation], stamps: Sequence[tf.Operation], needed: set[tf.Operation]
) -> dict[tf.Operation, int]:
    """The stretch of every operator: that in which it was made, or an earlier one where something there needs it.

    So it is with what the gradient of a loop adds to the loop afterwards, for it to remember what the gradient needs.
    """
    numbers: dict[tf.Operation, int] = {}
    ended, left = set(stamps), 0
    for operator in operators:
        if operator in ended:
            left += 1
        elif operator in needed:
            numbers[operator] = left
    waiting = list(numbers)
    while waiting:
        operator = waiting.pop()
        for source in _sources(operator):
            if numbers.get(source, 0) > numbers[operator]:
                numbers[source] = numbers[operator]
                waiting.append(source)
    return numbers


def _hold(stretch: set[tf.Operation], before: tf.Operation | None, after: tf.Operation | None) -> None:
    """Let what waits for nothing in the stretch wait for the timestamp before it, and that after it for what nothing waits for."""
    awaited = set[tf.Operation]()
    for operator in stretch:
        sources = [source for source in _sources(operator) if source in stretch]
        awaited.update(sources)
        if before is not None and not sources and before not in operator.control_inputs:
            operator._add_control_input(before)
    for operator in stretch.difference(awaited, [] if after is None else after.control_inputs):
        if after is not None:
            after._add_control_input(operator)


def _sources(operator: tf.Operation) -> list[tf.Operation]:
    return [*(tensor.op for tensor in operator.inputs), *operator.control_inputs]


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step; seconds since any fixed point."""

    begin: float
    turned: float
    """When its forward was over; of inference all of it."""
    end: float
    results: object
    """The outputs, or the loss and the gradients."""
    forward: Sequence[Event] = ()
    backward: Sequence[Event] = ()


class TimedSteps(Protocol):
    """A task that can be run again and again."""

    @property
    def described(self) -> list[tuple[list[str], str]]:
        """Per index of an event, the path and the class name of a layer; known once a step with probes has run."""

    def run_step(self, is_probed: bool) -> TimedStep:
        """One step."""


def timed_steps_of(task: StepPhases, is_eager: bool) -> TimedSteps:
    """The steps of a task, each kind of which has run once."""
    steps: TimedSteps = EagerSteps(task) if is_eager else GraphSteps(task)
    for is_probed in (False, True):
        steps.run_step(is_probed)
    return steps


class HostMarks:
    """Marks on the host's clock; what was called has been done."""

    def __init__(self, with_backward: bool) -> None:
        self._with_backward = with_backward

    def is_here(self) -> bool:
        return bool(tf.executing_eagerly())

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[float, list[tf.Tensor]]:
        """Return the time and the tensors, passed on; the time that this takes is outside of the call's own window."""
        if not self._with_backward:
            return time.perf_counter(), list(tensors)
        mark = time.perf_counter()
        passed = [tf.identity(tensor) for tensor in tensors]
        return (time.perf_counter() if is_entry else mark), passed


class EagerSteps:
    """Operator by operator."""

    def __init__(self, task: StepPhases) -> None:
        self._task = task
        self._probes = LayerProbes(task.root, HostMarks(task.trains), task.parameters)

    @property
    def described(self) -> list[tuple[list[str], str]]:
        return self._probes.described

    def run_step(self, is_probed: bool) -> TimedStep:
        probes, task = self._probes, self._task
        with taping(task) as tape, probes.attached(tape) if is_probed else nullcontext():
            begin = time.perf_counter()
            results = task.forward(*task.fed)
            turned = end = time.perf_counter()
        if tape is not None:
            results = results, tape.gradient(results, task.parameters)
            end = time.perf_counter()
        events = (probes.forward, probes.backward) if is_probed else ()
        return TimedStep(begin, turned, end, results, *events)


class GraphSteps:
    """Steps that run as a graph, one with probes and one without."""

    def __init__(self, task: StepPhases) -> None:
        self._plain, self._probed = _Program(task, is_probed=False), _Program(task, is_probed=True)

    @property
    def described(self) -> list[tuple[list[str], str]]:
        return self._probed.probes.described if self._probed.probes else []

    def run_step(self, is_probed: bool) -> TimedStep:
        return (self._probed if is_probed else self._plain).run_step()


class _Program:
    """A step as a graph that takes its marks itself; the host's clock, from which its timestamps are, tells when it is called."""

    def __init__(self, task: StepPhases, is_probed: bool) -> None:
        self._task, self._is_probed = task, is_probed
        self._turn: int | None = None
        """Which timestamp is between forward and backward."""
        self._run = graph_of(self._step, autograph=False)
        self.probes: LayerProbes | None = None
        """Those of the graph, once it is made."""

    def _step(self, *fed: object) -> object:
        task, stamps = self._task, Timestamps()
        probes = self.probes = LayerProbes(task.root, stamps, task.parameters)
        with taping(task) as tape, probes.attached(tape) if self._is_probed else nullcontext():
            results = task.forward(*fed)
        if tape is not None:
            self._turn, (_, seed) = stamps.at([results, tf.ones_like(results)])
            results = results, tape.gradient(results, task.parameters, output_gradients=seed)
        taken = tf.stack(stamps.taken) if stamps.taken else None
        stamps.hold((results, taken), from_both_sides=self._is_probed)
        return results, taken

    def run_step(self) -> TimedStep:
        begin = time.time()
        results, taken = self._run(*self._task.fed)
        end = time.time()
        stamps = [] if taken is None else taken.numpy().tolist()
        turned = end if self._turn is None else stamps[self._turn]
        assert self.probes is not None
        forward, backward = (
            [(what, number, stamps[index]) for what, number, index in events]
            for events in (self.probes.forward, self.probes.backward)
        )
        return TimedStep(begin, turned, end, results, forward, backward)


@contextmanager
def taping(task: StepPhases) -> Iterator[tf.GradientTape | None]:
    """Within it a tape follows what the parameters of a task do, where it has any."""
    if not task.trains:
        yield None
        return
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(task.parameters)
        yield tape
