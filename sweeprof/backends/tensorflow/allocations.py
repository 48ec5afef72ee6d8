"""Allocations in the first steps of a Keras model, from the allocator events in TensorFlow's profiler.

The allocator that serves the host by default tells of large blocks only. The one that serves GPUs tells of every block, and serves
the host too where ``TF_CPU_ALLOCATOR_USE_BFC`` is set before TensorFlow starts: ``environment_for`` in the backend's YAML has a
sweep do so for this pass, whose process measures nothing else.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import tensorflow as tf

from sweeprof.backends.tensorflow.model import TensorflowModel, tensors_in
from sweeprof.backends.tensorflow.probes import LayerProbes
from sweeprof.backends.tensorflow.runtime import sweeprof_name
from sweeprof.backends.tensorflow.state import native
from sweeprof.backends.tensorflow.tracing import (
    Attribution,
    AttributionByScope,
    PhaseBoundaries,
    Untouched,
    profiled,
    statistics_of,
)
from sweeprof.backends.tensorflow.training import FusedTraining, training
from sweeprof.errors import Unsupported
from sweeprof.measuring.allocations import Change, course
from sweeprof.measuring.timing import without_collection
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import OUTSIDE, above
from sweeprof.results.memory import Allocations, Kind, TensorRow, largest_first

if TYPE_CHECKING:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

STEPS = 3
"""As many as on PyTorch: the first is traced and compiled, the third is like all that follow."""
STEP = "sweeprof.step"
VARIABLE = "TF_CPU_ALLOCATOR_USE_BFC"


def allocations(model: TensorflowModel, work: Work) -> Allocations:
    """Trace the first steps; nothing may have run before.

    Raises:
        Unsupported: the host's allocator does not tell of every block, or a profiler is running.
    """
    if model.device == "cpu" and os.environ.get(VARIABLE, "").lower() not in ("1", "true"):
        raise Unsupported(
            f"the host's allocator tells of large blocks only, unless {VARIABLE}=true is in the environment before "
            "TensorFlow starts, as it is in the process that a sweep gives this pass"
        )
    places = Untouched()
    probes = LayerProbes(model.native, places, ())
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=3, python_tracer_level=0, device_tracer_level=1
    )
    with _steps(model, work) as step, without_collection():
        gc.collect()
        _begin(model.device)
        before = _used(model.device)
        with profiled(options) as events:
            for number in range(STEPS):
                marking = nullcontext() if number else probes.attached()  # the graph is made in the first step
                with marking, tf.profiler.experimental.Trace(STEP):
                    step()
                    tf.test.experimental.sync_devices()
                gc.collect(0)
        device = _device_figures(model.device, before)
        tensors = _tensors(model, work)
    trace = _PlaneChanges(_stacks(probes, places))
    trace.read(events)
    return course(trace.changes, trace.begins, trace.ends, mode=work.mode, tensors=tensors, device=device)


@contextmanager
def _steps(model: TensorflowModel, work: Work) -> Iterator[Callable[[], object]]:
    if work.training is None:
        with model.stepping(work.batch) as step:
            yield step
        return
    with training(model, work.batch, work.targets, work.training) as phases:
        yield phases.whole if isinstance(phases, FusedTraining) else phases.all_phases


class _PlaneChanges:
    """The changes of memory in the planes of a profile."""

    def __init__(self, path_of: Callable[[str], tuple[str, ...]]) -> None:
        self.changes: list[Change] = []
        self.begins: list[int] = []
        self.ends: list[int] = []
        self._path_of = path_of

    def read(self, planes: list[xplane_pb2.XPlane]) -> None:
        """Add every event, in the order of time."""
        events = [
            (line.timestamp_ns * 1000 + event.offset_ps, plane, event)
            for plane in planes
            for line in plane.lines
            for event in line.events
        ]
        stack: tuple[str, ...] = ()
        for begin, plane, event in sorted(events, key=lambda found: found[0]):
            name = plane.event_metadata[event.metadata_id].name
            if name == STEP:
                self.begins.append(begin // 1000)
                self.ends.append((begin + event.duration_ps) // 1000)
            elif name in ("MemoryAllocation", "MemoryDeallocation"):
                facts = statistics_of(plane, event)
                size = facts["requested_bytes"]
                if name == "MemoryAllocation":
                    stack = self._path_of(str(facts.get("tf_op", "")))
                else:
                    size = -size  # an event does not say for whom; it is the last that allocated, or one right after it
                self.changes.append(Change(begin // 1000, size, facts["addr"], stack))


def _stacks(probes: LayerProbes, places: Untouched) -> Callable[[str], tuple[str, ...]]:
    """From an operator's name to the layers around it, outermost first."""
    operators = places.operators
    turned = len(operators)  # what follows the model, its backward too, is told by the names
    owners = AttributionByScope(Attribution(probes, PhaseBoundaries(0, turned, turned, turned)), operators)

    def stack(operator: str) -> tuple[str, ...]:
        path = owners.of(operator)
        return () if path == OUTSIDE else (*above(path), path)

    return stack


def _tensors(model: TensorflowModel, work: Work) -> tuple[TensorRow, ...]:
    """The weights of the model, and the inputs."""
    trained = {id(variable) for variable in getattr(model.native, "trainable_variables", ())}
    rows = [
        _row(variable.path, "parameter" if id(variable) in trained else "buffer", native(variable))
        for variable in getattr(model.native, "weights", ())
    ]
    inputs = tensors_in((work.batch.args, dict(work.batch.kwargs)))
    return largest_first([*rows, *(_row(f"input[{i}]", "input", tensor) for i, tensor in enumerate(inputs))])


def _row(name: str, kind: Kind, tensor: tf.Variable | tf.Tensor) -> TensorRow:
    shape = tuple(tensor.shape)
    size = tensor.shape.num_elements() * tensor.dtype.size
    return TensorRow((name,), kind, shape, tensor.dtype.name, sweeprof_name(tensor.device), size)


def _begin(device: str) -> None:
    if device != "cpu":
        tf.config.experimental.reset_memory_stats(device.upper())


def _used(device: str) -> int:
    return 0 if device == "cpu" else int(tf.config.experimental.get_memory_info(device.upper())["current"])


def _device_figures(device: str, before: int) -> dict[str, int]:
    """Return the statistics of a GPU's own allocator; empty on the host."""
    if device == "cpu":
        return {}
    found = tf.config.experimental.get_memory_info(device.upper())
    return {
        "allocated_pre_bytes": before,
        "allocated_peak_bytes": int(found["peak"]),
        "allocated_post_bytes": int(found["current"]),
    }
