"""OpenVINO: models as graphs, from a torch module, a Keras model, or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import openvino

from sweeprof.backends import Gap
from sweeprof.backends.call_signature import shapes_of
from sweeprof.backends.file_backend import Feed, FileBackend, gaps_of
from sweeprof.backends.openvino.convert import Converted, OpenvinoConverter
from sweeprof.backends.openvino.model import CompileSettings, Hint, OpenvinoModel
from sweeprof.counting.formulas import Formulas
from sweeprof.errors import Unsupported
from sweeprof.measuring.inputs import Inputs
from sweeprof.measuring.training_config import Work
from sweeprof.results.layer_times import LayerTimes
from sweeprof.results.layers import LayerTable
from sweeprof.results.operators import Operators
from sweeprof.results.record import Protocol


@dataclass(slots=True)
class OpenvinoBackend(FileBackend):
    """Graphs in OpenVINO; ``threads`` are those of all streams together.

    ``precision``: ``fp16`` stores weights in 16 bits; ``bf16`` computes in 16 where the processor can; ``int8`` quantizes by NNCF;
    None: as the model is stored, computed in what OpenVINO prefers on this processor.
    """

    gaps: ClassVar[Mapping[str, Gap]] = {
        **gaps_of("OpenVINO"),
        "allocations": Gap("not possible upstream", "tensors share memory that is planned before any step"),
    }
    precision_methods: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fp32": ("convert",),
        "fp16": ("convert",),
        "bf16": ("autocast",),
        "int8": ("static",),
    }
    MODEL: ClassVar[type[OpenvinoModel]] = OpenvinoModel
    out_of_memory: ClassVar[tuple[str, ...]] = ("bad_alloc", "not enough memory")
    hint: Hint = "latency"
    """What OpenVINO chooses the number of streams for: ``latency`` of one request, or ``throughput`` of several at a time."""
    streams: int | None = None
    """Requests that are computed at the same time; None: as the hint and the threads suggest."""
    requests: int | None = None
    """Requests in flight while throughput/concurrent is measured; None: as many as OpenVINO finds best for its streams."""

    def converter(self) -> OpenvinoConverter:
        storage = self.precision if self.precision in ("fp16", "int8") else "fp32"
        if storage == "int8" and find_spec("nncf") is None:
            raise Unsupported("precision=int8 needs NNCF: pip install 'sweeprof[nncf]'")
        return OpenvinoConverter(self.seed, self.cache, self.samples, storage)

    def session_settings(self, device: str) -> CompileSettings:
        if self.precision == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise Unsupported("this processor has no instructions for bfloat16 (AVX-512 BF16 or AMX)")
        inference = {None: None, "bf16": "bf16"}.get(self.precision, "f32")
        return CompileSettings(device, self.threads, self.streams, self.hint, inference)

    def settings_of(self, native: openvino.CompiledModel) -> dict[str, Any]:
        return {
            "threads": native.get_property("INFERENCE_NUM_THREADS"),
            "streams": native.get_property("NUM_STREAMS"),
            "optimal requests": native.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"),
            "inference precision": native.get_property("INFERENCE_PRECISION_HINT").to_string(),
        }

    # What these need is imported when they run: measured processes do not carry it.

    def counted(
        self, file: Converted, stored: Converted, inputs: Inputs, axis: int | None, formulas: Formulas
    ) -> LayerTable:
        from sweeprof.backends.openvino.counting import count_file

        return count_file(file, stored, *shapes_of(inputs, axis), formulas)

    def layer_times(self, model: OpenvinoModel, work: Work, protocol: Protocol) -> LayerTimes:
        from sweeprof.backends.openvino.layers import layer_times

        self.check_inference(work)
        return layer_times(model, work.batch, protocol)

    def operators(self, model: OpenvinoModel, work: Work) -> Operators:
        from sweeprof.backends.openvino.layers import operators

        self.check_inference(work)
        return operators(model, work.batch)

    def concurrently(self, model: OpenvinoModel, batch: Feed, seconds: float) -> tuple[int, int, float]:
        return model.concurrently(batch, self.requests, seconds)
