"""The operators that a step runs: a few traced steps by module, phase and input shapes, with FLOPs.

Times are the profiler's, its own cost of about a microsecond an operator included; they say where the time of a step goes, and
the timing pass how long it takes. FLOPs are not the profiler's, which knows a handful of operators and counts them otherwise, but
those of docs/counting.md: one step is counted for real, as it is going to run, with backward and update, and each operator's
figure is put at the traced operator of the same name and input shapes, in the forward at the same path too. An operator that is
part of one with a figure has none itself, so that nothing counts twice. None stands where

- there is no formula, or the operator does no arithmetic,
- as many calls were not traced as were counted, as where kernels are compiled or a checkpoint computes no more than it needs,
- calls of the same name and input shapes cost differently, and are in several rows.

A transformer layer's fast path is one operator, which gets what all that it stands for costs: it is counted without.

Modules, phases and steps are annotations in the trace, made by the profiler's own C record function: 0.2 µs a call, 1.5 µs while
tracing, where ``torch.profiler.record_function`` takes 15. An operator belongs to the innermost annotation around it, so that a
forward which a checkpoint computes again stays with its modules. An operator of the backward belongs to the module whose forward
made the autograd node it runs in: the profiler notes the node's number at both. A node that adds to a parameter's gradient has
no number; it runs right after the node that it serves and belongs where that one does.
"""

from __future__ import annotations

import gzip
import re
import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import get_ident
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from sweeprof.backends.torch.callsites import CallSites, LiveBytes, paths_of, tensors_in
from sweeprof.backends.torch.counting import message_of, slow_paths
from sweeprof.backends.torch.dispatch import CountingMode
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.private import RecordFunction, current_autograd_node, is_profiler_enabled
from sweeprof.backends.torch.state import IN_OTHER_THREADS, forwards_wrapped, in_one_thread, running_as_python
from sweeprof.backends.torch.training import Steps, stepping
from sweeprof.counting.formulas import DEFAULTS, Args, Formulas, OperatorCost
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import path_below
from sweeprof.measuring.timing import WallClock, lasting
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import OUTSIDE, is_below
from sweeprof.results.layers import Shapes
from sweeprof.results.observations import KernelRow, OperatorRow, Operators, Phase

WARMUP_STEPS = 2
UNTRACED_STEPS = 5
TRACED_STEPS = 3
MOST_EVENTS = 60_000
"""Operators in a trace of several steps; a step that has more is traced once. An event takes about 20 bytes of the file."""
FUSED = {"aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"}
"""Operators that stand for a whole module, which is counted without them."""

OperatorKey = tuple[Phase, str, str, Shapes]
"""Phase, path (none but in the forward), name and input shapes: by these a counted operator is found in the trace."""


def operators(model: TorchModel, work: Work) -> Operators:
    """Return the operators that a step runs; a training step changes the weights.

    Raises:
        Unsupported: a profiler of torch is running, or the training config does not fit the model.
        Exception: whatever the model raised.
    """
    with stepping(model, work) as steps, in_one_thread("torch's profiler", steps.whole):
        for _ in range(WARMUP_STEPS):
            steps.whole()
        untraced_step_s = None
        if model.device.type in DEVICE_ACTIVITIES:  # kernels take as long in a trace as without one, the host does not
            untraced_step_s = statistics.median(lasting(steps.whole, 1, WallClock()) for _ in range(UNTRACED_STEPS))
        counted, reason = _counted(model.native, steps)
        # The first trace also pays for what the profiler sets up once, so that it is kept only where it is long.
        trace = traced(model.native, steps, 1)
        count = min(TRACED_STEPS, MOST_EVENTS // max(1, len(trace.operators)))
        if count:
            trace = traced(model.native, steps, count)
    return Operators(
        mode=work.mode,
        rows=_rows(trace, counted, model.device),
        steps=trace.steps,
        step_s=trace.step_s,
        flops_reason=reason,
        files={"trace.json.gz": trace.chrome},
        kernels=kernel_rows(trace),
        busy_s=busy_seconds(trace),
        untraced_step_s=untraced_step_s,
    )


class _Counting(CallSites):
    """FLOPs of every operator with a formula, apart by phase, path and shapes."""

    def __init__(self, root: torch.nn.Module) -> None:
        super().__init__(paths_of(root), Formulas())
        self.found: defaultdict[OperatorKey, list[int]] = defaultdict(list)
        self._phase: Phase = "forward"

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        self._phase = phase
        yield

    def count(self, name: str, cost: OperatorCost, args: Args, output: object) -> None:
        shapes = [tuple(tensor.shape) for tensor in tensors_in(args) if tensor.dim()]
        self.found[_key(self._phase, self.current.path, name, tuple(shapes))].append(cost[1])


def _key(phase: Phase, path: str, name: str, shapes: Shapes) -> OperatorKey:
    if phase != "forward":
        path = ""
    return phase, path, name, shapes


def _counted(module: torch.nn.Module, steps: Steps) -> tuple[dict[OperatorKey, list[int]], str | None]:
    """FLOPs of each call of one step, or why they cannot be counted."""
    sites = _Counting(module)
    mode = CountingMode(sites, LiveBytes(sites.where, ()), DEFAULTS, on_shapes=False)
    try:
        with slow_paths(), sites.tracking(), mode.following_threads(nullcontext), mode:
            steps.whole(sites.within)
    # An operator may refuse to be dispatched to Python; what the model raises, the trace raises too.
    except Exception as error:
        return {}, f"the step cannot be counted: {message_of(error)}"
    return dict(sites.found), None


RowKey = tuple[str, str, Phase, Shapes]


def _rows(trace: TorchTrace, counted: Mapping[OperatorKey, list[int]], device: torch.device) -> tuple[OperatorRow, ...]:
    """One per path, operator, phase and input shapes, in the order in which they first ran."""
    memory = "self_cpu_memory_usage" if device.type == "cpu" else "self_device_memory_usage"
    counted = _with_fused(counted, trace)
    found: defaultdict[RowKey, list[FunctionEvent]] = defaultdict(list)
    keys: defaultdict[RowKey, Counter[OperatorKey]] = defaultdict(Counter)
    """Calls that have FLOPs, by where these are."""
    calls: Counter[OperatorKey] = Counter()
    taken: set[int] = set()
    """Events that have FLOPs, or are part of one that has."""
    for operator in trace.operators:
        event, shapes = operator.event, _shapes(operator.event)
        row = operator.path, event.name, operator.phase, shapes
        found[row].append(event)
        key = _key_of(operator, shapes)
        is_part = event.cpu_parent is not None and event.cpu_parent.id in taken
        if is_part or key in counted:
            taken.add(event.id)
        if not is_part and key in counted:
            keys[row][key] += 1
            calls[key] += 1

    def mean(events: Sequence[FunctionEvent], figure: str) -> float:
        """Return what the events have together in a step."""
        return float(sum(getattr(event, figure) for event in events)) / trace.steps

    def flops(row: RowKey) -> int | None:
        """Return the FLOPs of a row in a step."""
        if len(keys[row]) != 1:
            return None
        ((key, own_calls),) = keys[row].items()
        each = counted[key]
        if calls[key] != len(each) * trace.steps:
            return None
        if own_calls == calls[key]:
            return sum(each)
        if len(set(each)) == 1 and own_calls % trace.steps == 0:
            return each[0] * own_calls // trace.steps
        return None

    rows = []
    for row, events in found.items():
        device_self_s = device_total_s = None
        if device.type in DEVICE_ACTIVITIES:
            device_self_s = mean(events, "self_device_time_total") / 1e6
            device_total_s = mean(events, "device_time_total") / 1e6
        rows.append(
            OperatorRow(
                path=row[0],
                operator=row[1],
                phase=row[2],
                calls=len(events) / trace.steps,
                self_s=mean(events, "self_cpu_time_total") / 1e6,
                total_s=mean(events, "cpu_time_total") / 1e6,
                device_self_s=device_self_s,
                device_total_s=device_total_s,
                flops=flops(row),
                allocated_bytes=round(mean(events, memory)),
                input_shapes=row[3],
            )
        )
    return tuple(rows)


def _key_of(operator: TracedOperator, shapes: Shapes) -> OperatorKey:
    """Return the key under which the FLOPs of an operator are, if it was counted."""
    name = operator.event.name
    if name in FUSED:
        return _key(operator.phase, operator.path, name, ())
    # As in the counts: `add` for `aten::add_`.
    return _key(operator.phase, operator.path, name.removeprefix("aten::").removesuffix("_"), shapes)


def _with_fused(counted: Mapping[OperatorKey, list[int]], trace: TorchTrace) -> dict[OperatorKey, list[int]]:
    """Give an operator that stands for a module what the module costs, if every call of the module ran it."""
    figures = dict(counted)
    found: Counter[tuple[str, str]] = Counter()
    for operator in trace.operators:
        if operator.event.name in FUSED and not _is_within(operator.event, FUSED):
            found[operator.path, operator.event.name] += 1
    for (path, name), calls in found.items():
        if calls != trace.entered.get(path):
            continue
        below = [key for key in figures if key[0] == "forward" and (key[1] == path or is_below(key[1], path))]
        total = sum(sum(figures.pop(key)) for key in below)
        per_step, left = divmod(calls, trace.steps)
        if total and not left:
            figures["forward", path, name, ()] = [total, *[0] * (per_step - 1)]
    return figures


def _is_within(event: Any, names: set[str]) -> bool:
    parent = event.cpu_parent
    while parent is not None and parent.name not in names:
        parent = parent.cpu_parent
    return parent is not None


def _shapes(event: Any) -> Shapes:
    """Return the shapes of the tensors that have dimensions; older releases of PyTorch leave out those in lists."""
    found: list[tuple[int, ...]] = []
    for shape in getattr(event, "structured_input_shapes", event.input_shapes) or ():
        if not shape or not isinstance(shape[0], list | tuple):
            shape = [shape]  # noqa: PLW2901
        found += [tuple(one) for one in shape if one]
    return tuple(found)


MODULE, PHASE, STEP = "nn.Module: ", "sweeprof phase: ", "sweeprof step"
"""What the names of annotations begin with."""
NODE = "autograd::engine::evaluate_function: "
"""What the profiler calls the running of a node of the autograd graph."""

DEVICE_ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
"""What the profiler records of an accelerator, by the type of the device; of others it has no times."""
CALL_OF_DRIVER = re.compile(r"(cu|cuda|hip|ur|ze)[A-Z]")
"""How names of calls of a device's driver begin, such as ``cudaDeviceSynchronize``."""
OVERHEADS = {
    "Activity Buffer Request",
    "Buffer Flush",
    "Command Buffer Full",
    "Driver Compiler",
    "Instrumentation",
    "Lazy Function Loading",
    "Overhead",
    "Resource",
    "Runtime Triggered Module Loading",
    "UVM Activity Init",
    "Unknown",
}
"""What the profiler itself did, as Kineto names CUPTI's kinds of overhead (``overheadKindString``)."""


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
    kernels: tuple[FunctionEvent, ...] = ()
    """Kernels and copies of the accelerator; empty on the host."""


def kernels_among(events: Sequence[Any]) -> tuple[FunctionEvent, ...]:
    """Return the kernels and copies of an accelerator; the ranges of a model's own annotations are on its timeline, too."""
    return tuple(event for event in events if event.device_type.name != "CPU" and not event.is_user_annotation)


def kernel_rows(trace: TorchTrace) -> tuple[KernelRow, ...]:
    """Return the kernels of a step by name, the longest first."""
    seconds: Counter[str] = Counter()
    calls = Counter(event.name for event in trace.kernels)
    for event in trace.kernels:
        seconds[event.name] += event.time_range.elapsed_us() / 1e6 / trace.steps  # type: ignore[no-untyped-call]
    whole = sum(seconds.values())
    return tuple(KernelRow(name, calls[name] / trace.steps, s, s / whole) for name, s in seconds.most_common() if whole)


def busy_seconds(trace: TorchTrace) -> float | None:
    """Return the seconds of a step in which any kernel or copy ran, those of several streams once; None if there are none."""
    if not trace.kernels:
        return None
    busy_us = end = 0.0
    for event in sorted(trace.kernels, key=lambda event: event.time_range.start):
        busy_us += max(0.0, event.time_range.end - max(end, event.time_range.start))
        end = max(end, event.time_range.end)
    return busy_us / 1e6 / trace.steps


def traced(module: torch.nn.Module, steps: Steps, count: int) -> TorchTrace:
    """Trace ``count`` steps of a module.

    Raises:
        Unsupported: a profiler of torch is running in this process; there can be one at a time.
        Exception: whatever the step raised.
    """
    check_no_profiler()
    activities = [ProfilerActivity.CPU]
    if steps.device.type in DEVICE_ACTIVITIES:
        activities.append(DEVICE_ACTIVITIES[steps.device.type])
    with annotated(module), profile(activities=activities, record_shapes=True, profile_memory=True) as profiler:
        for _ in range(count):
            with RecordFunction(STEP):
                steps.whole(lambda phase: RecordFunction(PHASE + phase))
    every_event = profiler.events()
    for event in every_event:
        # torch finds the kernels of an operator by its number, which such an event has, too, by chance or from what it interrupts.
        if event.name in OVERHEADS or (CALL_OF_DRIVER.match(event.name) and not event.is_user_annotation):
            event.kernels = []
    events = [e for e in every_event if e.device_type.name == "CPU" and e.name != "[memory]"]
    operators, entered = _attributed(events)
    span = [event.cpu_time_total for event in events if event.name == STEP]
    with TemporaryDirectory() as folder:  # torch writes to a path only
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        chrome = gzip.compress(path.read_bytes(), mtime=0)
    return TorchTrace(operators, entered, count, sum(span) / len(span) / 1e6, chrome, kernels_among(every_event))


def check_no_profiler() -> None:
    """Raises :class:`Unsupported` where the caller's own profiler of torch is running."""
    if is_profiler_enabled():
        raise Unsupported("a profiler of torch is running, and there can be only one: trace outside it")


@contextmanager
def annotated(root: torch.nn.Module) -> Iterator[None]:
    """Within it every call of a module is an annotation; afterwards every module is as it was.

    Raises:
        Unsupported: at the end, if modules were called in other threads.
    """
    paths = paths_of(root)
    running = [OUTSIDE]
    elsewhere: list[str] = []
    modules = running_as_python(paths)
    with forwards_wrapped(modules, lambda module, forward: _annotating(paths[module], running, elsewhere, forward)):
        yield
    if elsewhere:
        raise Unsupported(IN_OTHER_THREADS.format("torch's profiler"))


def _annotating(
    names: list[str], running: list[str], elsewhere: list[str], forward: Callable[..., object]
) -> Callable[..., object]:
    thread = get_ident()

    def annotated(*args: object, **kwargs: object) -> object:
        if get_ident() != thread and current_autograd_node() is None:  # a backward may have a thread of its own
            elsewhere.append(names[0])
            return forward(*args, **kwargs)
        path = names[0]
        if len(names) > 1:
            path = path_below(names, running[-1])
        running.append(path)
        try:
            with RecordFunction(MODULE + path):
                return forward(*args, **kwargs)
        finally:
            running.pop()

    return annotated


def _attributed(events: Sequence[Any]) -> tuple[tuple[TracedOperator, ...], dict[str, int]]:
    """The operators among the events of a trace, which are in the order of their beginnings; and the calls of modules."""
    phases = [event for event in events if event.name.startswith(PHASE)]
    begins = [event.time_range.start for event in phases]
    operators: list[TracedOperator] = []
    entered: Counter[str] = Counter()
    of_event: dict[int, str] = {}
    """The module that an event belongs to."""
    of_node: dict[tuple[int | None, int], str] = {}
    """By thread and number, which the operators know that were about to make the node: the last of them made it."""
    of_last_node: dict[int, str] = {}
    """By thread."""
    for event in events:
        parent = event.cpu_parent
        path = OUTSIDE
        if parent is not None:
            path = of_event[parent.id]
        if event.name.startswith(MODULE):
            path = event.name.removeprefix(MODULE)
            entered[path] += 1
        elif event.name.startswith(NODE):
            if event.sequence_nr >= 0:
                path = of_node.get((event.fwd_thread, event.sequence_nr), OUTSIDE)
            else:
                path = of_last_node.get(event.thread, OUTSIDE)
            of_last_node[event.thread] = path
        elif event.sequence_nr >= 0 and not event.fwd_thread:
            of_node[event.thread, event.sequence_nr] = path
        of_event[event.id] = path
        is_operator = event.name not in OVERHEADS and event.name != STEP and not event.name.startswith((MODULE, PHASE))
        if is_operator and not event.is_user_annotation:
            phase = bisect_right(begins, event.time_range.start) - 1
            # By time, as the backward runs in another thread on an accelerator.
            if phase >= 0 and event.time_range.start <= phases[phase].time_range.end:
                operators.append(TracedOperator(event, path, phases[phase].name.removeprefix(PHASE)))
    return tuple(operators), entered
