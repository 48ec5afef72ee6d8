"""A few steps under TensorFlow's profiler: which operators ran, when and on which thread, in which layer and phase.

An operator is attributed to a layer and a phase by the time at which it ran, or at which it entered the graph.

The profiler writes an XSpace, a protocol buffer of planes (the host, devices), lines (threads) and events. A graph's operators
are events named ``name:type`` on the threads of the run-time; those that Python runs one by one are ``EagerExecute``.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from sweeprof.backends.tensorflow.probes import LayerProbes
from sweeprof.errors import Unsupported
from sweeprof.measuring.layer_timing import LEFT
from sweeprof.results.layer_times import OUTSIDE
from sweeprof.results.operators import Phase

STEP = "sweeprof step"
HOST = "/host:CPU"
EAGER = "EagerExecute"
TRACE_NUMBERS = re.compile(r"(_\d+)+$")
"""What TensorFlow appends to the name of a compiled function, another at every trace."""


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """One operator that ran once; nanoseconds."""

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

    ran: tuple[OperatorRun, ...]
    step_s: float
    """Seconds of one step, mean."""
    chrome: bytes
    """Everything that the profiler saw on the host, in Chrome's format, compressed with gzip."""


@contextmanager
def profiled(options: tf.profiler.experimental.ProfilerOptions | None = None) -> Iterator[list[xplane_pb2.XPlane]]:
    """Within it TensorFlow's profiler runs; afterwards the list has the planes of what it saw.

    Raises:
        Unsupported: a profiler of TensorFlow is running in this process; there can be one at a time.
    """
    planes: list[xplane_pb2.XPlane] = []
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
            planes += xplane_pb2.XSpace.FromString(file.read_bytes()).planes


def statistics_of(plane: xplane_pb2.XPlane, event: xplane_pb2.XEvent) -> dict[str, Any]:
    """Return the statistics of an event of a plane by name."""
    return {plane.stat_metadata[stat.metadata_id].name: _value(plane, stat) for stat in event.stats}


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
    lines = [(plane, line) for plane in planes if plane.name == HOST for line in plane.lines]
    spans = [span for plane, line in lines for span in _spans(plane, line)]
    steps = [span for span in spans if span.name == STEP]
    # The profiler counts from when it started, which it does not tell.
    started = min(at - round(span.begin) for at, span in zip(entered, steps, strict=True))
    found = sorted(
        (ran for plane, line in lines for ran in _operators(plane, line, started)), key=lambda ran: ran.begin
    )
    return TensorflowTrace(tuple(found), sum(span.end - span.begin for span in steps) / count / 1e9, _chrome(spans))


@dataclass(frozen=True, slots=True)
class _ProfilerEvent:
    """One event of the profiler; nanoseconds."""

    thread: str
    name: str
    begin: float
    end: float
    statistics: dict[str, Any]


def _spans(plane: xplane_pb2.XPlane, line: xplane_pb2.XLine) -> Iterator[_ProfilerEvent]:
    for event in line.events:
        begin = line.timestamp_ns + event.offset_ps / 1000
        name = plane.event_metadata[event.metadata_id].name
        yield _ProfilerEvent(line.name, name, begin, begin + event.duration_ps / 1000, statistics_of(plane, event))


def _value(plane: xplane_pb2.XPlane, stat: xplane_pb2.XStat) -> Any:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind) if kind else None
    return plane.stat_metadata[value].name if kind == "ref_value" else value


def _operators(plane: xplane_pb2.XPlane, line: xplane_pb2.XLine, started: int) -> Iterator[OperatorRun]:
    """The operators of one thread, which may call each other."""
    running: list[_RunningOperator] = []
    for span in sorted(_spans(plane, line), key=lambda span: (span.begin, -span.end)):
        name, _, kind = span.name.rpartition(":")
        if span.name == EAGER:
            name, kind = "", _kind(str(span.statistics["eager_op"]))
        elif not name or not kind.isidentifier() or name.endswith(":"):  # `Class::Function` is the run-time's own
            continue
        while running and running[-1].span.end <= span.begin:
            yield running.pop().ended(started)
        if running:
            running[-1].within += span.end - span.begin
        running.append(_RunningOperator(name, kind, span))
    for each in reversed(running):
        yield each.ended(started)


def _kind(operator: str) -> str:
    """The type of an operator that Python ran; a compiled function's is the same whenever it was traced."""
    return TRACE_NUMBERS.sub("", operator) if operator.startswith("__") else operator


@dataclass(slots=True)
class _RunningOperator:
    """An operator that has not ended yet."""

    name: str
    type: str
    span: _ProfilerEvent
    within: float = 0.0
    """Nanoseconds of the operators that it called."""

    def ended(self, started: int) -> OperatorRun:
        total = self.span.end - self.span.begin
        return OperatorRun(self.name, self.type, started + round(self.span.begin), total, total - self.within)


def _chrome(spans: list[_ProfilerEvent]) -> bytes:
    begin = min((span.begin for span in spans), default=0.0)
    threads = {name: number for number, name in enumerate(dict.fromkeys(span.thread for span in spans))}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": name}}
        for name, number in threads.items()
    ]
    for span in spans:
        times = {"ts": (span.begin - begin) / 1000, "dur": (span.end - span.begin) / 1000}
        args = {key: str(value) for key, value in span.statistics.items()}
        events.append({"ph": "X", "pid": 0, "tid": threads[span.thread], "name": span.name, **times, "args": args})
    return gzip.compress(json.dumps({"traceEvents": events}).encode(), mtime=0)


LayerPhase = tuple[str, Phase | None]
"""The path of a layer, and the phase; None where nothing tells it."""
REWRITTEN = re.compile(r"-\d+-\w+-LayoutOptimizer$")
"""What TensorFlow appends to the name of an operator that it puts beside another."""
PREFIXES = ("gradient_tape", "ArithmeticOptimizer", "ConstantFolding")
"""What it puts before the scope of an operator, whose backward, rewritten form or constant part another one is."""


class HostTimestamps:
    """Marks are nanoseconds since the epoch."""

    def __init__(self) -> None:
        self.busy: list[tuple[int, int]] = []
        """When tensors were passed on, which takes an operator of its own."""

    def is_here(self) -> bool:
        return bool(tf.executing_eagerly())

    def now(self) -> int:
        return time.time_ns()

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[int, list[tf.Tensor]]:
        begin = self.now()
        passed = [tf.identity(tensor) for tensor in tensors]
        self.busy.append((begin, self.now()))
        return begin, passed

    def was_busy(self, mark: float) -> bool:
        """True if tensors were being passed on at the time ``mark``."""
        place = bisect_right(self.busy, mark, key=lambda span: span[0]) - 1
        return place >= 0 and mark < self.busy[place][1]


class GraphPositions:
    """Marks are places in the order in which a graph's operators are made."""

    def __init__(self) -> None:
        self.graph = tf.compat.v1.get_default_graph()

    def is_here(self) -> bool:
        return tf.compat.v1.get_default_graph() is self.graph

    def now(self) -> int:
        return len(self.graph.get_operations())

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[int, list[tf.Tensor]]:
        return self.now(), [tf.identity(tensor) for tensor in tensors]


class Untouched:
    """Marks are places in the first graph that is made; tensors are passed on as they are, and it is the one without marks."""

    def __init__(self) -> None:
        self.graph: tf.Graph | None = None

    @property
    def operators(self) -> Sequence[tf.Operation]:
        """The operators of the graph so far."""
        return () if self.graph is None else self.graph.get_operations()

    def is_here(self) -> bool:
        if tf.executing_eagerly():
            return False
        self.graph = self.graph or tf.compat.v1.get_default_graph()
        return tf.compat.v1.get_default_graph() is self.graph

    def at(self, tensors: Sequence[tf.Tensor], is_entry: bool) -> tuple[int, list[tf.Tensor]]:
        return len(self.operators), list(tensors)


@dataclass(frozen=True, slots=True)
class PhaseBoundaries:
    """The marks between the phases of a step."""

    begin: int
    backward: int
    update: int
    end: int


class Attribution:
    """Tells who owned each moment of a step."""

    def __init__(self, probes: LayerProbes, turns: PhaseBoundaries) -> None:
        self._marks, self._owners = [turns.begin], list[LayerPhase]([(OUTSIDE, "forward")])
        running, from_number = [OUTSIDE], {0: OUTSIDE}
        for what, number, mark in probes.forward:
            if what == LEFT:
                running.pop()
            elif what is not None:
                running.append(probes.described[what][0][0])
            from_number[number] = running[-1]
            self._add(mark, running[-1], "forward")
        self._add(turns.backward, OUTSIDE, "backward")
        for _, number, mark in probes.backward:
            self._add(mark, from_number[number], "backward")
        self._add(turns.update, OUTSIDE, "update")

    def _add(self, mark: int, path: str, phase: Phase) -> None:
        self._marks.append(mark)
        self._owners.append((path, phase))

    def at(self, mark: float) -> LayerPhase:
        """Return the layer and phase at a time, or at a position in the graph."""
        return self._owners[max(0, bisect_right(self._marks, mark) - 1)]


class AttributionByName:
    """Finds the owner of an operator of a graph by its name, whatever TensorFlow has made of the graph."""

    def __init__(self, owners: Attribution, operators: Sequence[tf.Operation]) -> None:
        self._owners = {operator.name: owners.at(place) for place, operator in enumerate(operators)}
        self._operators = {operator.name: operator for operator in operators}

    def of(self, name: str) -> LayerPhase:
        """Return the layer and phase of the operator, or of the loop or function that contains it."""
        parts = REWRITTEN.sub("", name).split("/")
        names = ("/".join(parts[:end]) for end in range(len(parts), 0, -1))
        return next((self._owners[known] for known in names if known in self._owners), (OUTSIDE, None))

    def shapes(self, name: str, kind: str) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of an operator's inputs, if it is the original operator of the graph and they are known."""
        operator = self._operators.get(name)
        if operator is None or operator.type != kind:
            return ()
        shapes = [tensor.shape for tensor in operator.inputs]
        return tuple(tuple(shape.as_list()) for shape in shapes if shape.is_fully_defined() and shape.rank)


class AttributionByScope:
    """Finds the layer of an operator of a graph by its name, which for one of a backward has the name scope of the forward in it.

    Keras gives every call of a layer a scope of its own, but TensorFlow numbers scopes as it likes: which is whose is known from
    the operators that were put into the graph while a layer ran.
    """

    def __init__(self, owners: Attribution, operators: Sequence[tf.Operation]) -> None:
        self._named: dict[str, str] = {}
        self._scoped: dict[str, str] = {}
        for place, operator in enumerate(operators):
            path, _ = owners.at(place)
            if path != OUTSIDE:
                self._named[operator.name] = path
                self._scoped.setdefault(operator.name.rpartition("/")[0], path)

    def of(self, name: str) -> str:
        """The path of the layer to which the operator, or the innermost scope around it, belongs."""
        parts = [part for part in REWRITTEN.sub("", name).split("/") if part not in PREFIXES]
        names = ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]
        found = (known[each] for each in names for known in (self._named, self._scoped) if each in known)
        return next(found, OUTSIDE)
