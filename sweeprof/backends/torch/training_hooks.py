"""Watches the steps that a training loop of the user's makes, whatever else happens in it.

A step are the calls of the model up to a backward, and the backwards up to the next call: mostly one of each. Calls without a
backward are a step each.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from sweeprof.backends.torch.building import device_of
from sweeprof.backends.torch.callsites import tensors_in
from sweeprof.backends.torch.layer_times import ModuleProbes, calibrated
from sweeprof.backends.torch.model import as_shapes, clock_of
from sweeprof.backends.torch.state import WrappedForward, forwards_wrapped, is_compiled, modules_of
from sweeprof.counting.selection import EVERYTHING, ModuleSelection
from sweeprof.errors import Problem, Unsupported, UserError
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.layer_timing import Cost, Event, Reader, Step, calls_of, joined, without_probes
from sweeprof.measuring.timing import Clock, WallClock
from sweeprof.results.iteration import Iteration
from sweeprof.results.layer_times import LayerTimes, PhaseTimes

MOST_STEPS = 1000
"""Steps that are kept, the newest ones."""
MOST_CALLS = 8
"""Calls that one backward may belong to; following more would keep the memory of calls that nobody differentiates."""


@dataclass(slots=True)
class _ForwardCall:
    """One call of the model."""

    begin: Any
    batch_size: int | None
    end: Any = None
    events: list[Event] = field(default_factory=list)


@dataclass(slots=True)
class _BackwardCall:
    """One backward: its marks, and which events are its own."""

    begin: Any
    first: int
    end: Any = None
    after: int = 0


@dataclass(slots=True)
class _StepState:
    """The state of the running step."""

    calls: list[_ForwardCall] = field(default_factory=list)
    backwards: list[_BackwardCall] = field(default_factory=list)
    is_followed: bool = False
    """True if there may be a backward."""

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
        self._probes = ModuleProbes(model, self._clock.mark, True, selection)
        self._reader = Reader([], self._clock.between)
        self._cost = Cost()
        self._attached = ExitStack()
        self._is_paused = False
        self.reset()

    def reset(self) -> None:
        """Forget every step."""
        self._steps: deque[_Read] = deque(maxlen=MOST_STEPS)
        self._inputs: Inputs | None = None
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
        self._probes = ModuleProbes(self._root, self._clock.mark, True, self._selection)
        self._cost = calibrated(self._clock, device, with_backward=True)
        self._reader = Reader(self._probes.described(), self._clock.between)
        with ExitStack() as attached:
            attached.enter_context(self._probes.attached())
            attached.enter_context(forwards_wrapped([self._root], lambda root: self._stepping(root.forward)))
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

    @property
    def inputs(self) -> Inputs | None:
        """The shapes of the first call's inputs, of integers the values too; None before the first call."""
        return self._inputs

    def layer_times(self) -> LayerTimes:
        """Return the layer times so far, without a step that still awaits its backward; if any step had one, only of such steps.

        Raises:
            Unsupported: the model has not been called.
        """
        if not self._seen.awaits_backward:
            self._finish()
        trained = [read for read in self._steps if read.backward is not None]
        steps = trained or list(self._steps)
        if not steps:
            raise Unsupported("the model has not been called while it was watched")
        return LayerTimes(
            mode="training" if trained else "inference",
            calls=calls_of([read.step for read in steps], bool(trained)),
            warmup=0,
            forward=PhaseTimes((), tuple(read.forward for read in steps)),
            backward=PhaseTimes((), tuple(read.backward or 0.0 for read in steps)) if trained else None,
            probe_s=dataclasses.asdict(self._cost),
        )

    def iteration(self) -> Iteration:
        """Everything since :meth:`start` or the last :meth:`iteration`, as one step of the loop."""
        end, between = self._clock.mark(), self._clock.between
        self._finish()
        own = sum(between(*marks) for marks in self._own_work)
        trained = [read for read in self._new if read.backward is not None]
        reads = trained or self._new
        batches = [read.batch_size for read in reads]
        made = Iteration(
            iteration_s=between(self._began, end) - own,
            forward_s=sum(read.forward for read in reads) if reads else None,
            backward_s=sum(read.backward or 0.0 for read in trained) if trained else None,
            update_s=sum(between(*marks) for marks in self._updates) if self._updates else None,
            batch_size=sum(size or 0 for size in batches) if batches and None not in batches else None,
        )
        self._begin_iteration()
        return made

    def _stepping(self, forward: Callable[..., object]) -> Callable[..., object]:
        def step(*args: object, **kwargs: object) -> object:
            if self._is_paused:
                return forward(*args, **kwargs)
            with self._working():
                self._before_call(args, kwargs)
            call = _ForwardCall(self._clock.mark(), _batch_size((args, kwargs)))
            first = len(self._probes.events)
            outputs = forward(*args, **kwargs)
            call.end = self._clock.mark()
            with self._working():
                call.events = self._probes.events[first:]
                del self._probes.events[first:]
                self._seen.calls.append(call)
                if torch.is_grad_enabled():
                    self._follow(outputs)
            return outputs

        return step

    def _before_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._seen.awaits_backward or len(self._seen.calls) >= MOST_CALLS:
            self._finish()
        self._probes.is_in_backward = False
        if self._inputs is None:
            self._inputs = as_shapes(Inputs(args, kwargs), device_of(self._root))

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Around what the watch does itself, which is no part of an iteration."""
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
        backwards.append(_BackwardCall(events[-1][2], len(events) - 1))
        self._probes.is_in_backward = True
        torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        if self._seen.backwards:
            last = self._seen.backwards[-1]
            last.end, last.after = self._clock.mark(), len(self._probes.events)
            self._probes.is_in_backward = False

    def _update_begins(self, *_: object) -> None:
        self._updating.append(self._clock.mark())

    def _update_ends(self, *_: object) -> None:
        begin = self._updating.pop() if self._updating else None
        if begin is not None and not self._updating:  # an optimizer may step another one, as a subclass does its parent
            self._updates.append((begin, self._clock.mark()))

    def _finish(self) -> None:
        """Read the step that has been going on, which is over."""
        seen, self._seen = self._seen, _StepState()
        events = self._probes.forget()
        read = [self._reader.step(call.events, call.begin, call.end) for call in seen.calls]
        between = self._clock.between
        seconds = [between(call.begin, call.end) for call in seen.calls]
        done = [backward for backward in seen.backwards if backward.end is not None]
        if not done:  # calls that nobody differentiates have nothing to do with each other
            for call, (step, _), forward in zip(seen.calls, read, seconds, strict=True):
                self._keep(_Read(without_probes(step, self._cost), forward, None, call.batch_size))
            return
        step, timeline = joined(read)
        for backward in done:
            own = events[backward.first : backward.after]
            self._reader.backward(step, timeline, own, backward.begin, backward.end)
        sizes = [call.batch_size for call in seen.calls]
        batch_size = None if None in sizes else sum(size or 0 for size in sizes)
        seconds_of_backwards = sum(between(b.begin, b.end) for b in done)
        self._keep(_Read(without_probes(step, self._cost), sum(seconds), seconds_of_backwards, batch_size))

    def _keep(self, read: _Read) -> None:
        self._steps.append(read)
        self._new.append(read)


def _batch_size(arguments: object) -> int | None:
    tensors = tensors_in(arguments)
    return int(tensors[0].shape[0]) if tensors and tensors[0].dim() else None
