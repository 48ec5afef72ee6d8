"""A few steps under torch.profiler: which operators ran, in which module and phase.

Modules, phases and steps are annotations in the trace, made by the profiler's own C record function: 0.2 µs a call, 1.5 µs while
tracing, where ``torch.profiler.record_function`` takes 15. An operator belongs to the innermost annotation around it, so that a
forward which a checkpoint computes again stays with its modules. An operator of the backward belongs to the module whose forward
made the autograd node it runs in: the profiler notes the node's number at both. A node that adds to a parameter's gradient has
no number; it runs right after the node that it serves and belongs where that one does.
"""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch._C._autograd import DeviceType, _profiler_enabled
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from sweeprof.backends.torch.callsites import paths_of
from sweeprof.backends.torch.state import forwards_wrapped, running_as_python
from sweeprof.backends.torch.training import Steps
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import path_below
from sweeprof.results.layer_times import OUTSIDE
from sweeprof.results.operators import Phase

MODULE, PHASE, STEP = "nn.Module: ", "sweeprof phase: ", "sweeprof step"
"""What the names of annotations begin with."""
NODE = "autograd::engine::evaluate_function: "
"""What the profiler calls the running of a node of the autograd graph."""

DEVICE_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
"""What the profiler records of an accelerator, by the type of the device; of others it has no times."""

annotation: Any = torch._C._profiler._RecordFunctionFast


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """One operator that ran once."""

    event: FunctionEvent
    """A ``torch.autograd.profiler_util.FunctionEvent``: times in microseconds, calls within it, shapes, bytes."""
    path: str
    phase: Phase


@dataclass(frozen=True, slots=True)
class TorchTrace:
    """Every operator in the order in which they began, those that others called too."""

    operators: tuple[TracedOperator, ...]
    entered: dict[str, int]
    """Calls by module path."""
    steps: int
    step_s: float
    """Seconds of one step, mean."""
    chrome: bytes
    """The trace in Chrome's format, compressed with gzip."""


def traced(module: torch.nn.Module, steps: Steps, count: int) -> TorchTrace:
    """Trace ``count`` steps of a module.

    Raises:
        Unsupported: a profiler of torch is running in this process; there can be one at a time.
        Exception: whatever the step raised.
    """
    check_no_profiler()
    on_device = DEVICE_ACTIVITIES.get(steps.device.type)
    activities = [ProfilerActivity.CPU, *([] if on_device is None else [on_device])]
    with annotated(module), profile(activities=activities, record_shapes=True, profile_memory=True) as profiler:
        for _ in range(count):
            with annotation(STEP):
                steps.whole(_phase)
    events = [e for e in profiler.events() if e.device_type == DeviceType.CPU and e.name != "[memory]"]
    operators, entered = _attributed(events)
    span = [event.cpu_time_total for event in events if event.name == STEP]
    return TorchTrace(operators, entered, count, sum(span) / len(span) / 1e6, _chrome(profiler))


def check_no_profiler() -> None:
    """Raises :class:`Unsupported` where the caller's own profiler of torch is running."""
    if _profiler_enabled():
        raise Unsupported("a profiler of torch is running, and there can be only one: trace outside it")


def _phase(name: Phase) -> AbstractContextManager[object]:
    within: AbstractContextManager[object] = annotation(PHASE + name)
    return within


@contextmanager
def annotated(root: torch.nn.Module) -> Iterator[None]:
    """Within it every call of a module is an annotation; afterwards every module is as it was."""
    paths = paths_of(root)
    running = [OUTSIDE]
    modules = running_as_python(paths)
    with forwards_wrapped(modules, lambda module: _annotating(paths[module], running, module.forward)):
        yield


def _annotating(names: list[str], running: list[str], forward: Callable[..., object]) -> Callable[..., object]:
    alone = names[0] if len(names) == 1 else None

    def annotated(*args: object, **kwargs: object) -> object:
        path = alone or path_below(names, running[-1])
        running.append(path)
        try:
            with annotation(MODULE + path):
                return forward(*args, **kwargs)
        finally:
            running.pop()

    return annotated


def _attributed(events: Sequence[Any]) -> tuple[tuple[TracedOperator, ...], dict[str, int]]:
    """The operators among the events of a trace, which are in the order of their beginnings; and the calls of modules."""
    phases = [event for event in events if event.name.startswith(PHASE)]
    begins = [event.time_range.start for event in phases]
    paths = _paths(events)
    operators: list[TracedOperator] = []
    entered: dict[str, int] = {}
    for event, path in zip(events, paths, strict=True):
        if event.name.startswith(MODULE):
            entered[path] = entered.get(path, 0) + 1
        elif event.name != STEP and not event.is_user_annotation and not event.name.startswith(PHASE):
            phase = bisect_right(begins, event.time_range.start) - 1
            # By time, as the backward runs in another thread on an accelerator.
            if phase >= 0 and event.time_range.start <= phases[phase].time_range.end:
                operators.append(TracedOperator(event, path, phases[phase].name.removeprefix(PHASE)))
    return tuple(operators), entered


def _paths(events: Sequence[FunctionEvent]) -> list[str]:
    """The module that each event belongs to."""
    of_event: dict[int, str] = {}
    of_node: dict[tuple[int | None, int], str] = {}
    """By thread and number, which the operators know that were about to make the node: the last of them made it."""
    of_last_node: dict[int, str] = {}
    """By thread."""
    for event in events:
        parent = event.cpu_parent
        path = OUTSIDE if parent is None else of_event[parent.id]
        if event.name.startswith(MODULE):
            path = event.name.removeprefix(MODULE)
        elif event.name.startswith(NODE):
            if event.sequence_nr >= 0:
                path = of_node.get((event.fwd_thread, event.sequence_nr), OUTSIDE)
            else:
                path = of_last_node.get(event.thread, OUTSIDE)
            of_last_node[event.thread] = path
        elif event.sequence_nr >= 0 and not event.fwd_thread:
            of_node[event.thread, event.sequence_nr] = path
        of_event[event.id] = path
    return [of_event[event.id] for event in events]


def _chrome(profiler: profile) -> bytes:
    with TemporaryDirectory() as folder:  # torch writes to a path only
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return gzip.compress(path.read_bytes(), mtime=0)
