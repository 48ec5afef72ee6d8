"""A few steps under TensorFlow's profiler: which operators ran, when, on which thread.

The profiler writes an XSpace, a protocol buffer of planes (the host, devices), lines (threads) and events. A graph's operators are
events named ``name:type`` on the threads of the run-time; those that Python runs one by one are ``EagerExecute``.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from sweeprof.errors import Unsupported

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
def profiled(options: Any = None) -> Iterator[list[Any]]:
    """Within it TensorFlow's profiler runs; afterwards the list has the planes of what it saw.

    Raises:
        Unsupported: a profiler of TensorFlow is running in this process; there can be one at a time.
    """
    planes: list[Any] = []
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


def statistics_of(plane: Any, event: Any) -> dict[str, Any]:
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


def _spans(plane: Any, line: Any) -> Iterator[_ProfilerEvent]:
    for event in line.events:
        begin = line.timestamp_ns + event.offset_ps / 1000
        name = plane.event_metadata[event.metadata_id].name
        yield _ProfilerEvent(line.name, name, begin, begin + event.duration_ps / 1000, statistics_of(plane, event))


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind) if kind else None
    return plane.stat_metadata[value].name if kind == "ref_value" else value


def _operators(plane: Any, line: Any, started: int) -> Iterator[OperatorRun]:
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
