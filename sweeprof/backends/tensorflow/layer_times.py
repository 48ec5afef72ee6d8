"""The time of every layer call, forward and backward: steps with probes and steps without alternate.

Probes are marks in time at every call of every layer, and at the backward of every call. ``keras.Layer.__call__`` is replaced for
as long as probes are attached, so that what Keras itself does around a layer's ``call`` is part of the layer. Its tensors pass a
mark where the call begins and where it ends.

For the backward each call is followed by a tape of its own, and the tape around it sees one operation, whose gradient is that
call's whole backward, between two marks. A single tape goes through the branches of a model by turns, so that no mark in it could
tell which layer its next operation serves.

Within a recurrent layer nothing is marked, as a graph runs its steps in a loop; nor within a function that a layer compiles itself.

Operator by operator, marks are taken by Python. In a graph they are taken by the graph itself, which is traced twice, with probes
and without. With probes its operators run in the order of the layers, and none is fused with one of another layer: what that adds
is part of the difference between the two, which is shown beside the times.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

from sweeprof.backends.keras.private import copy_mask
from sweeprof.backends.keras.symbolic_trace import Paths
from sweeprof.backends.tensorflow import private
from sweeprof.backends.tensorflow.model import StepPhases, TensorflowModel, graph_of, step_phases_of
from sweeprof.counting.formulas import Args, Kwargs
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import LEFT, Cost, Event, Reader, Turn, in_turns, timed_in_turns
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import OUTSIDE, LayerTimes
from sweeprof.results.protocol import Protocol

# Probes

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
            return self._probed(call, layer, args, kwargs) if self._sees(layer) else call(layer, *args, **kwargs)

        self.forward, self.backward, self._running, self._is_closed = [], [], [], False
        self._marks, self._tape = marks, tape
        # AutoGraph takes Keras's own method as it is, and would rewrite this one.
        with patch.object(keras.Layer, "__call__", private.autograph_artifact(called)):
            yield

    def _sees(self, layer: keras.Layer) -> bool:
        return (
            not self._is_closed
            and (bool(self._running) or layer is self._root)
            and threading.get_ident() == self._thread
            and self._marks.is_here()
        )

    def _probed(self, call: Callable[..., object], layer: keras.Layer, args: Args, kwargs: Kwargs) -> object:
        index, path = self._placed(layer)
        given, around = _tensors_in((args, kwargs)), self._tape
        wanted = [around is not None and _is_followed(tensor) for tensor in given]
        with _paused(around), nullcontext() if around is None else tf.GradientTape() as tape:
            entered, inside = self._passed(given, index)
            sources = list(compress(zip(given, inside, strict=True), wanted))
            if tape is not None:
                tape.watch([inner for _, inner in sources])
            args, kwargs = _replaced((args, kwargs), inside)
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
        return _replaced(outputs, outside)

    def _placed(self, layer: keras.Layer) -> tuple[int, str]:
        path = self._paths.below(self._running[-1] if self._running else OUTSIDE, layer)
        index = self._index.setdefault(path, len(self._index))
        if index == len(self.described):
            self.described.append(([path], type(layer).__name__))
        return index, path

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
        inner = [*(inner for _, inner in sources), *variables]
        outer = [*(outer for outer, _ in sources), *(variable.handle for variable in variables)]
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
        """The gradients beyond a mark of the backward; from there on it belongs to whom the forward did from ``number`` on."""
        dense = [place for place, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
        mark, after = self._marks.at([gradients[place] for place in dense], True)
        self.backward.append((None, number, mark))
        for place, gradient in zip(dense, after, strict=True):
            gradients[place] = gradient
        return gradients


def _tensors_in(structure: object) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(structure) if isinstance(leaf, tf.Tensor)]


def _replaced(structure: Any, tensors: Sequence[tf.Tensor]) -> Any:
    """Return a structure with other tensors instead of its own, which have the same masks."""
    waiting = iter(tensors)

    def other(leaf: object) -> object:
        if not isinstance(leaf, tf.Tensor):
            return leaf
        tensor = next(waiting)
        copy_mask(leaf, tensor)
        return tensor

    return keras.tree.map_structure(other, structure)


def _paused(tape: tf.GradientTape | None) -> Any:
    """Within it a tape sees nothing: where two follow a loop, TensorFlow computes its gradient as if for a second derivative."""
    return nullcontext() if tape is None else tape.stop_recording()


def _is_followed(tensor: tf.Tensor) -> bool:
    """True if the running tape needs a gradient of the tensor."""
    return _has_gradient(tensor) and bool(private.record.should_record_backprop([tensor]))


def _has_gradient(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


# Steps

UNORDERED = {"Placeholder", "Const", "VarHandleOp"}
"""Operators that do nothing when they run."""


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
        operators = list(self.graph.get_operations())
        stamps = [stamp.op for stamp in self.taken]
        needed = _needed(operators, [leaf.op for leaf in tf.nest.flatten(results) if isinstance(leaf, tf.Tensor)])
        numbers = _numbered(operators, stamps, needed)
        awaited = set[tf.Operation]()  # by others of their stretch
        for operator, number in numbers.items():
            sources = [source for source in _sources(operator) if numbers.get(source) == number]
            awaited.update(sources)
            before = stamps[number - 1] if from_both_sides and number else None
            if before is not None and not sources and before not in operator.control_inputs:
                private.add_control_input(operator, before)
        waited_for = [set(stamp.control_inputs) for stamp in stamps]
        for operator, number in numbers.items():
            if number < len(stamps) and operator not in awaited and operator not in waited_for[number]:
                private.add_control_input(stamps[number], operator)


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

    @property
    def forward_s(self) -> float:
        """Seconds of the forward."""
        return self.turned - self.begin

    @property
    def backward_s(self) -> float:
        """Seconds of the backward."""
        return self.end - self.turned


def timed_steps_of(task: StepPhases, is_eager: bool) -> EagerSteps | GraphSteps:
    """The steps of a task, each kind of which has run once."""
    steps = EagerSteps(task) if is_eager else GraphSteps(task)
    for is_probed in (False, True):
        steps.run_step(is_probed)
    return steps


class HostMarks(Marks):
    """Marks on the host's clock; what was called has been done."""

    def __init__(self, with_backward: bool) -> None:
        super().__init__()
        self._with_backward = with_backward

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[float, list[tf.Tensor]]:
        """Return the time and the tensors, passed on; the time that this takes is outside of the call's own window."""
        if not self._with_backward:
            return time.perf_counter(), list(tensors)
        mark = time.perf_counter()
        passed = [tf.identity(tensor) for tensor in tensors]
        return (time.perf_counter() if is_entry else mark), passed


class EagerSteps:
    """Steps that run operator by operator."""

    def __init__(self, task: StepPhases) -> None:
        self._task, self._marks = task, HostMarks(task.trains)
        self.probes = LayerProbes(task.root, task.parameters)

    def run_step(self, is_probed: bool) -> TimedStep:
        """Return one step."""
        probes, task = self.probes, self._task
        with task.taping() as tape, probes.attached(self._marks, tape) if is_probed else nullcontext():
            begin = time.perf_counter()
            results = task.forward(*task.fed)
            turned = end = time.perf_counter()
        if tape is not None:
            results = results, task.gradients(results, tape)
            end = time.perf_counter()
        events = (probes.forward, probes.backward) if is_probed else ()
        return TimedStep(begin, turned, end, results, *events)


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
        begin = time.time()
        results, taken = self._runs[is_probed](*self._task.fed)
        end = time.time()
        stamps = [] if taken is None else taken.numpy().tolist()
        turned = stamps[self._turns[is_probed]] if is_probed in self._turns else end
        forward, backward = (
            [(what, number, stamps[index]) for what, number, index in events] if is_probed else []
            for events in (self.probes.forward, self.probes.backward)
        )
        return TimedStep(begin, turned, end, results, forward, backward)


# Calibration and times

CALLS = 40
"""Empty layers in one step."""
PAIRS = 25
"""Steps with probes, and as many without, in alternating order; medians count."""


def calibrated(is_eager: bool, with_backward: bool) -> Cost:
    """The cost of the probes of a call, and with ``with_backward`` of a mark in the backward; seconds."""
    weight, root = tf.Variable(1.0), _EmptyLayers()

    def forward() -> tf.Tensor:
        return root(weight * tf.ones((4, 4)))

    task = StepPhases(root, forward, ((), {}, None))
    if with_backward:
        task = replace(task, loss=lambda outputs, _: tf.reduce_mean(outputs), variables=(weight,))
    with _without_keras():
        steps = timed_steps_of(task, is_eager)
        pair = in_turns(partial(steps.run_step, False), partial(steps.run_step, True))
        pairs = [pair(number) for number in range(PAIRS)]
    probed = [step for _, step in pairs]
    inside = statistics.median(map(_window, probed))
    whole = statistics.median(step.forward_s - plain.forward_s for plain, step in pairs) / (CALLS + 1)
    backward = statistics.median(step.backward_s - plain.backward_s for plain, step in pairs)
    backward /= max(1, len(probed[-1].backward))
    return Cost(inside, max(0.0, whole - inside), max(0.0, backward))


@contextmanager
def _without_keras() -> Iterator[None]:
    """Within it an empty layer is called without what Keras does around a call, which would be taken for the probes' cost."""
    call = keras.Layer.__call__

    def called(layer: keras.Layer, *args: object, **kwargs: object) -> object:
        return args[0] if isinstance(layer, _EmptyLayer) else call(layer, *args, **kwargs)

    with patch.object(keras.Layer, "__call__", called):
        yield


def _window(step: TimedStep) -> float:
    """Median seconds within the window of an empty call; an interrupted one does not count."""
    windows = [
        b[2] - a[2] for a, b in zip(step.forward, step.forward[1:], strict=False) if a[0] != LEFT and b[0] == LEFT
    ]
    median: float = statistics.median(windows)
    return median


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


def layer_times(model: TensorflowModel, work: Work, protocol: Protocol) -> LayerTimes:
    """The layers' times of inference, or of training with a config; as many repeats as the protocol asks of a round.

    Raises:
        Unsupported: the model has no layers when it runs, it is on an accelerator, or the training config does not fit it.
        Exception: whatever the model raised.
    """
    if model.device != "cpu":
        raise Unsupported("timestamps are the host's, which is ahead of an accelerator: layers are timed on the CPU")
    task, is_eager, clock = step_phases_of(model, work), model.mode == "eager", model.clock()
    with tf.device(model.device), without_collection():
        steps = timed_steps_of(task, is_eager)

        reader = Reader(steps.probes.described, clock.between)
        pairs = in_turns(lambda: _read(steps.run_step(False), None), lambda: _read(steps.run_step(True), reader))
        calibrate = partial(calibrated, is_eager, task.trains)
        return timed_in_turns(pairs, calibrate, clock.now, protocol, task.trains)


def _read(timed: TimedStep, reader: Reader | None) -> Turn:
    """Return the times of a step and, with a reader of timestamps, of each call in it."""
    if reader is None:
        return Turn(timed.forward_s, timed.backward_s)
    step, timeline = reader.step(timed.forward, timed.begin, timed.turned)
    if timed.backward:
        reader.backward(step, timeline, timed.backward, timed.turned, timed.end)
    return Turn(timed.forward_s, timed.backward_s, step)
