"""What the steps of a Keras model on TensorFlow do: times of layers, operators, allocations and source lines.

Layer times come from steps with probes: each call of a layer marks the time of its begin and end, forward and backward, and steps
with and without probes alternate. A graph takes the times itself (``tf.timestamp``), and control dependencies keep every operator
between the marks of its layer. Operator by operator, the host's clock is read.

Operators and allocations come from TensorFlow's profiler, which writes an XSpace: a protocol buffer of planes (the host, devices),
lines (threads) and events. In a graph an operator is found by its name, so that one which stands for several (``_FusedConv2D``)
belongs to the layer of the last of them. Run one by one, operators belong to the layer whose call, or whose backward, was running
when they began. A graph's operators are events named ``name:type`` on the threads of the run-time; those that Python runs one by
one are ``EagerExecute``. Times are the profiler's, its own cost included; they say where the time of a step goes, and the timing
pass how long it takes.

On the host, TensorFlow's default allocator reports large blocks only. The allocator of GPUs reports every block. It is also used
on the host if ``TF_CPU_ALLOCATOR_USE_BFC`` is set before TensorFlow starts. A sweep sets it for the pass that traces allocations
(``environment_for`` in the backend's YAML); the process of that pass measures nothing else.
"""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import statistics
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import tensorflow as tf

from sweeprof.backends.keras.counting import Paths
from sweeprof.backends.keras.private import all_layers, copy_mask, replaced
from sweeprof.backends.tensorflow import private
from sweeprof.backends.tensorflow.model import (
    StepPhases,
    TensorflowModel,
    graph_of,
    native,
    step_phases_of,
    sweeprof_name,
    tensors_in,
    whole_steps,
)
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import (
    LEFT,
    Event,
    NodeRun,
    ProbeCost,
    Reader,
    Turn,
    in_turns,
    operator_rows,
    timed_in_turns,
)
from sweeprof.measuring.line_profile import LineMemory, chosen_functions, watched
from sweeprof.measuring.process_memory import Change, course
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import OUTSIDE, LayerTimes, above
from sweeprof.results.observations import Allocations, Kind, Lines, Operators, Phase, TensorRow, largest_first
from sweeprof.results.record import Protocol

# ---------------------------------------------------------------------------------------------------------------------
# Probes: marks at the calls of layers
# ---------------------------------------------------------------------------------------------------------------------

TensorPairs = list[tuple[tf.Tensor, tf.Tensor]]


class Marks:
    """Makes marks in what runs while it is made: operators one by one, or a graph that is traced."""

    def __init__(self) -> None:
        self.graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def is_here(self) -> bool:
        """True if the running code is part of the step itself, not of a loop or branch within its graph."""
        if self.graph is None:
            return bool(tf.executing_eagerly())
        return tf.compat.v1.get_default_graph() is self.graph

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[Any, list[tf.Tensor]]:
        """A mark that comes after ``tensors``, and the same tensors, which come after the mark."""
        raise NotImplementedError


class HostMarks(Marks):
    """Marks on a clock of the host, in nanoseconds; what was called has been done.

    The time that a mark takes is outside of the call's own window.

    Args:
        with_backward: whether there is a backward, which needs other tensors beyond a mark than before it.
        clock: that of the epoch where marks are compared with the profiler's; others cannot be set back.
    """

    def __init__(self, with_backward: bool, clock: Callable[[], int] = time.time_ns) -> None:
        super().__init__()
        self._with_backward, self._clock = with_backward, clock
        self._busy: list[tuple[int, int]] = []
        """When tensors were passed on, which takes an operator of its own."""

    def now(self) -> int:
        return self._clock()

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[int, list[tf.Tensor]]:
        begin = self.now()
        if not self._with_backward:
            return begin, list(tensors)
        passed = [tf.identity(tensor) for tensor in tensors]
        end = self.now()
        self._busy.append((begin, end))
        return end if is_entry else begin, passed

    def was_busy(self, mark: float) -> bool:
        """True if tensors were being passed on at the time ``mark``."""
        place = bisect_right(self._busy, mark, key=lambda span: span[0]) - 1
        return place >= 0 and mark < self._busy[place][1]


class GraphPositions(Marks):
    """Marks are places in the order in which the operators of a graph are made.

    Args:
        with_backward: as of :class:`HostMarks`.
    """

    def __init__(self, with_backward: bool) -> None:
        super().__init__()
        self._with_backward = with_backward

    def is_here(self) -> bool:
        if self.graph is None and not tf.executing_eagerly():
            self.graph = tf.compat.v1.get_default_graph()  # the first one that is made
        return self.graph is not None and super().is_here()

    @property
    def operators(self) -> Sequence[tf.Operation]:
        """The operators of the graph so far."""
        return () if self.graph is None else self.graph.get_operations()

    def now(self) -> int:
        return len(self.operators)

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[int, list[tf.Tensor]]:
        place = self.now()
        if self._with_backward:
            return place, [tf.identity(tensor) for tensor in tensors]
        return place, list(tensors)


class LayerProbes:
    """Marks the calls of every layer below a root while it is :meth:`attached`.

    Args:
        root: the model.
        parameters: variables, as TensorFlow has them, that a tape around the model watches; none: there is no backward.
    """

    def __init__(self, root: keras.Layer, parameters: Collection[tf.Variable]) -> None:
        self._root = root
        self._marks: Marks
        self._parameters = {parameter.ref() for parameter in parameters}
        self._paths = Paths()
        self._index: dict[str, int] = {}
        self._running: list[str] = []
        self._is_closed = False
        self._tape: Any = None
        self._thread = threading.get_ident()
        self.described: list[tuple[list[str], str]] = []
        """Per index, the path and the class name of a layer."""
        self.forward: list[Event] = []
        """In a step so far; the numbers of events take the place of those of autograd nodes."""
        self.backward: list[Event] = []

    @contextmanager
    def attached(self, marks: Marks, tape: tf.GradientTape | None = None) -> Iterator[None]:
        """Within it calls of layers leave marks; afterwards Keras is as it was.

        A layer that the backward calls once more leaves none, and is part of what calls it.

        Args:
            marks: how a mark is made.
            tape: that follows the model.
        """
        call = keras.Layer.__call__

        def called(layer: keras.Layer, *args: object, **kwargs: object) -> object:
            if (
                not self._is_closed
                and (bool(self._running) or layer is self._root)
                and threading.get_ident() == self._thread
                and self._marks.is_here()
            ):
                return self._probed(call, layer, args, kwargs)
            return call(layer, *args, **kwargs)

        self.forward, self.backward, self._running, self._is_closed = [], [], [], False
        self._marks, self._tape = marks, tape
        # AutoGraph takes Keras's own method as it is, and would rewrite this one.
        with replaced(keras.Layer, "__call__", private.autograph_artifact(called)):
            yield

    def _probed(self, call: Callable[..., object], layer: keras.Layer, args: Args, kwargs: Kwargs) -> object:
        path = self._paths.below(self._running[-1] if self._running else OUTSIDE, layer)
        index = self._index.setdefault(path, len(self._index))
        if index == len(self.described):
            self.described.append(([path], type(layer).__name__))
        given, around = _tensors_in((args, kwargs)), self._tape
        sources: TensorPairs = []
        with ExitStack() as stack:
            tape = None
            if around is not None:
                followed = [_has_gradient(t) and private.record.should_record_backprop([t]) for t in given]
                # Where two tapes follow a loop, TensorFlow computes its gradient as if for a second derivative.
                stack.enter_context(around.stop_recording())
                tape = stack.enter_context(tf.GradientTape())
            entered, inside = self._passed(given, index)
            if tape is not None:
                for outer, inner, is_followed in zip(given, inside, followed, strict=True):
                    if is_followed:
                        sources.append((outer, inner))
                        tape.watch(inner)
            args, kwargs = _with_tensors((args, kwargs), inside)
            self._running.append(path)
            self._tape, self._is_closed = tape, isinstance(layer, keras.layers.RNN)
            try:
                outputs = call(layer, *args, **kwargs)
            finally:
                self._tape, self._is_closed = around, False
                self._running.pop()
            returned = _tensors_in(outputs)
            left, outside = self._passed(returned, LEFT)
        if tape is not None:
            self._record(tape, sources, list(zip(returned, outside, strict=True)), entered, left)
        return _with_tensors(outputs, outside)

    def _passed(self, tensors: list[tf.Tensor], what: int) -> tuple[int, list[tf.Tensor]]:
        """The number of an event of the forward, and the tensors beyond its mark, of which no tape knows."""
        with private.record.stop_recording():
            mark, after = self._marks.at(tensors, what != LEFT)
        number = len(self.forward) + 1
        self.forward.append((what, number, mark))
        return number, after

    def _record(
        self, tape: tf.GradientTape, sources: TensorPairs, results: TensorPairs, entered: int, left: int
    ) -> None:
        """Let the tape around a call see it as one operation.

        Args:
            tape: has seen the call, and nothing else.
            sources: tensors that the call was given and that need a gradient, before the mark and after it.
            results: what it returned, before the mark and after it.
            entered: the number of the event at which it began.
            left: that at which it ended.
        """
        variables = [variable for variable in tape.watched_variables() if variable.ref() in self._parameters]
        inner = [*(after for _, after in sources), *variables]
        outer = [*(before for before, _ in sources), *(variable.handle for variable in variables)]
        pairs = [pair for pair in results if _has_gradient(pair[0])]
        if not outer or not pairs:
            return
        self._tape.watch(variables)

        def gradient(*given: tf.Tensor) -> list[tf.Tensor]:
            begun = self._turned(list(given), entered)
            found = tape.gradient([output for output, _ in pairs], inner, output_gradients=begun)
            return self._turned(found, left)

        private.record.record_operation("Layer", [outside for _, outside in pairs], outer, gradient)

    def _turned(self, gradients: list[tf.Tensor], number: int) -> list[tf.Tensor]:
        """The gradients beyond a mark of the backward, from which on it belongs to the call that ran from ``number`` on."""
        dense = [place for place, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
        mark, after = self._marks.at([gradients[place] for place in dense], True)
        self.backward.append((None, number, mark))
        for place, gradient in zip(dense, after, strict=True):
            gradients[place] = gradient
        return gradients


def _tensors_in(structure: object) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(structure) if isinstance(leaf, tf.Tensor)]


def _with_tensors(structure: Any, tensors: Sequence[tf.Tensor]) -> Any:
    """Return a structure with other tensors instead of its own, which have the same masks."""
    waiting = iter(tensors)

    def other(leaf: object) -> object:
        if not isinstance(leaf, tf.Tensor):
            return leaf
        tensor = next(waiting)
        copy_mask(leaf, tensor)
        return tensor

    return keras.tree.map_structure(other, structure)


def _has_gradient(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


# ---------------------------------------------------------------------------------------------------------------------
# Layer times
# ---------------------------------------------------------------------------------------------------------------------

UNORDERED = {"Placeholder", "Const", "VarHandleOp"}
"""Operators that do nothing when they run."""
CALLS = 40
"""Empty layers in one step that calibrates the probes."""
PAIRS = 25
"""Such steps with probes, and as many without, in alternating order; medians count."""


class Timestamps(Marks):
    """The timestamps of the graph that is being made, in the order in which they will be taken."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tf.Tensor] = []

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
        stamps = [stamp.op for stamp in self.taken]
        numbers = self._stretches(results)
        awaited = set[tf.Operation]()  # by others of their stretch
        for operator, number in numbers.items():
            sources = [source for source in _sources(operator) if numbers.get(source) == number]
            awaited.update(sources)
            if from_both_sides and number and not sources and stamps[number - 1] not in operator.control_inputs:
                private.add_control_input(operator, stamps[number - 1])
        waited_for = [set(stamp.control_inputs) for stamp in stamps]
        for operator, number in numbers.items():
            if number < len(stamps) and operator not in awaited and operator not in waited_for[number]:
                private.add_control_input(stamps[number], operator)

    def _stretches(self, results: object) -> dict[tf.Operation, int]:
        """Return the number of timestamps before each operator that the results need.

        Timestamps must not make others run, such as unused gradients. An operator is in the stretch in which it was made, or in an
        earlier one where something there needs it: so it is with what the gradient of a loop adds to the loop afterwards, for it
        to remember what the gradient needs.
        """
        operators = self.graph.get_operations()
        waiting = [leaf.op for leaf in tf.nest.flatten(results) if isinstance(leaf, tf.Tensor)]
        waiting += [operator for operator in operators if operator.op_def.is_stateful]
        needed = set[tf.Operation]()
        while waiting:
            operator = waiting.pop()
            if operator not in needed:
                needed.add(operator)
                waiting += _sources(operator)
        stamps, number = {stamp.op for stamp in self.taken}, 0
        numbers: dict[tf.Operation, int] = {}
        for operator in operators:
            if operator in stamps:
                number += 1
            elif operator in needed and operator.type not in UNORDERED:
                numbers[operator] = number
        waiting = list(numbers)
        while waiting:
            operator = waiting.pop()
            for source in _sources(operator):
                if numbers.get(source, 0) > numbers[operator]:
                    numbers[source] = numbers[operator]
                    waiting.append(source)
        return numbers


def _sources(operator: tf.Operation) -> list[tf.Operation]:
    return [*(tensor.op for tensor in operator.inputs), *operator.control_inputs]


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One step; times in nanoseconds of one clock."""

    begin: int
    turned: int
    """When its forward was over; of inference all of it."""
    end: int
    results: object
    """The outputs, or the loss and the gradients."""
    forward: Sequence[Event] = ()
    backward: Sequence[Event] = ()


class EagerSteps:
    """Steps that run operator by operator."""

    def __init__(self, task: StepPhases) -> None:
        self._task = task
        self.probes = LayerProbes(task.root, task.parameters)

    def run_step(self, is_probed: bool) -> TimedStep:
        """Return one step."""
        probes, task, marks = self.probes, self._task, HostMarks(self._task.trains, time.perf_counter_ns)
        with task.taping() as tape, probes.attached(marks, tape) if is_probed else nullcontext():
            begin = marks.now()
            results = task.forward(*task.fed)
            turned = end = marks.now()
        if tape is not None:
            results = results, task.gradients(results, tape)
            end = marks.now()
        if not is_probed:
            return TimedStep(begin, turned, end, results)
        return TimedStep(begin, turned, end, results, probes.forward, probes.backward)


class GraphSteps:
    """Steps that run as a graph, one with probes and one without.

    A graph takes its marks itself. The host's clock, from which its timestamps are, tells when it is called.
    """

    def __init__(self, task: StepPhases) -> None:
        self._task = task
        self._turns: dict[bool, int] = {}
        """Which timestamp is between forward and backward, of steps with probes and without."""
        self._runs = [graph_of(partial(self._step, is_probed), autograph=False) for is_probed in (False, True)]
        self.probes = LayerProbes(task.root, task.parameters)

    def _step(self, is_probed: bool, *fed: Any) -> object:
        task, stamps = self._task, Timestamps()
        with task.taping() as tape, self.probes.attached(stamps, tape) if is_probed else nullcontext():
            results = task.forward(*fed)
        if tape is not None:
            self._turns[is_probed], (_, seed) = stamps.at([results, tf.ones_like(results)])
            results = results, task.gradients(results, tape, seed)
        taken = tf.stack(stamps.taken) if stamps.taken else None
        stamps.hold((results, taken), from_both_sides=is_probed)
        return results, taken

    def run_step(self, is_probed: bool) -> TimedStep:
        """Return one step."""
        begin = time.time_ns()
        results, taken = self._runs[is_probed](*self._task.fed)
        turned = end = time.time_ns()
        stamps = [] if taken is None else [round(seconds * 1e9) for seconds in taken.numpy().tolist()]
        if is_probed in self._turns:
            turned = stamps[self._turns[is_probed]]
        if not is_probed:
            return TimedStep(begin, turned, end, results)
        forward = [(what, number, stamps[index]) for what, number, index in self.probes.forward]
        backward = [(what, number, stamps[index]) for what, number, index in self.probes.backward]
        return TimedStep(begin, turned, end, results, forward, backward)


def timed_steps_of(task: StepPhases, is_eager: bool) -> EagerSteps | GraphSteps:
    """The steps of a task, each kind of which has run once."""
    steps = EagerSteps(task) if is_eager else GraphSteps(task)
    for is_probed in (False, True):
        steps.run_step(is_probed)
    return steps


def layer_times(model: TensorflowModel, work: Work, protocol: Protocol) -> LayerTimes:
    """The layers' times of inference, or of training with a config; as many repeats as the protocol asks of a round.

    Raises:
        Unsupported: the model has no layers when it runs, it is on an accelerator, or the training config does not fit it.
        Exception: whatever the model raised.
    """
    if model.device != "cpu":
        raise Unsupported("timestamps are the host's, which is ahead of an accelerator: layers are timed on the CPU")
    task, is_eager = step_phases_of(model, work), model.mode == "eager"
    with tf.device(model.device), without_collection():
        steps = timed_steps_of(task, is_eager)
        reader = Reader(steps.probes.described, _seconds)

        def plain() -> Turn:
            timed = steps.run_step(False)
            return Turn(_seconds(timed.begin, timed.turned), _seconds(timed.turned, timed.end))

        def probed() -> Turn:
            timed = steps.run_step(True)
            step, timeline = reader.step(timed.forward, timed.begin, timed.turned)
            if timed.backward:
                reader.backward(step, timeline, timed.backward, timed.turned, timed.end)
            return Turn(_seconds(timed.begin, timed.turned), _seconds(timed.turned, timed.end), step)

        calibrate = partial(calibrated, is_eager, task.trains)
        return timed_in_turns(in_turns(plain, probed), calibrate, model.clock(), protocol, task.trains)


def _seconds(begin: int, end: int) -> float:
    return (end - begin) / 1e9


class _EmptyLayer(keras.Layer):  # type: ignore[misc]
    """A layer that returns its input."""


class _EmptyLayers(keras.Layer):  # type: ignore[misc]
    """Empty calls."""

    def __init__(self) -> None:
        super().__init__(name="many")
        self.built = True  # it has no weights
        self.inner = [_EmptyLayer(name=f"empty_{number}") for number in range(CALLS)]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        for layer in self.inner:
            x = layer(x)
        return x


def calibrated(is_eager: bool, with_backward: bool) -> ProbeCost:
    """The cost of the probes of a call, and with ``with_backward`` of a mark in the backward; seconds."""
    weight, root = tf.Variable(1.0), _EmptyLayers()
    task = StepPhases(root, lambda: root(weight * tf.ones((4, 4))), ((), {}, None))
    if with_backward:
        task = replace(task, loss=lambda outputs, _: tf.reduce_mean(outputs), variables=(weight,))
    call = keras.Layer.__call__

    def called(layer: keras.Layer, *args: object, **kwargs: object) -> object:
        # Without what Keras does around a call, which would be taken for the probes' cost.
        return args[0] if isinstance(layer, _EmptyLayer) else call(layer, *args, **kwargs)

    with replaced(keras.Layer, "__call__", called):
        steps = timed_steps_of(task, is_eager)
        pair = in_turns(partial(steps.run_step, False), partial(steps.run_step, True))
        pairs = [pair(number) for number in range(PAIRS)]
    windows, forward, backward = [], [], []
    for plain, probed in pairs:
        empty = []
        for (what, _, begin), (following, _, end) in pairwise(probed.forward):
            if what != LEFT and following == LEFT:
                empty.append(_seconds(begin, end))
        windows.append(statistics.median(empty))  # an interrupted one does not count
        forward.append(_seconds(probed.begin, probed.turned) - _seconds(plain.begin, plain.turned))
        backward.append(_seconds(probed.turned, probed.end) - _seconds(plain.turned, plain.end))
    inside = statistics.median(windows)
    whole = statistics.median(forward) / (CALLS + 1)
    events = max(1, len(pairs[-1][1].backward))
    return ProbeCost(inside, max(0.0, whole - inside), max(0.0, statistics.median(backward) / events))


# ---------------------------------------------------------------------------------------------------------------------
# TensorFlow's profiler
# ---------------------------------------------------------------------------------------------------------------------

STEP = "sweeprof step"
HOST = "/host:CPU"
EAGER = "EagerExecute"
TRACE_NUMBERS = re.compile(r"(_\d+)+$")
"""What TensorFlow appends to the name of a compiled function, another at every trace."""


@dataclass(slots=True)
class ProfiledOperator:
    """One operator that ran once, as the profiler saw it; nanoseconds."""

    name: str
    """In its graph; nothing where it ran alone."""
    type: str
    begin: int
    """Since the epoch."""
    total: float
    own: float
    """Without the operators within it on its thread."""


@dataclass(frozen=True, slots=True)
class TensorflowTrace:
    """Every operator in the order in which they began."""

    ran: list[ProfiledOperator]
    step_s: float
    """Seconds of one step, mean."""
    chrome: bytes
    """Everything that the profiler saw on the host, in Chrome's format, compressed with gzip."""


@dataclass(frozen=True, slots=True)
class _ProfilerEvent:
    """One event of the profiler; nanoseconds."""

    thread: str
    name: str
    begin: float
    end: float
    statistics: dict[str, Any]


@contextmanager
def profiled(
    options: tf.profiler.experimental.ProfilerOptions | None = None,
) -> Iterator[list[private.xplane_pb2.XPlane]]:
    """Within it TensorFlow's profiler runs; afterwards the list has the planes of what it saw.

    Raises:
        Unsupported: a profiler of TensorFlow is running in this process; there can be one at a time.
    """
    planes: list[private.xplane_pb2.XPlane] = []
    with TemporaryDirectory(prefix="sweeprof-profile-") as folder:  # the profiler writes to a folder only
        try:
            tf.profiler.experimental.start(folder, options)
        except tf.errors.AlreadyExistsError:
            raise Unsupported(
                "a profiler of TensorFlow is running, and there can be only one: trace outside it"
            ) from None
        try:
            yield planes
        finally:
            tf.profiler.experimental.stop()
        for file in Path(folder).rglob("*.xplane.pb"):
            planes += private.xplane_pb2.XSpace.FromString(file.read_bytes()).planes


def statistics_of(plane: private.xplane_pb2.XPlane, event: private.xplane_pb2.XEvent) -> dict[str, Any]:
    """Return the statistics of an event of a plane by name."""
    found = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else None
        if kind == "ref_value":
            value = plane.stat_metadata[value].name
        found[plane.stat_metadata[stat.metadata_id].name] = value
    return found


def traced(step: Callable[[], object], count: int) -> TensorflowTrace:
    """Trace ``count`` steps.

    Raises:
        Unsupported: a profiler of TensorFlow is running in this process; there can be one at a time.
        Exception: whatever the step raised.
    """
    entered = []
    with profiled() as planes:
        for number in range(count):
            with tf.profiler.experimental.Trace(STEP, step_num=number, _r=1):
                entered.append(time.time_ns())
                step()
    threads: list[list[_ProfilerEvent]] = []
    for plane in planes:
        if plane.name != HOST:
            continue
        for line in plane.lines:
            events = []
            for event in line.events:
                begin = line.timestamp_ns + event.offset_ps / 1000
                end, name = begin + event.duration_ps / 1000, plane.event_metadata[event.metadata_id].name
                events.append(_ProfilerEvent(line.name, name, begin, end, statistics_of(plane, event)))
            threads.append(events)
    everything = list(chain.from_iterable(threads))
    steps = [event for event in everything if event.name == STEP]
    # The profiler counts from when it started, which it does not tell.
    started = min(at - round(event.begin) for at, event in zip(entered, steps, strict=True))
    found: list[ProfiledOperator] = []
    for events in threads:
        found += _operators(events, started)
    found.sort(key=lambda ran: ran.begin)
    return TensorflowTrace(found, sum(event.end - event.begin for event in steps) / count / 1e9, _chrome(everything))


def _operators(thread: list[_ProfilerEvent], started: int) -> Iterator[ProfiledOperator]:
    """The operators of one thread, which may call each other."""
    running: list[tuple[ProfiledOperator, float]] = []
    """With when they end."""
    for event in sorted(thread, key=lambda event: (event.begin, -event.end)):
        name, _, kind = event.name.rpartition(":")
        if event.name == EAGER:
            name, kind = "", str(event.statistics["eager_op"])
            if kind.startswith("__"):  # a compiled function, whose name is the same whenever it was traced
                kind = TRACE_NUMBERS.sub("", kind)
        elif not name or not kind.isidentifier() or name.endswith(":"):  # `Class::Function` is the run-time's own
            continue
        while running and running[-1][1] <= event.begin:
            running.pop()
        total = event.end - event.begin
        if running:
            running[-1][0].own -= total
        ran = ProfiledOperator(name, kind, started + round(event.begin), total, total)
        running.append((ran, event.end))
        yield ran


def _chrome(found: list[_ProfilerEvent]) -> bytes:
    begin = min((event.begin for event in found), default=0.0)
    threads: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for event in found:
        thread = threads.setdefault(event.thread, len(threads))
        times = {"ts": (event.begin - begin) / 1000, "dur": (event.end - event.begin) / 1000}
        args = {key: str(value) for key, value in event.statistics.items()}
        events.append({"ph": "X", "pid": 0, "tid": thread, "name": event.name, **times, "args": args})
    for name, thread in threads.items():
        events.append({"ph": "M", "pid": 0, "tid": thread, "name": "thread_name", "args": {"name": name}})
    return gzip.compress(json.dumps({"traceEvents": events}).encode(), mtime=0)


# ---------------------------------------------------------------------------------------------------------------------
# The layer and phase of an operator
# ---------------------------------------------------------------------------------------------------------------------

LayerPhase = tuple[str, Phase | None]
"""The path of a layer, and the phase; None where nothing tells it."""
REWRITTEN = re.compile(r"-\d+-\w+-LayoutOptimizer$")
"""What TensorFlow appends to the name of an operator that it puts beside another."""
PREFIXES = ("gradient_tape", "ArithmeticOptimizer", "ConstantFolding")
"""What it puts before the scope of an operator, whose backward, rewritten form or constant part another one is."""


class Attribution:
    """Tells who owned each moment of a step.

    Args:
        probes: of the step.
        begin: the mark of its begin.
        backward: that between forward and backward.
        update: that between backward and update.
    """

    def __init__(self, probes: LayerProbes, begin: int, backward: int, update: int) -> None:
        self._marks, self._owners = [begin], list[LayerPhase]([(OUTSIDE, "forward")])
        running, from_number = [OUTSIDE], {0: OUTSIDE}
        for what, number, mark in probes.forward:
            if what == LEFT:
                running.pop()
            elif what is not None:
                running.append(probes.described[what][0][0])
            from_number[number] = running[-1]
            self._add(mark, running[-1], "forward")
        self._add(backward, OUTSIDE, "backward")
        for _, number, mark in probes.backward:
            self._add(mark, from_number[number], "backward")
        self._add(update, OUTSIDE, "update")

    def _add(self, mark: int, path: str, phase: Phase) -> None:
        self._marks.append(mark)
        self._owners.append((path, phase))

    def at(self, mark: float) -> LayerPhase:
        """Return the layer and phase at a time, or at a position in the graph."""
        return self._owners[max(0, bisect_right(self._marks, mark) - 1)]


class AttributionByName:
    """Finds the owner of an operator of a graph by its name, whatever TensorFlow has made of the graph.

    Keras gives every call of a layer a scope of its own, but TensorFlow numbers scopes as it likes: which is whose is known from
    the operators that were put into the graph while a layer ran.

    Args:
        owners: by the positions of operators in the graph.
        operators: of the graph.
        by_scope: whether the innermost name scope tells the owner of an operator that was not made while a layer ran; that of a
            backward has it in common with the forward.
    """

    def __init__(self, owners: Attribution, operators: Sequence[tf.Operation], by_scope: bool = False) -> None:
        self._by_scope = by_scope
        self._owners: dict[str, LayerPhase] = {}
        for place, operator in enumerate(operators):
            owner = owners.at(place)
            if by_scope and owner[0] == OUTSIDE:
                continue
            self._owners[operator.name] = owner
            if by_scope:
                self._owners.setdefault(operator.name.rpartition("/")[0], owner)
        self._operators = {operator.name: operator for operator in operators}

    def of(self, name: str) -> LayerPhase:
        """Return the layer and phase of the operator, or of the loop or function that contains it."""
        parts = REWRITTEN.sub("", name).split("/")
        if self._by_scope:
            parts = [part for part in parts if part not in PREFIXES]
        while parts:
            owner = self._owners.get("/".join(parts))
            if owner is not None:
                return owner
            parts.pop()
        return OUTSIDE, None

    def shapes(self, name: str, kind: str) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of an operator's inputs, if it is the original operator of the graph and they are known."""
        operator = self._operators.get(name)
        if operator is None or operator.type != kind:
            return ()
        shapes = [tensor.shape for tensor in operator.inputs]
        return tuple(tuple(shape.as_list()) for shape in shapes if shape.is_fully_defined() and shape.rank)


# ---------------------------------------------------------------------------------------------------------------------
# Operators
# ---------------------------------------------------------------------------------------------------------------------

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
        step = _EagerStep(task) if model.mode == "eager" else _GraphStep(task)
        for _ in range(WARMUP_STEPS):
            step.run()
        traced(step.run, 1)  # the first trace also pays for what the profiler sets up once
        trace = traced(step.run, TRACED_STEPS)
    nodes = []
    phase: Phase = "forward"
    for ran in trace.ran:
        owner = step.owner(ran)
        if owner is not None:
            phase = owner[1] or phase  # what TensorFlow adds to a graph by itself serves what runs beside it
            shapes = step.by_name.shapes(ran.name, ran.type) if isinstance(step, _GraphStep) else ()
            nodes.append(
                NodeRun(ran.type, owner[0], None, ran.own / 1e9, None, shapes, phase, (ran.total - ran.own) / 1e9)
            )
    return Operators(
        mode="training" if task.trains else "inference",
        rows=operator_rows(nodes, TRACED_STEPS),
        steps=TRACED_STEPS,
        step_s=trace.step_s,
        flops_reason=UNCOUNTED,
        files={"trace.json.gz": trace.chrome},
    )


def _attributed_step(
    task: StepPhases, fed: Sequence[Any], probes: LayerProbes, marks: HostMarks | GraphPositions
) -> tuple[Attribution, object]:
    """Run one whole step; return who owned each moment of it, and its outputs."""
    begin = marks.now()
    with task.taping() as tape, probes.attached(marks, tape):
        outputs = task.forward(*fed)
    backward = marks.now()
    gradients = [] if tape is None else task.gradients(outputs, tape)
    update = marks.now()
    task.update(gradients)
    return Attribution(probes, begin, backward, update), outputs


class _EagerStep:
    """A step operator by operator."""

    def __init__(self, task: StepPhases) -> None:
        self._task, self._marks = task, HostMarks(task.trains)
        self._probes = LayerProbes(task.root, task.parameters)
        self._steps: list[tuple[int, int, Attribution]] = []
        """With the begin and the end of each."""

    def run(self) -> None:
        begin = self._marks.now()
        owners, _ = _attributed_step(self._task, self._task.fed, self._probes, self._marks)
        self._steps.append((begin, self._marks.now(), owners))

    def owner(self, ran: ProfiledOperator) -> LayerPhase | None:
        """Return the layer and phase at the operator's begin; None for a part of another operator, of no step, or of a probe."""
        if ran.name or self._marks.was_busy(ran.begin):
            return None
        for begin, end, owners in self._steps:
            if begin <= ran.begin < end:
                return owners.at(ran.begin)
        return None


class _GraphStep:
    """A step as a graph."""

    def __init__(self, task: StepPhases) -> None:
        self._task = task
        self._program = graph_of(self._step, autograph=False)
        self.by_name: AttributionByName
        """Made with the graph, in the first step."""

    def _step(self, *fed: Any) -> object:
        places, probes = GraphPositions(with_backward=True), LayerProbes(self._task.root, self._task.parameters)
        owners, outputs = _attributed_step(self._task, fed, probes, places)
        self.by_name = AttributionByName(owners, places.operators)
        return outputs

    def run(self) -> None:
        self._program(*self._task.fed)

    def owner(self, ran: ProfiledOperator) -> LayerPhase | None:
        """Return the layer and phase of the operator of that name; None for the graph itself, which is called like an operator."""
        return self.by_name.of(ran.name) if ran.name else None


# ---------------------------------------------------------------------------------------------------------------------
# Allocations
# ---------------------------------------------------------------------------------------------------------------------

STEPS = 3
"""As many as on PyTorch: the first is traced and compiled, the third is like all that follow."""
VARIABLE = "TF_CPU_ALLOCATOR_USE_BFC"


def allocations(model: TensorflowModel, work: Work) -> Allocations:
    """Trace the first steps; nothing may have run before.

    Raises:
        Unsupported: the host's allocator does not report every block, or a profiler is running.
    """
    if model.device == "cpu" and os.environ.get(VARIABLE, "").lower() not in ("1", "true"):
        raise Unsupported(
            f"the host's allocator reports large blocks only, unless {VARIABLE}=true is in the environment before "
            "TensorFlow starts, as it is in the process that a sweep gives this pass"
        )
    places = GraphPositions(with_backward=False)
    probes = LayerProbes(model.native, ())
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=3, python_tracer_level=0, device_tracer_level=1
    )
    device: dict[str, int] = {}
    with whole_steps(model, work) as step, without_collection():
        gc.collect()
        gpu = None if model.device == "cpu" else model.device.upper()
        if gpu is not None:
            tf.config.experimental.reset_memory_stats(gpu)
            device["allocated_pre_bytes"] = tf.config.experimental.get_memory_info(gpu)["current"]
        with profiled(options) as events:
            for number in range(STEPS):
                marking = nullcontext() if number else probes.attached(places)  # the graph is made in the first step
                with marking, tf.profiler.experimental.Trace(STEP):
                    step()
                    tf.test.experimental.sync_devices()
                gc.collect(0)
        if gpu is not None:
            memory = tf.config.experimental.get_memory_info(gpu)
            device |= {"allocated_peak_bytes": memory["peak"], "allocated_post_bytes": memory["current"]}
        tensors = _tensors(model, work)
    return course(*changes_in(events, layers_around(probes, places)), mode=work.mode, tensors=tensors, device=device)


def changes_in(
    planes: list[private.xplane_pb2.XPlane], path_of: Callable[[str], tuple[str, ...]]
) -> tuple[list[Change], list[int], list[int]]:
    """Return the changes of memory in the planes of a profile, and when each step began and ended.

    Args:
        planes: of the profile.
        path_of: from the name of an operator to the layers around it, outermost first.
    """
    changes: list[Change] = []
    begins: list[int] = []
    ends: list[int] = []
    events: list[Any] = []
    for plane in planes:
        for line in plane.lines:
            events += [(line.timestamp_ns * 1000 + event.offset_ps, plane, event) for event in line.events]
    events.sort(key=lambda found: found[0])
    stack: tuple[str, ...] = ()
    for begin, plane, event in events:
        name = plane.event_metadata[event.metadata_id].name
        if name == STEP:
            begins.append(begin // 1000)
            ends.append((begin + event.duration_ps) // 1000)
        elif name in ("MemoryAllocation", "MemoryDeallocation"):
            facts = statistics_of(plane, event)
            size = facts["requested_bytes"]
            if name == "MemoryAllocation":
                stack = path_of(str(facts.get("tf_op", "")))
            else:
                size = -size  # an event does not say for whom; it is the last that allocated, or one right after it
            changes.append(Change(begin // 1000, size, facts["addr"], stack))
    return changes, begins, ends


def layers_around(probes: LayerProbes, places: GraphPositions) -> Callable[[str], tuple[str, ...]]:
    """Return a function from an operator's name to the layers around it, outermost first."""
    turned = places.now()  # operators after the model, also those of its backward, are attributed by their names
    owners = AttributionByName(Attribution(probes, 0, turned, turned), places.operators, by_scope=True)

    def stack(operator: str) -> tuple[str, ...]:
        path, _ = owners.of(operator)
        return () if path == OUTSIDE else (*above(path), path)

    return stack


def _tensors(model: TensorflowModel, work: Work) -> tuple[TensorRow, ...]:
    """The weights of the model, and the inputs."""
    trained = {id(variable) for variable in getattr(model.native, "trainable_variables", ())}
    rows = []
    for variable in getattr(model.native, "weights", ()):
        kind: Kind = "parameter" if id(variable) in trained else "buffer"
        rows.append(_row(variable.path, kind, native(variable)))
    for index, tensor in enumerate(tensors_in((work.batch.args, dict(work.batch.kwargs)))):
        rows.append(_row(f"input[{index}]", "input", tensor))
    return largest_first(rows)


def _row(name: str, kind: Kind, tensor: tf.Variable | tf.Tensor) -> TensorRow:
    size = tensor.shape.num_elements() * tensor.dtype.size
    return TensorRow((name,), kind, tuple(tensor.shape), tensor.dtype.name, sweeprof_name(tensor.device), size)


# ---------------------------------------------------------------------------------------------------------------------
# Source lines
# ---------------------------------------------------------------------------------------------------------------------

NO_MEMORY = LineMemory(
    reason="TensorFlow allocates by itself, from large blocks that it takes at once: what a line allocates does not show"
)


def lines(model: TensorflowModel, work: Work, functions: Sequence[str]) -> Lines:
    """Time by line while ``work`` is repeated.

    Args:
        functions: dotted names, as :func:`functions_named` takes them; none: the ``call`` of the model itself.

    Raises:
        Unsupported: the model runs as a graph, a function is not Python's, or line_profiler is not installed.
        UserError: a name is not that of a function.
        Exception: whatever the model raised.
    """
    if model.compiles:
        mode = model.mode
        raise Unsupported(
            f"mode={mode}: the source lines run once, when the graph is traced; backend.mode=eager runs them"
        )
    native, classes = model.native, [type(layer) for layer in all_layers(model.native)]
    call = native.call if isinstance(native, keras.Layer) else native
    chosen = chosen_functions(functions, classes, call, f"call of {type(native).__name__}")
    with whole_steps(model, work) as step, without_collection():
        return watched(chosen, step, lambda *_: NO_MEMORY, model.device)
