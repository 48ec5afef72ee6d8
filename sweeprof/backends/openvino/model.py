"""A converted model in OpenVINO, ready to step. What a process has loaded by then is the run-time and numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import openvino

from sweeprof.backends import AnyArray
from sweeprof.backends.call_signature import by_name
from sweeprof.backends.file_backend import Feed, FileModel, fitting, is_fitting
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs

Hint = Literal["latency", "throughput"]
TAKER = "the graph is compiled for"


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


class OpenvinoModel(FileModel):
    """A graph in OpenVINO, compiled for the shapes of the first inputs."""

    settings: CompileSettings
    graph: Any
    """The ``openvino.Model`` with the shapes of the first inputs."""

    def open(self, inputs: Inputs) -> None:
        self.graph = openvino.Core().read_model(self.file.path)
        self._slots = [self.graph.input(name) for name in self.file.input_names(self.graph)]
        reshape(self.graph, {slot: array.shape for slot, array in zip(self._slots, self._fed(inputs), strict=True)})
        self.native = self.settings.compiled(self.graph)
        self._request = self.native.create_infer_request()

    def fits(self, inputs: Inputs) -> bool:
        given = by_name(self.file.input_names(self.graph), *self.shapes(inputs))
        return all(
            is_fitting(shape, tuple(slot.shape)) for shape, slot in zip(given.values(), self._slots, strict=True)
        )

    def _fed(self, inputs: Inputs) -> list[AnyArray]:
        """Return the arrays in the order of the arguments."""
        return list(by_name(self.file.input_names(self.graph), *self.arrays(inputs)).values())

    def feed(self, inputs: Inputs) -> Feed:
        given = self._fed(inputs)
        rows = len(given[0]) if given and given[0].ndim else None
        tensors = [
            openvino.Tensor(
                np.ascontiguousarray(fitting(array, tuple(slot.shape), TAKER), slot.element_type.to_dtype()),
                shared_memory=True,
            )
            for array, slot in zip(given, self._slots, strict=True)
        ]
        return Feed(tuple(tensors[self._slots.index(slot)] for slot in self.graph.inputs), rows)

    def step_of(self, batch: Feed) -> Callable[[], object]:
        return self.steps_of(self._request, batch)

    @staticmethod
    def steps_of(request: openvino.InferRequest, batch: Feed) -> Callable[[], object]:
        """A function that runs one forward of ``batch`` by a request, and returns the outputs when they are complete."""
        for index, tensor in enumerate(batch.values):
            request.set_input_tensor(index, tensor)
        outputs = [request.get_output_tensor(index).data for index in range(len(request.output_tensors))]
        infer, rows = request.infer, batch.rows

        def step() -> object:
            infer(share_outputs=True)
            return rows, outputs

        return step

    def named_outputs(self, values: Any) -> dict[str, AnyArray]:
        slots = self.graph.outputs
        names = self.file.outputs or [min(slot.get_names(), default=str(i)) for i, slot in enumerate(slots)]
        return dict(zip(names, values, strict=True))

    def concurrently(self, batch: Feed, requests: int | None, seconds: float) -> tuple[int, int, float]:
        """Run forwards of ``batch``, several at a time; returns how many at a time, how many, and the seconds that these took.

        Args:
            batch: of every request.
            requests: at a time; None: as many as OpenVINO finds best for its streams.
            seconds: requests are started for this long; then the last are awaited.
        """
        queue = openvino.AsyncInferQueue(self.native, requests or 0)
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
