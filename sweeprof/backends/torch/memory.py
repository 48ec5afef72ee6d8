"""Allocations in the first steps of a model, from the events of torch's profiler.

Every allocator of torch tells the profiler of each block that it gives away and takes back, on the host too; the module that runs
is marked in the same trace, so that both are in one order. A node of the backward belongs to the module whose forward made it: both
carry autograd's sequence number.
"""

from __future__ import annotations

import gc
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch._C._profiler import _EventType

from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.tensors import live_tensors, storages
from sweeprof.backends.torch.tracing import MODULE, NODE, STEP, annotated, annotation, check_no_profiler
from sweeprof.backends.torch.training import stepping
from sweeprof.errors import Unsupported
from sweeprof.measuring.allocations import Change, course
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import is_below
from sweeprof.results.memory import Allocations


class Meter(Protocol):
    """Reads an accelerator's own figures around the steps."""

    def begin(self) -> None: ...

    def stepped(self) -> None: ...

    def result(self) -> dict[str, int]: ...


class HostMeter:
    """There is nothing beside the allocations themselves."""

    def begin(self) -> None:
        """Nothing."""

    def stepped(self) -> None:
        """Nothing."""

    def result(self) -> dict[str, int]:
        return {}


class AcceleratorMeter:
    """The peaks of an accelerator's allocator, and after each step the memory of this process and of the whole device.

    Args:
        allocator: ``torch.accelerator``, or what stands in for it.
        process_bytes: of this process on the device; None where it cannot be had.
    """

    def __init__(self, device: torch.device, allocator: Any, process_bytes: Callable[[], int | None]) -> None:
        self._device, self._allocator, self._process_bytes = device, allocator, process_bytes
        self._pre = 0
        self._seen: dict[str, list[int]] = {"process_peak_bytes": [], "device_peak_bytes": []}

    def begin(self) -> None:
        self._allocator.synchronize(self._device)
        self._allocator.reset_peak_memory_stats(self._device)
        self._pre = self._allocator.memory_allocated(self._device)

    def stepped(self) -> None:
        self._allocator.synchronize(self._device)
        free, total = self._allocator.get_memory_info(self._device)
        self._seen["device_peak_bytes"].append(total - free)
        process = self._process_bytes()
        if process is not None:
            self._seen["process_peak_bytes"].append(process)

    def result(self) -> dict[str, int]:
        return {
            "allocated_pre_bytes": self._pre,
            "allocated_peak_bytes": self._allocator.max_memory_allocated(self._device),
            "allocated_post_bytes": self._allocator.memory_allocated(self._device),
            "reserved_peak_bytes": self._allocator.max_memory_reserved(self._device),
            **{name: max(values) for name, values in self._seen.items() if values},
        }


def meter_of(device: torch.device) -> Meter:
    """The meter of a device."""
    if device.type == "cpu":
        return HostMeter()
    return AcceleratorMeter(device, allocator_of(device), partial(_process_bytes, device))


def allocator_of(device: torch.device) -> Any:
    """Return ``torch.accelerator``, which reads the allocator of any accelerator; the device's own functions before torch 2.9."""
    if hasattr(torch.accelerator, "memory_stats"):
        return torch.accelerator
    module = torch.get_device_module(device)
    names = "memory_stats memory_allocated max_memory_allocated max_memory_reserved reset_peak_memory_stats synchronize"
    functions = {name: getattr(module, name) for name in names.split()}
    return SimpleNamespace(**functions, get_memory_info=module.mem_get_info)


def _process_bytes(device: torch.device) -> int | None:
    """Return the device memory of this process, contexts and libraries included; None without NVIDIA's management library."""
    if device.type != "cuda":
        return None
    try:
        import pynvml  # type: ignore[import-not-found]  # NVIDIA's; not on a host without its devices
    except ImportError:
        return None
    pynvml.nvmlInit()
    try:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return next((one.usedGpuMemory for one in processes if one.pid == os.getpid()), None)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


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
    trace = _EventChanges(model.device.type)
    trace.follow(roots)
    if model.device.type != "cpu" and not any(change.bytes for change in trace.changes):
        raise Unsupported(f"torch's profiler shows no allocations on {model.device.type}")
    return course(trace.changes, trace.begins, trace.ends, mode=work.mode, tensors=tensors, device=device)


class _EventChanges:
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
        """Return the path of the module that ran the operator of this number, or the last known one before it."""
        numbers, stacks = self._made
        index = bisect_right(numbers, number) - 1
        return stacks[index] if index >= 0 else ()


def _above(path: str, stack: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(outer for outer in stack if is_below(path, outer))
