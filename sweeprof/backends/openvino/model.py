"""A converted model in OpenVINO, ready to step. What a process has loaded by then is the run-time and numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import openvino

from sweeprof.backends import AnyArray
from sweeprof.backends.call_signature import arrays, by_name, moved_last
from sweeprof.backends.openvino.files import Converted
from sweeprof.backends.outputs import HostOutputs, floating_outputs
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.timing import WallClock

Hint = Literal["latency", "throughput"]
Conversion = Callable[[Inputs], AbstractContextManager[Converted]]


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """Settings that a model is compiled with."""

    device: str
    threads: int
    streams: int | None
    hint: Hint
    inference_precision: str | None
    """``f32`` or ``bf16``; None: OpenVINO chooses."""

    def compiled(self, graph: openvino.Model, *, counters: bool = False) -> openvino.CompiledModel:
        """Return the graph as it runs.

        Args:
            graph: with its shapes.
            counters: True: it notes the time of each operator.
        """
        config: dict[str, Any] = {
            "PERFORMANCE_HINT": self.hint.upper(),
            "INFERENCE_NUM_THREADS": self.threads,
            "PERF_COUNT": counters,
        }
        if self.streams is not None:
            config["NUM_STREAMS"] = self.streams
        if self.inference_precision is not None:
            config["INFERENCE_PRECISION_HINT"] = self.inference_precision
        return openvino.Core().compile_model(graph, self.device.upper(), config)


@dataclass(frozen=True, slots=True)
class Feed:
    """A batch in the order, the types and the shapes of the graph's inputs."""

    tensors: tuple[openvino.Tensor, ...]
    rows: int | None
    """Samples that count, if the batch was filled up to the one that the graph takes; None: all."""


class OpenvinoModel:
    """A graph in OpenVINO; it is converted when it meets its first inputs, and compiled for their shapes."""

    compiles = False

    def __init__(self, conversion: Conversion, settings: CompileSettings, channel_axis: int | None) -> None:
        self._conversion, self.settings, self._axis = conversion, settings, channel_axis
        self._held: AbstractContextManager[Converted] | None = None
        self._file: Converted | None = None
        self.graph: Any = None
        """The ``openvino.Model`` with the shapes of the first inputs; None before these."""
        self._slots: list[Any] = []
        """Its inputs, in the order of the arguments."""
        self._compiled: Any = None
        self._request: Any = None

    @property
    def native(self) -> Any:
        """The ``CompiledModel``; None before the first inputs."""
        return self._compiled

    @property
    def file(self) -> Converted:
        """The file that runs.

        Raises:
            Unsupported: the model has met no inputs yet.
        """
        if self._file is None:
            raise Unsupported("the model is converted for its inputs, and has met none yet")
        return self._file

    def meet(self, inputs: Inputs) -> None:
        """Convert the model for such inputs and compile it, where that has not been done.

        Raises:
            Unsupported: it cannot be converted, or takes no such inputs.
            Exception: whatever the builder raised, or OpenVINO.
        """
        if self._file is not None:
            return
        self._held = self._conversion(inputs)  # a temporary file is there as long as this object
        self._file = self._held.__enter__()
        self.graph = openvino.Core().read_model(self._file.path)
        self._slots = [self.graph.input(name) for name in self._file.input_names(self.graph)]
        reshape(self.graph, {slot: array.shape for slot, array in zip(self._slots, self._fed(inputs), strict=True)})
        self._compiled = self.settings.compiled(self.graph)
        self._request = self._compiled.create_infer_request()

    def _fed(self, inputs: Inputs) -> list[AnyArray]:
        positional, named = arrays(inputs)
        if self.file.channels == "last" and self._axis is not None:
            positional = [moved_last(array, self._axis) for array in positional]
        return list(by_name(self.file.input_names(self.graph), positional, named).values())

    def clock(self) -> WallClock:
        return WallClock()

    def put(self, inputs: Inputs) -> Feed:
        self.meet(inputs)
        given = self._fed(inputs)
        rows = len(given[0]) if given and given[0].ndim else None
        wanted = [tuple(slot.shape) for slot in self._slots]
        filled = [_filled(array, shape, rows) for array, shape in zip(given, wanted, strict=True)]
        tensors = [
            openvino.Tensor(np.ascontiguousarray(array, slot.element_type.to_dtype()), shared_memory=True)
            for array, slot in zip(filled, self._slots, strict=True)
        ]
        order = [self._slots.index(slot) for slot in self.graph.inputs]
        return Feed(tuple(tensors[index] for index in order), None if [a.shape for a in given] == wanted else rows)

    @contextmanager
    def stepping(self, batch: Feed) -> Iterator[Callable[[], object]]:
        yield self.steps_of(self._request, batch)

    @staticmethod
    def steps_of(request: openvino.InferRequest, batch: Feed) -> Callable[[], object]:
        """A function that runs one forward of ``batch`` by a request, and returns the outputs when they are complete."""
        for index, tensor in enumerate(batch.tensors):
            request.set_input_tensor(index, tensor)
        outputs = [request.get_output_tensor(index).data for index in range(len(request.output_tensors))]
        infer, rows = request.infer, batch.rows

        def step() -> object:
            infer(share_outputs=True)
            return rows, outputs

        return step

    def concurrently(self, batch: Feed, requests: int | None, seconds: float) -> tuple[int, int, float]:
        """Run forwards of ``batch``, several at a time; returns how many at a time, how many, and the seconds that these took.

        Args:
            batch: of every request.
            requests: at a time; None: as many as OpenVINO finds best for its streams.
            seconds: requests are started for this long; then the last are awaited.
        """
        queue = openvino.AsyncInferQueue(self._compiled, requests or 0)
        for request in queue:
            self.steps_of(request, batch)
        done = len(queue)
        for _ in range(done):
            queue.start_async()  # the first of each request allocates
        queue.wait_all()
        count, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            queue.start_async()  # waits for a free request
            count += 1
        queue.wait_all()
        return done, count, time.perf_counter() - begin

    def transfers(self, inputs: Inputs, outputs: object) -> Mapping[str, Callable[[], object]]:
        return {}

    def host_outputs(self, outputs: Any) -> HostOutputs:
        rows, values = outputs
        names = self.file.outputs or [_name(slot, index) for index, slot in enumerate(self.graph.outputs)]
        found = {name: value[:rows] if value.ndim else value for name, value in zip(names, values, strict=True)}
        return floating_outputs(
            values, found, lambda value: value.dtype.kind == "f", lambda value: value.astype(np.float32)
        )


def _name(slot: openvino.Output, index: int) -> str:
    return min(slot.get_names(), default=str(index))


def reshape(graph: openvino.Model, shapes: Mapping[openvino.Output, tuple[int, ...]]) -> None:
    """Set the shapes of the inputs.

    Raises:
        Unsupported: the graph takes others.
    """
    given = {slot: openvino.PartialShape(list(shape)) for slot, shape in shapes.items()}
    for slot, shape in given.items():
        if not slot.get_partial_shape().compatible(shape):
            raise Unsupported(f"the graph takes a {slot.get_partial_shape()} as {slot.get_any_name()}, not a {shape}")
    graph.reshape(given)


def _filled(array: AnyArray, shape: tuple[int, ...], rows: int | None) -> AnyArray:
    """Return the array, filled up with its last sample to the batch that the graph is compiled for."""
    if array.shape == shape:
        return array
    if rows is None or array.ndim != len(shape) or array.shape[1:] != shape[1:] or len(array) > shape[0]:
        raise Unsupported(f"the graph is compiled for a {shape}, not a {array.shape}")
    return array[np.minimum(np.arange(shape[0]), rows - 1)]
