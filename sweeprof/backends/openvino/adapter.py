"""OpenVINO: models as graphs, from a torch module, a Keras model, or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import openvino

from sweeprof.backends import Build, Gap
from sweeprof.backends.openvino.converting import Converter
from sweeprof.backends.openvino.model import CompileSettings, Feed, Hint, OpenvinoModel
from sweeprof.backends.precision import Precision, PrecisionMethod, checked_method
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.calibration import Kernel, KernelName
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.process_memory import ProcessMemory
from sweeprof.measuring.training_config import Work
from sweeprof.results.artifact import Artifact
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable
from sweeprof.results.operators import Operators
from sweeprof.results.protocol import Protocol

SAMPLES = 128
"""Of the data, for the ranges of int8."""
GENERATION = Gap("not implemented", "a forward is converted, and not the loop over the tokens with its cache")
INFERENCE = Gap("makes no sense", "OpenVINO runs models, and trains none")


@dataclass(slots=True)
class OpenvinoBackend:
    """Graphs in OpenVINO; a model of another framework is converted once, and remembered."""

    gaps: ClassVar[Mapping[str, Gap]] = {
        "AnalyzesTraining": INFERENCE,
        "Trains": INFERENCE,
        "Generates": GENERATION,
        "AnalyzesGeneration": GENERATION,
        "TracesGraph": Gap(
            "not implemented",
            "the operators of the file are counted by module; open the file in a viewer to see its graph",
        ),
        "CountsItself": Gap("not possible upstream", "OpenVINO counts no operations"),
        "Watches": Gap("makes no sense", "a loop of the user's own calls the model and not its converted file"),
        "TracksAllocations": Gap("not possible upstream", "tensors share memory that is planned before any step"),
        "MeasuresPeaks": Gap(
            "not implemented", "there is no benchmark of the machine in OpenVINO; torch's has the same hardware"
        ),
        "ProfilesLines": Gap("makes no sense", "a graph has no source lines"),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "bf16": ("autocast",),
        "int8": ("static",),
    }
    precision_gaps: ClassVar[Mapping[str, str]] = {}
    threads: int = 1
    """Threads of all streams together."""
    hint: Hint = "latency"
    """What OpenVINO chooses the number of streams for: ``latency`` of one request, or ``throughput`` of several at a time."""
    streams: int | None = None
    """Requests that are computed at the same time; None: as the hint and the threads suggest."""
    requests: int | None = None
    """Requests in flight while throughput/concurrent is measured; None: as many as OpenVINO finds best for its streams."""
    precision: Precision | None = None
    """``fp16`` stores weights in 16 bits; ``bf16`` computes in 16 where the processor can; ``int8`` quantizes by NNCF; None: as the
    model is stored, computed in what OpenVINO prefers on this processor."""
    precision_method: PrecisionMethod | None = None
    """Each precision has one method."""
    cache: str | None = None
    """Folder of converted models; None: ``sweeprof/openvino`` in the user's cache."""
    seed: int = field(default=0, init=False)
    expected: Inputs | None = field(default=None, init=False)
    samples: Callable[[int], Inputs | None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        checked_method(type(self), self.precision, self.precision_method)

    def configure(self, seed: int) -> None:
        self.seed = seed  # of the process that builds and converts; threads are a setting of each compiled model

    def expect(self, inputs: Inputs) -> None:
        self.expected = inputs

    def ranges_from(self, samples: Callable[[int], Inputs | None]) -> None:
        self.samples = samples

    def settings_in_effect(self, model: OpenvinoModel | None = None) -> Mapping[str, Any]:
        # They belong to each compiled model; a model's builder has no influence on them.
        if model is None or model.native is None:
            return {}
        compiled = model.native
        method = checked_method(type(self), self.precision, self.precision_method)
        return {
            "threads": compiled.get_property("INFERENCE_NUM_THREADS"),
            "streams": compiled.get_property("NUM_STREAMS"),
            "optimal requests": compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"),
            "inference precision": compiled.get_property("INFERENCE_PRECISION_HINT").to_string(),
            **({} if method is None else {"precision method": method}),
        }

    def devices(self) -> list[str]:
        return ["cpu"]

    def load(self, build: Build, device: str, channel_axis: int | None) -> OpenvinoModel:
        if self.precision == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise Unsupported("this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX)")
        converter = self._converter()
        inference = {None: None, "bf16": "bf16"}.get(self.precision, "f32")
        model = OpenvinoModel(
            lambda inputs: converter.converted(build, inputs, channel_axis),
            CompileSettings(device, self.threads, self.streams, self.hint, inference),
            channel_axis,
        )
        if self.expected is not None:
            model.meet(self.expected)
        return model

    def analyze(self, build: Build, inputs: Inputs, channel_axis: int | None, formulas: Formulas) -> LayerTable:
        from sweeprof.backends.openvino.counting import count

        return count(self._converter(), build, inputs, channel_axis, formulas)

    def artifact(self, build: Build, channel_axis: int | None) -> Artifact:
        if self.expected is None:
            raise Unsupported("the model is converted for its inputs, and they are not known")
        with self._converter().converted(build, self.expected, channel_axis) as file:
            return Artifact(file.size(), "openvino")

    def device_of(self, model: object) -> str:
        return "cpu"

    @contextmanager
    def borrowed(self, model: object, is_trained: bool = False) -> Iterator[None]:
        yield  # what runs is a file, and the model that it was converted from is only read

    def memory_meter(self) -> ProcessMemory:
        return ProcessMemory()

    # What these need is imported when they run: measured processes do not carry it.

    def kernel(self, model: OpenvinoModel, wanted: KernelName | None) -> Kernel:
        from sweeprof.backends.openvino.kernel import kernel

        return kernel(model, wanted)

    def layer_times(self, model: OpenvinoModel, work: Work, protocol: Protocol) -> LayerTimes:
        from sweeprof.backends.openvino.layers import layer_times

        self._check_inference(work)
        return layer_times(model, work.batch, protocol)

    def operators(self, model: OpenvinoModel, work: Work) -> Operators:
        from sweeprof.backends.openvino.layers import operators

        self._check_inference(work)
        return operators(model, work.batch)

    def concurrently(self, model: OpenvinoModel, batch: Feed, seconds: float) -> tuple[int, int, float]:
        return model.concurrently(batch, self.requests, seconds)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError) or "bad_alloc" in str(error) or "not enough memory" in str(error).lower()

    def _converter(self) -> Converter:
        storage = self.precision if self.precision in ("fp16", "int8") else "fp32"
        samples = self.samples(SAMPLES) if self.samples is not None and storage == "int8" else None
        return Converter(storage, samples, self.seed, self.cache)

    @staticmethod
    def _check_inference(work: Work) -> None:
        if work.training is not None:
            raise Unsupported(str(INFERENCE))
