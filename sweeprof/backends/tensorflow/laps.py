"""One step after the other of a task, with marks in time: operator by operator, or as a graph."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from sweeprof.backends.tensorflow.probes import Probes
from sweeprof.backends.tensorflow.programs import graph_of
from sweeprof.backends.tensorflow.stamps import Stamps
from sweeprof.backends.tensorflow.tasks import Task
from sweeprof.profiling.spans import Event


@dataclass(frozen=True, slots=True)
class Lap:
    """One step; seconds since any fixed point."""

    begin: float
    turned: float
    """When its forward was over; of inference all of it."""
    end: float
    results: Any
    """The outputs, or the loss and the gradients."""
    forward: Sequence[Event] = ()
    backward: Sequence[Event] = ()


class Laps(Protocol):
    """A task that can be run again and again."""

    @property
    def described(self) -> list[tuple[list[str], str]]:
        """Per index of an event, the path and the class name of a layer; known once a step with probes has run."""

    def lap(self, is_probed: bool) -> Lap:
        """One step."""


def laps_of(task: Task, is_eager: bool) -> Laps:
    """The steps of a task, each kind of which has run once."""
    laps: Laps = EagerLaps(task) if is_eager else GraphLaps(task)
    for is_probed in (False, True):
        laps.lap(is_probed)
    return laps


class PythonMarks:
    """Marks on the host's clock; what was called has been done."""

    def __init__(self, with_backward: bool) -> None:
        self._with_backward = with_backward

    def is_here(self) -> bool:
        return bool(tf.executing_eagerly())

    def at(self, tensors: Sequence[Any], is_entry: bool) -> tuple[float, list[Any]]:
        """What passing the tensors on takes is left out of the call's own window."""
        if not self._with_backward:
            return time.perf_counter(), list(tensors)
        mark = time.perf_counter()
        passed = [tf.identity(tensor) for tensor in tensors]
        return (time.perf_counter() if is_entry else mark), passed


class EagerLaps:
    """Operator by operator."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._probes = Probes(task.root, PythonMarks(task.trains), task.parameters)

    @property
    def described(self) -> list[tuple[list[str], str]]:
        return self._probes.described

    def lap(self, is_probed: bool) -> Lap:
        probes, task = self._probes, self._task
        with taping(task) as tape, probes.attached(tape) if is_probed else nullcontext():
            begin = time.perf_counter()
            results = task.forward(*task.fed)
            turned = end = time.perf_counter()
        if tape is not None:
            results = results, tape.gradient(results, task.parameters)
            end = time.perf_counter()
        events = (probes.forward, probes.backward) if is_probed else ()
        return Lap(begin, turned, end, results, *events)


class GraphLaps:
    """As a graph with probes, and as one without."""

    def __init__(self, task: Task) -> None:
        self._plain, self._probed = _Program(task, is_probed=False), _Program(task, is_probed=True)

    @property
    def described(self) -> list[tuple[list[str], str]]:
        return self._probed.probes.described if self._probed.probes else []

    def lap(self, is_probed: bool) -> Lap:
        return (self._probed if is_probed else self._plain).lap()


class _Program:
    """A step as a graph that takes its marks itself; the host's clock, from which its timestamps are, tells when it is called."""

    def __init__(self, task: Task, is_probed: bool) -> None:
        self._task, self._is_probed = task, is_probed
        self._turn: int | None = None
        """Which timestamp is between forward and backward."""
        self._run = graph_of(self._step, autograph=False)
        self.probes: Probes | None = None
        """Those of the graph, once it is made."""

    def _step(self, *fed: Any) -> Any:
        task, stamps = self._task, Stamps()
        probes = self.probes = Probes(task.root, stamps, task.parameters)
        with taping(task) as tape, probes.attached(tape) if self._is_probed else nullcontext():
            results = task.forward(*fed)
        if tape is not None:
            self._turn, (_, seed) = stamps.at([results, tf.ones_like(results)])
            results = results, tape.gradient(results, task.parameters, output_gradients=seed)
        taken = tf.stack(stamps.taken) if stamps.taken else None
        stamps.hold((results, taken), from_both_sides=self._is_probed)
        return results, taken

    def lap(self) -> Lap:
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
        return Lap(begin, turned, end, results, forward, backward)


@contextmanager
def taping(task: Task) -> Iterator[Any]:
    """Within it a tape follows what the parameters of a task do, where it has any."""
    if not task.trains:
        yield None
        return
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(task.parameters)
        yield tape
