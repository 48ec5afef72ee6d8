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
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from sweeprof.backends.torch.callsites import CallSites
from sweeprof.backends.torch.counting import message_of, slow_paths
from sweeprof.backends.torch.dispatch import CountingMode
from sweeprof.backends.torch.liveness import LiveBytes
from sweeprof.backends.torch.model import TorchModel
from sweeprof.backends.torch.tracing import DEVICE_ACTIVITIES, TorchTrace, TracedOperator, traced
from sweeprof.backends.torch.training import Steps, stepping
from sweeprof.counting.formulas import DEFAULTS, Args, Formulas, OperatorCost
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import is_below
from sweeprof.results.layers import Shapes
from sweeprof.results.operators import OperatorRow, Operators, Phase

WARMUP_STEPS = 2
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
    with stepping(model, work) as steps:
        for _ in range(WARMUP_STEPS):
            steps.whole()
        counted, reason = _counted(model.module, steps)
        # The first trace also pays for what the profiler sets up once, so that it is kept only where it is long.
        trace = traced(model.module, steps, 1)
        count = min(TRACED_STEPS, MOST_EVENTS // max(1, len(trace.operators)))
        if count:
            trace = traced(model.module, steps, count)
    return Operators(
        mode=work.mode,
        rows=_rows(trace, counted, model.device),
        steps=trace.steps,
        step_s=trace.step_s,
        flops_reason=reason,
        files={"trace.json.gz": trace.chrome},
    )


class _Counting(CallSites):
    """FLOPs of every operator with a formula, apart by phase, path and shapes."""

    def __init__(self, root: torch.nn.Module) -> None:
        super().__init__(root, Formulas())
        self.found: defaultdict[OperatorKey, list[int]] = defaultdict(list)
        self._phase: Phase = "forward"

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        self._phase = phase
        yield

    def count(self, name: str, cost: OperatorCost, args: Args, output: object) -> None:
        shapes = tuple(tuple(tensor.shape) for tensor in _tensors(args) if tensor.dim())
        self.found[_key(self._phase, self.current.path, name, shapes)].append(cost[1])


def _tensors(args: Sequence[object]) -> Iterator[torch.Tensor]:
    for argument in args:
        for item in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(item, torch.Tensor):
                yield item


def _key(phase: Phase, path: str, name: str, shapes: Shapes) -> OperatorKey:
    return phase, path if phase == "forward" else "", name, shapes


def _counted(module: torch.nn.Module, steps: Steps) -> tuple[dict[OperatorKey, list[int]], str | None]:
    """FLOPs of each call of one step, or why they cannot be counted."""
    sites = _Counting(module)
    mode = CountingMode(sites, LiveBytes(sites.where, ()), DEFAULTS, on_shapes=False)
    try:
        with slow_paths(), sites.tracking(), mode:
            steps.whole(sites.within)
    except (
        Exception
    ) as error:  # an operator may refuse to be dispatched to Python; what the model raises, the trace raises too
        return {}, f"the step cannot be counted: {message_of(error)}"
    return dict(sites.found), None


@dataclass(slots=True)
class _ModuleSums:
    """Sums over all calls of one row and all steps; microseconds."""

    calls: int = 0
    self_us: float = 0.0
    total_us: float = 0.0
    device_self_us: float = 0.0
    device_total_us: float = 0.0
    allocated: int = 0
    figures: Counter[OperatorKey] = field(default_factory=Counter)
    """Calls that have FLOPs, by where these are."""


def _rows(trace: TorchTrace, counted: Mapping[OperatorKey, list[int]], device: torch.device) -> tuple[OperatorRow, ...]:
    """One per path, operator, phase and input shapes, in the order in which they first ran."""
    on_device, has_times = device.type != "cpu", device.type in DEVICE_ACTIVITIES
    sums: defaultdict[tuple[str, str, Phase, Shapes], _ModuleSums] = defaultdict(_ModuleSums)
    figures = _CountedOperators(trace, counted)
    for operator in trace.operators:
        event, shapes = operator.event, _shapes(operator.event)
        row = sums[operator.path, event.name, operator.phase, shapes]
        row.calls += 1
        row.self_us += event.self_cpu_time_total
        row.total_us += event.cpu_time_total
        row.device_self_us += event.self_device_time_total
        row.device_total_us += event.device_time_total
        row.allocated += event.self_device_memory_usage if on_device else event.self_cpu_memory_usage
        key = figures.at(operator, shapes)
        if key is not None:
            row.figures[key] += 1
    steps = trace.steps
    return tuple(
        OperatorRow(
            path=path,
            operator=name,
            phase=phase,
            calls=row.calls / steps,
            self_s=row.self_us / steps / 1e6,
            total_s=row.total_us / steps / 1e6,
            device_self_s=row.device_self_us / steps / 1e6 if has_times else None,
            device_total_s=row.device_total_us / steps / 1e6 if has_times else None,
            flops=figures.flops(row.figures),
            allocated_bytes=round(row.allocated / steps),
            input_shapes=shapes,
        )
        for (path, name, phase, shapes), row in sums.items()
    )


class _CountedOperators:
    """Finds in a trace the operators that were counted."""

    def __init__(self, trace: TorchTrace, counted: Mapping[OperatorKey, list[int]]) -> None:
        self._trace, self._counted = trace, dict(counted)
        self._taken: set[int] = set()
        """Events that have a figure, or are part of one that has."""
        self._calls: Counter[OperatorKey] = Counter()
        self._fuse()

    def at(self, operator: TracedOperator, shapes: Shapes) -> OperatorKey | None:
        """Return the key under which the FLOPs of an operator are; operators come in the order in which they began."""
        event = operator.event
        if event.cpu_parent is not None and event.cpu_parent.id in self._taken:
            self._taken.add(event.id)
            return None
        fused = event.name in FUSED
        key = _key(operator.phase, operator.path, event.name if fused else _name(event.name), () if fused else shapes)
        if key not in self._counted:
            return None
        self._taken.add(event.id)
        self._calls[key] += 1
        return key

    def flops(self, calls: Counter[OperatorKey]) -> int | None:
        """Return the FLOPs of a row in a step."""
        if len(calls) != 1:
            return None
        ((key, traced_calls),) = calls.items()
        each, steps = self._counted[key], self._trace.steps
        if self._calls[key] != len(each) * steps:
            return None
        if traced_calls == self._calls[key]:
            return sum(each)
        is_shared_evenly = len(set(each)) == 1 and traced_calls % steps == 0
        return each[0] * traced_calls // steps if is_shared_evenly else None

    def _fuse(self) -> None:
        """Give an operator that stands for a module what the module costs, if every call of the module ran it."""
        found = Counter(
            (operator.path, operator.event.name)
            for operator in self._trace.operators
            if operator.event.name in FUSED and not _is_within(operator.event, FUSED)
        )
        for (path, name), calls in found.items():
            if calls != self._trace.entered.get(path):
                continue
            below = [key for key in self._counted if key[0] == "forward" and (key[1] == path or is_below(key[1], path))]
            total = sum(sum(self._counted.pop(key)) for key in below)
            per_step, left = divmod(calls, self._trace.steps)
            if total and not left:
                self._counted["forward", path, name, ()] = [total, *[0] * (per_step - 1)]


def _is_within(event: Any, names: set[str]) -> bool:
    parent = event.cpu_parent
    while parent is not None and parent.name not in names:
        parent = parent.cpu_parent
    return parent is not None


def _name(name: str) -> str:
    """Return the name of an operator as in the counts: ``add`` for ``aten::add_``."""
    return name.removeprefix("aten::").removesuffix("_")


def _shapes(event: Any) -> Shapes:
    """Return the shapes of the tensors that have dimensions, including those in lists."""
    found: list[tuple[int, ...]] = []
    for shape in event.structured_input_shapes or ():
        each = shape if shape and isinstance(shape[0], list | tuple) else [shape]
        found += [tuple(one) for one in each if one]
    return tuple(found)
