"""The time of every module call, forward and backward: steps with probes and steps without alternate.

Probes are marks in time at every call of every module, and at every node of the backward. A module's ``forward`` is wrapped on
the instance, which costs a fifth of a pair of hooks and sees ``module.forward(...)`` too. The backward is followed where it
happens, in the nodes of the autograd graph: a pre-hook marks when each begins, and the node belongs to the call that made it.
So it is right where hooks on modules are not: for the root, for inputs that need no gradient, for in-place operations, and for
outputs of any form. Between two marks lies what the first of them began, the engine's own work included.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from sweeprof.backends.torch.callsites import excluded_paths, paths_of, tensors_in
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.state import forwards_wrapped, is_compiled, running_as_python
from sweeprof.backends.torch.training import Steps, stepping
from sweeprof.counting.selection import EVERYTHING, ModuleSelection
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import (
    FOLLOWED,
    LEFT,
    Cost,
    Event,
    Reader,
    TakePair,
    Turn,
    in_turns,
    seconds_added,
    timed_in_turns,
)
from sweeprof.measuring.timing import Clock, without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.protocol import Protocol

_sequence = torch._C._autograd._get_sequence_nr
CHECKPOINT = "CheckpointFunctionBackward"
"""The node of a reentrant checkpoint, which runs a forward and a backward of its own."""
ANEW = 2**40
"""Added to the numbers of nodes that are made during the backward: on an accelerator it runs in a thread that counts on its own."""


class ModuleProbes:
    """Marks the calls of every module below a root while it is :meth:`attached`.

    Args:
        root: the model.
        mark: a mark in time (:class:`sweeprof.measuring.timing.Clock`).
        with_backward: whether calls also note how far the numbering of autograd nodes has come.
        selection: the modules that have probes; the time of others is part of the calls around them.
    """

    def __init__(
        self,
        root: torch.nn.Module,
        mark: Callable[[], object],
        with_backward: bool,
        selection: ModuleSelection = EVERYTHING,
    ) -> None:
        self.paths = paths_of(root)
        excluded = excluded_paths(self.paths, selection)
        kept = [module for module, names in self.paths.items() if not excluded.issuperset(names)]
        self.modules = running_as_python(kept)
        self.events: list[Event] = []
        self.is_in_backward = False
        self._mark, self._with_backward = mark, with_backward
        self._handles: list[Any] = []
        self._nodes: set[Any] = set()
        """Kept, as the hook of a node is gone when its Python object is."""

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within it every call of a module leaves two marks; afterwards every module is as it was."""
        index = {module: number for number, module in enumerate(self.modules)}
        try:
            with forwards_wrapped(self.modules, lambda module: self._probed(index[module], module.forward)):
                yield
        finally:
            self.forget()

    def _probed(self, index: int, forward: Callable[..., object]) -> Callable[..., object]:
        mark = self._mark
        if not self._with_backward:

            def probed(*args: object, **kwargs: object) -> object:
                append = self.events.append
                append((index, 0, mark()))
                try:
                    return forward(*args, **kwargs)
                finally:
                    append((LEFT, 0, mark()))

            return probed

        def numbered(*args: object, **kwargs: object) -> object:
            append = self.events.append
            append((index, self._number(_sequence()), mark()))
            try:
                outputs = forward(*args, **kwargs)
            finally:
                append((LEFT, self._number(_sequence()), mark()))
            if self.is_in_backward and _is_reentrant():
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
            number = self._number((user if hasattr(node, "variable") else node)._sequence_nr())
            self._handles.append(node.register_prehook(self._begun(number)))
            waiting += [(after, node) for after, _ in node.next_functions if after is not None]

    def _number(self, sequence: int) -> int:
        return sequence + ANEW if self.is_in_backward else sequence

    def _begun(self, number: int) -> Callable[[object], None]:
        mark, append = self._mark, self.events.append

        def begun(_gradients: object) -> None:
            append((None, number, mark()))

        return begun

    def hold(self, handle: Any) -> None:
        """Another hook on the backward, to be removed with the others."""
        self._handles.append(handle)

    def forget(self) -> list[Event]:
        """Every event since the last time; the backward is no longer followed."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        events, self.events = self.events, []
        self.is_in_backward = False
        return events

    def described(self) -> list[tuple[list[str], str]]:
        """Per index, the paths and the class name of the module."""
        return [(self.paths[module], type(module).__name__) for module in self.modules]


def _is_reentrant() -> bool:
    """True if a reentrant checkpoint is recomputing its forward pass."""
    node: Any = torch._C._current_autograd_node()
    return bool(node is not None and node.name() == CHECKPOINT)


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


def calibrated(clock: Clock, device: torch.device, with_backward: bool) -> Cost:
    """The cost of the probes of a call, and with ``with_backward`` of a node; seconds, by the clock that is used.

    Between the layers of a model there is work, which drives the probe's own code out of the processor's caches. So the window of
    an empty call is measured between convolutions too, and everything else, which is a small difference of two noisy totals,
    is measured without work between and scaled by what the window has grown.
    """
    x = torch.zeros(1, device=device)
    image, kernel = torch.zeros(1, 16, 32, 32, device=device), torch.zeros(16, 16, 3, 3, device=device)
    with without_collection(), _one_thread():
        added = _Calls(_EmptyModules(), x, clock, with_backward)
        whole = seconds_added(added.plain, added.probed, PAIRS) / (CALLS + 1)
        among_work = _Calls(_EmptyModules(lambda: torch.conv2d(image, kernel)), x, clock, with_backward)
        for _ in range(STEPS_AMONG_WORK):
            among_work.probed()
        inside, inside_among_work = added.window, among_work.window
        growth = min(max(1.0, inside_among_work / inside), MOST_GROWTH) if inside > 0 else 1.0
        node = _node(clock, device) if with_backward else 0.0
    return Cost(inside * growth, max(0.0, whole - inside) * growth, node * growth)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The work between the calls is small: threads would wait for each other, long where others use the processor too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _EmptyModule(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _EmptyModules(torch.nn.Module):
    """Empty calls, with work between them or without."""

    def __init__(self, work: Callable[[], object] | None = None) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(_EmptyModule() for _ in range(CALLS))
        self._work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.inner:
            if self._work is not None:
                self._work()
            x = module(x)
        return x


class _Calls:
    """Steps of a module, with probes and without."""

    def __init__(self, module: _EmptyModules, x: torch.Tensor, clock: Clock, with_backward: bool) -> None:
        self._step, self._clock = partial(module, x), clock
        self._probes = ModuleProbes(module, clock.mark, with_backward)
        self._windows: list[float] = []

    def plain(self) -> float:
        return _lasting(self._step, self._clock)

    def probed(self) -> float:
        with self._probes.attached():
            lasted = _lasting(self._step, self._clock)
            events = self._probes.forget()
        between = self._clock.between
        self._windows += [between(a[2], b[2]) for a, b in pairwise(events) if a[0] != LEFT and b[0] == LEFT]
        return lasted

    @property
    def window(self) -> float:
        """Median seconds within the window of an empty call."""
        return statistics.median(self._windows)


def _node(clock: Clock, device: torch.device) -> float:
    """Seconds of following one node of a backward."""
    probes = ModuleProbes(torch.nn.Identity(), clock.mark, with_backward=True)

    def plain() -> float:
        return _lasting(_chain(device).backward, clock)

    def followed() -> float:
        last = _chain(device)
        probes.follow(last)
        lasted = _lasting(last.backward, clock)
        probes.forget()
        return lasted

    return seconds_added(plain, followed, PAIRS) / (NODES + 1)  # the node that adds to the gradient is followed too


def _chain(device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        x: torch.Tensor = torch.zeros((), device=device, requires_grad=True)
        for _ in range(NODES):
            x = x.view_as(x)
    return x


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
    if is_compiled(model.module):
        raise Unsupported("a compiled model has no layers when it runs; backend=torch has the same model with them")
    is_training, clock = work.training is not None, model.clock()
    probes = ModuleProbes(model.module, clock.mark, is_training, work.selection)
    with stepping(model, work) as steps, without_collection():
        measuring = _Measuring(steps, probes, Reader(probes.described(), clock.between), clock)
        calibrate = partial(calibrated, clock, model.device, with_backward=is_training)
        times = timed_in_turns(measuring.pairs(), calibrate, clock.now, protocol, is_training)
    times = replace(times, mode=work.mode)
    if len(times.calls) < 2:
        raise Unsupported("no Python module of the model was called: a scripted model has no layers when it runs")
    return times


@dataclass(frozen=True, slots=True)
class _Measuring:
    """Takes the steps."""

    steps: Steps
    probes: ModuleProbes
    reader: Reader
    clock: Clock

    def pairs(self) -> TakePair:
        """Steps without probes and steps with them."""
        return in_turns(lambda: self._turn(None), self._probed_turn)

    def _probed_turn(self) -> Turn:
        with self.probes.attached():
            return self._turn(self.probes)

    def _turn(self, probes: ModuleProbes | None) -> Turn:
        """One step; no mark is read before it is over, as reading waits for the device, which then has nothing to do."""
        mark, between, backward = self.clock.mark, self.clock.between, self.steps.backward
        begin = mark()
        outputs = self.steps.forward()
        end = mark()
        if backward is None:
            step = None if probes is None else self.reader.step(probes.events, begin, end)[0]
            return Turn(between(begin, end), 0.0, step)
        forward_events = [] if probes is None else _turned_back(probes, outputs)
        backward_begin = mark()
        backward(outputs)
        backward_end = mark()
        step = None
        if probes is not None:
            step, timeline = self.reader.step(forward_events, begin, end)
            self.reader.backward(step, timeline, probes.events, backward_begin, backward_end)
        return Turn(between(begin, end), between(backward_begin, backward_end), step)


def _turned_back(probes: ModuleProbes, outputs: object) -> list[Event]:
    """The events of the forward; from now on the probes follow its backward."""
    events = list(probes.events)
    probes.events.clear()
    probes.follow(outputs)
    probes.is_in_backward = True
    return events
