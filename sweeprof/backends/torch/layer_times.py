"""The time of every module call, forward and backward: steps with probes and steps without alternate.

Probes are marks in time at every call of every module, and at every node of the backward. A module's ``forward`` is wrapped on
the instance, which costs a fifth of a pair of hooks and sees ``module.forward(...)`` too. The backward is followed where it
happens, in the nodes of the autograd graph: a pre-hook marks when each begins, and the node belongs to the call that made it.
So it is right where hooks on modules are not: for the root, for inputs that need no gradient, for in-place operations, and for
outputs of any form. Between two marks lies what the first of them began, the engine's own work included.

In a training loop of the user's, the same probes watch the steps that the loop makes, whatever else happens in it. A step are the
calls of the model up to a backward, and the backwards up to the next call: mostly one of each. Calls without a backward are a
step each.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from threading import get_ident
from types import GeneratorType
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from sweeprof.backends.torch.callsites import excluded_paths, paths_of, tensors_in
from sweeprof.backends.torch.model import TorchModel, as_shapes, clock_of, device_of
from sweeprof.backends.torch.private import current_autograd_node, execution_engine, sequence_number
from sweeprof.backends.torch.state import (
    IN_OTHER_THREADS,
    WrappedForward,
    forwards_wrapped,
    in_one_thread,
    is_compiled,
    modules_of,
    running_as_python,
)
from sweeprof.backends.torch.training import CHECKPOINT, Steps, stepping
from sweeprof.counting.formulas import EVERYTHING, ModuleSelection
from sweeprof.errors import Problem, Unsupported, UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.layer_timing import (
    FOLLOWED,
    LEFT,
    Between,
    Event,
    ProbeCost,
    Reader,
    Step,
    Turn,
    calls_of,
    in_turns,
    joined,
    seconds_added,
    timed_in_turns,
    without_probes,
)
from sweeprof.measuring.timing import Clock, WallClock, without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import Iteration, LayerTimes, PhaseTimes
from sweeprof.results.record import Protocol

BACKWARD_OFFSET = 2**40
"""Added to the numbers of nodes that are made during the backward: on an accelerator its thread has numbers of its own."""


RUNS_LATER = (
    "a module returns a generator, whose work is done after its call, so that probes cannot tell the time of it"
)


@dataclass(slots=True)
class _Interval:
    """A forward or a backward of the model: its marks, and the events between them."""

    begin: Any
    end: Any = None
    events: list[Event] = field(default_factory=list)
    batch_size: int | None = None
    """Of a forward."""


class ModuleProbes:
    """Marks the calls of every module below a root while it is :meth:`attached`.

    Args:
        root: the model.
        clock: makes the marks.
        with_backward: whether calls also note how far the numbering of autograd nodes has come.
        selection: the modules that have probes; the time of others is part of the calls around them.
    """

    def __init__(
        self,
        root: torch.nn.Module,
        clock: Clock,
        with_backward: bool,
        selection: ModuleSelection = EVERYTHING,
    ) -> None:
        self.paths = paths_of(root)
        excluded = excluded_paths(self.paths, selection)
        kept = [module for module, names in self.paths.items() if not excluded.issuperset(names)]
        self.modules = running_as_python(kept)
        described = [(self.paths[module], type(module).__name__) for module in self.modules]
        self._reader, self._between = Reader(described, clock.between), clock.between
        self.events: list[Event] = []
        self.is_in_backward = False
        self._mark, self._with_backward = clock.mark, with_backward
        self._thread = get_ident()
        self.gap: str | None = None
        """Why probes do not tell the time of every call: it is in another thread, or runs after the call has returned."""
        self._handles: list[Any] = []
        self._nodes: set[Any] = set()
        """Kept, as the hook of a node is gone when its Python object is."""

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within it every call of a module leaves two marks; afterwards every module is as it was."""
        index = {module: number for number, module in enumerate(self.modules)}
        try:
            with forwards_wrapped(self.modules, lambda module, forward: self._probed(index[module], forward)):
                yield
        finally:
            self.forget()

    def _probed(self, index: int, forward: Callable[..., object]) -> Callable[..., object]:
        mark = self._mark
        if not self._with_backward:

            def probed(*args: object, **kwargs: object) -> object:
                if get_ident() != self._thread:
                    self.gap = IN_OTHER_THREADS.format("probes")
                    return forward(*args, **kwargs)
                append = self.events.append
                append((index, 0, mark()))
                try:
                    outputs = forward(*args, **kwargs)
                finally:
                    append((LEFT, 0, mark()))
                if type(outputs) is GeneratorType:
                    self.gap = RUNS_LATER
                return outputs

            return probed

        def numbered(*args: object, **kwargs: object) -> object:
            if get_ident() != self._thread and not self.is_in_backward:  # which may have a thread of its own
                self.gap = IN_OTHER_THREADS.format("probes")
                return forward(*args, **kwargs)
            append = self.events.append
            append((index, self._number(sequence_number()), mark()))
            try:
                outputs = forward(*args, **kwargs)
            finally:
                append((LEFT, self._number(sequence_number()), mark()))
            if type(outputs) is GeneratorType:
                self.gap = RUNS_LATER
            if self.is_in_backward:
                node = current_autograd_node()
                if node is not None and node.name() == CHECKPOINT:  # a reentrant one is computing its forward once more
                    self.follow(outputs)
                    append((FOLLOWED, 0, mark()))
            return outputs

        return numbered

    def follow(self, outputs: object) -> None:
        """Mark when each node of the backward of ``outputs`` begins; of a node that is followed already nothing changes."""
        waiting = [(tensor.grad_fn, tensor.grad_fn) for tensor in tensors_in(outputs) if tensor.grad_fn is not None]
        while waiting:
            node, user = waiting.pop()
            if node in self._nodes:
                continue
            self._nodes.add(node)
            # A node that adds to a gradient has no number of its own: it belongs to the node that it serves.
            numbered = user if hasattr(node, "variable") else node
            self._handles.append(node.register_prehook(self._begun(self._number(numbered._sequence_nr()))))
            waiting += [(after, node) for after, _ in node.next_functions if after is not None]

    def _number(self, sequence: int) -> int:
        if self.is_in_backward:
            return sequence + BACKWARD_OFFSET
        return sequence

    def _begun(self, number: int) -> Callable[[object], None]:
        mark, append = self._mark, self.events.append

        def begun(_gradients: object) -> None:
            append((None, number, mark()))

        return begun

    def hold(self, handle: Any) -> None:
        """Another hook on the backward, to be removed with the others."""
        self._handles.append(handle)

    def taken(self, first: int = 0) -> list[Event]:
        """Return the events from a position on, and remove them."""
        events = self.events[first:]
        del self.events[first:]
        return events

    def forget(self) -> None:
        """Remove every event; the backward is no longer followed."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        self.events = []
        self.is_in_backward = False

    def read(self, calls: Sequence[_Interval], backwards: Sequence[_Interval]) -> tuple[Step, float, float]:
        """Return the step that some calls of the model and the backwards of them are, and the seconds of both."""
        step, timeline = joined([self._reader.step(call.events, call.begin, call.end) for call in calls])
        for backward in backwards:
            self._reader.backward(step, timeline, backward.events, backward.begin, backward.end)
        return step, _seconds(calls, self._between), _seconds(backwards, self._between)


def _seconds(intervals: Sequence[_Interval], between: Between) -> float:
    seconds = 0.0
    for interval in intervals:
        seconds += between(interval.begin, interval.end)
    return seconds


CALLS = 20
"""Empty modules in one step."""
NODES = 20
"""Nodes in one backward."""
PAIRS = 101
"""Steps with probes, and as many without, in alternating order; medians count."""
STEPS_AMONG_WORK = 25
"""Steps with work between the calls; each has a window per call."""
MOST_GROWTH = 3.0
"""How much more a probe may cost among work: 1.5 to 2.5 times as much is usual, and more is another process's work."""


def calibrated(clock: Clock, device: torch.device, with_backward: bool) -> ProbeCost:
    """The cost of the probes of a call, and with ``with_backward`` of a node; seconds, by the clock that is used.

    Between the layers of a model there is work, which drives the probe's own code out of the processor's caches. So the window of
    an empty call is measured between convolutions too, and everything else, which is a small difference of two noisy totals,
    is measured without work between and scaled by what the window has grown.
    """
    x = torch.zeros(1, device=device)
    image, kernel = torch.zeros(1, 16, 32, 32, device=device), torch.zeros(16, 16, 3, 3, device=device)
    threads = torch.get_num_threads()
    with ExitStack() as restoring, without_collection():
        # The work between the calls is small: threads would wait for each other, long where others use the processor too.
        restoring.callback(torch.set_num_threads, threads)
        torch.set_num_threads(1)
        calls = _EmptyCalls(x, clock, with_backward)
        whole = seconds_added(calls.plain, calls.probed, PAIRS) / (CALLS + 1)
        among_work = _EmptyCalls(x, clock, with_backward, lambda: torch.conv2d(image, kernel))
        for _ in range(STEPS_AMONG_WORK):
            among_work.probed()
        inside, inside_among_work = statistics.median(calls.windows), statistics.median(among_work.windows)
        growth = 1.0
        if inside > 0:
            growth = min(max(1.0, inside_among_work / inside), MOST_GROWTH)
        node = 0.0
        if with_backward:
            node = _node(clock, device)
    return ProbeCost(inside * growth, max(0.0, whole - inside) * growth, node * growth)


class _EmptyModules(torch.nn.Module):
    """Empty calls, with work between them or without."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(torch.nn.Identity() for _ in range(CALLS))
        self._work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.inner:
            self._work()
            x = module(x)
        return x


class _EmptyCalls:
    """Steps of such a module, with probes and without."""

    def __init__(
        self, x: torch.Tensor, clock: Clock, with_backward: bool, work: Callable[[], object] = lambda: None
    ) -> None:
        module = _EmptyModules(work)
        self.windows: list[float] = []
        """Seconds within the window of an empty call."""
        self._step, self._clock = partial(module, x), clock
        self._probes = ModuleProbes(module, clock, with_backward)

    def plain(self) -> float:
        return _lasting(self._step, self._clock)

    def probed(self) -> float:
        with self._probes.attached():
            lasted = _lasting(self._step, self._clock)
            events = self._probes.taken()
        between = self._clock.between
        self.windows += [between(a[2], b[2]) for a, b in pairwise(events) if a[0] != LEFT and b[0] == LEFT]
        return lasted


def _node(clock: Clock, device: torch.device) -> float:
    """Seconds of following one node of a backward."""
    probes = ModuleProbes(torch.nn.Identity(), clock, with_backward=True)

    def backward(is_followed: bool) -> float:
        with torch.inference_mode(False), torch.enable_grad():
            last: torch.Tensor = torch.zeros((), device=device, requires_grad=True)
            for _ in range(NODES):
                last = last.view_as(last)
        if is_followed:
            probes.follow(last)
        lasted = _lasting(last.backward, clock)
        probes.forget()
        return lasted

    added = seconds_added(partial(backward, False), partial(backward, True), PAIRS)
    return added / (NODES + 1)  # the node that adds to the gradient is followed too


def _lasting(step: Callable[[], object], clock: Clock) -> float:
    begin = clock.mark()
    step()
    return clock.between(begin, clock.mark())


def layer_times(model: TorchModel, work: Work, protocol: Protocol) -> LayerTimes:
    """The layers' times of inference, or of training with a config; as many repeats as the protocol asks of a round.

    Raises:
        Unsupported: the model is compiled or scripted, so that it has no layers when it runs.
        Exception: whatever the model raised.
    """
    if is_compiled(model.native):
        raise Unsupported("a compiled model has no layers when it runs; backend=torch has the same model with them")
    is_training, clock = work.training is not None, model.clock()
    probes = ModuleProbes(model.native, clock, is_training, work.selection)
    with stepping(model, work) as steps, in_one_thread("probes", steps.whole), without_collection():

        def probed() -> Turn:
            with probes.attached():
                return _turn(steps, clock, probes)

        pairs = in_turns(partial(_turn, steps, clock), probed)
        calibrate = partial(calibrated, clock, model.device, with_backward=is_training)
        times = timed_in_turns(pairs, calibrate, clock, protocol, is_training)
    if probes.gap is not None:
        raise Unsupported(probes.gap)
    if len(times.calls) < 2:
        raise Unsupported("no Python module of the model was called: a scripted model has no layers when it runs")
    return replace(times, mode=work.mode)


def _turn(steps: Steps, clock: Clock, probes: ModuleProbes | None = None) -> Turn:
    """Take one step; no mark is read before it is over, as reading waits for the device, which then has nothing to do."""
    forward = _Interval(clock.mark())
    outputs = steps.forward()
    forward.end = clock.mark()
    backwards = []
    if probes is not None:
        forward.events = probes.taken()
    if steps.training is not None:
        if probes is not None:
            probes.follow(outputs)
            probes.is_in_backward = True
        backwards.append(_Interval(clock.mark()))
        steps.training.backward(outputs)
        backwards[0].end = clock.mark()
    if probes is None:
        return Turn(_seconds([forward], clock.between), _seconds(backwards, clock.between))
    if backwards:
        backwards[0].events = probes.taken()
    step, forward_s, backward_s = probes.read([forward], backwards)
    return Turn(forward_s, backward_s, step)


MOST_STEPS = 1000
"""Steps that are kept, the newest ones."""
MOST_CALLS = 8
"""Calls that one backward may belong to; following more would keep the memory of calls that nobody differentiates."""


@dataclass(slots=True)
class _StepState:
    """The state of the running step."""

    calls: list[_Interval] = field(default_factory=list)
    backwards: list[_Interval] = field(default_factory=list)
    is_followed: bool = False
    """True if there may be a backward."""
    is_reported: bool = False
    """True if an iteration has ended between its forward and its backward, and has its forward."""

    @property
    def awaits_backward(self) -> bool:
        return self.is_followed and not self.backwards


@dataclass(frozen=True, slots=True)
class _Read:
    """A step in seconds."""

    step: Step
    forward: float
    backward: float | None
    batch_size: int | None


class TorchTrainingHooks:
    """Probes on a model that somebody else calls."""

    def __init__(self, model: torch.nn.Module, selection: ModuleSelection = EVERYTHING) -> None:
        self._root, self._selection = model, selection
        self._clock: Clock = WallClock()
        self._probes = ModuleProbes(model, self._clock, True, selection)
        self._cost = ProbeCost()
        self._attached = ExitStack()
        self._is_paused = False
        self.reset()

    def reset(self) -> None:
        """Forget every step."""
        self._steps: deque[_Read] = deque(maxlen=MOST_STEPS)
        self.inputs: Inputs | None = None
        """The shapes of the first call's inputs, of integers the values too; None before the first call."""
        self._seen = _StepState()
        self._probes.forget()
        self._begin_iteration()

    def _begin_iteration(self) -> None:
        self._new: list[_Read] = []
        self._updates: list[tuple[object, object]] = []
        self._updating: list[Any] = []
        self._own_work: list[tuple[object, object]] = []
        self._began = self._clock.mark()

    def start(self) -> None:
        """Attach the probes.

        Raises:
            Unsupported: the model is compiled or scripted, so that it has no layers when it runs.
            UserError: it is watched already, or a part of it.
        """
        if is_compiled(self._root) or isinstance(self._root, torch.jit.ScriptModule):
            raise Unsupported("a compiled or scripted model has no layers when it runs; watch the one it was made of")
        if any(isinstance(vars(module).get("forward"), WrappedForward) for module in modules_of(self._root)):
            raise UserError([Problem("model", type(self._root).__name__, "is watched already, or a part of it is.")])
        device = device_of(self._root) or torch.device("cpu")
        self._clock = clock_of(device)
        self._probes = ModuleProbes(self._root, self._clock, True, self._selection)
        self._cost = calibrated(self._clock, device, with_backward=True)
        with ExitStack() as attached:
            attached.enter_context(self._probes.attached())
            attached.enter_context(forwards_wrapped([self._root], lambda _, forward: self._stepping(forward)))
            attached.callback(register_optimizer_step_pre_hook(self._update_begins).remove)
            attached.callback(register_optimizer_step_post_hook(self._update_ends).remove)
            self._attached = attached.pop_all()
        self._begin_iteration()

    def stop(self) -> None:
        """Take the probes off; the model is as it was."""
        self._finish()
        self._attached.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it the model may be called without being seen."""
        events = len(self._probes.events)
        self._is_paused = True
        try:
            with self._working():
                yield
        finally:
            self._is_paused = False
            del self._probes.events[events:]

    def layer_times(self) -> LayerTimes:
        """Return the layer times so far; if any step had a backward, only of such steps.

        The forward of a step that still awaits its backward counts where no step has had one.

        Raises:
            Unsupported: the model has not been called.
        """
        if not self._seen.awaits_backward:
            self._finish()
        trained = [read for read in self._steps if read.backward is not None]
        steps = trained or [*self._steps, *self._read_seen()]
        if not steps:
            raise Unsupported("the model has not been called while it was watched")
        times = LayerTimes(
            mode="inference",
            calls=calls_of([read.step for read in steps], bool(trained)),
            warmup=0,
            forward=PhaseTimes((), tuple([read.forward for read in steps])),
            backward=None,
            probe_s=dataclasses.asdict(self._cost),
        )
        if trained:
            backward = PhaseTimes((), tuple([read.backward or 0.0 for read in trained]))
            times = replace(times, mode="training", backward=backward)
        return times

    def iteration(self) -> Iteration:
        """Everything since :meth:`start` or the last :meth:`iteration`, as one step of the loop."""
        end, between = self._clock.mark(), self._clock.between
        if not self._seen.awaits_backward:
            self._finish()
        elif not self._seen.is_reported:
            self._new.extend(self._read_seen())
            self._seen.is_reported = True
        own = sum(between(*marks) for marks in self._own_work)
        trained = [read for read in self._new if read.backward is not None]
        reads = trained or self._new
        made = Iteration(
            iteration_s=between(self._began, end) - own,
            forward_s=_sum([read.forward for read in reads]),
            backward_s=_sum([read.backward for read in trained]),
            update_s=_sum([between(*marks) for marks in self._updates]),
            batch_size=_sum([read.batch_size for read in reads]),
        )
        self._begin_iteration()
        return made

    def _stepping(self, forward: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            if self._is_paused:
                return forward(*args, **kwargs)
            with self._working():
                self._before_call(args, kwargs)
            call = _Interval(self._clock.mark(), batch_size=_batch_size((args, kwargs)))
            first = len(self._probes.events)
            outputs = forward(*args, **kwargs)
            call.end = self._clock.mark()
            with self._working():
                call.events = self._probes.taken(first)
                self._seen.calls.append(call)
                if torch.is_grad_enabled():
                    self._follow(outputs)
            return outputs

        return step

    def _before_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen = self._seen
        if not seen.awaits_backward or seen.is_reported or len(seen.calls) >= MOST_CALLS:
            self._finish()
        self._probes.is_in_backward = False
        if self.inputs is None:
            self.inputs = as_shapes(Inputs(args, kwargs), device_of(self._root))

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Within it, time does not count for an iteration: the watch does its own work."""
        begin = self._clock.mark()
        try:
            yield
        finally:
            self._own_work.append((begin, self._clock.mark()))

    def _follow(self, outputs: object) -> None:
        """Follow the backward of a call, if there will be one."""
        self._probes.follow(outputs)
        for tensor in tensors_in(outputs):
            if tensor.grad_fn is not None:
                self._probes.hold(tensor.grad_fn.register_prehook(self._backward_begins))
                self._seen.is_followed = True

    def _backward_begins(self, _gradients: object) -> None:
        backwards = self._seen.backwards
        if backwards and backwards[-1].end is None:
            return
        events = self._probes.events
        del events[:-1]  # of a forward that raised
        backwards.append(_Interval(events[0][2]))
        self._probes.is_in_backward = True
        execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        if self._seen.backwards:
            last = self._seen.backwards[-1]
            last.end, last.events = self._clock.mark(), self._probes.taken()
            self._probes.is_in_backward = False

    def _update_begins(self, *_: object) -> None:
        self._updating.append(self._clock.mark())

    def _update_ends(self, *_: object) -> None:
        if not self._updating:
            return
        begin = self._updating.pop()
        if not self._updating:  # an optimizer may step another one, as a subclass does its parent
            self._updates.append((begin, self._clock.mark()))

    def _finish(self) -> None:
        """Read the step that has been going on, which is over."""
        reads = self._read_seen()
        if not self._seen.is_reported:
            self._new.extend(reads)
        self._seen = _StepState()
        self._probes.forget()
        self._steps.extend(reads)

    def _read_seen(self) -> list[_Read]:
        """Read the step that is going on, as far as it has come."""
        seen = self._seen
        backwards = [backward for backward in seen.backwards if backward.end is not None]
        groups = [seen.calls]
        if not backwards:  # calls that nobody differentiates have nothing to do with each other
            groups = [[call] for call in seen.calls]
        reads = []
        for calls in groups:
            step, forward_s, backward_s = self._probes.read(calls, backwards)
            batch_size = _sum([call.batch_size for call in calls])
            read = _Read(without_probes(step, self._cost), forward_s, backward_s, batch_size)
            if not backwards:
                read = replace(read, backward=None)
            reads.append(read)
        return reads


Addend = TypeVar("Addend", int, float)


def _sum(numbers: Sequence[Addend | None]) -> Addend | None:
    """Return the sum; None where there are no numbers, or one is not known."""
    known = [number for number in numbers if number is not None]
    if not known or len(known) < len(numbers):
        return None
    return sum(known)


def _batch_size(arguments: object) -> int | None:
    tensors = tensors_in(arguments)
    if tensors and tensors[0].dim():
        return int(tensors[0].shape[0])
    return None
