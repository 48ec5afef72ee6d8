"""What the first steps of a model allocate, from the events of torch's profiler.

Every allocator of torch tells the profiler of each block that it gives away and takes back, on the host too; the module that runs
is marked in the same trace, so that both are in one order. A node of the backward belongs to the module whose forward made it: both
carry autograd's sequence number.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import torch
from torch._C._profiler import _EventType

from sweeprof.backends.torch.device_memory import meter_of
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.steps import stepping
from sweeprof.backends.torch.tensors import live_tensors, storages
from sweeprof.backends.torch.tracing import MODULE, NODE, STEP, annotated, annotation, check_no_profiler
from sweeprof.errors import Unsupported
from sweeprof.profiling.allocations import Change, course
from sweeprof.profiling.recipe import Work
from sweeprof.profiling.timing import without_collection
from sweeprof.results.allocations import Allocations
from sweeprof.results.paths import is_below

STEPS = 3
"""The first makes gradients and optimizer state, the second has those of the first, the third is like all that follow."""


def allocations(model: TorchModel, work: Work) -> Allocations:
    """Trace the first steps; nothing may have run before.

    Raises:
        Unsupported: the caller's own torch.profiler is running, or the device's allocator does not tell the profiler anything.
    """
    check_no_profiler()
    meter = meter_of(model.device)
    with annotated(model.module), stepping(model, work) as steps, without_collection():
        gc.collect()
        before = storages()
        meter.begin()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            for _ in range(STEPS):
                with annotation(STEP):
                    steps.whole()
                meter.stepped()
                gc.collect(0)  # cycles that the step left; what is older has been collected
        tensors = live_tensors(model.module, steps.optimizer, (work.batch, work.targets), before)
        device = meter.result()
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    trace = _Trace(model.device.type)
    trace.follow(roots)
    if model.device.type != "cpu" and not any(change.bytes for change in trace.changes):
        raise Unsupported(f"torch's profiler shows no allocations on {model.device.type}")
    found = course(trace.changes, trace.begins, trace.ends)
    return found.told("inference" if work.recipe is None else "training", tensors, device)


class _Trace:
    """The changes of one kind of device's memory in a tree of events."""

    def __init__(self, device: str) -> None:
        self.changes: list[Change] = []
        self.begins: list[int] = []
        self.ends: list[int] = []
        self._device = device
        self._made: tuple[list[int], list[tuple[str, ...]]] = ([], [])
        """Rising sequence numbers of forward operators, and the modules that ran them."""

    def follow(self, roots: Iterable[Any]) -> None:
        """Walk the events in the order in which they began."""
        waiting: list[tuple[Any, tuple[str, ...], bool]] = [
            (root, (), False) for root in sorted(roots, key=lambda event: -event.start_time_ns)
        ]
        node: tuple[str, ...] = ()
        while waiting:
            event, stack, is_backward = waiting.pop()
            if event.tag == _EventType.Allocation:
                self._changed(event, stack)
                continue
            name = event.name
            if name.startswith(NODE):
                # Gradients are accumulated by nodes without a number, right after the one that made them.
                number = event.extra_fields.sequence_number
                node = self._maker(number) if number >= 0 else node
                stack, is_backward = node, True
                self._ran(event, stack)
            elif name.startswith(MODULE):
                path = name.removeprefix(MODULE)
                # A segment that runs anew within a backward may have been asked for by a node of one of its own modules.
                stack, is_backward = (*_above(path, stack), path) if is_backward else (*stack, path), False
                self._ran(event, stack)
            elif name == STEP:
                self.begins.append(event.start_time_ns)
                self.ends.append(event.end_time_ns)
                self._ran(event, stack)
            elif event.tag == _EventType.TorchOp and not is_backward:
                self._remember(event.extra_fields.sequence_number, stack)
            waiting += [(child, stack, is_backward) for child in reversed(event.children)]

    def _changed(self, event: Any, stack: tuple[str, ...]) -> None:
        block = event.extra_fields
        if block.device.type == self._device:
            self.changes.append(Change(event.start_time_ns, block.alloc_size, block.ptr, stack))

    def _ran(self, event: Any, stack: tuple[str, ...]) -> None:
        self.changes.append(Change(event.start_time_ns, 0, 0, stack))

    def _remember(self, number: int, stack: tuple[str, ...]) -> None:
        numbers, stacks = self._made
        if numbers and number == numbers[-1]:  # several may ask for the next number; the last one took it
            stacks[-1] = stack
        elif number >= 0 and (not numbers or number > numbers[-1]):
            numbers.append(number)
            stacks.append(stack)

    def _maker(self, number: int) -> tuple[str, ...]:
        """Who ran the operator of this number, or the last one before it that is known."""
        numbers, stacks = self._made
        index = bisect_right(numbers, number) - 1
        return stacks[index] if index >= 0 else ()


def _above(path: str, stack: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(outer for outer in stack if is_below(path, outer))
